//! Metrics of one kind by key, in the order in which they were first seen.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::Name;

/// The table. Places in it stay what they are until [`Table::compact`].
#[derive(Debug)]
pub(crate) struct Table<S> {
    index: HashTable<u32>,
    entries: Vec<Entry<S>>,
    live: usize,
    /// Places by key's order; some are missing at its end until the next [`Table::for_each_sorted`].
    order: Vec<u32>,
    hasher: DefaultHashBuilder,
}

/// One metric.
#[derive(Debug)]
pub(crate) struct Entry<S> {
    pub(crate) name: Name,
    pub(crate) state: S,
    /// Whether it is there for those who look. A forgotten one keeps its place for a while, because
    /// shards know it by number.
    live: bool,
    /// Samples in the running interval.
    pub(crate) hits: u64,
    /// Samples since the last key flush.
    pub(crate) key_hits: u64,
    /// The flush that it was last part of.
    pub(crate) last_flush: u32,
    /// Whether keys that were sent in another spelling are part of it; each spelling has an entry of
    /// its own in the table of variants then.
    pub(crate) merged: bool,
    /// Of a merged entry: the variant that is spelled as the key itself, if it was ever sent. Of a
    /// variant: the entry that it is part of.
    pub(crate) other: Option<u32>,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            index: HashTable::default(),
            entries: Vec::new(),
            live: 0,
            order: Vec::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<S: Default> Table<S> {
    /// The place of a key, made if needed. Making it does not make it live.
    pub(crate) fn place(&mut self, name: &Name) -> u32 {
        let Self { index, entries, hasher, .. } = self;
        let hash = hasher.hash_one(name.key());
        if let Some(place) = index.find(hash, |place| entries[*place as usize].name == *name) {
            return *place;
        }
        // Bounded by the limit on keys of each shard.
        let place = entries.len() as u32;
        entries.push(Entry {
            name: name.clone(),
            state: S::default(),
            live: false,
            hits: 0,
            key_hits: 0,
            last_flush: 0,
            merged: false,
            other: None,
        });
        index.insert_unique(hash, place, |place| {
            hasher.hash_one(entries[*place as usize].name.key())
        });
        place
    }

    /// The entry at a place, live or not.
    pub(crate) fn entry(&mut self, place: u32) -> &mut Entry<S> {
        &mut self.entries[place as usize]
    }

    /// Whether the entry at a place is live.
    pub(crate) fn is_live(&self, place: u32) -> bool {
        self.entries.get(place as usize).is_some_and(|entry| entry.live)
    }

    /// How many places there are.
    pub(crate) fn places(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The entry at a place, to be changed; it becomes live. The bool tells whether it was not.
    pub(crate) fn wake(&mut self, place: u32) -> (&mut Entry<S>, bool) {
        let entry = &mut self.entries[place as usize];
        let woken = !entry.live;
        entry.live = true;
        self.live += usize::from(woken);
        (entry, woken)
    }

    /// A live entry by key.
    pub(crate) fn find(&self, key: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let found = self.index.find(hash, |place| self.entries[*place as usize].name.key() == key);
        found.copied().filter(|place| self.entries[*place as usize].live)
    }

    /// How many are live.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// How many places are taken by forgotten ones.
    pub(crate) fn dead(&self) -> usize {
        self.entries.len() - self.live
    }

    /// Live entries in the order in which they were first seen.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry<S>> {
        self.entries.iter().filter(|entry| entry.live)
    }

    /// The same, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<S>> {
        self.entries.iter_mut().filter(|entry| entry.live)
    }

    /// Live entries in the order of their keys, to be changed.
    pub(crate) fn for_each_sorted(&mut self, mut each: impl FnMut(&mut Entry<S>)) {
        let (known, all) = (self.order.len(), self.entries.len());
        if known < all {
            self.order.extend(known as u32..all as u32);
            // Stable, because it is quick where most of it is sorted already.
            let entries = &self.entries;
            self.order.sort_by(|a, b| entries[*a as usize].name.cmp(&entries[*b as usize].name));
        }
        for place in &self.order {
            let entry = &mut self.entries[*place as usize];
            if entry.live {
                each(entry);
            }
        }
    }

    /// Forgets those for which `keep` is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut Entry<S>) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.live) {
            if !keep(entry) {
                entry.live = false;
                self.live -= 1;
            }
        }
    }

    /// Gives the places of forgotten entries away. All places change: where each has gone.
    pub(crate) fn compact(&mut self) -> Vec<Option<u32>> {
        let mut next = 0;
        let moved = self.entries.iter().map(|entry| {
            let place = entry.live.then_some(next);
            next += u32::from(entry.live);
            place
        });
        let moved = moved.collect();
        self.entries.retain(|entry| entry.live);
        self.entries.shrink_to(2 * self.live);
        self.order = Vec::new();
        let Self { index, entries, hasher, .. } = self;
        *index = HashTable::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            let hash = hasher.hash_one(entry.name.key());
            index.insert_unique(hash, place as u32, |place| {
                hasher.hash_one(entries[*place as usize].name.key())
            });
        }
        moved
    }

    /// Follows the places of another table after it was compacted.
    pub(crate) fn relink(&mut self, moved: &[Option<u32>]) {
        for entry in &mut self.entries {
            entry.other =
                entry.other.and_then(|other| moved.get(other as usize).copied().flatten());
        }
    }
}
