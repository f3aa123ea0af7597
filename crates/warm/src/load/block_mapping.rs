//! Maps the pages of a relation in the image to those of the relation as it is now, after it was
//! rewritten or copied. Pure computation, without queries.
//!
//! The rows of which the image has the keys connect the two: a row's page in the image, and its
//! page now. Most ways to rewrite a table preserve the order of its rows (VACUUM FULL, a dump,
//! COPY, logical replication), so pages between two such rows are interpolated. If the rows are in
//! another order (CLUSTER, an ordered copy), only the pages of the sampled rows are known.

use std::collections::BTreeMap;

use crate::image::CachedFork;

/// A page to load, and its usage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedPage {
    pub(super) block: u32,
    pub(super) class: u8,
}

/// How the pages of a rewritten relation are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockMapping {
    /// The rows are in the order of the image.
    InOrder(OrderedRows),
    /// The rows are in another order.
    Scattered(ScatteredRows),
    /// The pages of an index that are resident after descending it for the sampled rows of its
    /// table, of which there are so many.
    Descended(usize),
}

/// The page of a row in the image, and its page now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowPages {
    pub(super) before: u32,
    pub(super) now: u32,
}

/// Rows that are in another order than in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScatteredRows {
    /// Ascending by the page in the image.
    rows: Vec<RowPages>,
    /// Length of the table in the image and now, in pages.
    length: RowPages,
}

/// Rows that are in the same order as in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderedRows {
    /// Ascending by both pages; at least two.
    rows: Vec<RowPages>,
    /// Length of the table in the image and now, in pages.
    length: RowPages,
}

/// Maximum number of pages by which a table is extended at once, since version 16: COPY leaves so
/// many empty ones (`MAX_BUFFERS_TO_EXTEND_BY` in `hio.c`).
pub(super) const EMPTY_TAIL_MAX: u32 = 64;
/// Tolerance of interpolated positions, in pages.
const ROUNDING: f64 = 1e-6;
/// Minimum share of the sampled rows that must be in the same order, in percent. The others were
/// moved by updates.
const ORDERED_PERCENT_MIN: usize = 80;

impl BlockMapping {
    /// Maps by the rows that were found, ascending by their page in the image. `length` is the
    /// length of the table in the image and now. `None` if fewer than two rows were found.
    pub(super) fn from_rows(rows: Vec<RowPages>, length: RowPages) -> Option<Self> {
        if rows.len() < 2 {
            return None;
        }
        let in_order = longest_ordered(&rows);
        if in_order.len() * 100 < rows.len() * ORDERED_PERCENT_MIN {
            return Some(Self::Scattered(ScatteredRows { rows, length }));
        }
        Some(Self::InOrder(OrderedRows { rows: in_order, length }))
    }
}

impl ScatteredRows {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the pages of the rows, with the usage of their pages in the image. `length` is the
    /// number of pages now.
    pub(super) fn map(&self, cached: &CachedFork, length: u32) -> Vec<PlannedPage> {
        let usage: BTreeMap<u32, u8> =
            cached.pages.iter().map(|page| (page.block, page.usage)).collect();
        let mut pages: BTreeMap<u32, u8> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.now < length) {
            let class = pages.entry(row.now).or_default();
            *class = usage.get(&row.before).map_or(*class, |usage| *usage.max(class));
        }
        pages.into_iter().map(|(block, class)| PlannedPage { block, class }).collect()
    }

    /// Estimates the percentage of the rows that are on `pages` pages now. In another order, they
    /// have about the same share of all rows as of the table's pages.
    pub(super) fn percent_reached(&self, pages: usize) -> u8 {
        let percent = 100 * pages as u64 / u64::from(self.length.now.max(1));
        // At most 100.
        percent.min(100) as u8
    }
}

impl OrderedRows {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the pages that now have the rows of the pages in `cached`, ascending. `length` is
    /// the number of pages now.
    pub(super) fn map(&self, cached: &CachedFork, length: u32) -> Vec<PlannedPage> {
        let mut pages: Vec<PlannedPage> = Vec::new();
        for page in cached.pages.iter() {
            let (from, to) = self.position(page.block);
            let first = from.clamp(0.0, f64::from(u32::MAX)) as u32;
            // The first row may be anywhere on its page, so the last ones may be on the next page.
            let last = (to - ROUNDING).ceil().clamp(0.0, f64::from(u32::MAX)) as u32;
            for block in first..=last.min(length.saturating_sub(1)) {
                match pages.last_mut() {
                    // Neighbours share pages, at most one each.
                    Some(before) if before.block >= block => {
                        before.class = before.class.max(page.usage);
                    }
                    _ => pages.push(PlannedPage { block, class: page.usage }),
                }
            }
        }
        pages.retain(|page| page.block < length);
        pages
    }

    /// Returns where the rows of a page begin and end now, in pages.
    ///
    /// Between two rows, pages are interpolated. The rows of a page fit into one page, or into as
    /// many as the whole table has grown by, so a page next to a stretch without cached pages does
    /// not get the pages of that stretch.
    fn position(&self, block: u32) -> (f64, f64) {
        let growth = f64::from(self.length.now) / f64::from(self.length.before.max(1));
        let at = self.rows.partition_point(|row| row.before <= block);
        let Some(before) = at.checked_sub(1).map(|at| self.rows[at]) else {
            let first = self.rows[0];
            let rate = growth.min(1.0);
            let from = f64::from(first.now) - f64::from(first.before - block) * rate;
            return (from, from + rate);
        };
        let rate = match self.rows.get(at) {
            Some(next) => f64::from(next.now - before.now) / f64::from(next.before - before.before),
            None => growth,
        };
        let rate = rate.min(growth.max(1.0));
        let from = f64::from(before.now) + f64::from(block - before.before) * rate;
        (from, from + rate)
    }
}

/// Returns the longest selection of rows whose pages now do not descend, each page of the image
/// once.
fn longest_ordered(rows: &[RowPages]) -> Vec<RowPages> {
    // Patience sorting: `ends[n]` is the row with the lowest page that ends a selection of n + 1.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = vec![None; rows.len()];
    for (at, row) in rows.iter().enumerate() {
        let length = ends.partition_point(|&end| rows[end].now <= row.now);
        previous[at] = length.checked_sub(1).map(|before| ends[before]);
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut selected = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(at) = next {
        selected.push(rows[at]);
        next = previous[at];
    }
    selected.reverse();
    selected.dedup_by_key(|row| row.before);
    selected
}

/// Adds the smallest gaps between `blocks` (ascending) to them, until there are `wanted` blocks. In
/// an index that was built anew, the leaves of neighbouring keys are neighbours.
pub(super) fn fill_gaps(blocks: &[u32], wanted: usize) -> Vec<u32> {
    let mut gaps: Vec<(u32, u32)> = blocks
        .windows(2)
        .map(|pair| (pair[0] + 1, pair[1]))
        .filter(|(first, end)| first < end)
        .collect();
    gaps.sort_by_key(|(first, end)| end - first);
    let mut left = wanted.saturating_sub(blocks.len());
    let mut filled = blocks.to_vec();
    for (first, end) in gaps {
        let length = (end - first) as usize;
        if length > left {
            break;
        }
        filled.extend(first..end);
        left -= length;
    }
    filled.sort_unstable();
    filled
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::image::{CachedPage, Fork};

    fn rows(pairs: &[(u32, u32)]) -> Vec<RowPages> {
        pairs.iter().map(|&(before, now)| RowPages { before, now }).collect()
    }

    fn cached(blocks: impl IntoIterator<Item = u32>) -> CachedFork {
        let page = |block| CachedPage { block, usage: 3, is_dirty: false };
        CachedFork { fork: Fork::Main, length: None, pages: blocks.into_iter().map(page).collect() }
    }

    fn in_order(pairs: &[(u32, u32)], before: u32, now: u32) -> OrderedRows {
        match BlockMapping::from_rows(rows(pairs), RowPages { before, now }) {
            Some(BlockMapping::InOrder(ordered)) => ordered,
            other => panic!("{other:?}"),
        }
    }

    fn blocks(pages: &[PlannedPage]) -> Vec<u32> {
        pages.iter().map(|page| page.block).collect()
    }

    #[test]
    fn pages_between_two_rows_are_interpolated() {
        // The first 1000 pages were bloated by nine tenths, the others not at all.
        let ordered = in_order(&[(0, 0), (1000, 100), (1100, 200)], 2000, 1100);
        assert_eq!(blocks(&ordered.map(&cached(500..520), 1100)), [50, 51, 52]);
        let dense = blocks(&ordered.map(&cached(1010..1020), 1100));
        assert_eq!(dense, (110..=120).collect::<Vec<_>>());
    }

    #[test]
    fn page_before_a_cold_stretch_does_not_get_its_pages() {
        let ordered = in_order(&[(0, 0), (9, 9), (1000, 5000)], 1001, 5001);
        // The table has grown fivefold: so may the page.
        assert_eq!(blocks(&ordered.map(&cached([9]), 5001)), [9, 10, 11, 12, 13, 14]);
        let ordered = in_order(&[(0, 0), (9, 9), (1000, 900)], 1001, 901);
        assert_eq!(blocks(&ordered.map(&cached([9]), 901)), [9, 10]);
    }

    #[test]
    fn pages_before_the_first_and_after_the_last_row_are_extrapolated() {
        let ordered = in_order(&[(10, 5), (20, 10)], 40, 20);
        assert_eq!(blocks(&ordered.map(&cached([0, 30, 39]), 20)), [0, 1, 15, 16, 19]);
        assert_eq!(
            blocks(&ordered.map(&cached([0, 39]), 12)),
            [0, 1],
            "the table has shrunk since"
        );
        assert!(ordered.map(&cached([0, 39]), 0).is_empty());
    }

    #[test]
    fn moved_rows_are_outliers() {
        let mut pairs: Vec<_> = (0..50).map(|at| (at * 10, at * 5)).collect();
        (pairs[7].1, pairs[30].1) = (249, 0);
        let ordered = in_order(&pairs, 500, 250);
        assert_eq!(ordered.len(), 48);
        assert_eq!(blocks(&ordered.map(&cached(70..74), 250)), [35, 36, 37]);
    }

    #[test]
    fn other_order_leaves_the_sampled_rows() {
        let pairs: Vec<_> = (0_u32..100).map(|at| (at, at * 37 % 101)).collect();
        let mapping = BlockMapping::from_rows(rows(&pairs), RowPages { before: 100, now: 202 });
        let Some(BlockMapping::Scattered(scattered)) = mapping else { panic!("{mapping:?}") };
        assert_eq!(scattered.len(), 100);
        let pages = scattered.map(&cached([0, 1]), 101);
        assert_eq!(pages.len(), 100, "each row has a page");
        let usage = |block| pages.iter().find(|page| page.block == block).unwrap().class;
        assert_eq!([usage(0), usage(37), usage(74)], [3, 3, 0]);
        assert_eq!(scattered.percent_reached(pages.len()), 49);
        let one = BlockMapping::from_rows(rows(&[(1, 1)]), RowPages { before: 2, now: 2 });
        assert_eq!(one, None);
    }

    #[test]
    fn smallest_gaps_are_filled_first() {
        assert_eq!(fill_gaps(&[1, 3, 7, 20], 8), [1, 2, 3, 4, 5, 6, 7, 20]);
        assert_eq!(fill_gaps(&[1, 3, 7, 20], 6), [1, 2, 3, 7, 20], "the next gap has three blocks");
        assert_eq!(fill_gaps(&[4], 9), [4]);
        assert!(fill_gaps(&[], 9).is_empty());
    }

    proptest! {
        #[test]
        fn mapped_pages_are_ascending_and_exist(
            mut pairs in vec((0_u32..1000, 0_u32..1000), 2..60),
            pages in vec(0_u32..1200, 0..80),
            before in 0_u32..1200,
            now in 0_u32..1200,
        ) {
            pairs.sort_unstable();
            let length = RowPages { before, now };
            if let Some(BlockMapping::InOrder(ordered)) =
                BlockMapping::from_rows(rows(&pairs), length)
            {
                let mapped = ordered.map(&cached(pages), now);
                prop_assert!(mapped.windows(2).all(|pair| pair[0].block < pair[1].block));
                prop_assert!(mapped.iter().all(|page| page.block < now));
            }
        }
    }
}
