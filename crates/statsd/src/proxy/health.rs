//! Health checks: at each interval, and soon after a datagram was refused, `health` is sent to the
//! management ports of all nodes concurrently.
//!
//! A node is up if its reply contains `up`, as in etsy's proxy. The first failed check removes the
//! node from the ring, and the first successful one adds it again. The timeout of a check is the
//! check interval.

use std::{
    io::{self, Read as _, Write as _},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::deadline::DeadlineStream;
use parking_lot::{Condvar, Mutex};

use super::ProxyState;

/// Time from a check to the next if datagrams were refused, unless the check interval is shorter.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Number of bytes of a reply after which no more are read.
const REPLY_BYTES_MAX: usize = 4096;

/// The schedule of the health checks. Other threads use it to request a check or to stop the
/// checks.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule {
    state: Mutex<ScheduleState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ScheduleState {
    stopped: bool,
    check_requested: bool,
    all_down_warned_at: Option<Instant>,
}

impl CheckSchedule {
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Requests a check soon, because a datagram was refused and its node may be down.
    pub(super) fn request_check(&self) {
        self.lock().check_requested = true;
        self.changed.notify_all();
    }

    /// Logs that lines are dropped because all nodes are down, at most every ten seconds.
    pub(super) fn warn_all_down(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        let is_expired =
            |warned_at: Instant| now.duration_since(warned_at) >= Duration::from_secs(10);
        if state.all_down_warned_at.is_none_or(is_expired) {
            state.all_down_warned_at = Some(now);
            tracing::warn!("all nodes are down: lines are dropped");
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, ScheduleState> {
        self.state.lock()
    }

    /// Waits for the next check; returns false if the checks were stopped.
    fn wait(&self, interval: Duration) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            let passed = start.elapsed();
            if state.stopped {
                return false;
            }
            let delay =
                if state.check_requested { CHECK_INTERVAL_MIN.min(interval) } else { interval };
            if passed >= delay {
                state.check_requested = false;
                return true;
            }
            self.changed.wait_for(&mut state, delay - passed);
        }
    }
}

/// Checks all nodes at each interval and on request, until stopped.
pub(super) fn run(shared: &Arc<ProxyState>) {
    loop {
        let deadline = Instant::now() + shared.interval;
        thread::scope(|scope| {
            for node in 0..shared.nodes.len() {
                scope.spawn(move || {
                    shared.record_check(node, is_up(&shared.nodes[node].admin, deadline));
                });
            }
        });
        if !shared.checks.wait(shared.interval) {
            return;
        }
    }
}

fn is_up((host, port): &(String, u16), deadline: Instant) -> bool {
    let check = || -> io::Result<bool> {
        let mut connection = DeadlineStream::open(host, *port, deadline)?;
        connection.write_all(b"health\r\n")?;
        let mut reply = Vec::new();
        let mut buffer = [0; 512];
        // The reply may arrive in several reads; etsy's ends in a newline and keeps the connection
        // open.
        while reply.len() < REPLY_BYTES_MAX && !reply.contains(&b'\n') {
            match connection.read(&mut buffer)? {
                0 => break,
                bytes => reply.extend_from_slice(&buffer[..bytes]),
            }
        }
        Ok(reply.windows(2).any(|pair| pair == b"up"))
    };
    // The reason for a failed check is irrelevant; the change of the ring is logged.
    check().unwrap_or(false)
}
