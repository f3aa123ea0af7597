//! Probes attached for a few seconds after a trigger, which measure every single call.
//!
//! They run in a separate thread: attaching takes some milliseconds per function, which would delay
//! sampling.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;

use super::{budget::TraceBudget, log_histogram::LogHistogram, record::TracedCalls};
use crate::{
    calibrate::HitCost,
    durations::{Call, CallDurations, CallSubject, ProbeMetric},
};

/// Temporarily attached probes. Dropping the value detaches them.
#[derive(Debug)]
pub(super) struct ExactProbes {
    reports: Receiver<TraceReport>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A message from the thread of the probes.
#[derive(Debug)]
pub(super) enum TraceReport {
    /// Calls of one operation in one second. The duration is the offset of the second's start from
    /// the time when all probes were attached. The last are the subjects of the calls, as numbers.
    Second(Duration, TracedCalls, Vec<CallSubject>),
    /// A message: a metric is not available, or its probes were detached early.
    Note(String),
    /// Number of calls of a metric lost since its programs were attached.
    Lost(u64),
}

/// Maximum time that the probes stay attached.
pub(super) const TRACE_DURATION: Duration = Duration::from_secs(10);
/// Interval between polls of the kernel's rings.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The traced metrics. None of their functions is called per row or per cached page. Spin delays
/// are left out: `s_lock` returns with the spinlock taken, so a probe there lengthens the delays of
/// others.
const METRICS: [ProbeMetric; 3] = [ProbeMetric::Io, ProbeMetric::Wal, ProbeMetric::Locks];
/// Maximum number of queued reports.
const QUEUE_DEPTH: usize = 1024;
/// Maximum number of distinct subjects counted per operation and second, and of those reported: the
/// ones with the longest total time.
const SUBJECTS_MAX: usize = 4096;
const REPORTED_SUBJECTS_MAX: usize = 3;

impl ExactProbes {
    /// Starts the probes. `hit` is the cost of a hit on this machine; `budget` is the allowed share
    /// of all processors' time.
    pub(super) fn attach(
        server: RunningServer,
        hit: HitCost,
        budget: f64,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE_DEPTH);
        let stop = Arc::<AtomicBool>::default();
        let shared = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("recorder-exact".to_owned())
            .spawn(move || run(&server, hit, budget, &sender, &shared))?;
        Ok(Self { reports: receiver, stop, thread: Some(thread) })
    }

    /// Whether the probes are detached. Earlier reports are still available.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the reports since the last call.
    pub(super) fn reports(&self) -> impl Iterator<Item = TraceReport> {
        self.reports.try_iter()
    }

    /// Detaches the probes, and waits until they are detached. Returns true, for use in conditions.
    pub(super) fn detach(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has sent all its results to the channel.
            let _ = thread.join();
        }
        true
    }
}

impl Drop for ExactProbes {
    fn drop(&mut self) {
        self.detach();
    }
}

/// A metric whose programs are attached, with its calls in the current second.
struct AttachedMetric {
    metric: ProbeMetric,
    durations: CallDurations,
    budget: TraceBudget,
    operations: BTreeMap<&'static str, OperationSums>,
}

#[derive(Default)]
struct OperationSums {
    calls: LogHistogram,
    subjects: HashMap<CallSubject, (u64, Duration)>,
}

fn run(
    server: &RunningServer,
    hit: HitCost,
    budget: f64,
    send: &SyncSender<TraceReport>,
    stop: &AtomicBool,
) {
    // Continue if the receiver is gone; the queue has room for all reports.
    let send = |report| drop(send.try_send(report));
    let mut attached = Vec::new();
    for metric in METRICS {
        match CallDurations::attach_with_hit_cost(server, metric, hit) {
            Ok(durations) => attached.push(AttachedMetric {
                metric,
                durations,
                // Each metric has its part of the budget.
                budget: TraceBudget::new(budget / METRICS.len() as f64),
                operations: BTreeMap::new(),
            }),
            Err(error) => {
                send(TraceReport::Note(format!(
                    "calls of {} are not traced: {error}",
                    metric.name()
                )));
            }
        }
    }
    let (start, mut second) = (Instant::now(), 0);
    while second < TRACE_DURATION.as_secs() && !stop.load(Ordering::Relaxed) && !attached.is_empty()
    {
        thread::sleep(POLL_INTERVAL);
        attached.iter_mut().for_each(AttachedMetric::drain);
        let is_full = start.elapsed() >= Duration::from_secs(second + 1);
        attached.retain_mut(|one| {
            let is_used_up = one.budget.is_used_up();
            if is_full || is_used_up {
                one.report(Duration::from_secs(second), send);
            }
            if is_used_up {
                let name = one.metric.name();
                send(TraceReport::Note(format!(
                    "calls of {name} are no longer traced: over budget"
                )));
                one.report_losses(send);
            }
            !is_used_up
        });
        second += u64::from(is_full);
    }
    for mut one in attached {
        one.drain();
        one.report(Duration::from_secs(second), send);
        one.report_losses(send);
    }
}

impl AttachedMetric {
    fn drain(&mut self) {
        let (operations, budget) = (&mut self.operations, &mut self.budget);
        let cost = self.durations.cost_per_call();
        self.durations.drain(|call: Call| {
            budget.spend(cost);
            let operation = operations.entry(call.operation).or_default();
            operation.calls.add(call.duration);
            let is_known = operation.subjects.contains_key(&call.subject);
            if call.subject != CallSubject::None
                && (is_known || operation.subjects.len() < SUBJECTS_MAX)
            {
                let sums = operation.subjects.entry(call.subject).or_default();
                sums.0 += 1;
                sums.1 += call.duration;
            }
        });
    }

    fn report(&mut self, since: Duration, send: impl Fn(TraceReport)) {
        self.budget.next_second();
        for (operation, OperationSums { calls, subjects }) in mem::take(&mut self.operations) {
            let mut subjects: Vec<_> = subjects.into_iter().collect();
            subjects.sort_by_key(|(subject, (_, total))| (std::cmp::Reverse(*total), *subject));
            subjects.truncate(REPORTED_SUBJECTS_MAX);
            let numbers = subjects.iter().map(|(subject, _)| *subject).collect();
            let to_entry = |(subject, (calls, total)): (CallSubject, (u64, Duration))| {
                let us = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
                (subject_label(subject, &self.durations), (calls, us))
            };
            let exact = TracedCalls {
                at_us: 0,
                metric: self.metric.name().to_owned(),
                operation: operation.to_owned(),
                calls,
                subjects: subjects.into_iter().map(to_entry).collect(),
            };
            send(TraceReport::Second(since, exact, numbers));
        }
    }

    fn report_losses(&self, send: impl Fn(TraceReport)) {
        if let Ok(lost @ 1..) = self.durations.lost_events() {
            send(TraceReport::Lost(lost));
        }
    }
}

/// Formats a subject, with oids instead of names: `relation 5/16384` or `5/file 16390`.
fn subject_label(subject: CallSubject, durations: &CallDurations) -> String {
    match subject {
        CallSubject::None => String::new(),
        CallSubject::Lock(tag) => match tag.relation {
            Some((database, relation)) => format!("{} {database}/{relation}", tag.kind),
            None => tag.kind.to_owned(),
        },
        CallSubject::Wait(event) => event.name(),
        CallSubject::Caller(caller) => durations.caller(caller).to_owned(),
        CallSubject::File { database, filenode, .. } => format!("{database}/file {filenode}"),
    }
}
