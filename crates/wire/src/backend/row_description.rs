//! What the columns of a result are.

use crate::{
    Format,
    read::{DecodeError, Reader},
};

/// The columns of the rows to come, in order. Iterating gives [`Field`]s.
///
/// Layout: `count: u16`, then each field.
#[derive(Clone)]
pub struct RowDescription<'a> {
    count: u16,
    rest: Reader<'a>,
}

/// One column.
///
/// Layout: name, `table: u32`, `column: i16`, `type_oid: u32`, `type_bytes: i16`,
/// `type_modifier: i32`, `format: u16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Name of the column.
    pub name: &'a [u8],
    /// OID of the table it is a column of; 0 if of none.
    pub table: u32,
    /// Its number within that table; 0 if of none.
    pub column: i16,
    /// OID of its type.
    pub type_oid: u32,
    /// Bytes of a value of that type; negative for types of varying width.
    pub type_bytes: i16,
    /// Modifier of the type, such as the length of `varchar(20)`; -1 for none.
    pub type_modifier: i32,
    /// Format of its values. When a statement is described its formats are not settled yet, and
    /// this is text.
    pub format: Format,
}

impl<'a> RowDescription<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of columns")?;
        let fields = Self { count, rest: reader.clone() };
        for _ in 0..count {
            Field::read(reader)?;
        }
        Ok(fields)
    }
}

impl<'a> Iterator for RowDescription<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        self.count = self.count.checked_sub(1)?;
        Field::read(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count.into(), Some(self.count.into()))
    }
}

crate::lists::debug_as_list!(RowDescription);

impl ExactSizeIterator for RowDescription<'_> {}

impl<'a> Field<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.string("column name")?,
            table: reader.u32("table")?,
            column: reader.i16("column number")?,
            type_oid: reader.u32("type")?,
            type_bytes: reader.i16("type size")?,
            type_modifier: reader.i32("type modifier")?,
            format: Format::read(reader)?,
        })
    }
}
