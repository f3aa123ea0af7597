//! Bitmasks of three byte values in a chunk. One pass builds them; each search is then a bit scan.
//!
//! Columns and keys are so short that the setup of a byte search would cost more than the search.

/// The positions of three byte values, with one bit for each byte of the chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bitmasks {
    blocks: Vec<ByteBlock>,
    /// Number of bytes scanned.
    len: usize,
}

/// One bitmask of 64 bytes for each of the three values.
pub(crate) type ByteBlock = [u64; 3];

const BLOCK: usize = 64;

/// Maximum retained capacity, enough for 4 MB; masks that one huge record made larger are freed.
const RETAINED_BLOCKS_MAX: usize = (4 << 20) / BLOCK;

impl Bitmasks {
    /// Scans `chunk` for three byte values, replacing the previous masks.
    pub(crate) fn scan(&mut self, chunk: &[u8], values: [u8; 3]) {
        self.clear();
        self.extend(chunk, values);
    }

    /// Drops all masks.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.blocks.shrink_to(RETAINED_BLOCKS_MAX);
        self.len = 0;
    }

    /// Returns the number of bytes scanned so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Sets the bit of the third value for the byte after the chunk's last.
    pub(crate) fn push_third(&mut self) {
        if let Some([_, _, third]) = self.blocks.last_mut() {
            *third |= 1 << (self.len % BLOCK);
        }
    }

    /// Scans the rest of a chunk that begins with the bytes scanned so far.
    pub(crate) fn extend(&mut self, chunk: &[u8], values: [u8; 3]) {
        let whole = self.len / BLOCK;
        self.len = chunk.len();
        self.blocks.truncate(whole);
        self.blocks.reserve(chunk.len() / BLOCK + 1 - whole);
        let chunk = &chunk[whole * BLOCK..];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "many times as fast; the processor supports it")]
            // SAFETY: AVX2 is available, as was just checked.
            return unsafe { self.scan_avx2(chunk, values) };
        }
        self.scan_with(chunk, |block| byte_block(block, values));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn scan_avx2(&mut self, chunk: &[u8], values: [u8; 3]) {
        self.scan_with(chunk, |block| vectors::byte_block(block, values));
    }

    #[inline(always)]
    fn scan_with(&mut self, chunk: &[u8], byte_block: impl Fn(&[u8; BLOCK]) -> ByteBlock) {
        let (whole, rest) = chunk.as_chunks::<BLOCK>();
        self.blocks.extend(whole.iter().map(&byte_block));
        let mut last = [0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let inside = (1_u64 << rest.len()) - 1;
        self.blocks.push(byte_block(&last).map(|mask| mask & inside));
    }

    /// Returns the first position at or after `from` among the bits that `select` picks from a
    /// block.
    #[inline]
    pub(crate) fn next(&self, from: usize, select: impl Fn(&ByteBlock) -> u64) -> Option<usize> {
        let mut number = from / BLOCK;
        let mut mask = select(self.blocks.get(number)?) & (u64::MAX << (from % BLOCK));
        while mask == 0 {
            number += 1;
            mask = select(self.blocks.get(number)?);
        }
        Some(number * BLOCK + mask.trailing_zeros() as usize)
    }

    /// Returns the number of blocks; the last one has less than 64 bytes, or none.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the bitmasks of the bytes from `64 * number`; `None` after the end of the chunk.
    #[inline]
    pub(crate) fn block(&self, number: usize) -> Option<&ByteBlock> {
        self.blocks.get(number)
    }

    /// Returns the number of bytes with the third value in `from..to`.
    #[inline]
    pub(crate) fn count_third(&self, from: usize, to: usize) -> usize {
        self.count(from, to, |[_, _, third]| *third)
    }

    #[inline]
    fn count(&self, from: usize, to: usize, select: impl Fn(&ByteBlock) -> u64) -> usize {
        let (first, last) = (from / BLOCK, to / BLOCK);
        let (above, below) = (u64::MAX << (from % BLOCK), (1_u64 << (to % BLOCK)) - 1);
        let blocks = self.blocks.iter().enumerate().take(last + 1).skip(first);
        let counts = blocks.map(|(number, block)| {
            let from = if number == first { above } else { u64::MAX };
            let to = if number == last { below } else { u64::MAX };
            (select(block) & from & to).count_ones() as usize
        });
        counts.sum()
    }
}

fn byte_block(bytes: &[u8; BLOCK], values: [u8; 3]) -> ByteBlock {
    values.map(|values| {
        let bits = bytes.iter().enumerate();
        bits.fold(0, |mask, (at, byte)| mask | u64::from(*byte == values) << at)
    })
}

/// The scan with AVX2, 32 bytes at a time.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_set1_epi8};

    use super::{BLOCK, ByteBlock};
    use crate::scan::vector;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn byte_block(bytes: &[u8; BLOCK], values: [u8; 3]) -> ByteBlock {
        let half =
            |at: usize| vector::load(bytes[at..].first_chunk().expect("a block has two halves"));
        let (low, high) = (half(0), half(32));
        let mut block = [0; 3];
        for (mask, byte) in block.iter_mut().zip(values) {
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
        fn masks_equal_bytewise_search(text in "[,\"\nab]{0,300}", from in 0_usize..300) {
            let chunk = text.as_bytes();
            let from = from.min(chunk.len());
            let mut masks = Bitmasks::default();
            masks.scan(&chunk[..from], *b"\",\n");
            masks.extend(chunk, *b"\",\n");
            let search = |bytes: &[u8]| {
                chunk[from..].iter().position(|byte| bytes.contains(byte)).map(|at| from + at)
            };
            prop_assert_eq!(masks.next(from, |[quotes, _, _]| *quotes), search(b"\""));
            prop_assert_eq!(masks.next(from, |[_, commas, ends]| commas | ends), search(b",\n"));
            let newlines = chunk[from..].iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(masks.count_third(from, chunk.len()), newlines);
            prop_assert_eq!(
                masks.count_third(0, from) + newlines,
                chunk.iter().filter(|byte| **byte == b'\n').count()
            );
        }
    }
}
