//! How long backends are in functions of the server: locks that they sleep for, reads and writes, WAL,
//! planning and execution, sorts.
//!
//! Two programs for each function, at its entry and at its return, or at two markers, keep in a table by
//! thread when it began and
//! where the stack was, and send an event when it has ended. The stack tells what a begin belongs to: a call
//! deeper in the stack is a part of the one that is open and is not told apart; one at the same place or
//! above it means that an error has thrown the open one away. So statements inside of functions count once,
//! as their caller, and nothing is paired wrongly after an error.

mod functions;
mod programs;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use howdah_inspect::Server;

use self::{
    functions::{About, Function},
    programs::{EVENT_BYTES, Event, Tables},
};
use crate::{
    bpf::{Link, Links, Points, Program, Side},
    calibrate::HitCost,
    clock::Clock,
    error::{BpfError, Error},
    stacks::StackId,
    traced::Traced,
    waits::{Names, WaitEvent},
};

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    /// Sleeping for a heavyweight lock.
    Locks,
    /// Sleeping for a lightweight lock.
    LwLocks,
    /// Reading, writing and extending files of relations.
    Io,
    /// Making WAL durable.
    Wal,
    /// Planning and executing statements, whatever the protocol.
    Queries,
    /// Sorting, and writing what does not fit into memory.
    Sorts,
}

/// Calls of a server's functions, as they end. The programs stay attached until this is dropped.
#[derive(Debug)]
pub struct Durations {
    tables: Tables,
    functions: Vec<Function>,
    programs: Vec<Program>,
    _links: Links,
    names: Names,
    clock: Clock,
    cost: Duration,
}

/// One call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The process, as the caller's namespace numbers it.
    pub pid: u32,
    /// What it was: a word of the figure.
    pub operation: &'static str,
    /// What it was about.
    pub subject: Subject,
    /// When it ended.
    pub ended_at: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// Where it was called, if stacks are wanted and it took long enough; see [`Durations::addresses`].
    pub stack: Option<StackId>,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// Nothing in particular.
    None,
    /// A heavyweight lock.
    Lock(LockTag),
    /// What the process reported to wait for: a lightweight lock, by its tranche.
    Wait(WaitEvent),
    /// A file of a relation.
    File {
        /// `pg_tablespace.oid`
        tablespace: u32,
        /// `pg_database.oid`, 0 for the shared catalogs.
        database: u32,
        /// `pg_relation_filenode()`
        filenode: u32,
    },
}

/// What a heavyweight lock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockTag {
    /// `pg_locks.locktype`
    pub kind: &'static str,
    /// Database and relation, where the lock is on a relation or a part of one.
    pub relation: Option<(u32, u32)>,
}

impl Durations {
    /// Attaches to a server.
    ///
    /// # Errors
    ///
    /// The server exports none of the functions, or programs may not be run.
    pub fn attach(server: &Server, figure: Figure) -> Result<Self, Error> {
        Self::attach_at_cost(server, figure, HitCost::measure()?)
    }

    /// The same for who knows what a hit costs here.
    pub(crate) fn attach_at_cost(
        server: &Server,
        figure: Figure,
        hit: HitCost,
    ) -> Result<Self, Error> {
        Self::attach_all(server, figure, hit, None)
    }

    /// The same, with the stacks of calls that take at least so long. A call that is long costs some
    /// microseconds more then.
    ///
    /// # Errors
    ///
    /// As [`Durations::attach`].
    pub fn attach_with_stacks(
        server: &Server,
        figure: Figure,
        stacks_from: Option<Duration>,
    ) -> Result<Self, Error> {
        Self::attach_all(server, figure, HitCost::measure()?, stacks_from)
    }

    fn attach_all(
        server: &Server,
        figure: Figure,
        hit: HitCost,
        stacks_from: Option<Duration>,
    ) -> Result<Self, Error> {
        let traced = Traced::new(server)?;
        let tables = Tables::new(stacks_from)?;
        let clock = Clock::now();
        let major = server.major();
        let names =
            Names::of_server(server).ok_or(howdah_inspect::ProcessError::Unsupported { major })?;
        let functions = figure.found_in(server)?;
        let (mut programs, mut links) = (Vec::new(), Links::default());
        let cost = figure.cost_of_call(server, &traced, hit)?;
        let binary = server.postmaster().executable();
        for (number, function) in functions.iter().enumerate() {
            let [at_begin, at_end] = function.place.points(&traced)?;
            let wait = match function.about {
                About::Wait => Some(server.binary().address("my_wait_event_info")?),
                _ => None,
            };
            let end = Program::load("end", programs::end(&tables, number, function.place))?;
            let begin = programs::begin(&tables, &traced, number, function, wait);
            let begin = Program::load("begin", begin)?;
            let side = function.place.side_of_end();
            let points = |points| Points { binary: &binary, points };
            links.push(Link::attach(&end, points(&at_end), side)?);
            links.push(Link::attach(&begin, points(&at_begin), Side::Entry)?);
            programs.extend([end, begin]);
        }
        Ok(Self { tables, functions, programs, _links: links, names, clock, cost })
    }

    /// The addresses of a stack, for [`CodeNames`](crate::stacks::CodeNames). None if there are none, any more.
    #[must_use]
    pub fn addresses(&self, stack: StackId) -> Vec<u64> {
        let stacks = self.tables.stacks.as_ref();
        stacks.and_then(|stacks| stacks.addresses(stack).ok()).unwrap_or_default()
    }

    /// What a call costs the process that makes it, at the dearest of the functions.
    #[must_use]
    pub fn cost_of_call(&self) -> Duration {
        self.cost
    }

    /// Shows the calls that ended since the last time.
    pub fn drain(&mut self, mut visit: impl FnMut(Call)) {
        let (functions, names, clock) = (&self.functions, &self.names, self.clock);
        self.tables.ring.drain(|bytes| {
            let event = bytes.first_chunk::<EVENT_BYTES>().map(Event::read);
            if let Some(event) = event
                && let Some(function) = functions.get(event.function)
            {
                visit(event.into_call(function, names, clock));
            }
        });
    }

    /// Calls that were not told: no room, or hits that the kernel skipped.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn lost(&self) -> Result<u64, Error> {
        let misses = self.programs.iter().map(Program::misses);
        let skipped: u64 = misses.sum::<Result<_, BpfError>>()?;
        Ok(self.tables.lost()? + skipped)
    }
}

impl LockTag {
    /// Reads `LOCKTAG`: three words, half a word, kind and method. Source: `lock.h`.
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

impl Figure {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Locks, Self::LwLocks, Self::Io, Self::Wal, Self::Queries, Self::Sorts];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::LwLocks => "lwlocks",
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
fn lock_tags_are_read_as_pg_locks_shows_them() {
    let tag = |kind: u32| LockTag::read([5, 16_384, 7, 1 << 24 | kind << 16 | 3]);
    assert_eq!(tag(0), LockTag { kind: "relation", relation: Some((5, 16_384)) });
    assert_eq!(tag(4).relation, Some((5, 16_384)));
    assert_eq!((tag(5).kind, tag(5).relation), ("transactionid", None));
    assert_eq!(tag(10).kind, "advisory");
    assert_eq!(tag(200).kind, "unknown");
}
