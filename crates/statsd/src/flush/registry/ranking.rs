//! Ranking of keys by samples, for `top` at the management port and the key log.

use std::cmp::Reverse;

use super::KeyRegistry;
use crate::{
    MetricName,
    aggregate::MetricType,
    flush::table::{MetricEntry, MetricTable},
    settings::StatsdDialect,
};

impl KeyRegistry {
    /// Returns the `count` busiest keys of the running interval, busiest first.
    pub fn top(&self, count: usize) -> Vec<(MetricType, MetricName, u64)> {
        self.ranked(count, |hits, _| hits)
    }

    /// Returns the busiest `percent` of the keys that had samples since the last call, each with
    /// its number of samples, busiest first. The number of keys is rounded down in the Perl dialect
    /// and up in others.
    pub fn key_flush(&mut self, percent: f64) -> Vec<(MetricName, u64)> {
        let ranked = self.ranked(usize::MAX, |_, key_hits| key_hits);
        self.counters.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.timers.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.gauges.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.sets.iter_mut().for_each(|entry| entry.key_hits = 0);
        let share = ranked.len() as f64 * percent / 100.0;
        let count = match self.settings.dialect {
            StatsdDialect::Etsy | StatsdDialect::Dogstatsd => share.ceil(),
            StatsdDialect::Perl => share.floor(),
        };
        ranked.into_iter().take(count as usize).map(|(_, name, hits)| (name, hits)).collect()
    }

    fn ranked(
        &self,
        count: usize,
        hits: impl Fn(u64, u64) -> u64,
    ) -> Vec<(MetricType, MetricName, u64)> {
        fn hits_by_key<S: Default>(
            kind: MetricType,
            table: &MetricTable<S>,
            hits: impl Fn(u64, u64) -> u64,
        ) -> impl Iterator<Item = (MetricType, &MetricName, u64)> {
            let one = move |entry: &MetricEntry<S>| hits(entry.hits.into(), entry.key_hits.into());
            table.iter().map(move |entry| (kind, &entry.name, one(entry))).filter(|row| row.2 > 0)
        }
        let mut rows: Vec<_> = hits_by_key(MetricType::Counter, &self.counters, &hits)
            .chain(hits_by_key(MetricType::Timer, &self.timers, &hits))
            .chain(hits_by_key(MetricType::Gauge, &self.gauges, &hits))
            .chain(hits_by_key(MetricType::Set, &self.sets, &hits))
            .collect();
        rows.sort_by_key(|row| Reverse(row.2));
        rows.into_iter().take(count).map(|(kind, name, hits)| (kind, name.clone(), hits)).collect()
    }
}
