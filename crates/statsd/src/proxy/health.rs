//! Health checks: every so often each node's management port is asked for `health`, all at once.
//!
//! A node is up if `up` is in its answer, as etsy's proxy has it. The first check that fails takes it
//! off the ring, the first that succeeds puts it back. An answer may take as long as the time between
//! two checks.

use std::{
    io::{self, Read as _, Write as _},
    sync::{Arc, Condvar},
    thread,
    time::{Duration, Instant},
};

use super::{Mutex, PoisonError, Shared};
use howdah_post::Connection;

/// Shortest time between two rounds, however many datagrams come back.
const ROUND_MIN: Duration = Duration::from_millis(100);
/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 4096;

/// When to check next, and when to stop.
#[derive(Debug, Default)]
pub(super) struct Checks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    hurry: bool,
    none_is_up_said: Option<Instant>,
}

impl Checks {
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// A datagram came back: a node may be gone.
    pub(super) fn hurry(&self) {
        self.lock().hurry = true;
        self.changed.notify_all();
    }

    /// Logs that lines are dropped, at most every ten seconds.
    pub(super) fn say_none_is_up(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        let due = |said: Instant| now.duration_since(said) >= Duration::from_secs(10);
        if state.none_is_up_said.is_none_or(due) {
            state.none_is_up_said = Some(now);
            tracing::warn!("no node is up: lines are dropped");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next round; false when there is none.
    fn wait(&self, interval: Duration) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            let passed = start.elapsed();
            if state.stopped {
                return false;
            }
            let due = if state.hurry { ROUND_MIN.min(interval) } else { interval };
            if passed >= due {
                state.hurry = false;
                return true;
            }
            let waited = self.changed.wait_timeout(state, due - passed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Checks until told to stop.
pub(super) fn run(shared: &Arc<Shared>) {
    loop {
        let deadline = Instant::now() + shared.interval;
        thread::scope(|scope| {
            for node in 0..shared.nodes.len() {
                scope.spawn(move || {
                    shared.checked(node, is_up(&shared.nodes[node].admin, deadline));
                });
            }
        });
        if !shared.checks.wait(shared.interval) {
            return;
        }
    }
}

fn is_up((host, port): &(String, u16), deadline: Instant) -> bool {
    let ask = || -> io::Result<bool> {
        let mut connection = Connection::open(host, *port, deadline)?;
        connection.write_all(b"health\r\n")?;
        let mut answer = Vec::new();
        let mut buffer = [0; 512];
        // The answer may come in pieces; etsy's ends in a newline and leaves the connection open.
        while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
            match connection.read(&mut buffer)? {
                0 => break,
                bytes => answer.extend_from_slice(&buffer[..bytes]),
            }
        }
        Ok(answer.windows(2).any(|pair| pair == b"up"))
    };
    // Why a node does not answer is not our business; that it does not is logged by the ring.
    ask().unwrap_or(false)
}
