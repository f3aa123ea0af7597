//! [`ByteReader`]: reads encoded values, with bounds checks.

use crate::unzigzag;

/// The reason why bytes could not be decoded.
///
/// The enum is exhaustive, so that a format with its own error type must convert each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CodecError {
    /// The data ends inside a value, or before the announced number of entries.
    #[error("the data is truncated")]
    Truncated,
    /// A number has more bits than its type.
    #[error("a number has more bits than its type")]
    NumberTooLarge,
    /// A count exceeds the limit passed to [`ByteReader::count_up_to`].
    #[error("the number of entries or bytes exceeds its limit")]
    CountTooLarge,
    /// A text is not UTF-8.
    #[error("a text is not valid UTF-8")]
    InvalidUtf8,
}

/// Reads values from the front of a slice. After an error, the reader's position is unspecified.
#[derive(Clone, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of bytes left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] if no byte is left.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, CodecError> {
        let (&byte, rest) = self.rest.split_first().ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] if fewer bytes are left.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] if fewer bytes are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Reads a varint. An encoding that is longer than necessary, with zeros at its end, is
    /// accepted.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`], or [`CodecError::NumberTooLarge`] if the varint has more than 64
    /// bits or ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CodecError::NumberTooLarge)
    }

    /// Reads a varint into a narrower type.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::varint`]; [`CodecError::NumberTooLarge`] also if the number does not
    /// fit into `T`.
    #[inline]
    pub fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T, CodecError> {
        self.varint()?.try_into().map_err(|_| CodecError::NumberTooLarge)
    }

    /// Reads a signed number in zigzag encoding.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::varint`].
    #[inline]
    pub fn signed(&mut self) -> Result<i64, CodecError> {
        self.varint().map(unzigzag)
    }

    /// Reads the number of entries that follow, each of at least one byte. The result is at most
    /// the number of bytes left, so callers may allocate memory for that many entries.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::varint`]; [`CodecError::Truncated`] also if too few bytes are left for
    /// that many entries.
    pub fn count(&mut self) -> Result<usize, CodecError> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > self.rest.len() { Err(CodecError::Truncated) } else { Ok(count) }
    }

    /// Reads the number of entries that follow, at most `max`; an entry may have no bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::varint`]; [`CodecError::CountTooLarge`] if the number is above `max`.
    pub fn count_up_to(&mut self, max: usize) -> Result<usize, CodecError> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > max { Err(CodecError::CountTooLarge) } else { Ok(count) }
    }

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::varint`]; [`CodecError::Truncated`] also if the text is incomplete;
    /// [`CodecError::InvalidUtf8`] if it is not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, CodecError> {
        let count = self.count()?;
        str::from_utf8(self.bytes(count)?).map_err(|_| CodecError::InvalidUtf8)
    }
}
