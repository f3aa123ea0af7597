//! Traces relation extension locks: which backends wait, for how long, and how long the locks are
//! held.
//!
//! A relation is extended under its own lock, so backends that insert into one relation wait for
//! each other there. Each of them requests, acquires and releases the lock:
//!
//! ```text
//! LockRelationForExtension ──wait──► returns ──hold──► UnlockRelationForExtension
//! ConditionalLockRelationForExtension ► returns true ──hold──► the same
//! ```
//!
//! BPF programs at these points store open locks in a map by thread and send one event of 56 bytes
//! for each released lock. A lock taken while the thread holds another (a free space map that grows
//! with its table) is an event as well; the other one's hold includes it. A lock released by an
//! error is never reported.
//!
//! Source: `lmgr.c`, the same in 14 to 18.

mod attach_points;
mod layout;
mod programs;
mod summary;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use howdah_inspect::RunningServer;

pub use self::summary::{ExtensionSummary, LockStats};
use self::{
    attach_points::AttachPoints,
    layout::RelationIdOffset,
    programs::{EVENT_BYTES, ExtensionEvent, ExtensionMaps},
};
use crate::{
    bpf::{BpfLink, BpfLinks, FilePoints, Program, UprobeKind},
    calibrate::HitCost,
    clock::ClockOffset,
    error::ProbeError,
    stacks::StackId,
    traced_server::TracedServer,
};

/// Reports the extension locks of a running server as they are released. The programs stay attached
/// until the value is dropped or the process exits.
#[derive(Debug)]
pub struct ExtensionLocks {
    tables: ExtensionMaps,
    programs: Vec<Program>,
    _links: BpfLinks,
    clock: ClockOffset,
    cost: Duration,
}

/// A released extension lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionLock {
    /// Id of the backend in the initial PID namespace.
    pub pid: u32,
    /// `pg_database.oid` of the relation; 0 for the shared catalogs.
    pub database: u32,
    /// Oid of the relation (`pg_class.oid`).
    pub relation: u32,
    /// Wall-clock time of the release.
    pub released_at: SystemTime,
    /// Time from request to acquisition. Zero for a [conditional](Self::is_conditional) request.
    pub wait: Duration,
    /// Time from acquisition to release.
    pub hold: Duration,
    /// Whether the lock was requested only if free, so that there was no wait.
    pub is_conditional: bool,
    /// The stack of the waiter, if stacks are collected and the wait was long; see
    /// [`ExtensionLocks::addresses`].
    pub stack: Option<StackId>,
}

/// Counts of events that are missing or incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostEvents {
    /// Locks that were not reported: the ring or a map was full, or memory could not be read.
    pub lost: u64,
    /// Locks whose start was not observed, because they were taken before tracing started.
    pub no_start: u64,
    /// Hits at which the kernel did not run a program, by program name.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl LostEvents {
    /// Whether no events are missing or incomplete.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl ExtensionLocks {
    /// Attaches to a server.
    ///
    /// # Errors
    ///
    /// The server's code does not match any known build or cannot be read, or BPF programs cannot
    /// be run.
    pub fn attach(server: &RunningServer) -> Result<Self, ProbeError> {
        Self::attach_with_stacks(server, None)
    }

    /// Like [`ExtensionLocks::attach`], but collects the stacks of backends that waited at least
    /// `stacks_from`; none if it is `None`.
    ///
    /// # Errors
    ///
    /// See [`ExtensionLocks::attach`].
    pub fn attach_with_stacks(
        server: &RunningServer,
        stacks_from: Option<Duration>,
    ) -> Result<Self, ProbeError> {
        let traced = TracedServer::new(server)?;
        let relation_id = RelationIdOffset::find(server)?;
        let tables = ExtensionMaps::new(stacks_from)?;
        let places = AttachPoints::for_server(&traced)?;
        let cost = places.cost(HitCost::measure()?);
        let clock = ClockOffset::measure();
        let [request, request_conditional, acquired, acquired_conditional, release] =
            programs::load(&tables, &traced, (relation_id, places.has_tag))?;
        let mut links = BpfLinks::default();
        let binary = server.postmaster().executable();
        let mut attach = |program: &Program, point, side| {
            let points = FilePoints { binary: &binary, points: &[point] };
            links.push(BpfLink::attach(program, points, side)?);
            Ok::<(), ProbeError>(())
        };
        // Later points are attached first, so that every lock whose start is observed also has its
        // end observed.
        let conditionally = traced.entry_point(TRY_LOCK)?;
        attach(&release, places.release, UprobeKind::Entry)?;
        attach(&acquired, places.acquired.0, places.acquired.1)?;
        attach(&acquired_conditional, conditionally, UprobeKind::Return)?;
        attach(&request, places.request, UprobeKind::Entry)?;
        attach(&request_conditional, conditionally, UprobeKind::Entry)?;
        let programs = vec![request, request_conditional, acquired, acquired_conditional, release];
        Ok(Self { tables, programs, _links: links, clock, cost })
    }

    /// Returns the time that tracing a lock costs the backend that takes it.
    pub fn cost_per_lock(&self) -> Duration {
        self.cost
    }

    /// Returns the addresses of a stack, for [`Symbolizer`](crate::stacks::Symbolizer). Empty if
    /// the stack is not available.
    pub fn addresses(&self, stack: StackId) -> Vec<u64> {
        let stacks = self.tables.stacks.as_ref();
        stacks.and_then(|stacks| stacks.addresses(stack).ok()).unwrap_or_default()
    }

    /// Calls `visit` with each lock that was released since the previous drain.
    pub fn drain(&mut self, mut visit: impl FnMut(ExtensionLock)) {
        let clock = self.clock;
        self.tables.ring.drain(|bytes| {
            if let Some(event) = bytes.first_chunk::<EVENT_BYTES>() {
                visit(ExtensionEvent::read(event).into_lock(clock));
            }
        });
    }

    /// Returns the numbers of events lost so far.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn lost_events(&self) -> Result<LostEvents, ProbeError> {
        let mut skipped = BTreeMap::new();
        for program in &self.programs {
            let misses = program.misses()?;
            if misses > 0 {
                skipped.insert(program.name(), misses);
            }
        }
        let [lost, unpaired] = self.tables.lost_events()?;
        Ok(LostEvents { lost, no_start: unpaired, skipped })
    }
}

/// Checks that the server's code matches known builds. Attaches nothing.
///
/// # Errors
///
/// The code does not match, or memory cannot be read.
pub(crate) fn check_layout(server: &RunningServer) -> Result<(), ProbeError> {
    RelationIdOffset::find(server).map(|_| ())
}

/// Returns the time that tracing a lock costs the backend that takes it: the hits at request,
/// acquisition and release.
///
/// # Errors
///
/// The server's code does not match known builds, or cannot be read.
pub(crate) fn cost_per_lock(server: &RunningServer, hit: HitCost) -> Result<Duration, ProbeError> {
    Ok(AttachPoints::for_server(&TracedServer::new(server)?)?.cost(hit))
}

/// The functions that take a lock unconditionally, take it if it is free, and release it.
pub(crate) const SYMBOLS: [&str; 3] = [LOCK, TRY_LOCK, UNLOCK];

const UNLOCK: &str = "UnlockRelationForExtension";
const LOCK: &str = "LockRelationForExtension";
const TRY_LOCK: &str = "ConditionalLockRelationForExtension";
