//! What to load in which order: pieces of about equal size, the hottest class of pages first, each class
//! in the order of the disk, as far as there is room. Pure: it asks nobody.

mod blend;

use std::cmp::Reverse;

use super::{
    catalog::Found,
    occupancy::Occupancy,
    report::{Outcome, Problem},
};
use crate::image::{CacheImage, CachedFork, Fork, RelationFile};

/// The work to do, in its order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    /// Blocks of each fork that are wanted and were there already.
    pub(super) resident: Vec<(RelationFile, Fork, Vec<u32>)>,
    /// All blocks of each fork that are wanted, whether there is room for them or not.
    pub(super) wanted: Vec<(RelationFile, Fork, Vec<u32>)>,
}

/// Pages of one fork that are loaded by one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The relation's place in the image.
    pub(super) relation: usize,
    pub(super) fork: Fork,
    /// How hot its pages are, as a usage count: pieces of a higher one come first.
    pub(super) class: u8,
    /// Runs of blocks, ascending; at most [`RUNS_MAX`].
    pub(super) runs: Vec<Run>,
}

/// Blocks in a row, `last` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) last: u32,
    /// Those among them that are there before its turn: they were resident, or are of a hotter piece. To
    /// touch them once more costs less than another run behind them.
    pub(super) held: u32,
}

/// Bounds of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Pages there is room for, beside those that are there.
    pub(super) room: u64,
    /// Pages of a piece at most.
    pub(super) piece: u32,
}

/// Most pages of a piece: 16 MiB. Large enough that the statement around it costs nothing, small enough
/// that connections end at about the same time.
pub(super) const PIECE_PAGES: u32 = 2048;
/// Most runs of a piece, so that statements stay short.
const RUNS_MAX: usize = 1024;
/// Pages of a lower class are taken along where at most so many lie between two of a higher one: where
/// files are cold, another run takes the time of three or four pages in a row, read ahead or not.
const BETWEEN_MAX: u32 = 4;
/// Pages that are there already and are passed over by a run at most.
const HELD_MAX: u32 = 16;
/// A run of at most so many pages on average is too short for the operating system to see it coming.
const SPARSE_PAGES: u64 = 16;

impl Run {
    /// Blocks of which none is there.
    pub(super) fn of(first: u32, last: u32) -> Self {
        Self { first, last, held: 0 }
    }

    /// Pages to load.
    pub(super) fn pages(self) -> u64 {
        self.blocks() - u64::from(self.held)
    }

    /// Pages that are touched.
    fn blocks(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    /// Ends it before `end`, which is behind its first block.
    fn end_at(&mut self, end: u32) {
        self.last = self.last.min(end - 1);
        self.held = self.held.min(self.last - self.first);
    }
}

impl Piece {
    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages()).sum()
    }

    /// Whether its pages lie apart, so that each would be waited for if none were asked for ahead.
    pub(super) fn is_sparse(&self) -> bool {
        self.runs.len() > 1 && self.pages() < SPARSE_PAGES * self.runs.len() as u64
    }

    /// What lies before and behind a block, which is left out; nothing, if the piece has no such block.
    /// Which blocks of a run are there already is not known, so they are shared out.
    pub(super) fn part_around(&self, block: u32) -> Option<(Self, Self)> {
        let at = self.runs.iter().position(|run| run.first <= block && block <= run.last)?;
        let run = self.runs[at];
        let (mut before, mut after) = (self.runs[..at].to_vec(), self.runs[at + 1..].to_vec());
        let blocks_before = block - run.first;
        // The block itself was to be loaded, so all others have room for those that are there.
        let held = run.held.min(blocks_before);
        if blocks_before > held {
            before.push(Run { first: run.first, last: block - 1, held });
        }
        let (blocks_after, held) = (run.last - block, run.held - held);
        if blocks_after > held {
            after.insert(0, Run { first: block + 1, last: run.last, held });
        }
        let of = |runs| Self { runs, ..self.clone() };
        Some((of(before), of(after)))
    }

    /// A block with about as many others of the piece before as behind it.
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

    /// Drops the blocks from `end` on, and gives the number of pages that are not loaded then.
    pub(super) fn cut_at(&mut self, end: u32) -> u64 {
        let before = self.pages();
        self.runs.retain_mut(|run| {
            let is_left = run.first < end;
            if is_left {
                run.end_at(end);
            }
            is_left
        });
        before - self.pages()
    }
}

/// Makes a plan for the relations `places` of `image`, and notes in `outcomes` what it leaves out.
pub(super) fn plan(
    image: &CacheImage,
    places: &[Result<Found, Problem>],
    occupancy: Option<&Occupancy>,
    bounds: Bounds,
    outcomes: &mut [Outcome],
) -> Plan {
    let mut lacking = lacking(image, places, occupancy, outcomes);
    // Where not all has room, the coolest have to be told from the others, whatever it takes.
    let has_room = lacking.iter().map(|fork| fork.pages.len() as u64).sum::<u64>() <= bounds.room;
    let wanted = lacking.iter().map(MissingPages::wanted).collect();
    let mut pieces = Vec::new();
    for MissingPages { relation, fork, pages, there, .. } in &mut lacking {
        take_along(pages);
        if has_room {
            blend::blend(pages);
        }
        let of = Piece { relation: *relation, fork: *fork, class: 0, runs: Vec::new() };
        cut(pages, there, &of, bounds.piece, &mut pieces);
    }
    // Small relations first: of pages that are as hot by their count, those of an index serve more rows
    // than those of its table. Inside a relation the order stays, which is that of its files.
    let size = |piece: &Piece| image.relations[piece.relation].page_count();
    pieces.sort_by_cached_key(|piece| (Reverse(piece.class), size(piece)));
    let pieces = fitting(pieces, bounds.room, outcomes);
    let resident = lacking.into_iter().map(|fork| (fork.file, fork.fork, fork.there)).collect();
    Plan { pieces, resident, wanted }
}

/// A fork, and what the cache lacks of it.
struct MissingPages {
    relation: usize,
    file: RelationFile,
    fork: Fork,
    /// To be loaded, ascending.
    pages: Vec<Wanted>,
    /// Wanted and there already, ascending.
    there: Vec<u32>,
}

impl MissingPages {
    fn wanted(&self) -> (RelationFile, Fork, Vec<u32>) {
        let blocks = self.pages.iter().map(|page| page.block);
        (self.file, self.fork, blocks.chain(self.there.iter().copied()).collect())
    }
}

fn lacking(
    image: &CacheImage,
    places: &[Result<Found, Problem>],
    occupancy: Option<&Occupancy>,
    outcomes: &mut [Outcome],
) -> Vec<MissingPages> {
    let mut lacking = Vec::new();
    for (at, (relation, place)) in image.relations.iter().zip(places).enumerate() {
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
            let now = found.lengths[cached.fork.number() as usize];
            let Placed { mut pages, beyond_end } = placed(cached, now, outcome.is_rewritten);
            outcome.pages.beyond_end += beyond_end;
            outcome.pages.wanted += pages.len() as u64;
            let held = occupancy.map_or(&[][..], |seen| seen.blocks(found.file, cached.fork));
            let there = leave_out(&mut pages, held);
            outcome.pages.resident += there.len() as u64;
            lacking.push(MissingPages {
                relation: at,
                file: found.file,
                fork: cached.fork,
                pages,
                there,
            });
        }
        if outcome.pages.beyond_end > 0 {
            outcome.problem = Some(Problem::Shrunk);
        }
    }
    lacking
}

/// A page to load, and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    block: u32,
    class: u8,
}

struct Placed {
    pages: Vec<Wanted>,
    beyond_end: u64,
}

/// Where the cached pages of a fork are on the server, whose fork has `now` pages (if that is known).
///
/// Where the files are the same, a block is a block. A rewritten relation has its contents elsewhere:
/// most often in the same order, so each block stands for its share of the length.
fn placed(cached: &CachedFork, now: Option<u32>, is_rewritten: bool) -> Placed {
    let old = cached.length.filter(|&old| old > 0);
    if let (true, Some(now), Some(old)) = (is_rewritten, now, old)
        && now != old
    {
        return Placed { pages: scaled(cached, now, old), beyond_end: 0 };
    }
    let end = now.unwrap_or(u32::MAX);
    let mut pages: Vec<_> =
        cached.pages.iter().map(|page| Wanted { block: page.block, class: page.usage }).collect();
    let all = pages.len();
    pages.truncate(pages.partition_point(|page| page.block < end));
    let beyond_end = (all - pages.len()) as u64;
    Placed { pages, beyond_end }
}

fn scaled(cached: &CachedFork, now: u32, old: u32) -> Vec<Wanted> {
    // The product of two blocks fits in 64 bits, and the quotient is at most `now`.
    let scale = |block: u32| (u64::from(block) * u64::from(now) / u64::from(old)) as u32;
    let mut pages: Vec<Wanted> = Vec::new();
    for page in cached.pages.iter().filter(|page| page.block < old) {
        let first = scale(page.block).min(now.saturating_sub(1));
        let end = scale(page.block + 1).max(first + 1).min(now);
        for block in first..end {
            match pages.last_mut() {
                Some(last) if last.block == block => last.class = last.class.max(page.usage),
                _ => pages.push(Wanted { block, class: page.usage }),
            }
        }
    }
    pages
}

/// Leaves out the blocks `held`, which is ascending as `pages` are, and gives those left out.
fn leave_out(pages: &mut Vec<Wanted>, held: &[u32]) -> Vec<u32> {
    let mut held = held.iter().copied().peekable();
    let mut there = Vec::new();
    pages.retain(|page| {
        while held.next_if(|&block| block < page.block).is_some() {}
        let is_there = held.peek() == Some(&page.block);
        there.extend(is_there.then_some(page.block));
        !is_there
    });
    there
}

/// Raises pages to the class of their neighbours where that saves a run.
fn take_along(pages: &mut [Wanted]) {
    for class in (1..16).rev() {
        let mut before: Option<usize> = None;
        for at in 0..pages.len() {
            if pages[at].class < class {
                continue;
            }
            if let Some(before) = before
                && pages[at].block - pages[before].block <= BETWEEN_MAX + 1
            {
                pages[before + 1..at].iter_mut().for_each(|page| page.class = class);
            }
            before = Some(at);
        }
    }
}

/// Makes pieces of the pages of each class, like `of` in all else. A run goes on over pages that are
/// `there`, or hotter and so loaded before.
fn cut(pages: &[Wanted], there: &[u32], of: &Piece, most: u32, pieces: &mut Vec<Piece>) {
    for class in classes(pages) {
        let mut piece = Piece { class, ..of.clone() };
        let (mut left, mut held) = (most, 0);
        for Seen { block, is_held } in seen(pages, there, class) {
            let next = piece.runs.last().map(|run| run.last + held + 1);
            match (next == Some(block), is_held) {
                (true, true) => held += 1,
                (false, true) => {}
                (grows, false) => {
                    let grows = grows && held <= HELD_MAX;
                    if left == 0 || !grows && piece.runs.len() == RUNS_MAX {
                        pieces.push(Piece { runs: std::mem::take(&mut piece.runs), ..piece });
                        left = most;
                    }
                    left -= 1;
                    match piece.runs.last_mut().filter(|_| grows) {
                        Some(run) => (run.last, run.held) = (block, run.held + held),
                        None => piece.runs.push(Run::of(block, block)),
                    }
                    held = 0;
                }
            }
        }
        if !piece.runs.is_empty() {
            pieces.push(piece);
        }
    }
}

/// The classes that there are, ascending.
fn classes(pages: &[Wanted]) -> Vec<u8> {
    let mut classes: Vec<u8> = pages.iter().map(|page| page.class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// A page as it is met when its class is loaded.
struct Seen {
    block: u32,
    is_held: bool,
}

/// What there is to meet on the way through a fork when `class` is loaded: its pages, and those that are
/// there by then.
fn seen(pages: &[Wanted], there: &[u32], class: u8) -> impl Iterator<Item = Seen> {
    let mut wanted = pages.iter().filter(move |page| page.class >= class).peekable();
    let mut there = there.iter().copied().peekable();
    std::iter::from_fn(move || {
        // No block is in both.
        let next = wanted.peek().map(|page| page.block);
        match (next, there.peek().copied()) {
            (None, None) => None,
            (Some(next), held) if held.is_none_or(|held| next < held) => {
                let page = wanted.next()?;
                Some(Seen { block: page.block, is_held: page.class > class })
            }
            _ => there.next().map(|block| Seen { block, is_held: true }),
        }
    })
}

/// The first pieces, as far as there is room for their pages.
fn fitting(pieces: Vec<Piece>, mut room: u64, outcomes: &mut [Outcome]) -> Vec<Piece> {
    let mut fitting = Vec::new();
    for mut piece in pieces {
        let pages = piece.pages();
        if pages > room {
            outcomes[piece.relation].pages.no_room += pages - room;
            shorten(&mut piece.runs, room);
        }
        room = room.saturating_sub(pages);
        if !piece.runs.is_empty() {
            fitting.push(piece);
        }
    }
    fitting
}

/// Keeps as many pages as there is room for. A run that has to be cut counts as one of which nothing is
/// there.
fn shorten(runs: &mut Vec<Run>, mut room: u64) {
    runs.retain_mut(|run| {
        if run.pages() > room {
            // Less than the run had, so it fits.
            *run = Run::of(run.first, (u64::from(run.first) + room).saturating_sub(1) as u32);
            return std::mem::take(&mut room) > 0;
        }
        room -= run.pages();
        true
    });
}

#[cfg(test)]
mod tests;
