//! One connection that takes pieces from the queue until none is left.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_connect::{Client, QueryError, SqlError, Target};

use super::{
    Event, Observer, Options,
    catalog::Found,
    plan::Piece,
    queue::{Queue, Taken},
    report::{Outcome, Problem},
    throttle::Throttle,
    way::{self, Way},
};
use crate::dump::{self, QueryFailure};

/// What all connections of an attempt share.
pub(super) struct Shared<'a> {
    pub(super) target: &'a Target,
    pub(super) options: &'a Options,
    pub(super) observer: &'a dyn Observer,
    /// When the server was started, as it says itself.
    pub(super) started: &'a str,
    pub(super) page_bytes: u32,
    /// Names of databases by the number they have in the queue.
    pub(super) databases: &'a [String],
    /// Where the relations of the image are, by their place in it.
    pub(super) places: &'a [Result<Found, Problem>],
    pub(super) queue: Queue,
    pub(super) throttle: Throttle,
    pub(super) outcomes: Mutex<Vec<Outcome>>,
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

    fn outcome(&self, relation: usize, change: impl FnOnce(&mut Outcome)) {
        // Each change is one step, so the list is whole even if another thread panicked.
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut outcomes[relation]);
    }
}

/// A connection to one database, ready to load.
struct Session {
    client: Client,
    database: usize,
    /// The quoted schema of `pg_prewarm`, if it is there and may be called.
    pg_prewarm: Option<String>,
}

/// How a piece ended.
enum Step {
    Loaded(Way),
    /// Not now: another session holds a lock.
    Later,
    Failed(Problem),
    /// The connection is gone, the piece is not done.
    Lost(QueryFailure),
}

/// Loads pieces until none is left or all is over.
pub(super) fn run(shared: &Shared<'_>) {
    let mut session: Option<Session> = None;
    while !shared.is_over() {
        let here = session.as_ref().map(|session| session.database);
        let Some(taken) = shared.queue.take(here) else { break };
        if !(shared.has_room)() {
            let pages = taken.piece.pages();
            shared.outcome(taken.piece.relation, |outcome| outcome.pages.no_room += pages);
            shared.observer.advanced(pages);
            continue;
        }
        shared
            .throttle
            .admit(taken.piece.pages() * u64::from(shared.page_bytes), || shared.is_over());
        load_one(shared, &mut session, taken);
    }
}

fn load_one(shared: &Shared<'_>, session: &mut Option<Session>, taken: Taken) {
    let Taken { database, piece, is_second_try } = taken;
    let pages = piece.pages();
    let mut losses = 0;
    let problem = loop {
        let began = Instant::now();
        let step = match ready(shared, session, database) {
            Ok(session) => load_piece(shared, session, &piece),
            Err(failure) => Step::Lost(failure),
        };
        match step {
            Step::Loaded(way) => {
                shared.outcome(piece.relation, |outcome| outcome.note_loaded(pages, way));
                shared.observer.advanced(pages);
                return shared.throttle.rest(began.elapsed(), || shared.is_over());
            }
            Step::Later if !is_second_try => return shared.queue.later(database, piece),
            Step::Later => break Problem::Locked,
            Step::Failed(problem) => break problem,
            Step::Lost(failure) => {
                *session = None;
                losses += 1;
                if is_crash(&failure) {
                    shared.is_restarted.store(true, Ordering::Relaxed);
                    return shared.queue.later(database, piece);
                }
                if losses == LOSSES_MAX {
                    break Problem::Lost(Arc::new(failure));
                }
            }
        }
        if shared.is_over() {
            return shared.queue.later(database, piece);
        }
    };
    shared.outcome(piece.relation, |outcome| outcome.fail(pages, problem));
    shared.observer.advanced(pages);
}

/// How often one piece may lose its connection. A server may crash because of what it reads.
const LOSSES_MAX: u32 = 3;

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
        let mut client = reach(&target, shared.options.patience, shared.observer)?;
        prepare(&mut client, &shared.options.lock_timeout)?;
        let started = client.one_value(STARTED)?;
        if started.as_deref() != Some(shared.started) {
            shared.is_restarted.store(true, Ordering::Relaxed);
        }
        let pg_prewarm = client.one_value(PG_PREWARM)?;
        *session = Some(Session { client, database, pg_prewarm });
    }
    Ok(session.as_mut().expect("it was just filled"))
}

/// When the server was started.
pub(super) const STARTED: &str = "SELECT pg_postmaster_start_time()::text";

const PG_PREWARM: &str = "
    SELECT quote_ident(n.nspname) FROM pg_extension e
    JOIN pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'pg_prewarm'
    WHERE e.extname = 'pg_prewarm' AND has_function_privilege(p.oid, 'EXECUTE')
    AND has_schema_privilege(n.oid, 'USAGE')";

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

/// Settings of a loading session. Parallel workers would read into buffers of their own plan,
/// compilation costs more than the statements, and a limit on statements is meant for users.
fn prepare(client: &mut Client, lock_timeout: &Duration) -> Result<(), QueryError> {
    let lock_timeout_ms = lock_timeout.as_millis().max(1);
    client.query(&format!(
        "SET lock_timeout = {lock_timeout_ms}; SET statement_timeout = 0; SET jit = off;
         SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off"
    ))?;
    Ok(())
}

fn load_piece(shared: &Shared<'_>, session: &mut Session, piece: &Piece) -> Step {
    let Ok(found) = &shared.places[piece.relation] else {
        return Step::Failed(Problem::Dropped);
    };
    let Some(schema) = &session.pg_prewarm else {
        return Step::Failed(Problem::NoWay("its pages"));
    };
    let statement = way::by_pg_prewarm(schema, found, piece);
    let values: Vec<_> = statement.values.iter().map(|value| Some(&**value)).collect();
    match session.client.query_with(&statement.sql, &values) {
        Ok(_) => Step::Loaded(Way::PgPrewarm),
        Err(QueryError::Sql(error)) if !error.ends_session() => refused(error),
        Err(error) => Step::Lost(error.into()),
    }
}

fn refused(error: Box<SqlError>) -> Step {
    match error.sqlstate.as_str() {
        // lock_not_available
        "55P03" => Step::Later,
        // insufficient_privilege
        "42501" => Step::Failed(Problem::Denied(error)),
        // undefined_table
        "42P01" => Step::Failed(Problem::Dropped),
        // invalid_parameter_value: the block is beyond the end now
        "22023" => Step::Failed(Problem::Shrunk),
        _ => Step::Failed(Problem::Refused(error)),
    }
}
