//! [`GatherBuffer`]: the bytes of one vectored write; ranges of the input are not copied.

use std::ops::Range;

mod send;

/// A range of the input or of `GatherBuffer::own_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GatherSlice {
    /// Whether the range refers to the input.
    is_input: bool,
    start: usize,
    end: usize,
}

/// The bytes to send to one peer, in order. The buffer is reused to avoid allocations, and is empty
/// between calls into the core.
#[derive(Debug, Default)]
pub(crate) struct GatherBuffer {
    slices: Vec<GatherSlice>,
    own_bytes: Vec<u8>,
}

impl GatherBuffer {
    /// Appends a range of the input.
    #[inline]
    pub(crate) fn push_input(&mut self, range: Range<usize>) {
        self.push(GatherSlice { is_input: true, start: range.start, end: range.end });
    }

    /// Appends the bytes that `make` writes, and returns its result.
    pub(crate) fn push_with<T>(&mut self, make: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.own_bytes.len();
        let result = make(&mut self.own_bytes);
        self.push(GatherSlice { is_input: false, start, end: self.own_bytes.len() });
        result
    }

    #[inline]
    fn push(&mut self, piece: GatherSlice) {
        if piece.start == piece.end {
            return;
        }
        match self.slices.last_mut() {
            Some(last) if last.is_input == piece.is_input && last.end == piece.start => {
                last.end = piece.end;
            }
            _ => self.slices.push(piece),
        }
    }

    /// Returns all bytes that were appended by [`GatherBuffer::push_with`], without ranges of the
    /// input.
    pub(crate) fn own_bytes(&self) -> &[u8] {
        &self.own_bytes
    }

    /// Whether the buffer has nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Appends the whole content to `to`, if it is at most `max` bytes; otherwise does nothing.
    pub(crate) fn copy_to(&self, input: &[u8], max: usize, to: &mut Vec<u8>) {
        let total: usize = self.slices.iter().map(|piece| piece.end - piece.start).sum();
        if total <= max {
            self.slices
                .iter()
                .for_each(|piece| to.extend_from_slice(piece.bytes(input, &self.own_bytes)));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slices.clear();
        self.own_bytes.clear();
        self.own_bytes.shrink_to(RETAINED_BYTES);
    }
}

/// Maximum capacity, in bytes, of `GatherBuffer::own_bytes` that is retained between uses.
const RETAINED_BYTES: usize = 64 * 1024;

impl GatherSlice {
    fn bytes<'a>(&self, input: &'a [u8], made: &'a [u8]) -> &'a [u8] {
        let source = if self.is_input { input } else { made };
        &source[self.start..self.end]
    }
}
