//! [`FanOut`]: how the results of several shards are merged.

/// A rule for merging the results of several shards for one read into one result.
///
/// Every shard receives the statement unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// All rows of all shards, in order of arrival.
    Concatenate,
    /// A merge of the shards' rows, which each shard has sorted.
    Merge {
        /// Sort keys, most significant first.
        by: Vec<SortKey>,
        /// Maximum number of rows of the merged result.
        limit: Option<u64>,
    },
    /// One row, which combines the shards' rows column by column. NULLs, which `sum`, `min` and
    /// `max` return for no rows, are ignored.
    Aggregate(Vec<Aggregate>),
}

/// A sort key: a column with its direction.
///
/// Rows can be merged only by types whose order is known without the server, such as numbers,
/// times, `bytea`, `uuid`, and text in the collation `C`. The merger checks the types in the row
/// description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The column that rows are sorted by.
    pub column: SortColumn,
    /// Whether the order is descending.
    pub descending: bool,
    /// Whether NULLs are first.
    pub nulls_first: bool,
}

/// Identifies a column of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SortColumn {
    /// The index of the column, from 0.
    Position(usize),
    /// The column's name in the row description. If several columns have that name, rows cannot be
    /// merged.
    Named(Box<str>),
}

/// A rule for combining the values of a column, one per shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// `count`: the counts are added.
    Count,
    /// `sum`: the sums are added, in the type of the column.
    Sum,
    /// `min`: the minimum of the shards' minimums.
    Min,
    /// `max`: the maximum of the shards' maximums.
    Max,
}
