//! Renders waits for heavyweight locks.

use std::io::{self, Write};

use howdah_probe::{
    Distribution, DurationStats,
    by_sql::{SqlExtensions, SqlLocks},
};
use serde_json::json;

use super::{SqlPrinter, SqlReport};
use crate::probe::{
    calls, extensions,
    rows::{self, Cell},
};

/// Renders long waits, and returns the durations of all waits that ended.
fn write_ended(
    locks: &mut SqlLocks,
    rows: &mut SqlPrinter<impl Write>,
) -> io::Result<Distribution> {
    let mut interval = Distribution::default();
    for wait in locks.drain_ended() {
        interval.add(wait.waited);
        if locks.is_long(&wait) {
            let row = vec![
                ("operation", json!("lock")),
                ("subject", json!(wait.subject)),
                ("pid", json!(wait.pid)),
                ("blocked_by", json!(wait.blocked_by)),
                ("max_ms", rows::ms(wait.waited)),
            ];
            rows.row(Some("call"), row)?;
        }
    }
    Ok(interval)
}

fn cells(stats: &DurationStats) -> Vec<Cell> {
    let mut row = vec![("operation", json!("lock")), ("calls", json!(stats.count))];
    if stats.count > 0 {
        row.extend(calls::times(stats));
    }
    row
}

impl SqlReport for SqlLocks {
    const COLUMNS: &'static [&'static str] = calls::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        let interval = write_ended(self, rows)?.stats();
        if interval.count == 0 {
            return Ok(());
        }
        rows.row(Some("interval"), cells(&interval))
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        self.finish();
        write_ended(self, rows)?;
        for (subject, distribution) in self.subjects() {
            let mut row = cells(&distribution.stats());
            row.push(("subject", json!(subject)));
            rows.row(Some("subject"), row)?;
        }
        for (pids, distribution) in self.blockers() {
            let mut row = cells(&distribution.stats());
            row.push(("blocked_by", json!(pids)));
            rows.row(Some("blocker"), row)?;
        }
        rows.row(Some("end"), cells(&self.total().stats()))
    }
}

fn wait_cells(stats: &DurationStats) -> Vec<Cell> {
    let mut row = vec![("waits", json!(stats.count))];
    if stats.count > 0 {
        row.extend(extensions::wait_times(stats));
    }
    row
}

impl SqlReport for SqlExtensions {
    const COLUMNS: &'static [&'static str] = extensions::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        rows.row(Some("interval"), wait_cells(&self.drain_interval().stats()))
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        self.finish();
        self.drain_interval();
        for (relation, distribution) in self.relations() {
            let mut row = wait_cells(&distribution.stats());
            row.push(("relation", json!(relation)));
            rows.row(Some("relation"), row)?;
        }
        rows.row(Some("end"), wait_cells(&self.total().stats()))
    }
}
