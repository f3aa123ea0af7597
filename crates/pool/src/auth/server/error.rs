//! [`ServerLoginError`]: why we are not let into a server.

use howdah_wire::{
    Backend, DecodeError, EncodeError, HeaderError,
    auth::scram::ScramError,
    backend::{ServerError, encode},
    startup::ProtocolVersion,
};

use crate::ServerFailure;

/// Why we are not let into a server. It never shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerLoginError {
    /// The server says no.
    #[error("{message}")]
    Refused {
        /// Its code.
        sqlstate: [u8; 5],
        /// Its words.
        message: String,
        /// Its ErrorResponse, as it came: what a client of this pool is given.
        verbatim: Vec<u8>,
        /// The protocol may be what it does not like.
        may_be_version: bool,
    },
    /// It wants a password, and we have none for this user, nor keys that fit.
    #[error("the server asks for a password ({method}), and none is known for this user")]
    NoSecret {
        /// What it asks for.
        method: &'static str,
    },
    /// It wants the password in the clear on a connection without protection.
    #[error(
        "the server asks for the password in the clear, and the connection to it is neither encrypted nor \
         local: set tls.server.mode to require, or allow-cleartext-password to true"
    )]
    PlainWithoutTls,
    /// It wants what we do not have: GSSAPI, SSPI, another SASL mechanism.
    #[error("the server asks for {method}, which is not there")]
    Method {
        /// What it asks for.
        method: &'static str,
    },
    /// It let us in without having shown that it knows the password: somebody else may be there.
    #[error("the server did not prove that it knows the password")]
    Unproven,
    /// The exchange failed.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// It offers a protocol that we did not ask for.
    #[error("the server wants to speak protocol {newest}")]
    Version {
        /// Which.
        newest: ProtocolVersion,
    },
    /// It says what has no place in a login.
    #[error("the server sent {message:?} in the middle of the login")]
    Unexpected {
        /// What.
        message: Backend,
    },
    /// It says more than a login needs.
    #[error("the server sends more than a login needs")]
    TooMuch,
    /// A message has no proper length.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A message has another layout.
    #[error(transparent)]
    Message(#[from] DecodeError),
    /// A name or value of ours cannot be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl ServerLoginError {
    pub(super) fn refused(
        error: &ServerError<'_>,
        asked: ProtocolVersion,
        has_begun: bool,
    ) -> Self {
        let sqlstate = error.sqlstate().try_into().unwrap_or(*b"XX000");
        let mut verbatim = Vec::new();
        encode::error_response(&mut verbatim, error.fields())
            .expect("fields came from a message, where zero bytes end them");
        Self::Refused {
            sqlstate,
            message: String::from_utf8_lossy(error.message()).into_owned(),
            verbatim,
            may_be_version: asked > ProtocolVersion::V3_0
                && !has_begun
                && matches!(&sqlstate, b"0A000" | b"08P01" | b"XX000"),
        }
    }

    /// Whether it is worth trying again with [`ProtocolVersion::V3_0`]: a server or pooler may know
    /// nothing newer, and not how to say so.
    pub fn may_retry_as_3_0(&self) -> bool {
        matches!(self, Self::Refused { may_be_version: true, .. })
    }

    /// Whether the server is only not ready yet, or about to end, or full: clients may wait.
    pub fn is_transient(&self) -> bool {
        let codes = [b"57P03", b"57P01", b"53300"];
        matches!(self, Self::Refused { sqlstate, .. } if codes.contains(&sqlstate))
    }

    /// What the pool makes of it.
    pub fn failure(&self) -> ServerFailure {
        let sqlstate = match self {
            Self::Refused { sqlstate, .. } => *sqlstate,
            Self::NoSecret { .. } | Self::PlainWithoutTls | Self::Method { .. } => *b"28000",
            Self::Scram(_) | Self::Unproven => *b"28P01",
            _ => *b"08P01",
        };
        ServerFailure { sqlstate, message: self.to_string().replace('\0', " ") }
    }
}
