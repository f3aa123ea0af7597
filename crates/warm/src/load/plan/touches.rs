//! Plans which pages to touch again, and how often, to restore the usage counts of the image.
//!
//! A page that was loaded has the count 1; each touch of a cached page adds 1. So there are up to
//! four rounds. The first one touches only the pages that lack most, the last one touches all that
//! lack anything: if touching is stopped early, hotter pages are still hotter than the others.
//!
//! If not all touches are affordable, the coolest classes go without, and then the last touches of
//! the hotter ones ([`UsageCaps`]). Pure computation, without queries.

use super::{BlockRun, LoadChunk, PlannedPage, map_pages};
use crate::{
    image::{CacheImage, Fork},
    load::{
        catalog::{LocatedRelation, RelationKind},
        occupancy::Occupancy,
        report::{RelationOutcome, RelationProblem},
    },
};

/// `BM_MAX_USAGE_COUNT` in `buf_internals.h`.
const USAGE_MAX: u8 = 5;

/// The pages of an image whose usage count on the server is below that in the image.
#[derive(Debug)]
pub(in crate::load) struct UsageDeficit {
    forks: Vec<ForkDeficit>,
    /// Pages of the image that are in the cache and may be touched.
    pub(in crate::load) pages: u64,
    /// Those of `pages` that had at least the count of the image from the start.
    initially_met: u64,
}

#[derive(Debug)]
struct ForkDeficit {
    relation: usize,
    fork: Fork,
    /// Whether pages may be touched by row pointers.
    has_rows: bool,
    /// Number of the relation's pages in the image, for the order.
    size: u64,
    /// Ascending.
    pages: Vec<CoolPage>,
}

/// A page whose count is too low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoolPage {
    block: u32,
    /// Count in the image.
    target: u8,
    /// Count on the server.
    now: u8,
}

/// Pages that are touched once by one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::load) struct TouchChunk {
    /// The pages. The class is the round: chunks of a higher class come first.
    pub(in crate::load) chunk: LoadChunk,
    pub(in crate::load) method: TouchMethod,
    /// Number of pages that reach the count of the image by this chunk.
    pub(in crate::load) restores: u64,
}

/// How pages are touched. Each call of `pg_prewarm()` opens the relation's file, so it is for long
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) enum TouchMethod {
    Ranges,
    RowPointers,
}

/// Measured costs of touching, relative to the estimates below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::load) struct TouchCosts {
    /// Factor for [`TouchMethod::Ranges`].
    pub(in crate::load) ranges: f64,
    /// Factor for [`TouchMethod::RowPointers`].
    pub(in crate::load) pointers: f64,
}

/// Cost of a statement, in nanoseconds.
const STATEMENT_NS: u64 = 150_000;
/// Cost of a call of `pg_prewarm()` and of each page, if they are cached.
const RANGE_NS: u64 = 6_000;
const RANGE_PAGE_NS: u64 = 400;
/// Cost of a page that is touched by a row pointer.
const POINTER_NS: u64 = 1_500;
/// Maximum length of a run that row pointers touch for less than `pg_prewarm()` does.
const POINTER_RUN_MAX: u64 = RANGE_NS / (POINTER_NS - RANGE_PAGE_NS);

/// Maximum runs and pages of a chunk: a few milliseconds of work.
const RUNS_MAX: usize = 1024;
const RANGE_PAGES_MAX: u64 = 16_384;
/// Maximum runs and pages of a chunk if the load is limited by latency, or to measure the costs.
const SMALL_RUNS_MAX: usize = 128;
const SMALL_PAGES_MAX: u64 = 1024;

/// The counts up to which the pages of each class are touched, by their count in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) struct UsageCaps([u8; USAGE_MAX as usize + 1]);

impl UsageCaps {
    /// All pages get the count of the image.
    const FULL: Self = Self([0, 1, 2, 3, 4, 5]);
    /// Nothing is touched.
    const NONE: Self = Self([0; USAGE_MAX as usize + 1]);

    /// Returns the caps to choose from: all touches, then without the touches of class 1, of class
    /// 2, and so on. A class is lowered count by count, and the hottest class last. With the last
    /// caps, nothing is touched.
    fn all() -> Vec<Self> {
        let mut caps = vec![Self::FULL];
        for class in 1..=USAGE_MAX {
            for cap in (u8::from(class > 1)..class).rev() {
                let mut next = caps[caps.len() - 1];
                next.0[usize::from(class)] = cap;
                caps.push(next);
            }
        }
        caps.push(Self::NONE);
        caps
    }

    /// Returns the number of times to touch a page.
    fn touches(self, page: CoolPage) -> u8 {
        self.0[usize::from(page.target)].saturating_sub(page.now)
    }
}

impl UsageDeficit {
    /// Compares the counts of the image with those on the server, as scanned after a load in
    /// `now`. If they are unknown, the relations that were loaded without a problem are assumed to
    /// have been used once. Pages in `resident` are omitted.
    pub(in crate::load) fn new(
        image: &CacheImage,
        located: &[Result<LocatedRelation, RelationProblem>],
        outcomes: &[RelationOutcome],
        now: Option<&Occupancy>,
        resident: Option<&Occupancy>,
    ) -> Self {
        let mut deficit = Self { forks: Vec::new(), pages: 0, initially_met: 0 };
        for (at, (relation, place)) in image.relations.iter().zip(located).enumerate() {
            let Ok(found) = place else { continue };
            let outcome = &outcomes[at];
            let pages = outcome.pages;
            if now.is_none() && pages.failed + pages.no_room > 0 {
                continue;
            }
            for cached in &relation.forks {
                let held = now.map(|now| now.blocks(found.file, cached.fork));
                let mut targets = map_pages(cached, found, outcome.is_rewritten, held).pages;
                if let Some(resident) = resident {
                    super::remove_resident(&mut targets, resident.blocks(found.file, cached.fork));
                }
                let counted = match now {
                    Some(now) => with_counts(&targets, now.pages(found.file, cached.fork)),
                    None => targets.iter().map(|page| CoolPage::new(*page, 1)).collect(),
                };
                deficit.pages += counted.len() as u64;
                let cool: Vec<_> =
                    counted.iter().filter(|page| page.now < page.target).copied().collect();
                deficit.initially_met += (counted.len() - cool.len()) as u64;
                if !cool.is_empty() {
                    let is_table = matches!(found.kind, RelationKind::Heap | RelationKind::Toast);
                    deficit.forks.push(ForkDeficit {
                        relation: at,
                        fork: cached.fork,
                        has_rows: is_table && cached.fork == Fork::Main,
                        size: relation.page_count(),
                        pages: cool,
                    });
                }
            }
        }
        deficit.forks.sort_by_key(|fork| fork.size);
        deficit
    }

    /// Removes a small chunk of the first round, to measure the cost of a method by it; `None` if
    /// no page is touched by it. The pages count as touched.
    pub(in crate::load) fn take_sample(&mut self, method: TouchMethod) -> Option<TouchChunk> {
        let highest = self.forks.iter().flat_map(|fork| &fork.pages);
        let round = highest.map(|page| UsageCaps::FULL.touches(*page)).max()?;
        let sizes = ChunkSizes::SMALL;
        let mut chunks = Vec::new();
        for fork in &self.forks {
            fork.add_round(UsageCaps::FULL, round, sizes, &mut chunks);
            if let Some(found) = chunks.iter().position(|chunk| chunk.method == method) {
                let sample = chunks.swap_remove(found);
                self.record_touched(&sample.chunk);
                return Some(sample);
            }
            chunks.clear();
        }
        None
    }

    /// Returns the number of pages that have at least the count of the image, also by samples.
    pub(in crate::load) fn count_restored(&self) -> u64 {
        let pages = self.forks.iter().flat_map(|fork| &fork.pages);
        self.initially_met + pages.filter(|page| page.now >= page.target).count() as u64
    }

    fn record_touched(&mut self, chunk: &LoadChunk) {
        let of_chunk =
            |fork: &&mut ForkDeficit| fork.relation == chunk.relation && fork.fork == chunk.fork;
        let mut runs = chunk.runs.iter().peekable();
        for page in self.forks.iter_mut().filter(of_chunk).flat_map(|fork| &mut fork.pages) {
            while runs.next_if(|run| run.last < page.block).is_some() {}
            if runs.peek().is_some_and(|run| run.first <= page.block) {
                page.now += 1;
            }
        }
    }

    /// Returns how far the counts can be restored at a cost of at most `budget_ns` nanoseconds.
    pub(in crate::load) fn affordable(&self, costs: TouchCosts, budget_ns: u64) -> UsageCaps {
        // Not a binary search: without its cooler pages, a run falls into several, which may cost
        // more. The last caps are free.
        let all = UsageCaps::all();
        let is_affordable = |caps: &UsageCaps| self.cost_ns(*caps, costs) <= budget_ns as f64;
        all.iter().copied().find(is_affordable).unwrap_or(UsageCaps::NONE)
    }

    fn cost_ns(&self, caps: UsageCaps, costs: TouchCosts) -> f64 {
        let rounds = 1..=USAGE_MAX;
        let of_fork = |fork: &ForkDeficit| -> f64 {
            let runs = rounds.clone().flat_map(|round| fork.runs(caps, round));
            let cost = |(run, _): (BlockRun, u64)| match fork.method(run) {
                TouchMethod::Ranges => costs.ranges * range_ns(run) as f64,
                TouchMethod::RowPointers => costs.pointers * pointers_ns(run) as f64,
            };
            let sum: f64 = runs.map(cost).sum();
            // The number of statements is unknown before they are made, but at least one.
            if sum > 0.0 { sum + STATEMENT_NS as f64 } else { 0.0 }
        };
        self.forks.iter().map(of_fork).sum()
    }

    /// Returns the touches of all rounds, in order. Chunks are small if `is_gentle`.
    pub(in crate::load) fn chunks(&self, caps: UsageCaps, is_gentle: bool) -> Vec<TouchChunk> {
        let sizes = if is_gentle { ChunkSizes::SMALL } else { ChunkSizes::LARGE };
        let mut chunks = Vec::new();
        for round in (1..=USAGE_MAX).rev() {
            for fork in &self.forks {
                fork.add_round(caps, round, sizes, &mut chunks);
            }
        }
        chunks
    }
}

impl TouchChunk {
    /// Returns the number of touches.
    pub(in crate::load) fn touches(&self) -> u64 {
        self.chunk.pages()
    }

    /// Returns the estimated cost in nanoseconds.
    pub(in crate::load) fn estimated_ns(&self) -> u64 {
        let of_run = match self.method {
            TouchMethod::Ranges => range_ns,
            TouchMethod::RowPointers => pointers_ns,
        };
        STATEMENT_NS + self.chunk.runs.iter().map(|&run| of_run(run)).sum::<u64>()
    }
}

fn range_ns(run: BlockRun) -> u64 {
    RANGE_NS + RANGE_PAGE_NS * run.pages()
}

fn pointers_ns(run: BlockRun) -> u64 {
    POINTER_NS * run.pages()
}

impl CoolPage {
    fn new(page: PlannedPage, now: u8) -> Self {
        Self { block: page.block, target: page.class.min(USAGE_MAX), now }
    }
}

/// Returns the pages that are in the cache, with their counts. Both lists are ascending.
fn with_counts(targets: &[PlannedPage], cached: impl Iterator<Item = (u32, u8)>) -> Vec<CoolPage> {
    let mut cached = cached.peekable();
    let of_page = |page: &PlannedPage| {
        while cached.next_if(|&(block, _)| block < page.block).is_some() {}
        let &(_, now) = cached.peek().filter(|&&(block, _)| block == page.block)?;
        Some(CoolPage::new(*page, now))
    };
    targets.iter().filter_map(of_page).collect()
}

#[derive(Clone, Copy)]
struct ChunkSizes {
    runs: usize,
    pages: u64,
}

impl ChunkSizes {
    const LARGE: Self = Self { runs: RUNS_MAX, pages: RANGE_PAGES_MAX };
    const SMALL: Self = Self { runs: SMALL_RUNS_MAX, pages: SMALL_PAGES_MAX };
}

impl ForkDeficit {
    fn method(&self, run: BlockRun) -> TouchMethod {
        if self.has_rows && run.pages() <= POINTER_RUN_MAX {
            TouchMethod::RowPointers
        } else {
            TouchMethod::Ranges
        }
    }

    /// Returns the runs of pages to touch in a round, and how many of the pages of each reach the
    /// count of the image by it. Runs contain no other pages: a touch too many would be an error.
    fn runs(&self, caps: UsageCaps, round: u8) -> impl Iterator<Item = (BlockRun, u64)> + '_ {
        let restored = move |page: &CoolPage| {
            u64::from(round == 1 && caps.0[usize::from(page.target)] == page.target)
        };
        let touched = self.pages.iter().filter(move |page| caps.touches(**page) >= round);
        let mut touched = touched.peekable();
        std::iter::from_fn(move || {
            let first = touched.next()?;
            let (mut run, mut restores) =
                (BlockRun::new(first.block, first.block), restored(first));
            while let Some(page) =
                touched.next_if(|page| run.last.checked_add(1) == Some(page.block))
            {
                run.last = page.block;
                restores += restored(page);
            }
            Some((run, restores))
        })
    }

    fn add_round(
        &self,
        caps: UsageCaps,
        round: u8,
        sizes: ChunkSizes,
        chunks: &mut Vec<TouchChunk>,
    ) {
        let empty = |method| TouchChunk {
            chunk: LoadChunk {
                relation: self.relation,
                fork: self.fork,
                class: round,
                runs: Vec::new(),
            },
            method,
            restores: 0,
        };
        let mut open = [empty(TouchMethod::Ranges), empty(TouchMethod::RowPointers)];
        for (run, restores) in self.runs(caps, round) {
            let method = self.method(run);
            let part = &mut open[usize::from(method == TouchMethod::RowPointers)];
            // A long run is split, so that a statement is short. Which of its pages are restored
            // does not matter as long as the sum is right.
            let mut restores = restores;
            for piece in split_run(run, sizes.pages) {
                if part.chunk.runs.len() >= sizes.runs
                    || part.touches() + piece.pages() > sizes.pages
                {
                    let full = std::mem::replace(part, empty(method));
                    chunks.extend(Some(full).filter(|full| !full.chunk.runs.is_empty()));
                }
                part.chunk.runs.push(piece);
                let restored = restores.min(piece.pages());
                part.restores += restored;
                restores -= restored;
            }
        }
        chunks.extend(open.into_iter().filter(|part| !part.chunk.runs.is_empty()));
    }
}

fn split_run(run: BlockRun, pages_max: u64) -> impl Iterator<Item = BlockRun> {
    let step = u32::try_from(pages_max.max(1)).unwrap_or(u32::MAX);
    let mut next = Some(run.first);
    std::iter::from_fn(move || {
        let first = next.filter(|&first| first <= run.last)?;
        let last = first.saturating_add(step - 1).min(run.last);
        next = last.checked_add(1);
        Some(BlockRun::new(first, last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deficit(has_rows: bool, pages: &[(u32, u8, u8)]) -> UsageDeficit {
        let page = |&(block, target, now): &(u32, u8, u8)| CoolPage { block, target, now };
        let pages: Vec<_> = pages.iter().map(page).collect();
        let fork = ForkDeficit { relation: 0, fork: Fork::Main, has_rows, size: 1, pages };
        UsageDeficit { forks: vec![fork], pages: 0, initially_met: 0 }
    }

    /// The rounds of the chunks, each with its blocks.
    fn rounds(chunks: &[TouchChunk]) -> Vec<(u8, Vec<u32>)> {
        let blocks = |chunk: &LoadChunk| {
            chunk.runs.iter().flat_map(|run| run.first..=run.last).collect::<Vec<_>>()
        };
        chunks.iter().map(|touch| (touch.chunk.class, blocks(&touch.chunk))).collect()
    }

    const EXACT: TouchCosts = TouchCosts { ranges: 1.0, pointers: 1.0 };

    #[test]
    fn pages_are_touched_as_often_as_their_count_lacks() {
        let deficit = deficit(false, &[(1, 5, 1), (2, 3, 1), (3, 5, 4), (9, 1, 0)]);
        let caps = deficit.affordable(EXACT, u64::MAX);
        assert_eq!(caps, UsageCaps::FULL);
        let chunks = deficit.chunks(caps, false);
        assert_eq!(
            rounds(&chunks),
            [(4, vec![1]), (3, vec![1]), (2, vec![1, 2]), (1, vec![1, 2, 3, 9])]
        );
        assert_eq!(chunks.iter().map(|chunk| chunk.restores).sum::<u64>(), 4);
    }

    #[test]
    fn coolest_classes_go_without_if_the_budget_is_small() {
        let pages: Vec<_> = [(2, 100), (4, 100), (5, 100)]
            .iter()
            .flat_map(|&(class, count)| {
                (0..count).map(move |at| (u32::from(class) * 1000 + at * 2, class, 1))
            })
            .collect();
        let deficit = deficit(false, &pages);
        // Single pages cost 6.4 µs, a statement 150 µs.
        let touches = |touches: u64| STATEMENT_NS + touches * (RANGE_NS + RANGE_PAGE_NS);
        let caps = |budget| deficit.affordable(EXACT, budget).0;
        assert_eq!(caps(touches(800)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(caps(touches(799)), [0, 0, 1, 3, 4, 5]);
        assert_eq!(caps(touches(650)), [0, 0, 1, 1, 3, 5]);
        assert_eq!(caps(touches(400)), [0, 0, 1, 1, 1, 5]);
        assert_eq!(caps(touches(350)), [0, 0, 1, 1, 1, 4]);
        assert_eq!(caps(touches(99)), [0, 0, 1, 1, 1, 1]);
        // A cost of twice the estimate halves the number of affordable touches.
        let measured = TouchCosts { ranges: 2.0, pointers: 1.0 };
        assert_eq!(deficit.affordable(measured, touches(800)).0, [0, 0, 1, 1, 1, 5]);
    }

    #[test]
    fn hotter_pages_stay_hotter_with_any_caps() {
        for caps in UsageCaps::all() {
            assert!(caps.0.is_sorted(), "{caps:?}");
        }
    }

    #[test]
    fn short_runs_of_tables_are_touched_by_row_pointers() {
        let mut pages: Vec<_> = (0..40).map(|block| (block, 2, 1)).collect();
        pages.extend([(50, 2, 1), (52, 2, 1)]);
        let table = deficit(true, &pages).chunks(UsageCaps::FULL, false);
        let methods: Vec<_> = table.iter().map(|chunk| (chunk.method, chunk.touches())).collect();
        assert_eq!(methods, [(TouchMethod::Ranges, 40), (TouchMethod::RowPointers, 2)]);
        let index = deficit(false, &pages).chunks(UsageCaps::FULL, false);
        assert_eq!((index.len(), index[0].touches()), (1, 42));
    }

    #[test]
    fn long_runs_are_split() {
        let pages: Vec<_> = (0..2500).map(|block| (block, 3, 1)).collect();
        let chunks = deficit(false, &pages).chunks(UsageCaps::FULL, true);
        let sizes: Vec<_> =
            chunks.iter().map(|chunk| (chunk.chunk.class, chunk.touches())).collect();
        assert_eq!(sizes, [(2, 1024), (2, 1024), (2, 452), (1, 1024), (1, 1024), (1, 452)]);
        assert_eq!(chunks.iter().map(|chunk| chunk.restores).sum::<u64>(), 2500);
    }

    #[test]
    fn sample_counts_as_touched() {
        let mut deficit = deficit(false, &[(1, 5, 1), (2, 3, 1), (7, 5, 1)]);
        assert_eq!(deficit.take_sample(TouchMethod::RowPointers), None);
        let sample = deficit.take_sample(TouchMethod::Ranges).unwrap();
        assert_eq!(rounds(&[sample]), [(4, vec![1, 7])]);
        let chunks = deficit.chunks(UsageCaps::FULL, false);
        assert_eq!(rounds(&chunks), [(3, vec![1, 7]), (2, vec![1, 2, 7]), (1, vec![1, 2, 7])]);
    }

    #[test]
    fn absent_pages_are_not_touched() {
        let page = |block, class| PlannedPage { block, class };
        let targets = [page(1, 5), page(2, 9), page(4, 2), page(6, 3)];
        let cached = [(0, 1), (2, 1), (4, 5), (5, 1), (6, 0)];
        let found = with_counts(&targets, cached.into_iter());
        let found: Vec<_> = found.iter().map(|page| (page.block, page.target, page.now)).collect();
        assert_eq!(found, [(2, 5, 1), (4, 2, 5), (6, 3, 0)]);
    }
}
