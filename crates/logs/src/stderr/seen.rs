//! Prefixes that were read before.
//!
//! Behind the time, the prefix of a session's lines is mostly the same, byte for byte, and what it
//! reads as depends on nothing else. So the last ones are kept with their fields, and one comparison
//! stands for reading them.

use xxhash_rust::xxh3::xxh3_64;

use crate::{frame::Frame, record::Label};

/// The prefixes read last, by a hash of what is before their first colon: the label's, mostly.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    places: Vec<Option<Entry>>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { places: vec![None; PLACES] }
    }
}

/// A prefix with its label.
#[derive(Clone, Debug)]
struct Entry {
    /// From behind the time to where the text begins.
    bytes: Vec<u8>,
    label: Label,
    /// The fields, as if the bytes were at the front of the input.
    fields: Frame,
}

/// Where a prefix is kept, if it may be.
#[derive(Clone, Copy)]
pub(super) struct Place(usize);

/// Sessions whose lines are near each other; memory that stays in a processor's own cache.
const PLACES: usize = 256;

/// Longer ones are not kept.
const BYTES_MAX: usize = 128;

impl Seen {
    /// Where the prefix at the front of `text` is, or would be.
    #[inline]
    pub(super) fn place(text: &[u8]) -> Option<Place> {
        let head = &text[..text.len().min(BYTES_MAX)];
        let colon = memchr::memchr(b':', head)?;
        Some(Place(xxh3_64(&head[..colon]) as usize % PLACES))
    }

    /// What the prefix at the front of `text` reads as, with the label and where the text begins, if it was
    /// read before. The fields are those at the front of an input.
    #[inline]
    pub(super) fn find(&self, place: Place, text: &[u8]) -> Option<(&Frame, Label, usize)> {
        let Entry { bytes, label, fields } = self.places.get(place.0)?.as_ref()?;
        text.starts_with(bytes).then_some((fields, *label, bytes.len()))
    }

    /// Keeps a prefix.
    pub(super) fn keep(&mut self, place: Place, bytes: &[u8], label: Label, fields: Frame) {
        if let Some(kept) = self.places.get_mut(place.0)
            && bytes.len() <= BYTES_MAX
        {
            *kept = Some(Entry { bytes: bytes.to_vec(), label, fields });
        }
    }
}
