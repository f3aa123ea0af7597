//! The cached pages of a fork.

use howdah_codec::{ByteReader, ByteWriter as _};

use super::body_error::BodyError;

/// The cached pages of a fork: ascending and unique.
///
/// Takes five bytes per page in memory: a server with 64 GB of buffers has eight million pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedPages {
    blocks: Vec<u32>,
    /// Usage count in the low four bits, [`DIRTY`] above.
    flags: Vec<u8>,
}

/// One page of the fork that was in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedPage {
    /// Block number in the fork, from 0.
    pub block: u32,
    /// Usage count, 0 to 5.
    pub usage: u8,
    /// Whether the page was modified since it was read or written.
    pub is_dirty: bool,
}

impl CachedPages {
    /// Returns the number of cached pages of the fork.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the pages, by ascending block.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = CachedPage> {
        self.blocks.iter().zip(&self.flags).map(|(&block, &mark)| CachedPage {
            block,
            usage: mark & USAGE_MASK,
            is_dirty: mark & DIRTY != 0,
        })
    }

    /// Encodes the pages: runs of blocks as gap and length, then usage counts two per byte, then
    /// one dirty bit each. Repetition is left to the compression of the whole body.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let runs = self.runs();
        out.write_count(self.len());
        out.write_count(runs.len());
        let mut next = 0;
        for (first, length) in runs {
            out.write_varint(u64::from(first) - next);
            out.write_varint(length - 1);
            // The next run starts at least one block later; otherwise it would belong to this run.
            next = u64::from(first) + length + 1;
        }
        let usage = |mark: Option<&u8>| mark.map_or(0, |mark| mark & USAGE_MASK);
        out.extend(
            self.flags.chunks(2).map(|pair| usage(pair.first()) | (usage(pair.get(1)) << 4)),
        );
        out.extend(self.flags.chunks(8).map(|marks| {
            let bits = marks.iter().enumerate().map(|(at, mark)| u8::from(mark & DIRTY != 0) << at);
            bits.fold(0, |all, bit| all | bit)
        }));
    }

    /// Decodes the pages of a fork, and subtracts their number from `budget`, before allocating
    /// memory for them.
    pub(super) fn read(
        reader: &mut ByteReader<'_>,
        budget: &mut PageBudget,
    ) -> Result<Self, BodyError> {
        // Not `count()`: two pages share a byte of usage.
        let count: usize = reader.narrow()?;
        budget.take(count as u64)?;
        let run_count = reader.count()?;
        let mut runs = Vec::with_capacity(run_count);
        let (mut next, mut sum) = (0_u64, 0_u64);
        for _ in 0..run_count {
            let first = next.checked_add(reader.varint()?).ok_or(BodyError::NumberOutOfRange)?;
            let length = reader.varint()?.checked_add(1).ok_or(BodyError::NumberOutOfRange)?;
            let end = first.checked_add(length).filter(|&end| end <= MAX_BLOCKS);
            next = end.ok_or(BodyError::NumberOutOfRange)? + 1;
            sum += length;
            runs.push((first, length));
        }
        if sum != count as u64 {
            return Err(BodyError::InconsistentCounts);
        }
        let usage = reader.bytes(count.div_ceil(2))?;
        let dirt = reader.bytes(count.div_ceil(8))?;
        let marks = (0..count).map(|at| {
            let usage = (usage[at / 2] >> (at % 2 * 4)) & USAGE_MASK;
            let is_dirty = dirt[at / 8] >> (at % 8) & 1 == 1;
            usage | if is_dirty { DIRTY } else { 0 }
        });
        let marks = marks.collect();
        // `first` and `length` are within MAX_BLOCKS, so a block fits.
        let blocks = runs.into_iter().flat_map(|(first, length)| first..first + length);
        Ok(Self { blocks: blocks.map(|block| block as u32).collect(), flags: marks })
    }

    fn runs(&self) -> Vec<(u32, u64)> {
        let mut runs: Vec<(u32, u64)> = Vec::new();
        for &block in &self.blocks {
            match runs.last_mut() {
                Some((first, length)) if u64::from(*first) + *length == u64::from(block) => {
                    *length += 1;
                }
                _ => runs.push((block, 1)),
            }
        }
        runs
    }
}

/// Number of pages that an image may contain, according to the size of its server's cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageBudget {
    limit: u64,
    left: u64,
    buffers: u32,
}

impl PageBudget {
    /// Creates the budget of an image of a server with this number of buffers; unlimited if it is
    /// unknown (0). Twice the buffers, and [`PAGES_MARGIN`]: a cache contains at most one page per
    /// buffer, but the size may have changed since an image was merged or converted.
    pub(super) fn new(buffers: u32) -> Self {
        let limit = match buffers {
            0 => u64::MAX,
            buffers => u64::from(buffers) * 2 + PAGES_MARGIN,
        };
        Self { limit, left: limit, buffers }
    }

    /// Returns the number of pages that the image may contain in all.
    pub(super) fn limit(self) -> u64 {
        self.limit
    }

    fn take(&mut self, pages: u64) -> Result<(), BodyError> {
        let buffers = self.buffers;
        self.left = self.left.checked_sub(pages).ok_or(BodyError::TooManyPages { buffers })?;
        Ok(())
    }
}

/// Number of pages that even an image of a tiny cache may contain.
const PAGES_MARGIN: u64 = 1024;

impl FromIterator<CachedPage> for CachedPages {
    /// Collects pages in any order. A page may occur twice if the buffers were read while the
    /// server was running; its highest usage is retained.
    fn from_iter<I: IntoIterator<Item = CachedPage>>(pages: I) -> Self {
        // One word per page, for fast sorting: block, coldness, dirty bit.
        let mut words: Vec<u64> = pages
            .into_iter()
            .filter(|page| u64::from(page.block) < MAX_BLOCKS)
            .map(|page| {
                let coldness = USAGE_MASK - page.usage.min(USAGE_MASK);
                u64::from(page.block) << 8 | u64::from(coldness) << 1 | u64::from(page.is_dirty)
            })
            .collect();
        words.sort_unstable();
        words.dedup_by_key(|word| *word >> 8);
        // Below 256 each.
        let mark = |word: u64| {
            let dirt = if word & 1 == 1 { DIRTY } else { 0 };
            (USAGE_MASK - ((word >> 1) as u8 & USAGE_MASK)) | dirt
        };
        Self {
            // The upper 32 of 40 bits.
            blocks: words.iter().map(|word| (word >> 8) as u32).collect(),
            flags: words.iter().map(|&word| mark(word)).collect(),
        }
    }
}

const USAGE_MASK: u8 = 0xf;
const DIRTY: u8 = 0x10;
/// Maximum number of blocks of a fork: `MaxBlockNumber` in `block.h` is 0xFFFFFFFE.
const MAX_BLOCKS: u64 = 0xffff_ffff;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn page() -> impl Strategy<Value = CachedPage> {
        let block = prop_oneof![0_u32..200, 0_u32..u32::MAX];
        (block, 0_u8..6, any::<bool>()).prop_map(|(block, usage, is_dirty)| CachedPage {
            block,
            usage,
            is_dirty,
        })
    }

    proptest! {
        #[test]
        fn cached_pages_round_trip(pages in vec(page(), 0..300)) {
            let pages: CachedPages = pages.into_iter().collect();
            let mut out = Vec::new();
            pages.write(&mut out);
            let mut reader = ByteReader::new(&out);
            prop_assert_eq!(CachedPages::read(&mut reader, &mut PageBudget::new(0)).unwrap(), pages);
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn contiguous_pages_are_one_run() {
        let pages: CachedPages =
            (0..32_768).map(|block| CachedPage { block, usage: 1, is_dirty: false }).collect();
        let mut out = Vec::new();
        pages.write(&mut out);
        assert_eq!(out.len(), 3 + 1 + 1 + 3 + 16_384 + 4096);
    }

    #[test]
    fn duplicate_page_keeps_its_higher_usage() {
        let seen = |usage| CachedPage { block: 7, usage, is_dirty: false };
        let pages: CachedPages = [seen(1), seen(4), seen(0)].into_iter().collect();
        assert_eq!(pages.iter().collect::<Vec<_>>(), [seen(4)]);
    }

    #[test]
    fn count_without_data_allocates_nothing() {
        let mut out = Vec::new();
        out.write_varint(1 << 40);
        out.write_varint(1);
        out.write_varint(0);
        out.write_varint((1 << 40) - 1);
        assert!(matches!(
            CachedPages::read(&mut ByteReader::new(&out), &mut PageBudget::new(0)),
            Err(BodyError::NumberOutOfRange)
        ));
        out.clear();
        out.write_varint(1 << 30);
        out.write_varint(1);
        out.write_varint(0);
        out.write_varint((1 << 30) - 1);
        assert!(matches!(
            CachedPages::read(&mut ByteReader::new(&out), &mut PageBudget::new(0)),
            Err(BodyError::Truncated)
        ));
    }
}
