//! Counters whose senders report all counts since their start, instead of the counts of one line.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::keys::RawKey;

/// The last totals by key. They outlive intervals and key resets, because a sender continues its
/// total.
#[derive(Debug, Default)]
pub(crate) struct RunningTotals {
    totals: HashMap<Box<[u8]>, f64>,
    /// The encoded key of the current total; reused for all.
    encoded: Vec<u8>,
    /// Totals of another process, of sockets that this one does not have.
    inherited: Option<InheritedTotals>,
}

/// The last totals by encoded key of a process that another one has taken over from. The first
/// shard that needs one takes it.
pub(crate) type InheritedTotals = Arc<Mutex<HashMap<Box<[u8]>, f64>>>;

impl RunningTotals {
    /// Replaces the total of a key and returns the counts since its last one: the difference, or
    /// all if the total has decreased, because then the sender has restarted. The first total only
    /// starts the count, as do all of new keys once there are `max`.
    pub(super) fn difference(&mut self, key: RawKey<'_>, total: f64, max: usize) -> f64 {
        self.encoded.clear();
        self.encoded.extend_from_slice(&(key.name.len() as u64).to_le_bytes());
        self.encoded.extend_from_slice(key.name);
        key.push_tail(&mut self.encoded);
        match self.totals.get_mut(&self.encoded[..]) {
            Some(last) => {
                let before = std::mem::replace(last, total);
                counts_since(before, total)
            }
            None => {
                let inherited = self.inherited.as_ref();
                let before = inherited.and_then(|totals| totals.lock().remove(&self.encoded[..]));
                if self.totals.len() < max {
                    self.totals.insert(self.encoded[..].into(), total);
                }
                before.map_or(0.0, |before| counts_since(before, total))
            }
        }
    }

    /// Returns all last totals by encoded key, for another process.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], f64)> {
        self.totals.iter().map(|(key, total)| (&**key, *total))
    }

    /// Continues the totals of the same shard of another process.
    pub(crate) fn restore(&mut self, totals: HashMap<Box<[u8]>, f64>) {
        self.totals = totals;
    }

    /// Returns the totals of [`inherit`](Self::inherit), without those that were continued.
    pub(crate) fn inherited(&self) -> Option<InheritedTotals> {
        self.inherited.clone()
    }

    /// Continues totals of other shards of another process.
    pub(crate) fn inherit(&mut self, totals: &InheritedTotals) {
        self.inherited = Some(Arc::clone(totals));
    }
}

fn counts_since(before: f64, total: f64) -> f64 {
    if total >= before { total - before } else { total.max(0.0) }
}
