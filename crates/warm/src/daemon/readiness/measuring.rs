//! The thread that measures servers while readiness is queried.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    BoardContents, MEASURE_INTERVAL, PAUSE_FACTOR, QUERIED_TIMEOUT, ReadinessBoard,
    entry::{BoardEntry, MeasureFailure},
};
use crate::{
    daemon::error_chain::error_chain,
    dump::{DumpError, QueryFailure},
};

/// Limit for each connection, query and scan of a measurement.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit for connecting, unless the connection string sets one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the board is checked for due measurements, if nothing else wakes the thread.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A running measuring thread, which ends when this is dropped. Measurements that run at that time
/// end later, and their results are dropped.
#[derive(Debug)]
pub(crate) struct MeasuringThread {
    board: Arc<ReadinessBoard>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MeasuringThread {
    /// Starts the thread. If the system has no thread left, nothing is measured, and that is
    /// logged.
    pub(crate) fn start(board: &Arc<ReadinessBoard>) -> Self {
        board.entries.lock().is_stopped = false;
        let shared = Arc::clone(board);
        let spawned = thread::Builder::new().name("warm-readiness".into());
        let thread = spawned
            .spawn(move || run(&shared))
            .inspect_err(|error| tracing::error!(%error, "readiness cannot be measured"))
            .ok();
        Self { board: Arc::clone(board), thread }
    }
}

impl Drop for MeasuringThread {
    fn drop(&mut self) {
        self.board.entries.lock().is_stopped = true;
        self.board.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(board: &Arc<ReadinessBoard>) {
    let mut entries = board.entries.lock();
    while !entries.is_stopped {
        let now = Instant::now();
        for name in due(&entries, now) {
            if let Some(entry) = entries.servers.get_mut(&name) {
                start_measurement(board, name, entry, now);
            }
        }
        board.changed.wait_for(&mut entries, CHECK_INTERVAL);
    }
}

/// Returns the names of the servers to measure now.
fn due(entries: &BoardContents, now: Instant) -> Vec<String> {
    let is_recent = |at: Instant| now.duration_since(at) < QUERIED_TIMEOUT;
    let is_wanted = entries.is_always_measured || entries.queried_at.is_some_and(is_recent);
    let is_due = |entry: &BoardEntry| {
        entry.is_measurable()
            && (entry.is_requested || is_wanted && entry.next_at.is_none_or(|at| at <= now))
    };
    let due = entries.servers.iter().filter(|(_, entry)| is_due(entry));
    due.map(|(name, _)| name.clone()).collect()
}

/// Measures a server on a thread of its own, so that a server that hangs does not delay others.
fn start_measurement(
    board: &Arc<ReadinessBoard>,
    name: String,
    entry: &mut BoardEntry,
    now: Instant,
) {
    let Some((image, meter)) = entry.image.clone() else { return };
    entry.is_requested = false;
    entry.next_at = Some(now + MEASURE_INTERVAL);
    let (source, epoch) = (entry.source, entry.epoch);
    let timeout = entry.target.connect_timeout().unwrap_or(CONNECT_TIMEOUT);
    let target = entry.target.with_connect_timeout(Some(timeout));
    let board = Arc::clone(board);
    let spawned = thread::Builder::new().name("warm-measure".into()).spawn(move || {
        let measured = meter.lock().measure(&image, &target, source, REPLY_TIMEOUT);
        let result = measured.map_err(|error| MeasureFailure {
            is_unreachable: is_unreachable(&error),
            reason: error_chain(&error),
        });
        let ended = Instant::now();
        board.update(&name, |entry| {
            entry.is_measuring = false;
            // The server went down or came back meanwhile, so the result is of another cache.
            if entry.epoch == epoch {
                let pause = ended.duration_since(now) * PAUSE_FACTOR;
                entry.next_at = Some((now + MEASURE_INTERVAL).max(ended + pause));
                entry.record(result, ended, ended.duration_since(now));
            }
        });
        board.changed.notify_all();
    });
    entry.is_measuring = spawned.is_ok();
}

/// Whether the server is down. One that answers with an error, such as too many connections, runs,
/// unless it is starting or stopping.
fn is_unreachable(error: &DumpError) -> bool {
    match error {
        DumpError::Server(QueryFailure::Connect(error)) => {
            error.sqlstate().is_none_or(|code| code.starts_with("57P"))
        }
        DumpError::ServerLost(_) => true,
        DumpError::Server(QueryFailure::Query(error)) => error.is_fatal(),
        _ => false,
    }
}
