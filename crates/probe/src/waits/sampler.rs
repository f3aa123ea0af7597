//! The sampler: all backends' waits by one system call a round.
//!
//! ```text
//! in each process                in shared memory
//! my_wait_event_info ──────────► PGPROC.wait_event_info      (4 bytes, see names.rs)
//! ```
//!
//! The pointer is exported since 14, and stays the same from when a process takes its place among the
//! server's until it ends; before and after, it leads to a variable of the process's own. So it is read
//! once per process, and a round reads the places themselves, through the postmaster, which maps the same
//! memory at the same address. Which processes there are is looked up at a slower rhythm: a backend
//! shorter than that may be missed, and in the moment before the next look, what a place says may
//! be of the backend that came after.
//!
//! Costs per round: one call of about 10 µs for a hundred backends; per listing one small file of
//! `/proc`; per new backend some ten calls. See `docs/performance.md`.

use std::{
    collections::HashSet,
    mem,
    time::{Duration, Instant},
};

use howdah_inspect::{
    ChildList, Memory, MemoryError, Process, ProcessError, RunState, Server, Words,
};

use super::{
    backend::Backend,
    names::{Class, Names, WaitEvent},
    query::{Queries, QueryId, QueryOptions},
};
use crate::sampling::{Life, SampleError, own_cpu};

/// How a server is sampled.
#[derive(Debug)]
pub struct Options {
    /// How often to look for new and ended processes.
    pub listing_interval: Duration,
    /// Whether to read also what the active backends work on: three more system calls for each.
    pub queries: Option<QueryOptions>,
}

/// Samples what all backends of a server wait for.
#[derive(Debug)]
pub struct Sampler {
    life: Life,
    memory: Memory,
    names: Names,
    cluster_name: String,
    /// Where each process has its pointer.
    pointer: u64,
    /// Where it leads in a process that has no place in shared memory.
    own_variable: u64,
    children: ChildList,
    members: Vec<Member>,
    words: Words,
    seen: Vec<(WaitEvent, Option<QueryId>)>,
    queries: Option<Queries>,
    listing_interval: Duration,
    next_listing: Option<Instant>,
    last_round: Option<Instant>,
    cost: Cost,
}

/// One look at all backends.
#[derive(Debug)]
pub struct Round<'a> {
    sampler: &'a Sampler,
    elapsed: Duration,
    counts: Counts,
    checks: Checks,
}

/// What one backend was seen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation<'a> {
    /// Who.
    pub backend: &'a Backend,
    /// What it waits for, or that it reports no wait.
    pub event: WaitEvent,
    /// What it works on, if that was asked for and could be read.
    pub query: Option<QueryId>,
}

/// How many were seen at what. The first is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All processes that have a place in shared memory.
    pub processes: usize,
    /// In a wait that is no work: class `Client` or `Activity`.
    pub idle: usize,
    /// In any other wait.
    pub waiting: usize,
    /// Reporting no wait.
    pub no_wait: usize,
}

/// What the kernel said of processes that reported no wait, before and after it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// On a processor, or waiting for one.
    pub running: u64,
    /// In a wait for a disk that the server does not report.
    pub blocked: u64,
    /// In another wait that the server does not report.
    pub sleeping: u64,
}

/// What sampling has cost since it began, the caller's own work aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Rounds taken.
    pub rounds: u64,
    /// Of these, rounds that also looked for processes.
    pub listings: u64,
    /// Processor time of this thread.
    pub cpu: Duration,
}

#[derive(Clone, Debug)]
struct Member {
    backend: Backend,
    place: u64,
}

impl Default for Options {
    /// Ten listings a second; no statements.
    fn default() -> Self {
        Self { listing_interval: Duration::from_millis(100), queries: None }
    }
}

impl Sampler {
    /// Prepares to sample `server`.
    ///
    /// # Errors
    ///
    /// Its memory may not be read, or its binary lacks the names that lead to the waits.
    pub fn open(server: &Server, options: Options) -> Result<Self, SampleError> {
        let major = server.major();
        let names = Names::of_server(server).ok_or(ProcessError::Unsupported { major })?;
        let (memory, binary) = (server.memory(), server.binary());
        let address = |symbol| binary.address(symbol).map_err(howdah_inspect::Error::from);
        let pointer = address("my_wait_event_info")?;
        let own_variable = memory.pointer(pointer)?;
        let cluster_name = memory.text(memory.pointer(address("cluster_name")?)?, NAME_BYTES)?;
        let queries = match options.queries {
            Some(queries) => Some(Queries::at(address("debug_query_string")?, queries)),
            None => None,
        };
        Ok(Self {
            life: Life::of(server)?,
            memory,
            names,
            cluster_name: String::from_utf8_lossy(&cluster_name).into_owned(),
            pointer,
            own_variable,
            children: server.postmaster().child_list()?,
            members: Vec::new(),
            words: Words::at(&[]),
            seen: Vec::new(),
            queries,
            listing_interval: options.listing_interval,
            next_listing: None,
            last_round: None,
            cost: Cost::default(),
        })
    }

    /// Looks at all backends once. `now` is the time since when the next listing and the length of this
    /// round are counted; it should not go back.
    ///
    /// # Errors
    ///
    /// The server has ended.
    pub fn sample(&mut self, now: Instant) -> Result<Round<'_>, SampleError> {
        let cpu = own_cpu();
        let is_listing = self.next_listing.is_none_or(|due| now >= due);
        if is_listing {
            self.list(now)?;
        }
        self.read_words(now)?;
        self.decode();
        let checks = if is_listing { self.check_no_waits() } else { Checks::default() };
        let elapsed =
            self.last_round.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last_round = Some(now);
        self.cost.rounds += 1;
        self.cost.cpu += own_cpu().saturating_sub(cpu);
        Ok(Round { sampler: self, elapsed, counts: self.counts(), checks })
    }

    /// The text of a statement; `None` for [`QueryId::OTHER`].
    #[must_use]
    pub fn query(&self, id: QueryId) -> Option<&str> {
        self.queries.as_ref()?.text(id)
    }

    /// The names of this server's wait events.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What it has cost so far.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Finds out which processes there are, and where those that are new have their places.
    fn list(&mut self, now: Instant) -> Result<(), SampleError> {
        let listed = self.children.read().map_err(|error| self.life.explain(error))?;
        if listed.is_empty() {
            // A server has its own processes, if it is not about to start them, or anew.
            self.life.check()?;
        }
        let listed: HashSet<u32> = listed.into_iter().collect();
        let mut members = mem::take(&mut self.members);
        // The list may leave out some while another ends: who is missing is asked for its pointer.
        let is_there = |member: &Member| {
            listed.contains(&member.backend.pid)
                || self.place_of(member.backend.pid) == Some(member.place)
        };
        let before = members.len();
        members.retain(is_there);
        let known: HashSet<u32> = members.iter().map(|member| member.backend.pid).collect();
        let new: Vec<_> = listed.difference(&known).filter_map(|&pid| self.member(pid)).collect();
        // A new one's place was another's that is about to end.
        members.retain(|member| new.iter().all(|new| new.place != member.place));
        if !new.is_empty() || members.len() < before {
            members.extend(new);
            members.sort_by_key(|member| member.backend.pid);
            let places: Vec<u64> = members.iter().map(|member| member.place).collect();
            self.words = Words::at(&places);
        }
        self.members = members;
        self.next_listing = Some(now + self.listing_interval);
        self.cost.listings += 1;
        Ok(())
    }

    /// Where the process has its pointer to; `None` if that is its own variable, or it is gone.
    fn place_of(&self, pid: u32) -> Option<u64> {
        Memory::of(pid).pointer(self.pointer).ok().filter(|&place| place != self.own_variable)
    }

    /// The process, if it is one of the server's and has a place in shared memory.
    fn member(&self, pid: u32) -> Option<Member> {
        let process = Process::of(pid).ok()?;
        // A postmaster that is the first process of its container has strangers for children, too.
        if !process.runs_same_binary(self.life.postmaster()).ok()? {
            return None;
        }
        let place = self.place_of(pid)?;
        self.memory.int(place).ok()?;
        let backend = Backend::from_title(pid, &process.title().ok()?, &self.cluster_name)?;
        Some(Member { backend, place })
    }

    fn read_words(&mut self, now: Instant) -> Result<(), SampleError> {
        match self.words.read(self.memory) {
            // After a crash the server's memory is another one, perhaps elsewhere.
            Err(MemoryError::Unmapped { .. }) => {
                self.list(now)?;
                self.words.read(self.memory).map_err(|error| self.life.explain(error))
            }
            read => read.map_err(|error| self.life.explain(error)),
        }
    }

    fn decode(&mut self) {
        self.seen.clear();
        for (member, word) in self.members.iter().zip(self.words.iter()) {
            let event = self.names.decode(word);
            let is_active = member.backend.kind.is_foreground() && !event.class().is_idle();
            let query = match &mut self.queries {
                Some(queries) if is_active => queries.read(Memory::of(member.backend.pid)),
                _ => None,
            };
            self.seen.push((event, query));
        }
    }

    /// Asks the kernel what processes that report no wait are doing. A limited number each time, beginning
    /// elsewhere each time: a file of `/proc` costs more than a whole round.
    fn check_no_waits(&self) -> Checks {
        let mut checks = Checks::default();
        let begin = self.cost.rounds as usize % self.members.len().max(1);
        let both = || self.members.iter().zip(&self.seen);
        let in_turn = both().skip(begin).chain(both().take(begin));
        let silent = in_turn.filter(|(_, (event, _))| event.class() == Class::NoWait);
        for (member, _) in silent.take(CHECKS_PER_LISTING) {
            let Some(state) = Process::of(member.backend.pid).and_then(Process::run_state).ok()
            else {
                continue;
            };
            // Only if no wait began meanwhile.
            match (self.memory.int(member.place), state) {
                (Ok(0), RunState::Running) => checks.running += 1,
                (Ok(0), RunState::Blocked) => checks.blocked += 1,
                (Ok(0), RunState::Sleeping) => checks.sleeping += 1,
                (Ok(0), RunState::Ended) | (Ok(_), _) | (Err(_), _) => {}
            }
        }
        checks
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts { processes: self.seen.len(), ..Counts::default() };
        for (event, _) in &self.seen {
            match event.class() {
                Class::NoWait => counts.no_wait += 1,
                class if class.is_idle() => counts.idle += 1,
                _ => counts.waiting += 1,
            }
        }
        counts
    }
}

impl Round<'_> {
    /// The time since the round before, which this one's observations stand for. Nothing for the first.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// How many were seen at what.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the kernel said of those that reported no wait; only rounds with a listing ask.
    #[must_use]
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// All backends, in the order of their process ids.
    pub fn observations(&self) -> impl ExactSizeIterator<Item = Observation<'_>> {
        let Sampler { members, seen, .. } = self.sampler;
        members.iter().zip(seen).map(|(member, &(event, query))| Observation {
            backend: &member.backend,
            event,
            query,
        })
    }
}

/// `cluster_name` is cut at `MAXPGPATH` at the latest.
const NAME_BYTES: usize = 1024;

const CHECKS_PER_LISTING: usize = 16;
