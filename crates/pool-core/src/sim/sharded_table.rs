//! The sharded table `t` of simulated databases: the results of its statements on one shard, and on
//! a server that has the rows of all shards, such as a reference model.
//!
//! A read depends only on its token and on the shards whose rows the server has, so that the
//! pooler's merged reply must equal that of the reference model byte for byte.

use std::ops::Range;

use howdah_wire::{
    ValueFormat,
    backend::{FieldDescription, encode},
};

use super::random::SimRandom;

/// The rows of the table that a server has.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeldRows {
    /// Those of one of several shards.
    Shard { shard: u32, shards: u32 },
    /// Those of all shards.
    All { shards: u32 },
}

impl HeldRows {
    /// Returns the shards whose rows the server has.
    pub(super) fn range(self) -> Range<u32> {
        match self {
            Self::Shard { shard, .. } => shard..shard + 1,
            Self::All { shards } => 0..shards,
        }
    }

    fn shards(self) -> u32 {
        match self {
            Self::Shard { shards, .. } | Self::All { shards } => shards,
        }
    }
}

/// A read of the table's rows on all shards.
#[derive(Clone, Copy, Debug)]
pub(super) enum TableRead {
    /// Equal rows, whose order does not matter.
    Unordered,
    /// Sorted rows.
    Ordered { descending: bool, is_limited: bool },
    /// One row with aggregates.
    Aggregates,
    /// A read that fails on one of the shards.
    Failing,
    /// A read that takes a while; with `stalls`, until it is cancelled.
    Sleeping { stalls: bool },
}

/// The reads that clients send, up to the condition.
pub(super) const READS: [(&str, &str); 6] = [
    ("select same from t where ", ""),
    ("select n from t where ", " order by n"),
    ("select n from t where ", " order by n desc"),
    ("select n from t where ", " order by n limit 2"),
    ("select count(*), sum(n), min(n), max(n) from t where ", ""),
    ("select broken from t where ", ""),
];

const LIMIT: usize = 2;

impl TableRead {
    /// Recognizes a read of all shards.
    pub(super) fn parse(sql: &str) -> Option<Self> {
        let (columns, condition) = sql.strip_prefix("select ")?.split_once(" from t where ")?;
        Some(match columns {
            "same" => Self::Unordered,
            "n" => Self::Ordered {
                descending: condition.contains(" desc"),
                is_limited: condition.contains(" limit "),
            },
            "broken" => Self::Failing,
            "slow" => Self::Sleeping { stalls: false },
            "stalled" => Self::Sleeping { stalls: true },
            columns if columns.starts_with("count") => Self::Aggregates,
            _ => return None,
        })
    }

    /// Appends the RowDescription of the result.
    pub(super) fn describe(self, out: &mut Vec<u8>) {
        /// Type OIDs, from `pg_type`.
        const TEXT: u32 = 25;
        const INT4: u32 = 23;
        const INT8: u32 = 20;
        let columns: &[(&str, u32)] = match self {
            Self::Unordered | Self::Sleeping { .. } => &[("same", TEXT)],
            Self::Ordered { .. } | Self::Failing => &[("n", INT4)],
            Self::Aggregates => &[("count", INT8), ("sum", INT8), ("min", INT4), ("max", INT4)],
        };
        let field = |(name, type_oid): &(&'static str, u32)| FieldDescription {
            name: name.as_bytes(),
            table: 0,
            column: 0,
            type_oid: *type_oid,
            type_bytes: -1,
            type_modifier: -1,
            format: ValueFormat::Text,
        };
        encode::row_description(out, columns.iter().map(field)).unwrap();
    }

    /// Whether the read fails on a server with these rows.
    pub(super) fn fails(self, token: &str, held: HeldRows) -> bool {
        let failing = u32::try_from(hash(token) % u64::from(held.shards())).unwrap();
        matches!(self, Self::Failing) && held.range().contains(&failing)
    }

    /// Appends the rows that a server returns, and returns their number.
    pub(super) fn write_rows(self, token: &str, held: HeldRows, out: &mut Vec<u8>) -> usize {
        let mut values: Vec<i64> =
            held.range().flat_map(|shard| values_on_shard(token, shard)).collect();
        let rows: Vec<Vec<Option<String>>> = match self {
            Self::Sleeping { .. } => held.range().map(|_| vec![Some(token.to_owned())]).collect(),
            Self::Unordered => values.iter().map(|_| vec![Some(token.to_owned())]).collect(),
            // Rows would reach the client before the error, or not, depending on the shards' speed.
            Self::Failing => Vec::new(),
            Self::Ordered { .. } => {
                values.sort_unstable();
                if let Self::Ordered { descending: true, .. } = self {
                    values.reverse();
                }
                if let Self::Ordered { is_limited: true, .. } = self {
                    values.truncate(LIMIT);
                }
                values.iter().map(|value| vec![Some(value.to_string())]).collect()
            }
            Self::Aggregates => {
                let sum = (!values.is_empty()).then(|| values.iter().sum::<i64>());
                let (min, max) = (values.iter().min().copied(), values.iter().max().copied());
                let count = Some(i64::try_from(values.len()).unwrap());
                vec![[count, sum, min, max].map(|it| it.map(|it| it.to_string())).into()]
            }
        };
        for row in &rows {
            let cells = row.iter().map(|cell| cell.as_ref().map(String::as_bytes));
            encode::data_row(out, cells.collect::<Vec<_>>()).unwrap();
        }
        rows.len()
    }
}

/// Returns the values that a read finds on a shard.
fn values_on_shard(token: &str, shard: u32) -> Vec<i64> {
    let mut random = SimRandom::new(hash(token) ^ u64::from(shard) << 32);
    (0..random.below(4)).map(|_| i64::try_from(random.below(10)).unwrap()).collect()
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
