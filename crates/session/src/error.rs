//! Why a connection cannot go on.

use howdah_wire::{
    Backend, DecodeError, EncodeError, HeaderError, auth::scram::ScramError,
    startup::ProtocolVersion,
};

/// Why a connection cannot go on. It has to be closed.
///
/// An error that the server *reports* is not one of these: it is an [`crate::Event::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server sent a header that cannot be followed.
    #[error("the server broke the protocol: {0}")]
    Header(#[from] HeaderError),
    /// The server sent a message without the layout of its kind.
    #[error("the server broke the protocol: {0}")]
    Malformed(#[from] DecodeError),
    /// The server sent a message that answers nothing.
    #[error("the server broke the protocol: {message} while {state}")]
    Unexpected {
        /// Kind of the message.
        message: Backend,
        /// What we were waiting for.
        state: &'static str,
    },
    /// The server reports more settings than it can have.
    #[error("the server reports over {bytes_max} bytes of settings")]
    SettingsTooLong {
        /// What we keep at most.
        bytes_max: usize,
    },
    /// The connection ended without a word of farewell, from us or from the server.
    #[error("the server closed the connection unexpectedly")]
    ConnectionLost,
    /// The server wants a password and there is none.
    #[error("the server asks for a password ({method}), and none is given")]
    PasswordMissing {
        /// How the server wants it.
        method: &'static str,
    },
    /// The server wants proof of a kind that we cannot give.
    #[error("the server asks for {method} authentication, which is not supported")]
    UnsupportedAuthentication {
        /// What it asks for, with the mechanisms it offers.
        method: String,
    },
    /// SCRAM failed: the server is not the one meant, or breaks the rules.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The server said that all is well before it proved that it knows the password.
    #[error("the server skipped its own part of authentication")]
    ServerUnproven,
    /// The server does not speak the protocol version asked for.
    #[error("the server does not speak protocol 3.0, but {offered}")]
    ProtocolVersion {
        /// What it speaks.
        offered: ProtocolVersion,
    },
    /// The login cannot be written down: a zero byte in a name, setting or password.
    #[error("the login cannot be sent: {0}")]
    Login(#[from] EncodeError),
}

/// Who has to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server, or what is between it and us: it broke a rule of the protocol, or went away.
    Server,
    /// Whoever wrote the login: it does not fit what the server asks for.
    Login,
    /// Us: the server asks for something legal that we do not do.
    Unsupported,
}

impl Error {
    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Header(_)
            | Self::Malformed(_)
            | Self::Unexpected { .. }
            | Self::SettingsTooLong { .. }
            | Self::ConnectionLost
            | Self::ServerUnproven
            | Self::Scram(_) => Fault::Server,
            Self::PasswordMissing { .. } | Self::Login(_) => Fault::Login,
            Self::UnsupportedAuthentication { .. } | Self::ProtocolVersion { .. } => {
                Fault::Unsupported
            }
        }
    }
}
