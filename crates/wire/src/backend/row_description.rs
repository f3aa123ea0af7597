//! Descriptions of the columns of a result.

use crate::{
    ValueFormat,
    reader::{BodyReader, DecodeError},
};

/// Descriptions of the columns of a result. Iterating yields [`FieldDescription`]s.
///
/// Layout: `count: u16`, then each field.
#[derive(Clone)]
pub struct RowDescription<'a> {
    count: u16,
    rest: BodyReader<'a>,
}

/// The description of one column.
///
/// Layout: name, `table: u32`, `column: i16`, `type_oid: u32`, `type_bytes: i16`,
/// `type_modifier: i32`, `format: u16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDescription<'a> {
    /// Name of the column.
    pub name: &'a [u8],
    /// OID of the column's table; 0 if it is not a table's column.
    pub table: u32,
    /// The column's number in that table; 0 if it is not a table's column.
    pub column: i16,
    /// OID of the column's type in `pg_type`.
    pub type_oid: u32,
    /// Length of the type's values in bytes; negative for types of varying length.
    pub type_bytes: i16,
    /// Type modifier, which encodes for example the length in `varchar(20)`; -1 for none.
    pub type_modifier: i32,
    /// Format of the values. In the description of a statement the formats are not known yet, and
    /// this is text.
    pub format: ValueFormat,
}

impl<'a> RowDescription<'a> {
    pub(super) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of columns")?;
        let fields = Self { count, rest: reader.clone() };
        for _ in 0..count {
            FieldDescription::read(reader)?;
        }
        Ok(fields)
    }
}

impl<'a> Iterator for RowDescription<'a> {
    type Item = FieldDescription<'a>;

    fn next(&mut self) -> Option<FieldDescription<'a>> {
        self.count = self.count.checked_sub(1)?;
        FieldDescription::read(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count.into(), Some(self.count.into()))
    }
}

crate::lists::debug_as_list!(RowDescription);

impl ExactSizeIterator for RowDescription<'_> {}

impl<'a> FieldDescription<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.string("column name")?,
            table: reader.u32("table")?,
            column: reader.i16("column number")?,
            type_oid: reader.u32("type")?,
            type_bytes: reader.i16("type size")?,
            type_modifier: reader.i32("type modifier")?,
            format: ValueFormat::read(reader)?,
        })
    }
}
