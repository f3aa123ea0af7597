//! [`ByteWriter`]: appends encoded values to a buffer.

use crate::zigzag;

/// Appends encoded values to a buffer.
pub trait ByteWriter {
    /// Appends a varint: one byte for numbers below 128, at most ten bytes.
    fn write_varint(&mut self, value: u64);

    /// Appends the length of a text in bytes, then the text.
    fn write_text(&mut self, text: &str);

    /// Appends a signed number in zigzag encoding.
    #[inline]
    fn write_signed(&mut self, value: i64) {
        self.write_varint(zigzag(value));
    }

    /// Appends the number of entries that follow.
    #[inline]
    fn write_count(&mut self, count: usize) {
        self.write_varint(count as u64);
    }
}

impl ByteWriter for Vec<u8> {
    #[inline]
    fn write_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn write_text(&mut self, text: &str) {
        self.write_count(text.len());
        self.extend_from_slice(text.as_bytes());
    }
}
