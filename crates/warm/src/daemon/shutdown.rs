//! The shutdown signal of a daemon. It interrupts every wait.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// A signal to shut down, which can be waited for.
///
/// It fires when its [`ShutdownHandle`] is dropped, or when the other end of its stream is written
/// to or closed, which a signal handler may do.
#[derive(Debug)]
pub struct ShutdownSignal {
    stream: UnixStream,
}

/// The handle of a [`ShutdownSignal`], which fires when the handle is dropped.
#[derive(Debug)]
pub struct ShutdownHandle(#[expect(dead_code, reason = "closing it is the signal")] UnixStream);

impl ShutdownSignal {
    /// Creates a signal and the handle that fires it.
    ///
    /// # Errors
    ///
    /// The operating system cannot create the pair, usually because no file descriptors are left.
    pub fn pair() -> io::Result<(ShutdownHandle, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((ShutdownHandle(theirs), Self { stream: ours }))
    }

    /// Creates a signal that fires when `stream` becomes readable or its other end is closed. The
    /// stream is never read, so the signal stays set.
    pub fn from_stream(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Whether the signal has fired.
    pub fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits until the signal fires, for at most `time`. Returns whether it has fired.
    pub fn wait(&self, time: Duration) -> bool {
        wait_readable(&[self.as_fd()], Some(Instant::now() + time)).is_some()
    }
}

impl AsFd for ShutdownSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until one of `fds` is readable or closed, and returns its index; `None` if `deadline`
/// passed first.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Option<usize> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            // Limited to what the type can hold; the loop polls again.
            tv_sec: left.as_secs().min(3600).cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled: Vec<_> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) if is_past(deadline) => return None,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return polled.iter().position(|fd| !fd.revents().is_empty()),
            // Only ENOMEM is left. Wait a moment instead of spinning.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(100));
                if is_past(deadline) {
                    return None;
                }
            }
        }
    }
}

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[test]
fn signal_stays_set_after_handle_is_dropped() {
    let (handle, stop) = ShutdownSignal::pair().unwrap();
    assert!(!stop.is_set() && !stop.wait(Duration::from_millis(5)));
    drop(handle);
    assert!(stop.wait(Duration::from_secs(3600)) && stop.is_set());
}
