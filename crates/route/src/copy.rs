//! [`CopyFrom`]: rows that a client sends by COPY, and where in each its key stands.

mod rows;

pub use rows::{CopyRows, RowPlace};

/// A `COPY table (columns) FROM STDIN` of a sharded table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFrom {
    /// The table, as the settings name it.
    pub table: Box<str>,
    /// Which columns of a row, from 0, are the key, in the map's order.
    pub key: Vec<usize>,
    /// How rows are written.
    pub format: CopyFormat,
    /// The first line is not a row; every shard needs it.
    pub header: bool,
}

/// How rows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// Columns between delimiters, with escapes by backslash.
    Text {
        /// Between columns.
        delimiter: u8,
        /// What stands for NULL.
        null: Box<str>,
    },
    /// Comma-separated values.
    Csv {
        /// Between columns.
        delimiter: u8,
        /// What stands for NULL where it is not quoted.
        null: Box<str>,
        /// Around values.
        quote: u8,
        /// Before a quote within them.
        escape: u8,
    },
    /// PostgreSQL's own, with a header and a trailer for every shard.
    Binary,
}
