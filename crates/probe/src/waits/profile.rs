//! Adds up samples by kind of process and wait event.
//!
//! Every observation represents the time since the previous round. Three sums are separate:
//! database time, during which a client waits for its backend; work of the server's own processes;
//! and idle time. Shares are of database time, since idle connections would dwarf everything else.

use std::{collections::HashMap, time::Duration};

use super::{
    backend::ProcessKind,
    names::{Class, WaitEvent},
    query::QueryId,
    sampler::{NoWaitStates, Observation, SampleRound},
};

/// Sums observations by kind of process, event and statement, since the start and since the last
/// interval report.
#[derive(Debug, Default)]
pub struct Profile {
    cells: HashMap<ProfileKey, ProfileCell>,
    whole: ProfileTotals,
    interval: ProfileTotals,
}

/// The observations of a period, summed by kind of process, event and statement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitReport {
    /// Length of the period that the rounds cover.
    pub elapsed: Duration,
    /// Number of sampling rounds.
    pub rounds: u64,
    /// Time in which clients waited for their backends: the sum over [`TimeCategory::Database`].
    pub database_time: Duration,
    /// Kernel states of processes without a reported wait, where they were checked.
    pub checks: NoWaitStates,
    /// Database time first, then background work, then idle time; each sorted by time, longest
    /// first.
    pub rows: Vec<ProfileRow>,
    /// Observations dropped because there were [`ROWS_MAX`] rows already.
    pub uncounted: u64,
}

/// Samples of processes of one kind in one event and statement, and the time that they represent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileRow {
    /// The category of time that the row belongs to.
    pub group: TimeCategory,
    /// The kind of the sampled processes.
    pub kind: ProcessKind,
    /// The event that the processes were waiting for, or no wait.
    pub event: WaitEvent,
    /// The statement that the processes were executing, if requested and readable.
    pub query: Option<QueryId>,
    /// Number of observations: each is one process in one round.
    pub samples: u64,
    /// The time that the observations represent, summed over processes.
    pub time: Duration,
    /// Fraction of database time, 0 to 1; `None` for other categories, or if there is none.
    pub share: Option<f64>,
    /// Average number of processes in this event.
    pub processes: f64,
}

/// Category of the time that a process spends. Each category is summed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimeCategory {
    /// A client waits for the process.
    Database,
    /// Work of the server's own processes.
    Background,
    /// The process waits for a client or for work.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProfileKey {
    kind: ProcessKind,
    event: WaitEvent,
    query: Option<QueryId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProfileCell {
    whole: SampleSum,
    interval: SampleSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct SampleSum {
    samples: u64,
    time: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProfileTotals {
    elapsed: Duration,
    rounds: u64,
    checks: NoWaitStates,
    uncounted: u64,
}

impl Profile {
    /// Adds the observations of a round. The first round of a sampler represents no time, and adds
    /// only samples.
    pub fn add(&mut self, round: &SampleRound<'_>) {
        self.add_except(round, None);
    }

    /// As [`Self::add`], without the process that has this id.
    pub fn add_except(&mut self, round: &SampleRound<'_>, pid: Option<u32>) {
        for span in [&mut self.whole, &mut self.interval] {
            span.checks.add(round.checks());
        }
        let observations = round.observations();
        let observations = observations
            .filter(|observation| pid != Some(observation.backend.pid))
            .map(|Observation { backend, event, query }| (backend.kind, event, query));
        self.add_observations(round.elapsed(), observations);
    }

    /// Adds observations from another source: the event of each process, and the time since the
    /// previous round.
    pub fn add_observations(
        &mut self,
        elapsed: Duration,
        observations: impl IntoIterator<Item = (ProcessKind, WaitEvent, Option<QueryId>)>,
    ) {
        for span in [&mut self.whole, &mut self.interval] {
            span.elapsed += elapsed;
            span.rounds += 1;
        }
        // Neighbouring processes are mostly in the same event, especially idle ones, so a row is
        // looked up once per run.
        let keys: Vec<ProfileKey> = observations
            .into_iter()
            .map(|(kind, event, query)| ProfileKey { kind, event, query })
            .collect();
        for run in keys.chunk_by(|a, b| a == b) {
            self.count(run[0], run.len(), elapsed);
        }
    }

    /// Returns the totals since the start.
    pub fn total(&self) -> WaitReport {
        self.report(&self.whole, |cell| cell.whole)
    }

    /// Returns the observations since the last call, or since the start, and begins a new interval.
    pub fn take_interval(&mut self) -> WaitReport {
        let report = self.report(&self.interval, |cell| cell.interval);
        self.interval = ProfileTotals::default();
        self.cells.values_mut().for_each(|cell| cell.interval = SampleSum::default());
        report
    }

    fn count(&mut self, key: ProfileKey, times: usize, elapsed: Duration) {
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

    fn report(
        &self,
        span: &ProfileTotals,
        amount: impl Fn(&ProfileCell) -> SampleSum,
    ) -> WaitReport {
        let amounts = self.cells.iter().map(|(key, cell)| (key, amount(cell)));
        let mut rows: Vec<ProfileRow> = amounts
            .filter(|(_, amount)| amount.samples > 0)
            .map(|(&ProfileKey { kind, event, query }, SampleSum { samples, time })| ProfileRow {
                group: TimeCategory::classify(kind, event.class()),
                kind,
                event,
                query,
                samples,
                time,
                share: None,
                processes: ratio(time, span.elapsed).unwrap_or_default(),
            })
            .collect();
        let database = rows.iter().filter(|row| row.group == TimeCategory::Database);
        let database_time = database.map(|row| row.time).sum();
        for row in rows.iter_mut().filter(|row| row.group == TimeCategory::Database) {
            row.share = ratio(row.time, database_time);
        }
        rows.sort_by(|a, b| {
            let by_weight =
                |row: &ProfileRow| (std::cmp::Reverse(row.time), std::cmp::Reverse(row.samples));
            (a.group, by_weight(a), a.kind, a.event, a.query).cmp(&(
                b.group,
                by_weight(b),
                b.kind,
                b.event,
                b.query,
            ))
        });
        let ProfileTotals { elapsed, rounds, checks, uncounted } = *span;
        WaitReport { elapsed, rounds, database_time, checks, rows, uncounted }
    }
}

impl WaitReport {
    /// Returns the database time of each class of wait events, largest first.
    pub fn classes(&self) -> Vec<(Class, Duration)> {
        let mut times = HashMap::<Class, Duration>::new();
        for row in self.rows.iter().filter(|row| row.group == TimeCategory::Database) {
            *times.entry(row.event.class()).or_default() += row.time;
        }
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_by_key(|&(class, time)| (std::cmp::Reverse(time), class));
        times
    }
}

impl TimeCategory {
    fn classify(kind: ProcessKind, class: Class) -> Self {
        match kind {
            _ if class.is_idle() => Self::Idle,
            kind if kind.is_foreground() => Self::Database,
            _ => Self::Background,
        }
    }
}

impl NoWaitStates {
    fn add(&mut self, more: Self) {
        self.running += more.running;
        self.blocked += more.blocked;
        self.sleeping += more.sleeping;
    }
}

/// Maximum number of rows of a profile, which many different statements can reach.
pub const ROWS_MAX: usize = 100_000;

fn ratio(part: Duration, whole: Duration) -> Option<f64> {
    (!whole.is_zero()).then(|| part.as_secs_f64() / whole.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::waits::WaitEventNames;

    const MS: Duration = Duration::from_millis(1);

    fn names() -> WaitEventNames {
        WaitEventNames::for_major(15).expect("15 is supported")
    }

    fn key(kind: ProcessKind, raw: u32) -> ProfileKey {
        ProfileKey { kind, event: names().decode(raw), query: None }
    }

    #[test]
    fn shares_are_relative_to_database_time() {
        let mut profile = Profile::default();
        profile.whole.elapsed = MS * 4;
        for _ in 0..3 {
            profile.count(key(ProcessKind::Client, 0x0300_0000), 1, MS);
        }
        profile.count(key(ProcessKind::ParallelWorker, 0), 1, MS);
        for _ in 0..100 {
            profile.count(key(ProcessKind::Client, 0x0600_0000), 1, MS);
        }
        profile.count(key(ProcessKind::Checkpointer, 0x0900_0001), 1, MS);
        let report = profile.total();
        assert_eq!(report.database_time, MS * 4);
        let rows: Vec<_> =
            report.rows.iter().map(|row| (row.group, row.event.to_string(), row.share)).collect();
        let text = str::to_owned;
        assert_eq!(
            rows,
            [
                (TimeCategory::Database, text("Lock:relation"), Some(0.75)),
                (TimeCategory::Database, text("CPU*"), Some(0.25)),
                (TimeCategory::Background, text("Timeout:CheckpointWriteDelay"), None),
                (TimeCategory::Idle, text("Client:ClientRead"), None),
            ]
        );
        assert_eq!(report.rows[0].processes, 0.75);
        assert_eq!(report.classes(), [(Class::Lock, MS * 3), (Class::NoWait, MS)]);
    }

    #[test]
    fn interval_starts_at_the_previous_call() {
        let mut profile = Profile::default();
        let lock = key(ProcessKind::Client, 0x0300_0000);
        profile.count(lock, 1, MS);
        assert_eq!(profile.take_interval().rows[0].samples, 1);
        assert_eq!(profile.take_interval().rows, []);
        profile.count(lock, 1, MS);
        profile.count(lock, 1, MS);
        assert_eq!(profile.take_interval().rows[0].samples, 2);
        assert_eq!(profile.total().rows[0].samples, 3);
    }

    #[test]
    fn rows_are_bounded_and_overflow_is_counted() {
        let mut profile = Profile::default();
        for raw in 0..u32::try_from(ROWS_MAX).expect("ROWS_MAX fits into u32") + 5 {
            profile.count(key(ProcessKind::Client, 0x1000_0000 + raw), 1, MS);
        }
        profile.count(key(ProcessKind::Client, 0x1000_0000), 1, MS);
        let report = profile.take_interval();
        assert_eq!((report.rows.len(), report.uncounted), (ROWS_MAX, 5));
        assert_eq!((profile.take_interval().uncounted, profile.total().uncounted), (0, 5));
    }

    proptest! {
        #[test]
        fn sums_are_consistent(observations in prop::collection::vec((any::<bool>(), 0_u32..12, 0_u32..4, 0_u64..50), 0..200)) {
            let mut profile = Profile::default();
            let mut reported = Duration::ZERO;
            for (at, &(is_client, class, id, ms)) in observations.iter().enumerate() {
                let kind = if is_client { ProcessKind::Client } else { ProcessKind::WalWriter };
                profile.count(key(kind, class << 24 | id), 1, MS * u32::try_from(ms).unwrap_or(0));
                if at % 7 == 0 {
                    reported += profile.take_interval().rows.iter().map(|row| row.time).sum::<Duration>();
                }
            }
            reported += profile.take_interval().rows.iter().map(|row| row.time).sum::<Duration>();
            let report = profile.total();
            let whole = Duration::from_millis(observations.iter().map(|observations| observations.3).sum());
            prop_assert_eq!(report.rows.iter().map(|row| row.time).sum::<Duration>(), whole);
            prop_assert_eq!(reported, whole);
            prop_assert_eq!(report.rows.iter().map(|row| row.samples).sum::<u64>(), observations.len() as u64);
            let shares: f64 = report.rows.iter().filter_map(|row| row.share).sum();
            prop_assert!(report.database_time.is_zero() || (shares - 1.0).abs() < 1e-9);
            prop_assert_eq!(report.classes().iter().map(|class| class.1).sum::<Duration>(), report.database_time);
        }
    }
}
