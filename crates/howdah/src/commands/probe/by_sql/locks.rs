//! Rows of waits for heavyweight locks.

use std::{io, time::Duration};

use howdah_collect::MonitorConnection;
use howdah_probe::{
    Distribution, DurationStats,
    by_sql::{SqlExtensions, SqlLocks, SqlProbe, SqlSampleError},
};
use serde_json::{Value, json};

use super::{LimitedRows, SqlRows};
use crate::commands::probe::{durations, extend, rows};

/// Waits for heavyweight locks, each of at least the threshold in its own row.
#[derive(Debug, Default)]
pub(in super::super) struct LockRows {
    locks: SqlLocks,
    threshold: Option<Duration>,
}

impl LockRows {
    pub(in super::super) fn new(threshold: Option<Duration>) -> Self {
        Self { threshold, ..Self::default() }
    }

    /// Reports long waits, and returns the durations of all that ended.
    fn report_ended(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<Distribution> {
        let mut interval = Distribution::default();
        for wait in self.locks.drain_ended() {
            interval.add(wait.waited);
            if self.threshold.is_some_and(|threshold| wait.waited >= threshold) {
                let row = vec![
                    ("operation", json!("lock")),
                    ("subject", json!(wait.subject)),
                    ("pid", json!(wait.pid)),
                    ("blocked_by", json!(wait.blocked_by)),
                    ("max_ms", rows::ms(wait.waited)),
                ];
                rows.write(Some("call"), row)?;
            }
        }
        Ok(interval)
    }
}

fn cells(stats: &DurationStats) -> Vec<(&'static str, Value)> {
    let mut row = vec![("operation", json!("lock")), ("calls", json!(stats.count))];
    if stats.count > 0 {
        row.extend(durations::times(stats));
    }
    row
}

impl SqlProbe for LockRows {
    const LIMITATION: &'static str = SqlLocks::LIMITATION;
    const INTERVAL: Option<Duration> = SqlLocks::INTERVAL;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.locks.sample(server)
    }
}

impl SqlRows for LockRows {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let interval = self.report_ended(rows)?.stats();
        if interval.count == 0 {
            return Ok(());
        }
        rows.write(Some("interval"), cells(&interval))
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        self.locks.finish();
        self.report_ended(rows)?;
        for (subject, distribution) in self.locks.subjects() {
            let mut row = cells(&distribution.stats());
            row.push(("subject", json!(subject)));
            rows.write(Some("subject"), row)?;
        }
        for (pids, distribution) in self.locks.blockers() {
            let mut row = cells(&distribution.stats());
            row.push(("blocked_by", json!(pids)));
            rows.write(Some("blocker"), row)?;
        }
        rows.write(Some("end"), cells(&self.locks.total().stats()))
    }
}

fn wait_cells(stats: &DurationStats) -> Vec<(&'static str, Value)> {
    let mut row = vec![("waits", json!(stats.count))];
    if stats.count > 0 {
        row.extend(extend::wait_times(stats));
    }
    row
}

impl SqlRows for SqlExtensions {
    const COLUMNS: &'static [&'static str] = extend::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        rows.write(Some("interval"), wait_cells(&self.drain_interval().stats()))
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        self.finish();
        self.drain_interval();
        for (relation, distribution) in self.relations() {
            let mut row = wait_cells(&distribution.stats());
            row.push(("relation", json!(relation)));
            rows.write(Some("relation"), row)?;
        }
        rows.write(Some("end"), wait_cells(&self.total().stats()))
    }
}
