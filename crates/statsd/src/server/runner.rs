//! A backend with its thread and its queue.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    backends::{Backend, FLUSHES_DROPPED, SPOOL_BATCHES, Status, chain},
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
    jobs: Sender<Job>,
    load: Arc<Load>,
    ended: Receiver<Result<(), String>>,
}

/// What a backend has been given and is not done with.
#[derive(Debug, Default)]
struct Load {
    intervals: AtomicUsize,
    metrics: AtomicU64,
}

impl Load {
    /// Takes an interval, if there is room. Only the flush thread calls it, so nothing is added
    /// between looking and taking.
    fn take(&self, metrics: u64) -> bool {
        let intervals = self.intervals.load(Ordering::Relaxed);
        let room = intervals < INTERVALS_MAX
            && self.metrics.load(Ordering::Relaxed) + metrics <= METRICS_MAX;
        if intervals > 0 && !room {
            return false;
        }
        self.metrics.fetch_add(metrics, Ordering::Relaxed);
        self.intervals.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn done(&self, metrics: u64) {
        self.metrics.fetch_sub(metrics, Ordering::Relaxed);
        self.intervals.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Job {
    Flush(Arc<Snapshot>),
    Finish(Arc<Snapshot>, Instant),
}

/// A backend that is to end.
#[derive(Debug)]
pub(super) struct Finishing {
    name: &'static str,
    ended: Option<Receiver<Result<(), String>>>,
}

impl Runner {
    pub(super) fn start(backend: Box<dyn Backend>, started: SystemTime) -> io::Result<Self> {
        let (name, status) = (backend.name(), backend.status());
        let seconds = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().round();
        for first in ["last_flush", "last_exception"] {
            if status.get(first).is_none() {
                status.set(first, seconds);
            }
        }
        let (jobs, received) = mpsc::channel();
        let load = Arc::new(Load::default());
        let (end, ended) = mpsc::channel();
        let (account, taken) = (status.clone(), Arc::clone(&load));
        thread::Builder::new().name(format!("statsd-{name}")).spawn(move || {
            let result = run(backend, &account, &taken, &received);
            let _ = end.send(result);
        })?;
        Ok(Self { name, status, jobs, load, ended })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn status(&self) -> Status {
        self.status.clone()
    }

    /// Queues an interval; false if there is no room for it or the backend is gone.
    pub(super) fn flush(&self, snapshot: Arc<Snapshot>) -> bool {
        if !self.load.take(snapshot.own.num_stats) {
            let dropped = self.status.get(FLUSHES_DROPPED).unwrap_or_default();
            self.status.set(FLUSHES_DROPPED, dropped + 1.0);
            return false;
        }
        self.jobs.send(Job::Flush(snapshot)).is_ok()
    }

    /// Queues the last interval and the end.
    pub(super) fn finish(self, snapshot: Arc<Snapshot>, deadline: Instant) -> Finishing {
        match self.jobs.send(Job::Finish(snapshot, deadline)) {
            Ok(()) => Finishing { name: self.name, ended: Some(self.ended) },
            Err(_) => Finishing { name: self.name, ended: None },
        }
    }
}

impl Finishing {
    /// Waits for the end; tells what went wrong.
    pub(super) fn wait(self, deadline: Instant) -> Option<(&'static str, String)> {
        let late = || Some((self.name, "it did not end in time".to_owned()));
        let Some(ended) = &self.ended else { return late() };
        match ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some((self.name, why)),
            Err(_) => late(),
        }
    }
}

fn run(
    mut backend: Box<dyn Backend>,
    status: &Status,
    load: &Load,
    jobs: &Receiver<Job>,
) -> Result<(), String> {
    for job in jobs {
        match job {
            Job::Flush(snapshot) => {
                let metrics = snapshot.own.num_stats;
                let _ = flush(&mut *backend, status, &snapshot);
                // Its memory is free before there is room for another.
                drop(snapshot);
                load.done(metrics);
            }
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
            tracing::error!(backend = backend.name(), error = chain(error), "values are lost");
        }
    }
    result.map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::{Graphite, testing},
        settings::Graphite as GraphiteSettings,
    };

    #[test]
    fn few_large_intervals_wait_or_three_small_ones() {
        let load = Load::default();
        assert_eq!(
            [load.take(9), load.take(9), load.take(9), load.take(9)],
            [true, true, true, false]
        );
        (0..3).for_each(|_| load.done(9));
        assert!(load.take(5_000_000), "one however large");
        assert!(!load.take(1));
        load.done(5_000_000);
        assert_eq!([600_000, 400_000, 1].map(|metrics| load.take(metrics)), [true, true, false]);
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
        let mut backend = Graphite::new(settings);
        let status = backend.status();
        status.set("last_flush", 1.0);
        flush(&mut backend, &status, &testing::snapshot()).unwrap();
        assert_eq!(status.get(SPOOL_BATCHES), Some(1.0));
        assert_eq!(status.get("last_flush"), Some(1.0));
    }
}
