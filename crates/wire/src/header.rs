//! Framing of protocol 3 messages: a tag byte, a big-endian length that counts itself but not the
//! tag, then the body. The first packet of a connection has no tag; see [`crate::startup`].

use std::fmt;

/// The byte that identifies the kind of a message.
///
/// The same byte has different meanings from a frontend and from a backend: see [`crate::Frontend`]
/// and [`crate::Backend`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(
    /// The byte as sent.
    pub u8,
);

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({self})")
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_ascii_graphic() {
            write!(f, "'{}'", char::from(self.0))
        } else {
            write!(f, "{:#04x}", self.0)
        }
    }
}

/// The five bytes before a message body.
///
/// Layout: `tag: u8`, `length: i32` big-endian, where `length` is the body's bytes plus 4.
/// Source: PostgreSQL manual, "Message Formats"; `pq_getmessage` in `pqcomm.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of message.
    pub tag: Tag,
    /// Length of the body in bytes, without the header.
    pub body_bytes: u32,
}

impl Header {
    /// Length of a header in bytes.
    pub const BYTES: usize = 5;

    /// Reads the header at the front of `buf`; `None` while its five bytes have not all arrived.
    ///
    /// # Errors
    ///
    /// The peer declared an impossible length. Nothing after it can be trusted to be a message
    /// boundary, so the connection must be closed.
    pub fn parse(buf: &[u8]) -> Result<Option<Self>, HeaderError> {
        let Some((&[tag, length @ ..], _)) = buf.split_first_chunk::<{ Self::BYTES }>() else {
            return Ok(None);
        };
        let (tag, length) = (Tag(tag), i32::from_be_bytes(length));
        match u32::try_from(length).ok().and_then(|length| length.checked_sub(4)) {
            Some(body_bytes) => Ok(Some(Self { tag, body_bytes })),
            None => Err(HeaderError::TooShort { tag, length }),
        }
    }

    /// Returns the header itself, if its body has at most `body_bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// [`HeaderError::TooLong`]: the peer declared more than the caller is willing to buffer.
    pub fn limited_to(self, body_bytes_max: u32) -> Result<Self, HeaderError> {
        if self.body_bytes <= body_bytes_max {
            return Ok(self);
        }
        let Self { tag, body_bytes } = self;
        Err(HeaderError::TooLong { tag, body_bytes, body_bytes_max })
    }
}

/// The reason why a header is invalid. The connection cannot be resynchronized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The length is less than four, the size of the length field itself, or negative.
    #[error("message {tag} declares a length of {length}, less than the length field itself")]
    TooShort {
        /// Tag of the message.
        tag: Tag,
        /// The declared length.
        length: i32,
    },
    /// The body is longer than the caller's limit.
    #[error("message {tag} declares a body of {body_bytes} bytes; the limit is {body_bytes_max}")]
    TooLong {
        /// Tag of the message.
        tag: Tag,
        /// The declared length of the body.
        body_bytes: u32,
        /// The caller's limit.
        body_bytes_max: u32,
    },
}

/// One complete message with an unparsed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of message.
    pub tag: Tag,
    /// The message without its header.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Splits the message at the front of `buf` from the bytes after it; `None` while it is
    /// incomplete.
    ///
    /// # Errors
    ///
    /// The errors of [`Header::parse`] and [`Header::limited_to`]; the limit applies as soon as the
    /// header has arrived.
    pub fn split(
        buf: &'a [u8],
        body_bytes_max: u32,
    ) -> Result<Option<(Self, &'a [u8])>, HeaderError> {
        let Some(header) = Header::parse(buf)? else { return Ok(None) };
        let header = header.limited_to(body_bytes_max)?;
        let body_bytes = header.body_bytes as usize;
        Ok(buf[Header::BYTES..]
            .split_at_checked(body_bytes)
            .map(|(body, rest)| (Self { tag: header.tag, body }, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_waits_for_its_fifth_byte() {
        let ready = b"Z\0\0\0\x05I";
        for end in 0..5 {
            assert_eq!(Header::parse(&ready[..end]), Ok(None));
        }
        assert_eq!(Header::parse(ready), Ok(Some(Header { tag: Tag(b'Z'), body_bytes: 1 })));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (bytes, length) in [
            (b"Z\0\0\0\x03", 3),
            (b"Z\0\0\0\0", 0),
            (b"Z\xff\xff\xff\xff", -1),
            (b"Z\x80\0\0\0", i32::MIN),
        ] {
            assert_eq!(Header::parse(bytes), Err(HeaderError::TooShort { tag: Tag(b'Z'), length }));
        }
    }

    #[test]
    fn limit_is_checked_before_body_arrives() {
        let header = b"D\x7f\xff\xff\xff";
        let too_long =
            HeaderError::TooLong { tag: Tag(b'D'), body_bytes: 0x7fff_fffb, body_bytes_max: 100 };
        assert_eq!(Frame::split(header, 100), Err(too_long));
    }

    #[test]
    fn consecutive_frames_are_split() {
        let bytes = b"1\0\0\0\x04Z\0\0\0\x05IZ";
        let (first, rest) = Frame::split(bytes, 10).unwrap().unwrap();
        assert_eq!(first, Frame { tag: Tag(b'1'), body: b"" });
        let (second, rest) = Frame::split(rest, 10).unwrap().unwrap();
        assert_eq!(second, Frame { tag: Tag(b'Z'), body: b"I" });
        assert_eq!(Frame::split(rest, 10), Ok(None));
    }
}
