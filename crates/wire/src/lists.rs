//! Lists inside messages: values, format codes and OIDs, borrowed from the body they came in.
//!
//! Each is checked as a whole when its message is parsed, so that iterating cannot fail.

use crate::read::{DecodeError, Reader};

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// As its type's output function prints it.
    Text,
    /// As its type's send function packs it.
    Binary,
}

impl Format {
    /// The code on the wire: 0 or 1.
    pub const fn code(self) -> u16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u16("format code")? {
            0 => Ok(Self::Text),
            1 => Ok(Self::Binary),
            code => Err(reader.bad_value("format code", code)),
        }
    }
}

/// Values in order: the cells of a row, or the parameters of a Bind. `None` is SQL NULL.
///
/// Layout: `count: u16`, then per value `length: i32` (-1 for NULL) and the bytes.
#[derive(Clone)]
pub struct Cells<'a> {
    count: u16,
    rest: Reader<'a>,
}

impl<'a> Cells<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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
/// None means text for all, one means that one for all, else there is one for each value.
/// Layout: `count: u16`, then one `u16` each.
#[derive(Clone)]
pub struct Formats<'a> {
    rest: Reader<'a>,
}

impl<'a> Formats<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of format codes")?;
        let bytes = reader.bytes("format codes", usize::from(count) * 2)?;
        let formats = Self { rest: Reader::new("format codes", bytes) };
        let mut check = formats.rest.clone();
        for _ in 0..count {
            Format::read(&mut check)?;
        }
        Ok(formats)
    }

    /// The format of the value at `index`, by the rule for none, one and many; `None` if there are
    /// several codes but not that many.
    pub fn of(&self, index: usize) -> Option<Format> {
        match self.len() {
            0 => Some(Format::Text),
            1 => self.clone().next(),
            _ => self.clone().nth(index),
        }
    }
}

impl Iterator for Formats<'_> {
    type Item = Format;

    fn next(&mut self) -> Option<Format> {
        Format::read(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.peek().len() / 2;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Formats<'_> {}

/// Object identifiers in order, of types mostly. 0 stands for "not said".
///
/// Layout: `count: u16`, then one `u32` each.
#[derive(Clone)]
pub struct Oids<'a> {
    rest: Reader<'a>,
}

impl<'a> Oids<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("number of types")?;
        let bytes = reader.bytes("types", usize::from(count) * 4)?;
        Ok(Self { rest: Reader::new("types", bytes) })
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

/// Shows a list as its elements, not as the bytes it borrows.
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
    fn formats_follow_the_rule_of_none_one_and_many() {
        let read = |bytes| Formats::read(&mut Reader::new("Bind", bytes)).unwrap();
        assert_eq!(read(b"\0\0").of(7), Some(Format::Text));
        assert_eq!(read(b"\0\x01\0\x01").of(7), Some(Format::Binary));
        let two = read(b"\0\x02\0\0\0\x01");
        assert_eq!(
            (two.of(0), two.of(1), two.of(2)),
            (Some(Format::Text), Some(Format::Binary), None)
        );
    }

    #[test]
    fn a_format_code_of_two_means_nothing() {
        let formats = Formats::read(&mut Reader::new("Bind", b"\0\x01\0\x02"));
        assert!(matches!(formats, Err(DecodeError::BadValue { value: 2, .. })));
    }

    #[test]
    fn cells_are_exact_and_null_is_not_empty() {
        let mut reader = Reader::new("DataRow", b"\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\0");
        let cells = Cells::read(&mut reader).unwrap();
        assert_eq!(cells.len(), 3);
        assert_eq!(cells.collect::<Vec<_>>(), [Some(&b"a"[..]), None, Some(b"")]);
    }
}
