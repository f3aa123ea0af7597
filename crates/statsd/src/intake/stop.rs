//! The order to stop, given once and seen by all readers, also by those that wait.

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
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

/// Shared by the readers and who stops them.
#[derive(Debug)]
pub(crate) struct Stop {
    ordered: AtomicBool,
    deadline: OnceLock<Instant>,
    /// Readable once the order was given.
    signal: OwnedFd,
}

impl Stop {
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { ordered: AtomicBool::new(false), deadline: OnceLock::new(), signal })
    }

    /// Gives the order: take in what has arrived, but no longer than until `deadline`.
    pub(crate) fn order(&self, deadline: Instant) {
        self.deadline.get_or_init(|| deadline);
        self.ordered.store(true, Ordering::Release);
        // It fails only once the counter is full, and then it is readable too.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    /// Whether it was given.
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Acquire)
    }

    /// Whether time is up after the order.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }

    /// What becomes readable with the order.
    pub(crate) fn signal(&self) -> &OwnedFd {
        &self.signal
    }

    /// Sleeps for `pause`, or until the order.
    pub(crate) fn pause(&self, pause: Duration) -> io::Result<()> {
        let pause = Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        };
        patient(poll(&mut [PollFd::new(&self.signal, PollFlags::IN)], Some(&pause)))
    }

    /// Sleeps until `socket` is readable, or until the order.
    pub(crate) fn wait_for(&self, socket: impl AsFd) -> io::Result<()> {
        let mut both =
            [PollFd::new(&socket, PollFlags::IN), PollFd::new(&self.signal, PollFlags::IN)];
        patient(poll(&mut both, None))
    }
}

/// A signal that interrupts a wait only makes it shorter.
fn patient(waited: Result<usize, Errno>) -> io::Result<()> {
    match waited {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
