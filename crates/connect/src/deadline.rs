//! Blocking socket calls with a deadline.

mod stream;

use std::{
    io,
    time::{Duration, Instant},
};

pub use stream::DeadlineStream;

/// Repeats a call that a signal interrupted, and reports a socket timeout as `TimedOut`.
///
/// # Errors
///
/// The error of the call; `TimedOut` where a socket timeout reports `WouldBlock`.
pub fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            other => return other,
        }
    }
}

/// Returns the time until `deadline`. Never zero, because sockets reject a timeout of zero.
///
/// # Errors
///
/// The deadline has passed: `TimedOut`.
pub fn remaining(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        remaining => Ok(remaining),
    }
}
