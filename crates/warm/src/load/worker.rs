//! One connection that takes pieces from the queue until none is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_connect::{Client, Target};

use super::{
    Event, Observer, Options,
    catalog::{Found, Kind},
    plan::{Piece, Run},
    queue::{Queue, Taken},
    report::{Outcome, Problem},
    session::{self, Session, Step},
    throttle::Throttle,
    way::Mode,
};
use crate::{
    dump::{self, QueryFailure},
    image::Fork,
};

/// What all connections of an attempt share.
pub(super) struct Shared<'a> {
    pub(super) target: &'a Target,
    pub(super) options: &'a Options,
    pub(super) observer: &'a dyn Observer,
    pub(super) mode: Mode,
    /// When the server was started, as it says itself.
    pub(super) started: &'a str,
    pub(super) page_bytes: u32,
    /// Names of databases by the number they have in the queue.
    pub(super) databases: &'a [String],
    /// Where the relations are, by the number they have in pieces.
    pub(super) places: &'a [Result<Found, Problem>],
    pub(super) queue: Queue,
    pub(super) throttle: Throttle,
    pub(super) outcomes: Mutex<Vec<Outcome>>,
    /// Relations that were read from end to end, whatever piece was asked for.
    pub(super) read_whole: Mutex<BTreeSet<usize>>,
    /// How often a damaged page was met, by relation.
    pub(super) searches: Mutex<BTreeMap<usize, u32>>,
    /// The server restarted: this attempt is void.
    pub(super) is_restarted: AtomicBool,
    /// All pieces are done.
    pub(super) is_done: AtomicBool,
    /// Whether there is a free buffer, if that can be told at once.
    pub(super) has_room: &'a (dyn Fn() -> bool + Sync),
}

impl Shared<'_> {
    /// Whether connections are to end although pieces are left.
    pub(super) fn is_over(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
            || self.is_restarted.load(Ordering::Relaxed)
            || self.observer.wants_end()
    }

    fn outcome<T>(&self, relation: usize, change: impl FnOnce(&mut Outcome) -> T) -> T {
        change(&mut locked(&self.outcomes)[relation])
    }
}

/// Every change of what connections share is one step, so it is whole even if a thread panicked.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads pieces until none is left or all is over, as the connection number `who`.
pub(super) fn run(shared: &Shared<'_>, who: usize) {
    let mut session: Option<Session> = None;
    while !shared.is_over() {
        let here = session.as_ref().map(|session| session.database);
        let Some(taken) = shared.queue.take(who, here) else { break };
        let pages = taken.piece.pages();
        if !(shared.has_room)() {
            shared.outcome(taken.piece.relation, |outcome| outcome.pages.no_room += pages);
            shared.observer.advanced(pages);
            continue;
        }
        shared.throttle.admit(pages * u64::from(shared.page_bytes), || shared.is_over());
        load_one(shared, &mut session, taken);
    }
}

/// Loads a piece, over as many connections as it takes.
fn load_one(shared: &Shared<'_>, session: &mut Option<Session>, taken: Taken) {
    let Taken { database, mut piece, is_second_try } = taken;
    let mut losses = 0;
    // What is left of a piece with a damaged page, besides `piece` itself.
    let mut parts: Vec<Piece> = Vec::new();
    let problem = loop {
        let began = Instant::now();
        match try_one(shared, session, database, &piece) {
            Step::Loaded(way) => {
                let pages = piece.pages();
                shared.outcome(piece.relation, |outcome| outcome.note_loaded(pages, way));
                shared.observer.advanced(pages);
                shared.throttle.rest(began.elapsed(), || shared.is_over());
                match parts.pop() {
                    Some(part) => piece = part,
                    None => return,
                }
            }
            Step::Damaged(error) if may_search(shared, piece.relation) => {
                let (lost, found) = around_damage(&piece, &error.message);
                parts.extend(found);
                if lost > 0 {
                    let problem = Problem::Damaged(error);
                    shared.outcome(piece.relation, |outcome| outcome.fail(lost, problem));
                    shared.observer.advanced(lost);
                }
                match parts.pop() {
                    Some(part) => piece = part,
                    None => return,
                }
            }
            Step::Damaged(error) => break Problem::Damaged(error),
            Step::Later if !is_second_try => return put_off(shared, database, piece, parts),
            Step::Later => break Problem::Locked,
            Step::Failed(problem) => break problem,
            Step::BeyondEnd(error) => match shorten(shared, session, &mut piece) {
                true if piece.runs.is_empty() => match parts.pop() {
                    Some(part) => piece = part,
                    None => return,
                },
                true => {}
                false => break Problem::Refused(error),
            },
            Step::Lost(failure) => {
                *session = None;
                losses += 1;
                if is_crash(&failure) {
                    shared.is_restarted.store(true, Ordering::Relaxed);
                } else if losses == LOSSES_MAX {
                    break session::lost(failure);
                }
            }
        }
        if shared.is_over() {
            return put_off(shared, database, piece, parts);
        }
    };
    let pages = piece.pages() + parts.iter().map(Piece::pages).sum::<u64>();
    shared.outcome(piece.relation, |outcome| outcome.fail(pages, problem));
    shared.observer.advanced(pages);
}

fn put_off(shared: &Shared<'_>, database: usize, piece: Piece, parts: Vec<Piece>) {
    for piece in std::iter::once(piece).chain(parts) {
        shared.queue.later(database, piece);
    }
}

/// Whether what lies around a damaged page of a relation may still be looked for. Each look is an error in
/// the server's log, and a file may be damaged as a whole.
fn may_search(shared: &Shared<'_>, relation: usize) -> bool {
    let mut searches = locked(&shared.searches);
    let count = searches.entry(relation).or_default();
    *count += 1;
    *count <= SEARCHES_MAX
}

/// Errors about damaged pages of one relation before the rest of a piece is given up.
const SEARCHES_MAX: u32 = 100;

/// Parts a piece around the page that an error names: the pages that are lost, 1 or 0, and what is to be
/// tried next. Where no page is named, the piece is halved; what was loaded already is there then.
fn around_damage(piece: &Piece, message: &str) -> (u64, Vec<Piece>) {
    let named = damaged_block(message).and_then(|block| piece.part_around(block));
    let (lost, before, mut after) = match named {
        Some((before, after)) => (1, before, after),
        None if piece.pages() <= 1 => return (piece.pages(), Vec::new()),
        None => {
            let middle = piece.middle();
            let Some((before, after)) = piece.part_around(middle) else {
                return (piece.pages(), Vec::new());
            };
            (0, before, after)
        }
    };
    if lost == 0 {
        // The middle is as good as any other.
        after.runs.insert(0, Run::of(piece.middle(), piece.middle()));
    }
    // The last is tried first.
    let parts = [after, before].into_iter().filter(|part| part.pages() > 0);
    (lost, parts.collect())
}

/// The number in `invalid page in block 5 of relation base/5/16384`.
fn damaged_block(message: &str) -> Option<u32> {
    let (_, rest) = message.split_once("block ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// How often one piece may lose its connection. A server may crash because of what it reads.
const LOSSES_MAX: u32 = 3;

fn try_one(
    shared: &Shared<'_>,
    session: &mut Option<Session>,
    database: usize,
    piece: &Piece,
) -> Step {
    let Ok(found) = &shared.places[piece.relation] else {
        return Step::Failed(Problem::Dropped);
    };
    let session = match ready(shared, session, database) {
        Ok(session) => session,
        Err(failure) => return Step::Lost(failure),
    };
    if locked(&shared.read_whole).contains(&piece.relation) {
        return Step::Loaded(super::Way::IndexOnlyScan);
    }
    let wanted = shared.outcome(piece.relation, |outcome| outcome.pages.wanted);
    let length = found.lengths[Fork::Main.number() as usize].unwrap_or(u32::MAX);
    let step = session.load(found, piece, shared.mode, wanted * 2 >= u64::from(length));
    if found.kind == Kind::Btree && matches!(step, Step::Loaded(super::Way::IndexOnlyScan)) {
        locked(&shared.read_whole).insert(piece.relation);
    }
    step
}

/// Cuts off what is beyond the end of a relation that became shorter since it was looked up. False, if
/// nothing is, or the length cannot be had.
fn shorten(shared: &Shared<'_>, session: &mut Option<Session>, piece: &mut Piece) -> bool {
    let (Some(session), Ok(found)) = (session, &shared.places[piece.relation]) else {
        return false;
    };
    let Ok(length) = session.length(found.oid, piece.fork) else { return false };
    let beyond = piece.cut_at(length);
    if beyond > 0 {
        shared.outcome(piece.relation, |outcome| outcome.fail(beyond, Problem::Shrunk));
        shared.observer.advanced(beyond);
    }
    beyond > 0
}

/// Whether buffers are lost with the connection: the server stopped, or one of its processes crashed,
/// upon which it empties them.
fn is_crash(failure: &QueryFailure) -> bool {
    // crash_shutdown, cannot_connect_now
    matches!(failure.sqlstate(), Some("57P02" | "57P03"))
}

/// The connection, to the right database: kept if it is, else a new one.
fn ready<'s>(
    shared: &Shared<'_>,
    session: &'s mut Option<Session>,
    database: usize,
) -> Result<&'s mut Session, QueryFailure> {
    if session.as_ref().is_none_or(|session| session.database != database) {
        // The old one is closed first: there are never more than were asked for.
        *session = None;
        let target = shared.target.with_database(&shared.databases[database]);
        let client = reach(&target, shared.options.patience, shared.observer)?;
        let mut new = Session::new(client, database, shared.options.lock_timeout)?;
        if new.started()? != shared.started {
            shared.is_restarted.store(true, Ordering::Relaxed);
        }
        *session = Some(new);
    }
    Ok(session.as_mut().expect("it was just filled"))
}

/// Connects, and waits as long as `patience` for a server that cannot be reached or is starting.
pub(super) fn reach(
    target: &Target,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<Client, QueryFailure> {
    let until = Instant::now() + patience;
    loop {
        match dump::connect(target) {
            Ok(client) => return Ok(client),
            // A server that answers with a refusal will do so again.
            Err(failure) if failure.sqlstate().is_some_and(|code| code != "57P03") => {
                return Err(failure);
            }
            Err(failure) if Instant::now() >= until || observer.wants_end() => {
                return Err(failure);
            }
            Err(failure) => observer.said(&Event::Waiting { failure }),
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn piece() -> Piece {
        let runs = vec![Run::of(2, 5), Run::of(9, 9)];
        Piece { relation: 0, fork: Fork::Main, class: 1, runs }
    }

    fn blocks(parts: &[Piece]) -> Vec<Vec<u32>> {
        let of = |piece: &Piece| piece.runs.iter().flat_map(|run| run.first..=run.last).collect();
        parts.iter().map(of).collect()
    }

    #[test]
    fn damaged_block_named_by_the_server_is_left_out() {
        let message = "invalid page in block 4 of relation base/5/16384";
        let (lost, parts) = around_damage(&piece(), message);
        assert_eq!((lost, blocks(&parts)), (1, vec![vec![5, 9], vec![2, 3]]));
    }

    #[test]
    fn piece_is_halved_until_the_damaged_block_is_alone() {
        let message = "ungültige Seite in Block 4 von Relation base/5/16384";
        let (mut open, mut good, mut lost) = (vec![piece()], Vec::new(), 0);
        while let Some(piece) = open.pop() {
            let all = blocks(std::slice::from_ref(&piece)).remove(0);
            match all.contains(&4) {
                true => {
                    let (pages, parts) = around_damage(&piece, message);
                    lost += pages;
                    open.extend(parts);
                }
                false => good.extend(all),
            }
        }
        good.sort_unstable();
        assert_eq!((lost, good), (1, vec![2, 3, 5, 9]));
    }
}
