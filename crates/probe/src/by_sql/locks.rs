//! Waits for heavyweight locks, from snapshots of `pg_locks`.
//!
//! A wait is identified by process and lock, and the server reports how long it has lasted (before
//! PostgreSQL 14: how long its statement has run). A wait that a snapshot does not list has ended;
//! its duration is the last one reported.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::Duration,
};

use howdah_collect::{MonitorConnection, VIEWS};

use super::{SAMPLE_INTERVAL, SqlProbe, SqlSampleError};
use crate::Distribution;

/// Samples waits for heavyweight locks, and aggregates their durations by lock and by blocking
/// processes.
#[derive(Debug, Default)]
pub struct SqlLocks {
    snapshots: LockSnapshots,
    /// Minimum duration of waits that are reported individually.
    threshold: Option<Duration>,
    subjects: BTreeMap<String, Distribution>,
    blockers: BTreeMap<String, Distribution>,
    all: Distribution,
}

/// A wait for a heavyweight lock that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLockWait {
    /// The process that waited; `None` if the server did not report it.
    pub pid: Option<u32>,
    /// The lock: its type and object.
    pub subject: String,
    /// Duration of the wait in the last snapshot that listed it.
    pub waited: Duration,
    /// Ids of the processes that blocked the wait, as in `pg_blocking_pids()`; empty if unknown.
    pub blocked_by: String,
}

/// Maximum number of entries of each table of durations: there may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

impl SqlLocks {
    /// Creates the probe. Waits of at least `threshold` count as long.
    pub fn new(threshold: Option<Duration>) -> Self {
        Self { threshold, ..Self::default() }
    }

    /// Whether a wait is at or above the threshold.
    pub fn is_long(&self, wait: &EndedLockWait) -> bool {
        self.threshold.is_some_and(|threshold| wait.waited >= threshold)
    }

    /// Drains the waits that ended since the last call.
    pub fn drain_ended(&mut self) -> Vec<EndedLockWait> {
        let ended = self.snapshots.drain_ended().into_iter();
        let ended: Vec<_> = ended
            .map(|((pid, kind, _, object), LockWaitSample { waited, blocked_by })| EndedLockWait {
                pid: pid.parse().ok(),
                subject: format!("{kind} {object}"),
                waited,
                blocked_by,
            })
            .collect();
        for wait in &ended {
            self.all.add(wait.waited);
            add_limited(&mut self.subjects, &wait.subject, wait.waited);
            if !wait.blocked_by.is_empty() {
                add_limited(&mut self.blockers, &wait.blocked_by, wait.waited);
            }
        }
        ended
    }

    /// Treats waits that are still open as ended.
    pub fn finish(&mut self) {
        self.snapshots.finish_all();
    }

    /// Returns the durations by lock, of the waits drained so far.
    pub fn subjects(&self) -> &BTreeMap<String, Distribution> {
        &self.subjects
    }

    /// Returns the durations by blocking processes, of the waits drained so far.
    pub fn blockers(&self) -> &BTreeMap<String, Distribution> {
        &self.blockers
    }

    /// Returns the durations of all waits drained so far.
    pub fn total(&self) -> &Distribution {
        &self.all
    }
}

impl SqlProbe for SqlLocks {
    const LIMITATION: &'static str = "misses waits shorter than the 100 ms between two samples; longer ones \
        may be reported up to 100 ms too short";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.snapshots.sample(server)
    }
}

/// Samples waits for the lock to extend a relation, and aggregates their durations by relation.
#[derive(Debug, Default)]
pub struct SqlExtensions {
    snapshots: LockSnapshots,
    relations: BTreeMap<String, Distribution>,
    all: Distribution,
}

impl SqlExtensions {
    /// Drains the durations of the waits that ended since the last call.
    pub fn drain_interval(&mut self) -> Distribution {
        let mut interval = Distribution::default();
        for ((_, kind, _, object), LockWaitSample { waited, .. }) in self.snapshots.drain_ended() {
            if kind == "extend" {
                interval.add(waited);
                self.all.add(waited);
                add_limited(&mut self.relations, &object, waited);
            }
        }
        interval
    }

    /// Treats waits that are still open as ended.
    pub fn finish(&mut self) {
        self.snapshots.finish_all();
    }

    /// Returns the durations by relation, of the waits drained so far.
    pub fn relations(&self) -> &BTreeMap<String, Distribution> {
        &self.relations
    }

    /// Returns the durations of all waits drained so far.
    pub fn total(&self) -> &Distribution {
        &self.all
    }
}

impl SqlProbe for SqlExtensions {
    const LIMITATION: &'static str = "misses nearly all waits: pg_locks is sampled every 100 ms, and these \
        waits last milliseconds; no hold times, and no locks acquired without waiting";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.snapshots.sample(server)
    }
}

fn add_limited(all: &mut BTreeMap<String, Distribution>, name: &str, waited: Duration) {
    if all.contains_key(name) || all.len() < SUBJECTS_MAX {
        all.entry(name.to_owned()).or_default().add(waited);
    }
}

/// Identifies a wait: pid, kind of lock, mode and object.
type LockWaitKey = (String, String, String, String);

/// Open and ended waits, with their durations in the last snapshot.
#[derive(Debug, Default)]
struct LockSnapshots {
    open: HashMap<LockWaitKey, LockWaitSample>,
    ended: Vec<(LockWaitKey, LockWaitSample)>,
}

/// A wait as the last snapshot listed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LockWaitSample {
    waited: Duration,
    blocked_by: String,
}

impl LockSnapshots {
    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        let view = VIEWS.iter().find(|view| view.name == "waiting").expect("the view exists");
        let reading = server.read(view).map_err(SqlSampleError::reading("pg_locks"))?;
        let column = |name| view.column(name).expect("the view has this column");
        let [pid, kind, mode, object] = ["pid", "type", "mode", "object"].map(column);
        let [waited, blocked_by] = ["waited", "blocked_by"].map(column);
        let rows = reading.iter().flat_map(|reading| reading.rows.iter());
        let now: HashMap<LockWaitKey, LockWaitSample> = rows
            .map(|row| {
                let text = |at: usize| row[at].text().unwrap_or_default().to_owned();
                let waited = row[waited].number().unwrap_or_default();
                let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
                let sample = LockWaitSample { waited, blocked_by: text(blocked_by) };
                ((text(pid), text(kind), text(mode), text(object)), sample)
            })
            .collect();
        self.update(now);
        Ok(())
    }

    fn update(&mut self, now: HashMap<LockWaitKey, LockWaitSample>) {
        for (wait, before) in mem::take(&mut self.open) {
            // A shorter wait for the same lock is a new one.
            if now.get(&wait).is_none_or(|sample| sample.waited < before.waited) {
                self.ended.push((wait, before));
            }
        }
        self.open = now;
    }

    /// Drains the waits that ended since the last call.
    fn drain_ended(&mut self) -> Vec<(LockWaitKey, LockWaitSample)> {
        mem::take(&mut self.ended)
    }

    /// Treats waits that are still open as ended.
    fn finish_all(&mut self) {
        self.update(HashMap::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(waits: &[(&str, u64)]) -> HashMap<LockWaitKey, LockWaitSample> {
        let wait = |pid: &str| (pid.into(), "relation".into(), "m".into(), "orders".into());
        let sample =
            |ms| LockWaitSample { waited: Duration::from_millis(ms), blocked_by: "9".to_owned() };
        waits.iter().map(|(pid, ms)| (wait(pid), sample(*ms))).collect()
    }

    #[test]
    fn wait_is_over_when_missing_or_restarted() {
        let mut snapshots = LockSnapshots::default();
        snapshots.update(now(&[("7", 50), ("8", 500)]));
        assert_eq!(snapshots.drain_ended(), []);
        snapshots.update(now(&[("7", 150), ("8", 20)]));
        let ended = snapshots.drain_ended().into_iter();
        let ended: Vec<_> = ended.map(|(wait, sample)| (wait.0, sample.waited)).collect();
        assert_eq!(ended, [("8".to_owned(), Duration::from_millis(500))]);
        snapshots.finish_all();
        assert_eq!(snapshots.drain_ended().len(), 2);
    }
}
