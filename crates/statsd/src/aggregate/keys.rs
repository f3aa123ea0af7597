//! Maps raw keys to cells. Looking up a known key does not allocate.

use std::hash::{BuildHasher as _, Hasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::MetricType;

/// The number of [`MetricType`]s.
pub const KINDS: usize = 4;

/// The number that marks a metric type for which a key has no cell, and a slot without a list.
const NONE: u32 = u32::MAX;
/// The number of low bits that hold the cell number in [`KeySlot::first`]; the type is above them.
/// [`StatsdLimits::keys`](crate::settings::StatsdLimits::keys) is at most 2^30.
const CELL_BITS: u32 = 30;

/// The cells of all keys, by name and tags. The hasher has a random seed, so that senders cannot
/// craft colliding keys.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    table: HashTable<u32>,
    slots: Vec<KeySlot>,
    /// The cells of the few keys that were sent with several types.
    lists: Vec<[u32; KINDS]>,
    /// Name and tags of every slot, concatenated.
    text: Vec<u8>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct KeySlot {
    start: u32,
    name_bytes: u16,
    tags_bytes: u16,
    /// The first cell: its type and number.
    first: u32,
    /// The list of the cells of all types, if there are several.
    list: u32,
}

impl KeyTable {
    /// Returns the number of known keys.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the slot of a key, if it is known.
    #[inline]
    pub(super) fn find(&self, name: &[u8], tags: &[u8]) -> Option<usize> {
        let hash = hash(&self.hasher, name, tags);
        let slot =
            self.table.find(hash, |slot| self.slots[*slot as usize].is(&self.text, name, tags));
        slot.map(|slot| *slot as usize)
    }

    /// Adds a slot for an unknown key; `None` if the text of all keys exceeds 4 GiB, or the name or
    /// the tags exceed 65,535 bytes.
    pub(super) fn insert(&mut self, name: &[u8], tags: &[u8]) -> Option<usize> {
        let slot = KeySlot {
            start: u32::try_from(self.text.len()).ok()?,
            name_bytes: u16::try_from(name.len()).ok()?,
            tags_bytes: u16::try_from(tags.len()).ok()?,
            first: NONE,
            list: NONE,
        };
        let index = u32::try_from(self.slots.len()).ok()?;
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(tags);
        self.slots.push(slot);
        let Self { table, slots, text, hasher, .. } = self;
        table.insert_unique(hash(hasher, name, tags), index, |slot| {
            let (name, tags) = slots[*slot as usize].parts(text);
            hash(hasher, name, tags)
        });
        Some(index as usize)
    }

    /// Returns the cell of a slot for a metric type, if there is one.
    #[inline]
    pub(super) fn cell(&self, slot: usize, kind: MetricType) -> Option<usize> {
        let slot = &self.slots[slot];
        if slot.first >> CELL_BITS == kind as u32 && slot.first != NONE {
            return Some((slot.first & ((1 << CELL_BITS) - 1)) as usize);
        }
        match self.lists.get(slot.list as usize)?[kind as usize] {
            NONE => None,
            cell => Some(cell as usize),
        }
    }

    /// Sets the cell of a slot for a metric type.
    pub(super) fn set_cell(&mut self, slot: usize, kind: MetricType, cell: u32) {
        let slot = &mut self.slots[slot];
        if slot.first == NONE {
            slot.first = (kind as u32) << CELL_BITS | cell;
            return;
        }
        if slot.list == NONE {
            slot.list = self.lists.len() as u32;
            self.lists.push([NONE; KINDS]);
        }
        self.lists[slot.list as usize][kind as usize] = cell;
    }
}

impl KeySlot {
    #[inline]
    fn is(&self, text: &[u8], name: &[u8], tags: &[u8]) -> bool {
        self.parts(text) == (name, tags)
    }

    fn parts<'t>(&self, text: &'t [u8]) -> (&'t [u8], &'t [u8]) {
        let tags = self.start as usize + usize::from(self.name_bytes);
        (&text[self.start as usize..tags], &text[tags..tags + usize::from(self.tags_bytes)])
    }
}

#[inline]
fn hash(hasher: &DefaultHashBuilder, name: &[u8], tags: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name);
    if !tags.is_empty() {
        hasher.write(tags);
    }
    hasher.finish()
}
