//! A minimal protocol-buffers encoder: varints, fixed-size numbers, strings, packed lists and
//! nested messages. It does not decode.
//!
//! A few schemas of a dozen messages each do not justify a code generator and its runtime. Callers
//! pass field numbers and name the schema's fields in comments.
//!
//! Source: protobuf.dev, "Encoding".

use crate::ByteWriter as _;

/// A message being written.
#[derive(Debug, Default)]
pub struct ProtobufMessage {
    bytes: Vec<u8>,
}

/// The wire type of a field: the low three bits of its tag.
#[derive(Clone, Copy)]
enum ProtobufWireType {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
}

impl ProtobufMessage {
    /// Returns the encoded message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends a varint: `int32`, `uint32`, `uint64`, `bool` or `enum`.
    pub fn uint(&mut self, field: u32, value: u64) -> &mut Self {
        self.tag(field, ProtobufWireType::Varint);
        self.bytes.write_varint(value);
        self
    }

    /// Appends a `sint32` or `sint64`, zigzag-encoded so that small negative numbers are short.
    pub fn sint(&mut self, field: u32, value: i64) -> &mut Self {
        self.uint(field, crate::zigzag(value))
    }

    /// Appends a 64-bit integer of fixed size, `fixed64`, little-endian.
    pub fn fixed64(&mut self, field: u32, value: u64) -> &mut Self {
        self.tag(field, ProtobufWireType::Fixed64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a 64-bit float, `double`, little-endian.
    pub fn double(&mut self, field: u32, value: f64) -> &mut Self {
        self.fixed64(field, value.to_bits())
    }

    /// Appends a length-delimited text, `string`.
    pub fn string(&mut self, field: u32, value: &str) -> &mut Self {
        self.bytes(field, value.as_bytes())
    }

    /// Appends a nested message, which `write` fills.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.bytes)
    }

    /// Appends a packed list of varints.
    pub fn packed_uint(&mut self, field: u32, values: impl Iterator<Item = u64>) -> &mut Self {
        let mut inner = Vec::new();
        values.for_each(|value| inner.write_varint(value));
        self.bytes(field, &inner)
    }

    /// Appends `bytes`, or an already encoded message.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.tag(field, ProtobufWireType::Bytes);
        self.bytes.write_count(value.len());
        self.bytes.extend_from_slice(value);
        self
    }

    fn tag(&mut self, field: u32, wire: ProtobufWireType) {
        self.bytes.write_varint(u64::from(field) << 3 | wire as u64);
    }

    /// Appends the message with its length prefix, as in a stream of messages.
    pub fn delimited_into(self, out: &mut Vec<u8>) {
        out.write_count(self.bytes.len());
        out.extend_from_slice(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specification_examples_encode() {
        let mut message = ProtobufMessage::default();
        message.uint(1, 150).string(2, "testing").message(3, |inner| {
            inner.uint(1, 150);
        });
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01";
        assert_eq!(message.into_bytes(), expected);
    }

    #[test]
    fn packed_lists_and_delimited_messages_encode() {
        let mut message = ProtobufMessage::default();
        message.packed_uint(6, [3, 270, 86_942].into_iter()).sint(4, -2).double(1, 1.0);
        let body = b"\x32\x06\x03\x8e\x02\x9e\xa7\x05\x20\x03\x09\0\0\0\0\0\0\xf0\x3f";
        let mut framed = Vec::new();
        message.delimited_into(&mut framed);
        assert_eq!(framed, [&[19][..], body].concat());
    }
}
