//! Results of statements.

use std::borrow::Cow;

/// The result of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultSet {
    /// Names of the columns; empty for commands without a result set, and for prepared statements.
    pub columns: Vec<String>,
    /// The rows, each with one cell per column of the result.
    pub rows: Vec<ResultRow>,
    /// The command tag, such as `SELECT 5`; empty if the text contained no statement.
    pub tag: String,
}

impl ResultSet {
    /// Returns the number of rows returned or changed, for commands that report it.
    pub fn row_count(&self) -> Option<u64> {
        self.tag.rsplit(' ').next()?.parse().ok()
    }

    /// Returns the index of the first column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }
}

/// One row of a result: cells in the text format of their types, unless another format was
/// requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultRow(pub(super) Vec<Option<Box<[u8]>>>);

impl ResultRow {
    /// Returns the cell of a column, with U+FFFD where it is not UTF-8; `None` if it is NULL or the
    /// column does not exist.
    pub fn text(&self, column: usize) -> Option<Cow<'_, str>> {
        self.bytes(column).map(String::from_utf8_lossy)
    }

    /// Returns the bytes of the cell of a column; `None` if it is NULL or the column does not
    /// exist.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column)?.as_deref()
    }

    /// Returns the number of cells.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the row has no cells.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the cells, from left to right.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.0.iter().map(Option::as_deref)
    }
}
