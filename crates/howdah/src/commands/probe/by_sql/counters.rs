//! Rows of the probes that read statistics counters.

use std::{io, time::Duration, time::SystemTime};

use howdah_collect::MonitorConnection;
use howdah_probe::by_sql::{
    OperationCounts, SqlCheckpoints, SqlIo, SqlProbe, SqlSampleError, SqlSweep, SqlWal,
};
use serde_json::{Value, json};

use super::{LimitedRows, SqlRows};
use crate::commands::probe::{checkpoints, durations, rows, sweep};

fn write_operations(
    rows: &mut LimitedRows<'_>,
    kind: &str,
    operations: &[OperationCounts],
) -> io::Result<()> {
    operations.iter().try_for_each(|counts| rows.write(Some(kind), cells(counts)))
}

/// Times are rounded to microseconds.
fn cells(counts: &OperationCounts) -> Vec<(&'static str, Value)> {
    let rounded = |ms: f64| (ms * 1000.0).round() / 1000.0;
    vec![
        ("operation", json!(counts.operation)),
        ("calls", json!(counts.calls)),
        ("mean_ms", json!(counts.mean_ms.map(rounded))),
        ("total_ms", json!(counts.total_ms.map(rounded))),
    ]
}

impl SqlRows for SqlIo {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        write_operations(rows, "interval", &self.drain_interval())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        write_operations(rows, "end", &self.total())
    }
}

impl SqlRows for SqlWal {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        write_operations(rows, "interval", &self.drain_interval())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        write_operations(rows, "end", &self.total())
    }
}

impl SqlRows for SqlSweep {
    const COLUMNS: &'static [&'static str] = sweep::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        rows.write(Some("interval"), vec![("allocations", json!(self.drain_interval()))])
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        rows.write(Some("end"), vec![("allocations", json!(self.total()))])
    }
}

/// Completed checkpoints, if requested only the first.
#[derive(Debug, Default)]
pub(in super::super) struct CheckpointRows {
    checkpoints: SqlCheckpoints,
    until_checkpoint: bool,
    is_done: bool,
}

impl CheckpointRows {
    /// With `until_checkpoint`, the probe ends after the first checkpoint.
    pub(in super::super) fn new(until_checkpoint: bool) -> Self {
        Self { until_checkpoint, ..Self::default() }
    }
}

impl SqlProbe for CheckpointRows {
    const LIMITATION: &'static str = SqlCheckpoints::LIMITATION;
    const INTERVAL: Option<Duration> = SqlCheckpoints::INTERVAL;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.checkpoints.sample(server)
    }
}

impl SqlRows for CheckpointRows {
    const COLUMNS: &'static [&'static str] = checkpoints::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let Some(completed) = self.checkpoints.drain_completed() else { return Ok(()) };
        let (write, sync) = (Some(completed.write_ms), Some(completed.sync_ms));
        let end = json!(rows::time(SystemTime::now()));
        for (phase, ms) in [("write", write), ("sync", sync), ("checkpoint", None)] {
            let mut row = vec![("phase", json!(phase)), ("end", end.clone())];
            row.push(("duration_ms", json!(ms)));
            if phase != "sync" {
                row.push(("buffers_written", json!(completed.buffers)));
            }
            rows.write(None, row)?;
        }
        self.is_done = self.until_checkpoint;
        Ok(())
    }

    fn report_summary(&mut self, _: &mut LimitedRows<'_>) -> io::Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}
