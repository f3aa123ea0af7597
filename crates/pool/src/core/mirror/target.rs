//! [`Mirror`]: another cluster on which a sample of a database's traffic is run as well; its
//! counters, and the limit of its buffer.
//!
//! # Method
//!
//! The bytes of a mirrored client are copied in units that start and end between two transactions:
//! a [`BufferedTransaction`]. Once the client has received the result, the transaction is queued
//! for the mirror, after earlier ones. There it is run by a [`MirrorClient`], an internal client in
//! the mirror's pool. Like any client, it gets the session parameters and prepared statements of
//! the mirrored client, waits for a server, and has its session state reset; its replies are read
//! and discarded.
//!
//! So the mirror gets whole transactions, in the order of each client, and only those whose result
//! is known. A transaction that does not fit the buffer is dropped whole and counted. No client
//! ever waits for the mirror.

use std::{sync::Arc, time::Duration};

pub use crate::core::mirror::counters::{Mirror, MirrorReport};
pub(crate) use crate::core::mirror::{
    counters::{MirrorError, parse_sqlstate},
    queue::{
        BufferedTransaction, BufferingState, MirrorClient, MirrorQueue, MirrorQueueId,
        MirroredClient, OpenTransaction, RunningTransaction,
    },
};
use crate::core::{refusal::ClientRefusal, state::ids::PoolId};

/// The reason why a transaction was not run on a mirror, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The buffer of the client, or that of all clients, was full: the mirror is slower than the
    /// traffic.
    BufferFull,
    /// The transaction exceeds the buffer of one client.
    TooLarge,
    /// The login to the mirror failed, or no connection to it became free in time.
    Unreachable,
    /// The transaction did not finish in time on the mirror.
    Timeout,
    /// The connection to the mirror was lost while the transaction ran.
    ConnectionLost,
    /// The client cancelled one of the transaction's statements.
    Cancelled,
    /// The client disconnected before it received the result, or left too much in the queue.
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

    /// Returns the value of the metric's label, which is also the suffix of the column.
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
            | ClientRefusal::ServerLogin { .. }
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

/// The comparison of a transaction's results on the mirror and on the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorResult {
    /// The transaction succeeded on both, or failed on both with the same first SQLSTATE.
    Same,
    /// Only the mirror had an error.
    FailedMirrorOnly,
    /// Only the database had an error.
    FailedClientOnly,
    /// The transaction failed on both, with different first SQLSTATEs.
    SqlstateDiffers,
}

/// A mirror as used by a pool's clients.
#[derive(Clone, Debug)]
pub struct MirrorTarget {
    /// The pool whose servers the mirror clients use; external clients never use it.
    pub pool: PoolId,
    /// The state shared by all workers and pools.
    pub mirror: Arc<Mirror>,
    /// The share of clients that are mirrored, from 0 to 1.
    pub sample_rate: f64,
    /// Maximum bytes of one client's transactions that are queued or running.
    pub client_bytes: usize,
    /// Maximum bytes of all clients' transactions that are queued or running.
    pub buffer_bytes: usize,
    /// How long the queued transactions of a disconnected client may take.
    pub timeout: Duration,
}

impl MirrorTarget {
    /// Whether clients that were sampled for one remain sampled for the other.
    pub(crate) fn samples_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mirror, &other.mirror)
            && self.sample_rate.to_bits() == other.sample_rate.to_bits()
            && self.pool == other.pool
    }
}
