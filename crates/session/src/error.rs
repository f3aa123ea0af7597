//! [`SessionError`]: the reason why a connection cannot continue.

use howdah_wire::{
    Backend, DecodeError, EncodeError, HeaderError, auth::scram::ScramError,
    startup::ProtocolVersion,
};

/// The reason why a connection cannot continue. It must be closed.
///
/// An error that the server *reports* is not one of these: it is an [`crate::SessionEvent::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The server sent an invalid header, or one that declares too long a message.
    #[error("the server sent an invalid message header: {0}")]
    Header(#[from] HeaderError),
    /// The server sent a message with an unknown tag or an invalid layout.
    #[error("the server sent a malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// The server sent a message that is not valid in the current state, such as a reply without a
    /// request.
    #[error("the server sent an unexpected {message} message {state}")]
    Unexpected {
        /// Kind of the message.
        message: Backend,
        /// The state in which the message arrived, such as `during the login`.
        state: &'static str,
    },
    /// The session parameters that the server reports are too long to store.
    #[error("the server reports over {bytes_max} bytes of session parameters")]
    ParametersTooLong {
        /// Maximum number of bytes stored.
        bytes_max: usize,
    },
    /// The connection ended without Terminate from the client or a final message from the server.
    #[error("the server closed the connection unexpectedly")]
    ConnectionLost,
    /// The server requests a password and none is configured.
    #[error("the server asks for a password ({method}), but none is configured")]
    PasswordMissing {
        /// The authentication method.
        method: &'static str,
    },
    /// The server requests an unsupported authentication method.
    #[error("the server asks for {method} authentication, which is not supported")]
    UnsupportedAuthentication {
        /// Name of the method; for SASL, with the mechanisms that the server offers.
        method: String,
    },
    /// The SCRAM exchange failed: for example, the server is not authentic.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The server sent AuthenticationOk before proving that it knows the password.
    #[error("the server did not prove that it knows the password")]
    ServerUnproven,
    /// The server does not speak the requested protocol version.
    #[error("the server does not speak protocol 3.0, but {offered}")]
    ProtocolVersion {
        /// The version that the server offers.
        offered: ProtocolVersion,
    },
    /// The login cannot be encoded, for example because of a zero byte in a name, parameter or
    /// password.
    #[error("the login cannot be sent: {0}")]
    Login(#[from] EncodeError),
}

/// The side that must change its behaviour or data for the connection to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// The server or a network component: for example, it violated the protocol or disconnected.
    Server,
    /// The login data: the password is missing, or the data cannot be encoded.
    Login,
    /// The client: the server's request is valid, but the client does not support it.
    Unsupported,
}

impl SessionError {
    /// Returns the side that must change for the connection to succeed.
    pub fn origin(&self) -> ErrorOrigin {
        match self {
            Self::Header(_)
            | Self::Malformed(_)
            | Self::Unexpected { .. }
            | Self::ParametersTooLong { .. }
            | Self::ConnectionLost
            | Self::ServerUnproven
            | Self::Scram(_) => ErrorOrigin::Server,
            Self::PasswordMissing { .. } | Self::Login(_) => ErrorOrigin::Login,
            Self::UnsupportedAuthentication { .. } | Self::ProtocolVersion { .. } => {
                ErrorOrigin::Unsupported
            }
        }
    }
}
