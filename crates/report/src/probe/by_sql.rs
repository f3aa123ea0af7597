//! Renders the probes of [`howdah_probe::by_sql`], which use SQL.
//!
//! Rows for programs name their source and its limitation. Values that SQL does not provide are
//! missing.

mod counters;
mod locks;
mod lwlocks;

use std::{
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::{
    by_sql::{LwLockSamples, SqlProbe},
    live::{LWLOCK_SAMPLES_LIMITATION, ProbeOutput},
};
use serde_json::{Value, json};

use super::rows::{self, Cell, RowFormat, RowWriter};

/// A probe that uses SQL and whose measurements can be rendered.
pub trait SqlReport: SqlProbe {
    /// Columns of the rows.
    const COLUMNS: &'static [&'static str];

    /// Writes the data since the last report.
    ///
    /// # Errors
    ///
    /// The writer fails.
    fn write_interval(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()>;

    /// Writes the totals at the end.
    ///
    /// # Errors
    ///
    /// The writer fails.
    fn write_totals(&mut self, rows: &mut SqlPrinter<impl Write>) -> io::Result<()>;
}

/// Renders rows of a fallback source; those for programs include the source's limitation.
#[derive(Debug)]
pub struct SqlPrinter<W> {
    rows: RowWriter<W>,
    source: &'static str,
    limitation: &'static str,
}

impl<W: Write> SqlPrinter<W> {
    /// Creates a printer for measurements by SQL.
    pub fn new<P: SqlReport>(out: W, format: RowFormat) -> Self {
        let rows = RowWriter::new(out, format, P::COLUMNS);
        Self { rows, source: "sql", limitation: P::LIMITATION }
    }

    /// Creates a printer for samples of lightweight locks from memory.
    pub fn for_memory(out: W, format: RowFormat) -> Self {
        let rows = RowWriter::new(out, format, LwLockSamples::COLUMNS);
        Self { rows, source: "memory", limitation: LWLOCK_SAMPLES_LIMITATION }
    }

    /// Writes a row. A table omits cells without values.
    fn row(&mut self, kind: Option<&str>, mut cells: Vec<Cell>) -> io::Result<()> {
        if self.rows.is_table() {
            let has_value = |(_, value): &&Cell| !value.is_null();
            let shown = cells.iter().filter(has_value).map(|(name, value)| match value {
                Value::String(text) => format!("{name} {text}"),
                other => format!("{name} {other}"),
            });
            let shown: Vec<_> = kind.map(str::to_owned).into_iter().chain(shown).collect();
            let time = rows::time(SystemTime::now());
            return writeln!(self.rows.out, "{time}  {}", shown.join("  "));
        }
        cells.extend([("source", json!(self.source)), ("limitation", json!(self.limitation))]);
        if let Some(kind) = kind {
            cells.extend([("kind", json!(kind)), ("time", json!(rows::time(SystemTime::now())))]);
        }
        self.rows.write(&cells)
    }
}

impl<P: SqlReport, W: Write> ProbeOutput<&mut P> for SqlPrinter<W> {
    fn write(&mut self, probe: &mut P) -> io::Result<()> {
        probe.write_interval(self)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}
