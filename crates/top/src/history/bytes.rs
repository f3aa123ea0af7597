//! Numbers and texts as bytes: LEB128, and UTF-8 behind its length.

use std::sync::Arc;

/// A frame that is not what it should be. Nobody but the file's writer, or its disk, is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It ends too early.
    #[error("it ends too early")]
    Ended,
    /// A number has more than 64 bits.
    #[error("a number is too long")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// It names something that was not there before.
    #[error("it refers to something that is not there")]
    Reference,
    /// It has more rows, cells or texts than can be.
    #[error("it is larger than it may be")]
    Size,
    /// It is packed in a way that cannot be unpacked.
    #[error("it cannot be unpacked")]
    Packing,
    /// A later version wrote it.
    #[error("it is of a kind that this version does not know")]
    Kind,
}

/// Bytes that are being written.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
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

    /// Small numbers of either sign are short.
    pub(super) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63).cast_unsigned());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Bytes that are being read.
#[derive(Debug)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Damage> {
        let (&byte, rest) = self.0.split_first().ok_or(Damage::Ended)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Damage::Number);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damage::Number)
    }

    /// A number of things, of which there cannot be more than `max`.
    pub(super) fn count(&mut self, max: usize) -> Result<usize, Damage> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > max { Err(Damage::Size) } else { Ok(count) }
    }

    pub(super) fn signed(&mut self) -> Result<i64, Damage> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Damage::Ended)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Damage> {
        let bytes = self.count(self.0.len())?;
        str::from_utf8(self.take(bytes)?).map_err(|_| Damage::Text)
    }

    /// A text on one line that is safe to show.
    pub(super) fn line(&mut self) -> Result<Arc<str>, Damage> {
        Ok(howdah_collect::shown_line(self.text()?).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_and_texts_come_back(number: u64, signed: i64, text: String) {
            let mut out = Out::default();
            out.number(number);
            out.signed(signed);
            out.text(&text);
            let mut input = In(&out.0);
            prop_assert_eq!(input.number().unwrap(), number);
            prop_assert_eq!(input.signed().unwrap(), signed);
            prop_assert_eq!(input.text().unwrap(), text);
            prop_assert!(input.0.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut input = In(&bytes);
            while input.number().is_ok() {}
            let _ = In(&bytes).text();
        }
    }

    #[test]
    fn small_numbers_are_short() {
        let mut out = Out::default();
        out.signed(-1);
        out.signed(63);
        assert_eq!(out.0, [1, 126]);
        assert_eq!(In(&[0xff; 10]).number(), Err(Damage::Number));
    }
}
