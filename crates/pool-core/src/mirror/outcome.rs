//! Outcomes of mirrored transactions.

use crate::refusal::ClientRefusal;

/// The reason why a transaction was not run on a mirror, or did not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The buffer limit of the client, or of all clients, was reached: the mirror is slower than
    /// the database.
    BufferFull,
    /// The transaction exceeds the buffer of one client.
    TooLarge,
    /// The mirror could not be used: for example, the login to it failed, no connection became free
    /// in time, or its pool was removed.
    Unreachable,
    /// The transaction did not finish in time on the mirror.
    Timeout,
    /// The connection to the mirror was lost while the transaction ran, or the pooler ended the
    /// transaction there for another reason.
    ConnectionLost,
    /// The client cancelled one of the transaction's statements.
    Cancelled,
    /// The client disconnected, or was no longer mirrored, before it received the result; or
    /// afterwards one of its remaining transactions failed, or they took too long.
    ClientGone,
}

impl DropReason {
    /// All reasons, in display order.
    pub const ALL: [Self; 7] = [
        Self::BufferFull,
        Self::TooLarge,
        Self::Unreachable,
        Self::Timeout,
        Self::ConnectionLost,
        Self::Cancelled,
        Self::ClientGone,
    ];

    /// Returns the reason as a metric label, which is also the suffix of the column in SHOW.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BufferFull => "buffer_full",
            Self::TooLarge => "too_large",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::Cancelled => "cancelled",
            Self::ClientGone => "client_gone",
        }
    }

    /// Returns the reason for dropping a transaction whose mirror client was refused.
    pub(crate) fn from_refusal(refusal: &ClientRefusal) -> Self {
        match refusal {
            ClientRefusal::QueryWaitTimeout
            | ClientRefusal::NoServerInTime { .. }
            | ClientRefusal::ServerSetup { .. }
            | ClientRefusal::NoMember(_)
            | ClientRefusal::StalePrimary => Self::Unreachable,
            ClientRefusal::QueryTimeout
            | ClientRefusal::TransactionTimeout
            | ClientRefusal::IdleTransactionTimeout
            | ClientRefusal::ClientIdleTimeout => Self::Timeout,
            _ => Self::ConnectionLost,
        }
    }
}

/// The result of comparing a transaction on the mirror with the same one on the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorResult {
    /// The transaction succeeded on both, or failed on both with the same first SQLSTATE.
    Same,
    /// The transaction failed only on the mirror.
    FailedMirrorOnly,
    /// The transaction failed only on the database.
    FailedClientOnly,
    /// The transaction failed on both, with different first SQLSTATEs.
    SqlstateDiffers,
}
