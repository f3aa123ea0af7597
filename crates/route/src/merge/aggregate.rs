//! Combines the shards' rows of aggregates, one per shard, into one row.

use howdah_wire::{ValueFormat, backend::BackendMessage};

use super::{
    MergeError,
    columns::ResultColumns,
    float,
    value::{Type, Value, oid},
};
use crate::fan_out::Aggregate;

/// A cell of the combined row; `None` (NULL) as long as all shards returned NULL.
type AggregateCell = Option<Vec<u8>>;

/// The row that combines the aggregate rows added so far.
#[derive(Debug)]
pub(super) struct AggregateRow {
    cells: Vec<AggregateCell>,
}

impl AggregateRow {
    /// Creates a combination of no rows. Fails if an aggregate cannot be combined for the type of
    /// its column.
    pub(super) fn new(
        aggregates: &[Aggregate],
        columns: &ResultColumns,
        text_by_byte: bool,
    ) -> Result<Self, MergeError> {
        if columns.types().len() != aggregates.len() {
            return Err(MergeError::Different);
        }
        for (index, (aggregate, of)) in aggregates.iter().zip(columns.types()).enumerate() {
            let is_possible = match aggregate {
                Aggregate::Count => of.oid == oid::INT8,
                Aggregate::Sum => is_summed(of),
                Aggregate::Min | Aggregate::Max => of.is_ordered(text_by_byte),
            };
            if !is_possible {
                let name = columns.name(index);
                let what = match aggregate {
                    Aggregate::Count => "count",
                    Aggregate::Sum => "sum",
                    Aggregate::Min | Aggregate::Max => "order",
                };
                return Err(MergeError::Type { name, what });
            }
        }
        Ok(Self { cells: vec![None; aggregates.len()] })
    }

    pub(super) fn add(
        &mut self,
        aggregates: &[Aggregate],
        columns: &ResultColumns,
        row: &BackendMessage<'_>,
    ) -> Result<(), MergeError> {
        let BackendMessage::DataRow(cells) = row else { return Err(MergeError::Different) };
        if cells.len() != self.cells.len() {
            return Err(MergeError::Different);
        }
        let of = aggregates.iter().zip(columns.types());
        for (index, ((total_cell, cell), (aggregate, of))) in
            self.cells.iter_mut().zip(cells.clone()).zip(of).enumerate()
        {
            let Some(cell) = cell else { continue };
            let Some(total) = total_cell else {
                *total_cell = Some(cell.to_vec());
                continue;
            };
            let read = |cell| of.read(cell).ok_or_else(|| MergeError::Value(columns.name(index)));
            let (one, two) = (read(total)?, read(cell)?);
            let takes_other = match aggregate {
                Aggregate::Min => two.compare(&one).is_lt(),
                Aggregate::Max => two.compare(&one).is_gt(),
                Aggregate::Count | Aggregate::Sum => {
                    *total =
                        sum(of, one, two).ok_or_else(|| MergeError::Range(columns.name(index)))?;
                    false
                }
            };
            if takes_other {
                *total = cell.to_vec();
            }
        }
        Ok(())
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.cells.iter().map(Option::as_deref)
    }
}

/// Whether sums of this type can be added here. Intervals and money are not supported.
fn is_summed(of: Type) -> bool {
    matches!(of.oid, oid::INT8 | oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8)
}

/// Adds two values, and returns the sum in the column's format; `None` if the sum is out of range.
fn sum(of: Type, one: Value, two: Value) -> Option<Vec<u8>> {
    let is_text = of.format == ValueFormat::Text;
    match (one, two) {
        (Value::Integer(one), Value::Integer(two)) => {
            let sum = one.checked_add(two)?;
            Some(if is_text { sum.to_string().into_bytes() } else { sum.to_be_bytes().to_vec() })
        }
        (Value::Numeric(one), Value::Numeric(two)) => {
            let sum = one.plus(&two);
            if is_text { Some(sum.write_text()) } else { sum.write_binary() }
        }
        (Value::Float(one), Value::Float(two)) if of.oid == oid::FLOAT4 => {
            let sum = checked(one as f32 + two as f32, one, two)?;
            Some(if is_text { float::single(sum) } else { sum.to_be_bytes().to_vec() })
        }
        (Value::Float(one), Value::Float(two)) => {
            let sum = checked(one + two, one, two)?;
            Some(if is_text { float::double(sum) } else { sum.to_be_bytes().to_vec() })
        }
        _ => None,
    }
}

/// Returns `sum`, the sum of `one` and `two`; `None` if it is infinite although both are finite.
/// The sign of a NaN is cleared, as PostgreSQL writes it without one.
fn checked<F: Copy + Into<f64> + From<f32>>(sum: F, one: f64, two: f64) -> Option<F> {
    if sum.into().is_nan() {
        return Some(F::from(f32::NAN));
    }
    (!sum.into().is_infinite() || one.is_infinite() || two.is_infinite()).then_some(sum)
}
