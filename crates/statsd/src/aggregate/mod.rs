//! Samples added up: one [`Shard`] per reader thread.
//!
//! A shard knows every key by its raw bytes, so a known key costs one hash, one comparison and one
//! addition, and allocates nothing. Its values leave in a swap ([`Shard::swap`]) between two
//! batches; the names stay, and travel once, with the first interval they occur in.
//!
//! Counters, timers and sets of several shards add up in any order. Gauges carry the arrival stamp
//! of their batch, so that the last one to arrive wins whichever reader got it.
//!
//! What one key costs while nothing new is seen: 32 bytes of slot, its raw text, and per kind a cell
//! of 16 (counter) to 56 bytes, twice, because an interval is filled while the last one is read.

mod cells;
mod keys;
mod rejects;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

pub use self::{
    cells::{
        Cells, CounterCell, GaugeCell, Interval, NewName, NewNames, SetCell, Sketched, TimerCell,
    },
    keys::KINDS,
    rejects::{Recent, Rejects},
    shard::Shard,
};
use crate::settings::Settings;

/// What a metric is kept as: the index of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A sum.
    Counter,
    /// Samples.
    Timer,
    /// A last value.
    Gauge,
    /// Distinct members.
    Set,
}

/// A shard between its reader and the flush.
///
/// The reader locks it for a batch, the flush for a swap of a few words. So neither waits for longer
/// than one batch takes, and the lock is almost always free.
#[derive(Clone, Debug)]
pub struct SharedShard {
    shard: Arc<Mutex<Shard>>,
    /// One clock for all shards of a server.
    stamps: Stamps,
}

/// Numbers batches in the order in which their readers began them.
#[derive(Clone, Debug, Default)]
pub struct Stamps(Arc<AtomicU64>);

impl SharedShard {
    /// An empty one.
    #[must_use]
    pub fn new(settings: &Settings, stamps: &Stamps) -> Self {
        Self { shard: Arc::new(Mutex::new(Shard::new(settings))), stamps: stamps.clone() }
    }

    /// Locks it, for one batch.
    pub fn lock(&self) -> MutexGuard<'_, Shard> {
        let mut shard = self.guard();
        // Under the lock, so that a shard's stamps never go back.
        shard.begin_batch(self.stamps.0.fetch_add(1, Ordering::Relaxed));
        shard
    }

    /// Takes out what was added up; see [`Shard::swap`].
    #[must_use]
    pub fn swap(&self, spare: Interval, forget: bool) -> Interval {
        let mut shard = self.guard();
        match forget {
            true => shard.swap_and_forget(spare),
            false => shard.swap(spare),
        }
    }

    fn guard(&self) -> MutexGuard<'_, Shard> {
        // A reader that panicked left sums that are still sums.
        self.shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SharedShard {
    fn default() -> Self {
        Self::new(&Settings::default(), &Stamps::default())
    }
}
