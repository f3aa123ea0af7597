//! Aggregation of samples: one [`SampleShard`] per reader thread.
//!
//! A shard identifies keys by their raw bytes, so a sample of a known key costs one hash, one
//! comparison and one addition, and no allocation. The values are swapped out
//! ([`SampleShard::swap`]) between two batches. Key names are passed on only once, with the first
//! interval in which they occur, and again if the shard is reset.
//!
//! Counters, timers and sets of several shards can be merged in any order. Values of gauges are
//! stored with the arrival stamp of their batch, so that the latest value wins regardless of which
//! reader received it.
//!
//! Memory per key: about 24 bytes for a slot and its index, the raw text, and per metric type a
//! cell of 16 (counter) to 56 bytes. Cells exist twice, because one interval is filled while the
//! previous one is read.

mod cells;
mod keys;
mod messages;
mod rejects;
mod shard;
#[cfg(test)]
mod tests;
mod timed;
mod totals;
mod weights;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

pub(crate) use self::keys::CONTAINER_SEPARATOR;
pub(crate) use self::totals::{InheritedTotals, RunningTotals};
pub use self::{
    cells::{
        CellTable, CounterCell, GaugeCell, NewName, NewNames, SetCell, ShardInterval, Sketched,
        TimerCell,
    },
    keys::KINDS,
    messages::MessageBuffer,
    rejects::{RejectedLine, Rejects},
    shard::SampleShard,
    timed::{TimedSample, TimedValues},
    weights::{SampleWeights, WeightTotals},
};
use crate::settings::StatsdSettings;

/// The type of a metric. Its integer value is an index into arrays with one element per type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricType {
    /// A counter, whose values are summed.
    Counter,
    /// A timer, histogram or distribution, whose samples are stored individually up to a limit.
    Timer,
    /// A gauge, whose value each sample replaces or changes.
    Gauge,
    /// A set, whose distinct members are counted.
    Set,
}

impl MetricType {
    /// All types, in the order of their integer values.
    pub const ALL: [Self; KINDS] = [Self::Counter, Self::Timer, Self::Gauge, Self::Set];

    /// Returns the name in settings and replies: `counter`, `timer`, `gauge` or `set`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Timer => "timer",
            Self::Gauge => "gauge",
            Self::Set => "set",
        }
    }
}

/// A shard shared by its reader and the flush.
///
/// The reader locks it for one batch, and the flush only to swap out the values. So neither waits
/// longer than one batch takes, and the lock is almost always free.
#[derive(Clone, Debug)]
pub struct SharedShard {
    shard: Arc<Mutex<SampleShard>>,
    /// Shared by all shards of a server, so that gauge values of different shards can be ordered.
    stamps: Stamps,
}

/// The counter that numbers batches in the order in which readers start them.
#[derive(Clone, Debug, Default)]
pub struct Stamps(Arc<AtomicU64>);

impl Stamps {
    /// Distance between the stamps of two batches: within a batch, each value of a gauge takes the
    /// next stamp. Larger than the number of values that fit into a batch.
    const STEP: u64 = 1 << 20;

    /// Returns the stamp of the next batch.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(Self::STEP, Ordering::Relaxed)
    }

    /// Makes all further stamps at least `stamp`, so that batches of another process come before.
    pub(crate) fn raise_to(&self, stamp: u64) {
        self.0.fetch_max(stamp, Ordering::Relaxed);
    }
}

impl SharedShard {
    /// Creates an empty shard. With `messages`, it stores events and service checks, because a
    /// backend uses them.
    pub fn new(settings: &StatsdSettings, stamps: &Stamps, messages: bool) -> Self {
        let mut shard = SampleShard::new(settings);
        if messages {
            shard.store_messages();
        }
        Self { shard: Arc::new(Mutex::new(shard)), stamps: stamps.clone() }
    }

    /// Locks the shard for one batch, which gets the next stamp.
    pub fn lock(&self) -> MutexGuard<'_, SampleShard> {
        let mut shard = self.guard();
        // Taken under the lock, so that the stamps of a shard never decrease.
        shard.start_batch(self.stamps.next());
        shard
    }

    /// Stores events and service checks from now on, because a backend now uses them.
    pub fn store_messages(&self) {
        self.guard().store_messages();
    }

    /// Swaps out the aggregated values. With `reset`, the shard also discards its keys; see
    /// [`SampleShard::swap_and_reset`].
    pub fn swap(&self, spare: ShardInterval, reset: bool) -> ShardInterval {
        let mut shard = self.guard();
        if reset { shard.swap_and_reset(spare) } else { shard.swap(spare) }
    }

    /// Like [`swap`](Self::swap), and also returns all keys; see [`SampleShard::swap_and_list`].
    pub fn swap_and_list(&self, spare: ShardInterval) -> (ShardInterval, NewNames) {
        self.guard().swap_and_list(spare)
    }

    /// Calls `use_totals` with the last totals of counters whose senders report all counts since
    /// their start.
    pub(crate) fn with_running_totals<T>(
        &self,
        use_totals: impl FnOnce(&mut RunningTotals) -> T,
    ) -> T {
        use_totals(self.guard().running_totals())
    }

    fn guard(&self) -> MutexGuard<'_, SampleShard> {
        // After a reader's panic the sums are still valid.
        self.shard.lock()
    }
}

impl Default for SharedShard {
    fn default() -> Self {
        Self::new(&StatsdSettings::default(), &Stamps::default(), false)
    }
}
