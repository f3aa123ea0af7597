//! The threads that load, each with its own connection. They take chunks until none is left.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;
use howdah_inspect::OsProcess;
use parking_lot::Mutex;

use super::{
    LoadObserver, LoadOptions, MAX_JOBS,
    backend_cpu::CpuSum,
    catalog::LocatedRelation,
    method::PrewarmMode,
    plan::{LoadChunk, touches::UsageDeficit},
    queue::ChunkQueue,
    report::{RelationOutcome, RelationProblem},
    session::LoadSession,
    throttle::Throttle,
    touch::{TouchResult, TouchRun},
    worker::{self, LoadContext},
};
use crate::dump;

/// Loads chunks on several threads, which share this data.
pub(super) struct LoadThreads<'a> {
    pub(super) target: &'a ConnectTarget,
    pub(super) options: &'a LoadOptions,
    pub(super) observer: &'a dyn LoadObserver,
    pub(super) mode: PrewarmMode,
    /// Start time of the server, as text.
    pub(super) started: &'a str,
    pub(super) page_bytes: u32,
    /// The server's process, if it runs on this host.
    pub(super) postmaster: Option<OsProcess>,
    /// The located relations, by their index in chunks.
    pub(super) located: &'a [Result<LocatedRelation, RelationProblem>],
    /// Returns whether a buffer is free; true if that is unknown.
    pub(super) has_room: &'a (dyn Fn() -> bool + Sync),
}

/// The result of loading chunks.
pub(super) struct LoadResult {
    pub(super) outcomes: Vec<RelationOutcome>,
    /// Whether chunks are left, because the load was stopped early or was a dry run.
    pub(super) is_cut_short: bool,
    /// The sessions that loaded, for touching pages; `None` where a connection was lost.
    pub(super) sessions: Vec<Option<LoadSession>>,
    /// CPU time that the server used for them.
    pub(super) server_cpu: CpuSum,
}

impl LoadThreads<'_> {
    /// Loads the chunks; none in a dry run. Returns `None` if the server restarted during the load.
    pub(super) fn load(
        &self,
        chunks: Vec<LoadChunk>,
        outcomes: Vec<RelationOutcome>,
    ) -> Option<LoadResult> {
        self.observer.planned(chunks.iter().map(LoadChunk::pages).sum());
        let databases = self.databases();
        let numbered: Vec<_> = chunks
            .into_iter()
            .filter_map(|chunk| Some((databases.number(chunk.relation)?, chunk)))
            .collect();
        let jobs = self.options.jobs.clamp(1, MAX_JOBS).min(numbered.len());
        let shared = self.context(&databases, ChunkQueue::new(numbered), outcomes);
        let mut sessions = Vec::new();
        if !self.options.dry_run {
            sessions = run_workers(&shared, (0..jobs).collect(), worker::run);
        }
        if shared.is_restarted.load(Ordering::Relaxed) {
            return None;
        }
        let left = shared.queue.drain();
        let mut outcomes = shared.outcomes.into_inner();
        for chunk in &left {
            outcomes[chunk.relation].pages.failed += chunk.pages();
        }
        let is_cut_short = !left.is_empty();
        Some(LoadResult { outcomes, is_cut_short, sessions, server_cpu: shared.server_cpu })
    }

    /// Touches pages over the sessions of a load, as far as this costs at most `budget` of CPU
    /// time. Returns `None` if the server restarted meanwhile.
    pub(super) fn touch(
        &self,
        deficit: UsageDeficit,
        budget: Duration,
        mut sessions: Vec<Option<LoadSession>>,
    ) -> Option<TouchResult> {
        let start = Instant::now();
        let databases = self.databases();
        let shared = self.context(&databases, ChunkQueue::new([]), Vec::new());
        if sessions.is_empty() {
            // Everything was in the cache already.
            sessions.push(None);
        }
        let run = TouchRun::new(&shared, &databases, budget);
        let (chunks, met) = run.plan(deficit, &mut sessions[0]);
        let queue = Mutex::new(chunks);
        run_workers(&shared, sessions, |_, session| run.touch_all(&queue, session));
        if shared.is_restarted.load(Ordering::Relaxed) {
            return None;
        }
        Some(run.result(met, start.elapsed()))
    }

    fn context<'a>(
        &'a self,
        databases: &'a DatabaseNumbers,
        queue: ChunkQueue,
        outcomes: Vec<RelationOutcome>,
    ) -> LoadContext<'a> {
        LoadContext {
            target: self.target,
            options: self.options,
            observer: self.observer,
            mode: self.mode,
            started: self.started,
            page_bytes: self.page_bytes,
            postmaster: self.postmaster,
            databases: &databases.names,
            located: self.located,
            queue,
            throttle: Throttle::new(self.options.bytes_per_second, self.options.max_latency),
            outcomes: Mutex::new(outcomes),
            read_whole: Mutex::default(),
            searches: Mutex::default(),
            server_cpu: CpuSum::default(),
            is_restarted: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            has_room: self.has_room,
        }
    }

    /// Numbers the databases of the located relations, in their order. Sessions record the number
    /// of their database, so it is the same for loading and for touching.
    fn databases(&self) -> DatabaseNumbers {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names = Vec::new();
        let mut by_relation = Vec::with_capacity(self.located.len());
        for place in self.located {
            by_relation.push(place.as_ref().ok().map(|found| {
                *numbers.entry(&found.database).or_insert_with(|| {
                    names.push(found.database.clone());
                    names.len() - 1
                })
            }));
        }
        DatabaseNumbers { by_relation, names }
    }
}

/// The databases of the located relations.
pub(super) struct DatabaseNumbers {
    /// The number of each relation's database; `None` if the relation was not located.
    by_relation: Vec<Option<usize>>,
    names: Vec<String>,
}

impl DatabaseNumbers {
    /// Returns the number of a relation's database; `None` if the relation was not located.
    pub(super) fn number(&self, relation: usize) -> Option<usize> {
        self.by_relation.get(relation).copied().flatten()
    }
}

/// Runs one thread for each item, and returns what they return, in order.
fn run_workers<T: Send, R: Send>(
    shared: &LoadContext<'_>,
    items: Vec<T>,
    work: impl Fn(&LoadContext<'_>, T) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        if shared.options.max_latency.is_some() {
            let connect = || dump::connect(shared.target);
            scope.spawn(move || shared.throttle.measure_latency(connect, || shared.should_stop()));
        }
        let work = &work;
        let workers: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || work(shared, item))).collect();
        // A thread that panicked has reported it. The results of the others count.
        let results = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();
        shared.is_done.store(true, Ordering::Relaxed);
        results
    })
}
