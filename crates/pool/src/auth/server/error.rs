//! [`ServerLoginError`]: the reason why a login to a server failed.

use howdah_pool_core::ServerFailure;
use howdah_wire::{
    Backend, DecodeError, EncodeError, HeaderError,
    auth::scram::ScramError,
    backend::{ServerError, encode},
    startup::ProtocolVersion,
};

/// The reason why a login to a server failed. Never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerLoginError {
    /// The server refused the login, or the `connect-query` failed.
    #[error("{message}")]
    Refused {
        /// SQLSTATE of the server's error.
        sqlstate: [u8; 5],
        /// The server's primary message.
        message: String,
        /// The server's ErrorResponse with all its fields.
        verbatim: Vec<u8>,
        /// Whether the requested protocol version may be the reason. If so, the login is retried
        /// with 3.0.
        may_be_version: bool,
    },
    /// The server requests a password, and no secret or key that the method can use is known.
    #[error("the server requests a password ({method}), and none is known for this user")]
    NoSecret {
        /// The requested method.
        method: &'static str,
    },
    /// The server requests a cleartext password on an unprotected connection.
    #[error(
        "the server requests a cleartext password, and the connection to it is neither encrypted nor \
         local: set tls.server.mode to require, or allow-cleartext-password to true"
    )]
    CleartextWithoutTls,
    /// The server requests an unsupported method: GSSAPI, SSPI, or another SASL mechanism.
    #[error("the server requests {method}, which is not supported")]
    Method {
        /// The requested method.
        method: &'static str,
    },
    /// The server accepted the login without proving that it knows the password: it may be an
    /// impostor.
    #[error("the server did not prove that it knows the password")]
    Unproven,
    /// The SCRAM exchange failed.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The server offers a protocol version that is newer than the requested one, or older than
    /// 3.0.
    #[error("the server offers the unsupported protocol version {newest}")]
    Version {
        /// The offered version.
        newest: ProtocolVersion,
    },
    /// The server sent a message that is not allowed at this point of the login.
    #[error("the server sent an unexpected {message:?} message during the login")]
    Unexpected {
        /// The message type.
        message: Backend,
    },
    /// The server reported too many parameters, or sent too much data during a key derivation.
    #[error("the server sent more data than a login needs")]
    LimitExceeded,
    /// A message has an invalid length.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A message is malformed.
    #[error(transparent)]
    Message(#[from] DecodeError),
    /// A text for the server, such as a name, a password or a query, contains a zero byte or is too
    /// long, so that it cannot be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl ServerLoginError {
    pub(super) fn refused(
        error: &ServerError<'_>,
        requested: ProtocolVersion,
        has_started: bool,
    ) -> Self {
        let sqlstate = error.sqlstate().try_into().unwrap_or(*b"XX000");
        let mut verbatim = Vec::new();
        encode::error_response(&mut verbatim, error.fields())
            .expect("fields came from a message, where zero bytes end them");
        Self::Refused {
            sqlstate,
            message: String::from_utf8_lossy(error.message()).into_owned(),
            verbatim,
            may_be_version: requested > ProtocolVersion::V3_0
                && !has_started
                && matches!(&sqlstate, b"0A000" | b"08P01" | b"XX000"),
        }
    }

    /// Whether to retry with [`ProtocolVersion::V3_0`]: the server, or a pooler in front of it, may
    /// support neither a newer version nor negotiation.
    pub fn may_retry_as_3_0(&self) -> bool {
        matches!(self, Self::Refused { may_be_version: true, .. })
    }

    /// Whether the server is starting up, shutting down or full, so that clients may wait.
    pub fn is_transient(&self) -> bool {
        let codes = [b"57P03", b"57P01", b"53300"];
        matches!(self, Self::Refused { sqlstate, .. } if codes.contains(&sqlstate))
    }

    /// Returns the failure to report to the pool.
    pub fn failure(&self) -> ServerFailure {
        let sqlstate = match self {
            Self::Refused { sqlstate, .. } => *sqlstate,
            Self::NoSecret { .. } | Self::CleartextWithoutTls | Self::Method { .. } => *b"28000",
            Self::Scram(_) | Self::Unproven => *b"28P01",
            _ => *b"08P01",
        };
        ServerFailure { sqlstate, message: self.to_string().replace('\0', " ") }
    }
}
