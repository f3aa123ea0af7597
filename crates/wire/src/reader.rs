//! A cursor over a message body: reads fields from the front, and reports a body that is too short
//! or too long as an error.

/// The reason why a message could not be decoded. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No message of this direction has this tag.
    #[error("no message has the tag {tag}")]
    UnknownTag {
        /// The unknown tag.
        tag: crate::Tag,
    },
    /// The body ends before the end of a field.
    #[error("{message} ends inside {field}")]
    Truncated {
        /// Kind of the message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// A string has no terminating zero byte.
    #[error("{message} has an unterminated {field}")]
    Unterminated {
        /// Kind of the message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("{message} has the invalid value {value} for {field}")]
    BadValue {
        /// Kind of the message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
        /// The value as read.
        value: i64,
    },
    /// Bytes follow the last field.
    #[error("{message} does not end after its last field (extra bytes: {bytes})")]
    TrailingBytes {
        /// Kind of the message.
        message: &'static str,
        /// Number of bytes after the last field.
        bytes: usize,
    },
}

/// Reads fields from the front of a body.
#[derive(Clone, Debug)]
pub(crate) struct BodyReader<'a> {
    rest: &'a [u8],
    message: &'static str,
}

impl<'a> BodyReader<'a> {
    pub(crate) fn new(message: &'static str, body: &'a [u8]) -> Self {
        Self { rest: body, message }
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array(field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn i16(&mut self, field: &'static str) -> Result<i16, DecodeError> {
        self.array(field).map(i16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(self.truncated(field))?;
        self.rest = rest;
        Ok(*array)
    }

    pub(crate) fn bytes(
        &mut self,
        field: &'static str,
        count: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(self.truncated(field))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a string, without its zero byte, which is consumed as well.
    pub(crate) fn string(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let Some(end) = self.rest.iter().position(|byte| *byte == 0) else {
            return Err(DecodeError::Unterminated { message: self.message, field });
        };
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    /// Reads a value after its 32-bit length, where a length of -1 means SQL NULL.
    pub(crate) fn value(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.i32(field)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => self.bytes(field, length).map(Some),
                Err(_) => Err(self.bad_value(field, length)),
            },
        }
    }

    /// Takes the remaining bytes, which may be empty.
    pub(crate) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns the remaining bytes, without consuming them.
    pub(crate) fn peek(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that no bytes remain, and returns `message`.
    pub(crate) fn finish<T>(&self, message: T) -> Result<T, DecodeError> {
        match self.rest.len() {
            0 => Ok(message),
            bytes => Err(DecodeError::TrailingBytes { message: self.message, bytes }),
        }
    }

    pub(crate) fn bad_value(&self, field: &'static str, value: impl Into<i64>) -> DecodeError {
        DecodeError::BadValue { message: self.message, field, value: value.into() }
    }

    fn truncated(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated { message: self.message, field }
    }
}
