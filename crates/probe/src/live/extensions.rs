//! Traces relation extension locks, and aggregates their wait and hold times by relation.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use howdah_inspect::RunningServer;

use super::TracedProbe;
use crate::{
    ProbeError,
    extend::{ExtensionLock, ExtensionLocks, ExtensionSummary, LockStats, LostEvents},
    relation_names::RelationNames,
    stacks::{CallStack, Symbolizer},
};

/// Traces relation extension locks, and aggregates their wait and hold times.
#[derive(Debug)]
pub struct ExtensionMonitor {
    locks: ExtensionLocks,
    threshold: Option<Duration>,
    names: RelationNames,
    symbolizer: Symbolizer,
    /// Number of locks released so far.
    count: u64,
    /// Locks waited for or held for at least the threshold, not drained yet.
    long: Vec<ExtensionLock>,
    interval: ExtensionSummary,
    all: ExtensionSummary,
}

/// A lock that was waited for or held for at least the threshold.
#[derive(Debug)]
pub struct LongExtensionLock {
    /// Id of the process that requested the lock.
    pub pid: u32,
    /// The relation as `database.schema.name`, or its oids if the name is unknown.
    pub relation: String,
    /// Time that the process waited for the lock; zero for a conditional request.
    pub wait: Duration,
    /// Time that the process held the lock.
    pub hold: Duration,
    /// Time at which the process released the lock.
    pub released_at: SystemTime,
    /// The functions that the lock was requested from, if stacks are collected and the wait was
    /// long.
    pub stack: Option<CallStack>,
}

/// Locks released in one interval between reports.
#[derive(Debug)]
pub struct ExtensionInterval {
    /// Summary of the released locks.
    pub summary: ExtensionSummary,
    /// The relation with the longest total wait; `None` if no lock was released.
    pub most_waited: Option<String>,
}

/// All locks since tracing started.
#[derive(Debug)]
pub struct ExtensionLockTotals {
    /// Number of locks released.
    pub count: u64,
    /// Summary of the released locks.
    pub summary: ExtensionSummary,
    /// Locks by relation, longest total wait first.
    pub relations: Vec<RelationStats>,
    /// Events that the kernel dropped, or that cannot be paired.
    pub lost_events: LostEvents,
}

/// Waits and holds of one relation's extension lock.
#[derive(Debug)]
pub struct RelationStats {
    /// The relation as `database.schema.name`, or its oids if the name is unknown.
    pub relation: String,
    /// Waits, holds and both together.
    pub stats: LockStats,
}

impl ExtensionMonitor {
    /// Starts aggregating the locks. Those waited for or held for at least `threshold` are also
    /// passed on as [`LongExtensionLock`]s.
    pub fn new(
        locks: ExtensionLocks,
        server: &RunningServer,
        names: RelationNames,
        threshold: Option<Duration>,
    ) -> Self {
        Self {
            locks,
            threshold,
            names,
            symbolizer: Symbolizer::for_server(server),
            count: 0,
            long: Vec::new(),
            interval: ExtensionSummary::default(),
            all: ExtensionSummary::default(),
        }
    }

    /// Stops tracing, and returns the totals.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn finish(mut self) -> Result<ExtensionLockTotals, ProbeError> {
        let lost_events = self.locks.lost_events()?;
        let (count, summary) = (self.count, self.all);
        let relations = summary.relations().into_iter().map(|((database, relation), stats)| {
            RelationStats { relation: self.names.name(database, relation), stats }
        });
        let relations = relations.collect();
        Ok(ExtensionLockTotals { count, summary, relations, lost_events })
    }
}

impl TracedProbe for ExtensionMonitor {
    type LongEvent = LongExtensionLock;
    type Interval = ExtensionInterval;

    fn poll(&mut self) -> u64 {
        let Self { locks, interval, all, long, count, threshold, .. } = self;
        locks.drain(|lock| {
            *count += 1;
            interval.add(&lock);
            all.add(&lock);
            if threshold.is_some_and(|least| lock.wait.max(lock.hold) >= least) {
                long.push(lock);
            }
        });
        self.count
    }

    fn drain_long_events(&mut self) -> Vec<LongExtensionLock> {
        let Self { locks, long, names, symbolizer, .. } = self;
        let long_lock = |lock: ExtensionLock| {
            let ExtensionLock { pid, wait, hold, released_at, .. } = lock;
            let relation = names.name(lock.database, lock.relation);
            let stack = lock.stack.map(|id| symbolizer.resolve(pid, &locks.addresses(id)));
            LongExtensionLock { pid, relation, wait, hold, released_at, stack }
        };
        mem::take(long).into_iter().map(long_lock).collect()
    }

    fn drain_interval(&mut self) -> ExtensionInterval {
        let summary = mem::take(&mut self.interval);
        let relations = summary.relations();
        let most_waited = relations
            .first()
            .map(|&((database, relation), ..)| self.names.name(database, relation));
        ExtensionInterval { summary, most_waited }
    }

    fn cost_per_event(&self) -> Duration {
        self.locks.cost_per_lock()
    }
}
