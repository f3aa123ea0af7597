//! Plans what to load and in which order, as far as there is room: chunks of limited size, the
//! hottest usage class first. Within a class, small relations come first, and the chunks of a
//! relation are in disk order. Pure computation, without queries.

pub(super) mod touches;
mod usage_classes;

use std::cmp::Reverse;

use super::{
    block_mapping::{self, BlockMapping, EMPTY_TAIL_MAX, PlannedPage},
    catalog::LocatedRelation,
    occupancy::Occupancy,
    report::{PageMapping, RelationOutcome, RelationProblem},
};
use crate::image::{CacheImage, CachedFork, Fork, RelationFile};

/// A plan of a load: the chunks to load, in order, and the blocks that were requested.
#[derive(Debug)]
pub(super) struct LoadPlan {
    pub(super) chunks: Vec<LoadChunk>,
    /// Requested blocks of each fork that are resident already.
    pub(super) resident: Vec<(RelationFile, Fork, Vec<u32>)>,
    /// All requested blocks of each fork, whether there is room for them or not.
    pub(super) requested: Vec<(RelationFile, Fork, Vec<u32>)>,
}

/// Pages of one fork that are loaded by one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadChunk {
    /// Index of the chunk's relation in the list of located relations.
    pub(super) relation: usize,
    pub(super) fork: Fork,
    /// Usage class of the pages; chunks of a higher class come first.
    pub(super) class: u8,
    /// Runs of blocks, ascending; at most [`RUNS_MAX`].
    pub(super) runs: Vec<BlockRun>,
}

/// A run of consecutive blocks, including `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRun {
    pub(super) first: u32,
    pub(super) last: u32,
    /// Number of blocks that are resident before the run is loaded, because they were cached or
    /// belong to a hotter chunk. Reading them again costs less than starting another run after
    /// them.
    pub(super) resident: u32,
}

/// Sizes that a plan must not exceed, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanLimits {
    /// Pages for which there is room, in addition to resident ones.
    pub(super) room: u64,
    /// Maximum number of pages in a chunk.
    pub(super) chunk: u32,
}

/// Maximum pages of a chunk: 16 MiB. Large enough that the overhead per statement is negligible,
/// small enough that all connections finish at about the same time.
pub(super) const CHUNK_PAGES_MAX: u32 = 2048;
/// Maximum runs of a chunk, so that statements stay short.
const RUNS_MAX: usize = 1024;
/// Maximum number of cooler pages between two pages of a class that are loaded with that class:
/// with cold files, another run takes as long as three or four consecutive pages, with or without
/// read-ahead.
const GAP_PAGES_MAX: u32 = 4;
/// Maximum number of resident pages that a run continues over.
const RESIDENT_GAP_MAX: u32 = 16;
/// Minimum average length of runs for which the operating system's read-ahead sets in, in pages.
const SPARSE_PAGES: u64 = 16;

impl BlockRun {
    /// Creates a run without resident blocks.
    pub(super) fn new(first: u32, last: u32) -> Self {
        Self { first, last, resident: 0 }
    }

    /// Returns the number of pages to load.
    pub(super) fn pages(self) -> u64 {
        self.blocks() - u64::from(self.resident)
    }

    /// Returns the number of pages that are touched, resident or not.
    fn blocks(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    /// Truncates the run to end before `end`, which is after its first block.
    fn truncate_at(&mut self, end: u32) {
        self.last = self.last.min(end - 1);
        self.resident = self.resident.min(self.last - self.first);
    }
}

impl LoadChunk {
    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages()).sum()
    }

    /// Whether the pages are so scattered that, without prefetching, each one would wait for the
    /// disk.
    pub(super) fn is_sparse(&self) -> bool {
        self.runs.len() > 1 && self.pages() < SPARSE_PAGES * self.runs.len() as u64
    }

    /// Splits the chunk into the parts before and after a block, which is omitted. `None` if the
    /// chunk does not contain the block. It is unknown which blocks of a run are resident, so as
    /// many as possible are assumed to be before the block.
    pub(super) fn split_around(&self, block: u32) -> Option<(Self, Self)> {
        let at = self.runs.iter().position(|run| run.first <= block && block <= run.last)?;
        let run = self.runs[at];
        let (mut before, mut after) = (self.runs[..at].to_vec(), self.runs[at + 1..].to_vec());
        let blocks_before = block - run.first;
        // The omitted block is not resident, so the other blocks include all resident ones.
        let resident = run.resident.min(blocks_before);
        if blocks_before > resident {
            before.push(BlockRun { first: run.first, last: block - 1, resident });
        }
        let (blocks_after, resident) = (run.last - block, run.resident - resident);
        if blocks_after > resident {
            after.insert(0, BlockRun { first: block + 1, last: run.last, resident });
        }
        let of = |runs| Self { runs, ..self.clone() };
        Some((of(before), of(after)))
    }

    /// Returns the part of the chunk before a number of blocks, at least one block.
    pub(super) fn first_blocks(&self, blocks_max: u64) -> Self {
        let mut left = blocks_max.max(1);
        let mut first = Self { runs: Vec::new(), ..self.clone() };
        for run in &self.runs {
            let mut run = *run;
            let end = u64::from(run.first) + left;
            if end <= u64::from(run.last) {
                run.truncate_at(u32::try_from(end).unwrap_or(u32::MAX));
            }
            first.runs.push(run);
            left = left.saturating_sub(run.blocks());
            if left == 0 {
                break;
            }
        }
        first
    }

    /// Returns a block in the middle of the chunk.
    pub(super) fn middle(&self) -> u32 {
        let mut left = self.runs.iter().map(|run| run.blocks()).sum::<u64>() / 2;
        for run in &self.runs {
            if left < run.blocks() {
                return run.first + u32::try_from(left).unwrap_or(0);
            }
            left -= run.blocks();
        }
        self.runs.first().map_or(0, |run| run.first)
    }

    /// Drops the blocks from `end` on, and returns the number of pages that are no longer loaded.
    pub(super) fn truncate_at(&mut self, end: u32) -> u64 {
        let before = self.pages();
        self.runs.retain_mut(|run| {
            let is_left = run.first < end;
            if is_left {
                run.truncate_at(end);
            }
            is_left
        });
        before - self.pages()
    }
}

/// Plans the loading of the relations of `image`. Counts in `outcomes` the pages that are
/// requested, already resident, or omitted.
pub(super) fn plan(
    image: &CacheImage,
    located: &[Result<LocatedRelation, RelationProblem>],
    occupancy: Option<&Occupancy>,
    bounds: PlanLimits,
    outcomes: &mut [RelationOutcome],
) -> LoadPlan {
    let mut missing = missing_pages(image, located, occupancy, outcomes);
    // Without room for all pages, classes must stay separate, at any cost, so that the coolest
    // pages are omitted.
    let has_room = missing.iter().map(|fork| fork.pages.len() as u64).sum::<u64>() <= bounds.room;
    let requested = missing.iter().map(MissingPages::requested).collect();
    let mut chunks = Vec::new();
    for MissingPages { relation, fork, pages, resident, .. } in &mut missing {
        absorb_gaps(pages);
        if has_room {
            usage_classes::merge_scattered_classes(pages);
        }
        let of = LoadChunk { relation: *relation, fork: *fork, class: 0, runs: Vec::new() };
        split_into_chunks(pages, resident, &of, bounds.chunk, &mut chunks);
    }
    // Load small relations first: among equally hot pages, those of an index serve more rows than
    // those of its table. Within a relation, the disk order is retained.
    let size = |chunk: &LoadChunk| image.relations[chunk.relation].page_count();
    chunks.sort_by_cached_key(|chunk| (Reverse(chunk.class), size(chunk)));
    let chunks = fit_to_room(chunks, bounds.room, outcomes);
    let resident = missing.into_iter().map(|fork| (fork.file, fork.fork, fork.resident)).collect();
    LoadPlan { chunks, resident, requested }
}

/// The requested pages of a fork: those missing from the cache, and those resident.
struct MissingPages {
    relation: usize,
    file: RelationFile,
    fork: Fork,
    /// Pages to load, ascending.
    pages: Vec<PlannedPage>,
    /// Requested blocks that are resident already, ascending.
    resident: Vec<u32>,
}

impl MissingPages {
    fn requested(&self) -> (RelationFile, Fork, Vec<u32>) {
        let blocks = self.pages.iter().map(|page| page.block);
        (self.file, self.fork, blocks.chain(self.resident.iter().copied()).collect())
    }
}

fn missing_pages(
    image: &CacheImage,
    located: &[Result<LocatedRelation, RelationProblem>],
    occupancy: Option<&Occupancy>,
    outcomes: &mut [RelationOutcome],
) -> Vec<MissingPages> {
    let mut missing = Vec::new();
    for (at, (relation, place)) in image.relations.iter().zip(located).enumerate() {
        let outcome = &mut outcomes[at];
        let found = match place {
            Ok(found) => found,
            Err(problem) => {
                outcome.problem = Some(problem.clone());
                outcome.pages.not_found = outcome.pages.in_image;
                continue;
            }
        };
        for cached in &relation.forks {
            let blocks = occupancy.map_or(&[][..], |seen| seen.blocks(found.file, cached.fork));
            let MappedPages { mut pages, beyond_end, by } =
                map_pages(cached, found, outcome.is_rewritten, occupancy.map(|_| blocks));
            if let Some(PageMapping::SampledRows { .. }) = by {
                // Pages that the sampled rows do not reach count as missing.
                outcome.pages.not_found +=
                    (cached.pages.len() as u64).saturating_sub(pages.len() as u64);
            }
            outcome.mapped_by = outcome.mapped_by.or(by);
            outcome.pages.beyond_end += beyond_end;
            outcome.pages.requested += pages.len() as u64;
            let resident = remove_resident(&mut pages, blocks);
            outcome.pages.resident += resident.len() as u64;
            missing.push(MissingPages {
                relation: at,
                file: found.file,
                fork: cached.fork,
                pages,
                resident,
            });
        }
        if outcome.pages.beyond_end > 0 {
            outcome.problem = Some(RelationProblem::Shrunk);
        }
    }
    missing
}

/// The pages of a fork that exist on the server, and the number of those beyond its end.
struct MappedPages {
    pages: Vec<PlannedPage>,
    beyond_end: u64,
    /// How the pages of a rewritten relation's main fork were found.
    by: Option<PageMapping>,
}

/// Maps the pages of a fork in the image to those of the relation on the server. `resident` are the
/// blocks of the fork in the cache, after rows were looked up, if they are known.
///
/// If the file is the same, blocks keep their numbers. Those of a rewritten relation are found by
/// its rows, or else by their share of its length.
fn map_pages(
    cached: &CachedFork,
    found: &LocatedRelation,
    is_rewritten: bool,
    resident: Option<&[u32]>,
) -> MappedPages {
    let now = found.lengths[cached.fork.number() as usize];
    let is_main = cached.fork == Fork::Main;
    let can_map = |mapping: &&BlockMapping| match mapping {
        BlockMapping::Descended(_) => is_main && resident.is_some(),
        BlockMapping::InOrder(_) | BlockMapping::Scattered(_) => is_main,
    };
    let (Some(mapping), Some(now)) = (found.mapping.as_ref().filter(can_map), now) else {
        let by = (is_rewritten && is_main).then_some(PageMapping::Length);
        return MappedPages { by, ..map_by_length(cached, now, is_rewritten) };
    };
    let (pages, by) = match mapping {
        BlockMapping::InOrder(ordered) => {
            (ordered.map(cached, now), PageMapping::Keys { rows: ordered.len() })
        }
        BlockMapping::Scattered(scattered) => {
            let pages = scattered.map(cached, now);
            let percent = scattered.percent_reached(pages.len());
            (pages, PageMapping::SampledRows { rows: scattered.len(), percent })
        }
        BlockMapping::Descended(rows) => (
            index_pages(cached, now, resident.unwrap_or_default()),
            PageMapping::Descents { rows: *rows },
        ),
    };
    MappedPages { pages, beyond_end: 0, by: Some(by) }
}

/// Returns the pages of an index that was descended: those in the cache, and the smallest gaps
/// between them, up to as many as the image has, or to its share of an index that has become
/// smaller. All have the mean usage of the image's.
fn index_pages(cached: &CachedFork, now: u32, resident: &[u32]) -> Vec<PlannedPage> {
    let (count, old) = (cached.pages.len() as u64, cached.length.unwrap_or(now).max(1));
    let share = count * u64::from(now.min(old)) / u64::from(old);
    let wanted = usize::try_from(share.max(1)).unwrap_or(usize::MAX);
    let sum: u64 = cached.pages.iter().map(|page| u64::from(page.usage)).sum();
    // A mean of u8 values, so it fits.
    let class = (sum / count.max(1)) as u8;
    let blocks = block_mapping::fill_gaps(resident, wanted);
    blocks
        .into_iter()
        .filter(|&block| block < now)
        .map(|block| PlannedPage { block, class })
        .collect()
}

/// Maps the pages of a fork by their numbers, or by their share of the length of a rewritten fork,
/// which has `now` pages, if known. Blocks also keep their numbers if it is longer by no more pages
/// than bulk loading leaves empty at its end.
fn map_by_length(cached: &CachedFork, now: Option<u32>, is_rewritten: bool) -> MappedPages {
    let old = cached.length.filter(|&old| old > 0);
    if let (true, Some(now), Some(old)) = (is_rewritten, now, old)
        && !(old..=old.saturating_add(EMPTY_TAIL_MAX)).contains(&now)
    {
        return MappedPages { pages: scale_pages(cached, now, old), beyond_end: 0, by: None };
    }
    let end = now.unwrap_or(u32::MAX);
    let mut pages: Vec<_> = cached
        .pages
        .iter()
        .map(|page| PlannedPage { block: page.block, class: page.usage })
        .collect();
    let all = pages.len();
    pages.truncate(pages.partition_point(|page| page.block < end));
    let beyond_end = (all - pages.len()) as u64;
    MappedPages { pages, beyond_end, by: None }
}

fn scale_pages(cached: &CachedFork, now: u32, old: u32) -> Vec<PlannedPage> {
    // The product of two blocks fits into 64 bits, and the quotient is at most `now`.
    let scale = |block: u32| (u64::from(block) * u64::from(now) / u64::from(old)) as u32;
    let mut pages: Vec<PlannedPage> = Vec::new();
    for page in cached.pages.iter().filter(|page| page.block < old) {
        let first = scale(page.block).min(now.saturating_sub(1));
        let end = scale(page.block + 1).max(first + 1).min(now);
        for block in first..end {
            match pages.last_mut() {
                Some(last) if last.block == block => last.class = last.class.max(page.usage),
                _ => pages.push(PlannedPage { block, class: page.usage }),
            }
        }
    }
    pages
}

/// Removes the blocks `cached` from `pages`, both ascending, and returns those removed.
fn remove_resident(pages: &mut Vec<PlannedPage>, cached: &[u32]) -> Vec<u32> {
    let mut cached = cached.iter().copied().peekable();
    let mut resident = Vec::new();
    pages.retain(|page| {
        while cached.next_if(|&block| block < page.block).is_some() {}
        let is_resident = cached.peek() == Some(&page.block);
        resident.extend(is_resident.then_some(page.block));
        !is_resident
    });
    resident
}

/// Raises cooler pages to the class of their neighbours where that saves a run.
fn absorb_gaps(pages: &mut [PlannedPage]) {
    for class in (1..16).rev() {
        let mut before: Option<usize> = None;
        for at in 0..pages.len() {
            if pages[at].class < class {
                continue;
            }
            if let Some(before) = before
                && pages[at].block - pages[before].block <= GAP_PAGES_MAX + 1
            {
                pages[before + 1..at].iter_mut().for_each(|page| page.class = class);
            }
            before = Some(at);
        }
    }
}

/// Splits the pages of each class into chunks of at most `pages_max` pages, otherwise like
/// `template`. A run continues over up to [`RESIDENT_GAP_MAX`] pages that are `resident`, or hotter
/// and so loaded before.
fn split_into_chunks(
    pages: &[PlannedPage],
    resident: &[u32],
    template: &LoadChunk,
    pages_max: u32,
    chunks: &mut Vec<LoadChunk>,
) {
    for class in usage_classes(pages) {
        let mut chunk = LoadChunk { class, ..template.clone() };
        // `skipped`: resident pages since the end of the last run.
        let (mut left, mut skipped) = (pages_max, 0);
        for ScanStep { block, is_resident } in scan_steps(pages, resident, class) {
            let next = chunk.runs.last().map(|run| run.last + skipped + 1);
            match (next == Some(block), is_resident) {
                (true, true) => skipped += 1,
                (false, true) => {}
                (grows, false) => {
                    let grows = grows && skipped <= RESIDENT_GAP_MAX;
                    if left == 0 || !grows && chunk.runs.len() == RUNS_MAX {
                        chunks.push(LoadChunk { runs: std::mem::take(&mut chunk.runs), ..chunk });
                        left = pages_max;
                    }
                    left -= 1;
                    match chunk.runs.last_mut().filter(|_| grows) {
                        Some(run) => (run.last, run.resident) = (block, run.resident + skipped),
                        None => chunk.runs.push(BlockRun::new(block, block)),
                    }
                    skipped = 0;
                }
            }
        }
        if !chunk.runs.is_empty() {
            chunks.push(chunk);
        }
    }
}

/// Returns the distinct usage classes of `pages`, ascending.
fn usage_classes(pages: &[PlannedPage]) -> Vec<u8> {
    let mut classes: Vec<u8> = pages.iter().map(|page| page.class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// A page that is passed when a class of a fork is loaded.
struct ScanStep {
    block: u32,
    is_resident: bool,
}

/// Returns the pages passed when `class` of a fork is loaded, ascending: the pages of the class,
/// and those already resident at that point.
fn scan_steps(
    pages: &[PlannedPage],
    resident: &[u32],
    class: u8,
) -> impl Iterator<Item = ScanStep> {
    let mut requested = pages.iter().filter(move |page| page.class >= class).peekable();
    let mut resident = resident.iter().copied().peekable();
    std::iter::from_fn(move || {
        // No block is in both lists.
        let next = requested.peek().map(|page| page.block);
        match (next, resident.peek().copied()) {
            (None, None) => None,
            (Some(next), cached) if cached.is_none_or(|cached| next < cached) => {
                let page = requested.next()?;
                Some(ScanStep { block: page.block, is_resident: page.class > class })
            }
            _ => resident.next().map(|block| ScanStep { block, is_resident: true }),
        }
    })
}

/// Returns the first chunks, up to the number of pages for which there is room. Counts the others
/// in `outcomes`.
fn fit_to_room(
    chunks: Vec<LoadChunk>,
    mut room: u64,
    outcomes: &mut [RelationOutcome],
) -> Vec<LoadChunk> {
    let mut fitting = Vec::new();
    for mut chunk in chunks {
        let pages = chunk.pages();
        if pages > room {
            outcomes[chunk.relation].pages.no_room += pages - room;
            truncate_runs(&mut chunk.runs, room);
        }
        room = room.saturating_sub(pages);
        if !chunk.runs.is_empty() {
            fitting.push(chunk);
        }
    }
    fitting
}

/// Truncates runs to the pages for which there is room. A run that is truncated is assumed to have
/// no resident pages.
fn truncate_runs(runs: &mut Vec<BlockRun>, mut room: u64) {
    runs.retain_mut(|run| {
        if run.pages() > room {
            // At most the length of the run, so it fits.
            *run = BlockRun::new(run.first, (u64::from(run.first) + room).saturating_sub(1) as u32);
            return std::mem::take(&mut room) > 0;
        }
        room -= run.pages();
        true
    });
}

#[cfg(test)]
mod tests;
