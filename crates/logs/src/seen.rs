//! The owners of the records before, by the bytes that name them: a session's are the same in all its records.

use crate::{
    frame::Frames,
    pieces::{Span, is_same},
};

/// Owners that were met in the piece that is being framed.
#[derive(Clone, Debug)]
pub(crate) struct Seen<const TAILS: usize> {
    places: Vec<Entry<TAILS>>,
    /// The number of the piece that is being framed, from 1.
    piece: u64,
}

/// What the owner that was met last in some place was read from.
#[derive(Clone, Copy, Debug)]
struct Entry<const TAILS: usize> {
    /// What names it in one run of bytes.
    head: Span,
    /// Application, backend type, leader.
    tail: [Span; TAILS],
    piece: u64,
    number: u32,
}

/// Sessions whose records are near each other.
const PLACES: usize = 512;

impl<const TAILS: usize> Default for Seen<TAILS> {
    fn default() -> Self {
        let empty = Entry { head: Span::ABSENT, tail: [Span::ABSENT; TAILS], piece: 0, number: 0 };
        Self { places: vec![empty; PLACES], piece: 0 }
    }
}

impl<const TAILS: usize> Seen<TAILS> {
    /// From now on places are those of another piece.
    pub(crate) fn begin_piece(&mut self) {
        self.piece += 1;
    }

    /// The number of a record's owner, which `read` finds out where it was not met before. Without a `head`
    /// there is nothing to know it by.
    #[inline]
    pub(crate) fn owner(
        &mut self,
        head: Option<Span>,
        tail: [Span; TAILS],
        piece: &[u8],
        out: &mut Frames,
        read: impl FnOnce(&mut Frames) -> u32,
    ) -> u32 {
        let Some(head) = head else { return read(out) };
        let text = |span: Span| span.text(piece, &out.scratch);
        let last = text(head).last_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        let place = (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % PLACES;
        let piece_number = self.piece;
        let is_there = |entry: &Entry<TAILS>| {
            entry.piece == piece_number
                && is_same(text(entry.head), text(head))
                && tail
                    .iter()
                    .zip(&entry.tail)
                    .all(|(one, other)| is_same(text(*one), text(*other)))
        };
        for place in [place, place ^ 1] {
            if is_there(&self.places[place]) {
                return self.places[place].number;
            }
        }
        let number = read(out);
        // Two have room side by side, so that one does not drive the other out record by record.
        self.places.swap(place, place ^ 1);
        self.places[place] = Entry { head, tail, piece: self.piece, number };
        number
    }
}
