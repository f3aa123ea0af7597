//! Rows of every shard that are ordered there, in the same order over all.

use std::cmp::Ordering;

use howdah_wire::backend::Message;

use super::{
    Fault,
    columns::Columns,
    value::{Type, Value},
};
use crate::fan::SortKey;

/// What rows are ordered by, once their columns are known.
#[derive(Debug)]
pub(super) struct Order {
    by: Vec<By>,
}

#[derive(Debug)]
struct By {
    place: usize,
    of: Type,
    descending: bool,
    nulls_first: bool,
    name: String,
}

/// What one row is ordered by.
pub(super) type RowKey = Vec<Option<Value>>;

impl Order {
    pub(super) fn new(
        by: &[SortKey],
        columns: &Columns,
        text_by_byte: bool,
    ) -> Result<Self, Fault> {
        let by = by.iter().map(|key| {
            let (place, of) = columns.find(&key.column)?;
            let name = columns.name(place);
            if !of.is_ordered(text_by_byte) {
                return Err(Fault::Type { name, what: "order" });
            }
            let SortKey { descending, nulls_first, .. } = *key;
            Ok(By { place, of, descending, nulls_first, name })
        });
        Ok(Self { by: by.collect::<Result<_, _>>()? })
    }

    pub(super) fn key(&self, row: &Message<'_>) -> Result<RowKey, Fault> {
        let Message::DataRow(cells) = row else { return Err(Fault::Different) };
        let key = |by: &By| {
            let cell = cells.clone().nth(by.place).ok_or(Fault::Different)?;
            let read = |cell| by.of.read(cell).ok_or_else(|| Fault::Value(by.name.clone()));
            cell.map(read).transpose()
        };
        self.by.iter().map(key).collect()
    }

    pub(super) fn compare(&self, one: &RowKey, other: &RowKey) -> Ordering {
        let of_column =
            |(by, (one, other)): (&By, (&Option<Value>, &Option<Value>))| match (one, other) {
                (None, None) => Ordering::Equal,
                (None, Some(_)) if by.nulls_first => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) if by.nulls_first => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(one), Some(other)) if by.descending => other.compare(one),
                (Some(one), Some(other)) => one.compare(other),
            };
        let columns = self.by.iter().zip(one.iter().zip(other));
        columns.map(of_column).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}
