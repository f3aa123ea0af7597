//! Counters whose senders report all counts since their start, instead of the counts of one line.

use hashbrown::HashMap;

use super::keys::RawKey;

/// The last totals by key. They outlive intervals and key resets, because a sender continues its
/// total.
#[derive(Debug, Default)]
pub(super) struct RunningTotals {
    totals: HashMap<Box<[u8]>, f64>,
    /// The encoded key of the current total; reused for all.
    encoded: Vec<u8>,
}

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
                if total >= before { total - before } else { total.max(0.0) }
            }
            None => {
                if self.totals.len() < max {
                    self.totals.insert(self.encoded[..].into(), total);
                }
                0.0
            }
        }
    }
}
