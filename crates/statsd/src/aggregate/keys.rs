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

/// Separates the tags of a key from its container; neither contains it, because it ends a field.
pub(crate) const CONTAINER_SEPARATOR: u8 = b'|';

/// The raw bytes that identify a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawKey<'k> {
    pub(super) name: &'k [u8],
    pub(super) tags: &'k [u8],
    /// The sender's container; mostly empty.
    pub(super) container: &'k [u8],
}

/// The cells of all keys, by their raw bytes. The hasher has a random seed, so that senders cannot
/// craft colliding keys.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    table: HashTable<u32>,
    slots: Vec<KeySlot>,
    /// The cells of the few keys that were sent with several types.
    lists: Vec<[u32; KINDS]>,
    /// The texts of all slots, concatenated: the name, the tags and, if there is one, a separator
    /// and the container.
    text: Vec<u8>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct KeySlot {
    start: u32,
    name_bytes: u16,
    /// Length of the tags, with the separator and the container if there is one.
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
    pub(super) fn find(&self, key: RawKey<'_>) -> Option<usize> {
        let hash = hash(&self.hasher, key);
        let slot = self.table.find(hash, |slot| self.slots[*slot as usize].is(&self.text, key));
        slot.map(|slot| *slot as usize)
    }

    /// Returns the key of a slot.
    pub(super) fn key(&self, slot: usize) -> RawKey<'_> {
        self.slots[slot].key(&self.text)
    }

    /// Adds a slot for an unknown key; `None` if the text of all keys exceeds 4 GiB, or the name or
    /// the tags exceed 65,535 bytes.
    pub(super) fn insert(&mut self, key: RawKey<'_>) -> Option<usize> {
        let slot = KeySlot {
            start: u32::try_from(self.text.len()).ok()?,
            name_bytes: u16::try_from(key.name.len()).ok()?,
            tags_bytes: u16::try_from(key.tail_bytes()).ok()?,
            first: NONE,
            list: NONE,
        };
        let index = u32::try_from(self.slots.len()).ok()?;
        self.text.extend_from_slice(key.name);
        key.push_tail(&mut self.text);
        self.slots.push(slot);
        let Self { table, slots, text, hasher, .. } = self;
        table.insert_unique(hash(hasher, key), index, |slot| {
            hash(hasher, slots[*slot as usize].key(text))
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

impl RawKey<'_> {
    /// Returns the length of the tags with the container.
    pub(super) fn tail_bytes(self) -> usize {
        let container = if self.container.is_empty() { 0 } else { 1 + self.container.len() };
        self.tags.len() + container
    }

    /// Appends the tags with the container.
    pub(super) fn push_tail(self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.tags);
        if !self.container.is_empty() {
            text.push(CONTAINER_SEPARATOR);
            text.extend_from_slice(self.container);
        }
    }
}

impl KeySlot {
    #[inline]
    fn is(&self, text: &[u8], key: RawKey<'_>) -> bool {
        let (name, tail) = self.parts(text);
        name == key.name
            && if key.container.is_empty() {
                tail == key.tags
            } else {
                split_container(tail) == (key.tags, key.container)
            }
    }

    fn key<'t>(&self, text: &'t [u8]) -> RawKey<'t> {
        let (name, tail) = self.parts(text);
        let (tags, container) = split_container(tail);
        RawKey { name, tags, container }
    }

    fn parts<'t>(&self, text: &'t [u8]) -> (&'t [u8], &'t [u8]) {
        let tags = self.start as usize + usize::from(self.name_bytes);
        (&text[self.start as usize..tags], &text[tags..tags + usize::from(self.tags_bytes)])
    }
}

/// Splits the tags of a slot from its container, which is empty if there is none.
fn split_container(tail: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(CONTAINER_SEPARATOR, tail) {
        Some(at) => (&tail[..at], &tail[at + 1..]),
        None => (tail, b""),
    }
}

#[inline]
fn hash(hasher: &DefaultHashBuilder, key: RawKey<'_>) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key.name);
    if !key.tags.is_empty() {
        hasher.write(key.tags);
    }
    if !key.container.is_empty() {
        hasher.write(key.container);
    }
    hasher.finish()
}
