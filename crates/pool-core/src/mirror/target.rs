//! [`MirrorTarget`]: a mirror as configured for a pool. A mirror is another server on which a
//! sample of a database's traffic is replayed.
//!
//! # Method
//!
//! The bytes of a mirrored client are copied into [`BufferedTransaction`]s, each of which starts
//! and ends between two transactions. Once the client has received the result, the transaction is
//! queued for the mirror, after earlier ones. A [`MirrorClient`], an internal client in the
//! mirror's pool, then runs it, with the session parameters and prepared statements of the mirrored
//! client. Like any client, it waits for a server, whose session state is reset afterwards. Its
//! replies are read and discarded.
//!
//! So the mirror gets only complete transactions whose result is known, for each client in the
//! original order. A transaction that does not fit into the buffer is dropped completely and
//! counted. No client ever waits for the mirror.

use std::{sync::Arc, time::Duration};

pub use crate::mirror::counters::{Mirror, MirrorReport};
pub(crate) use crate::mirror::{
    counters::{MirrorError, parse_sqlstate},
    queue::{
        BufferedTransaction, BufferingState, MirrorClient, MirrorQueue, MirrorQueueId,
        MirroredClient, OpenTransaction, RunningTransaction,
    },
};
use crate::{refusal::ClientRefusal, state::ids::PoolId};

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

/// A mirror, with its settings for the clients of one pool.
#[derive(Clone, Debug)]
pub struct MirrorTarget {
    /// The pool whose servers the mirror clients use; external clients never use it.
    pub pool: PoolId,
    /// The state shared by all workers and pools.
    pub mirror: Arc<Mirror>,
    /// The fraction of clients that are mirrored, from 0 to 1.
    pub sample_rate: f64,
    /// Maximum bytes of one client's open, queued and running transactions.
    pub client_bytes: usize,
    /// Maximum bytes of all clients' open, queued and running transactions.
    pub buffer_bytes: usize,
    /// How long the queued transactions of a disconnected client may take before the rest is
    /// dropped.
    pub timeout: Duration,
}

impl MirrorTarget {
    /// Whether clients that were sampled for `other` remain sampled: mirror, rate and pool are the
    /// same.
    pub(crate) fn samples_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mirror, &other.mirror)
            && self.sample_rate.to_bits() == other.sample_rate.to_bits()
            && self.pool == other.pool
    }
}
