//! Calls of blocking sockets that end by a deadline.

use std::{
    io,
    time::{Duration, Instant},
};

/// Makes a call again that a signal has interrupted, and gives a timeout its name.
///
/// # Errors
///
/// The call's own; of the kind `TimedOut` where a socket's timeout says `WouldBlock`.
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

/// The time that is left, never zero: a timeout of zero would mean none.
///
/// # Errors
///
/// None is left: of the kind `TimedOut`.
pub fn remaining(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        remaining => Ok(remaining),
    }
}
