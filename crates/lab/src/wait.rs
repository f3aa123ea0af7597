//! Waiting for what another process does and tells nobody about: a condition is checked at short intervals until it
//! holds, or a deadline passes. Nothing else in the tests may sleep.

use std::time::{Duration, Instant};

/// Between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
///
/// It does not hold within `timeout`; the message names `what` was awaited.
///
/// ```
/// # use std::time::Duration;
/// let mut checks = 0;
/// howdah_lab::wait_until("the third check", Duration::from_secs(10), || {
///     checks += 1;
///     checks == 3
/// });
/// ```
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, timeout, || condition().then_some(()));
}

/// Waits until `poll` returns a value, and returns it.
///
/// # Panics
///
/// There is none within `timeout`; the message names `what` was awaited.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        // Checked once more after the deadline, so that a machine that slept meanwhile gets its chance.
        let late = Instant::now() >= deadline;
        if let Some(value) = poll() {
            return value;
        }
        assert!(!late, "waited {timeout:?} for {what}");
        std::thread::sleep(CHECK_INTERVAL);
    }
}
