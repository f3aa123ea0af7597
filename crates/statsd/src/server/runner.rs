//! A backend with its thread and its queue.
//!
//! ```text
//!                 room                      the thread is free
//!  flush thread ───────► waiting intervals ───────────────────► Backend::flush
//!       │ no room             ▲
//!       ├─ joins ─────────────┘ added to the newest that waits
//!       └─ joins not ─► dropped, and counted
//! ```

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    backends::{
        Backend, DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, SPOOL_BATCHES, Status, chain,
    },
    flush::Snapshot,
};

/// Intervals that a backend has at once: the one it works on, and two that wait.
const INTERVALS_MAX: usize = 3;
/// Metrics in them, because an interval of a million keys takes some 100 MB. One interval is taken
/// however large it is.
const METRICS_MAX: u64 = 1_000_000;

/// A backend that runs.
#[derive(Debug)]
pub(super) struct Runner {
    name: &'static str,
    status: Status,
    joins: bool,
    queue: Arc<Queue>,
    ended: Receiver<Result<(), String>>,
}

/// What became of an interval that was given to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    /// It waits for the backend.
    Waits,
    /// The backend is behind: it is part of another interval now.
    Joined,
    /// The backend is behind, and takes no intervals of more than one time.
    Dropped,
}

/// Intervals on their way to the backend's thread.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Arc<Snapshot>>,
    /// Metrics of the interval that the backend works on.
    in_work: Option<u64>,
    finish: Option<(Arc<Snapshot>, Instant)>,
    /// The server was dropped, or the backend's thread is gone.
    closed: bool,
}

impl QueueState {
    fn has_room(&self, metrics: u64) -> bool {
        let waiting = self.waiting.iter().map(|snapshot| snapshot.own.num_stats).sum::<u64>();
        let intervals = self.waiting.len() + usize::from(self.in_work.is_some());
        intervals == 0
            || intervals < INTERVALS_MAX
                && waiting + self.in_work.unwrap_or_default() + metrics <= METRICS_MAX
    }
}

/// What the backend's thread is to do next.
enum Job {
    Flush(Arc<Snapshot>),
    Finish(Arc<Snapshot>, Instant),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an interval. Only the flush thread calls it.
    fn push(&self, snapshot: Arc<Snapshot>, joins: bool) -> Queued {
        let mut state = self.lock();
        if state.closed {
            return Queued::Dropped;
        }
        let queued = match (state.has_room(snapshot.own.num_stats), joins) {
            (true, _) => {
                state.waiting.push_back(snapshot);
                Queued::Waits
            }
            (false, false) => Queued::Dropped,
            (false, true) => match state.waiting.pop_back() {
                // One may wait beside the one in work, however large: it takes in all that follow, so
                // there are never more than two.
                None => {
                    state.waiting.push_back(snapshot);
                    Queued::Waits
                }
                Some(earlier) => {
                    // Joined without the lock, as that may take a second. The backend finds the queue
                    // empty meanwhile, or an older interval, and is woken below.
                    drop(state);
                    let joined = Arc::new(earlier.joined(&snapshot));
                    state = self.lock();
                    state.waiting.push_back(joined);
                    Queued::Joined
                }
            },
        };
        drop(state);
        self.changed.notify_one();
        queued
    }

    /// Waits for something to do; `None` when the server is gone. What was given before is done.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.in_work = None;
        loop {
            if let Some(snapshot) = state.waiting.pop_front() {
                state.in_work = Some(snapshot.own.num_stats);
                return Some(Job::Flush(snapshot));
            }
            if let Some((snapshot, deadline)) = state.finish.take() {
                state.closed = true;
                return Some(Job::Finish(snapshot, deadline));
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }
}

/// A backend that is to end.
#[derive(Debug)]
pub(super) struct Finishing {
    name: &'static str,
    ended: Receiver<Result<(), String>>,
}

impl Runner {
    pub(super) fn start(backend: Box<dyn Backend>, started: SystemTime) -> io::Result<Self> {
        let (name, status, joins) = (backend.name(), backend.status(), backend.joins_intervals());
        let seconds = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().round();
        for first in ["last_flush", "last_exception"] {
            if status.get(first).is_none() {
                status.set(first, seconds);
            }
        }
        let queue = Arc::new(Queue::default());
        let (end, ended) = mpsc::channel();
        let (account, jobs) = (status.clone(), Closing(Arc::clone(&queue)));
        thread::Builder::new().name(format!("statsd-{name}")).spawn(move || {
            let result = run(backend, &account, &jobs.0);
            let _ = end.send(result);
        })?;
        Ok(Self { name, status, joins, queue, ended })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn status(&self) -> Status {
        self.status.clone()
    }

    /// Queues an interval.
    pub(super) fn flush(&self, snapshot: Arc<Snapshot>) -> Queued {
        let metrics = snapshot.own.num_stats;
        let queued = self.queue.push(snapshot, self.joins);
        match queued {
            Queued::Waits => {}
            Queued::Joined => self.status.add(FLUSHES_JOINED, 1.0),
            Queued::Dropped => {
                self.status.add(FLUSHES_DROPPED, 1.0);
                self.status.add(DROPPED_METRICS, metrics as f64);
            }
        }
        queued
    }

    /// Queues the last interval and the end.
    pub(super) fn finish(mut self, snapshot: Arc<Snapshot>, deadline: Instant) -> Finishing {
        self.queue.lock().finish = Some((snapshot, deadline));
        self.queue.changed.notify_one();
        // The end of the thread closes this one.
        let (_, none) = mpsc::channel();
        Finishing { name: self.name, ended: std::mem::replace(&mut self.ended, none) }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        // One that is to finish ends by itself.
        if state.finish.is_none() {
            state.closed = true;
        }
        drop(state);
        self.queue.changed.notify_one();
    }
}

/// Closes a queue when its thread ends, however it does.
struct Closing(Arc<Queue>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Finishing {
    /// Waits for the end; tells what went wrong.
    pub(super) fn wait(self, deadline: Instant) -> Option<(&'static str, String)> {
        match self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some((self.name, why)),
            Err(_) => Some((self.name, "it did not end in time".to_owned())),
        }
    }
}

fn run(mut backend: Box<dyn Backend>, status: &Status, queue: &Queue) -> Result<(), String> {
    while let Some(job) = queue.next() {
        match job {
            // Its memory is free before there is room for another.
            Job::Flush(snapshot) => drop(flush(&mut *backend, status, &snapshot)),
            Job::Finish(snapshot, deadline) => {
                let flushed = flush(&mut *backend, status, &snapshot);
                let patience = deadline.saturating_duration_since(Instant::now());
                let finished = backend.finish(patience).map_err(|error| chain(&error));
                return flushed.and(finished);
            }
        }
    }
    Ok(())
}

fn flush(
    backend: &mut dyn Backend,
    status: &Status,
    snapshot: &Arc<Snapshot>,
) -> Result<(), String> {
    let result = backend.flush(snapshot);
    match &result {
        // What is kept to be sent again has not been flushed.
        Ok(()) if status.get(SPOOL_BATCHES).is_some_and(|kept| kept > 0.0) => {}
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
        backends::{Graphite, testing},
        settings::{Dialect, Graphite as GraphiteSettings},
    };

    fn interval(metrics: u64) -> Arc<Snapshot> {
        let mut snapshot = Snapshot::clone(&testing::snapshot());
        snapshot.own.num_stats = metrics;
        Arc::new(snapshot)
    }

    fn push(queue: &Queue, metrics: u64, joins: bool) -> Queued {
        queue.push(interval(metrics), joins)
    }

    #[test]
    fn few_large_intervals_wait_or_three_small_ones() {
        let queue = Queue::default();
        let queued = [9, 9, 9, 9].map(|metrics| push(&queue, metrics, false));
        assert_eq!(queued, [Queued::Waits, Queued::Waits, Queued::Waits, Queued::Dropped]);
        let queue = Queue::default();
        assert_eq!(push(&queue, 5_000_000, false), Queued::Waits, "one however large");
        assert_eq!(push(&queue, 1, false), Queued::Dropped);
    }

    #[test]
    fn intervals_without_room_are_joined_to_the_newest_that_waits() {
        let queue = Queue::default();
        let mut joined = 0;
        for _ in 0..10 {
            joined += u32::from(push(&queue, 600_000, true) == Queued::Joined);
        }
        assert_eq!(joined, 9);
        assert_eq!(queue.lock().waiting.len(), 1);
        let Some(Job::Flush(snapshot)) = queue.next() else { panic!("it waits") };
        let hits = snapshot.counters.iter().find(|counter| counter.name.key() == "api.hits");
        assert_eq!(hits.map(|hits| (hits.value, hits.rate)), Some((300.0, 3.0)));
        // The next one waits beside the one that is worked on.
        assert_eq!(push(&queue, 600_000, true), Queued::Waits);
        assert_eq!(push(&queue, 600_000, true), Queued::Joined);
    }

    #[test]
    fn what_is_kept_for_later_is_no_flush() {
        // A port that was free a moment ago: nobody listens.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = GraphiteSettings {
            host: free.ip().to_string(),
            port: free.port(),
            ..GraphiteSettings::default()
        };
        let mut backend = Graphite::new(settings, Dialect::Etsy);
        let status = backend.status();
        status.set("last_flush", 1.0);
        flush(&mut backend, &status, &testing::snapshot()).unwrap();
        assert_eq!(status.get(SPOOL_BATCHES), Some(1.0));
        assert_eq!(status.get("last_flush"), Some(1.0));
    }
}
