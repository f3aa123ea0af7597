//! Appends messages to a buffer. Lengths are computed from the bytes written, and a message that
//! cannot be encoded leaves the buffer unchanged.

use crate::Tag;

/// The reason why protocol 3 cannot represent a message. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string contains a zero byte, which terminates strings on the wire, or the code of an error
    /// field is zero, which terminates the fields.
    #[error("the {field} contains a zero byte")]
    Nul {
        /// Name of the field.
        field: &'static str,
    },
    /// A list has more elements than its count can represent.
    #[error("{count} {field} exceed the protocol's limit of 65535")]
    TooMany {
        /// Name of the list.
        field: &'static str,
        /// Number of elements.
        count: usize,
    },
    /// A value or a whole message is longer than its 31-bit length can represent.
    #[error("a message or value of {bytes} bytes exceeds the protocol's limit of 2 GiB")]
    TooLong {
        /// Length of the value or message.
        bytes: usize,
    },
}

/// Appends a message with `tag` whose body `fill` writes.
pub(crate) fn message(
    buf: &mut Vec<u8>,
    tag: Tag,
    fill: impl FnOnce(&mut BodyWriter<'_>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = buf.len();
    buf.push(tag.0);
    packet(buf, fill).inspect_err(|_| buf.truncate(start))
}

/// Appends a message with `tag` and no body.
pub(crate) fn empty(buf: &mut Vec<u8>, tag: Tag) {
    buf.extend_from_slice(&[tag.0, 0, 0, 0, 4]);
}

/// Appends the bytes that `fill` writes after a length that counts itself: a startup packet, or the
/// rest of a message whose tag was already written.
pub(crate) fn packet(
    buf: &mut Vec<u8>,
    fill: impl FnOnce(&mut BodyWriter<'_>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = buf.len();
    buf.extend_from_slice(&[0; 4]);
    let written = fill(&mut BodyWriter(buf)).and_then(|()| length(buf.len() - start));
    match written {
        Ok(length) => {
            buf[start..start + 4].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            buf.truncate(start);
            Err(error)
        }
    }
}

/// Writes the fields of a body.
pub(crate) struct BodyWriter<'a>(&'a mut Vec<u8>);

impl BodyWriter<'_> {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn i16(&mut self, value: i16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes a string and its terminating zero byte.
    pub(crate) fn string(&mut self, field: &'static str, text: &[u8]) -> Result<(), EncodeError> {
        if text.contains(&0) {
            return Err(EncodeError::Nul { field });
        }
        self.bytes(text);
        self.u8(0);
        Ok(())
    }

    /// Writes a value after its 32-bit length; -1 represents SQL NULL.
    pub(crate) fn value(&mut self, value: Option<&[u8]>) -> Result<(), EncodeError> {
        match value {
            None => self.i32(-1),
            Some(bytes) => {
                self.i32(length(bytes.len())?);
                self.bytes(bytes);
            }
        }
        Ok(())
    }

    /// Writes elements after their 16-bit count, each by `each`.
    pub(crate) fn list<T>(
        &mut self,
        field: &'static str,
        elements: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = self.0.len();
        self.u16(0);
        let mut count = 0_usize;
        for element in elements {
            each(self, element)?;
            count += 1;
        }
        let written = u16::try_from(count).map_err(|_| EncodeError::TooMany { field, count })?;
        self.0[start..start + 2].copy_from_slice(&written.to_be_bytes());
        Ok(())
    }
}

fn length(bytes: usize) -> Result<i32, EncodeError> {
    i32::try_from(bytes).map_err(|_| EncodeError::TooLong { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_message_leaves_buffer_unchanged() {
        let mut buf = b"before".to_vec();
        let nul = message(&mut buf, Tag(b'Q'), |body| body.string("query", b"a\0b"));
        assert_eq!(nul, Err(EncodeError::Nul { field: "query" }));
        assert_eq!(buf, b"before");

        let many = message(&mut buf, Tag(b'P'), |body| {
            body.list("types", 0..70_000_u32, |body, oid| {
                body.u32(oid);
                Ok(())
            })
        });
        assert_eq!(many, Err(EncodeError::TooMany { field: "types", count: 70_000 }));
        assert_eq!(buf, b"before");
    }
}
