//! Measures how long backends spend in functions of the server: lock waits, spin delays, reads and
//! writes, WAL, planning and execution, sorts.
//!
//! Each function has two programs, at its entry and at its return, or at two USDT probes. They keep
//! the start time and the stack pointer in a map by thread and function, and send an event at the
//! end. The stack pointer identifies the call that a start belongs to. A call deeper in the stack
//! is part of the open call and not counted separately; one at the same depth or above means that
//! an error has unwound the open call. So statements inside functions count once, as part of their
//! caller, and an error does not cause a wrong pairing.

mod callers;
mod functions;
mod programs;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use howdah_inspect::RunningServer;

pub use self::callers::CallerId;
use self::{
    callers::Callers,
    functions::{SubjectSource, TracedFunction},
    programs::{CallEvent, CallMaps, EVENT_BYTES},
};
use crate::{
    bpf::{BpfLink, BpfLinks, FilePoints, Program, UprobeKind},
    calibrate::HitCost,
    clock::ClockOffset,
    error::{BpfError, ProbeError},
    stacks::StackId,
    traced_server::TracedServer,
    waits::{WaitEvent, WaitEventNames},
};

/// A group of functions measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeMetric {
    /// Waiting for a heavyweight lock.
    Locks,
    /// Waiting for a lightweight lock.
    LwLocks,
    /// Waiting for a spinlock that another process has: spinning, and sleeping in between.
    Spins,
    /// Reading, writing, extending and syncing files.
    Io,
    /// Flushing WAL to disk.
    Wal,
    /// Planning and executing statements, in either protocol.
    Queries,
    /// Sorting, and writing data that does not fit into memory to temporary files.
    Sorts,
}

/// Traces calls of a server's functions. The programs stay attached until the value is dropped.
#[derive(Debug)]
pub struct CallDurations {
    tables: CallMaps,
    functions: Vec<TracedFunction>,
    programs: Vec<Program>,
    _links: BpfLinks,
    names: WaitEventNames,
    callers: Callers,
    clock: ClockOffset,
    cost: Duration,
}

/// A finished call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Id of the calling process in the initial PID namespace.
    pub pid: u32,
    /// The operation, e.g. `read` or `fsync`.
    pub operation: &'static str,
    /// The object that the call acted on.
    pub subject: CallSubject,
    /// Wall-clock time of the return.
    pub ended_at: SystemTime,
    /// Time from entry to return.
    pub duration: Duration,
    /// The stack of the call, if stacks are collected and it took long enough; see
    /// [`CallDurations::addresses`].
    pub stack: Option<StackId>,
}

/// The object that a call acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CallSubject {
    /// The object is not known, or there is none.
    None,
    /// A heavyweight lock.
    Lock(LockTag),
    /// The reported wait event: a lightweight lock, by tranche.
    Wait(WaitEvent),
    /// The position in the source that requests a spinlock; see [`CallDurations::caller`].
    Caller(CallerId),
    /// A relation file.
    File {
        /// Oid of the tablespace (`pg_tablespace.oid`).
        tablespace: u32,
        /// `pg_database.oid`; 0 for the shared catalogs.
        database: u32,
        /// The relation's `pg_relation_filenode()`.
        filenode: u32,
    },
}

/// The object of a heavyweight lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockTag {
    /// Type of the locked object, as in `pg_locks.locktype`; `unknown` for other types.
    pub kind: &'static str,
    /// Oids of database and relation, if the lock is on a relation or a part of one.
    pub relation: Option<(u32, u32)>,
}

impl CallDurations {
    /// Attaches the programs of a metric to a server.
    ///
    /// # Errors
    ///
    /// The server has none of the functions or cannot be inspected, or BPF programs cannot be run.
    pub fn attach(server: &RunningServer, metric: ProbeMetric) -> Result<Self, ProbeError> {
        Self::attach_with_hit_cost(server, metric, HitCost::measure()?)
    }

    /// Like [`CallDurations::attach`], but with a cost per hit that was measured before.
    pub(crate) fn attach_with_hit_cost(
        server: &RunningServer,
        metric: ProbeMetric,
        hit: HitCost,
    ) -> Result<Self, ProbeError> {
        Self::attach_all(server, metric, hit, None)
    }

    /// Like [`CallDurations::attach`], but collects the stacks of calls that take at least
    /// `stacks_from`. Such a call then takes a few microseconds longer. With `None`, no stacks are
    /// collected.
    ///
    /// # Errors
    ///
    /// See [`CallDurations::attach`].
    pub fn attach_with_stacks(
        server: &RunningServer,
        metric: ProbeMetric,
        stacks_from: Option<Duration>,
    ) -> Result<Self, ProbeError> {
        Self::attach_all(server, metric, HitCost::measure()?, stacks_from)
    }

    fn attach_all(
        server: &RunningServer,
        metric: ProbeMetric,
        hit: HitCost,
        stacks_from: Option<Duration>,
    ) -> Result<Self, ProbeError> {
        let traced = TracedServer::new(server)?;
        let tables = CallMaps::new(stacks_from)?;
        let clock = ClockOffset::measure();
        let major = server.major();
        let names = WaitEventNames::for_server(server)
            .ok_or(howdah_inspect::ProcessError::Unsupported { major })?;
        let functions = metric.functions_in(server)?;
        let (mut programs, mut links) = (Vec::new(), BpfLinks::default());
        let cost = metric.cost_per_call(server, &traced, hit)?;
        let binary = server.postmaster().executable();
        for (number, function) in functions.iter().enumerate() {
            let [at_begin, at_end] = function.span.points(&traced)?;
            let wait = match function.subject {
                SubjectSource::Wait => Some(server.binary().address("my_wait_event_info")?),
                _ => None,
            };
            let end = Program::load("end", programs::end_program(&tables, number, function.span))?;
            let begin = programs::start_program(&tables, &traced, number, function, wait);
            let begin = Program::load("start", begin)?;
            let side = function.span.return_kind();
            let points = |points| FilePoints { binary: &binary, points };
            links.push(BpfLink::attach(&end, points(&at_end), side)?);
            links.push(BpfLink::attach(&begin, points(&at_begin), UprobeKind::Entry)?);
            programs.extend([end, begin]);
        }
        let callers = Callers::new(server.memory());
        Ok(Self { tables, functions, programs, _links: links, names, callers, clock, cost })
    }

    /// Returns the addresses of a stack, for [`Symbolizer`](crate::stacks::Symbolizer). Empty if
    /// the stack is not available.
    pub fn addresses(&self, stack: StackId) -> Vec<u64> {
        let stacks = self.tables.stacks.as_ref();
        stacks.and_then(|stacks| stacks.addresses(stack).ok()).unwrap_or_default()
    }

    /// Returns a position in the source as text, such as `XLogInsertRecord (xlog.c:950)`; empty for
    /// one of another server.
    pub fn caller(&self, caller: CallerId) -> &str {
        self.callers.name(caller).unwrap_or_default()
    }

    /// Returns the time that tracing adds to a call of the most expensive function.
    pub fn cost_per_call(&self) -> Duration {
        self.cost
    }

    /// Calls `visit` with each call that finished since the previous drain.
    pub fn drain(&mut self, mut visit: impl FnMut(Call)) {
        let (functions, names, clock) = (&self.functions, &self.names, self.clock);
        let callers = &mut self.callers;
        self.tables.ring.drain(|bytes| {
            let event = bytes.first_chunk::<EVENT_BYTES>().map(CallEvent::read);
            if let Some(event) = event
                && let Some(function) = functions.get(event.function)
            {
                visit(event.into_call(function, names, callers, clock));
            }
        });
    }

    /// Returns the number of calls lost because the ring or the map of open calls was full or
    /// memory could not be read, plus the number of hits that the kernel skipped.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn lost_events(&self) -> Result<u64, ProbeError> {
        let misses = self.programs.iter().map(Program::misses);
        let skipped: u64 = misses.sum::<Result<_, BpfError>>()?;
        Ok(self.tables.lost_events()? + skipped)
    }
}

impl LockTag {
    /// Parses `LOCKTAG`: three 32-bit fields, one 16-bit field, lock type and lock method. Source:
    /// `lock.h`.
    fn read(words: [u32; 4]) -> Self {
        const KINDS: [&str; 12] = [
            "relation",
            "extend",
            "frozenid",
            "page",
            "tuple",
            "transactionid",
            "virtualxid",
            "spectoken",
            "object",
            "userlock",
            "advisory",
            "applytransaction",
        ];
        let kind = KINDS.get((words[3] >> 16 & 0xff) as usize).copied().unwrap_or("unknown");
        let is_of_relation = matches!(kind, "relation" | "extend" | "page" | "tuple");
        Self { kind, relation: is_of_relation.then_some((words[0], words[1])) }
    }
}

impl ProbeMetric {
    /// All metrics.
    pub const ALL: [Self; 7] =
        [Self::Locks, Self::LwLocks, Self::Spins, Self::Io, Self::Wal, Self::Queries, Self::Sorts];

    /// Returns the metric's name, which is also the name of its subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::LwLocks => "lwlocks",
            Self::Spins => "spins",
            Self::Io => "io",
            Self::Wal => "wal",
            Self::Queries => "queries",
            Self::Sorts => "sorts",
        }
    }
}

impl fmt::Display for LockTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}

#[test]
fn lock_tags_are_named_as_in_pg_locks() {
    let tag = |kind: u32| LockTag::read([5, 16_384, 7, 1 << 24 | kind << 16 | 3]);
    assert_eq!(tag(0), LockTag { kind: "relation", relation: Some((5, 16_384)) });
    assert_eq!(tag(4).relation, Some((5, 16_384)));
    assert_eq!((tag(5).kind, tag(5).relation), ("transactionid", None));
    assert_eq!(tag(10).kind, "advisory");
    assert_eq!(tag(200).kind, "unknown");
}
