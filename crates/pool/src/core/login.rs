//! The results of logins, to servers and of clients. Authentication itself is not done here.

use std::{fmt, sync::Arc};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{PoolId, SessionParameter, TargetRole};

/// The random part of a client's cancel key. `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct CancelSecret(
    /// The random bytes; a key of protocol 3.0 uses four of them.
    pub [u8; 32],
);

impl fmt::Debug for CancelSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelSecret(…)")
    }
}

/// The login of an authenticated client.
///
/// AuthenticationOk has been sent to the client (after NegotiateProtocolVersion, where required),
/// or is sent with [`crate::Core::finish_client_login`]. The core sends the messages that follow:
/// ParameterStatus, BackendKeyData and ReadyForQuery.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    /// The pool of the client's database and user.
    pub pool: PoolId,
    /// The user that the client logged in as, if the database forces another one, for which the
    /// pool is; otherwise `None`.
    pub user: Option<Arc<str>>,
    /// The negotiated protocol version; it determines the length of the cancel key.
    pub version: ProtocolVersion,
    /// Random bytes for the cancel key, from a cryptographically secure source.
    pub secret: CancelSecret,
    /// Session parameters that the client requested, by startup parameters and by `-c` or `--name=`
    /// in `options`, in this order of precedence: the last one wins. Without `user`, `database`,
    /// `replication`, `options` and `_pq_.*`, and without those ignored by the configuration. Names
    /// are as the client wrote them. For a replication connection, all parameters, with `options`
    /// unparsed.
    pub parameters: Vec<SessionParameter>,
    /// Which servers of a cluster are suitable, if the client requests a role; otherwise the pool
    /// decides.
    pub role: Option<TargetRole>,
}

/// The login of the pooler to a server, whose first ReadyForQuery has arrived.
///
/// Bytes after that ReadyForQuery are passed to [`crate::Core::server_bytes`] later.
#[derive(Clone, Debug)]
pub struct ServerLogin {
    /// Everything that the server reported by ParameterStatus, unchanged.
    pub parameters: Vec<SessionParameter>,
    /// The key that cancels statements on this connection, if the server sent one.
    pub cancel_key: Option<CancelKey>,
}

/// The reason why a server connection could not be opened.
#[derive(Clone, Debug)]
pub struct ServerFailure {
    /// The server's own SQLSTATE, or `08006` if it could not be reached.
    pub sqlstate: [u8; 5],
    /// The message for clients that wait for this server. UTF-8, without a zero byte.
    pub message: String,
}

impl ServerFailure {
    /// Whether the same login may succeed later without a change of configuration or passwords: the
    /// server cannot be reached (class 08, as the worker reports it), starts, stops or has crashed
    /// (57P01 to 57P03), or has no resources left (class 53, such as 53300).
    pub(crate) fn is_transient(&self) -> bool {
        matches!(&self.sqlstate, b"08000" | b"08001" | b"08003" | b"08004" | b"08006")
            || matches!(&self.sqlstate, b"57P01" | b"57P02" | b"57P03")
            || self.sqlstate.starts_with(b"53")
    }

    /// Whether the server itself is stopped, starting or unreachable, and not just out of
    /// resources.
    pub(crate) fn is_outage(&self) -> bool {
        self.is_transient() && !self.sqlstate.starts_with(b"53")
    }
}
