//! One row of aggregates of every shard becomes one.

use howdah_wire::{Format, backend::Message};

use super::{
    Fault,
    columns::Columns,
    float,
    value::{Type, Value, oid},
};
use crate::fan::Aggregate;

/// A cell of the row to be: NULL as long as all were.
type Cell = Option<Vec<u8>>;

/// Puts the aggregates of one row after another together.
#[derive(Debug)]
pub(super) struct Row {
    cells: Vec<Cell>,
}

impl Row {
    /// Before any row. Fails for what can't be put together, whatever the rows hold.
    pub(super) fn new(
        aggregates: &[Aggregate],
        columns: &Columns,
        text_by_byte: bool,
    ) -> Result<Self, Fault> {
        if columns.types().len() != aggregates.len() {
            return Err(Fault::Different);
        }
        for (place, (aggregate, of)) in aggregates.iter().zip(columns.types()).enumerate() {
            let is_possible = match aggregate {
                Aggregate::Count => of.oid == oid::INT8,
                Aggregate::Sum => is_summed(of),
                Aggregate::Min | Aggregate::Max => of.is_ordered(text_by_byte),
            };
            if !is_possible {
                let name = columns.name(place);
                let what = match aggregate {
                    Aggregate::Count => "count",
                    Aggregate::Sum => "sum",
                    Aggregate::Min | Aggregate::Max => "order",
                };
                return Err(Fault::Type { name, what });
            }
        }
        Ok(Self { cells: vec![None; aggregates.len()] })
    }

    pub(super) fn add(
        &mut self,
        aggregates: &[Aggregate],
        columns: &Columns,
        row: &Message<'_>,
    ) -> Result<(), Fault> {
        let Message::DataRow(cells) = row else { return Err(Fault::Different) };
        if cells.len() != self.cells.len() {
            return Err(Fault::Different);
        }
        let of = aggregates.iter().zip(columns.types());
        for (place, ((so_far, cell), (aggregate, of))) in
            self.cells.iter_mut().zip(cells.clone()).zip(of).enumerate()
        {
            let Some(cell) = cell else { continue };
            let Some(known) = so_far else {
                *so_far = Some(cell.to_vec());
                continue;
            };
            let read = |cell| of.read(cell).ok_or_else(|| Fault::Value(columns.name(place)));
            let (one, two) = (read(known)?, read(cell)?);
            let takes_other = match aggregate {
                Aggregate::Min => two.compare(&one).is_lt(),
                Aggregate::Max => two.compare(&one).is_gt(),
                Aggregate::Count | Aggregate::Sum => {
                    *known = sum(of, one, two).ok_or_else(|| Fault::Range(columns.name(place)))?;
                    false
                }
            };
            if takes_other {
                *known = cell.to_vec();
            }
        }
        Ok(())
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.cells.iter().map(Option::as_deref)
    }
}

/// What `sum` of numbers is. A sum of intervals and of money is not.
fn is_summed(of: Type) -> bool {
    matches!(of.oid, oid::INT8 | oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8)
}

/// The sum of two cells, in the type and format of both. `None` if the type does not go as far.
fn sum(of: Type, one: Value, two: Value) -> Option<Vec<u8>> {
    let is_text = of.format == Format::Text;
    match (one, two) {
        (Value::Whole(one), Value::Whole(two)) => {
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

/// A sum. Of two finite numbers, one that is infinite is out of range; one that is no number has no sign.
fn checked<F: Copy + Into<f64> + From<f32>>(sum: F, one: f64, two: f64) -> Option<F> {
    if sum.into().is_nan() {
        return Some(F::from(f32::NAN));
    }
    (!sum.into().is_infinite() || one.is_infinite() || two.is_infinite()).then_some(sum)
}
