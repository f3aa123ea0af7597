//! Where lines end in a piece, and where labels may: one pass over its bytes, 64 at a time.
//!
//! A line's label ends in a colon and two spaces, and so few other places do that the first such place in a
//! line tells where its prefix ends, and a second one that the line may be read otherwise. So whoever
//! frames lines searches nothing.

/// A place in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A newline.
    Newline(usize),
    /// A colon with two spaces behind it.
    Colon(usize),
}

/// The marks of one piece, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// Colons have the highest bit set.
    places: Vec<u32>,
}

const COLON: u32 = 1 << 31;

/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// A block and the two bytes behind it.
type Bytes = [u8; BLOCK + 2];

impl Marks {
    /// Finds those of `piece`, which is shorter than 2³¹ bytes, in place of those before.
    pub(crate) fn find(&mut self, piece: &[u8]) {
        debug_assert!(piece.len() < COLON as usize);
        self.places.clear();
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(
                unsafe_code,
                reason = "three times as fast; the processor has what it takes"
            )]
            // SAFETY: AVX2 is there, as was just asked.
            return unsafe { self.find_by_vectors(piece) };
        }
        self.find_by(piece, masks);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn find_by_vectors(&mut self, piece: &[u8]) {
        self.find_by(piece, |bytes| vectors::masks(bytes));
    }

    #[inline(always)]
    fn find_by(&mut self, piece: &[u8], masks: impl Fn(&Bytes) -> (u64, u64)) {
        let mut at = 0;
        // The two bytes behind a block decide of its last colons.
        while let Some(block) = piece.get(at..at + BLOCK + 2).and_then(<[u8]>::first_chunk) {
            self.add(at, masks(block));
            at += BLOCK;
        }
        while at < piece.len() {
            let mut rest = [0; BLOCK + 2];
            let tail = &piece[at..piece.len().min(at + BLOCK + 2)];
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
            self.places.reserve(BLOCK);
        }
        while both != 0 {
            let place = at as u32 + both.trailing_zeros();
            let is_colon = colons & both & both.wrapping_neg() != 0;
            self.places.push(if is_colon { place | COLON } else { place });
            both &= both - 1;
        }
    }

    /// Where the newlines are that are no mark before the one with the number `first`.
    pub(crate) fn newlines_from(&self, first: usize) -> impl Iterator<Item = usize> {
        let newlines = self
            .places
            .get(first..)
            .unwrap_or_default()
            .iter()
            .filter(|place| **place & COLON == 0);
        newlines.map(|place| *place as usize)
    }

    /// The mark with this number.
    #[inline]
    pub(crate) fn at(&self, number: usize) -> Option<Mark> {
        let place = *self.places.get(number)?;
        Some(match place & COLON {
            0 => Mark::Newline(place as usize),
            _ => Mark::Colon((place & !COLON) as usize),
        })
    }
}

/// Which of the first 64 bytes are newlines, and which are colons with two spaces behind.
#[inline]
fn masks(bytes: &Bytes) -> (u64, u64) {
    let (mut newlines, mut colons) = (0, 0);
    for at in 0..BLOCK {
        newlines |= u64::from(bytes[at] == b'\n') << at;
        colons |= u64::from(bytes[at..].starts_with(b":  ")) << at;
    }
    (newlines, colons)
}

/// The same, by vectors of 32 bytes.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{__m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_set1_epi8};

    use super::Bytes;
    use crate::vector;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn masks(bytes: &Bytes) -> (u64, u64) {
        let (newlines, colons) = half(bytes, 0);
        let (more_newlines, more_colons) = half(bytes, 32);
        (newlines | more_newlines << 32, colons | more_colons << 32)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn half(bytes: &Bytes, at: usize) -> (u64, u64) {
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

    /// 32 bytes from `at` on.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &Bytes, at: usize) -> __m256i {
        vector::load(bytes[at..].first_chunk().expect("two halves, and two bytes behind"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_those_that_a_search_finds(text in "[: \n\taLOG]{0,300}", ahead in 0_usize..70) {
            let piece = ["x".repeat(ahead), text].concat();
            let mut marks = Marks::default();
            marks.find(piece.as_bytes());
            let found: Vec<_> = (0..).map_while(|number| marks.at(number)).collect();
            let expected: Vec<_> = (0..piece.len())
                .filter_map(|at| match &piece[at..] {
                    rest if rest.starts_with('\n') => Some(Mark::Newline(at)),
                    rest if rest.starts_with(":  ") => Some(Mark::Colon(at)),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
