//! [`CopyFrom`]: a COPY from the client to a sharded table, with the position of the key in each
//! row.

mod rows;

pub use rows::{CopyRowSplitter, RowTarget};

/// A `COPY table (columns) FROM STDIN` of a sharded table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFrom {
    /// Name of the table, as in the settings.
    pub table: Box<str>,
    /// Indexes of the key columns in a row, from 0, in the order of the shard map's columns.
    pub key: Vec<usize>,
    /// The format in which the client sends rows.
    pub format: CopyRowFormat,
    /// Whether the first line is a header, which every shard must receive.
    pub header: bool,
}

/// The format of COPY rows, with the options needed to split them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyRowFormat {
    /// Columns with a delimiter and backslash escapes.
    Text {
        /// Column delimiter.
        delimiter: u8,
        /// The string that represents NULL.
        null: Box<str>,
    },
    /// Comma-separated values.
    Csv {
        /// Column delimiter.
        delimiter: u8,
        /// The unquoted string that represents NULL.
        null: Box<str>,
        /// Quote character around values.
        quote: u8,
        /// Escape character before a quote within values.
        escape: u8,
    },
    /// PostgreSQL's binary format, which cannot be split: every shard would need its header and
    /// trailer.
    Binary,
}
