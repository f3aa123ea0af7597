//! [`Slab`]: a table of values in numbered slots. A slot is reused with a new generation, so old
//! ids find nothing.

use std::marker::PhantomData;

use crate::state::ids::{ClientId, ServerId};

/// An id that consists of a slot and a generation.
pub(crate) trait SlabKey: Copy {
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> usize;
    fn generation(self) -> u32;
}

macro_rules! slab_key {
    ($($id:ident),*) => {$(
        impl SlabKey for $id {
            fn new(index: u32, generation: u32) -> Self {
                Self::new(index, generation)
            }
            fn index(self) -> usize {
                self.index()
            }
            fn generation(self) -> u32 {
                self.generation()
            }
        }
    )*};
}
slab_key!(ClientId, ServerId);

#[derive(Debug)]
struct SlabSlot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of values by id. It grows as needed, and never shrinks.
#[derive(Debug)]
pub(crate) struct Slab<K, T> {
    slots: Vec<SlabSlot<T>>,
    free: Vec<u32>,
    key: PhantomData<K>,
}

impl<K: SlabKey, T> Slab<K, T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), key: PhantomData }
    }

    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return K::new(index, slot.generation);
        }
        let index = u32::try_from(self.slots.len()).expect("file descriptors run out before u32");
        self.slots.push(SlabSlot { generation: 0, value: Some(value) });
        K::new(index, 0)
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let slot = self.slots.get_mut(key.index()).filter(|s| s.generation == key.generation())?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(u32::try_from(key.index()).expect("an index is a u32"));
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let slot = self.slots.get(key.index())?;
        if slot.generation == key.generation() { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation == key.generation() { slot.value.as_mut() } else { None }
    }

    /// Returns the value in a slot, with its id; `None` if the slot is free.
    pub(crate) fn occupant(&self, index: usize) -> Option<(K, &T)> {
        let slot = self.slots.get(index)?;
        let key = K::new(u32::try_from(index).ok()?, slot.generation);
        slot.value.as_ref().map(|value| (key, value))
    }

    /// Returns the number of slots, occupied or free.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[test]
fn reused_slot_has_new_id() {
    let mut slab: Slab<ClientId, &str> = Slab::new();
    let first = slab.insert("first");
    assert_eq!(slab.remove(first), Some("first"));
    let second = slab.insert("second");
    assert_eq!(first.index(), second.index());
    assert_eq!(slab.get(first), None);
    assert_eq!(slab.remove(first), None);
    assert_eq!(slab.get(second), Some(&"second"));
    assert_eq!((slab.len(), slab.slots()), (1, 1));
}
