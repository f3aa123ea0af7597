//! [`Refusal`]: the errors of the pooler itself that a client gets to see.

use howdah_wire::backend::{ErrorField, Severity, encode};

use crate::ServerRole;

/// Why a client is refused, in the words it is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It sent what no message is.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// It waited too long for a server.
    #[error("query_wait_timeout: no server connection became free in time")]
    QueryWait,
    /// It waited too long for a server, and the last attempt to open one had failed.
    #[error(
        "query_wait_timeout: no server connection became free in time; the last login failed: {reason}"
    )]
    NoServerInTime {
        /// What the server, or the network, said.
        reason: String,
    },
    /// A request was not answered in time.
    #[error("query_timeout: the server took too long")]
    QueryTimeout,
    /// A transaction was not over in time.
    #[error("transaction_timeout: the transaction took too long")]
    Transaction,
    /// It left a transaction open for too long.
    #[error("idle_transaction_timeout: the transaction was idle for too long")]
    IdleTransaction,
    /// It did nothing for too long.
    #[error("client_idle_timeout: the connection was idle for too long")]
    ClientIdle,
    /// It began a transaction block in statement mode.
    #[error("transaction blocks not allowed in statement pooling mode")]
    TransactionInStatementMode,
    /// Its server went away in the middle of something.
    #[error("the server closed the connection unexpectedly")]
    ServerLost,
    /// The server said what cannot be followed.
    #[error("the server broke the protocol: {0}")]
    ServerProtocol(String),
    /// No server could be logged in to.
    #[error("{message}")]
    ServerLogin {
        /// The server's code, or one for why there is no server.
        sqlstate: [u8; 5],
        /// What the server, or the network, said.
        message: String,
    },
    /// None of the servers of its database would do for it in time.
    #[error("no server of the database is fit for this (server role {})", .0.as_str())]
    NoMember(
        /// What it wanted.
        ServerRole,
    ),
    /// The only primary of its database is of an older timeline than one that was known before.
    #[error("the only primary of the database is of an older timeline than one that was known")]
    StalePrimary,
    /// No standby had what it wrote in time, and no other server would do for it.
    #[error("no standby has replayed in time what this session wrote")]
    NotReplayed,
    /// Its server is a primary that was replaced.
    #[error("the server is not the primary any more: another one of a newer timeline is")]
    Fenced,
    /// Its server answers no checks.
    #[error("the server does not answer, and has been given up (cluster.check-failure-timeout)")]
    GivenUp,
    /// A message that has to be held whole is longer than is held for one client.
    #[error("a message of {bytes} bytes is too long for the pooler to look at")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It used the simple query protocol.
    #[error("the simple query protocol is disabled (simple-queries, disable_pqexec)")]
    SimpleQuery,
    /// An operator has ended it.
    #[error("terminating connection due to administrator command")]
    Killed,
    /// Its database is not among the settings any more.
    #[error("the database was removed from the pooler's settings")]
    DatabaseRemoved,
    /// The pooler is being stopped.
    #[error("the pooler is shutting down")]
    Shutdown,
}

impl Refusal {
    /// Five characters that programs understand.
    pub fn sqlstate(&self) -> [u8; 5] {
        *match self {
            Self::Protocol(_) => b"08P01",
            Self::QueryWait | Self::NoServerInTime { .. } => b"08P01",
            Self::QueryTimeout => b"57014",
            Self::Transaction => b"25P04",
            Self::IdleTransaction => b"25P03",
            Self::ClientIdle => b"57P05",
            Self::TransactionInStatementMode => b"08P01",
            Self::ServerLost
            | Self::GivenUp
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

    /// What can be done about it, where that is not in the text.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoMember(_) => {
                Some("SHOW MEMBERS at the pooler's console tells what each server is.")
            }
            Self::StalePrimary => Some(
                "If the newer timeline is gone for good, RESET CLUSTER with the database's name at the \
                 pooler's console has it forgotten.",
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
        encode::error_response(buf, fields).expect("no field holds a zero byte");
    }
}
