//! Which keys are busiest: for `top` at the management port and for the log of keys.

use std::cmp::Reverse;

use super::Registry;
use crate::{
    Name,
    aggregate::Kind,
    flush::table::{Entry, Table},
    settings::Dialect,
};

impl Registry {
    /// The busiest keys of the running interval, busiest first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(Kind, Name, u64)> {
        self.ranked(count, |hits, _| hits)
    }

    /// Keys with the number of their samples since the last call, busiest first: `percent` of them,
    /// rounded up in etsy's dialect and down in the Perl server's.
    pub fn key_flush(&mut self, percent: f64) -> Vec<(Name, u64)> {
        let ranked = self.ranked(usize::MAX, |_, key_hits| key_hits);
        self.counters.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.timers.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.gauges.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.sets.iter_mut().for_each(|entry| entry.key_hits = 0);
        let share = ranked.len() as f64 * percent / 100.0;
        let shown = match self.settings.dialect {
            Dialect::Etsy | Dialect::Dogstatsd => share.ceil(),
            Dialect::Perl => share.floor(),
        };
        ranked.into_iter().take(shown as usize).map(|(_, name, hits)| (name, hits)).collect()
    }

    fn ranked(&self, count: usize, hits: impl Fn(u64, u64) -> u64) -> Vec<(Kind, Name, u64)> {
        fn of<S: Default>(
            kind: Kind,
            table: &Table<S>,
            hits: impl Fn(u64, u64) -> u64,
        ) -> impl Iterator<Item = (Kind, &Name, u64)> {
            let one = move |entry: &Entry<S>| hits(entry.hits, entry.key_hits);
            table.iter().map(move |entry| (kind, &entry.name, one(entry))).filter(|row| row.2 > 0)
        }
        let mut rows: Vec<_> = of(Kind::Counter, &self.counters, &hits)
            .chain(of(Kind::Timer, &self.timers, &hits))
            .chain(of(Kind::Gauge, &self.gauges, &hits))
            .chain(of(Kind::Set, &self.sets, &hits))
            .collect();
        rows.sort_by_key(|row| Reverse(row.2));
        rows.into_iter().take(count).map(|(kind, name, hits)| (kind, name.clone(), hits)).collect()
    }
}
