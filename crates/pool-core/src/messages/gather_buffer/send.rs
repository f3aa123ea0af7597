//! Sends the contents of a [`GatherBuffer`].

use std::io::IoSlice;

use super::{GatherBuffer, GatherSlice};
use crate::{Backlog, CoreIo, state::ids::PeerId};

/// Maximum number of slices for one [`CoreIo::send`].
const SLICES_MAX: usize = 64;

impl GatherBuffer {
    /// Sends everything in one call, or in as few as [`SLICES_MAX`] allows; returns `None` if the
    /// buffer is empty.
    pub(crate) fn send(
        &mut self,
        input: &[u8],
        to: PeerId,
        io: &mut dyn CoreIo,
    ) -> Option<Backlog> {
        let mut backlog = None;
        for pieces in self.slices.chunks(SLICES_MAX) {
            backlog = Some(match pieces {
                [piece] => io.send(to, &[IoSlice::new(piece.bytes(input, &self.own_bytes))]),
                few if few.len() <= 4 => self.send_slices::<4>(few, input, to, io),
                pieces => self.send_slices::<SLICES_MAX>(pieces, input, to, io),
            });
        }
        self.clear();
        backlog
    }

    /// Sends at most `N` slices, from an array on the stack.
    fn send_slices<const N: usize>(
        &self,
        pieces: &[GatherSlice],
        input: &[u8],
        to: PeerId,
        io: &mut dyn CoreIo,
    ) -> Backlog {
        let mut slices = [IoSlice::new(&[]); N];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece.bytes(input, &self.own_bytes));
        }
        io.send(to, &slices[..pieces.len()])
    }
}
