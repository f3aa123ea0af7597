//! Figures from the server's own counters, read once an interval.

use std::{collections::HashMap, io, time::Duration};

use anyhow::Context as _;
use howdah_collect::{Reading, Server, VIEWS, View};
use serde_json::{Value, json};

use super::{Asking, Told};
use crate::commands::probe::{checkpoints, durations, rows, sweep};

/// Counters at one moment, by area and name.
type Counts = HashMap<(String, String), f64>;

/// Counters, and what they were before.
#[derive(Debug, Default)]
struct Growth {
    first: Option<Counts>,
    before: Option<Counts>,
    now: Counts,
}

impl Growth {
    fn look(&mut self, now: Counts) {
        self.now = now;
        self.first.get_or_insert_with(|| self.now.clone());
        self.before.get_or_insert_with(|| self.now.clone());
    }

    /// How much a counter has grown in the interval. `None` if the server has none such.
    fn interval(&self, area: &str, name: &str) -> Option<f64> {
        self.since(self.before.as_ref(), area, name)
    }

    /// The same since the beginning.
    fn whole(&self, area: &str, name: &str) -> Option<f64> {
        self.since(self.first.as_ref(), area, name)
    }

    fn end_interval(&mut self) {
        self.before = Some(self.now.clone());
    }

    fn since(&self, before: Option<&Counts>, area: &str, name: &str) -> Option<f64> {
        let key = (area.to_owned(), name.to_owned());
        let (now, before) = (self.now.get(&key)?, before?.get(&key)?);
        // Statistics that were reset meanwhile began at 0.
        Some(if now < before { *now } else { now - before })
    }
}

fn view(name: &str) -> &'static View {
    VIEWS.iter().find(|view| view.name == name).expect("it is one of the views")
}

fn read(server: &mut Server, name: &str) -> anyhow::Result<Option<Reading>> {
    server.read(view(name)).with_context(|| format!("cannot read the statistics of {name}"))
}

/// Checkpoints, buffers and the log.
fn counts(server: &mut Server) -> anyhow::Result<Counts> {
    let mut counts = Counts::new();
    let Some(reading) = read(server, "wal")? else { return Ok(counts) };
    let column = |name| reading.view.column(name).expect("the view has it");
    let (area, figure, total) = (column("area"), column("figure"), column("total"));
    for row in reading.rows.iter() {
        let texts = row[area].text().zip(row[figure].text());
        if let (Some((area, figure)), Some(value)) = (texts, row[total].number()) {
            *counts.entry((area.to_owned(), figure.to_owned())).or_default() += value;
        }
    }
    Ok(counts)
}

/// Reads and writes of relations; before 16, which has no such view, what other counters say.
fn io_counts(server: &mut Server) -> anyhow::Result<Counts> {
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
    let object = reading.view.column("object").expect("the view has it");
    let mut counts = Counts::new();
    for row in reading.rows.iter().filter(|row| row[object].text() != Some("wal")) {
        for (column, cell) in reading.view.columns.iter().zip(row) {
            if let Some(value) = cell.number() {
                *counts.entry(("io".to_owned(), column.name.to_owned())).or_default() += value;
            }
        }
    }
    Ok(counts)
}

/// Cells of an operation that was counted and perhaps timed.
fn operation(name: &str, calls: Option<f64>, ms: Option<f64>) -> Vec<(&'static str, Value)> {
    // Nothing takes no time at all: then it was not measured.
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

/// An operation, and the counters of its calls and its milliseconds.
type Operation = (&'static str, &'static str, &'static str);

fn tell_operations(
    told: &mut Told<'_>,
    kind: &str,
    operations: &[Operation],
    grown: impl Fn(&str) -> Option<f64>,
) -> io::Result<()> {
    for (name, calls, ms) in operations {
        let calls = grown(calls);
        if kind == "end" || calls.is_some_and(|calls| calls > 0.0) {
            told.write(Some(kind), operation(name, calls, grown(ms)))?;
        }
    }
    Ok(())
}

/// Reads and writes.
#[derive(Debug, Default)]
pub(in super::super) struct Io(Growth);

const OF_IO: [Operation; 4] = [
    ("read", "reads", "read_ms"),
    ("write", "writes", "write_ms"),
    ("extend", "extends", "extend_ms"),
    ("fsync", "fsyncs", "fsync_ms"),
];

impl Asking for Io {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LACKS: &'static str = "single calls, relations, p50, p99 and max; times without \
        track_io_timing; extensions and syncs before PostgreSQL 16, where reads and writes are pages";
    const EVERY: Option<Duration> = None;

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.0.look(io_counts(server)?);
        Ok(())
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        tell_operations(told, "interval", &OF_IO, |name| self.0.interval("io", name))?;
        self.0.end_interval();
        Ok(())
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        tell_operations(told, "end", &OF_IO, |name| self.0.whole("io", name))
    }
}

/// Writes and syncs of the log.
#[derive(Debug, Default)]
pub(in super::super) struct Wal(Growth);

const OF_WAL: [Operation; 2] = [("write", "writes", "write_ms"), ("fsync", "syncs", "sync_ms")];

impl Asking for Wal {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LACKS: &'static str = "flushes as commits wait for them, single calls, p50, p99 and max; \
        times without track_wal_io_timing";
    const EVERY: Option<Duration> = None;

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.0.look(counts(server)?);
        Ok(())
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        tell_operations(told, "interval", &OF_WAL, |name| self.0.interval("wal", name))?;
        self.0.end_interval();
        Ok(())
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        tell_operations(told, "end", &OF_WAL, |name| self.0.whole("wal", name))
    }
}

/// Buffers that were handed out.
#[derive(Debug, Default)]
pub(in super::super) struct Sweep(Growth);

impl Asking for Sweep {
    const COLUMNS: &'static [&'static str] = sweep::COLUMNS;
    const LACKS: &'static str = "the hand, passes, and buffers examined for each: only the server's \
        memory has them; allocations are those that the background writer has told, up to its delay ago";
    const EVERY: Option<Duration> = None;

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.0.look(counts(server)?);
        Ok(())
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        let allocations = self.0.interval("buffers", "allocated").map(|count| count as u64);
        self.0.end_interval();
        told.write(Some("interval"), vec![("allocations", json!(allocations))])
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        let allocations = self.0.whole("buffers", "allocated").map(|count| count as u64);
        told.write(Some("end"), vec![("allocations", json!(allocations))])
    }
}

/// Checkpoints that have ended.
#[derive(Debug, Default)]
pub(in super::super) struct Checkpoints {
    growth: Growth,
    until_checkpoint: bool,
    is_done: bool,
    /// Buffers of a checkpoint that may not have ended.
    written: f64,
}

impl Checkpoints {
    /// Ends with the first one if `until_checkpoint`.
    pub(in super::super) fn new(until_checkpoint: bool) -> Self {
        Self { until_checkpoint, ..Self::default() }
    }
}

impl Asking for Checkpoints {
    const COLUMNS: &'static [&'static str] = checkpoints::COLUMNS;
    const LACKS: &'static str = "beginnings, nesting, the commit log, files and WAL segments; `end` is \
        when it was seen, and checkpoints that ended between two looks are one";
    const EVERY: Option<Duration> = None;

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        self.growth.look(counts(server)?);
        Ok(())
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        let grown = |name| self.growth.interval("checkpoints", name).unwrap_or_default();
        let (write, sync, done) = (grown("write_ms"), grown("sync_ms"), grown("done"));
        let written = grown("buffers");
        // The server adds up both times when a checkpoint has ended, and counts it when it begins. Of one that
        // took no millisecond there are only buffers, and no more of them.
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
            told.write(None, row)?;
        }
        self.growth.end_interval();
        self.is_done = self.until_checkpoint;
        Ok(())
    }

    fn tell_end(&mut self, _: &mut Told<'_>) -> io::Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(value: f64) -> Counts {
        Counts::from([(("wal".to_owned(), "syncs".to_owned()), value)])
    }

    #[test]
    fn counters_grow_and_are_reset() {
        let mut growth = Growth::default();
        growth.look(counts(10.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(0.0));
        growth.look(counts(14.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(4.0));
        growth.end_interval();
        growth.look(counts(3.0));
        assert_eq!(growth.interval("wal", "syncs"), Some(3.0));
        assert_eq!(growth.interval("wal", "writes"), None);
    }

    #[test]
    fn what_was_not_timed_has_no_time() {
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
