//! Reads the three formats of server logs: detects a log's format and splits its bytes into
//! records.
//!
//! The grammar of each format is written once, with its fast path inside:
//!
//! | format | grammar |
//! |---|---|
//! | stderr | `prefix.rs`, `stderr/prefix_fields.rs`, `stderr/record_text.rs` |
//! | csv | `csv/row_columns.rs`, and the start and the columns of a row in `csv.rs` |
//! | json | `json/object.rs`, and the keys in `json.rs` |
//!
//! It has two callers. A framer finds the records of one chunk, on any thread. It leaves out what
//! the chunk alone does not decide: `FramedLine::Ambiguous`, `RowEnd::Undecided`. A
//! [reader](reader::LogReader) gets that, in order, and what is not a record, which it reports.

pub(crate) mod csv;
pub(crate) mod detector;
pub(crate) mod input_item;
mod json;
pub(crate) mod reader;
mod recent_sessions;
mod stderr;
#[cfg(test)]
mod tests;
