//! Encodes numbers and texts: LEB128, and UTF-8 with a length prefix.

use std::sync::Arc;

/// A corrupt frame: a bug of its writer, or damage on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptFrame {
    /// The frame ends too early.
    #[error("data ends too early")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("a number is too long")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A reference to something that was not defined before.
    #[error("reference to undefined data")]
    Reference,
    /// More rows, cells or texts than allowed.
    #[error("data exceeds a limit")]
    Size,
    /// The compressed data is invalid.
    #[error("data cannot be decompressed")]
    Packing,
    /// Written by a later version.
    #[error("unknown kind: written by a later version")]
    Kind,
}

/// An output buffer.
#[derive(Debug, Default)]
pub(super) struct ByteWriter(pub(super) Vec<u8>);

impl ByteWriter {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    /// Zigzag encoding: small numbers of either sign are short.
    pub(super) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63).cast_unsigned());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// An input buffer.
#[derive(Debug)]
pub(super) struct ByteReader<'a>(pub(super) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, CorruptFrame> {
        let (&byte, rest) = self.0.split_first().ok_or(CorruptFrame::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, CorruptFrame> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(CorruptFrame::Number);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CorruptFrame::Number)
    }

    /// Reads a count, and refuses more than `max`.
    pub(super) fn count(&mut self, max: usize) -> Result<usize, CorruptFrame> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > max { Err(CorruptFrame::Size) } else { Ok(count) }
    }

    pub(super) fn signed(&mut self) -> Result<i64, CorruptFrame> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], CorruptFrame> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(CorruptFrame::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, CorruptFrame> {
        let bytes = self.count(self.0.len())?;
        str::from_utf8(self.take(bytes)?).map_err(|_| CorruptFrame::Text)
    }

    /// Reads a text, and sanitizes it to one line.
    pub(super) fn line(&mut self) -> Result<Arc<str>, CorruptFrame> {
        Ok(howdah_collect::sanitized_line(self.text()?).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_and_texts_round_trip(number: u64, signed: i64, text: String) {
            let mut out = ByteWriter::default();
            out.number(number);
            out.signed(signed);
            out.text(&text);
            let mut input = ByteReader(&out.0);
            prop_assert_eq!(input.number().unwrap(), number);
            prop_assert_eq!(input.signed().unwrap(), signed);
            prop_assert_eq!(input.text().unwrap(), text);
            prop_assert!(input.0.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut input = ByteReader(&bytes);
            while input.number().is_ok() {}
            let _ = ByteReader(&bytes).text();
        }
    }

    #[test]
    fn small_numbers_take_one_byte() {
        let mut out = ByteWriter::default();
        out.signed(-1);
        out.signed(63);
        assert_eq!(out.0, [1, 126]);
        assert_eq!(ByteReader(&[0xff; 10]).number(), Err(CorruptFrame::Number));
    }
}
