//! [`Rows`]: the rows of all shards, on their way to become those of one answer.

use howdah_wire::backend::encode;

use super::{
    Fault,
    aggregate::Row,
    columns::Columns,
    message,
    order::{Order, RowKey},
};
use crate::fan::{Aggregate, FanOut};

/// The rows that are coming.
#[derive(Debug)]
pub(super) struct Rows {
    /// Of which shards nothing more comes.
    pub(super) is_over: Vec<bool>,
    /// How many were passed on, or taken into the one row.
    count: u64,
    how: Joined,
}

#[derive(Debug)]
enum Joined {
    AsTheyCome,
    Ordered { order: Order, limit: u64, keys: Vec<Option<RowKey>> },
    One { row: Row, aggregates: Vec<Aggregate> },
}

impl Rows {
    /// Before any has come. Fails for what can't be put together, whatever the rows hold.
    pub(super) fn new(
        how: &FanOut,
        columns: Option<&Columns>,
        is_over: Vec<bool>,
        text_by_byte: bool,
    ) -> Result<Self, Fault> {
        let columns = columns.ok_or(Fault::Different);
        let how = match how {
            FanOut::Concatenate => Joined::AsTheyCome,
            FanOut::Merge { by, limit } => Joined::Ordered {
                order: Order::new(by, columns?, text_by_byte)?,
                limit: limit.unwrap_or(u64::MAX),
                keys: vec![None; is_over.len()],
            },
            FanOut::Aggregate(aggregates) => Joined::One {
                row: Row::new(aggregates, columns?, text_by_byte)?,
                aggregates: aggregates.clone(),
            },
        };
        Ok(Self { is_over, count: 0, how })
    }

    /// Takes the next row of a shard; gives whether it is done with.
    pub(super) fn take(
        &mut self,
        shard: usize,
        bytes: &[u8],
        columns: Option<&Columns>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        match &mut self.how {
            Joined::AsTheyCome => out.extend_from_slice(bytes),
            Joined::Ordered { order, keys, .. } => {
                keys[shard] = Some(order.key(&message(bytes)?)?);
                return Ok(false);
            }
            Joined::One { row, aggregates } => {
                row.add(aggregates, columns.ok_or(Fault::Different)?, &message(bytes)?)?;
            }
        }
        self.count += 1;
        Ok(true)
    }

    /// Whether the next row of a shard is known, and waits for those of the others.
    pub(super) fn has_key(&self, shard: usize) -> bool {
        matches!(&self.how, Joined::Ordered { keys, .. } if keys[shard].is_some())
    }

    /// The shard whose row comes first, once each that has more has said which is its next.
    pub(super) fn least(&mut self) -> Option<usize> {
        let Joined::Ordered { order, keys, .. } = &mut self.how else { return None };
        let known = keys.iter().enumerate().filter_map(|(shard, key)| Some((shard, key.as_ref()?)));
        let (shard, _) = known.min_by(|(_, one), (_, other)| order.compare(one, other))?;
        keys[shard] = None;
        Some(shard)
    }

    /// Counts a row, unless there are as many as there may be.
    pub(super) fn takes_another(&mut self) -> bool {
        let is_within = !matches!(self.how, Joined::Ordered { limit, .. } if self.count >= limit);
        self.count += u64::from(is_within);
        is_within
    }

    /// Nothing more comes: writes the one row, if there is one; gives how many there are.
    pub(super) fn end(&self, out: &mut Vec<u8>) -> Result<u64, Fault> {
        let Joined::One { row, .. } = &self.how else { return Ok(self.count) };
        if self.count != self.is_over.len() as u64 {
            return Err(Fault::Different);
        }
        encode::data_row(out, row.cells()).map_err(|error| Fault::Protocol(error.to_string()))?;
        Ok(1)
    }
}
