//! The order in which rows of several shards are merged.

use std::cmp::Ordering;

use howdah_wire::backend::BackendMessage;

use super::{
    MergeError,
    columns::ResultColumns,
    value::{Type, Value},
};
use crate::fan_out::SortKey;

/// The sort order of rows, once their columns are known.
#[derive(Debug)]
pub(super) struct RowOrder {
    by: Vec<By>,
}

#[derive(Debug)]
struct By {
    index: usize,
    of: Type,
    descending: bool,
    nulls_first: bool,
    name: String,
}

/// The values of a row's sort columns; `None` is NULL.
pub(super) type SortValues = Vec<Option<Value>>;

impl RowOrder {
    pub(super) fn new(
        by: &[SortKey],
        columns: &ResultColumns,
        text_by_byte: bool,
    ) -> Result<Self, MergeError> {
        let by = by.iter().map(|key| {
            let (index, of) = columns.find(&key.column)?;
            let name = columns.name(index);
            if !of.is_ordered(text_by_byte) {
                return Err(MergeError::Type { name, what: "order" });
            }
            let SortKey { descending, nulls_first, .. } = *key;
            Ok(By { index, of, descending, nulls_first, name })
        });
        Ok(Self { by: by.collect::<Result<_, _>>()? })
    }

    pub(super) fn key(&self, row: &BackendMessage<'_>) -> Result<SortValues, MergeError> {
        let BackendMessage::DataRow(cells) = row else { return Err(MergeError::Different) };
        let key = |by: &By| {
            let cell = cells.clone().nth(by.index).ok_or(MergeError::Different)?;
            let read = |cell| by.of.read(cell).ok_or_else(|| MergeError::Value(by.name.clone()));
            cell.map(read).transpose()
        };
        self.by.iter().map(key).collect()
    }

    pub(super) fn compare(&self, one: &SortValues, other: &SortValues) -> Ordering {
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
