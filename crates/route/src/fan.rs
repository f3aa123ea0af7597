//! [`FanOut`]: how the answers of several shards become one.

/// How the answers of several shards to one read become the answer of one server.
///
/// Every shard gets the statement as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FanOut {
    /// The rows of all, one shard's after another's.
    Concatenate,
    /// Rows are ordered on every shard, and stay so.
    Merge {
        /// By which columns, the first first.
        by: Vec<SortKey>,
        /// How many rows, at most.
        limit: Option<u64>,
    },
    /// One row of every shard becomes one, column by column. A sum, a least and a greatest of no rows is
    /// NULL, and NULLs don't count.
    Aggregate(Vec<Aggregate>),
}

/// A column that rows are ordered by.
///
/// Only types whose order is known without the server can be merged: numbers, times, `bytea`, `uuid`, text in
/// the collation `C`. Whoever merges has to see to it, by the description of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Which.
    pub column: SortColumn,
    /// From the greatest to the least.
    pub descending: bool,
    /// NULLs come first.
    pub nulls_first: bool,
}

/// Which column of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SortColumn {
    /// By its place, from 0.
    Position(usize),
    /// By its name in the description of the rows; if there are several of that name, the order is not known.
    Named(Box<str>),
}

/// What is done with a column of one row per shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// `count`: added up.
    Count,
    /// `sum`: added up, in the type of the column.
    Sum,
    /// `min`: the least.
    Min,
    /// `max`: the greatest.
    Max,
}
