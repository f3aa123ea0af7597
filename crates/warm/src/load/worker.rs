//! One connection of a load, which takes chunks from the queue until none is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::OsProcess;
use parking_lot::{Mutex, MutexGuard};

use super::{
    LoadEvent, LoadObserver, LoadOptions,
    backend_cpu::CpuSum,
    catalog::{LocatedRelation, RelationKind},
    method::PrewarmMode,
    plan::{BlockRun, LoadChunk},
    queue::{ChunkQueue, QueuedChunk},
    report::{RelationOutcome, RelationProblem},
    session::{self, ChunkResult, LoadSession},
    throttle::Throttle,
};
use crate::{
    dump::{self, QueryFailure},
    image::Fork,
};

/// State shared by all connections of an attempt.
pub(super) struct LoadContext<'a> {
    pub(super) target: &'a ConnectTarget,
    pub(super) options: &'a LoadOptions,
    pub(super) observer: &'a dyn LoadObserver,
    pub(super) mode: PrewarmMode,
    /// Start time of the server, as text.
    pub(super) started: &'a str,
    pub(super) page_bytes: u32,
    /// The server's process, if it runs on this host.
    pub(super) postmaster: Option<OsProcess>,
    /// Names of databases, by their index in the queue.
    pub(super) databases: &'a [String],
    /// The located relations, by their index in chunks.
    pub(super) located: &'a [Result<LocatedRelation, RelationProblem>],
    pub(super) queue: ChunkQueue,
    pub(super) throttle: Throttle,
    pub(super) outcomes: Mutex<Vec<RelationOutcome>>,
    /// Relations that were read completely, although only a chunk was requested.
    pub(super) read_whole: Mutex<BTreeSet<usize>>,
    /// Number of errors about corrupted pages, by relation.
    pub(super) searches: Mutex<BTreeMap<usize, u32>>,
    /// CPU time that the server has used for our sessions.
    pub(super) server_cpu: CpuSum,
    /// Whether the server has restarted, so that this attempt has failed.
    pub(super) is_restarted: AtomicBool,
    /// Whether all loading threads have ended, so that measuring latency ends too.
    pub(super) is_done: AtomicBool,
    /// Returns whether a buffer is free; true if that is unknown.
    pub(super) has_room: &'a (dyn Fn() -> bool + Sync),
}

impl LoadContext<'_> {
    /// Whether connections should stop although chunks are left.
    pub(super) fn should_stop(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
            || self.is_restarted.load(Ordering::Relaxed)
            || self.observer.should_stop()
    }

    fn outcome<T>(&self, relation: usize, change: impl FnOnce(&mut RelationOutcome) -> T) -> T {
        change(&mut lock(&self.outcomes)[relation])
    }
}

/// Locks a mutex. Every change of shared data is a single step, so it is consistent even if a
/// thread panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Loads chunks as connection number `worker`, until none is left or the load stops. Returns the
/// session, which can be used for more.
pub(super) fn run(shared: &LoadContext<'_>, worker: usize) -> Option<LoadSession> {
    let mut session: Option<LoadSession> = None;
    while !shared.should_stop() {
        let here = session.as_ref().map(|session| session.database);
        let Some(taken) = shared.queue.pop(worker, here) else { break };
        let pages = taken.chunk.pages();
        if !(shared.has_room)() {
            shared.outcome(taken.chunk.relation, |outcome| outcome.pages.no_room += pages);
            shared.observer.progressed(pages);
            continue;
        }
        shared.throttle.admit(pages * u64::from(shared.page_bytes), || shared.should_stop());
        load_chunk(shared, &mut session, taken);
    }
    session
}

/// Adds the CPU time of a statement for `pages` pages, which took `took`. If it cannot be measured,
/// it is estimated from below: waiting for a disk takes no CPU time, but copying a page does.
fn record_cpu(
    shared: &LoadContext<'_>,
    session: &mut Option<LoadSession>,
    pages: u64,
    took: Duration,
) {
    let measured = session.as_mut().and_then(LoadSession::lap_cpu);
    shared.server_cpu.add(measured, || took.min(PAGE_CPU_MIN.saturating_mul(saturated(pages))));
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Least CPU time for loading a page of a file in the operating system's cache into memory that the
/// session has used before: 1.7 GB per second. Mostly it is two to three times as much.
pub(super) const PAGE_CPU_MIN: Duration = Duration::from_micros(4);

/// Loads a chunk, reconnecting as needed, and records how many pages were loaded or failed. Defers
/// pages that are blocked at the first try, and those that are left if the load stops.
fn load_chunk(shared: &LoadContext<'_>, session: &mut Option<LoadSession>, taken: QueuedChunk) {
    let QueuedChunk { database, mut chunk, is_retry: is_second_try } = taken;
    let mut losses = 0;
    // Parts of a chunk with a corrupted page that are still to be loaded, after `chunk` itself.
    let mut parts: Vec<LoadChunk> = Vec::new();
    let problem = loop {
        let start = Instant::now();
        let result = try_load(shared, session, database, &chunk);
        record_cpu(shared, session, chunk.pages(), start.elapsed());
        match result {
            ChunkResult::Loaded(way) => {
                let pages = chunk.pages();
                shared.outcome(chunk.relation, |outcome| outcome.record_loaded(pages, way));
                shared.observer.progressed(pages);
                shared.throttle.pause_after(start.elapsed(), || shared.should_stop());
                match parts.pop() {
                    Some(part) => chunk = part,
                    None => return,
                }
            }
            ChunkResult::Damaged(error) if may_search_damage(shared, chunk.relation) => {
                let (lost, found) = split_at_damage(&chunk, &error.message);
                parts.extend(found);
                if lost > 0 {
                    let problem = RelationProblem::Damaged(error);
                    shared.outcome(chunk.relation, |outcome| outcome.record_failed(lost, problem));
                    shared.observer.progressed(lost);
                }
                match parts.pop() {
                    Some(part) => chunk = part,
                    None => return,
                }
            }
            ChunkResult::Damaged(error) => break RelationProblem::Damaged(error),
            ChunkResult::Deferred if !is_second_try => {
                return defer_chunks(shared, database, chunk, parts);
            }
            ChunkResult::Deferred => break RelationProblem::Locked,
            ChunkResult::Failed(problem) => break problem,
            ChunkResult::BeyondEnd(error) => match truncate_chunk(shared, session, &mut chunk) {
                true if chunk.runs.is_empty() => match parts.pop() {
                    Some(part) => chunk = part,
                    None => return,
                },
                true => {}
                false => break RelationProblem::Refused(error),
            },
            ChunkResult::ConnectionLost(failure) => {
                *session = None;
                losses += 1;
                if is_crash(&failure) {
                    shared.is_restarted.store(true, Ordering::Relaxed);
                } else if losses == CONNECTION_LOSSES_MAX {
                    break session::connection_lost(failure);
                }
            }
        }
        if shared.should_stop() {
            return defer_chunks(shared, database, chunk, parts);
        }
    };
    let pages = chunk.pages() + parts.iter().map(LoadChunk::pages).sum::<u64>();
    shared.outcome(chunk.relation, |outcome| outcome.record_failed(pages, problem));
    shared.observer.progressed(pages);
}

fn defer_chunks(
    shared: &LoadContext<'_>,
    database: usize,
    chunk: LoadChunk,
    parts: Vec<LoadChunk>,
) {
    for chunk in std::iter::once(chunk).chain(parts) {
        shared.queue.defer(database, chunk);
    }
}

/// Counts an error about a corrupted page of a relation, and returns whether to load the pages
/// around it. Each such search may cause another error in the server's log, and a file may be
/// corrupted as a whole.
fn may_search_damage(shared: &LoadContext<'_>, relation: usize) -> bool {
    let mut searches = lock(&shared.searches);
    let count = searches.entry(relation).or_default();
    *count += 1;
    *count <= DAMAGE_SEARCHES_MAX
}

/// Maximum number of errors about corrupted pages of a relation before the rest of a chunk is
/// skipped.
const DAMAGE_SEARCHES_MAX: u32 = 100;

/// Splits a chunk around the page named in an error: returns the number of lost pages, 1 or 0, and
/// the parts to try next. If no page is named, the chunk is halved; pages loaded already are
/// resident then.
fn split_at_damage(chunk: &LoadChunk, message: &str) -> (u64, Vec<LoadChunk>) {
    let named = damaged_block(message).and_then(|block| chunk.split_around(block));
    let (lost, before, mut after) = match named {
        Some((before, after)) => (1, before, after),
        None if chunk.pages() <= 1 => return (chunk.pages(), Vec::new()),
        None => {
            let middle = chunk.middle();
            let Some((before, after)) = chunk.split_around(middle) else {
                return (chunk.pages(), Vec::new());
            };
            (0, before, after)
        }
    };
    if lost == 0 {
        // The middle block itself may be intact.
        after.runs.insert(0, BlockRun::new(chunk.middle(), chunk.middle()));
    }
    // The last part is tried first.
    let parts = [after, before].into_iter().filter(|part| part.pages() > 0);
    (lost, parts.collect())
}

/// Returns the block number in `invalid page in block 5 of relation base/5/16384`.
fn damaged_block(message: &str) -> Option<u32> {
    let (_, rest) = message.split_once("block ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Maximum number of lost connections per chunk, since reading a chunk may crash the server.
const CONNECTION_LOSSES_MAX: u32 = 3;

fn try_load(
    shared: &LoadContext<'_>,
    session: &mut Option<LoadSession>,
    database: usize,
    chunk: &LoadChunk,
) -> ChunkResult {
    let Ok(found) = &shared.located[chunk.relation] else {
        return ChunkResult::Failed(RelationProblem::Dropped);
    };
    let session = match ensure_session(shared, session, database) {
        Ok(session) => session,
        Err(failure) => return ChunkResult::ConnectionLost(failure),
    };
    if lock(&shared.read_whole).contains(&chunk.relation) {
        return ChunkResult::Loaded(super::LoadMethod::IndexOnlyScan);
    }
    let requested = shared.outcome(chunk.relation, |outcome| outcome.pages.requested);
    let length = found.lengths[Fork::Main.number() as usize].unwrap_or(u32::MAX);
    let step = session.load(found, chunk, shared.mode, requested * 2 >= u64::from(length));
    if found.kind == RelationKind::Btree
        && matches!(step, ChunkResult::Loaded(super::LoadMethod::IndexOnlyScan))
    {
        lock(&shared.read_whole).insert(chunk.relation);
    }
    step
}

/// Truncates a chunk to the current length of a relation that became shorter. Returns false if
/// nothing was removed, or the length is not available.
fn truncate_chunk(
    shared: &LoadContext<'_>,
    session: &mut Option<LoadSession>,
    chunk: &mut LoadChunk,
) -> bool {
    let (Some(session), Ok(found)) = (session, &shared.located[chunk.relation]) else {
        return false;
    };
    let Ok(length) = session.length(found.oid, chunk.fork) else { return false };
    let beyond = chunk.truncate_at(length);
    if beyond > 0 {
        shared.outcome(chunk.relation, |outcome| {
            outcome.record_failed(beyond, RelationProblem::Shrunk);
        });
        shared.observer.progressed(beyond);
    }
    beyond > 0
}

/// Whether the failure means that the buffers are lost: the server stopped, or reinitialised after
/// a crash of one of its processes.
pub(super) fn is_crash(failure: &QueryFailure) -> bool {
    // crash_shutdown, cannot_connect_now
    matches!(failure.sqlstate(), Some("57P02" | "57P03"))
}

/// Returns a session for the requested database: the existing one if possible, otherwise a new one.
/// When it creates one, it also checks whether the server has restarted.
pub(super) fn ensure_session<'s>(
    shared: &LoadContext<'_>,
    session: &'s mut Option<LoadSession>,
    database: usize,
) -> Result<&'s mut LoadSession, QueryFailure> {
    if session.as_ref().is_none_or(|session| session.database != database) {
        // Close the old one first, so that there are never more connections than allowed.
        *session = None;
        let target = shared.target.with_database(&shared.databases[database]);
        let client = connect_with_retry(&target, shared.options.connect_timeout, shared.observer)?;
        let lock_timeout = shared.options.lock_timeout;
        let (new, started) = LoadSession::new(client, database, lock_timeout, shared.postmaster)?;
        if started != shared.started {
            shared.is_restarted.store(true, Ordering::Relaxed);
        }
        *session = Some(new);
    }
    Ok(session.as_mut().expect("session was just set"))
}

/// Connects, and retries for `connect_timeout` while the server is unreachable or starting.
pub(super) fn connect_with_retry(
    target: &ConnectTarget,
    connect_timeout: Duration,
    observer: &dyn LoadObserver,
) -> Result<Client, QueryFailure> {
    let until = Instant::now() + connect_timeout;
    loop {
        match dump::connect(target) {
            Ok(client) => return Ok(client),
            // A server that rejects the connection will do so again.
            Err(failure) if failure.sqlstate().is_some_and(|code| code != "57P03") => {
                return Err(failure);
            }
            Err(failure) if Instant::now() >= until || observer.should_stop() => {
                return Err(failure);
            }
            Err(failure) => observer.notify(&LoadEvent::Waiting { failure }),
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> LoadChunk {
        let runs = vec![BlockRun::new(2, 5), BlockRun::new(9, 9)];
        LoadChunk { relation: 0, fork: Fork::Main, class: 1, runs }
    }

    fn blocks(parts: &[LoadChunk]) -> Vec<Vec<u32>> {
        let of =
            |chunk: &LoadChunk| chunk.runs.iter().flat_map(|run| run.first..=run.last).collect();
        parts.iter().map(of).collect()
    }

    #[test]
    fn damaged_block_named_by_the_server_is_skipped() {
        let message = "invalid page in block 4 of relation base/5/16384";
        let (lost, parts) = split_at_damage(&chunk(), message);
        assert_eq!((lost, blocks(&parts)), (1, vec![vec![5, 9], vec![2, 3]]));
    }

    #[test]
    fn chunk_is_halved_until_the_damaged_block_is_isolated() {
        let message = "ungültige Seite in Block 4 von Relation base/5/16384";
        let (mut open, mut good, mut lost) = (vec![chunk()], Vec::new(), 0);
        while let Some(chunk) = open.pop() {
            let all = blocks(std::slice::from_ref(&chunk)).remove(0);
            if all.contains(&4) {
                let (pages, parts) = split_at_damage(&chunk, message);
                lost += pages;
                open.extend(parts);
            } else {
                good.extend(all);
            }
        }
        good.sort_unstable();
        assert_eq!((lost, good), (1, vec![2, 3, 5, 9]));
    }
}
