//! Renders the clock sweep.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::{
    live::ProbeOutput,
    sweep::{PerAllocation, SweepRow, SweepSummary},
};
use serde_json::json;

use super::rows::{self, Cell, RowFormat, RowWriter};

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "hand",
    "buffers",
    "passes",
    "passes_per_s",
    "examined",
    "allocations",
    "swept",
    "per_allocation_min",
    "per_allocation_avg",
    "per_allocation_max",
    "has_free_buffers",
    "limitation",
];

/// Number of lines between two headers of the table.
const HEAD_EVERY: u64 = 30;

/// Renders samples of the clock sweep.
#[derive(Debug)]
pub struct SweepPrinter<W> {
    rows: RowWriter<W>,
    lines: u64,
}

impl<W: Write> SweepPrinter<W> {
    /// Creates a printer that writes to `out` in `format`.
    pub fn new(out: W, format: RowFormat) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), lines: 0 }
    }

    fn line(&mut self, row: &SweepRow) -> io::Result<()> {
        let out = &mut self.rows.out;
        if self.lines.is_multiple_of(HEAD_EVERY) {
            writeln!(
                out,
                "{:<27}  {:>10} {:>9} {:>11}  {:>26}  free",
                "time", "hand", "passes/s", "allocated", "examined each (min avg max)"
            )?;
        }
        self.lines += 1;
        let time = rows::time(SystemTime::now());
        let free = if row.has_free_buffers { "yes" } else { "no" };
        let each = row.per_allocation.map_or_else(
            || "-".to_owned(),
            |PerAllocation { min, avg, max }| format!("{min:.2} {avg:.2} {max:.2}"),
        );
        writeln!(
            out,
            "{time:<27}  {:>10} {:>9.3} {:>11}  {each:>26}  {free}",
            row.hand,
            row.passes_per_s(),
            row.allocations
        )
    }

    /// Writes the totals of the whole measurement.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn totals(&mut self, summary: &SweepSummary) -> io::Result<()> {
        if !self.rows.is_table() {
            return self.rows.write(&summary_cells(summary));
        }
        let out = &mut self.rows.out;
        let SweepSummary { allocations, swept, examined, buffers, .. } = *summary;
        let seconds = summary.elapsed.as_secs_f64();
        writeln!(
            out,
            "\n{allocations} buffers allocated in {seconds:.1} s, {swept} of them by sweeping"
        )?;
        write!(out, "{examined} of {buffers} buffers examined, {:.2} passes", summary.passes())?;
        if let Some(PerAllocation { min, avg, max }) = summary.per_allocation {
            write!(out, "; per allocation min {min:.2}, mean {avg:.2}, max {max:.2}")?;
        }
        writeln!(out)?;
        if let Some((slowest, fastest)) = summary.passes_per_s {
            let mean = summary.passes_per_s_avg();
            writeln!(out, "passes per second: min {slowest:.3}, mean {mean:.3}, max {fastest:.3}")?;
        }
        Ok(())
    }
}

impl<W: Write> ProbeOutput<SweepRow> for SweepPrinter<W> {
    fn write(&mut self, row: SweepRow) -> io::Result<()> {
        if self.rows.is_table() { self.line(&row) } else { self.rows.write(&cells(&row)) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

fn cells(row: &SweepRow) -> Vec<Cell> {
    let mut cells = vec![
        ("source", json!("memory")),
        ("kind", json!("interval")),
        ("time", json!(rows::time(SystemTime::now()))),
        ("hand", json!(row.hand)),
        ("buffers", json!(row.buffers)),
        ("passes", json!(row.passes())),
        ("passes_per_s", json!(row.passes_per_s())),
        ("examined", json!(row.examined)),
        ("allocations", json!(row.allocations)),
        ("has_free_buffers", json!(row.has_free_buffers)),
    ];
    cells.extend(per_allocation(row.per_allocation));
    cells
}

fn summary_cells(summary: &SweepSummary) -> Vec<Cell> {
    let mut cells = vec![
        ("source", json!("memory")),
        ("kind", json!("end")),
        ("time", json!(rows::time(SystemTime::now()))),
        ("buffers", json!(summary.buffers)),
        ("passes", json!(summary.passes())),
        ("passes_per_s", json!(summary.passes_per_s_avg())),
        ("examined", json!(summary.examined)),
        ("allocations", json!(summary.allocations)),
        ("swept", json!(summary.swept)),
    ];
    cells.extend(per_allocation(summary.per_allocation));
    cells
}

fn per_allocation(each: Option<PerAllocation>) -> Vec<Cell> {
    each.map_or_else(Vec::new, |PerAllocation { min, avg, max }| {
        vec![
            ("per_allocation_min", json!(min)),
            ("per_allocation_avg", json!(avg)),
            ("per_allocation_max", json!(max)),
        ]
    })
}
