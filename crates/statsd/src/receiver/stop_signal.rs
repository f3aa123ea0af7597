//! [`StopSignal`]: requests all readers to stop, including those that are blocked.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll},
    io::Errno,
};

/// A request to stop, shared by all readers: once for all, or until they are resumed.
#[derive(Debug)]
pub(crate) struct StopSignal {
    requested: AtomicBool,
    /// Whether readers stop without draining their sockets.
    halted: AtomicBool,
    deadline: OnceLock<Instant>,
    /// An eventfd that is readable once stopping was requested.
    signal: OwnedFd,
}

impl StopSignal {
    /// Creates a signal that is not set.
    ///
    /// # Errors
    ///
    /// The eventfd cannot be created.
    pub(crate) fn new() -> io::Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (requested, halted) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { requested, halted, deadline: OnceLock::new(), signal })
    }

    /// Requests readers to stop after draining their sockets, at the latest by `deadline`.
    pub(crate) fn request(&self, deadline: Instant) {
        self.deadline.get_or_init(|| deadline);
        self.halted.store(false, Ordering::Release);
        self.raise();
    }

    /// Requests readers to stop after their current batch and to leave everything else in their
    /// sockets, so that they, or those of another process, can continue.
    pub(crate) fn request_halt(&self) {
        self.halted.store(true, Ordering::Release);
        self.raise();
    }

    /// Whether readers must not drain their sockets.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Withdraws a request to halt. Only valid while no reader runs.
    pub(crate) fn reset(&self) {
        self.halted.store(false, Ordering::Release);
        self.requested.store(false, Ordering::Release);
        // Fails only if the eventfd is not readable, which is the purpose.
        let _ = rustix::io::read(&self.signal, &mut [0_u8; 8]);
    }

    fn raise(&self) {
        self.requested.store(true, Ordering::Release);
        // Fails only if the counter is full, and then the eventfd is readable anyway.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    /// Whether stopping was requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Whether the deadline has passed after a request.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }

    /// Returns the eventfd, which becomes readable once stopping is requested.
    pub(crate) fn signal(&self) -> &OwnedFd {
        &self.signal
    }

    /// Sleeps for `pause`, or until stopping is requested.
    pub(crate) fn pause(&self, pause: Duration) -> io::Result<()> {
        let pause = timespec(pause);
        ignore_interrupt(poll(&mut [PollFd::new(&self.signal, PollFlags::IN)], Some(&pause)))
    }

    /// Sleeps until `socket` is readable, or until stopping is requested.
    pub(crate) fn wait_for(&self, socket: impl AsFd) -> io::Result<()> {
        let mut both =
            [PollFd::new(&socket, PollFlags::IN), PollFd::new(&self.signal, PollFlags::IN)];
        ignore_interrupt(poll(&mut both, None))
    }
}

/// Waits until a watched descriptor is ready, or for `timeout`. Returns the number of events, 0
/// after a signal.
pub(super) fn wait_for_events(
    epoll: &OwnedFd,
    events: &mut [epoll::Event],
    timeout: Option<&Timespec>,
) -> io::Result<usize> {
    match epoll::wait(epoll, events, timeout) {
        Ok(ready) => Ok(ready),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Converts a duration for a system call.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Treats an interrupted wait as a shorter one.
fn ignore_interrupt(waited: Result<usize, Errno>) -> io::Result<()> {
    match waited {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
