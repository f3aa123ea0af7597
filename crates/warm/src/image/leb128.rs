//! Numbers and texts in an image's body, encoded as LEB128 and read with bounds checks.

use super::body::BodyError;

/// Writes `value` in groups of seven bits, lowest first; the high bit marks that more follow
/// (LEB128).
pub(super) fn write_number(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Writes a text: its length in bytes, then UTF-8.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads values from the front of a body.
pub(super) struct ImageReader<'a> {
    bytes: &'a [u8],
}

impl<'a> ImageReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, BodyError> {
        let (&byte, rest) = self.bytes.split_first().ok_or(BodyError::Truncated)?;
        self.bytes = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, BodyError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(BodyError::NumberOutOfRange);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(BodyError::NumberOutOfRange)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BodyError> {
        u32::try_from(self.number()?).map_err(|_| BodyError::NumberOutOfRange)
    }

    /// Reads a count of items of at least one byte each, so that a wrong count cannot cause an
    /// allocation larger than the data.
    pub(super) fn count(&mut self) -> Result<usize, BodyError> {
        let count = self.number()?;
        usize::try_from(count)
            .ok()
            .filter(|&count| count <= self.bytes.len())
            .ok_or(BodyError::Truncated)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], BodyError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(BodyError::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<String, BodyError> {
        let count = self.count()?;
        let bytes = self.bytes(count)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| BodyError::InvalidUtf8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_and_texts_round_trip(value: u64, text: String) {
            let mut out = Vec::new();
            write_number(&mut out, value);
            write_text(&mut out, &text);
            let mut reader = ImageReader::new(&out);
            prop_assert_eq!(reader.number().unwrap(), value);
            prop_assert_eq!(reader.text().unwrap(), text);
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn number_over_64_bits_is_rejected() {
        assert!(matches!(ImageReader::new(&[0xff; 10]).number(), Err(BodyError::NumberOutOfRange)));
        let mut largest = Vec::new();
        write_number(&mut largest, u64::MAX);
        assert_eq!(ImageReader::new(&largest).number().ok(), Some(u64::MAX));
    }
}
