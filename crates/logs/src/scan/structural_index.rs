//! An index of a chunk's structure: its newlines, and the places where labels may end. One pass
//! over the bytes, 64 at a time, builds the index.
//!
//! A line's label ends with a colon and two spaces. This sequence is so rare elsewhere that the
//! first one in a line usually ends the label, and a second one means that the line may be
//! ambiguous. So the framer needs no further search.

/// A delimiter and its offset in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimiter {
    /// Offset of `\n`.
    Newline(usize),
    /// Offset of a colon followed by two spaces.
    Colon(usize),
}

/// The delimiters of one chunk, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct StructuralIndex {
    /// Offsets; those of colons have the highest bit set.
    positions: Vec<u32>,
}

const COLON: u32 = 1 << 31;

/// Number of bytes scanned at once.
const BLOCK: usize = 64;

/// A block and the two bytes after it.
type BlockBytes = [u8; BLOCK + 2];

impl StructuralIndex {
    /// Indexes `chunk`, which must be shorter than 2³¹ bytes, replacing the previous index.
    pub(crate) fn scan(&mut self, chunk: &[u8]) {
        debug_assert!(chunk.len() < COLON as usize);
        self.positions.clear();
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "three times as fast; the processor supports it")]
            // SAFETY: AVX2 is available, as was just checked.
            return unsafe { self.scan_avx2(chunk) };
        }
        self.scan_with(chunk, masks);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn scan_avx2(&mut self, chunk: &[u8]) {
        self.scan_with(chunk, |bytes| vectors::masks(bytes));
    }

    #[inline(always)]
    fn scan_with(&mut self, chunk: &[u8], masks: impl Fn(&BlockBytes) -> (u64, u64)) {
        let mut at = 0;
        // The two bytes after a block decide its last colons.
        while let Some(block) = chunk.get(at..at + BLOCK + 2).and_then(<[u8]>::first_chunk) {
            self.add(at, masks(block));
            at += BLOCK;
        }
        while at < chunk.len() {
            let mut rest = [0; BLOCK + 2];
            let tail = &chunk[at..chunk.len().min(at + BLOCK + 2)];
            rest[..tail.len()].copy_from_slice(tail);
            let inside = if tail.len() < BLOCK { (1 << tail.len()) - 1 } else { u64::MAX };
            let (newlines, colons) = masks(&rest);
            self.add(at, (newlines & inside, colons & inside));
            at += BLOCK;
        }
    }

    #[inline]
    fn add(&mut self, at: usize, (newlines, colons): (u64, u64)) {
        let mut both = newlines | colons;
        if both != 0 {
            self.positions.reserve(BLOCK);
        }
        while both != 0 {
            let offset = at as u32 + both.trailing_zeros();
            let is_colon = colons & both & both.wrapping_neg() != 0;
            self.positions.push(if is_colon { offset | COLON } else { offset });
            both &= both - 1;
        }
    }

    /// Returns the offsets of the newlines among the delimiters from number `first` on.
    pub(crate) fn newlines_from(&self, first: usize) -> impl Iterator<Item = usize> {
        let newlines = self
            .positions
            .get(first..)
            .unwrap_or_default()
            .iter()
            .filter(|offset| **offset & COLON == 0);
        newlines.map(|offset| *offset as usize)
    }

    /// Returns the delimiter at an index, counted from 0 in the order of offsets.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<Delimiter> {
        let offset = *self.positions.get(number)?;
        Some(match offset & COLON {
            0 => Delimiter::Newline(offset as usize),
            _ => Delimiter::Colon((offset & !COLON) as usize),
        })
    }
}

/// Returns the bitmasks of the newlines among the first 64 bytes, and of the colons followed by two
/// spaces.
#[inline]
fn masks(bytes: &BlockBytes) -> (u64, u64) {
    let (mut newlines, mut colons) = (0, 0);
    for at in 0..BLOCK {
        newlines |= u64::from(bytes[at] == b'\n') << at;
        colons |= u64::from(bytes[at..].starts_with(b":  ")) << at;
    }
    (newlines, colons)
}

/// The scan with AVX2, 32 bytes at a time.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{__m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_set1_epi8};

    use super::BlockBytes;
    use crate::scan::vector;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn masks(bytes: &BlockBytes) -> (u64, u64) {
        let (newlines, colons) = half(bytes, 0);
        let (more_newlines, more_colons) = half(bytes, 32);
        (newlines | more_newlines << 32, colons | more_colons << 32)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn half(bytes: &BlockBytes, at: usize) -> (u64, u64) {
        let (text, newline) = (load(bytes, at), _mm256_set1_epi8(b'\n'.cast_signed()));
        let (colon, space) =
            (_mm256_set1_epi8(b':'.cast_signed()), _mm256_set1_epi8(b' '.cast_signed()));
        let spaces = _mm256_and_si256(
            _mm256_cmpeq_epi8(load(bytes, at + 1), space),
            _mm256_cmpeq_epi8(load(bytes, at + 2), space),
        );
        let colons = _mm256_and_si256(_mm256_cmpeq_epi8(text, colon), spaces);
        (vector::bits(_mm256_cmpeq_epi8(text, newline)), vector::bits(colons))
    }

    /// Loads the 32 bytes at offset `at`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &BlockBytes, at: usize) -> __m256i {
        vector::load(bytes[at..].first_chunk().expect("a block has two halves and two more bytes"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn index_equals_bytewise_search(text in "[: \n\taLOG]{0,300}", ahead in 0_usize..70) {
            let chunk = ["x".repeat(ahead), text].concat();
            let mut index = StructuralIndex::default();
            index.scan(chunk.as_bytes());
            let found: Vec<_> = (0..).map_while(|number| index.get(number)).collect();
            let expected: Vec<_> = (0..chunk.len())
                .filter_map(|at| match &chunk[at..] {
                    rest if rest.starts_with('\n') => Some(Delimiter::Newline(at)),
                    rest if rest.starts_with(":  ") => Some(Delimiter::Colon(at)),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
