//! [`Gather`]: the bytes of one send, partly borrowed from what was received and partly made here.

use std::{io::IoSlice, ops::Range};

use crate::{Backlog, Io, ids::Peer};

/// Slices of one [`Io::send`].
const SLICES_MAX: usize = 64;

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Of the input, else of what was made here.
    of_input: bool,
    start: usize,
    end: usize,
}

/// What is to be sent to one peer, in order. Kept between uses for its memory; empty between calls of
/// the core.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    pieces: Vec<Piece>,
    made: Vec<u8>,
}

impl Gather {
    /// Sends a range of the input as it is.
    #[inline]
    pub(crate) fn input(&mut self, range: Range<usize>) {
        self.push(Piece { of_input: true, start: range.start, end: range.end });
    }

    /// Sends what `make` appends.
    pub(crate) fn make<T>(&mut self, make: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.made.len();
        let result = make(&mut self.made);
        self.push(Piece { of_input: false, start, end: self.made.len() });
        result
    }

    #[inline]
    fn push(&mut self, piece: Piece) {
        if piece.start == piece.end {
            return;
        }
        match self.pieces.last_mut() {
            Some(last) if last.of_input == piece.of_input && last.end == piece.start => {
                last.end = piece.end;
            }
            _ => self.pieces.push(piece),
        }
    }

    /// Sends everything in one go, or in as few as [`SLICES_MAX`] allows; `None` if there is nothing.
    pub(crate) fn send(&mut self, input: &[u8], to: Peer, io: &mut dyn Io) -> Option<Backlog> {
        let mut backlog = None;
        for pieces in self.pieces.chunks(SLICES_MAX) {
            backlog = Some(match pieces {
                [piece] => io.send(to, &[IoSlice::new(piece.bytes(input, &self.made))]),
                few if few.len() <= 4 => self.send_pieces::<4>(few, input, to, io),
                pieces => self.send_pieces::<SLICES_MAX>(pieces, input, to, io),
            });
        }
        self.clear();
        backlog
    }

    /// Sends at most `N` of them.
    fn send_pieces<const N: usize>(
        &self,
        pieces: &[Piece],
        input: &[u8],
        to: Peer,
        io: &mut dyn Io,
    ) -> Backlog {
        let mut slices = [IoSlice::new(&[]); N];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece.bytes(input, &self.made));
        }
        io.send(to, &slices[..pieces.len()])
    }

    /// All that was made here, in order; where nothing is of the input, it is what is to be sent.
    pub(crate) fn made(&self) -> &[u8] {
        &self.made
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copies everything into `to`, if it is `max` bytes or less.
    pub(crate) fn copy(&self, input: &[u8], max: usize, to: &mut Vec<u8>) {
        let total: usize = self.pieces.iter().map(|piece| piece.end - piece.start).sum();
        if total <= max {
            self.pieces
                .iter()
                .for_each(|piece| to.extend_from_slice(piece.bytes(input, &self.made)));
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.made.clear();
        self.made.shrink_to(MADE_BYTES_KEPT);
    }
}

/// Memory for made bytes that is kept between uses.
const MADE_BYTES_KEPT: usize = 64 * 1024;

impl Piece {
    fn bytes<'a>(&self, input: &'a [u8], made: &'a [u8]) -> &'a [u8] {
        let source = if self.of_input { input } else { made };
        &source[self.start..self.end]
    }
}
