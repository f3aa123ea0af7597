//! The pages of a fork that are in a cache, in the order of the fork.

use super::{
    body::BodyError,
    numbers::{self, Reader},
};

/// The cached pages of a fork: ascending, each once.
///
/// Five bytes a page in memory: a server of 64 GB has eight million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    blocks: Vec<u32>,
    /// Usage count in the low four bits, [`DIRTY`] above.
    marks: Vec<u8>,
}

/// One cached page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// Its number in the fork, from 0 on.
    pub block: u32,
    /// Its usage count, 0 to 5.
    pub usage: u8,
    /// Changed since it was read or written.
    pub is_dirty: bool,
}

impl Pages {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The pages, by ascending block.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Page> {
        self.blocks.iter().zip(&self.marks).map(|(&block, &mark)| Page {
            block,
            usage: mark & USAGE,
            is_dirty: mark & DIRTY != 0,
        })
    }

    /// Writes them: runs of blocks as gap and length, then usage counts two to a byte, then one bit
    /// each for dirt. What repeats is left to the compression of the whole body.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let runs = self.runs();
        numbers::put(out, self.len() as u64);
        numbers::put(out, runs.len() as u64);
        let mut next = 0;
        for (first, length) in runs {
            numbers::put(out, u64::from(first) - next);
            numbers::put(out, length - 1);
            // No block can follow at once, else it would belong to the run.
            next = u64::from(first) + length + 1;
        }
        let usage = |mark: Option<&u8>| mark.map_or(0, |mark| mark & USAGE);
        out.extend(
            self.marks.chunks(2).map(|pair| usage(pair.first()) | (usage(pair.get(1)) << 4)),
        );
        out.extend(self.marks.chunks(8).map(|marks| {
            let bits = marks.iter().enumerate().map(|(at, mark)| u8::from(mark & DIRTY != 0) << at);
            bits.fold(0, |all, bit| all | bit)
        }));
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, BodyError> {
        // Two pages take a byte of usage at least.
        let count = usize::try_from(reader.number()?).map_err(|_| BodyError::Number)?;
        let run_count = reader.count()?;
        let mut runs = Vec::with_capacity(run_count);
        let (mut next, mut sum) = (0_u64, 0_u64);
        for _ in 0..run_count {
            let first = next.checked_add(reader.number()?).ok_or(BodyError::Number)?;
            let length = reader.number()?.checked_add(1).ok_or(BodyError::Number)?;
            let end = first.checked_add(length).filter(|&end| end <= MAX_BLOCKS);
            next = end.ok_or(BodyError::Number)? + 1;
            sum += length;
            runs.push((first, length));
        }
        if sum != count as u64 {
            return Err(BodyError::Counts);
        }
        let usage = reader.take(count.div_ceil(2))?;
        let dirt = reader.take(count.div_ceil(8))?;
        let marks = (0..count).map(|at| {
            let usage = (usage[at / 2] >> (at % 2 * 4)) & USAGE;
            let is_dirty = dirt[at / 8] >> (at % 8) & 1 == 1;
            usage | if is_dirty { DIRTY } else { 0 }
        });
        let marks = marks.collect();
        // `first` and `length` are within MAX_BLOCKS, so a block fits.
        let blocks = runs.into_iter().flat_map(|(first, length)| first..first + length);
        Ok(Self { blocks: blocks.map(|block| block as u32).collect(), marks })
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

impl FromIterator<Page> for Pages {
    /// Takes pages in any order. Of a page that comes twice, as it may from a map that was read while
    /// the server ran on, the hotter one stays.
    fn from_iter<I: IntoIterator<Item = Page>>(pages: I) -> Self {
        // One word a page, so that sorting compares nothing else: its block, how cold it is, its dirt.
        let mut words: Vec<u64> = pages
            .into_iter()
            .filter(|page| u64::from(page.block) < MAX_BLOCKS)
            .map(|page| {
                let coldness = USAGE - page.usage.min(USAGE);
                u64::from(page.block) << 8 | u64::from(coldness) << 1 | u64::from(page.is_dirty)
            })
            .collect();
        words.sort_unstable();
        words.dedup_by_key(|word| *word >> 8);
        // Below 256 each.
        let mark = |word: u64| {
            let dirt = if word & 1 == 1 { DIRTY } else { 0 };
            (USAGE - ((word >> 1) as u8 & USAGE)) | dirt
        };
        Self {
            // The upper 32 of 40 bits.
            blocks: words.iter().map(|word| (word >> 8) as u32).collect(),
            marks: words.iter().map(|&word| mark(word)).collect(),
        }
    }
}

const USAGE: u8 = 0xf;
const DIRTY: u8 = 0x10;
/// Blocks a fork can have: `MaxBlockNumber` in `block.h` is 0xFFFFFFFE.
const MAX_BLOCKS: u64 = 0xffff_ffff;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn page() -> impl Strategy<Value = Page> {
        let block = prop_oneof![0_u32..200, 0_u32..u32::MAX];
        (block, 0_u8..6, any::<bool>()).prop_map(|(block, usage, is_dirty)| Page {
            block,
            usage,
            is_dirty,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pages in vec(page(), 0..300)) {
            let pages: Pages = pages.into_iter().collect();
            let mut out = Vec::new();
            pages.write(&mut out);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(Pages::read(&mut reader).unwrap(), pages);
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn a_whole_table_takes_two_numbers_and_its_usage() {
        let pages: Pages =
            (0..32_768).map(|block| Page { block, usage: 1, is_dirty: false }).collect();
        let mut out = Vec::new();
        pages.write(&mut out);
        assert_eq!(out.len(), 3 + 1 + 1 + 3 + 16_384 + 4096);
    }

    #[test]
    fn the_hotter_of_two_readings_of_a_page_stays() {
        let seen = |usage| Page { block: 7, usage, is_dirty: false };
        let pages: Pages = [seen(1), seen(4), seen(0)].into_iter().collect();
        assert_eq!(pages.iter().collect::<Vec<_>>(), [seen(4)]);
    }

    #[test]
    fn a_count_without_its_bytes_reserves_nothing() {
        let mut out = Vec::new();
        numbers::put(&mut out, 1 << 40);
        numbers::put(&mut out, 1);
        numbers::put(&mut out, 0);
        numbers::put(&mut out, (1 << 40) - 1);
        assert!(matches!(Pages::read(&mut Reader::new(&out)), Err(BodyError::Number)));
        out.clear();
        numbers::put(&mut out, 1 << 30);
        numbers::put(&mut out, 1);
        numbers::put(&mut out, 0);
        numbers::put(&mut out, (1 << 30) - 1);
        assert!(matches!(Pages::read(&mut Reader::new(&out)), Err(BodyError::Cut)));
    }
}
