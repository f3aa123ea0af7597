//! What to load in which order: pieces of about equal size, the hottest class of pages first, each class
//! in the order of the disk, as far as there is room. Pure: it asks nobody.

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
}

/// Pages of one fork that are loaded by one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The relation's place in the image.
    pub(super) relation: usize,
    pub(super) fork: Fork,
    /// Usage count of its hottest pages: pieces of a higher one come first.
    pub(super) class: u8,
    /// Runs of blocks, ascending; at most [`RUNS_MAX`].
    pub(super) runs: Vec<Run>,
}

/// Blocks in a row, `last` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) last: u32,
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
/// Pages of a lower class are taken along where at most so many lie between two of a higher one: a call
/// for another run costs about as much as loading them.
const BETWEEN_MAX: u32 = 2;

impl Run {
    pub(super) fn pages(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }
}

impl Piece {
    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages()).sum()
    }

    /// Drops the blocks from `end` on, and gives their number.
    pub(super) fn cut_at(&mut self, end: u32) -> u64 {
        let before = self.pages();
        self.runs.retain_mut(|run| {
            run.last = run.last.min(end.saturating_sub(1));
            run.first < end
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
    let mut pieces = Vec::new();
    let mut resident = Vec::new();
    for (at, (relation, place)) in image.relations.iter().zip(places).enumerate() {
        let outcome = &mut outcomes[at];
        let found = match place {
            Ok(found) => found,
            Err(problem) => {
                outcome.problem = Some(problem.clone());
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
            resident.push((found.file, cached.fork, there));
            take_along(&mut pages);
            cut(&pages, at, cached.fork, bounds.piece, &mut pieces);
        }
        if outcome.pages.beyond_end > 0 {
            outcome.problem = Some(Problem::Shrunk);
        }
    }
    // Stable: inside a class the order of the image stays, which is that of the files.
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.class));
    let pieces = fitting(pieces, bounds.room, outcomes);
    Plan { pieces, resident }
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

fn cut(pages: &[Wanted], relation: usize, fork: Fork, most: u32, pieces: &mut Vec<Piece>) {
    let mut classes: Vec<u8> = pages.iter().map(|page| page.class).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        let mut piece = Piece { relation, fork, class, runs: Vec::new() };
        let mut left = most;
        for &Wanted { block, .. } in pages.iter().filter(|page| page.class == class) {
            let grows = piece.runs.last().is_some_and(|run| run.last + 1 == block);
            if left == 0 || !grows && piece.runs.len() == RUNS_MAX {
                pieces.push(Piece { runs: std::mem::take(&mut piece.runs), ..piece });
                left = most;
            }
            left -= 1;
            match piece.runs.last_mut() {
                Some(run) if run.last + 1 == block => run.last = block,
                _ => piece.runs.push(Run { first: block, last: block }),
            }
        }
        if !piece.runs.is_empty() {
            pieces.push(piece);
        }
    }
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

fn shorten(runs: &mut Vec<Run>, mut room: u64) {
    runs.retain_mut(|run| {
        let pages = run.pages().min(room);
        room -= pages;
        // Not more than the run had, so it fits.
        run.last = (u64::from(run.first) + pages).saturating_sub(1) as u32;
        pages > 0
    });
}

#[cfg(test)]
mod tests;
