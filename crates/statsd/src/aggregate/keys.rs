//! Raw keys to cells, without allocating for one that is known.

use std::hash::{BuildHasher as _, Hasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::Kind;

/// How many [`Kind`]s there are.
pub const KINDS: usize = 4;

/// "This key has no cell of that kind."
const NONE: u32 = u32::MAX;

/// The table. Seeded at random, so that senders cannot choose keys that collide.
#[derive(Debug, Default)]
pub(super) struct Keys {
    table: HashTable<u32>,
    slots: Vec<Slot>,
    /// Name and tags of every slot, one after the other.
    text: Vec<u8>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Slot {
    start: u32,
    name_bytes: u16,
    tags_bytes: u16,
    cells: [u32; KINDS],
}

impl Keys {
    /// How many keys are known.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of a known key.
    #[inline]
    pub(super) fn find(&self, name: &[u8], tags: &[u8]) -> Option<usize> {
        let hash = hash(&self.hasher, name, tags);
        let found =
            self.table.find(hash, |slot| self.slots[*slot as usize].is(&self.text, name, tags));
        found.map(|slot| *slot as usize)
    }

    /// Makes a slot. The key is not known yet; `None` if the texts have grown out of all bounds.
    pub(super) fn insert(&mut self, name: &[u8], tags: &[u8]) -> Option<usize> {
        let slot = Slot {
            start: u32::try_from(self.text.len()).ok()?,
            name_bytes: u16::try_from(name.len()).ok()?,
            tags_bytes: u16::try_from(tags.len()).ok()?,
            cells: [NONE; KINDS],
        };
        let index = u32::try_from(self.slots.len()).ok()?;
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(tags);
        self.slots.push(slot);
        let Self { table, slots, text, hasher } = self;
        table.insert_unique(hash(hasher, name, tags), index, |slot| {
            let (name, tags) = slots[*slot as usize].parts(text);
            hash(hasher, name, tags)
        });
        Some(index as usize)
    }

    /// The cell of a slot, if it has one of that kind.
    #[inline]
    pub(super) fn cell(&self, slot: usize, kind: Kind) -> Option<usize> {
        match self.slots[slot].cells[kind as usize] {
            NONE => None,
            cell => Some(cell as usize),
        }
    }

    /// Gives a slot its cell.
    pub(super) fn set_cell(&mut self, slot: usize, kind: Kind, cell: u32) {
        self.slots[slot].cells[kind as usize] = cell;
    }
}

impl Slot {
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
