//! A cache of recently read prefixes.
//!
//! After the time, the bytes of the prefix are usually the same in all lines of a session, and they
//! alone determine its fields. So recent prefixes are cached with their fields, and one comparison
//! replaces parsing.

use crate::record::{
    frame::{ChunkFrames, SessionFields},
    spans::short_eq,
};

/// A cache of recently read prefixes, indexed by a hash of their first and last bytes.
#[derive(Clone, Debug)]
pub(super) struct RecentPrefixes {
    slots: Vec<RecentPrefix>,
    /// Number of the chunk that is being read; never 0.
    chunk: u64,
}

impl Default for RecentPrefixes {
    fn default() -> Self {
        let empty =
            RecentPrefix { bytes: Vec::new(), fields: SessionFields::EMPTY, chunk: 0, number: 0 };
        Self { slots: vec![empty; SLOTS], chunk: 1 }
    }
}

/// A cached prefix with its parsed fields.
#[derive(Clone, Debug)]
struct RecentPrefix {
    /// The prefix between the time and the label; empty if the slot is free.
    bytes: Vec<u8>,
    /// The prefix's fields, with spans relative to `bytes`.
    fields: SessionFields,
    /// The last chunk in which the prefix occurred, and the index of its fields there.
    chunk: u64,
    number: u32,
}

/// Number of slots, about the number of sessions with lines near each other. The table fits in the
/// processor's second-level cache.
const SLOTS: usize = 512;

/// Longest prefix that is cached, in bytes.
const BYTES_MAX: usize = 128;

impl RecentPrefixes {
    /// Starts another chunk, in which no fields have an index yet.
    pub(super) fn start_chunk(&mut self) {
        self.chunk += 1;
    }

    /// Returns the index of the session fields of a prefix found at `at` in the chunk, if it is
    /// cached.
    #[inline]
    pub(super) fn find(&mut self, prefix: &[u8], at: usize, out: &mut ChunkFrames) -> Option<u32> {
        if prefix.is_empty() {
            return None;
        }
        let mut slot = slot(prefix);
        if !short_eq(&self.slots[slot].bytes, prefix) {
            slot ^= 1;
            if !short_eq(&self.slots[slot].bytes, prefix) {
                return None;
            }
        }
        let entry = &mut self.slots[slot];
        if entry.chunk != self.chunk {
            entry.chunk = self.chunk;
            entry.number = out.add_session(entry.fields.shifted_right(at));
        }
        Some(entry.number)
    }

    /// Caches a prefix whose session fields have this index in the chunk.
    pub(super) fn insert(&mut self, prefix: &[u8], fields: SessionFields, number: u32) {
        if prefix.len() <= BYTES_MAX {
            let (bytes, slot) = (prefix.to_vec(), slot(prefix));
            // Two slots form a bucket, so that two sessions do not evict each other with every
            // line.
            self.slots.swap(slot, slot ^ 1);
            self.slots[slot] = RecentPrefix { bytes, fields, chunk: self.chunk, number };
        }
    }
}

/// Returns the slot of a prefix, computed from its first and last bytes, which contain names and
/// process ids.
#[inline]
fn slot(prefix: &[u8]) -> usize {
    let front = prefix.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let back = prefix.last_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let mixed = (front ^ back.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 55) as usize % SLOTS
}
