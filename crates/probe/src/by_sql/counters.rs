//! Probes that read the server's statistics counters once per interval.

use std::{collections::HashMap, time::Duration};

use howdah_collect::{MonitorConnection, StatsView, VIEWS, ViewSample};

use super::{SqlProbe, SqlSampleError};

/// Counts and times of an operation, from the server's statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationCounts {
    /// Name of the operation.
    pub operation: &'static str,
    /// Number of calls; `None` if the server does not count them.
    pub calls: Option<u64>,
    /// Time of one call on average, in milliseconds; `None` if times or calls were not measured, or
    /// there were no calls.
    pub mean_ms: Option<f64>,
    /// Time of all calls, in milliseconds; `None` if the server does not report it, or if it is
    /// zero, which usually means that it was not measured.
    pub total_ms: Option<f64>,
}

impl OperationCounts {
    fn new(operation: &'static str, calls: Option<f64>, total_ms: Option<f64>) -> Self {
        // A time of zero means that it was not measured.
        let total_ms = total_ms.filter(|ms| *ms > 0.0);
        let some_calls = calls.filter(|calls| *calls > 0.0);
        Self {
            operation,
            calls: calls.map(|calls| calls as u64),
            mean_ms: total_ms.zip(some_calls).map(|(ms, calls)| ms / calls),
            total_ms,
        }
    }
}

/// Counts reads, writes, extensions and syncs of relation files.
#[derive(Debug, Default)]
pub struct SqlIo(CounterGrowth);

const IO_OPERATIONS: [CounterOperation; 4] = [
    ("read", "reads", "read_ms"),
    ("write", "writes", "write_ms"),
    ("extend", "extends", "extend_ms"),
    ("fsync", "fsyncs", "fsync_ms"),
];

impl SqlIo {
    /// Drains the operations that occurred since the last call.
    pub fn drain_interval(&mut self) -> Vec<OperationCounts> {
        let counts = operations(&IO_OPERATIONS, |name| self.0.interval("io", name));
        self.0.start_interval();
        counts.into_iter().filter(|of| of.calls.is_some_and(|calls| calls > 0)).collect()
    }

    /// Returns the counts of all operations since sampling started.
    pub fn total(&self) -> Vec<OperationCounts> {
        operations(&IO_OPERATIONS, |name| self.0.total("io", name))
    }
}

impl SqlProbe for SqlIo {
    const LIMITATION: &'static str = "no single calls, relations, p50, p99 and max; no times without \
        track_io_timing; before PostgreSQL 16, no extensions and syncs, and reads and writes are pages";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.0.update(io_counts(server)?);
        Ok(())
    }
}

/// Counts writes and syncs of WAL.
#[derive(Debug, Default)]
pub struct SqlWal(CounterGrowth);

const WAL_OPERATIONS: [CounterOperation; 2] =
    [("write", "writes", "write_ms"), ("fsync", "syncs", "sync_ms")];

impl SqlWal {
    /// Drains the operations that occurred since the last call.
    pub fn drain_interval(&mut self) -> Vec<OperationCounts> {
        let counts = operations(&WAL_OPERATIONS, |name| self.0.interval("wal", name));
        self.0.start_interval();
        counts.into_iter().filter(|of| of.calls.is_some_and(|calls| calls > 0)).collect()
    }

    /// Returns the counts of all operations since sampling started.
    pub fn total(&self) -> Vec<OperationCounts> {
        operations(&WAL_OPERATIONS, |name| self.0.total("wal", name))
    }
}

impl SqlProbe for SqlWal {
    const LIMITATION: &'static str = "no flushes as commits wait for them, single calls, p50, p99 and max; \
        no times without track_wal_io_timing";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.0.update(counts(server)?);
        Ok(())
    }
}

/// Counts buffer allocations, which drive the clock sweep.
#[derive(Debug, Default)]
pub struct SqlSweep(CounterGrowth);

impl SqlSweep {
    /// Returns the number of buffer allocations since the last call; `None` if the server does not
    /// count them.
    pub fn drain_interval(&mut self) -> Option<u64> {
        let allocations = self.0.interval("buffers", "allocated").map(|count| count as u64);
        self.0.start_interval();
        allocations
    }

    /// Returns the number of buffer allocations since sampling started; `None` if the server does
    /// not count them.
    pub fn total(&self) -> Option<u64> {
        self.0.total("buffers", "allocated").map(|count| count as u64)
    }
}

impl SqlProbe for SqlSweep {
    const LIMITATION: &'static str = "no hand, passes and examined buffers, which only the server's \
        memory has; allocations lag by up to the delay of the background writer";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.0.update(counts(server)?);
        Ok(())
    }
}

/// Counts completed checkpoints.
#[derive(Debug, Default)]
pub struct SqlCheckpoints {
    growth: CounterGrowth,
    /// Buffers written by the current checkpoint, as of the last call of [`Self::drain_completed`].
    written: f64,
    until_checkpoint: bool,
    has_completed: bool,
}

/// A checkpoint that has completed since the last report, or several merged into one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletedCheckpoint {
    /// Duration of the write phase, in milliseconds.
    pub write_ms: f64,
    /// Duration of the sync phase, in milliseconds.
    pub sync_ms: f64,
    /// Number of buffers that the checkpoint wrote.
    pub buffers: u64,
}

impl SqlCheckpoints {
    /// Creates the probe. With `until_checkpoint`, it ends when a checkpoint is complete.
    pub fn new(until_checkpoint: bool) -> Self {
        Self { until_checkpoint, ..Self::default() }
    }

    /// Drains the checkpoint that ended since the last call, if there is one; several are merged.
    pub fn drain_completed(&mut self) -> Option<CompletedCheckpoint> {
        let grown = |name| self.growth.interval("checkpoints", name).unwrap_or_default();
        let (write_ms, sync_ms, done) = (grown("write_ms"), grown("sync_ms"), grown("done"));
        let written = grown("buffers");
        // The server adds both times when a checkpoint is complete, but counts the checkpoint when
        // it starts. If it took less than a millisecond, the only sign is a buffer count that no
        // longer grows.
        let has_ended = write_ms + sync_ms + done > 0.0 || written > 0.0 && written == self.written;
        self.written = written;
        self.has_completed |= has_ended;
        has_ended.then(|| {
            self.growth.start_interval();
            CompletedCheckpoint { write_ms, sync_ms, buffers: written as u64 }
        })
    }
}

impl SqlProbe for SqlCheckpoints {
    const LIMITATION: &'static str = "no start times, nesting, commit log, files and WAL segments; `end` is \
        when it was noticed, and checkpoints that end between two samples are merged";
    const INTERVAL: Option<Duration> = None;

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        self.growth.update(counts(server)?);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.until_checkpoint && self.has_completed
    }
}

/// Name of an operation, and of its counters for calls and milliseconds.
type CounterOperation = (&'static str, &'static str, &'static str);

fn operations(
    operations: &[CounterOperation],
    growth: impl Fn(&str) -> Option<f64>,
) -> Vec<OperationCounts> {
    operations
        .iter()
        .map(|(name, calls, ms)| OperationCounts::new(name, growth(calls), growth(ms)))
        .collect()
}

/// Counter values at one time, by area and name.
type CounterValues = HashMap<(String, String), f64>;

/// Computes the growth of counters since the start and in the current interval.
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

    /// Returns the increase of a counter in the interval; `None` if the server does not have it.
    fn interval(&self, area: &str, name: &str) -> Option<f64> {
        self.since(self.before.as_ref(), area, name)
    }

    /// Returns the increase of a counter since the start; `None` if the server does not have it.
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

/// Reads a view; `None` if the server does not have it. `what` describes it for the error.
fn read(
    server: &mut MonitorConnection,
    name: &str,
    what: &'static str,
) -> Result<Option<ViewSample>, SqlSampleError> {
    server.read(view(name)).map_err(SqlSampleError::reading(what))
}

/// Reads the counters of checkpoints, buffers and WAL.
fn counts(server: &mut MonitorConnection) -> Result<CounterValues, SqlSampleError> {
    let mut counts = CounterValues::new();
    let Some(reading) = read(server, "wal", "the WAL statistics")? else { return Ok(counts) };
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

/// Reads the I/O counters of relations. Before PostgreSQL 16, which introduced `pg_stat_io`, they
/// are derived from other views.
fn io_counts(server: &mut MonitorConnection) -> Result<CounterValues, SqlSampleError> {
    let Some(reading) = read(server, "io", "the I/O statistics")? else {
        let mut counts = counts(server)?;
        let written: f64 = [
            ("checkpoints", "buffers"),
            ("background writer", "buffers"),
            ("buffers", "written_by_backends"),
        ]
        .into_iter()
        .filter_map(|(area, name)| counts.get(&(area.to_owned(), name.to_owned())))
        .sum();
        let read =
            server.overview().map_err(SqlSampleError::reading("the statistics of databases"))?;
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
        let untimed = OperationCounts::new("fsync", Some(4.0), Some(0.0));
        assert_eq!((untimed.calls, untimed.mean_ms, untimed.total_ms), (Some(4), None, None));
        let timed = OperationCounts::new("fsync", Some(4.0), Some(10.0));
        assert_eq!((timed.mean_ms, timed.total_ms), (Some(2.5), Some(10.0)));
    }
}
