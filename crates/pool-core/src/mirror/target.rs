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
    counters::parse_sqlstate,
    queue::{
        BufferedTransaction, BufferingState, MirrorClient, MirrorQueue, MirrorQueueId,
        MirroredClient, OpenTransaction, RunningTransaction,
    },
};
use crate::state::ids::PoolId;

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

/// Whether both lists contain the same mirrors with the same settings.
pub(crate) fn have_equal_mirrors(before: &[MirrorTarget], now: &[MirrorTarget]) -> bool {
    before.len() == now.len()
        && before.iter().zip(now).all(|(before, now)| {
            before.samples_like(now)
                && before.client_bytes == now.client_bytes
                && before.buffer_bytes == now.buffer_bytes
                && before.timeout == now.timeout
        })
}
