//! [`FanOut`]: how the results of several shards are merged.

/// How the results of several shards for one read are merged into one result.
///
/// Every shard receives the statement unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// All rows, in order of arrival.
    Concatenate,
    /// A merge of rows that each shard has sorted.
    Merge {
        /// Sort columns, most significant first.
        by: Vec<SortKey>,
        /// Maximum number of rows.
        limit: Option<u64>,
    },
    /// One row per shard is combined into one, column by column. The sum, minimum and maximum of no
    /// rows is NULL, and NULLs are ignored.
    Aggregate(Vec<Aggregate>),
}

/// A sort column.
///
/// Only types whose order is known without the server can be merged: numbers, times, `bytea`,
/// `uuid`, and text in the collation `C`. The merging code must check this in the row description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The column.
    pub column: SortColumn,
    /// Descending order.
    pub descending: bool,
    /// NULLs sort first.
    pub nulls_first: bool,
}

/// A column of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SortColumn {
    /// By position, from 0.
    Position(usize),
    /// By name in the row description; if several columns have that name, the order is unknown.
    Named(Box<str>),
}

/// How a column is combined over one row per shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// `count`: the counts are added.
    Count,
    /// `sum`: the sums are added, in the type of the column.
    Sum,
    /// `min`: the minimum.
    Min,
    /// `max`: the maximum.
    Max,
}
