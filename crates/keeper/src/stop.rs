//! How a keeper is told to end, whatever it waits for.

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

/// Told by a [`Stopper`], or by whoever writes to or closes the other end of its stream: a signal handler
/// can.
#[derive(Debug)]
pub struct Stop {
    stream: UnixStream,
}

/// Tells a [`Stop`], by being dropped.
#[derive(Debug)]
pub struct Stopper(#[expect(dead_code, reason = "its end is what is waited for")] UnixStream);

impl Stop {
    /// A pair that belongs together.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub fn pair() -> io::Result<(Stopper, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Stopper(theirs), Self { stream: ours }))
    }

    /// Told by what comes out of `stream`. It is never read, so once told is told for ever.
    #[must_use]
    pub fn by(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Whether it was told.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits so long, or until it is told. Says whether it was.
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        wait_for(&[self.as_fd()], Some(Instant::now() + time)).is_some()
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until one of `fds` is ready or closed, and says which; nothing when `until` came first.
pub(crate) fn wait_for(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Option<usize> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            // A poll may be as long as it likes to: it is asked again.
            tv_sec: left.as_secs().min(3600).cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled: Vec<_> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) if until.is_some_and(|until| Instant::now() >= until) => return None,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return polled.iter().position(|fd| !fd.revents().is_empty()),
            // No such failure is left but for a lack of memory: then time has to pass.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(100));
                if until.is_some_and(|until| Instant::now() >= until) {
                    return None;
                }
            }
        }
    }
}

#[test]
fn once_told_it_stays_told() {
    let (stopper, stop) = Stop::pair().unwrap();
    assert!(!stop.is_set() && !stop.wait(Duration::from_millis(5)));
    drop(stopper);
    assert!(stop.wait(Duration::from_secs(3600)) && stop.is_set());
}
