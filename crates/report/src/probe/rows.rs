//! Writes the rows of a probe in three formats.

use std::{
    io::{self, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_traffic::Timestamp;
use serde_json::{Map, Value};

/// The format of a probe's measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowFormat {
    /// A table for people.
    #[default]
    Table,
    /// One JSON document per line.
    Ndjson,
    /// Comma-separated values with a header.
    Csv,
}

/// A cell: the name of its column, and its value.
pub(super) type Cell = (&'static str, Value);

/// Writes rows for programs. All rows have the same columns; missing values are `null` or empty.
/// For people, a probe writes its own lines to [`Self::out`].
#[derive(Debug)]
pub(super) struct RowWriter<W> {
    pub(super) out: W,
    columns: &'static [&'static str],
    format: RowFormat,
    has_header: bool,
}

impl<W: Write> RowWriter<W> {
    pub(super) fn new(out: W, format: RowFormat, columns: &'static [&'static str]) -> Self {
        Self { out, columns, format, has_header: false }
    }

    /// Whether the rows are for people.
    pub(super) fn is_table(&self) -> bool {
        self.format == RowFormat::Table
    }

    /// Writes a row, and flushes the writer.
    pub(super) fn write(&mut self, cells: &[Cell]) -> io::Result<()> {
        debug_assert!(cells.iter().all(|(name, _)| self.columns.contains(name)));
        let cell = |name: &&'static str| {
            let found = cells.iter().find(|(column, _)| column == name);
            (*name, found.map_or(Value::Null, |(_, value)| value.clone()))
        };
        let row: Vec<_> = self.columns.iter().map(cell).collect();
        match self.format {
            RowFormat::Csv => {
                if !std::mem::replace(&mut self.has_header, true) {
                    writeln!(self.out, "{}", self.columns.join(","))?;
                }
                let line: Vec<_> = row.iter().map(|(_, value)| in_csv(value)).collect();
                writeln!(self.out, "{}", line.join(","))?;
            }
            RowFormat::Table | RowFormat::Ndjson => {
                let object: Map<_, _> =
                    row.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                serde_json::to_writer(&mut self.out, &object)?;
                writeln!(self.out)?;
            }
        }
        self.out.flush()
    }
}

/// Formats a CSV field, quoted as in RFC 4180.
fn in_csv(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Formats a time as RFC 3339 in UTC, with microseconds.
pub(super) fn time(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).to_string()
}

/// Converts a duration to milliseconds, rounded up to whole microseconds.
pub(super) fn ms(duration: Duration) -> Value {
    let micros = duration.as_nanos().div_ceil(1000);
    Value::from(micros as f64 / 1000.0)
}

/// Formats a duration for people: `1.234 ms`, `12.3 s`.
pub(super) fn duration(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds >= 10.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 0.01 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.3} ms", seconds * 1e3),
    }
}

#[test]
fn csv_cells_are_quoted_if_necessary() {
    assert_eq!(in_csv(&Value::from("a,\"b\"")), "\"a,\"\"b\"\"\"");
    assert_eq!(in_csv(&Value::from(1.5)), "1.5");
    assert_eq!(in_csv(&Value::Null), "");
    assert_eq!(ms(Duration::from_nanos(1500)), Value::from(0.002));
}
