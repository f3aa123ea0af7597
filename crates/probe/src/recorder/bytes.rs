//! Encodes and decodes values: numbers and texts in the encoding of [`howdah_codec`], lists as
//! their count and then their items.
//!
//! A type lists its fields in order once, with [`packed!`]; encoder and decoder follow from that
//! and cannot differ.

use howdah_codec::{ByteReader, ByteWriter as _, CodecError};

/// The reason why a record cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RecordDecodeError {
    /// The record ends too early.
    #[error("the record is truncated")]
    Truncated,
    /// A number is out of range.
    #[error("a number in the record is out of range")]
    NumberTooLarge,
    /// A text is not UTF-8.
    #[error("a text in the record is not UTF-8")]
    InvalidUtf8,
    /// The record or a value in it is of a kind that this version does not know; a later one wrote
    /// it.
    #[error("the record has an unknown kind or value: it was written by a later version")]
    UnknownKind,
}

impl From<CodecError> for RecordDecodeError {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Truncated => Self::Truncated,
            CodecError::NumberTooLarge | CodecError::CountTooLarge => Self::NumberTooLarge,
            CodecError::InvalidUtf8 => Self::InvalidUtf8,
        }
    }
}

/// A value that can be part of a record.
pub(super) trait Packed: Sized {
    /// Appends the encoded value.
    fn pack(&self, out: &mut Vec<u8>);

    /// Decodes a value from the front of `input`.
    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError>;
}

/// A structure is encoded as its fields, in order.
macro_rules! packed {
    ($($name:ident { $($field:ident),* $(,)? })*) => { $(
        impl $crate::recorder::bytes::Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                $( self.$field.pack(out); )*
            }

            fn unpack(input: &mut howdah_codec::ByteReader<'_>) -> Result<Self, $crate::recorder::bytes::RecordDecodeError> {
                Ok(Self { $( $field: $crate::recorder::bytes::Packed::unpack(input)?, )* })
            }
        }
    )* };
}

/// A fieldless enum is encoded as the index in its list `ALL`.
macro_rules! packed_words {
    ($($name:ty)*) => { $(
        impl $crate::recorder::bytes::Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                let index = Self::ALL.iter().position(|variant| variant == self);
                (index.expect("all variants are in ALL") as u64).pack(out);
            }

            fn unpack(input: &mut howdah_codec::ByteReader<'_>) -> Result<Self, $crate::recorder::bytes::RecordDecodeError> {
                let index = usize::try_from(input.varint()?).unwrap_or(usize::MAX);
                Self::ALL.get(index).copied().ok_or($crate::recorder::bytes::RecordDecodeError::UnknownKind)
            }
        }
    )* };
}

pub(super) use {packed, packed_words};

impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_varint(*self);
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        Ok(input.varint()?)
    }
}

impl Packed for u32 {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_varint((*self).into());
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        Ok(input.narrow()?)
    }
}

impl Packed for i64 {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_signed(*self);
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        Ok(input.signed()?)
    }
}

impl Packed for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_varint((*self).into());
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        Ok(input.varint()? != 0)
    }
}

/// Control characters are replaced on decoding, so that texts are safe to print on one line.
impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_text(self);
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        Ok(input.text()?.chars().map(printable).collect())
    }
}

impl<T: Packed> Packed for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        if let Some(value) = self {
            value.pack(out);
        }
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        bool::unpack(input)?.then(|| T::unpack(input)).transpose()
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        out.write_count(self.len());
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        // Every item has at least one byte.
        (0..input.count()?).map(|_| T::unpack(input)).collect()
    }
}

impl<A: Packed, B: Packed> Packed for (A, B) {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
        self.1.pack(out);
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        Ok((A::unpack(input)?, B::unpack(input)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip<T: Packed>(value: &T) -> T {
        let mut out = Vec::new();
        value.pack(&mut out);
        let mut input = ByteReader::new(&out);
        let read = T::unpack(&mut input).unwrap();
        assert!(input.is_empty());
        read
    }

    proptest! {
        #[test]
        fn values_round_trip(number: u64, signed: i64, words in prop::collection::vec("[ -~]*", 0..4), some: Option<u32>) {
            prop_assert_eq!(round_trip(&number), number);
            prop_assert_eq!(round_trip(&signed), signed);
            prop_assert_eq!(round_trip(&words), words);
            prop_assert_eq!(round_trip(&(some, number)), (some, number));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = Vec::<(String, Option<u64>)>::unpack(&mut ByteReader::new(&bytes));
        }
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(round_trip(&"a\x1b[2Jb".to_owned()), "a\u{fffd}[2Jb");
        assert_eq!(
            u32::unpack(&mut ByteReader::new(&[0xff; 9])),
            Err(RecordDecodeError::Truncated)
        );
        assert_eq!(
            u64::unpack(&mut ByteReader::new(&[0xff; 10])),
            Err(RecordDecodeError::NumberTooLarge)
        );
    }
}
