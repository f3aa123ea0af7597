//! Numbers and texts in an image's body: written short, read within bounds.

use super::body::BodyError;

/// Writes `value` in groups of seven bits, the lowest first; the high bit says that more follow
/// (LEB128).
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
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
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What is left to read of a body.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, BodyError> {
        let (&byte, rest) = self.bytes.split_first().ok_or(BodyError::Cut)?;
        self.bytes = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, BodyError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(BodyError::Number);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(BodyError::Number)
    }

    pub(super) fn word(&mut self) -> Result<u32, BodyError> {
        u32::try_from(self.number()?).map_err(|_| BodyError::Number)
    }

    /// A number of things that take a byte each or more, so that a wrong one cannot make us reserve
    /// more memory than there are bytes.
    pub(super) fn count(&mut self) -> Result<usize, BodyError> {
        let count = self.number()?;
        usize::try_from(count).ok().filter(|&count| count <= self.bytes.len()).ok_or(BodyError::Cut)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BodyError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(BodyError::Cut)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<String, BodyError> {
        let count = self.count()?;
        let bytes = self.take(count)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| BodyError::Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(value: u64, text: String) {
            let mut out = Vec::new();
            put(&mut out, value);
            put_text(&mut out, &text);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.number().unwrap(), value);
            prop_assert_eq!(reader.text().unwrap(), text);
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        assert!(matches!(Reader::new(&[0xff; 10]).number(), Err(BodyError::Number)));
        let mut largest = Vec::new();
        put(&mut largest, u64::MAX);
        assert_eq!(Reader::new(&largest).number().ok(), Some(u64::MAX));
    }
}
