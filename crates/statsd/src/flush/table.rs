//! [`MetricTable`]: metrics of one type by key, in order of first receipt.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::MetricName;

/// Metrics of one type by key. Indexes are stable until [`MetricTable::compact`].
#[derive(Debug)]
pub(crate) struct MetricTable<S> {
    by_key: HashTable<u32>,
    entries: Vec<MetricEntry<S>>,
    live: usize,
    /// Indexes sorted by key; new entries are missing until the next
    /// [`MetricTable::for_each_sorted`].
    order: Vec<u32>,
    /// Number of entries whose names are in their final blocks.
    packed: usize,
    hasher: DefaultHashBuilder,
}

/// Number of names in a block of shared text. Fewer new names in an interval are not worth one.
const BLOCK_NAMES: usize = 512;
const BLOCK_NAMES_MIN: usize = 16;

/// A metric with its state and usage counts.
#[derive(Debug)]
pub(crate) struct MetricEntry<S> {
    pub(crate) name: MetricName,
    pub(crate) state: S,
    /// Whether the metric exists. The entry of a removed metric remains for a while, because shards
    /// refer to it by index.
    live: bool,
    /// Samples in the running interval.
    pub(crate) hits: u32,
    /// Samples since the last key flush.
    pub(crate) key_hits: u32,
    /// While the metric exists, the number of the flush after it was last received, and 0 before
    /// the first. After that, the number of the flush that deleted it, and 0 if a command did.
    pub(crate) last_flush: u32,
    /// Whether other spellings of the key are merged into this entry; if so, each spelling has its
    /// own entry in the table of variants.
    pub(crate) merged: bool,
    /// For a merged entry: the variant spelled like the key itself, if it was ever sent. For a
    /// variant: the entry it is merged into.
    pub(crate) linked: Option<u32>,
}

impl<S> MetricEntry<S> {
    /// Whether the metric was not received in the running interval. The server's own metrics are
    /// never idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.hits == 0 && self.last_flush > 0
    }
}

impl<S> Default for MetricTable<S> {
    fn default() -> Self {
        Self {
            by_key: HashTable::default(),
            entries: Vec::new(),
            live: 0,
            order: Vec::new(),
            packed: 0,
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<S: Default> MetricTable<S> {
    /// Returns the index of a key, added if needed. A new entry is not live.
    pub(crate) fn intern(&mut self, name: &MetricName) -> u32 {
        let Self { by_key, entries, hasher, .. } = self;
        let hash = hasher.hash_one(name.key());
        if let Some(index) = by_key.find(hash, |index| entries[*index as usize].name == *name) {
            return *index;
        }
        // The number of entries is bounded by the key limit of each shard.
        let index = entries.len() as u32;
        entries.push(MetricEntry {
            name: name.clone(),
            state: S::default(),
            live: false,
            hits: 0,
            key_hits: 0,
            last_flush: 0,
            merged: false,
            linked: None,
        });
        by_key.insert_unique(hash, index, |index| {
            hasher.hash_one(entries[*index as usize].name.key())
        });
        if self.entries.len() - self.packed >= BLOCK_NAMES {
            self.pack_names();
        }
        index
    }

    /// Moves the names of new entries to a shared block.
    fn pack_names(&mut self) {
        let new = &mut self.entries[self.packed..];
        if new.len() >= BLOCK_NAMES_MIN {
            MetricName::share_block(new.iter_mut().map(|entry| &mut entry.name));
        }
        self.packed = self.entries.len();
    }

    /// Returns the entry at an index, live or not.
    pub(crate) fn entry(&mut self, index: u32) -> &mut MetricEntry<S> {
        &mut self.entries[index as usize]
    }

    /// Returns the entry's variant or key in the other table; see [`MetricEntry::linked`].
    pub(crate) fn linked(&self, index: u32) -> Option<u32> {
        self.entries.get(index as usize).and_then(|entry| entry.linked)
    }

    /// Removes the metric at an index, if it is live. Its totals restart if it is received again.
    pub(crate) fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        self.live -= usize::from(entry.live);
        (entry.live, entry.last_flush) = (false, 0);
    }

    /// Whether the entry at an index is live.
    pub(crate) fn is_live(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.live)
    }

    /// Returns the number of entries, live or not.
    pub(crate) fn entry_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Makes the entry at an index live; also returns whether it was not live before.
    pub(crate) fn activate(&mut self, index: u32) -> (&mut MetricEntry<S>, bool) {
        let entry = &mut self.entries[index as usize];
        let woken = !entry.live;
        entry.live = true;
        self.live += usize::from(woken);
        (entry, woken)
    }

    /// Returns the index of a live entry by key.
    pub(crate) fn find(&self, key: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let index = self.by_key.find(hash, |index| self.entries[*index as usize].name.key() == key);
        index.copied().filter(|index| self.entries[*index as usize].live)
    }

    /// Whether there is an entry for a key, live or not.
    pub(crate) fn contains(&self, name: &MetricName) -> bool {
        let hash = self.hasher.hash_one(name.key());
        self.by_key.find(hash, |index| self.entries[*index as usize].name == *name).is_some()
    }

    /// Returns the number of live entries.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Returns the number of entries of removed metrics.
    pub(crate) fn dead_count(&self) -> usize {
        self.entries.len() - self.live
    }

    /// Returns the indexes and names of the live entries, in order of first receipt.
    pub(crate) fn live_names(&self) -> impl Iterator<Item = (u32, &MetricName)> {
        let entries = (0..).zip(&self.entries).filter(|(_, entry)| entry.live);
        entries.map(|(index, entry)| (index, &entry.name))
    }

    /// Returns the live entries in order of first receipt.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MetricEntry<S>> {
        self.entries.iter().filter(|entry| entry.live)
    }

    /// Like [`iter`](Self::iter), but with mutable entries.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut MetricEntry<S>> {
        self.entries.iter_mut().filter(|entry| entry.live)
    }

    /// Calls `each` for all live entries, sorted by key.
    pub(crate) fn for_each_sorted(&mut self, mut each: impl FnMut(&mut MetricEntry<S>)) {
        // From here on, snapshots refer to the names.
        self.pack_names();
        let (sorted, all) = (self.order.len(), self.entries.len());
        if sorted < all {
            self.order.extend(sorted as u32..all as u32);
            // A stable sort, because it is fast on mostly sorted input.
            let entries = &self.entries;
            self.order.sort_by(|a, b| entries[*a as usize].name.cmp(&entries[*b as usize].name));
        }
        for index in &self.order {
            let entry = &mut self.entries[*index as usize];
            if entry.live {
                each(entry);
            }
        }
    }

    /// Removes the metrics for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut MetricEntry<S>) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.live) {
            if !keep(entry) {
                entry.live = false;
                self.live -= 1;
            }
        }
    }

    /// Drops the entries of removed metrics. Returns the new index of each old one, or `None` if
    /// the entry was dropped.
    pub(crate) fn compact(&mut self) -> Vec<Option<u32>> {
        let mut next = 0;
        let moved = self.entries.iter().map(|entry| {
            let index = entry.live.then_some(next);
            next += u32::from(entry.live);
            index
        });
        let moved = moved.collect();
        self.entries.retain(|entry| entry.live);
        self.entries.shrink_to(2 * self.live);
        self.order = Vec::new();
        // Most texts in the blocks are those of removed metrics.
        for names in self.entries.chunks_mut(BLOCK_NAMES) {
            MetricName::share_block(names.iter_mut().map(|entry| &mut entry.name));
        }
        self.packed = self.entries.len();
        let Self { by_key, entries, hasher, .. } = self;
        *by_key = HashTable::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let hash = hasher.hash_one(entry.name.key());
            by_key.insert_unique(hash, index as u32, |index| {
                hasher.hash_one(entries[*index as usize].name.key())
            });
        }
        moved
    }

    /// Updates links to another table after it was compacted.
    pub(crate) fn relink(&mut self, moved: &[Option<u32>]) {
        for entry in &mut self.entries {
            entry.linked =
                entry.linked.and_then(|other| moved.get(other as usize).copied().flatten());
        }
    }
}
