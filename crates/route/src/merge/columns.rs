//! [`ResultColumns`]: the columns of a result, which must be the same on all shards.

use howdah_wire::backend::{FieldDescription, RowDescription};

use super::{MergeError, value::Type};
use crate::fan_out::SortColumn;

/// The first OID of user-defined types (`FirstNormalObjectId`). Their OIDs may differ between
/// shards, so all of them count as one type.
const FIRST_OWN: u32 = 16_384;

/// Names, types and formats of a result's columns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResultColumns(Vec<ResultColumn>);

#[derive(Debug, PartialEq, Eq)]
struct ResultColumn {
    name: Vec<u8>,
    of: Type,
}

impl ResultColumns {
    pub(super) fn new(description: RowDescription<'_>) -> Self {
        let column = |field: FieldDescription<'_>| ResultColumn {
            name: field.name.to_vec(),
            of: Type { oid: field.type_oid.min(FIRST_OWN), format: field.format },
        };
        Self(description.map(column).collect())
    }

    pub(super) fn types(&self) -> impl ExactSizeIterator<Item = Type> {
        self.0.iter().map(|column| column.of)
    }

    pub(super) fn name(&self, index: usize) -> String {
        self.0.get(index).map_or(String::new(), |it| String::from_utf8_lossy(&it.name).into_owned())
    }

    /// Returns the index and type of a column.
    pub(super) fn find(&self, column: &SortColumn) -> Result<(usize, Type), MergeError> {
        let index = match column {
            SortColumn::Position(index) => Some(*index),
            SortColumn::Named(name) => {
                let mut found = (0..self.0.len()).filter(|at| self.0[*at].name == name.as_bytes());
                let first = found.next();
                if found.next().is_some() {
                    return Err(MergeError::AmbiguousColumn(name.to_string()));
                }
                first
            }
        };
        let index = index.filter(|index| *index < self.0.len()).ok_or(MergeError::Different)?;
        Ok((index, self.0[index].of))
    }
}
