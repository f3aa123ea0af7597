//! Samples the wait events of all backends, usually with one system call per round.
//!
//! ```text
//! in each process                in shared memory
//! my_wait_event_info ──────────► PGPROC.wait_event_info      (4 bytes, see names.rs)
//! ```
//!
//! The pointer has been exported since version 14. It stays the same while a process has a `PGPROC`
//! entry; before and after, it points to a variable of the process itself.
//! So it is read once per process, and a round reads the entries themselves through the postmaster,
//! which maps the same memory at the same address. The list of processes is refreshed less often: a
//! backend with a shorter life may be missed, and until the next listing an entry may already
//! belong to the next backend.
//!
//! Cost per round: one call of about 10 µs for a hundred backends; per listing: some small files in
//! `/proc`; per new backend: some ten calls. See `docs/performance.md`.

use std::{
    collections::HashSet,
    mem,
    time::{Duration, Instant},
};

use howdah_inspect::{
    ChildList, InspectError, MemoryError, OsProcess, ProcessError, ProcessMemory, RunState,
    RunningServer, WatchedWords,
};

use super::{
    backend::BackendInfo,
    names::{Class, WaitEvent, WaitEventNames},
    query::{QueryId, QueryOptions, QueryReader},
};
use crate::sampling::{PostmasterIdentity, SampleError, thread_cpu_time};

/// Options for sampling a server.
#[derive(Debug)]
pub struct SamplerOptions {
    /// Interval between searches for new and ended processes.
    pub listing_interval: Duration,
    /// If set, the statements of active backends are read too: three more system calls for each.
    pub queries: Option<QueryOptions>,
}

/// Samples the wait events of all backends of a server.
#[derive(Debug)]
pub struct WaitSampler {
    postmaster: PostmasterIdentity,
    memory: ProcessMemory,
    names: WaitEventNames,
    cluster_name: String,
    /// Address of the pointer in each process.
    pointer: u64,
    /// Target of the pointer in a process without an entry in shared memory.
    local_variable: u64,
    children: ChildList,
    backends: Vec<SampledBackend>,
    words: WatchedWords,
    observed: Vec<(WaitEvent, Option<QueryId>)>,
    queries: Option<QueryReader>,
    listing_interval: Duration,
    next_listing: Option<Instant>,
    last_round: Option<Instant>,
    cost: SamplingCost,
}

/// One sample of all backends.
#[derive(Debug)]
pub struct SampleRound<'a> {
    sampler: &'a WaitSampler,
    elapsed: Duration,
    counts: ProcessCounts,
    checks: NoWaitStates,
}

/// One backend in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation<'a> {
    /// The process, as identified by its title.
    pub backend: &'a BackendInfo,
    /// The wait event, or no wait.
    pub event: WaitEvent,
    /// The statement that an active foreground process is executing, if requested and readable.
    pub query: Option<QueryId>,
}

/// Number of processes by state. `processes` is the sum of the other fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// All processes that have an entry in shared memory.
    pub processes: usize,
    /// Idle processes, in a wait of class `Client` or `Activity`.
    pub idle: usize,
    /// Processes in any other wait.
    pub waiting: usize,
    /// Processes that report no wait.
    pub no_wait: usize,
}

/// Kernel states of processes that reported no wait both before and after the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoWaitStates {
    /// Processes that are running or runnable.
    pub running: u64,
    /// Processes in uninterruptible I/O that the server does not report.
    pub blocked: u64,
    /// Processes in another sleep that the server does not report.
    pub sleeping: u64,
}

/// Cost of sampling since the start, without the caller's own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplingCost {
    /// Number of sampling rounds.
    pub rounds: u64,
    /// Number of times that the processes were listed.
    pub listings: u64,
    /// Processor time that the sampling thread spent in these rounds.
    pub cpu: Duration,
}

#[derive(Clone, Debug)]
struct SampledBackend {
    backend: BackendInfo,
    address: u64,
}

impl Default for SamplerOptions {
    /// Lists processes ten times per second, and does not read statements.
    fn default() -> Self {
        Self { listing_interval: Duration::from_millis(100), queries: None }
    }
}

impl WaitSampler {
    /// Prepares to sample `server`.
    ///
    /// # Errors
    ///
    /// The server's major version is not supported, its memory cannot be read, or its binary does
    /// not export the required symbols.
    pub fn open(server: &RunningServer, options: SamplerOptions) -> Result<Self, SampleError> {
        let major = server.major();
        let names =
            WaitEventNames::for_server(server).ok_or(ProcessError::Unsupported { major })?;
        let (memory, binary) = (server.memory(), server.binary());
        let address = |symbol| binary.address(symbol).map_err(InspectError::from);
        let pointer = address("my_wait_event_info")?;
        let own_variable = memory.pointer(pointer)?;
        let queries = match options.queries {
            Some(queries) => Some(QueryReader::new(address("debug_query_string")?, queries)),
            None => None,
        };
        Ok(Self {
            postmaster: PostmasterIdentity::for_server(server)?,
            memory,
            names,
            cluster_name: cluster_name(server)?,
            pointer,
            local_variable: own_variable,
            children: server.postmaster().child_list()?,
            backends: Vec::new(),
            words: WatchedWords::at(&[]),
            observed: Vec::new(),
            queries,
            listing_interval: options.listing_interval,
            next_listing: None,
            last_round: None,
            cost: SamplingCost::default(),
        })
    }

    /// Samples all backends once. `now` determines the next listing and the length of the round; it
    /// must not decrease.
    ///
    /// # Errors
    ///
    /// The server has stopped, or its processes or memory cannot be read.
    pub fn sample(&mut self, now: Instant) -> Result<SampleRound<'_>, SampleError> {
        let cpu = thread_cpu_time();
        let is_listing = self.next_listing.is_none_or(|due| now >= due);
        if is_listing {
            self.list_processes(now)?;
        }
        self.read_wait_infos(now)?;
        self.decode();
        let checks = if is_listing { self.check_no_waits() } else { NoWaitStates::default() };
        let elapsed =
            self.last_round.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last_round = Some(now);
        self.cost.rounds += 1;
        self.cost.cpu += thread_cpu_time().saturating_sub(cpu);
        Ok(SampleRound { sampler: self, elapsed, counts: self.counts(), checks })
    }

    /// Returns the text of a statement; `None` for [`QueryId::OTHER`].
    pub fn query(&self, id: QueryId) -> Option<&str> {
        self.queries.as_ref()?.text(id)
    }

    /// Returns the names of this server's wait events.
    pub fn names(&self) -> &WaitEventNames {
        &self.names
    }

    /// Returns the cost of sampling so far.
    pub fn cost(&self) -> SamplingCost {
        self.cost
    }

    /// Lists the processes, and locates the entries of new ones.
    fn list_processes(&mut self, now: Instant) -> Result<(), SampleError> {
        let listed = self.children.read().map_err(|error| self.postmaster.explain(error))?;
        if listed.is_empty() {
            // A running server has processes of its own, unless it is just (re)starting them.
            self.postmaster.check()?;
        }
        let listed: HashSet<u32> = listed.into_iter().collect();
        let mut backends = mem::take(&mut self.backends);
        // The list may omit processes while another one exits, so a missing one is verified by
        // reading its pointer.
        let is_there = |sampled: &SampledBackend| {
            listed.contains(&sampled.backend.pid)
                || self.wait_event_address(sampled.backend.pid) == Some(sampled.address)
        };
        let before = backends.len();
        backends.retain(is_there);
        let known: HashSet<u32> = backends.iter().map(|sampled| sampled.backend.pid).collect();
        let new: Vec<_> =
            listed.difference(&known).filter_map(|&pid| self.sampled_backend(pid)).collect();
        // A new process may have the entry of one that is exiting.
        backends.retain(|sampled| new.iter().all(|new| new.address != sampled.address));
        if !new.is_empty() || backends.len() < before {
            backends.extend(new);
            backends.sort_by_key(|sampled| sampled.backend.pid);
            let addresses: Vec<u64> = backends.iter().map(|sampled| sampled.address).collect();
            self.words = WatchedWords::at(&addresses);
        }
        self.backends = backends;
        self.next_listing = Some(now + self.listing_interval);
        self.cost.listings += 1;
        Ok(())
    }

    /// Returns the target of the process's pointer; `None` if that is its own variable, or the
    /// process is gone.
    fn wait_event_address(&self, pid: u32) -> Option<u64> {
        ProcessMemory::for_pid(pid)
            .pointer(self.pointer)
            .ok()
            .filter(|&address| address != self.local_variable)
    }

    /// Returns the process, if it belongs to the server and has an entry in shared memory.
    fn sampled_backend(&self, pid: u32) -> Option<SampledBackend> {
        let process = OsProcess::from_pid(pid).ok()?;
        // A postmaster that is process 1 of its container may also have unrelated children.
        if !process.runs_same_binary(self.postmaster.postmaster()).ok()? {
            return None;
        }
        let address = self.wait_event_address(pid)?;
        self.memory.int(address).ok()?;
        let backend = BackendInfo::from_title(pid, &process.title().ok()?, &self.cluster_name)?;
        Some(SampledBackend { backend, address })
    }

    fn read_wait_infos(&mut self, now: Instant) -> Result<(), SampleError> {
        match self.words.read(self.memory) {
            // After a crash the server has a new shared memory segment, perhaps at another address.
            Err(MemoryError::Unmapped { .. }) => {
                self.list_processes(now)?;
                self.words.read(self.memory).map_err(|error| self.postmaster.explain(error))
            }
            read => read.map_err(|error| self.postmaster.explain(error)),
        }
    }

    fn decode(&mut self) {
        self.observed.clear();
        for (sampled, word) in self.backends.iter().zip(self.words.iter()) {
            let event = self.names.decode(word);
            let is_active = sampled.backend.kind.is_foreground() && !event.class().is_idle();
            let query = match &mut self.queries {
                Some(queries) if is_active => {
                    queries.read(ProcessMemory::for_pid(sampled.backend.pid))
                }
                _ => None,
            };
            self.observed.push((event, query));
        }
    }

    /// Checks in the kernel what processes without a reported wait are doing. Only a few processes
    /// are checked per listing, in rotation: a file in `/proc` costs more than a whole round.
    fn check_no_waits(&self) -> NoWaitStates {
        let mut checks = NoWaitStates::default();
        let begin = self.cost.rounds as usize % self.backends.len().max(1);
        let both = || self.backends.iter().zip(&self.observed);
        let in_turn = both().skip(begin).chain(both().take(begin));
        let silent = in_turn.filter(|(_, (event, _))| event.class() == Class::NoWait);
        for (sampled, _) in silent.take(CHECKS_PER_LISTING) {
            let Some(state) =
                OsProcess::from_pid(sampled.backend.pid).and_then(OsProcess::run_state).ok()
            else {
                continue;
            };
            // Count it only if no wait started meanwhile.
            match (self.memory.int(sampled.address), state) {
                (Ok(0), RunState::Running) => checks.running += 1,
                (Ok(0), RunState::Blocked) => checks.blocked += 1,
                (Ok(0), RunState::Sleeping) => checks.sleeping += 1,
                (Ok(0), RunState::Ended) | (Ok(_), _) | (Err(_), _) => {}
            }
        }
        checks
    }

    fn counts(&self) -> ProcessCounts {
        let mut counts =
            ProcessCounts { processes: self.observed.len(), ..ProcessCounts::default() };
        for (event, _) in &self.observed {
            match event.class() {
                Class::NoWait => counts.no_wait += 1,
                class if class.is_idle() => counts.idle += 1,
                _ => counts.waiting += 1,
            }
        }
        counts
    }
}

impl SampleRound<'_> {
    /// Returns the time since the previous round, which the observations represent. Zero in the
    /// first round.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns the number of processes by state.
    pub fn counts(&self) -> ProcessCounts {
        self.counts
    }

    /// Returns the kernel states of processes that reported no wait; all 0 except in rounds with a
    /// listing.
    pub fn checks(&self) -> NoWaitStates {
        self.checks
    }

    /// Returns the observations of all backends, ordered by process id.
    pub fn observations(&self) -> impl ExactSizeIterator<Item = Observation<'_>> {
        let WaitSampler { backends, observed: seen, .. } = self.sampler;
        backends.iter().zip(seen).map(|(sampled, &(event, query))| Observation {
            backend: &sampled.backend,
            event,
            query,
        })
    }
}

/// Returns the server's `cluster_name`, which is in the titles of its processes.
pub(crate) fn cluster_name(server: &RunningServer) -> Result<String, InspectError> {
    let memory = server.memory();
    let name =
        memory.text(memory.pointer(server.binary().address("cluster_name")?)?, NAME_BYTES)?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Maximum length of `cluster_name`: `MAXPGPATH`.
const NAME_BYTES: usize = 1024;

const CHECKS_PER_LISTING: usize = 16;
