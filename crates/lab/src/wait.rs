//! Waits for another process or thread in tests: checks a condition at short intervals until it
//! holds or a deadline passes. Nothing else in the tests may sleep.

use std::time::{Duration, Instant};

/// Time between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
///
/// If the condition does not hold within `timeout`. The message contains `what`.
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
/// If `poll` returns `None` for the whole `timeout`. The message contains `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        // Polls once more after the deadline, in case this thread was not scheduled meanwhile.
        let late = Instant::now() >= deadline;
        if let Some(value) = poll() {
            return value;
        }
        assert!(!late, "waited {timeout:?} for {what}");
        std::thread::sleep(CHECK_INTERVAL);
    }
}
