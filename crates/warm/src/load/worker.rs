//! One connection that takes pieces from the queue until none is left.

use std::{
    collections::BTreeSet,
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
    plan::Piece,
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
    let problem = loop {
        let began = Instant::now();
        match try_one(shared, session, database, &piece) {
            Step::Loaded(way) => {
                let pages = piece.pages();
                shared.outcome(piece.relation, |outcome| outcome.note_loaded(pages, way));
                shared.observer.advanced(pages);
                return shared.throttle.rest(began.elapsed(), || shared.is_over());
            }
            Step::Later if !is_second_try => return shared.queue.later(database, piece),
            Step::Later => break Problem::Locked,
            Step::Failed(problem) => break problem,
            Step::BeyondEnd(error) => match shorten(shared, session, &mut piece) {
                true if piece.runs.is_empty() => return,
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
            return shared.queue.later(database, piece);
        }
    };
    let pages = piece.pages();
    shared.outcome(piece.relation, |outcome| outcome.fail(pages, problem));
    shared.observer.advanced(pages);
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
