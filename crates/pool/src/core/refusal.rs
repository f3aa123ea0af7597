//! [`ClientRefusal`]: the pooler's own errors that clients see.

use howdah_wire::backend::{ErrorField, Severity, encode};

use crate::TargetRole;

/// Why a client is refused; `Display` is the text that it receives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientRefusal {
    /// It sent an invalid message.
    #[error("protocol violation: {0}")]
    ProtocolViolation(String),
    /// It waited too long for a server.
    #[error("query_wait_timeout: no server connection became free in time")]
    QueryWaitTimeout,
    /// It waited too long for a server, and the last attempt to open one had failed.
    #[error(
        "query_wait_timeout: no server connection became free in time; the last login failed: {reason}"
    )]
    NoServerInTime {
        /// The message of the server or the network.
        reason: String,
    },
    /// A request was not answered in time.
    #[error("query_timeout: the server took too long")]
    QueryTimeout,
    /// A transaction did not end in time.
    #[error("transaction_timeout: the transaction took too long")]
    TransactionTimeout,
    /// It left a transaction idle for too long.
    #[error("idle_transaction_timeout: the transaction was idle for too long")]
    IdleTransactionTimeout,
    /// It was idle for too long.
    #[error("client_idle_timeout: the connection was idle for too long")]
    ClientIdleTimeout,
    /// It started a transaction block in statement mode.
    #[error("transaction blocks not allowed in statement pooling mode")]
    TransactionInStatementMode,
    /// Its server closed the connection while it was in use.
    #[error("the server closed the connection unexpectedly")]
    ServerLost,
    /// The server sent an invalid message.
    #[error("server protocol violation: {0}")]
    ServerProtocol(String),
    /// No login to a server succeeded.
    #[error("{message}")]
    ServerLogin {
        /// The server's SQLSTATE, or one that tells why there is no server.
        sqlstate: [u8; 5],
        /// The message of the server or the network.
        message: String,
    },
    /// No suitable server of its database became available in time.
    #[error("no healthy server matches role \"{}\"", .0.as_str())]
    NoMember(
        /// The role that it asked for.
        TargetRole,
    ),
    /// The only primary of its database is on an older timeline than one seen before.
    #[error("the only primary is on an older timeline than one seen before")]
    StalePrimary,
    /// No standby replayed its writes in time, and no other server is suitable.
    #[error("no standby replayed this session's writes in time")]
    NotReplayed,
    /// Its server is a primary that was replaced.
    #[error("the server is no longer the primary: another server is on a newer timeline")]
    Fenced,
    /// Its server does not answer health checks.
    #[error("server not responding (cluster.check-failure-timeout)")]
    ServerUnresponsive,
    /// A message that must be buffered whole exceeds the limit for one client.
    #[error("message of {bytes} bytes exceeds the pooler's limit")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It used the simple query protocol.
    #[error("the simple query protocol is disabled (simple-queries, disable_pqexec)")]
    SimpleQuery,
    /// An administrator has disconnected it.
    #[error("terminating connection due to administrator command")]
    Killed,
    /// Its database was removed from the configuration.
    #[error("the database was removed from the pooler's configuration")]
    DatabaseRemoved,
    /// The pooler is shutting down.
    #[error("the pooler is shutting down")]
    Shutdown,
}

impl ClientRefusal {
    /// The SQLSTATE.
    pub fn sqlstate(&self) -> [u8; 5] {
        *match self {
            Self::ProtocolViolation(_) => b"08P01",
            Self::QueryWaitTimeout | Self::NoServerInTime { .. } => b"08P01",
            Self::QueryTimeout => b"57014",
            Self::TransactionTimeout => b"25P04",
            Self::IdleTransactionTimeout => b"25P03",
            Self::ClientIdleTimeout => b"57P05",
            Self::TransactionInStatementMode => b"08P01",
            Self::ServerLost
            | Self::ServerUnresponsive
            | Self::NoMember(_)
            | Self::StalePrimary
            | Self::NotReplayed => b"08006",
            Self::Fenced => b"57P01",
            Self::ServerProtocol(_) => b"08P01",
            Self::ServerLogin { sqlstate, .. } => sqlstate,
            Self::TooLong { .. } => b"54000",
            Self::SimpleQuery => b"08P01",
            Self::Killed | Self::DatabaseRemoved | Self::Shutdown => b"57P01",
        }
    }

    /// Advice that goes beyond the message.
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

    /// Appends it as an ErrorResponse.
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
