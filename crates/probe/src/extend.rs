//! Who waits for the lock to extend a relation, how long, and how long it is held then.
//!
//! A relation grows under a lock of its own, so backends that insert into one relation wait for each
//! other there. Asking for the lock, getting it and letting it go are three moments of one backend:
//!
//! ```text
//! LockRelationForExtension ──wait──► returns ──hold──► UnlockRelationForExtension
//! ConditionalLockRelationForExtension ► returns true ──hold──► the same
//! ```
//!
//! Programs at these points keep what is open in a table by thread and send one event of 56 bytes for
//! each lock that was let go. A lock that an error lets go is never told of; the next one of the thread
//! takes its place. So it is with a lock that is taken while the thread holds another (a free space map
//! that grows with its table): the inner one is told of and the outer one counted as unpaired.
//!
//! Source: `lmgr.c`, the same in 14 to 18.

mod layout;
mod places;
mod programs;
mod summary;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use howdah_inspect::Server;

pub use self::summary::Summary;
use self::{
    layout::RelationId,
    places::Places,
    programs::{EVENT_BYTES, Event, Tables},
};
use crate::{
    bpf::{Link, Links, Points, Program, Side},
    calibrate::HitCost,
    clock::Clock,
    error::Error,
    stacks::StackId,
    traced::Traced,
};

/// Extension locks of a running server, as they are let go. The programs stay attached until this is
/// dropped, or the process ends.
#[derive(Debug)]
pub struct ExtensionLocks {
    tables: Tables,
    programs: Vec<Program>,
    _links: Links,
    clock: Clock,
    cost: Duration,
}

/// One lock, from asking for it to letting it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionLock {
    /// The backend, as the caller's namespace numbers it.
    pub pid: u32,
    /// `pg_database.oid` of the relation; 0 for the shared catalogs.
    pub database: u32,
    /// `pg_class.oid`.
    pub relation: u32,
    /// When it was let go.
    pub released_at: SystemTime,
    /// From asking to getting. Nothing if it was [taken at once](Self::is_conditional).
    pub wait: Duration,
    /// From getting to letting go.
    pub hold: Duration,
    /// It was asked for only if it could be had at once, so there was no wait.
    pub is_conditional: bool,
    /// Where it was waited for, if stacks are wanted and it was long; see [`ExtensionLocks::addresses`].
    pub stack: Option<StackId>,
}

/// What was not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostEvents {
    /// Locks of which nothing was told: the ring or a table was full, or memory could not be read.
    pub lost: u64,
    /// Locks let go whose beginning was not seen: taken before we came, or around another one.
    pub unpaired: u64,
    /// Hits at which the kernel did not run a program, by program.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl LostEvents {
    /// Whether everything was seen.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl ExtensionLocks {
    /// Attaches to a server.
    ///
    /// # Errors
    ///
    /// Its code is not as expected, or programs may not be run.
    pub fn attach(server: &Server) -> Result<Self, Error> {
        Self::attach_with_stacks(server, None)
    }

    /// The same, with the stacks of those who waited at least so long.
    ///
    /// # Errors
    ///
    /// As [`ExtensionLocks::attach`].
    pub fn attach_with_stacks(
        server: &Server,
        stacks_from: Option<Duration>,
    ) -> Result<Self, Error> {
        let traced = Traced::new(server)?;
        let relation_id = RelationId::of(server)?;
        let tables = Tables::new(stacks_from)?;
        let places = Places::of(&traced)?;
        let cost = places.cost(HitCost::measure()?);
        let clock = Clock::now();
        let [ask, ask_conditionally, got, got_conditionally, release] =
            programs::load(&tables, &traced, (relation_id, places.has_tag))?;
        let mut links = Links::default();
        let binary = server.postmaster().executable();
        let mut attach = |program: &Program, point, side| {
            let points = Points { binary: &binary, points: &[point] };
            links.push(Link::attach(program, points, side)?);
            Ok::<(), Error>(())
        };
        // What ends something comes first, so that nothing begins whose end is not seen.
        let conditionally = traced.function(ASK_CONDITIONALLY)?;
        attach(&release, places.release, Side::Entry)?;
        attach(&got, places.got.0, places.got.1)?;
        attach(&got_conditionally, conditionally, Side::Return)?;
        attach(&ask, places.ask, Side::Entry)?;
        attach(&ask_conditionally, conditionally, Side::Entry)?;
        let programs = vec![ask, ask_conditionally, got, got_conditionally, release];
        Ok(Self { tables, programs, _links: links, clock, cost })
    }

    /// What a lock costs the process that takes it.
    #[must_use]
    pub fn cost_of_lock(&self) -> Duration {
        self.cost
    }

    /// The addresses of a stack, for [`CodeNames`](crate::stacks::CodeNames). None if there are none, any more.
    #[must_use]
    pub fn addresses(&self, stack: StackId) -> Vec<u64> {
        let stacks = self.tables.stacks.as_ref();
        stacks.and_then(|stacks| stacks.addresses(stack).ok()).unwrap_or_default()
    }

    /// Shows the locks that were let go since the last time.
    pub fn drain(&mut self, mut visit: impl FnMut(ExtensionLock)) {
        let clock = self.clock;
        self.tables.ring.drain(|bytes| {
            if let Some(event) = bytes.first_chunk::<EVENT_BYTES>() {
                visit(Event::read(event).into_lock(clock));
            }
        });
    }

    /// What was not seen so far.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn losses(&self) -> Result<LostEvents, Error> {
        let mut skipped = BTreeMap::new();
        for program in &self.programs {
            let misses = program.misses()?;
            if misses > 0 {
                skipped.insert(program.name(), misses);
            }
        }
        let [lost, unpaired] = self.tables.losses()?;
        Ok(LostEvents { lost, unpaired, skipped })
    }
}

/// Whether the server's code is as expected. Attaches nothing.
///
/// # Errors
///
/// It is not, or memory may not be read.
pub(crate) fn is_understood(server: &Server) -> Result<(), Error> {
    RelationId::of(server).map(|_| ())
}

/// What a lock costs the backend that takes it: asking, getting, letting go.
///
/// # Errors
///
/// The server's code is not as expected, or may not be read.
pub(crate) fn cost_of_lock(server: &Server, hit: HitCost) -> Result<Duration, Error> {
    Ok(Places::of(&Traced::new(server)?)?.cost(hit))
}

/// Where a lock is asked for with a wait, and where it is let go.
pub(crate) const FUNCTIONS: (&str, &str) = (ASK, RELEASE);

/// All of them.
pub(crate) const SYMBOLS: [&str; 3] = [ASK, ASK_CONDITIONALLY, RELEASE];

const RELEASE: &str = "UnlockRelationForExtension";
const ASK: &str = "LockRelationForExtension";
const ASK_CONDITIONALLY: &str = "ConditionalLockRelationForExtension";
