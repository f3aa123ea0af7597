//! The first packets of a connection, which have no tag: the startup packet, requests for
//! encryption, and cancel requests; and the one-byte reply to a request for encryption.
//!
//! Layout: `length: i32` big-endian, counting itself, then `code: u32`. The code is a protocol
//! version (`major << 16 | minor`) or one of the request codes, whose major number is 1234.

use std::fmt;

use crate::{
    reader::{BodyReader, DecodeError},
    writer::{self, EncodeError},
};

/// Maximum length of a startup packet, in bytes, including its length field. PostgreSQL's own limit
/// has the same value but excludes that field.
///
/// Source: `MAX_STARTUP_PACKET_LENGTH` in `pqcomm.h`.
pub const PACKET_BYTES_MAX: u32 = 10_000;

const CANCEL_REQUEST: u32 = 1234 << 16 | 5678;
const SSL_REQUEST: u32 = 1234 << 16 | 5679;
const GSS_ENC_REQUEST: u32 = 1234 << 16 | 5680;

/// A protocol version, as requested by a client or offered by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolVersion {
    /// The major version: 3 for all servers since 7.4.
    pub major: u16,
    /// The minor version: 0, or 2 since PostgreSQL 18. 1 was skipped.
    pub minor: u16,
}

impl ProtocolVersion {
    /// The version that every server and pooler supports.
    pub const V3_0: Self = Self { major: 3, minor: 0 };
    /// The version that PostgreSQL 18 introduced, with cancel keys of up to 256 bytes.
    pub const V3_2: Self = Self { major: 3, minor: 2 };

    /// Returns the code in a startup packet: `major << 16 | minor`.
    pub const fn code(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }

    /// Returns the version of a code. Request codes have the pseudo-version 1234.x.
    pub const fn from_code(code: u32) -> Self {
        Self { major: (code >> 16) as u16, minor: (code & 0xffff) as u16 }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The key that identifies a session in a cancel request: the contents of BackendKeyData and of a
/// CancelRequest.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CancelKey {
    process_id: i32,
    secret: Box<[u8]>,
}

impl CancelKey {
    /// Minimum length of a secret in bytes, and the only length in protocol 3.0.
    pub const SECRET_BYTES_MIN: usize = 4;
    /// Maximum length of a secret in bytes, in protocol 3.2.
    pub const SECRET_BYTES_MAX: usize = 256;

    /// Creates a key from a process id and its secret; `None` if the secret does not have 4 to 256
    /// bytes.
    pub fn new(process_id: i32, secret: &[u8]) -> Option<Self> {
        (Self::SECRET_BYTES_MIN..=Self::SECRET_BYTES_MAX)
            .contains(&secret.len())
            .then(|| Self { process_id, secret: secret.into() })
    }

    /// Returns the backend's process id. Poolers may use any value.
    pub fn process_id(&self) -> i32 {
        self.process_id
    }

    /// Returns the secret, 4 to 256 bytes.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// Reads process id and secret; the secret is the remaining bytes.
    pub(crate) fn read(reader: &mut BodyReader<'_>) -> Result<Self, DecodeError> {
        let process_id = reader.i32("process id")?;
        let secret = reader.remainder();
        let bytes = i64::try_from(secret.len()).unwrap_or(i64::MAX);
        Self::new(process_id, secret).ok_or(reader.bad_value("length of the secret", bytes))
    }
}

impl fmt::Debug for CancelKey {
    /// Shows only the process id; the secret would let any reader of a log cancel statements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelKey").field("process_id", &self.process_id).finish_non_exhaustive()
    }
}

/// A packet without a tag, as a server receives it.
#[derive(Clone, Debug)]
pub enum Packet<'a> {
    /// A client requests a session.
    Startup(Startup<'a>),
    /// A client requests TLS first. Reply with one byte, see [`EncryptionReply`].
    SslRequest,
    /// A client requests GSSAPI encryption first. Reply with one byte.
    GssEncRequest,
    /// A client requests that a session's statement be cancelled. No reply is sent.
    CancelRequest(CancelKey),
}

impl<'a> Packet<'a> {
    /// Splits the packet at the front of `buf` from the bytes after it; `None` while it is
    /// incomplete. A caller that answers a request for encryption must refuse any bytes after it:
    /// they were sent before encryption started.
    ///
    /// # Errors
    ///
    /// The packet is longer than `bytes_max` (usually [`PACKET_BYTES_MAX`]) or malformed; nothing
    /// that follows can be trusted.
    pub fn split(
        buf: &'a [u8],
        bytes_max: u32,
    ) -> Result<Option<(Self, &'a [u8])>, StartupPacketError> {
        let Some(length) = buf.first_chunk() else { return Ok(None) };
        let length = i32::from_be_bytes(*length);
        let bytes = match u32::try_from(length) {
            Ok(bytes) if (8..=bytes_max).contains(&bytes) => bytes as usize,
            _ => return Err(StartupPacketError::Length { length, bytes_max }),
        };
        let Some((packet, rest)) = buf.split_at_checked(bytes) else { return Ok(None) };
        Ok(Some((Self::parse(&packet[4..])?, rest)))
    }

    fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = BodyReader::new("startup packet", body);
        match reader.u32("code")? {
            SSL_REQUEST => reader.finish(Self::SslRequest),
            GSS_ENC_REQUEST => reader.finish(Self::GssEncRequest),
            CANCEL_REQUEST => Ok(Self::CancelRequest(CancelKey::read(&mut reader)?)),
            code => {
                let version = ProtocolVersion::from_code(code);
                let parameters = StartupParameters::read(&mut reader)?;
                Ok(Self::Startup(Startup { version, parameters }))
            }
        }
    }
}

/// The reason why the bytes at the start of a connection are not a valid packet. The client is at
/// fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupPacketError {
    /// The length is out of range.
    #[error("startup packet declares a length of {length}, which is not from 8 to {bytes_max}")]
    Length {
        /// The declared length.
        length: i32,
        /// The maximum length.
        bytes_max: u32,
    },
    /// The contents do not have the layout of the packet that their code names.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

/// A client's request for a session.
///
/// The version may be unsupported: the server decides how to reply to that.
#[derive(Clone, Debug)]
pub struct Startup<'a> {
    /// The requested version.
    pub version: ProtocolVersion,
    /// `user`, `database`, `options`, `replication`, `_pq_.*` and initial settings.
    pub parameters: StartupParameters<'a>,
}

/// Names and values of a startup packet, in the order sent.
#[derive(Clone)]
pub struct StartupParameters<'a> {
    rest: BodyReader<'a>,
}

impl<'a> StartupParameters<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let parameters = Self { rest: reader.clone() };
        while !reader.string("parameter name")?.is_empty() {
            reader.string("parameter value")?;
        }
        reader.finish(parameters)
    }
}

impl<'a> Iterator for StartupParameters<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.rest.string("parameter name").ok().filter(|name| !name.is_empty())?;
        Some((name, self.rest.string("parameter value").ok()?))
    }
}

crate::lists::debug_as_list!(StartupParameters);

/// Appends a startup packet.
///
/// # Errors
///
/// A name or value contains a zero byte, or the packet would have 2 GiB or more.
pub fn startup<'v>(
    buf: &mut Vec<u8>,
    version: ProtocolVersion,
    parameters: impl IntoIterator<Item = (&'v [u8], &'v [u8])>,
) -> Result<(), EncodeError> {
    writer::packet(buf, |packet| {
        packet.u32(version.code());
        for (name, value) in parameters {
            packet.string("parameter name", name)?;
            packet.string("parameter value", value)?;
        }
        packet.u8(0);
        Ok(())
    })
}

/// The complete packet that requests TLS.
pub const SSL_REQUEST_PACKET: [u8; 8] = request(SSL_REQUEST);

/// The complete packet that requests GSSAPI encryption.
pub const GSS_ENC_REQUEST_PACKET: [u8; 8] = request(GSS_ENC_REQUEST);

/// Appends a request to cancel the current statement of the session of `key`. It is sent over a
/// separate connection, which the server closes without a reply.
pub fn cancel_request(buf: &mut Vec<u8>, key: &CancelKey) {
    let bytes = 12 + u32::try_from(key.secret.len()).expect("a secret has at most 256 bytes");
    buf.extend_from_slice(&bytes.to_be_bytes());
    buf.extend_from_slice(&CANCEL_REQUEST.to_be_bytes());
    buf.extend_from_slice(&key.process_id.to_be_bytes());
    buf.extend_from_slice(&key.secret);
}

/// A server's reply to a request for encryption: one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptionReply {
    /// `S`: start the TLS handshake.
    Tls,
    /// `G`: start the GSSAPI handshake.
    Gss,
    /// `N`: not supported. The connection may continue unencrypted.
    Refused,
    /// `E`: the first byte of an ErrorResponse. It was sent unencrypted and unauthenticated: do not
    /// show it to users.
    Error,
}

impl EncryptionReply {
    /// Returns the reply for a byte, if it is valid.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'S' => Some(Self::Tls),
            b'G' => Some(Self::Gss),
            b'N' => Some(Self::Refused),
            b'E' => Some(Self::Error),
            _ => None,
        }
    }

    /// Returns the byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Tls => b'S',
            Self::Gss => b'G',
            Self::Refused => b'N',
            Self::Error => b'E',
        }
    }
}

const fn request(code: u32) -> [u8; 8] {
    let [a, b, c, d] = code.to_be_bytes();
    [0, 0, 0, 8, a, b, c, d]
}

#[cfg(test)]
mod tests;
