//! The results of client logins and of logins to servers. Authentication itself is done elsewhere.

use std::{fmt, sync::Arc};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{PoolId, SessionParameter, TargetRole};

/// The random part of a client's cancel key. Its `Debug` output hides the bytes.
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
/// AuthenticationOk (after NegotiateProtocolVersion, where required) has been sent to the client
/// already, or is passed to [`crate::Core::finish_client_login`]. The core sends the messages that
/// follow: ParameterStatus, BackendKeyData and ReadyForQuery.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    /// The pool of the client's database and user.
    pub pool: PoolId,
    /// The user that the client logged in as, if the database forces another user, to whom the pool
    /// belongs; otherwise `None`.
    pub user: Option<Arc<str>>,
    /// The negotiated protocol version; it determines the length of the cancel key.
    pub version: ProtocolVersion,
    /// Random bytes for the cancel key, from a cryptographically secure source.
    pub secret: CancelSecret,
    /// Session parameters that the client requested, in the order of the startup packet, including
    /// those inside `options` (`-c` or `--name=`); of equal names, the last one counts. The list
    /// excludes `user`, `database`, `replication`, `target_session_attrs`, `_pq_.*` and the
    /// parameters that the configuration ignores. For a replication connection, `options` is
    /// included unparsed.
    pub parameters: Vec<SessionParameter>,
    /// The server role that the client requested; `None` to use the role configured for the pool.
    pub role: Option<TargetRole>,
}

/// A completed login to a server: its ReadyForQuery, or that after the connect query, has arrived.
///
/// The worker passes bytes after that ReadyForQuery to [`crate::Core::server_bytes`].
#[derive(Clone, Debug)]
pub struct ServerLogin {
    /// All parameters that the server reported by ParameterStatus during the login, unchanged.
    pub parameters: Vec<SessionParameter>,
    /// The key that cancels statements on this connection, if the server sent one.
    pub cancel_key: Option<CancelKey>,
}

/// The reason why a server connection could not be opened.
#[derive(Clone, Debug)]
pub struct ServerFailure {
    /// The SQLSTATE that the server sent, or one that the pooler chose, such as `08006` if the
    /// server could not be reached.
    pub sqlstate: [u8; 5],
    /// The error message for clients that wait for this server, without a zero byte.
    pub message: String,
}

impl ServerFailure {
    /// Whether the same login may succeed later without a change of configuration or passwords: the
    /// server cannot be reached (class 08, except 08007 and 08P01), is starting, is shutting down
    /// or has crashed (57P01 to 57P03), or is out of resources (class 53, such as 53300).
    pub fn is_transient(&self) -> bool {
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
