//! Where three bytes are in a piece: one pass over it, and each search after that is a look at some bits.
//!
//! Columns and keys are short, so that a search for the end of each costs more to begin than to do.

/// The places of three bytes, a bit for each byte of the piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Masks {
    blocks: Vec<Block>,
}

/// Of 64 bytes, which are the first of the wanted ones, the second, and the third.
pub(crate) type Block = [u64; 3];

const BLOCK: usize = 64;

impl Masks {
    /// Finds `wanted` in `piece`, in place of what was found before.
    pub(crate) fn find(&mut self, piece: &[u8], wanted: [u8; 3]) {
        self.blocks.clear();
        self.blocks.reserve(piece.len() / BLOCK + 1);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "many times as fast; the processor has what it takes")]
            // SAFETY: AVX2 is there, as was just asked.
            return unsafe { self.find_by_vectors(piece, wanted) };
        }
        self.find_by(piece, |block| block_of(block, wanted));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn find_by_vectors(&mut self, piece: &[u8], wanted: [u8; 3]) {
        self.find_by(piece, |block| vectors::block_of(block, wanted));
    }

    #[inline(always)]
    fn find_by(&mut self, piece: &[u8], block_of: impl Fn(&[u8; BLOCK]) -> Block) {
        let (whole, rest) = piece.as_chunks::<BLOCK>();
        self.blocks.extend(whole.iter().map(&block_of));
        let mut last = [0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let inside = (1_u64 << rest.len()) - 1;
        self.blocks.push(block_of(&last).map(|mask| mask & inside));
    }

    /// The first place from `from` on of those that `of` picks from a block.
    #[inline]
    pub(crate) fn next(&self, from: usize, of: impl Fn(&Block) -> u64) -> Option<usize> {
        let mut number = from / BLOCK;
        let mut mask = of(self.blocks.get(number)?) & (u64::MAX << (from % BLOCK));
        while mask == 0 {
            number += 1;
            mask = of(self.blocks.get(number)?);
        }
        Some(number * BLOCK + mask.trailing_zeros() as usize)
    }

    /// The block with this number.
    #[inline]
    pub(crate) fn block(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number)
    }

    /// How many places of the third byte there are from `from` to before `to`.
    #[inline]
    pub(crate) fn count_third(&self, from: usize, to: usize) -> usize {
        self.count(from, to, |[_, _, third]| *third)
    }

    #[inline]
    fn count(&self, from: usize, to: usize, of: impl Fn(&Block) -> u64) -> usize {
        let (first, last) = (from / BLOCK, to / BLOCK);
        let (above, below) = (u64::MAX << (from % BLOCK), (1_u64 << (to % BLOCK)) - 1);
        let blocks = self.blocks.iter().enumerate().take(last + 1).skip(first);
        let counts = blocks.map(|(number, block)| {
            let from = if number == first { above } else { u64::MAX };
            let to = if number == last { below } else { u64::MAX };
            (of(block) & from & to).count_ones() as usize
        });
        counts.sum()
    }
}

fn block_of(bytes: &[u8; BLOCK], wanted: [u8; 3]) -> Block {
    wanted.map(|wanted| {
        let bits = bytes.iter().enumerate();
        bits.fold(0, |mask, (at, byte)| mask | u64::from(*byte == wanted) << at)
    })
}

/// The same, by vectors of 32 bytes.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_set1_epi8};

    use super::{BLOCK, Block};
    use crate::vector;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn block_of(bytes: &[u8; BLOCK], wanted: [u8; 3]) -> Block {
        let half = |at: usize| vector::load(bytes[at..].first_chunk().expect("two halves"));
        let (low, high) = (half(0), half(32));
        let mut block = [0; 3];
        for (mask, byte) in block.iter_mut().zip(wanted) {
            let byte = _mm256_set1_epi8(byte.cast_signed());
            let bits = |half| vector::bits(_mm256_cmpeq_epi8(half, byte));
            *mask = bits(low) | bits(high) << 32;
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_those_that_a_search_finds(text in "[,\"\nab]{0,300}", from in 0_usize..300) {
            let piece = text.as_bytes();
            let from = from.min(piece.len());
            let mut masks = Masks::default();
            masks.find(piece, *b"\",\n");
            let search = |bytes: &[u8]| {
                piece[from..].iter().position(|byte| bytes.contains(byte)).map(|at| from + at)
            };
            prop_assert_eq!(masks.next(from, |[quotes, _, _]| *quotes), search(b"\""));
            prop_assert_eq!(masks.next(from, |[_, commas, ends]| commas | ends), search(b",\n"));
            let newlines = piece[from..].iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(masks.count_third(from, piece.len()), newlines);
            prop_assert_eq!(
                masks.count_third(0, from) + newlines,
                piece.iter().filter(|byte| **byte == b'\n').count()
            );
        }
    }
}
