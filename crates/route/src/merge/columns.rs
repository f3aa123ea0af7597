//! [`Columns`]: what the shards say that their rows are like, which has to be the same.

use howdah_wire::backend::{Field, RowDescription};

use super::{Fault, value::Type};
use crate::fan::SortColumn;

/// From this OID on, types are a database's own, and may have another on each shard.
const FIRST_OWN: u32 = 16_384;

/// The columns of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns(Vec<Column>);

#[derive(Debug, PartialEq, Eq)]
struct Column {
    name: Vec<u8>,
    of: Type,
}

impl Columns {
    pub(super) fn new(description: RowDescription<'_>) -> Self {
        let column = |field: Field<'_>| Column {
            name: field.name.to_vec(),
            of: Type { oid: field.type_oid.min(FIRST_OWN), format: field.format },
        };
        Self(description.map(column).collect())
    }

    pub(super) fn types(&self) -> impl ExactSizeIterator<Item = Type> {
        self.0.iter().map(|column| column.of)
    }

    pub(super) fn name(&self, place: usize) -> String {
        self.0.get(place).map_or(String::new(), |it| String::from_utf8_lossy(&it.name).into_owned())
    }

    /// Which column is meant, and what it holds.
    pub(super) fn find(&self, wanted: &SortColumn) -> Result<(usize, Type), Fault> {
        let place = match wanted {
            SortColumn::Position(place) => Some(*place),
            SortColumn::Named(name) => {
                let mut found = (0..self.0.len()).filter(|at| self.0[*at].name == name.as_bytes());
                let first = found.next();
                if found.next().is_some() {
                    return Err(Fault::Unclear(name.to_string()));
                }
                first
            }
        };
        let place = place.filter(|place| *place < self.0.len()).ok_or(Fault::Different)?;
        Ok((place, self.0[place].of))
    }
}
