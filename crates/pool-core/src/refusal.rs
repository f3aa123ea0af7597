//! [`ClientRefusal`]: the pooler's own errors for clients.

use howdah_wire::backend::{ErrorField, Severity, encode};

use crate::TargetRole;

/// The reason why a client is refused or disconnected. `Display` is the error message that the
/// client receives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientRefusal {
    /// The client sent an invalid message.
    #[error("protocol violation: {0}")]
    ProtocolViolation(String),
    /// The client waited longer than `query_wait` for a server.
    #[error("query_wait_timeout: no server connection became free in time")]
    QueryWaitTimeout,
    /// The client waited longer than `query_wait` for a server, and the last attempt to open one
    /// had failed.
    #[error(
        "query_wait_timeout: no server connection became free in time; the last login to the \
         server failed: {reason}"
    )]
    NoServerInTime {
        /// The error message of the server, the operating system or the pooler.
        reason: String,
    },
    /// A server did not complete a request of the client within the query timeout.
    #[error("query_timeout: the server did not complete the request in time")]
    QueryTimeout,
    /// A transaction of the client did not end within the transaction timeout.
    #[error("transaction_timeout: the transaction took too long")]
    TransactionTimeout,
    /// The client left a transaction idle for longer than the idle-transaction timeout.
    #[error("idle_transaction_timeout: the transaction was idle for too long")]
    IdleTransactionTimeout,
    /// The client was idle for longer than the client-idle timeout.
    #[error("client_idle_timeout: the connection was idle for too long")]
    ClientIdleTimeout,
    /// The session's state pins the client to its server, but as many clients as allowed are pinned
    /// already.
    #[error(
        "adaptive.pinned-max: the session needs its own server connection ({reasons}), and as many \
         sessions as allowed have one"
    )]
    TooManyPinned {
        /// The state that pins the client.
        reasons: String,
    },
    /// A pinned client sent nothing for longer than allowed.
    #[error(
        "adaptive.pinned-idle: the session was idle for too long with its own server connection ({reasons})"
    )]
    PinnedIdle {
        /// The state that pins the client.
        reasons: String,
    },
    /// A client was pinned for longer than allowed.
    #[error(
        "adaptive.pinned-time: the session had its own server connection for too long ({reasons})"
    )]
    PinnedTime {
        /// The state that pins the client.
        reasons: String,
    },
    /// The client's server must be replaced, and clients do not keep such servers.
    #[error("database configuration changed")]
    ServerOutdated,
    /// The client started a transaction block in statement mode.
    #[error("transaction blocks not allowed in statement pooling mode")]
    TransactionInStatementMode,
    /// The connection to the client's server ended, or had to be closed, while it was in use.
    #[error("the server closed the connection unexpectedly")]
    ServerLost,
    /// The client's server sent an invalid message.
    #[error("server protocol violation: {0}")]
    ServerProtocol(String),
    /// The login to the server failed, or the server rejected a statement with which the pooler
    /// prepares it for the client, such as one that sets a session parameter.
    #[error("{message}")]
    ServerSetup {
        /// The SQLSTATE that the server sent, or one that the pooler chose for the failure.
        sqlstate: [u8; 5],
        /// The error message of the server, the operating system or the pooler.
        message: String,
    },
    /// No suitable server of the client's database became available in time.
    #[error("no healthy server matches role \"{}\"", .0.as_str())]
    NoMember(
        /// The role that the client's request needs.
        TargetRole,
    ),
    /// The client needs a primary, but the one that is up is not accepted: another one was
    /// accepted, or a newer timeline is known.
    #[error(
        "the primary that is up was replaced by another one, or is on an older timeline than one \
         seen before"
    )]
    StalePrimary,
    /// No standby replayed the client's writes in time, and no other server is suitable.
    #[error("no standby replayed this session's writes in time")]
    NotReplayed,
    /// The client's server accepts writes but is fenced: another primary has replaced it, or it has
    /// another system identifier.
    #[error(
        "the server is no longer the primary: it was replaced, or has another system identifier"
    )]
    Fenced,
    /// The client's server has failed health checks for longer than the `check-failure-timeout` of
    /// its cluster.
    #[error("the server failed health checks for longer than cluster.check-failure-timeout")]
    ServerUnresponsive,
    /// A message that the pooler must buffer completely is longer than 4 MiB.
    #[error(
        "message of {bytes} bytes exceeds 4 MiB, the limit for messages that the pooler must buffer"
    )]
    TooLong {
        /// Length of the message body in bytes.
        bytes: usize,
    },
    /// The client used the simple query protocol, which is disabled.
    #[error("the simple query protocol is disabled (simple-queries, disable_pqexec)")]
    SimpleQuery,
    /// An administrator has disconnected the client.
    #[error("terminating connection due to administrator command")]
    Killed,
    /// The client's database was removed from the configuration.
    #[error("the database was removed from the pooler's configuration")]
    DatabaseRemoved,
    /// The pooler is shutting down.
    #[error("the pooler is shutting down")]
    Shutdown,
}

impl ClientRefusal {
    /// Returns the SQLSTATE: the one that PostgreSQL or PgBouncer uses for the same condition, if
    /// there is one.
    pub fn sqlstate(&self) -> [u8; 5] {
        *match self {
            Self::ProtocolViolation(_) => b"08P01",
            Self::QueryWaitTimeout | Self::NoServerInTime { .. } => b"08P01",
            Self::QueryTimeout => b"57014",
            Self::TransactionTimeout => b"25P04",
            Self::IdleTransactionTimeout => b"25P03",
            Self::ClientIdleTimeout | Self::PinnedIdle { .. } => b"57P05",
            Self::PinnedTime { .. } => b"57P05",
            Self::TooManyPinned { .. } => b"53300",
            Self::ServerOutdated => b"57P01",
            Self::TransactionInStatementMode => b"08P01",
            Self::ServerLost
            | Self::ServerUnresponsive
            | Self::NoMember(_)
            | Self::StalePrimary
            | Self::NotReplayed => b"08006",
            Self::Fenced => b"57P01",
            Self::ServerProtocol(_) => b"08P01",
            Self::ServerSetup { sqlstate, .. } => sqlstate,
            Self::TooLong { .. } => b"54000",
            Self::SimpleQuery => b"08P01",
            Self::Killed | Self::DatabaseRemoved | Self::Shutdown => b"57P01",
        }
    }

    /// Returns the HINT field, which tells the user what to do.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoMember(_) => {
                Some("SHOW MEMBERS on the admin console shows the state of each server.")
            }
            Self::StalePrimary => Some(
                "If the newer timeline is gone for good, run RESET CLUSTER with the database's name on \
                 the admin console.",
            ),
            _ => None,
        }
    }

    /// Appends the error as an ErrorResponse message.
    pub fn write(&self, buf: &mut Vec<u8>, severity: Severity) {
        let message = self.to_string().replace('\0', " ");
        let sqlstate = self.sqlstate();
        let sqlstate = if sqlstate.contains(&0) { *b"XX000" } else { sqlstate };
        let fields = encode::essentials(severity, &sqlstate, message.as_bytes());
        let hint = self.hint().map(|hint| (ErrorField::Hint.code(), hint.as_bytes()));
        let fields = fields.into_iter().chain(hint);
        encode::error_response(buf, fields).expect("no field contains a zero byte");
    }
}
