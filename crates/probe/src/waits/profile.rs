//! Adds up samples by kind of process, wait event, statement and session label.
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
    sessions::LabelId,
};

/// Sums observations by kind of process, event, statement and label, over several [`ProfileSpan`]s.
#[derive(Debug, Default)]
pub struct Profile {
    cells: HashMap<ProfileKey, [SampleSum; SPANS]>,
    totals: [ProfileTotals; SPANS],
}

/// A period that a profile sums separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileSpan {
    /// Since the start.
    Whole,
    /// Since the last report of an interval.
    Interval,
    /// Since the last mark.
    Mark,
}

const SPANS: usize = 3;

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
    /// The label of the sessions, if requested.
    pub session: Option<LabelId>,
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

/// The properties under which an observation is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    /// Role of the observed process in the server.
    pub kind: ProcessKind,
    /// The event that the process was waiting for, or no wait.
    pub event: WaitEvent,
    /// The statement that the process was executing, if requested and readable.
    pub query: Option<QueryId>,
    /// The label of the session, if requested.
    pub session: Option<LabelId>,
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
        self.add_checks(round.checks());
        let observations = round.observations();
        let observations = observations
            .filter(|observation| pid != Some(observation.backend.pid))
            .map(|Observation { backend, event, query }| ProfileKey {
                kind: backend.kind,
                event,
                query,
                session: None,
            });
        self.add_observations(round.elapsed(), observations);
    }

    /// Adds the kernel states of processes that reported no wait.
    pub fn add_checks(&mut self, checks: NoWaitStates) {
        self.totals.iter_mut().for_each(|span| span.checks.add(checks));
    }

    /// Adds the observations of one round, and the time since the previous round.
    pub fn add_observations(
        &mut self,
        elapsed: Duration,
        observations: impl IntoIterator<Item = ProfileKey>,
    ) {
        for span in &mut self.totals {
            span.elapsed += elapsed;
            span.rounds += 1;
        }
        // Neighbouring processes are mostly in the same event, especially idle ones, so a row is
        // looked up once per run.
        let keys: Vec<ProfileKey> = observations.into_iter().collect();
        for run in keys.chunk_by(|a, b| a == b) {
            self.count(run[0], run.len(), elapsed);
        }
    }

    /// Returns the totals since the start.
    pub fn total(&self) -> WaitReport {
        self.report(ProfileSpan::Whole)
    }

    /// Returns the observations since the last interval, or since the start, and begins a new one.
    pub fn take_interval(&mut self) -> WaitReport {
        self.take(ProfileSpan::Interval)
    }

    /// Returns the observations since the last mark, or since the start, and sets a new mark.
    pub fn take_since_mark(&mut self) -> WaitReport {
        self.take(ProfileSpan::Mark)
    }

    /// Moves observations from one label to another.
    pub fn relabel(&mut self, labels: &HashMap<LabelId, LabelId>) {
        let target = |key: &ProfileKey| {
            let session = labels.get(&key.session?).copied();
            session.map(|session| ProfileKey { session: Some(session), ..*key })
        };
        let moved = self.cells.extract_if(|key, _| target(key).is_some());
        for (key, sums) in moved.collect::<Vec<_>>() {
            let cell = self.cells.entry(target(&key).unwrap_or(key)).or_default();
            for (to, from) in cell.iter_mut().zip(sums) {
                to.samples += from.samples;
                to.time += from.time;
            }
        }
    }

    fn take(&mut self, span: ProfileSpan) -> WaitReport {
        let report = self.report(span);
        self.totals[span as usize] = ProfileTotals::default();
        self.cells.values_mut().for_each(|cell| cell[span as usize] = SampleSum::default());
        report
    }

    fn count(&mut self, key: ProfileKey, times: usize, elapsed: Duration) {
        let (samples, time) = (times as u64, elapsed * u32::try_from(times).unwrap_or(u32::MAX));
        let is_full = self.cells.len() >= ROWS_MAX;
        if is_full && !self.cells.contains_key(&key) {
            self.totals.iter_mut().for_each(|span| span.uncounted += samples);
            return;
        }
        let cell = self.cells.entry(key).or_default();
        for amount in cell {
            amount.samples += samples;
            amount.time += time;
        }
    }

    fn report(&self, span: ProfileSpan) -> WaitReport {
        let amounts = self.cells.iter().map(|(key, cell)| (key, cell[span as usize]));
        let span = &self.totals[span as usize];
        let mut rows: Vec<ProfileRow> = amounts
            .filter(|(_, amount)| amount.samples > 0)
            .map(|(&ProfileKey { kind, event, query, session }, sum)| ProfileRow {
                group: TimeCategory::classify(kind, event.class()),
                kind,
                event,
                query,
                session,
                samples: sum.samples,
                time: sum.time,
                share: None,
                processes: ratio(sum.time, span.elapsed).unwrap_or_default(),
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
            (a.group, by_weight(a), a.kind, a.event, a.query, a.session).cmp(&(
                b.group,
                by_weight(b),
                b.kind,
                b.event,
                b.query,
                b.session,
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
    use crate::waits::{SessionDimension, SessionLabel, SessionLabels, WaitEventNames};

    const MS: Duration = Duration::from_millis(1);

    fn names() -> WaitEventNames {
        WaitEventNames::for_major(15).expect("15 is supported")
    }

    fn key(kind: ProcessKind, raw: u32) -> ProfileKey {
        ProfileKey { kind, event: names().decode(raw), query: None, session: None }
    }

    #[test]
    fn shares_are_relative_to_database_time() {
        let mut profile = Profile::default();
        profile.totals[ProfileSpan::Whole as usize].elapsed = MS * 4;
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
    fn observations_move_to_another_label() {
        let mut labels = SessionLabels::new(vec![SessionDimension::User]);
        let label = |name| SessionLabel::of_title(Some(name), None);
        let (known, new) = (labels.intern(label("ann")), labels.add_preliminary(label("ann")));
        let mut profile = Profile::default();
        for session in [Some(known), Some(new), None] {
            profile.count(ProfileKey { session, ..key(ProcessKind::Client, 0x0300_0000) }, 1, MS);
        }
        assert_eq!(profile.take_since_mark().rows.len(), 3);
        profile.relabel(&HashMap::from([(new, known)]));
        let rows = profile.total().rows;
        let counts: Vec<_> = rows.iter().map(|row| (row.session, row.samples, row.time)).collect();
        assert_eq!(counts, [(Some(known), 2, MS * 2), (None, 1, MS)]);
        assert_eq!(profile.take_since_mark().rows, []);
        assert_eq!(profile.take_interval().rows.len(), 2);
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
