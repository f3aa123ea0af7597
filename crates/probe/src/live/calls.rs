//! Traces the calls of a metric, and aggregates their durations by operation and subject.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    mem,
    time::{Duration, SystemTime},
};

use howdah_collect::CollectError;
use howdah_inspect::RunningServer;

use super::TracedProbe;
use crate::{
    Distribution, DurationStats, ProbeError,
    by_sql::BlockerMonitor,
    durations::{Call, CallDurations, CallSubject, ProbeMetric},
    relation_names::RelationNames,
    stacks::{CallStack, Symbolizer},
};

/// Maximum number of subjects and blockers to keep: there may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

/// Traces the calls of one metric, and aggregates their durations.
#[derive(Debug)]
pub struct CallMonitor {
    durations: CallDurations,
    threshold: Option<Duration>,
    names: RelationNames,
    symbolizer: Symbolizer,
    /// Whether intervals are also summarised by subject.
    is_by_subject: bool,
    calls: u64,
    /// Calls that took at least the threshold, not drained yet.
    long: Vec<Call>,
    interval: BTreeMap<SubjectKey, Distribution>,
    all: BTreeMap<&'static str, Distribution>,
    subjects: BTreeMap<SubjectKey, Distribution>,
    /// Finds the blockers of lock waits, if enabled. `by_blocker` has the durations of those waits.
    blockers: Option<BlockerMonitor>,
    by_blocker: BTreeMap<String, Distribution>,
}

/// An operation and its subject.
type SubjectKey = (&'static str, CallSubject);

/// A call that took at least the threshold.
#[derive(Debug)]
pub struct LongCall {
    /// Id of the process that made the call.
    pub pid: u32,
    /// The operation, e.g. `read` or `fsync`.
    pub operation: &'static str,
    /// The lock, wait event, caller or relation file of the call, if it has one.
    pub subject: Option<String>,
    /// The ids of the processes that were seen blocking a wait for a heavyweight lock; `None` if
    /// unknown.
    pub blocked_by: Option<String>,
    /// Time of the return, by the clock of this host.
    pub ended_at: SystemTime,
    /// Time from the start of the call to its return.
    pub duration: Duration,
    /// The functions that the call came from, if stacks are collected.
    pub stack: Option<CallStack>,
}

/// Durations of an operation, or of the operation on a subject.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// The operation, e.g. `read` or `fsync`.
    pub operation: &'static str,
    /// The lock, wait event, caller or relation file of the calls; `None` if they have none, or are
    /// not summarised by subject.
    pub subject: Option<String>,
    /// Durations of the calls that returned in the interval, or since tracing started.
    pub stats: DurationStats,
}

/// Totals of a metric.
#[derive(Debug)]
pub struct CallTotals {
    /// Number of calls that returned.
    pub calls: u64,
    /// Number of calls lost or skipped.
    pub lost: u64,
    /// Durations of all calls, by operation.
    pub operations: Vec<OperationStats>,
    /// Durations by operation and subject, longest total first, limited as requested in
    /// [`CallMonitor::finish`].
    pub subjects: Vec<OperationStats>,
    /// Durations of waits by the blocking processes, longest total first.
    pub blockers: Vec<(String, DurationStats)>,
    /// The error that ended the polling for blocking processes, if one did.
    pub blockers_error: Option<CollectError>,
}

impl CallMonitor {
    /// Starts aggregating the calls. Those of at least `threshold` are also passed on as
    /// [`LongCall`]s. Lightweight locks are summarised by tranche in each interval, and spin delays
    /// by caller. For heavyweight locks, also starts a session that polls for blocking processes,
    /// if `names` has a server to connect to.
    pub fn new(
        (metric, durations): (ProbeMetric, CallDurations),
        server: &RunningServer,
        names: RelationNames,
        threshold: Option<Duration>,
    ) -> Self {
        let blockers = names.target().filter(|_| metric == ProbeMetric::Locks);
        let blockers = blockers.map(|target| BlockerMonitor::start(target.clone()));
        Self {
            durations,
            threshold,
            names,
            symbolizer: Symbolizer::for_server(server),
            is_by_subject: matches!(metric, ProbeMetric::LwLocks | ProbeMetric::Spins),
            calls: 0,
            long: Vec::new(),
            interval: BTreeMap::new(),
            all: BTreeMap::new(),
            subjects: BTreeMap::new(),
            blockers,
            by_blocker: BTreeMap::new(),
        }
    }

    fn add(&mut self, call: Call) {
        let Call { operation, subject, duration, .. } = call;
        self.calls += 1;
        let subject_key = if self.is_by_subject { subject } else { CallSubject::None };
        self.interval.entry((operation, subject_key)).or_default().add(duration);
        self.all.entry(operation).or_default().add(duration);
        let is_known = self.subjects.contains_key(&(operation, subject));
        if subject != CallSubject::None && (is_known || self.subjects.len() < SUBJECTS_MAX) {
            self.subjects.entry((operation, subject)).or_default().add(duration);
        }
        if let Some(blocked_by) = self.blocked_by(&call) {
            let is_known = self.by_blocker.contains_key(&blocked_by);
            if is_known || self.by_blocker.len() < SUBJECTS_MAX {
                self.by_blocker.entry(blocked_by).or_default().add(duration);
            }
        }
        if self.threshold.is_some_and(|least| duration >= least) {
            self.long.push(call);
        }
    }

    /// Returns the ids of the processes that blocked a wait for a lock, if known.
    fn blocked_by(&self, call: &Call) -> Option<String> {
        self.blockers.as_ref()?.blocked_by(call.pid, call.ended_at, call.duration)
    }

    /// Returns the subject of a call as text; `None` if it has no subject.
    fn subject_name(&mut self, subject: CallSubject) -> Option<String> {
        Some(match subject {
            CallSubject::None => return None,
            CallSubject::Lock(tag) => match tag.relation {
                Some((database, relation)) => {
                    format!("{} {}", tag.kind, self.names.name(database, relation))
                }
                None => tag.kind.to_owned(),
            },
            CallSubject::Wait(event) => event.name(),
            CallSubject::Caller(caller) => self.durations.caller(caller).to_owned(),
            CallSubject::File { tablespace, database, filenode } => {
                self.names.name_of_file(tablespace, database, filenode)
            }
        })
    }

    /// Stops tracing, and returns the totals. At most `subjects_max` subjects are returned, because
    /// each name is a query.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn finish(mut self, subjects_max: usize) -> Result<CallTotals, ProbeError> {
        let lost = self.durations.lost_events()?;
        let operations = mem::take(&mut self.all).into_iter().map(|(operation, distribution)| {
            OperationStats { operation, subject: None, stats: distribution.stats() }
        });
        let operations = operations.collect();
        let mut subjects: Vec<_> = mem::take(&mut self.subjects)
            .into_iter()
            .map(|(key, distribution)| (key, distribution.stats()))
            .collect();
        subjects.sort_by_key(|(_, stats)| Reverse(stats.total));
        subjects.truncate(subjects_max);
        let subjects = subjects.into_iter().map(|((operation, subject), stats)| OperationStats {
            operation,
            subject: self.subject_name(subject),
            stats,
        });
        let subjects = subjects.collect();
        let mut blockers: Vec<_> = mem::take(&mut self.by_blocker)
            .into_iter()
            .map(|(pids, waits)| (pids, waits.stats()))
            .collect();
        blockers.sort_by_key(|(_, stats)| Reverse(stats.total));
        let blockers_error = self.blockers.take().and_then(|monitor| monitor.finish().err());
        let calls = self.calls;
        Ok(CallTotals { calls, lost, operations, subjects, blockers, blockers_error })
    }
}

impl TracedProbe for CallMonitor {
    type LongEvent = LongCall;
    type Interval = Vec<OperationStats>;

    fn poll(&mut self) -> u64 {
        let mut calls = Vec::new();
        self.durations.drain(|call| calls.push(call));
        calls.into_iter().for_each(|call| self.add(call));
        self.calls
    }

    fn drain_long_events(&mut self) -> Vec<LongCall> {
        let calls = mem::take(&mut self.long).into_iter();
        let long_call = |call: Call| {
            let Call { pid, operation, duration, ended_at, .. } = call;
            let stack = call.stack.map(|id| self.durations.addresses(id));
            LongCall {
                pid,
                operation,
                subject: self.subject_name(call.subject),
                blocked_by: self.blocked_by(&call),
                ended_at,
                duration,
                stack: stack.map(|addresses| self.symbolizer.resolve(pid, &addresses)),
            }
        };
        calls.map(long_call).collect()
    }

    fn drain_interval(&mut self) -> Vec<OperationStats> {
        let interval = mem::take(&mut self.interval).into_iter();
        let stats = |((operation, subject), distribution): (SubjectKey, Distribution)| {
            let subject = self.subject_name(subject);
            OperationStats { operation, subject, stats: distribution.stats() }
        };
        interval.map(stats).collect()
    }

    fn cost_per_event(&self) -> Duration {
        self.durations.cost_per_call()
    }
}
