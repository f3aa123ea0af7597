//! Renders the probes that read statistics counters.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::by_sql::{OperationCounts, SqlCheckpoints, SqlIo, SqlSweep, SqlWal};
use serde_json::json;

use super::{SqlPrinter, SqlReport};
use crate::probe::{
    calls, checkpoints,
    rows::{self, Cell},
    sweep,
};

fn write_operations(
    rows: &mut SqlPrinter<impl Write>,
    kind: &str,
    operations: &[OperationCounts],
) -> io::Result<()> {
    operations.iter().try_for_each(|counts| rows.row(Some(kind), cells(counts)))
}

/// Returns the cells of an operation, with times rounded to microseconds.
fn cells(counts: &OperationCounts) -> Vec<Cell> {
    let rounded = |ms: f64| (ms * 1000.0).round() / 1000.0;
    vec![
        ("operation", json!(counts.operation)),
        ("calls", json!(counts.calls)),
        ("mean_ms", json!(counts.mean_ms.map(rounded))),
        ("total_ms", json!(counts.total_ms.map(rounded))),
    ]
}

impl SqlReport for SqlIo {
    const COLUMNS: &'static [&'static str] = calls::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        write_operations(rows, "interval", &self.drain_interval())
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        write_operations(rows, "end", &self.total())
    }
}

impl SqlReport for SqlWal {
    const COLUMNS: &'static [&'static str] = calls::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        write_operations(rows, "interval", &self.drain_interval())
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        write_operations(rows, "end", &self.total())
    }
}

impl SqlReport for SqlSweep {
    const COLUMNS: &'static [&'static str] = sweep::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        rows.row(Some("interval"), vec![("allocations", json!(self.drain_interval()))])
    }

    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        rows.row(Some("end"), vec![("allocations", json!(self.total()))])
    }
}

impl SqlReport for SqlCheckpoints {
    const COLUMNS: &'static [&'static str] = checkpoints::COLUMNS;

    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        let Some(completed) = self.drain_completed() else { return Ok(()) };
        let (write, sync) = (Some(completed.write_ms), Some(completed.sync_ms));
        let end = json!(rows::time(SystemTime::now()));
        for (phase, ms) in [("write", write), ("sync", sync), ("checkpoint", None)] {
            let mut row = vec![("phase", json!(phase)), ("end", end.clone())];
            row.push(("duration_ms", json!(ms)));
            if phase != "sync" {
                row.push(("buffers_written", json!(completed.buffers)));
            }
            rows.row(None, row)?;
        }
        Ok(())
    }

    fn write_totals(&mut self, _: &mut SqlPrinter<impl Write>) -> io::Result<()> {
        Ok(())
    }
}
