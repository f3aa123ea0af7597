//! Renders profiles of waits.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::{
    live::{ProbeOutput, WaitInterval, WaitSource},
    waits::{ProfileRow, QueryId, SamplingCost, TimeCategory, WaitReport},
};
use serde_json::{Value, json};

use super::rows::{self, RowFormat, RowWriter};

const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "group",
    "backend",
    "class",
    "event",
    "query",
    "samples",
    "seconds",
    "share",
    "processes",
    "limitation",
];

/// Maximum number of wait events in the line of an interval.
const TOP: usize = 4;
/// Maximum number of rows in the final table.
const ROWS_SHOWN: usize = 40;

/// Renders profiles of waits.
#[derive(Debug)]
pub struct WaitPrinter<W> {
    rows: RowWriter<W>,
    has_all: bool,
    source: &'static str,
    limitation: Option<&'static str>,
}

impl<W: Write> WaitPrinter<W> {
    /// Creates a printer that writes the waits of a source to `out`. With `has_all`, it also writes
    /// those of the server's own processes and of idle connections.
    pub fn new(
        out: W,
        (format, has_all): (RowFormat, bool),
        (source, limitation): (&'static str, Option<&'static str>),
    ) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), has_all, source, limitation }
    }

    /// Writes the events with most database time on one line.
    fn line(&mut self, report: &WaitReport) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        let busy = report.database_time.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        let top: Vec<_> = self
            .visible_rows(report)
            .take(TOP)
            .map(|row| format!("{} {:.0} %", row.event, 100.0 * row.share.unwrap_or_default()))
            .collect();
        writeln!(self.rows.out, "{time}  {busy:>6.2} active  {}", top.join(", "))
    }

    /// Writes the totals of the whole measurement.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn totals(&mut self, report: &WaitReport, source: &dyn WaitSource) -> io::Result<()> {
        if !self.rows.is_table() {
            return self.write_rows("end", report, source);
        }
        let visible: Vec<_> = self.visible_rows(report).collect();
        let out = &mut self.rows.out;
        let seconds = report.elapsed.as_secs_f64();
        let database = report.database_time.as_secs_f64();
        writeln!(out, "\n{seconds:.1} s, {database:.1} s of database time, by class:")?;
        for (class, time) in report.classes() {
            let share = 100.0 * time.as_secs_f64() / database.max(1e-9);
            writeln!(out, "{share:>6.1} %  {:>9.3} s  {}", time.as_secs_f64(), class.name())?;
        }
        writeln!(out, "\n{:>8} {:>11} {:>9}  {:<24} event", "share", "time", "active", "backend")?;
        for row in visible.iter().take(ROWS_SHOWN) {
            let share = row.share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
            let (time, kind) = (row.time.as_secs_f64(), row.kind.name());
            let query = text(row.query, source).map_or_else(String::new, |q| format!("  {q}"));
            writeln!(
                out,
                "{share:>8} {time:>9.3} s {:>9.2}  {kind:<24} {}{query}",
                row.processes, row.event
            )?;
        }
        let more = visible.len().saturating_sub(ROWS_SHOWN);
        if more > 0 {
            writeln!(out, "{:>8} and {more} more rows (--format csv has all)", "")?;
        }
        out.flush()
    }

    fn write_rows(
        &mut self,
        kind: &str,
        report: &WaitReport,
        source: &dyn WaitSource,
    ) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        for row in self.visible_rows(report) {
            self.rows.write(&[
                ("source", json!(self.source)),
                ("kind", json!(kind)),
                ("time", json!(time)),
                ("group", json!(group(row.group))),
                ("backend", json!(row.kind.name())),
                ("class", json!(row.event.class().name())),
                ("event", json!(row.event.to_string())),
                ("query", text(row.query, source).map_or(Value::Null, Value::from)),
                ("samples", json!(row.samples)),
                ("seconds", json!(row.time.as_secs_f64())),
                ("share", json!(row.share)),
                ("processes", json!(row.processes)),
                ("limitation", json!(self.limitation)),
            ])?;
        }
        Ok(())
    }

    fn visible_rows<'r>(
        &self,
        report: &'r WaitReport,
    ) -> impl Iterator<Item = &'r ProfileRow> + use<'r, W> {
        let has_all = self.has_all;
        report.rows.iter().filter(move |row| has_all || row.group == TimeCategory::Database)
    }
}

impl<W: Write> ProbeOutput<WaitInterval<'_>> for WaitPrinter<W> {
    fn write(&mut self, WaitInterval { report, source }: WaitInterval<'_>) -> io::Result<()> {
        if self.rows.is_table() {
            self.line(&report)
        } else {
            self.write_rows("interval", &report, source)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

/// Describes how many samples were taken from memory, and their cost.
pub fn sampling_remark(cost: &SamplingCost, missed: u64) -> String {
    let SamplingCost { rounds, cpu, .. } = *cost;
    format!("{rounds} samples, {missed} missed; {} of CPU time", rows::duration(cpu))
}

fn group(group: TimeCategory) -> &'static str {
    match group {
        TimeCategory::Database => "database",
        TimeCategory::Background => "background",
        TimeCategory::Idle => "idle",
    }
}

/// Returns a statement on one line. Control characters become spaces, because clients choose the
/// text.
fn text(query: Option<QueryId>, source: &dyn WaitSource) -> Option<String> {
    let text = source.query(query?)?;
    Some(text.split(|c: char| c.is_whitespace() || c.is_control()).collect::<Vec<_>>().join(" "))
}
