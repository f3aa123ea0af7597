//! Prefixes that were read before.
//!
//! Behind the time, the prefix of a session's lines is mostly the same, byte for byte, and what it
//! reads as depends on nothing else. So the last ones are kept with what they say, and one comparison
//! stands for reading them.

use crate::{
    frame::{Frames, Owner},
    pieces::is_same,
};

/// The prefixes read last, by what they begin and end with.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    places: Vec<Entry>,
    /// The number of the piece that is being read, from 1.
    piece: u64,
}

impl Default for Seen {
    fn default() -> Self {
        let empty = Entry { bytes: Vec::new(), owner: Owner::EMPTY, piece: 0, number: 0 };
        Self { places: vec![empty; PLACES], piece: 1 }
    }
}

/// A prefix.
#[derive(Clone, Debug)]
struct Entry {
    /// From behind the time to the label; empty if there is none.
    bytes: Vec<u8>,
    /// What it says, as if the bytes were at the front of the input.
    owner: Owner,
    /// The piece in which it was met last, and its number among the owners there.
    piece: u64,
    number: u32,
}

/// Sessions whose lines are near each other; memory that stays in a processor's own cache.
const PLACES: usize = 512;

/// Longer ones are not kept.
const BYTES_MAX: usize = 128;

impl Seen {
    /// Another piece, of which no owner is known yet.
    pub(super) fn begin_piece(&mut self) {
        self.piece += 1;
    }

    /// The number of the owner that the prefix at `at` of the piece names, if it was read before.
    #[inline]
    pub(super) fn find(&mut self, prefix: &[u8], at: usize, out: &mut Frames) -> Option<u32> {
        if prefix.is_empty() {
            return None;
        }
        let mut place = place(prefix);
        if !is_same(&self.places[place].bytes, prefix) {
            place ^= 1;
            if !is_same(&self.places[place].bytes, prefix) {
                return None;
            }
        }
        let entry = &mut self.places[place];
        if entry.piece != self.piece {
            entry.piece = self.piece;
            entry.number = out.add_owner(entry.owner.moved(at));
        }
        Some(entry.number)
    }

    /// Keeps a prefix, whose owner has this number in the piece.
    pub(super) fn keep(&mut self, prefix: &[u8], owner: Owner, number: u32) {
        if prefix.len() <= BYTES_MAX {
            let (bytes, place) = (prefix.to_vec(), place(prefix));
            // Two have room side by side, so that one does not drive the other out line by line.
            self.places.swap(place, place ^ 1);
            self.places[place] = Entry { bytes, owner, piece: self.piece, number };
        }
    }
}

/// Where a prefix is, or would be: by its ends, where names and numbers of sessions are.
#[inline]
fn place(prefix: &[u8]) -> usize {
    let front = prefix.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let back = prefix.last_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let mixed = (front ^ back.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 55) as usize % PLACES
}
