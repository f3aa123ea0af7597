//! Probes that read the server's statistics counters once per interval.

use std::{collections::HashMap, io, time::Duration};

use anyhow::Context as _;
use howdah_collect::{MonitorConnection, StatsView, VIEWS, ViewSample};
use serde_json::{Value, json};

use super::{LimitedRows, SqlProbe};
use crate::commands::probe::{checkpoints, durations, rows, sweep};

/// Counter values at one time, by area and name.
type CounterValues = HashMap<(String, String), f64>;

/// Counters now, at the last report and at the start.
#[derive(Debug, Default)]
struct CounterGrowth {
    first: Option<CounterValues>,
    before: Option<CounterValues>,
    now: CounterValues,
}

impl CounterGrowth {
    fn update(&mut self, now: CounterValues) {
        self.now = now;
        self.first.get_or_insert_with(|| self.now.clone());
        self.before.get_or_insert_with(|| self.now.clone());
    }

    /// Increase of a counter in the interval; `None` if the server does not have it.
    fn interval(&self, area: &str, name: &str) -> Option<f64> {
        self.since(self.before.as_ref(), area, name)
    }

    /// Increase of a counter since the start.
    fn total(&self, area: &str, name: &str) -> Option<f64> {
        self.since(self.first.as_ref(), area, name)
    }

    fn start_interval(&mut self) {
        self.before = Some(self.now.clone());
    }

    fn since(&self, before: Option<&CounterValues>, area: &str, name: &str) -> Option<f64> {
        let key = (area.to_owned(), name.to_owned());
        let (now, before) = (self.now.get(&key)?, before?.get(&key)?);
        // The statistics were reset in the meantime and restarted at 0.
        Some(if now < before { *now } else { now - before })
    }
}

fn view(name: &str) -> &'static StatsView {
    VIEWS.iter().find(|view| view.name == name).expect("the view exists")
}

fn read(server: &mut MonitorConnection, name: &str) -> anyhow::Result<Option<ViewSample>> {
    server.read(view(name)).with_context(|| format!("cannot read the statistics of {name}"))
}

/// Counters of checkpoints, buffers and WAL.
fn counts(server: &mut MonitorConnection) -> anyhow::Result<CounterValues> {
    let mut counts = CounterValues::new();
    let Some(reading) = read(server, "wal")? else { return Ok(counts) };
    let column = |name| reading.view.column(name).expect("the view has this column");
    let (area, figure, total) = (column("area"), column("figure"), column("total"));
    for row in reading.rows.iter() {
        let texts = row[area].text().zip(row[figure].text());
        if let (Some((area, figure)), Some(value)) = (texts, row[total].number()) {
            *counts.entry((area.to_owned(), figure.to_owned())).or_default() += value;
        }
    }
    Ok(counts)
}

/// Counters of reads and writes of relations; before PostgreSQL 16, which lacks the view, from
/// others.
fn io_counts(server: &mut MonitorConnection) -> anyhow::Result<CounterValues> {
    let Some(reading) = read(server, "io")? else {
        let mut counts = counts(server)?;
        let written: f64 = [
            ("checkpoints", "buffers"),
            ("background writer", "buffers"),
            ("buffers", "written_by_backends"),
        ]
        .into_iter()
        .filter_map(|(area, name)| counts.get(&(area.to_owned(), name.to_owned())))
        .sum();
        let read = server.overview().context("cannot read the statistics of databases")?;
        counts.insert(("io".to_owned(), "writes".to_owned()), written);
        counts.insert(("io".to_owned(), "reads".to_owned()), read.blocks_read as f64);
        return Ok(counts);
    };
    let object = reading.view.column("object").expect("the view has this column");
    let mut counts = CounterValues::new();
    for row in reading.rows.iter().filter(|row| row[object].text() != Some("wal")) {
        for (column, cell) in reading.view.columns.iter().zip(row) {
            if let Some(value) = cell.number() {
                *counts.entry(("io".to_owned(), column.name.to_owned())).or_default() += value;
            }
        }
    }
    Ok(counts)
}

/// Cells of an operation that was counted and possibly timed.
fn operation(name: &str, calls: Option<f64>, ms: Option<f64>) -> Vec<(&'static str, Value)> {
    // A time of zero means that it was not measured.
    let ms = ms.filter(|ms| *ms > 0.0);
    let mean = ms.zip(calls).filter(|(_, calls)| *calls > 0.0).map(|(ms, calls)| ms / calls);
    let rounded = |ms: f64| (ms * 1000.0).round() / 1000.0;
    vec![
        ("operation", json!(name)),
        ("calls", json!(calls.map(|calls| calls as u64))),
        ("mean_ms", json!(mean.map(rounded))),
        ("total_ms", json!(ms.map(rounded))),
    ]
}

/// Name of an operation, and of its counters for calls and milliseconds.
type CounterOperation = (&'static str, &'static str, &'static str);

fn report_operations(
    rows: &mut LimitedRows<'_>,
    kind: &str,
    operations: &[CounterOperation],
    grown: impl Fn(&str) -> Option<f64>,
) -> io::Result<()> {
    for (name, calls, ms) in operations {
        let calls = grown(calls);
        if kind == "end" || calls.is_some_and(|calls| calls > 0.0) {
            rows.write(Some(kind), operation(name, calls, grown(ms)))?;
        }
    }
    Ok(())
}

/// Reads and writes of relations.
#[derive(Debug, Default)]
pub(in super::super) struct SqlIo(CounterGrowth);

const IO_OPERATIONS: [CounterOperation; 4] = [
    ("read", "reads", "read_ms"),
    ("write", "writes", "write_ms"),
    ("extend", "extends", "extend_ms"),
    ("fsync", "fsyncs", "fsync_ms"),
];

impl SqlProbe for SqlIo {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LIMITATION: &'static str = "no single calls, relations, p50, p99 and max; no times without \
        track_io_timing; before PostgreSQL 16, no extensions and syncs, and reads and writes are pages";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.0.update(io_counts(server)?);
        Ok(())
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        report_operations(rows, "interval", &IO_OPERATIONS, |name| self.0.interval("io", name))?;
        self.0.start_interval();
        Ok(())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        report_operations(rows, "end", &IO_OPERATIONS, |name| self.0.total("io", name))
    }
}

/// Writes and syncs of WAL.
#[derive(Debug, Default)]
pub(in super::super) struct SqlWal(CounterGrowth);

const WAL_OPERATIONS: [CounterOperation; 2] =
    [("write", "writes", "write_ms"), ("fsync", "syncs", "sync_ms")];

impl SqlProbe for SqlWal {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LIMITATION: &'static str = "no flushes as commits wait for them, single calls, p50, p99 and max; \
        no times without track_wal_io_timing";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.0.update(counts(server)?);
        Ok(())
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        report_operations(rows, "interval", &WAL_OPERATIONS, |name| self.0.interval("wal", name))?;
        self.0.start_interval();
        Ok(())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        report_operations(rows, "end", &WAL_OPERATIONS, |name| self.0.total("wal", name))
    }
}

/// Buffer allocations.
#[derive(Debug, Default)]
pub(in super::super) struct SqlSweep(CounterGrowth);

impl SqlProbe for SqlSweep {
    const COLUMNS: &'static [&'static str] = sweep::COLUMNS;
    const LIMITATION: &'static str = "no hand, passes and examined buffers, which only the server's \
        memory has; allocations lag by up to the delay of the background writer";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.0.update(counts(server)?);
        Ok(())
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let allocations = self.0.interval("buffers", "allocated").map(|count| count as u64);
        self.0.start_interval();
        rows.write(Some("interval"), vec![("allocations", json!(allocations))])
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let allocations = self.0.total("buffers", "allocated").map(|count| count as u64);
        rows.write(Some("end"), vec![("allocations", json!(allocations))])
    }
}

/// Completed checkpoints.
#[derive(Debug, Default)]
pub(in super::super) struct SqlCheckpoints {
    growth: CounterGrowth,
    until_checkpoint: bool,
    is_done: bool,
    /// Buffers written by a checkpoint that may not be complete.
    written: f64,
}

impl SqlCheckpoints {
    /// With `until_checkpoint`, ends after the first one.
    pub(in super::super) fn new(until_checkpoint: bool) -> Self {
        Self { until_checkpoint, ..Self::default() }
    }
}

impl SqlProbe for SqlCheckpoints {
    const COLUMNS: &'static [&'static str] = checkpoints::COLUMNS;
    const LIMITATION: &'static str = "no start times, nesting, commit log, files and WAL segments; `end` is \
        when it was noticed, and checkpoints that end between two samples are merged";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        self.growth.update(counts(server)?);
        Ok(())
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        let grown = |name| self.growth.interval("checkpoints", name).unwrap_or_default();
        let (write, sync, done) = (grown("write_ms"), grown("sync_ms"), grown("done"));
        let written = grown("buffers");
        // The server adds both times when a checkpoint is complete, and counts it when it starts.
        // If it took less than a millisecond, the only sign is a buffer count that no longer grows.
        let has_ended = write + sync + done > 0.0 || written > 0.0 && written == self.written;
        self.written = written;
        if !has_ended {
            return Ok(());
        }
        let end = json!(rows::time(std::time::SystemTime::now()));
        let buffers = json!(written as u64);
        for (phase, ms) in [("write", Some(write)), ("sync", Some(sync)), ("checkpoint", None)] {
            let mut row = vec![("phase", json!(phase)), ("end", end.clone())];
            row.push(("duration_ms", json!(ms)));
            if phase != "sync" {
                row.push(("buffers_written", buffers.clone()));
            }
            rows.write(None, row)?;
        }
        self.growth.start_interval();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(value: f64) -> CounterValues {
        CounterValues::from([(("wal".to_owned(), "syncs".to_owned()), value)])
    }

    #[test]
    fn counter_reset_restarts_growth_at_zero() {
        let mut growth = CounterGrowth::default();
        growth.update(counts(10.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(0.0));
        growth.update(counts(14.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(4.0));
        growth.start_interval();
        growth.update(counts(3.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(3.0));
        assert_eq!(growth.interval("wal", "writes"), None);
    }

    #[test]
    fn untimed_operation_has_no_time() {
        let cell = |cells: &[(&str, Value)], name| {
            cells.iter().find(|(column, _)| *column == name).map(|(_, value)| value.clone())
        };
        let cells = operation("fsync", Some(4.0), Some(0.0));
        assert_eq!(cell(&cells, "calls"), Some(json!(4)));
        assert_eq!(cell(&cells, "total_ms"), Some(Value::Null));
        let cells = operation("fsync", Some(4.0), Some(10.0));
        assert_eq!(cell(&cells, "mean_ms"), Some(json!(2.5)));
    }
}
