//! [`Mirror`]: another cluster on which a share of a database's traffic is run, too; what is counted of it,
//! and how much may wait for it.
//!
//! # How
//!
//! A mirrored client's bytes are copied from one moment between two transactions to the next: a [`Unit`]. When
//! the client has been told how it ended, the unit waits for the mirror, behind those before it. It is played
//! there by a *shadow*: a client of the core's own in the mirror's pool, which finds the settings and prepared
//! statements that the client had, waits for a server, and has what it leaves behind cleaned up, as any other;
//! what it is told is read and dropped.
//!
//! So the mirror gets whole transactions, in the order of each client, and only those whose end is known. What
//! finds no room is dropped whole and counted. Nothing that the client waits for ever waits for the mirror.

mod count;
mod stream;

use std::{sync::Arc, time::Duration};

pub use self::count::{Mirror, MirrorReport};
pub(crate) use self::{
    count::{MirrorError, sqlstate_in},
    stream::{MirrorClient, Mirrored, Open, Running, Stream, StreamId, Take, Unit},
};
use crate::{ids::PoolId, refusal::Refusal};

/// Why a transaction was not run on a mirror, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The room of its client, or that of all clients, was taken: the mirror is slower than the traffic.
    Full,
    /// It has more bytes than its client has room.
    Large,
    /// The mirror could not be logged in to, or no connection to it got free in time.
    Unreachable,
    /// It was not over in time there.
    Timeout,
    /// The connection to the mirror ended in the middle of it.
    Lost,
    /// Its client cancelled a statement of it.
    Cancelled,
    /// Its client went before it was told how it ended, or too much was left when it had gone.
    Left,
}

impl DropReason {
    /// Every reason, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Full,
        Self::Large,
        Self::Unreachable,
        Self::Timeout,
        Self::Lost,
        Self::Cancelled,
        Self::Left,
    ];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "buffer_full",
            Self::Large => "too_large",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Lost => "connection_lost",
            Self::Cancelled => "cancelled",
            Self::Left => "client_gone",
        }
    }

    /// What it means for a transaction that its shadow was refused.
    pub(crate) fn because(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::QueryWait
            | Refusal::NoServerInTime { .. }
            | Refusal::ServerLogin { .. }
            | Refusal::NoMember(_)
            | Refusal::StalePrimary => Self::Unreachable,
            Refusal::QueryTimeout
            | Refusal::Transaction
            | Refusal::IdleTransaction
            | Refusal::ClientIdle => Self::Timeout,
            _ => Self::Lost,
        }
    }
}

/// How a transaction that was run to its end on a mirror compares with what its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorResult {
    /// Both ended without an error, or with the same one first.
    Same,
    /// Only the mirror had an error.
    MirrorFailed,
    /// Only the database had one.
    ClientFailed,
    /// Both had errors, and the first were of different codes.
    Different,
}

/// A mirror as a pool's clients use it.
#[derive(Clone, Debug)]
pub struct MirrorTarget {
    /// Whose servers their shadows use; it has no clients of its own.
    pub pool: PoolId,
    /// What all workers and pools have in common.
    pub mirror: Arc<Mirror>,
    /// Which part of clients is mirrored, from 0 to 1.
    pub share: f64,
    /// How many bytes of one client's transactions may wait or be under way.
    pub client_bytes: usize,
    /// The same of all clients together.
    pub buffer_bytes: usize,
    /// How long what a client has left behind may take.
    pub timeout: Duration,
}

impl MirrorTarget {
    /// Whether clients that were drawn for one stay drawn for the other.
    pub(crate) fn draws_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mirror, &other.mirror)
            && self.share.to_bits() == other.share.to_bits()
            && self.pool == other.pool
    }
}
