//! [`MergedRows`]: merges the rows of all shards into one result.

use howdah_wire::backend::encode;

use super::{
    MergeError,
    aggregate::AggregateRow,
    columns::ResultColumns,
    message,
    order::{RowOrder, SortValues},
};
use crate::fan_out::{Aggregate, FanOut};

/// A merge in progress: combines the shards' rows into one result.
#[derive(Debug)]
pub(super) struct MergedRows {
    /// For each shard, whether it has sent all its rows, or was lost before the merge.
    pub(super) is_finished: Vec<bool>,
    /// Number of rows forwarded, or combined into the aggregate row.
    count: u64,
    method: MergeMethod,
}

#[derive(Debug)]
enum MergeMethod {
    Unordered,
    Ordered { order: RowOrder, limit: u64, keys: Vec<Option<SortValues>> },
    One { row: AggregateRow, aggregates: Vec<Aggregate> },
}

impl MergedRows {
    /// Creates a merge of no rows. Fails if results with these columns cannot be merged.
    pub(super) fn new(
        method: &FanOut,
        columns: Option<&ResultColumns>,
        is_finished: Vec<bool>,
        text_by_byte: bool,
    ) -> Result<Self, MergeError> {
        let columns = columns.ok_or(MergeError::Different);
        let method = match method {
            FanOut::Concatenate => MergeMethod::Unordered,
            FanOut::Merge { by, limit } => MergeMethod::Ordered {
                order: RowOrder::new(by, columns?, text_by_byte)?,
                limit: limit.unwrap_or(u64::MAX),
                keys: vec![None; is_finished.len()],
            },
            FanOut::Aggregate(aggregates) => MergeMethod::One {
                row: AggregateRow::new(aggregates, columns?, text_by_byte)?,
                aggregates: aggregates.clone(),
            },
        };
        Ok(Self { is_finished, count: 0, method })
    }

    /// Processes the next row of a shard. Returns whether the row is consumed; otherwise it waits
    /// for the rows of other shards.
    pub(super) fn accept(
        &mut self,
        shard: usize,
        bytes: &[u8],
        columns: Option<&ResultColumns>,
        out: &mut Vec<u8>,
    ) -> Result<bool, MergeError> {
        match &mut self.method {
            MergeMethod::Unordered => out.extend_from_slice(bytes),
            MergeMethod::Ordered { order, keys, .. } => {
                keys[shard] = Some(order.key(&message(bytes)?)?);
                return Ok(false);
            }
            MergeMethod::One { row, aggregates } => {
                row.add(aggregates, columns.ok_or(MergeError::Different)?, &message(bytes)?)?;
            }
        }
        self.count += 1;
        Ok(true)
    }

    /// Whether the next row of a shard is known and waits for the rows of other shards.
    pub(super) fn has_key(&self, shard: usize) -> bool {
        matches!(&self.method, MergeMethod::Ordered { keys, .. } if keys[shard].is_some())
    }

    /// Returns the shard whose next row is first in order, and removes the row's sort values;
    /// `None` if no row is left, or the merge is not ordered. The next row of each unfinished shard
    /// must be known.
    pub(super) fn next_shard(&mut self) -> Option<usize> {
        let MergeMethod::Ordered { order, keys, .. } = &mut self.method else { return None };
        let known = keys.iter().enumerate().filter_map(|(shard, key)| Some((shard, key.as_ref()?)));
        let (shard, _) = known.min_by(|(_, one), (_, other)| order.compare(one, other))?;
        keys[shard] = None;
        Some(shard)
    }

    /// Counts another row and returns `true`, unless the limit is reached.
    pub(super) fn has_capacity(&mut self) -> bool {
        let is_within =
            !matches!(self.method, MergeMethod::Ordered { limit, .. } if self.count >= limit);
        self.count += u64::from(is_within);
        is_within
    }

    /// Finishes the result: writes the aggregate row, if the result is one, and returns the number
    /// of rows.
    pub(super) fn finish(&self, out: &mut Vec<u8>) -> Result<u64, MergeError> {
        let MergeMethod::One { row, .. } = &self.method else { return Ok(self.count) };
        if self.count != self.is_finished.len() as u64 {
            return Err(MergeError::Different);
        }
        encode::data_row(out, row.cells())
            .map_err(|error| MergeError::Protocol(error.to_string()))?;
        Ok(1)
    }
}
