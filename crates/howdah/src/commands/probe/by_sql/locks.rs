//! Waits for heavyweight locks, from snapshots of `pg_locks`.
//!
//! A wait is identified by process and lock, and the server reports how long it has lasted. It has
//! ended when it is no longer listed; its duration is the one last reported.

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    time::Duration,
};

use anyhow::Context as _;
use howdah_collect::{MonitorConnection, VIEWS};
use howdah_probe::{Distribution, DurationStats};
use serde_json::{Value, json};

use super::{LimitedRows, SAMPLE_INTERVAL, SqlProbe};
use crate::commands::probe::{durations, extend, rows};

/// Identifies a wait: pid, kind of lock, mode and object.
type LockWaitKey = (String, String, String, String);

/// Waits, with their durations as last seen.
#[derive(Debug, Default)]
struct LockSnapshots {
    open: HashMap<LockWaitKey, LockWaitSample>,
    ended: Vec<(LockWaitKey, LockWaitSample)>,
}

/// The last sample of a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LockWaitSample {
    waited: Duration,
    blocked_by: String,
}

impl LockSnapshots {
    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        let view = VIEWS.iter().find(|view| view.name == "waiting").expect("the view exists");
        let reading = server.read(view).context("cannot read pg_locks")?;
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

    /// Takes the waits that ended since the last call.
    fn take_ended(&mut self) -> Vec<(LockWaitKey, LockWaitSample)> {
        mem::take(&mut self.ended)
    }

    /// Treats waits that are still open as ended.
    fn finish_all(&mut self) {
        self.update(HashMap::new());
    }
}

/// All waits for heavyweight locks.
#[derive(Debug, Default)]
pub(in super::super) struct SqlLocks {
    snapshots: LockSnapshots,
    threshold: Option<Duration>,
    subjects: BTreeMap<String, Distribution>,
    blockers: BTreeMap<String, Distribution>,
    all: Distribution,
}

impl SqlLocks {
    /// Reports each wait of at threshold `threshold`.
    pub(in super::super) fn new(threshold: Option<Duration>) -> Self {
        Self { threshold, ..Self::default() }
    }

    fn drain(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<Distribution> {
        let mut interval = Distribution::default();
        for ((pid, kind, _, object), LockWaitSample { waited, blocked_by }) in
            self.snapshots.take_ended()
        {
            let subject = format!("{kind} {object}");
            interval.add(waited);
            self.all.add(waited);
            let is_known = self.subjects.contains_key(&subject);
            if is_known || self.subjects.len() < SUBJECTS_MAX {
                self.subjects.entry(subject.clone()).or_default().add(waited);
            }
            let is_known = self.blockers.contains_key(&blocked_by);
            if !blocked_by.is_empty() && (is_known || self.blockers.len() < SUBJECTS_MAX) {
                self.blockers.entry(blocked_by.clone()).or_default().add(waited);
            }
            if self.threshold.is_some_and(|threshold| waited >= threshold) {
                let pid = json!(pid.parse::<u32>().ok());
                let mut row = vec![("operation", json!("lock")), ("subject", json!(subject))];
                row.extend([("pid", pid), ("blocked_by", json!(blocked_by))]);
                row.push(("max_ms", rows::ms(waited)));
                rows.write(Some("call"), row)?;
            }
        }
        Ok(interval)
    }
}

/// Maximum number of locks and blockers to keep: there may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

fn cells(stats: &DurationStats) -> Vec<(&'static str, Value)> {
    let mut row = vec![("operation", json!("lock")), ("calls", json!(stats.count))];
    if stats.count > 0 {
        row.extend(durations::times(stats));
    }
    row
}

impl SqlProbe for SqlLocks {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LIMITATION: &'static str = "misses waits shorter than the 100 ms between two samples; longer ones \
        samples, rows up to 100 ms too short";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.snapshots.sample(server)
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let interval = self.drain(rows)?.stats();
        if interval.count == 0 {
            return Ok(());
        }
        rows.write(Some("interval"), cells(&interval))
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        self.snapshots.finish_all();
        self.drain(rows)?;
        for (subject, distribution) in &self.subjects {
            let mut row = cells(&distribution.stats());
            row.push(("subject", json!(subject)));
            rows.write(Some("subject"), row)?;
        }
        for (pids, distribution) in &self.blockers {
            let mut row = cells(&distribution.stats());
            row.push(("blocked_by", json!(pids)));
            rows.write(Some("blocker"), row)?;
        }
        rows.write(Some("end"), cells(&self.all.stats()))
    }
}

/// Waits for the lock to extend a relation.
#[derive(Debug, Default)]
pub(in super::super) struct SqlExtensions {
    snapshots: LockSnapshots,
    relations: BTreeMap<String, Distribution>,
    all: Distribution,
}

impl SqlExtensions {
    fn drain(&mut self) -> Distribution {
        let mut interval = Distribution::default();
        for ((_, kind, _, object), LockWaitSample { waited, .. }) in self.snapshots.take_ended() {
            if kind == "extend" {
                interval.add(waited);
                self.all.add(waited);
                let is_known = self.relations.contains_key(&object);
                if is_known || self.relations.len() < SUBJECTS_MAX {
                    self.relations.entry(object).or_default().add(waited);
                }
            }
        }
        interval
    }
}

fn waits(stats: &DurationStats) -> Vec<(&'static str, Value)> {
    let mut row = vec![("waits", json!(stats.count))];
    if stats.count > 0 {
        row.extend(extend::wait_times(stats));
    }
    row
}

impl SqlProbe for SqlExtensions {
    const COLUMNS: &'static [&'static str] = extend::COLUMNS;
    const LIMITATION: &'static str = "misses nearly all waits: pg_locks is sampled every 100 ms, and these \
        waits last milliseconds; no hold times, and no locks acquired without waiting";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.snapshots.sample(server)
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let interval = self.drain().stats();
        rows.write(Some("interval"), waits(&interval))
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        self.snapshots.finish_all();
        self.drain();
        for (relation, distribution) in &self.relations {
            let mut row = waits(&distribution.stats());
            row.push(("relation", json!(relation)));
            rows.write(Some("relation"), row)?;
        }
        rows.write(Some("end"), waits(&self.all.stats()))
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
        assert_eq!(snapshots.take_ended(), []);
        snapshots.update(now(&[("7", 150), ("8", 20)]));
        let ended = snapshots.take_ended().into_iter();
        let ended: Vec<_> = ended.map(|(wait, sample)| (wait.0, sample.waited)).collect();
        assert_eq!(ended, [("8".to_owned(), Duration::from_millis(500))]);
        snapshots.finish_all();
        assert_eq!(snapshots.take_ended().len(), 2);
    }
}
