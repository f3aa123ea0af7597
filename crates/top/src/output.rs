//! Tables for programs, and for a terminal that is not one: the same rows as on the screen.
//!
//! | format | what it is |
//! |---|---|
//! | `table` | columns padded with spaces, whole texts |
//! | `json` | one document: `{"version": 1, "samples": [sample, …]}` |
//! | `ndjson` | a sample a line |
//! | `csv` | RFC 4180, one header, `server` and `taken` in front |
//!
//! A sample is `{"server", "taken", "screen", "rows": [{column: value}]}`. Numbers are numbers in the unit of
//! their column: seconds, milliseconds, bytes. What has no value is `null`; what cannot be read is left out
//! (in CSV both are empty). Times are ISO 8601 in UTC.

use std::io::{self, Write};

use howdah_collect::Cell;
use howdah_traffic::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    table::{Screen, Table},
    units::shown,
};

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For eyes.
    Table,
    /// One JSON document.
    Json,
    /// A JSON document a line.
    Ndjson,
    /// Comma-separated values.
    Csv,
}

/// A table of one server at one moment.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// What the server is called.
    pub server: &'a str,
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// What it shows.
    pub screen: Screen,
    /// The rows.
    pub table: &'a Table,
}

/// Writes samples.
#[derive(Debug)]
pub struct Output<W> {
    writer: W,
    format: Format,
    samples: u64,
}

/// The version of the JSON documents.
const VERSION: u32 = 1;

impl<W: Write> Output<W> {
    /// An output without samples.
    pub fn new(writer: W, format: Format) -> Self {
        Self { writer, format, samples: 0 }
    }

    /// Writes one sample.
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn write(&mut self, sample: &Sample<'_>) -> io::Result<()> {
        match self.format {
            Format::Table => self.table(sample),
            Format::Json => {
                let opening = if self.samples == 0 {
                    format!("{{\"version\": {VERSION}, \"samples\": [")
                } else {
                    ",".to_owned()
                };
                write!(self.writer, "{opening}\n{}", document(sample))
            }
            Format::Ndjson => writeln!(self.writer, "{}", document(sample)),
            Format::Csv => self.csv(sample),
        }?;
        self.samples += 1;
        self.writer.flush()
    }

    /// Ends the document.
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn finish(mut self) -> io::Result<()> {
        if self.format == Format::Json {
            if self.samples == 0 {
                write!(self.writer, "{{\"version\": {VERSION}, \"samples\": [")?;
            }
            writeln!(self.writer, "\n]}}")?;
        }
        self.writer.flush()
    }

    fn table(&mut self, sample: &Sample<'_>) -> io::Result<()> {
        let Sample { server, taken_us, screen, table } = sample;
        if self.samples > 0 {
            writeln!(self.writer)?;
        }
        writeln!(self.writer, "{server}  {}  {}", time(*taken_us), screen.name())?;
        let texts: Vec<Vec<String>> = table
            .rows
            .iter()
            .map(|row| {
                let cells = row.cells.iter().zip(&table.columns).enumerate();
                cells
                    .map(|(at, (cell, head))| {
                        let indent = if at == 0 { "  ".repeat(row.depth) } else { String::new() };
                        indent + &shown(cell, head.unit)
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

    fn csv(&mut self, sample: &Sample<'_>) -> io::Result<()> {
        let Sample { server, taken_us, table, .. } = sample;
        if self.samples == 0 {
            let names = table.columns.iter().map(|head| head.name);
            let names: Vec<_> = ["server", "taken"].into_iter().chain(names).collect();
            write!(self.writer, "{}\r\n", names.join(","))?;
        }
        for row in &table.rows {
            write!(self.writer, "{},{}", quoted(server), time(*taken_us))?;
            for cell in &row.cells {
                let text = match cell {
                    Cell::Null | Cell::Unavailable => String::new(),
                    Cell::Text(text) => quoted(text),
                    Cell::Integer(value) => value.to_string(),
                    Cell::Real(value) => value.to_string(),
                };
                write!(self.writer, ",{text}")?;
            }
            write!(self.writer, "\r\n")?;
        }
        Ok(())
    }
}

/// A field of CSV, in quotes where it has to be.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn document(sample: &Sample<'_>) -> Value {
    let Sample { server, taken_us, screen, table } = sample;
    let rows = table.rows.iter().map(|row| {
        let cells = row.cells.iter().zip(&table.columns).filter_map(|(cell, head)| {
            let value = match cell {
                Cell::Unavailable => return None,
                Cell::Null => Value::Null,
                Cell::Text(text) => Value::from(&**text),
                Cell::Integer(value) => Value::from(*value),
                Cell::Real(value) => Value::from(*value),
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
    json!({"server": server, "taken": time(*taken_us), "screen": screen.name(), "rows": rows})
}

/// A moment in ISO 8601, in UTC.
fn time(us: i64) -> String {
    Timestamp::from_micros(us).to_string()
}

#[cfg(test)]
mod tests {
    use howdah_collect::Unit;

    use super::*;
    use crate::table::{Head, Row};

    fn table() -> Table {
        let head = |name, unit| Head::new(name, name, unit, 8, "");
        Table {
            columns: vec![
                head("pid", Unit::Count),
                head("time", Unit::Seconds),
                head("io", Unit::Count),
                head("query", Unit::Text),
            ],
            rows: vec![
                Row::plain(vec![
                    7_i64.into(),
                    1.5.into(),
                    Cell::Unavailable,
                    "select \"a\",\n1".into(),
                ]),
                Row {
                    depth: 1,
                    ..Row::plain(vec![8_i64.into(), Cell::Null, Cell::Null, "x".into()])
                },
            ],
        }
    }

    fn written(format: Format, samples: usize) -> String {
        let mut bytes = Vec::new();
        let mut output = Output::new(&mut bytes, format);
        let table = table();
        for _ in 0..samples {
            let sample = Sample {
                server: "db1",
                taken_us: 1_700_000_000_000_000,
                screen: Screen::Activity,
                table: &table,
            };
            output.write(&sample).unwrap();
        }
        output.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_is_one_document() {
        let document: Value = serde_json::from_str(&written(Format::Json, 2)).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["samples"].as_array().unwrap().len(), 2);
        let rows = &document["samples"][0]["rows"];
        assert_eq!(rows[0], json!({"pid": 7, "time": 1.5, "query": "select \"a\",\n1"}));
        assert_eq!(rows[1], json!({"pid": 8, "time": null, "io": null, "query": "x", "depth": 1}));
        let empty: Value = serde_json::from_str(&written(Format::Json, 0)).unwrap();
        assert_eq!(empty["samples"], json!([]));
    }

    #[test]
    fn ndjson_is_a_document_a_line() {
        let text = written(Format::Ndjson, 2);
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert_eq!(serde_json::from_str::<Value>(line).unwrap()["server"], "db1");
        }
    }

    #[test]
    fn csv_has_one_header_and_quotes_what_needs_it() {
        let text = written(Format::Csv, 2);
        let time = time(1_700_000_000_000_000);
        let rows = format!("db1,{time},7,1.5,,\"select \"\"a\"\",\n1\"\r\ndb1,{time},8,,,x\r\n");
        assert_eq!(text, format!("server,taken,pid,time,io,query\r\n{rows}{rows}"));
    }

    #[test]
    fn a_table_is_aligned() {
        insta::assert_snapshot!(written(Format::Table, 1));
    }
}
