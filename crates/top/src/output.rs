//! Writes tables for programs and files: the same rows as on the screen.
//!
//! | format | description |
//! |---|---|
//! | `table` | columns padded with spaces, complete texts |
//! | `json` | one document: `{"version": 1, "samples": [sample, …]}` |
//! | `ndjson` | one sample per line |
//! | `csv` | RFC 4180, one header, starting with `server` and `taken` |
//!
//! A sample is `{"server", "taken", "screen", "rows": [{column: value}]}`. Rows below another one,
//! such as those of waiting sessions, also have `depth`. Numbers are in the unit of their column,
//! such as seconds or bytes. A missing value is `null`, and an unreadable one is omitted (both are
//! empty in CSV). Times are ISO 8601 in UTC.

use std::io::{self, Write};

use howdah_collect::ViewCell;
use howdah_traffic::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    table::{ScreenKind, ScreenTable},
    units::format_cell,
};

/// Format in which samples are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Aligned text for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON document per line.
    Ndjson,
    /// Comma-separated values.
    Csv,
}

/// A table of one server at one moment.
#[derive(Clone, Debug)]
pub struct TableSample<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// The screen whose rows these are.
    pub screen: ScreenKind,
    /// The columns and rows to write.
    pub table: &'a ScreenTable,
}

/// Writes samples to a writer in one format.
#[derive(Debug)]
pub struct SampleWriter<W> {
    writer: W,
    format: OutputFormat,
    samples: u64,
}

/// Version of the JSON documents.
const VERSION: u32 = 1;

impl<W: Write> SampleWriter<W> {
    /// Creates a writer of samples. Nothing is written yet.
    pub fn new(writer: W, format: OutputFormat) -> Self {
        Self { writer, format, samples: 0 }
    }

    /// Writes one sample.
    ///
    /// # Errors
    ///
    /// The writer failed.
    pub fn write(&mut self, sample: &TableSample<'_>) -> io::Result<()> {
        match self.format {
            OutputFormat::Table => self.table(sample),
            OutputFormat::Json => {
                let opening = if self.samples == 0 {
                    format!("{{\"version\": {VERSION}, \"samples\": [")
                } else {
                    ",".to_owned()
                };
                write!(self.writer, "{opening}\n{}", document(sample))
            }
            OutputFormat::Ndjson => writeln!(self.writer, "{}", document(sample)),
            OutputFormat::Csv => self.csv(sample),
        }?;
        self.samples += 1;
        self.writer.flush()
    }

    /// Completes the output, which for `json` writes the end of the document.
    ///
    /// # Errors
    ///
    /// The writer failed.
    pub fn finish(mut self) -> io::Result<()> {
        if self.format == OutputFormat::Json {
            if self.samples == 0 {
                write!(self.writer, "{{\"version\": {VERSION}, \"samples\": [")?;
            }
            writeln!(self.writer, "\n]}}")?;
        }
        self.writer.flush()
    }

    fn table(&mut self, sample: &TableSample<'_>) -> io::Result<()> {
        let TableSample { server, taken_us, screen, table } = sample;
        if self.samples > 0 {
            writeln!(self.writer)?;
        }
        writeln!(self.writer, "{server}  {}  {}", timestamp(*taken_us), screen.name())?;
        let texts: Vec<Vec<String>> = table
            .rows
            .iter()
            .map(|row| {
                let cells = row.cells.iter().zip(&table.columns).enumerate();
                cells
                    .map(|(at, (cell, head))| {
                        let indent = if at == 0 { "  ".repeat(row.depth) } else { String::new() };
                        indent + &format_cell(cell, head.unit)
                    })
                    .collect()
            })
            .collect();
        let width = |at: usize| {
            let cells = texts.iter().map(|row| row[at].chars().count());
            cells.chain([table.columns[at].title.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
        let titles = table.columns.iter().map(|head| head.title.to_owned()).collect();
        for line in std::iter::once(&titles).chain(&texts) {
            let mut text = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                text.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(self.writer, "{}", text.trim_end())?;
        }
        Ok(())
    }

    fn csv(&mut self, sample: &TableSample<'_>) -> io::Result<()> {
        let TableSample { server, taken_us, table, .. } = sample;
        if self.samples == 0 {
            let names = table.columns.iter().map(|head| head.name);
            let names: Vec<_> = ["server", "taken"].into_iter().chain(names).collect();
            write!(self.writer, "{}\r\n", names.join(","))?;
        }
        for row in &table.rows {
            write!(self.writer, "{},{}", quoted(server), timestamp(*taken_us))?;
            for cell in &row.cells {
                let text = match cell {
                    ViewCell::Null | ViewCell::Unavailable => String::new(),
                    ViewCell::Text(text) => quoted(text),
                    ViewCell::Integer(value) => value.to_string(),
                    ViewCell::Real(value) => value.to_string(),
                };
                write!(self.writer, ",{text}")?;
            }
            write!(self.writer, "\r\n")?;
        }
        Ok(())
    }
}

/// Formats a CSV field, quoted if necessary.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn document(sample: &TableSample<'_>) -> Value {
    let TableSample { server, taken_us, screen, table } = sample;
    let rows = table.rows.iter().map(|row| {
        let cells = row.cells.iter().zip(&table.columns).filter_map(|(cell, head)| {
            let value = match cell {
                ViewCell::Unavailable => return None,
                ViewCell::Null => Value::Null,
                ViewCell::Text(text) => Value::from(&**text),
                ViewCell::Integer(value) => Value::from(*value),
                ViewCell::Real(value) => Value::from(*value),
            };
            Some((head.name.to_owned(), value))
        });
        let mut object: Map<String, Value> = cells.collect();
        if row.depth > 0 {
            object.insert("depth".to_owned(), row.depth.into());
        }
        Value::Object(object)
    });
    let rows: Vec<_> = rows.collect();
    json!({"server": server, "taken": timestamp(*taken_us), "screen": screen.name(), "rows": rows})
}

/// Formats a time as ISO 8601 in UTC.
fn timestamp(us: i64) -> String {
    Timestamp::from_micros(us).to_string()
}

#[cfg(test)]
mod tests {
    use howdah_collect::ColumnUnit;

    use super::*;
    use crate::table::{TableColumn, TableRow};

    fn table() -> ScreenTable {
        let head = |name, unit| TableColumn::new(name, name, unit, 8, "");
        ScreenTable {
            columns: vec![
                head("pid", ColumnUnit::Count),
                head("time", ColumnUnit::Seconds),
                head("io", ColumnUnit::Count),
                head("query", ColumnUnit::Text),
            ],
            rows: vec![
                TableRow::from_cells(vec![
                    7_i64.into(),
                    1.5.into(),
                    ViewCell::Unavailable,
                    "select \"a\",\n1".into(),
                ]),
                TableRow {
                    depth: 1,
                    ..TableRow::from_cells(vec![
                        8_i64.into(),
                        ViewCell::Null,
                        ViewCell::Null,
                        "x".into(),
                    ])
                },
            ],
        }
    }

    fn render(format: OutputFormat, samples: usize) -> String {
        let mut bytes = Vec::new();
        let mut output = SampleWriter::new(&mut bytes, format);
        let table = table();
        for _ in 0..samples {
            let sample = TableSample {
                server: "db1",
                taken_us: 1_700_000_000_000_000,
                screen: ScreenKind::Activity,
                table: &table,
            };
            output.write(&sample).unwrap();
        }
        output.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_is_one_document() {
        let document: Value = serde_json::from_str(&render(OutputFormat::Json, 2)).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["samples"].as_array().unwrap().len(), 2);
        let rows = &document["samples"][0]["rows"];
        assert_eq!(rows[0], json!({"pid": 7, "time": 1.5, "query": "select \"a\",\n1"}));
        assert_eq!(rows[1], json!({"pid": 8, "time": null, "io": null, "query": "x", "depth": 1}));
        let empty: Value = serde_json::from_str(&render(OutputFormat::Json, 0)).unwrap();
        assert_eq!(empty["samples"], json!([]));
    }

    #[test]
    fn ndjson_has_one_document_per_line() {
        let text = render(OutputFormat::Ndjson, 2);
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert_eq!(serde_json::from_str::<Value>(line).unwrap()["server"], "db1");
        }
    }

    #[test]
    fn csv_has_one_header_and_quotes_fields() {
        let text = render(OutputFormat::Csv, 2);
        let time = timestamp(1_700_000_000_000_000);
        let rows = format!("db1,{time},7,1.5,,\"select \"\"a\"\",\n1\"\r\ndb1,{time},8,,,x\r\n");
        assert_eq!(text, format!("server,taken,pid,time,io,query\r\n{rows}{rows}"));
    }

    #[test]
    fn table_columns_are_aligned() {
        insta::assert_snapshot!(render(OutputFormat::Table, 1));
    }
}
