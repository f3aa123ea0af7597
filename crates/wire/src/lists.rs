//! Lists inside messages: values, format codes and OIDs, borrowed from the body they came in.
//!
//! Each list is validated when its message is parsed, so iterating cannot fail.

use crate::reader::{BodyReader, DecodeError};

/// The encoding of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueFormat {
    /// The text format, which the type's input and output functions define.
    Text,
    /// The binary format, which the type's receive and send functions define.
    Binary,
}

impl ValueFormat {
    /// Returns the code on the wire: 0 or 1.
    pub const fn code(self) -> u16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }

    pub(crate) fn read(reader: &mut BodyReader<'_>) -> Result<Self, DecodeError> {
        match reader.u16("format code")? {
            0 => Ok(Self::Text),
            1 => Ok(Self::Binary),
            code => Err(reader.bad_value("format code", code)),
        }
    }
}

/// Values in order: the cells of a row, the parameters of a Bind, or the arguments of a function
/// call. `None` is SQL NULL.
///
/// Layout: `count: u16`, then per value `length: i32` (-1 for NULL) and the bytes.
#[derive(Clone)]
pub struct Cells<'a> {
    count: u16,
    rest: BodyReader<'a>,
}

impl<'a> Cells<'a> {
    pub(crate) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of values")?;
        let cells = Self { count, rest: reader.clone() };
        for _ in 0..count {
            reader.value("value")?;
        }
        Ok(cells)
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        self.rest.value("value").ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count.into(), Some(self.count.into()))
    }
}

impl ExactSizeIterator for Cells<'_> {}

/// Format codes in order.
///
/// No code means text for all values, one code applies to all, and otherwise each value has its
/// own. Layout: `count: u16`, then one `u16` each.
#[derive(Clone)]
pub struct Formats<'a> {
    rest: BodyReader<'a>,
}

impl<'a> Formats<'a> {
    pub(crate) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of format codes")?;
        let bytes = reader.bytes("format codes", usize::from(count) * 2)?;
        let formats = Self { rest: BodyReader::new("format codes", bytes) };
        let mut check = formats.rest.clone();
        for _ in 0..count {
            ValueFormat::read(&mut check)?;
        }
        Ok(formats)
    }

    /// Returns the format of the value at `index`, by the rule for none, one and many; `None` if
    /// there are several codes but fewer than `index + 1`.
    pub fn at(&self, index: usize) -> Option<ValueFormat> {
        match self.len() {
            0 => Some(ValueFormat::Text),
            1 => self.clone().next(),
            _ => self.clone().nth(index),
        }
    }
}

impl Iterator for Formats<'_> {
    type Item = ValueFormat;

    fn next(&mut self) -> Option<ValueFormat> {
        ValueFormat::read(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.peek().len() / 2;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Formats<'_> {}

/// OIDs of types in order. 0 means unspecified.
///
/// Layout: `count: u16`, then one `u32` each.
#[derive(Clone)]
pub struct Oids<'a> {
    rest: BodyReader<'a>,
}

impl<'a> Oids<'a> {
    pub(crate) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of types")?;
        let bytes = reader.bytes("types", usize::from(count) * 4)?;
        Ok(Self { rest: BodyReader::new("types", bytes) })
    }
}

impl Iterator for Oids<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.rest.u32("type").ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.peek().len() / 4;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Oids<'_> {}

/// Implements `Debug` for a list by its elements, instead of the bytes that it borrows.
macro_rules! debug_as_list {
    ($($list:ident),*) => {$(
        impl std::fmt::Debug for $list<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_list().entries(self.clone()).finish()
            }
        }
    )*};
}
pub(crate) use debug_as_list;

debug_as_list!(Cells, Formats, Oids);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_apply_to_none_one_or_each() {
        let read = |bytes| Formats::read(&mut BodyReader::new("Bind", bytes)).unwrap();
        assert_eq!(read(b"\0\0").at(7), Some(ValueFormat::Text));
        assert_eq!(read(b"\0\x01\0\x01").at(7), Some(ValueFormat::Binary));
        let two = read(b"\0\x02\0\0\0\x01");
        assert_eq!(
            (two.at(0), two.at(1), two.at(2)),
            (Some(ValueFormat::Text), Some(ValueFormat::Binary), None)
        );
    }

    #[test]
    fn unknown_format_code_is_an_error() {
        let formats = Formats::read(&mut BodyReader::new("Bind", b"\0\x01\0\x02"));
        assert!(matches!(formats, Err(DecodeError::BadValue { value: 2, .. })));
    }

    #[test]
    fn null_cells_differ_from_empty_cells() {
        let mut reader = BodyReader::new("DataRow", b"\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\0");
        let cells = Cells::read(&mut reader).unwrap();
        assert_eq!(cells.len(), 3);
        assert_eq!(cells.collect::<Vec<_>>(), [Some(&b"a"[..]), None, Some(b"")]);
    }
}
