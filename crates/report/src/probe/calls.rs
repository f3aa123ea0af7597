//! Renders the durations of calls.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::{
    DurationStats,
    live::{CallTotals, LongCall, OperationStats, ProbeOutput, TraceUpdate},
};
use serde_json::json;

use super::{
    rows::{self, Cell, RowFormat, RowWriter},
    stack,
};

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "operation",
    "subject",
    "pid",
    "blocked_by",
    "calls",
    "min_ms",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "total_ms",
    "stack",
    "samples",
    "overhead",
    "lost",
    "limitation",
];

/// Maximum number of subjects, and of blocking processes, in the final table.
pub const SUBJECTS_PRINTED: usize = 20;

/// Number of lines between two headers of the table.
const HEAD_EVERY: u64 = 30;
const HEAD: &str = "     calls        min       mean        p50        p99        max";

/// Renders calls of a metric.
#[derive(Debug)]
pub struct CallPrinter<W> {
    rows: RowWriter<W>,
    lines: u64,
}

impl<W: Write> CallPrinter<W> {
    /// Creates a printer that writes calls to `out` in `format`.
    pub fn new(out: W, format: RowFormat) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), lines: 0 }
    }

    fn long_call(&mut self, call: LongCall) -> io::Result<()> {
        let LongCall { pid, operation, subject, blocked_by, duration, stack, .. } = call;
        let time = rows::time(call.ended_at);
        if self.rows.is_table() {
            let about = subject.map_or_else(String::new, |subject| format!("  {subject}"));
            let by_blocker =
                blocked_by.map_or_else(String::new, |pids| format!("  blocked by {pids}"));
            let took = rows::duration(duration);
            let what = format!("{operation} {took}{about}{by_blocker}");
            writeln!(self.rows.out, "{time}  process {pid}  {what}")?;
            return stack::write(&mut self.rows.out, stack.as_ref());
        }
        self.rows.write(&[
            ("source", json!("bpf")),
            ("kind", json!("call")),
            ("time", json!(time)),
            ("operation", json!(operation)),
            ("subject", json!(subject)),
            ("pid", json!(pid)),
            ("blocked_by", json!(blocked_by)),
            ("max_ms", rows::ms(duration)),
            ("stack", json!(stack.map(|stack| stack.to_string()))),
        ])
    }

    /// Writes a line per operation, and per subject if the interval has any.
    fn interval(&mut self, interval: Vec<OperationStats>) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        for OperationStats { operation, subject, stats } in interval {
            if self.rows.is_table() {
                let out = &mut self.rows.out;
                if self.lines.is_multiple_of(HEAD_EVERY) {
                    writeln!(out, "{:<27}  {:<10} {HEAD}", "time", "operation")?;
                }
                self.lines += 1;
                let subject = subject.map_or_else(String::new, |subject| format!("  {subject}"));
                writeln!(out, "{time:<27}  {operation:<10} {}{subject}", in_columns(&stats))?;
            } else {
                let mut row = cells("interval", operation, &stats);
                row.extend([("time", json!(time)), ("subject", json!(subject))]);
                self.rows.write(&row)?;
            }
        }
        Ok(())
    }

    /// Writes the totals, and returns remarks. `overhead` is a share of all CPUs, 0 to 1.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn totals(&mut self, totals: &CallTotals, overhead: f64) -> io::Result<Vec<String>> {
        if self.rows.is_table() {
            self.totals_table(totals)?;
        } else {
            self.totals_rows(totals, overhead)?;
        }
        let cost = 100.0 * overhead;
        let mut remarks = vec![format!("{} calls; cost {cost:.2} % of the CPUs", totals.calls)];
        if totals.lost > 0 {
            remarks.push(format!("{} calls lost or skipped", totals.lost));
        }
        Ok(remarks)
    }

    fn totals_table(&mut self, totals: &CallTotals) -> io::Result<()> {
        let out = &mut self.rows.out;
        writeln!(out, "\n{:<10} {HEAD} {:>10}", "operation", "total")?;
        for OperationStats { operation, stats, .. } in &totals.operations {
            let (columns, total) = (in_columns(stats), rows::duration(stats.total));
            writeln!(out, "{operation:<10} {columns} {total:>10}")?;
        }
        for OperationStats { operation, subject, stats } in
            totals.subjects.iter().take(SUBJECTS_PRINTED)
        {
            let subject = subject.as_deref().unwrap_or_default();
            let (columns, total) = (in_columns(stats), rows::duration(stats.total));
            writeln!(out, "{operation:<10} {columns} {total:>10}  {subject}")?;
        }
        for (pids, stats) in totals.blockers.iter().take(SUBJECTS_PRINTED) {
            let (columns, total) = (in_columns(stats), rows::duration(stats.total));
            writeln!(out, "{:<10} {columns} {total:>10}  {pids}", "blocked by")?;
        }
        Ok(())
    }

    fn totals_rows(&mut self, totals: &CallTotals, overhead: f64) -> io::Result<()> {
        for OperationStats { operation, subject, stats } in &totals.subjects {
            let mut row = cells("subject", operation, stats);
            row.push(("subject", json!(subject)));
            self.rows.write(&row)?;
        }
        for (pids, stats) in &totals.blockers {
            let mut row = cells("blocker", "lock", stats);
            row.push(("blocked_by", json!(pids)));
            self.rows.write(&row)?;
        }
        for OperationStats { operation, stats, .. } in &totals.operations {
            let mut row = cells("end", operation, stats);
            row.extend([("overhead", json!(overhead)), ("lost", json!(totals.lost))]);
            row.push(("time", json!(rows::time(SystemTime::now()))));
            self.rows.write(&row)?;
        }
        Ok(())
    }
}

impl<W: Write> ProbeOutput<TraceUpdate<LongCall, Vec<OperationStats>>> for CallPrinter<W> {
    fn write(&mut self, update: TraceUpdate<LongCall, Vec<OperationStats>>) -> io::Result<()> {
        match update {
            TraceUpdate::LongEvent(call) => self.long_call(call),
            TraceUpdate::Interval(interval) => self.interval(interval),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

fn in_columns(stats: &DurationStats) -> String {
    let DurationStats { count, min, mean, p50, p99, max, .. } = *stats;
    let [min, mean, p50, p99, max] = [min, mean, p50, p99, max].map(rows::duration);
    format!("{count:>10} {min:>10} {mean:>10} {p50:>10} {p99:>10} {max:>10}")
}

fn cells(kind: &str, operation: &str, stats: &DurationStats) -> Vec<Cell> {
    let mut row = vec![
        ("source", json!("bpf")),
        ("kind", json!(kind)),
        ("operation", json!(operation)),
        ("calls", json!(stats.count)),
    ];
    row.extend(times(stats));
    row
}

/// Returns cells for the durations of calls.
pub(super) fn times(stats: &DurationStats) -> [Cell; 6] {
    [
        ("min_ms", rows::ms(stats.min)),
        ("mean_ms", rows::ms(stats.mean)),
        ("p50_ms", rows::ms(stats.p50)),
        ("p99_ms", rows::ms(stats.p99)),
        ("max_ms", rows::ms(stats.max)),
        ("total_ms", rows::ms(stats.total)),
    ]
}
