//! [`BackendRunner`]: a backend with its thread and queue.
//!
//! ```text
//!                 room                      the thread is free
//!  flush thread ───────► waiting intervals ───────────────────► MetricBackend::flush
//!       │ no room             ▲
//!       ├─ can join ──────────┘ joined to the newest waiting interval
//!       └─ cannot join ─► dropped and counted
//! ```

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, TryRecvError},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    backends::{
        BackendSpool, BackendStatus, DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED,
        MetricBackend, SPOOL_BATCHES, SnapshotRequirements, StopDeadline, chain,
    },
    flush::{FlushSnapshot, JoinLosses},
};

/// Maximum number of intervals that a backend has at once: one in progress and two waiting.
const INTERVALS_MAX: usize = 3;
/// Maximum number of metrics in all intervals that a backend has at once, because a million metrics
/// take about 100 MB. An idle backend accepts an interval of any size, and one interval of any size
/// may wait for a busy backend that joins intervals.
const METRICS_MAX: u64 = 1_000_000;

/// Maximum number of intervals that a backend has while it waits for those of another process.
const PARKED_INTERVALS_MAX: usize = 64;

/// A running backend.
#[derive(Debug)]
pub(super) struct BackendRunner {
    name: &'static str,
    status: BackendStatus,
    joins: bool,
    requirements: SnapshotRequirements,
    exports_state: bool,
    queue: Arc<SnapshotQueue>,
    /// Ends a long flush when the backend is being stopped.
    stop: Option<StopDeadline>,
    is_finishing: bool,
    ended: Receiver<FinishedBackend>,
}

/// The result of a backend's last work.
#[derive(Debug, Default)]
pub(super) struct FinishedBackend {
    /// The reason why values are lost, if any are.
    pub(super) error: Option<String>,
    /// Batches for the process that has taken over.
    pub(super) spool: BackendSpool,
}

/// The result of queueing an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueOutcome {
    /// The interval was queued.
    Queued,
    /// The queue was full: the interval was joined to a waiting one.
    Joined,
    /// The queue was full and the backend does not join intervals, or the backend's thread has
    /// ended.
    Dropped,
}

/// The intervals waiting for the backend's thread.
#[derive(Debug, Default)]
struct SnapshotQueue {
    state: Mutex<SnapshotQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SnapshotQueueState {
    waiting: VecDeque<Arc<FlushSnapshot>>,
    /// Number of metrics in the interval in progress.
    in_work: Option<u64>,
    /// Until this time, intervals wait for those of the process before this one.
    parked_until: Option<Instant>,
    /// Requests, processed after the waiting intervals, except batches of another process, which
    /// are earlier.
    requests: VecDeque<StateRequest>,
    /// The request to end, with the deadline.
    finish: Option<(LastWork, Instant)>,
    /// Whether the queue is closed, because the server was dropped, or the backend is finishing or
    /// its thread has ended.
    closed: bool,
}

impl SnapshotQueueState {
    fn has_room(&self, metrics: u64) -> bool {
        let waiting = self.waiting.iter().map(|snapshot| snapshot.metric_count()).sum::<u64>();
        let intervals = self.waiting.len() + usize::from(self.in_work.is_some());
        let is_parked = self.parked_until.is_some();
        intervals == 0
            || intervals < if is_parked { PARKED_INTERVALS_MAX } else { INTERVALS_MAX }
                && waiting + self.in_work.unwrap_or_default() + metrics <= METRICS_MAX
    }
}

/// A job of the backend's thread.
enum BackendJob {
    Flush(Arc<FlushSnapshot>),
    State(StateRequest),
    Finish(LastWork, Instant),
}

/// A request of a takeover.
#[derive(Debug)]
enum StateRequest {
    Export(mpsc::Sender<Option<Vec<u8>>>),
    Import(Vec<u8>, mpsc::Sender<Result<(), String>>),
    Adopt(BackendSpool),
}

/// The last work of a backend.
#[derive(Debug)]
enum LastWork {
    /// Flush the last interval, if there is one, and deliver everything.
    Finish(Option<Arc<FlushSnapshot>>),
    /// Deliver everything, and return the rest for the process that has taken over.
    HandOver,
}

impl SnapshotQueue {
    fn lock(&self) -> MutexGuard<'_, SnapshotQueueState> {
        self.state.lock()
    }

    /// Queues an interval. Called only by the flush thread.
    fn push(&self, snapshot: Arc<FlushSnapshot>, joins: bool) -> QueueOutcome {
        let mut state = self.lock();
        if state.closed {
            return QueueOutcome::Dropped;
        }
        let queued = match (state.has_room(snapshot.metric_count()), joins) {
            (true, _) => {
                state.waiting.push_back(snapshot);
                QueueOutcome::Queued
            }
            (false, false) => QueueOutcome::Dropped,
            (false, true) => match state.waiting.pop_back() {
                // One interval of any size may wait while another is in progress. All later
                // intervals are joined to the waiting one, so there are never more than two.
                None => {
                    state.waiting.push_back(snapshot);
                    QueueOutcome::Queued
                }
                Some(earlier) => {
                    // Joining may take a second, so it happens without the lock. Meanwhile the
                    // backend finds the queue empty, or an older interval, and is woken below.
                    drop(state);
                    let joined = Arc::new(earlier.joined(&snapshot));
                    state = self.lock();
                    state.waiting.push_back(joined);
                    QueueOutcome::Joined
                }
            },
        };
        drop(state);
        self.changed.notify_one();
        queued
    }

    /// Marks the previous job as done and waits for the next one; `None` once the queue is closed
    /// and empty.
    fn next(&self) -> Option<BackendJob> {
        let mut state = self.lock();
        state.in_work = None;
        loop {
            if matches!(state.requests.front(), Some(StateRequest::Adopt(_))) {
                return state.requests.pop_front().map(BackendJob::State);
            }
            let is_ending = state.closed || state.finish.is_some();
            let now = Instant::now();
            state.parked_until = state.parked_until.filter(|until| !is_ending && now < *until);
            let is_parked = state.parked_until.is_some();
            if !is_parked && let Some(snapshot) = state.waiting.pop_front() {
                state.in_work = Some(snapshot.metric_count());
                return Some(BackendJob::Flush(snapshot));
            }
            if let Some(request) = state.requests.pop_front() {
                return Some(BackendJob::State(request));
            }
            if let Some((work, deadline)) = state.finish.take() {
                state.closed = true;
                return Some(BackendJob::Finish(work, deadline));
            }
            if state.closed {
                return None;
            }
            match state.parked_until {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Makes intervals wait until a time, or no longer.
    fn park(&self, until: Option<Instant>) {
        self.lock().parked_until = until;
        self.changed.notify_one();
    }

    /// Queues a request; returns false if the backend's thread has ended.
    fn request(&self, request: StateRequest) -> bool {
        let mut state = self.lock();
        let is_open = !state.closed;
        if is_open {
            state.requests.push_back(request);
        }
        drop(state);
        self.changed.notify_one();
        is_open
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        // Their senders wait for replies.
        state.requests.clear();
        drop(state);
        self.changed.notify_one();
    }
}

/// A backend that is finishing.
#[derive(Debug)]
pub(super) struct PendingFinish {
    name: &'static str,
    ended: Receiver<FinishedBackend>,
}

impl BackendRunner {
    pub(super) fn start(backend: Box<dyn MetricBackend>, started: SystemTime) -> io::Result<Self> {
        let (name, status, joins) = (backend.name(), backend.status(), backend.joins_intervals());
        let exports_state = backend.exports_state();
        let seconds = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().round();
        for first in ["last_flush", "last_exception"] {
            if status.get(first).is_none() {
                status.set(first, seconds);
            }
        }
        let requirements = backend.requirements();
        let stop = backend.stop_deadline();
        let queue = Arc::new(SnapshotQueue::default());
        let (end, ended) = mpsc::channel();
        let (account, jobs) = (status.clone(), QueueCloser(Arc::clone(&queue)));
        thread::Builder::new().name(format!("statsd-{name}")).spawn(move || {
            let result = run(backend, &account, &jobs.0);
            let _ = end.send(result);
        })?;
        Ok(Self {
            name,
            status,
            joins,
            requirements,
            exports_state,
            queue,
            stop,
            is_finishing: false,
            ended,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn requirements(&self) -> SnapshotRequirements {
        self.requirements
    }

    pub(super) fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    /// Queues an interval, and counts it in the status if it is joined or dropped.
    pub(super) fn flush(&self, snapshot: Arc<FlushSnapshot>) -> QueueOutcome {
        let metrics = snapshot.metric_count();
        let queued = self.queue.push(snapshot, self.joins);
        match queued {
            QueueOutcome::Queued => {}
            QueueOutcome::Joined => self.status.add(FLUSHES_JOINED, 1.0),
            QueueOutcome::Dropped => {
                self.status.add(FLUSHES_DROPPED, 1.0);
                self.status.add(DROPPED_METRICS, metrics as f64);
            }
        }
        queued
    }

    /// Queues the last interval, if there is one, and makes the backend finish.
    pub(super) fn finish(
        self,
        snapshot: Option<Arc<FlushSnapshot>>,
        deadline: Instant,
    ) -> PendingFinish {
        self.end(LastWork::Finish(snapshot), deadline)
    }

    /// Makes the backend deliver what it has, and hand over the rest.
    pub(super) fn hand_over(self, deadline: Instant) -> PendingFinish {
        self.end(LastWork::HandOver, deadline)
    }

    fn end(mut self, work: LastWork, deadline: Instant) -> PendingFinish {
        self.is_finishing = true;
        if let Some(stop) = &self.stop {
            stop.set(deadline);
        }
        self.queue.lock().finish = Some((work, deadline));
        self.queue.changed.notify_one();
        // Moves the receiver out of the runner, which is dropped at the end of this function.
        let (_, none) = mpsc::channel();
        PendingFinish { name: self.name, ended: std::mem::replace(&mut self.ended, none) }
    }

    /// Returns the backend's state after all queued intervals; `None` if it has none to export.
    pub(super) fn export_state(&self, timeout: Duration) -> Result<Option<Vec<u8>>, String> {
        if !self.exports_state {
            return Ok(None);
        }
        let (reply, state) = mpsc::channel();
        self.queue.request(StateRequest::Export(reply));
        state.recv_timeout(timeout).map_err(|_| format!("the backend {} is busy", self.name))
    }

    /// Makes the backend continue with the state of another process.
    pub(super) fn import_state(&self, state: Vec<u8>, timeout: Duration) -> Result<(), String> {
        let (reply, result) = mpsc::channel();
        self.queue.request(StateRequest::Import(state, reply));
        match result.recv_timeout(timeout) {
            Ok(result) => result,
            Err(_) => Err(format!("the backend {} is busy", self.name)),
        }
    }

    /// Makes new intervals wait until [`release`](Self::release), but not longer than `until`.
    pub(super) fn park(&self, until: Instant) {
        self.queue.park(Some(until));
    }

    /// Lets the backend process intervals, because another process has delivered its own.
    pub(super) fn release(&self) {
        self.queue.park(None);
    }

    /// Makes the backend deliver batches of another process. Returns false if its thread has ended.
    pub(super) fn adopt(&self, spool: BackendSpool) -> bool {
        self.queue.request(StateRequest::Adopt(spool))
    }
}

impl Drop for BackendRunner {
    fn drop(&mut self) {
        // The thread of a backend that is finishing closes the queue itself.
        if !self.is_finishing {
            if let Some(stop) = &self.stop {
                stop.set(Instant::now());
            }
            self.queue.close();
        }
    }
}

/// A guard that closes a queue when its thread ends, including by a panic.
struct QueueCloser(Arc<SnapshotQueue>);

impl Drop for QueueCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl PendingFinish {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the result if the backend has finished.
    pub(super) fn poll(&self) -> Option<FinishedBackend> {
        match self.ended.try_recv() {
            Ok(finished) => Some(finished),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(FinishedBackend::failed("the backend's thread ended"))
            }
        }
    }

    /// Waits until the backend has finished, or until `deadline`.
    pub(super) fn wait(self, deadline: Instant) -> FinishedBackend {
        let finished = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        finished.unwrap_or_else(|_| FinishedBackend::failed("the backend did not finish"))
    }
}

impl FinishedBackend {
    fn failed(why: &str) -> Self {
        Self { error: Some(why.to_owned()), spool: BackendSpool::default() }
    }
}

fn run(
    mut backend: Box<dyn MetricBackend>,
    status: &BackendStatus,
    queue: &SnapshotQueue,
) -> FinishedBackend {
    while let Some(job) = queue.next() {
        match job {
            // Frees the snapshot's memory before the queue has room for another.
            BackendJob::Flush(snapshot) => drop(flush(&mut *backend, status, &snapshot)),
            BackendJob::State(request) => serve(&mut *backend, request),
            BackendJob::Finish(LastWork::Finish(snapshot), deadline) => {
                let last = snapshot.map(|snapshot| flush(&mut *backend, status, &snapshot));
                let flushed = last.unwrap_or(Ok(()));
                let timeout = deadline.saturating_duration_since(Instant::now());
                let finished = backend.finish(timeout).map_err(|error| chain(&error));
                let error = flushed.and(finished).err();
                return FinishedBackend { error, ..FinishedBackend::default() };
            }
            BackendJob::Finish(LastWork::HandOver, deadline) => {
                let timeout = deadline.saturating_duration_since(Instant::now());
                let mut spool = BackendSpool::default();
                let error = backend.hand_over(timeout, &mut spool).map_err(|error| chain(&error));
                return FinishedBackend { error: error.err(), spool };
            }
        }
    }
    FinishedBackend::default()
}

/// Serves a request of a takeover. Its sender may have stopped waiting.
fn serve(backend: &mut dyn MetricBackend, request: StateRequest) {
    match request {
        StateRequest::Export(reply) => drop(reply.send(backend.export_state())),
        StateRequest::Import(state, reply) => {
            let result = backend.import_state(&state).map_err(|error| chain(&error));
            let _ = reply.send(result);
        }
        StateRequest::Adopt(spool) => backend.adopt(spool),
    }
}

fn flush(
    backend: &mut dyn MetricBackend,
    status: &BackendStatus,
    snapshot: &Arc<FlushSnapshot>,
) -> Result<(), String> {
    let JoinLosses { values, messages } = snapshot.dropped_by_joins;
    let messages = if backend.requirements().messages { messages } else { 0 };
    if values + messages > 0 {
        status.add(DROPPED_METRICS, (values + messages) as f64);
    }
    let result = backend.flush(snapshot);
    match &result {
        // Spooled values have not been flushed yet.
        Ok(()) if status.get(SPOOL_BATCHES).is_some_and(|batches| batches > 0.0) => {}
        Ok(()) => status.set_now("last_flush"),
        Err(error) => {
            status.set_now("last_exception");
            tracing::error!(backend = backend.name(), error = chain(error), "values dropped");
        }
    }
    result.map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::{GraphiteBackend, testing},
        settings::{GraphiteSettings, StatsdDialect},
    };

    fn interval(metrics: u64) -> Arc<FlushSnapshot> {
        let mut snapshot = FlushSnapshot::clone(&testing::snapshot());
        snapshot.self_metrics.num_stats = metrics;
        Arc::new(snapshot)
    }

    fn push(queue: &SnapshotQueue, metrics: u64, joins: bool) -> QueueOutcome {
        queue.push(interval(metrics), joins)
    }

    #[test]
    fn queue_is_limited_by_intervals_and_metrics() {
        let queue = SnapshotQueue::default();
        let queued = [9, 9, 9, 9].map(|metrics| push(&queue, metrics, false));
        assert_eq!(
            queued,
            [
                QueueOutcome::Queued,
                QueueOutcome::Queued,
                QueueOutcome::Queued,
                QueueOutcome::Dropped
            ]
        );
        let queue = SnapshotQueue::default();
        assert_eq!(
            push(&queue, 5_000_000, false),
            QueueOutcome::Queued,
            "a single interval of any size"
        );
        assert_eq!(push(&queue, 1, false), QueueOutcome::Dropped);
    }

    #[test]
    fn excess_intervals_join_newest_waiting_one() {
        let queue = SnapshotQueue::default();
        let mut joined = 0;
        for _ in 0..10 {
            joined += u32::from(push(&queue, 600_000, true) == QueueOutcome::Joined);
        }
        assert_eq!(joined, 9);
        assert_eq!(queue.lock().waiting.len(), 1);
        let Some(BackendJob::Flush(snapshot)) = queue.next() else {
            panic!("an interval must be waiting")
        };
        let hits = snapshot.counters.iter().find(|counter| counter.name.key() == "api.hits");
        assert_eq!(hits.map(|hits| (hits.value, snapshot.rate(hits))), Some((300.0, 3.0)));
        // The next interval waits while the first is in progress.
        assert_eq!(push(&queue, 600_000, true), QueueOutcome::Queued);
        assert_eq!(push(&queue, 600_000, true), QueueOutcome::Joined);
    }

    #[test]
    fn intervals_wait_for_batches_of_the_process_before() {
        let adopt = || StateRequest::Adopt(BackendSpool::default());
        let queue = SnapshotQueue::default();
        queue.park(Some(Instant::now() + Duration::from_secs(3600)));
        for _ in 0..10 {
            assert_eq!(push(&queue, 1, false), QueueOutcome::Queued, "also more than three");
        }
        assert!(queue.request(adopt()));
        assert!(matches!(queue.next(), Some(BackendJob::State(StateRequest::Adopt(_)))));
        // Another batch comes first, even if the wait has ended.
        assert!(queue.request(adopt()));
        queue.park(None);
        assert!(matches!(queue.next(), Some(BackendJob::State(StateRequest::Adopt(_)))));
        assert!(matches!(queue.next(), Some(BackendJob::Flush(_))));
        // The wait is bounded, and a backend that ends does not wait.
        queue.park(Some(Instant::now()));
        assert!(matches!(queue.next(), Some(BackendJob::Flush(_))));
        queue.park(Some(Instant::now() + Duration::from_secs(3600)));
        queue.lock().finish = Some((LastWork::HandOver, Instant::now()));
        for _ in 0..8 {
            assert!(matches!(queue.next(), Some(BackendJob::Flush(_))));
        }
        assert!(matches!(queue.next(), Some(BackendJob::Finish(LastWork::HandOver, _))));
    }

    #[test]
    fn spooled_values_do_not_update_last_flush() {
        // A port that was free a moment ago, so connections are refused.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = GraphiteSettings {
            host: free.ip().to_string(),
            port: free.port(),
            ..GraphiteSettings::default()
        };
        let mut backend = GraphiteBackend::new(settings, StatsdDialect::Etsy);
        let status = backend.status();
        status.set("last_flush", 1.0);
        flush(&mut backend, &status, &testing::snapshot()).unwrap();
        assert_eq!(status.get(SPOOL_BATCHES), Some(1.0));
        assert_eq!(status.get("last_flush"), Some(1.0));
    }
}
