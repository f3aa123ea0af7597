//! Renders waits for relation extension locks.

use std::{
    io::{self, Write},
    time::{Duration, SystemTime},
};

use howdah_probe::{
    DurationStats,
    extend::{ExtensionSummary, LockStats, LostEvents},
    live::{
        ExtensionInterval, ExtensionLockTotals, LongExtensionLock, ProbeOutput, RelationStats,
        TraceUpdate,
    },
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
    "pid",
    "relation",
    "waits",
    "at_once",
    "wait_min_ms",
    "wait_mean_ms",
    "wait_p50_ms",
    "wait_p99_ms",
    "wait_max_ms",
    "wait_total_ms",
    "hold_min_ms",
    "hold_mean_ms",
    "hold_max_ms",
    "hold_total_ms",
    "both_min_ms",
    "both_mean_ms",
    "both_max_ms",
    "stack",
    "overhead",
    "lost",
    "limitation",
];

const SOURCE: &str = "bpf";
/// Number of lines between two headers of the table.
const HEAD_EVERY: u64 = 30;
/// Maximum number of relations in the final table.
const RELATIONS_SHOWN: usize = 20;

/// Renders relation extension locks.
#[derive(Debug)]
pub struct ExtensionPrinter<W> {
    rows: RowWriter<W>,
    lines: u64,
}

impl<W: Write> ExtensionPrinter<W> {
    /// Creates a printer that writes to `out` in `format`.
    pub fn new(out: W, format: RowFormat) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), lines: 0 }
    }

    fn long_lock(&mut self, lock: LongExtensionLock) -> io::Result<()> {
        let LongExtensionLock { pid, relation, wait, hold, released_at, stack } = lock;
        let time = rows::time(released_at);
        if self.rows.is_table() {
            let (wait, hold) = (rows::duration(wait), rows::duration(hold));
            let line =
                format!("{time}  process {pid} waited {wait} for {relation}, held it {hold}");
            writeln!(self.rows.out, "{line}")?;
            return stack::write(&mut self.rows.out, stack.as_ref());
        }
        self.rows.write(&[
            ("source", json!(SOURCE)),
            ("kind", json!("lock")),
            ("time", json!(time)),
            ("pid", json!(pid)),
            ("relation", json!(relation)),
            ("wait_max_ms", rows::ms(wait)),
            ("hold_max_ms", rows::ms(hold)),
            ("both_max_ms", rows::ms(wait + hold)),
            ("stack", json!(stack.map(|stack| stack.to_string()))),
        ])
    }

    /// Writes a line for every interval, even for one without locks.
    fn interval(&mut self, interval: ExtensionInterval) -> io::Result<()> {
        let ExtensionInterval { summary, most_waited: relation } = interval;
        let time = rows::time(SystemTime::now());
        if !self.rows.is_table() {
            let mut row = summary_cells("interval", &summary);
            row.extend([("time", json!(time)), ("relation", json!(relation))]);
            return self.rows.write(&row);
        }
        let out = &mut self.rows.out;
        if self.lines.is_multiple_of(HEAD_EVERY) {
            writeln!(
                out,
                "{:<27}  {:>7}  {:<40}  {:<24}  {:<24}",
                "", "", "wait, ms", "hold", "both"
            )?;
            write!(out, "{:<27}  {:>7}  ", "time", "locks")?;
            write!(out, "{:>7} {:>7} {:>7} {:>8} {:>8}", "min", "mean", "p50", "p99", "max")?;
            for _ in 0..2 {
                write!(out, "  {:>7} {:>7} {:>8}", "min", "mean", "max")?;
            }
            writeln!(out, "  most waited for")?;
        }
        self.lines += 1;
        let LockStats { wait, hold, both } = summary.stats();
        write!(out, "{time:<27}  {:>7}  ", hold.count)?;
        let [min, mean, p50, p99, max] =
            [wait.min, wait.mean, wait.p50, wait.p99, wait.max].map(|of| short_ms(wait.count, of));
        write!(out, "{min:>7} {mean:>7} {p50:>7} {p99:>8} {max:>8}")?;
        for stats in [hold, both] {
            let [min, mean, max] =
                [stats.min, stats.mean, stats.max].map(|of| short_ms(stats.count, of));
            write!(out, "  {min:>7} {mean:>7} {max:>8}")?;
        }
        writeln!(out, "  {}", relation.unwrap_or_default())
    }

    /// Writes the totals, and returns remarks. `overhead` is a share of all CPUs, 0 to 1.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn totals(
        &mut self,
        totals: &ExtensionLockTotals,
        overhead: f64,
    ) -> io::Result<Vec<String>> {
        let ExtensionLockTotals { count, summary, relations, lost_events, .. } = totals;
        if self.rows.is_table() {
            self.totals_table(summary, relations)?;
        } else {
            for RelationStats { relation, stats } in relations {
                let mut row = stats_cells("relation", stats);
                row.push(("relation", json!(relation)));
                self.rows.write(&row)?;
            }
            let mut row = summary_cells("end", summary);
            row.push(("time", json!(rows::time(SystemTime::now()))));
            row.push(("overhead", json!(overhead)));
            row.push(("lost", json!(lost_events.lost + lost_events.skipped.values().sum::<u64>())));
            self.rows.write(&row)?;
        }
        let cost = 100.0 * overhead;
        let mut remarks = vec![format!("{count} locks; cost {cost:.2} % of the CPUs")];
        remarks.extend(lost_remarks(lost_events));
        Ok(remarks)
    }

    fn totals_table(
        &mut self,
        all: &ExtensionSummary,
        relations: &[RelationStats],
    ) -> io::Result<()> {
        let out = &mut self.rows.out;
        let (LockStats { wait, hold, both }, at_once) = (all.stats(), all.conditional());
        writeln!(out, "\n{} locks acquired after waiting, {at_once} without waiting", wait.count)?;
        if hold.count == 0 {
            return Ok(());
        }
        for (name, stats) in [("wait", wait), ("hold", hold), ("both", both)] {
            let DurationStats { min, mean, p50, p99, max, total, .. } = stats;
            let [min, mean, p50, p99, max, total] =
                [min, mean, p50, p99, max, total].map(rows::duration);
            writeln!(
                out,
                "{name}: min {min}, mean {mean}, p50 {p50}, p99 {p99}, max {max}, total {total}"
            )?;
        }
        write!(out, "\n{:>7}  {:<40}", "", "wait, ms")?;
        writeln!(out, "  {:<26}  {:<26}", "hold", "both")?;
        write!(out, "{:>7}  ", "locks")?;
        write!(out, "{:>9} {:>7} {:>7} {:>8} {:>8}", "total", "min", "mean", "p99", "max")?;
        writeln!(
            out,
            "  {:>9} {:>7} {:>7} {:>8}  {:>7} {:>7} {:>8}  relation",
            "total", "min", "mean", "max", "min", "mean", "max"
        )?;
        for RelationStats { relation, stats } in relations.iter().take(RELATIONS_SHOWN) {
            let LockStats { wait, hold, both } = stats;
            let [total, min, mean, p99, max] =
                [wait.total, wait.min, wait.mean, wait.p99, wait.max]
                    .map(|of| short_ms(wait.count, of));
            write!(out, "{:>7}  ", hold.count)?;
            write!(out, "{total:>9} {min:>7} {mean:>7} {p99:>8} {max:>8}")?;
            let [total, min, mean, max] =
                [hold.total, hold.min, hold.mean, hold.max].map(|of| short_ms(hold.count, of));
            write!(out, "  {total:>9} {min:>7} {mean:>7} {max:>8}")?;
            let [min, mean, max] =
                [both.min, both.mean, both.max].map(|of| short_ms(both.count, of));
            writeln!(out, "  {min:>7} {mean:>7} {max:>8}  {relation}")?;
        }
        let more = relations.len().saturating_sub(RELATIONS_SHOWN);
        if more > 0 {
            writeln!(out, "        and {more} more relations")?;
        }
        Ok(())
    }
}

impl<W: Write> ProbeOutput<TraceUpdate<LongExtensionLock, ExtensionInterval>>
    for ExtensionPrinter<W>
{
    fn write(
        &mut self,
        update: TraceUpdate<LongExtensionLock, ExtensionInterval>,
    ) -> io::Result<()> {
        match update {
            TraceUpdate::LongEvent(lock) => self.long_lock(lock),
            TraceUpdate::Interval(interval) => self.interval(interval),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

fn lost_remarks(lost_events: &LostEvents) -> Vec<String> {
    let LostEvents { lost, no_start, skipped } = lost_events;
    let mut remarks = Vec::new();
    if *lost > 0 {
        remarks.push(format!("{lost} locks lost between kernel and probe"));
    }
    if *no_start > 0 {
        remarks
            .push(format!("{no_start} locks released that were acquired before tracing started"));
    }
    for (program, hits) in skipped {
        remarks.push(format!("the kernel skipped {hits} hits of the program {program}"));
    }
    remarks
}

fn summary_cells(kind: &str, summary: &ExtensionSummary) -> Vec<Cell> {
    let mut row = stats_cells(kind, &summary.stats());
    row.push(("at_once", json!(summary.conditional())));
    row
}

/// Returns cells for the durations of waits.
pub(super) fn wait_times(waits: &DurationStats) -> [Cell; 6] {
    [
        ("wait_min_ms", rows::ms(waits.min)),
        ("wait_mean_ms", rows::ms(waits.mean)),
        ("wait_p50_ms", rows::ms(waits.p50)),
        ("wait_p99_ms", rows::ms(waits.p99)),
        ("wait_max_ms", rows::ms(waits.max)),
        ("wait_total_ms", rows::ms(waits.total)),
    ]
}

fn stats_cells(kind: &str, stats: &LockStats) -> Vec<Cell> {
    let LockStats { wait, hold, both } = stats;
    let mut row =
        vec![("source", json!(SOURCE)), ("kind", json!(kind)), ("waits", json!(wait.count))];
    if wait.count > 0 {
        row.extend(wait_times(wait));
        row.extend([
            ("both_min_ms", rows::ms(both.min)),
            ("both_mean_ms", rows::ms(both.mean)),
            ("both_max_ms", rows::ms(both.max)),
        ]);
    }
    if hold.count > 0 {
        row.extend([
            ("hold_min_ms", rows::ms(hold.min)),
            ("hold_mean_ms", rows::ms(hold.mean)),
            ("hold_max_ms", rows::ms(hold.max)),
            ("hold_total_ms", rows::ms(hold.total)),
        ]);
    }
    row
}

/// Formats a duration as milliseconds for people; `-` if there are no durations.
fn short_ms(count: u64, duration: Duration) -> String {
    match duration.as_secs_f64() * 1e3 {
        _ if count == 0 => "-".to_owned(),
        ms if ms >= 100.0 => format!("{ms:.0}"),
        ms if ms >= 10.0 => format!("{ms:.1}"),
        ms => format!("{ms:.3}"),
    }
}
