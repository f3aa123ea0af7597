//! Samples added up: how long backends of each kind were seen at each event.
//!
//! Every observation stands for the time since the round before. Three sums are kept apart: database time,
//! in which a client waited for its backend; the server's own processes at work; and idleness. Shares are
//! of database time, for idle connections would drown all else.

use std::{collections::HashMap, time::Duration};

use super::{
    backend::Kind,
    names::{Class, WaitEvent},
    query::QueryId,
    sampler::{Checks, Observation, Round},
};

/// What was seen since the beginning, and since the last report of an interval.
#[derive(Debug, Default)]
pub struct Profile {
    cells: HashMap<Key, Cell>,
    whole: Span,
    interval: Span,
}

/// What was seen in a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// How long the span was.
    pub elapsed: Duration,
    /// Rounds in it.
    pub rounds: u64,
    /// Time in which clients waited for their backends: the sum over [`Group::Database`].
    pub database_time: Duration,
    /// What processes without a reported wait did, where the kernel was asked.
    pub checks: Checks,
    /// Database time first, then background work, then idleness; each from most time to least.
    pub rows: Vec<Row>,
    /// Observations that found no row, because there were [`ROWS_MAX`] already.
    pub uncounted: u64,
}

/// How long processes of one kind were seen at one event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Which sum it belongs to.
    pub group: Group,
    /// What the processes are for.
    pub kind: Kind,
    /// What they waited for.
    pub event: WaitEvent,
    /// What they worked on, if that was asked for and could be read.
    pub query: Option<QueryId>,
    /// How often it was seen.
    pub samples: u64,
    /// The time these stand for, summed over processes.
    pub time: Duration,
    /// Its part of database time, 0 to 1, if it is of it.
    pub share: Option<f64>,
    /// How many processes were at it on average.
    pub processes: f64,
}

/// The sums that are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// A client waited for it.
    Database,
    /// The server's own processes at work.
    Background,
    /// Waiting for a client, or for work.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: Kind,
    event: WaitEvent,
    query: Option<QueryId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    whole: Amount,
    interval: Amount,
}

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    samples: u64,
    time: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    elapsed: Duration,
    rounds: u64,
    checks: Checks,
    uncounted: u64,
}

impl Profile {
    /// Adds what a round saw. The first round of a sampler stands for no time and only counts samples.
    pub fn add(&mut self, round: &Round<'_>) {
        for span in [&mut self.whole, &mut self.interval] {
            span.checks.add(round.checks());
        }
        let seen = round.observations();
        let seen = seen.map(|Observation { backend, event, query }| (backend.kind, event, query));
        self.add_seen(round.elapsed(), seen);
    }

    /// The same of somebody else's look: what each process was at, and the time since the look before.
    pub fn add_seen(
        &mut self,
        elapsed: Duration,
        seen: impl IntoIterator<Item = (Kind, WaitEvent, Option<QueryId>)>,
    ) {
        for span in [&mut self.whole, &mut self.interval] {
            span.elapsed += elapsed;
            span.rounds += 1;
        }
        // Neighbours are mostly at the same, idle sessions above all: a row is looked up once for a run.
        let keys: Vec<Key> =
            seen.into_iter().map(|(kind, event, query)| Key { kind, event, query }).collect();
        for run in keys.chunk_by(|a, b| a == b) {
            self.count(run[0], run.len(), elapsed);
        }
    }

    /// All since the beginning.
    #[must_use]
    pub fn total(&self) -> Report {
        self.report(&self.whole, |cell| cell.whole)
    }

    /// What came since the last call, or the beginning.
    pub fn interval(&mut self) -> Report {
        let report = self.report(&self.interval, |cell| cell.interval);
        self.interval = Span::default();
        self.cells.values_mut().for_each(|cell| cell.interval = Amount::default());
        report
    }

    fn count(&mut self, key: Key, times: usize, elapsed: Duration) {
        let (samples, time) = (times as u64, elapsed * u32::try_from(times).unwrap_or(u32::MAX));
        let is_full = self.cells.len() >= ROWS_MAX;
        if is_full && !self.cells.contains_key(&key) {
            self.whole.uncounted += samples;
            self.interval.uncounted += samples;
            return;
        }
        let cell = self.cells.entry(key).or_default();
        for amount in [&mut cell.whole, &mut cell.interval] {
            amount.samples += samples;
            amount.time += time;
        }
    }

    fn report(&self, span: &Span, amount: impl Fn(&Cell) -> Amount) -> Report {
        let amounts = self.cells.iter().map(|(key, cell)| (key, amount(cell)));
        let mut rows: Vec<Row> = amounts
            .filter(|(_, amount)| amount.samples > 0)
            .map(|(&Key { kind, event, query }, Amount { samples, time })| Row {
                group: Group::of(kind, event.class()),
                kind,
                event,
                query,
                samples,
                time,
                share: None,
                processes: ratio(time, span.elapsed).unwrap_or_default(),
            })
            .collect();
        let database = rows.iter().filter(|row| row.group == Group::Database);
        let database_time = database.map(|row| row.time).sum();
        for row in rows.iter_mut().filter(|row| row.group == Group::Database) {
            row.share = ratio(row.time, database_time);
        }
        rows.sort_by(|a, b| {
            let by_weight =
                |row: &Row| (std::cmp::Reverse(row.time), std::cmp::Reverse(row.samples));
            (a.group, by_weight(a), a.kind, a.event, a.query).cmp(&(
                b.group,
                by_weight(b),
                b.kind,
                b.event,
                b.query,
            ))
        });
        let Span { elapsed, rounds, checks, uncounted } = *span;
        Report { elapsed, rounds, database_time, checks, rows, uncounted }
    }
}

impl Report {
    /// Database time by class of events, from most to least.
    #[must_use]
    pub fn classes(&self) -> Vec<(Class, Duration)> {
        let mut times = HashMap::<Class, Duration>::new();
        for row in self.rows.iter().filter(|row| row.group == Group::Database) {
            *times.entry(row.event.class()).or_default() += row.time;
        }
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_by_key(|&(class, time)| (std::cmp::Reverse(time), class));
        times
    }
}

impl Group {
    fn of(kind: Kind, class: Class) -> Self {
        match kind {
            _ if class.is_idle() => Self::Idle,
            kind if kind.is_foreground() => Self::Database,
            _ => Self::Background,
        }
    }
}

impl Checks {
    fn add(&mut self, more: Self) {
        self.running += more.running;
        self.blocked += more.blocked;
        self.sleeping += more.sleeping;
    }
}

/// How many rows a profile keeps. Statements are what there can be many of.
pub const ROWS_MAX: usize = 100_000;

fn ratio(part: Duration, whole: Duration) -> Option<f64> {
    (!whole.is_zero()).then(|| part.as_secs_f64() / whole.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::waits::Names;

    const MS: Duration = Duration::from_millis(1);

    fn names() -> Names {
        Names::of(15).expect("a major that is known")
    }

    fn key(kind: Kind, raw: u32) -> Key {
        Key { kind, event: names().decode(raw), query: None }
    }

    #[test]
    fn shares_are_of_database_time() {
        let mut profile = Profile::default();
        profile.whole.elapsed = MS * 4;
        for _ in 0..3 {
            profile.count(key(Kind::Client, 0x0300_0000), 1, MS);
        }
        profile.count(key(Kind::ParallelWorker, 0), 1, MS);
        for _ in 0..100 {
            profile.count(key(Kind::Client, 0x0600_0000), 1, MS);
        }
        profile.count(key(Kind::Checkpointer, 0x0900_0001), 1, MS);
        let report = profile.total();
        assert_eq!(report.database_time, MS * 4);
        let rows: Vec<_> =
            report.rows.iter().map(|row| (row.group, row.event.to_string(), row.share)).collect();
        let text = str::to_owned;
        assert_eq!(
            rows,
            [
                (Group::Database, text("Lock:relation"), Some(0.75)),
                (Group::Database, text("CPU*"), Some(0.25)),
                (Group::Background, text("Timeout:CheckpointWriteDelay"), None),
                (Group::Idle, text("Client:ClientRead"), None),
            ]
        );
        assert_eq!(report.rows[0].processes, 0.75);
        assert_eq!(report.classes(), [(Class::Lock, MS * 3), (Class::NoWait, MS)]);
    }

    #[test]
    fn an_interval_is_what_came_since_the_last() {
        let mut profile = Profile::default();
        let lock = key(Kind::Client, 0x0300_0000);
        profile.count(lock, 1, MS);
        assert_eq!(profile.interval().rows[0].samples, 1);
        assert_eq!(profile.interval().rows, []);
        profile.count(lock, 1, MS);
        profile.count(lock, 1, MS);
        assert_eq!(profile.interval().rows[0].samples, 2);
        assert_eq!(profile.total().rows[0].samples, 3);
    }

    #[test]
    fn rows_are_bounded_and_what_found_none_is_counted() {
        let mut profile = Profile::default();
        for raw in 0..u32::try_from(ROWS_MAX).expect("it is small") + 5 {
            profile.count(key(Kind::Client, 0x1000_0000 + raw), 1, MS);
        }
        profile.count(key(Kind::Client, 0x1000_0000), 1, MS);
        let report = profile.interval();
        assert_eq!((report.rows.len(), report.uncounted), (ROWS_MAX, 5));
        assert_eq!((profile.interval().uncounted, profile.total().uncounted), (0, 5));
    }

    proptest! {
        #[test]
        fn sums_close(seen in prop::collection::vec((any::<bool>(), 0_u32..12, 0_u32..4, 0_u64..50), 0..200)) {
            let mut profile = Profile::default();
            let mut reported = Duration::ZERO;
            for (at, &(is_client, class, id, ms)) in seen.iter().enumerate() {
                let kind = if is_client { Kind::Client } else { Kind::WalWriter };
                profile.count(key(kind, class << 24 | id), 1, MS * u32::try_from(ms).unwrap_or(0));
                if at % 7 == 0 {
                    reported += profile.interval().rows.iter().map(|row| row.time).sum::<Duration>();
                }
            }
            reported += profile.interval().rows.iter().map(|row| row.time).sum::<Duration>();
            let report = profile.total();
            let whole = Duration::from_millis(seen.iter().map(|seen| seen.3).sum());
            prop_assert_eq!(report.rows.iter().map(|row| row.time).sum::<Duration>(), whole);
            prop_assert_eq!(reported, whole);
            prop_assert_eq!(report.rows.iter().map(|row| row.samples).sum::<u64>(), seen.len() as u64);
            let shares: f64 = report.rows.iter().filter_map(|row| row.share).sum();
            prop_assert!(report.database_time.is_zero() || (shares - 1.0).abs() < 1e-9);
            prop_assert_eq!(report.classes().iter().map(|class| class.1).sum::<Duration>(), report.database_time);
        }
    }
}
