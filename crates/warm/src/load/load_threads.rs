//! The threads that load, each with its own connection. They take chunks until none is left.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use howdah_connect::ConnectTarget;
use parking_lot::Mutex;

use super::{
    LoadObserver, LoadOptions, MAX_JOBS,
    catalog::LocatedRelation,
    method::PrewarmMode,
    plan::LoadChunk,
    queue::ChunkQueue,
    report::{RelationOutcome, RelationProblem},
    throttle::Throttle,
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
}

impl LoadThreads<'_> {
    /// Loads the chunks; none in a dry run. Returns `None` if the server restarted during the load.
    pub(super) fn load(
        self,
        chunks: Vec<LoadChunk>,
        outcomes: Vec<RelationOutcome>,
    ) -> Option<LoadResult> {
        self.observer.planned(chunks.iter().map(LoadChunk::pages).sum());
        let (databases, numbered) = self.assign_databases(chunks);
        let jobs = self.options.jobs.clamp(1, MAX_JOBS).min(numbered.len());
        let shared = LoadContext {
            target: self.target,
            options: self.options,
            observer: self.observer,
            mode: self.mode,
            started: self.started,
            page_bytes: self.page_bytes,
            databases: &databases,
            located: self.located,
            queue: ChunkQueue::new(numbered),
            throttle: Throttle::new(self.options.bytes_per_second, self.options.max_latency),
            outcomes: Mutex::new(outcomes),
            read_whole: Mutex::default(),
            searches: Mutex::default(),
            is_restarted: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            has_room: self.has_room,
        };
        if !self.options.dry_run {
            run_workers(&shared, jobs);
        }
        if shared.is_restarted.load(Ordering::Relaxed) {
            return None;
        }
        let left = shared.queue.drain();
        let mut outcomes = shared.outcomes.into_inner();
        for chunk in &left {
            outcomes[chunk.relation].pages.failed += chunk.pages();
        }
        Some(LoadResult { outcomes, is_cut_short: !left.is_empty() })
    }

    /// Returns the databases of the chunks, and each chunk with the index of its database.
    fn assign_databases(&self, chunks: Vec<LoadChunk>) -> (Vec<String>, Vec<(usize, LoadChunk)>) {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut databases = Vec::new();
        let numbered = chunks
            .into_iter()
            .filter_map(|chunk| {
                let found = self.located[chunk.relation].as_ref().ok()?;
                let number = *numbers.entry(&found.database).or_insert_with(|| {
                    databases.push(found.database.clone());
                    databases.len() - 1
                });
                Some((number, chunk))
            })
            .collect();
        (databases, numbered)
    }
}

fn run_workers(shared: &LoadContext<'_>, jobs: usize) {
    thread::scope(|scope| {
        if shared.options.max_latency.is_some() {
            let connect = || dump::connect(shared.target);
            scope.spawn(move || shared.throttle.measure_latency(connect, || shared.should_stop()));
        }
        let workers: Vec<_> =
            (0..jobs).map(|worker| scope.spawn(move || worker::run(shared, worker))).collect();
        for worker in workers {
            // A panic is propagated at the end of the scope.
            let _ = worker.join();
        }
        shared.is_done.store(true, Ordering::Relaxed);
    });
}
