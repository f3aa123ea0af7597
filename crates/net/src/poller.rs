//! Waits for sockets, wake-ups from other threads, and deadlines.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use crate::Listener;
use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

/// Identifies a registered socket in the events of [`Poller::wait`]. The two largest values are
/// reserved for the poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The events of one socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketReadiness {
    /// The token that the socket was registered with.
    pub token: Token,
    /// Whether bytes or the end of the stream may be available to read or, on a listener, a
    /// connection may be pending.
    pub readable: bool,
    /// Whether the socket may accept bytes, or a connect has finished.
    pub writable: bool,
    /// Whether the peer has closed its side, or the connection is broken. Earlier data may still be
    /// unread, and perhaps no further event will come: read until the end of the stream, even after
    /// a short read.
    pub hung_up: bool,
}

/// The events that a socket is watched for. The end of the stream is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readability. A unix socket that is also watched for writability reports an event whenever
    /// its peer reads, so use this as long as no output is pending.
    Read,
    /// Readability and writability.
    Both,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let read = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        match self {
            Self::Read => read,
            Self::Both => read | epoll::EventFlags::OUT,
        }
    }
}

/// An epoll set with a timer that is exact to well under a millisecond.
///
/// `epoll_wait` itself rounds its timeout up to a millisecond, which is too coarse for a replay
/// that reproduces the captured timing. A timerfd in the set has nanosecond resolution on every
/// kernel still in use (`epoll_pwait2` would need 5.11).
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The armed deadline. A later one need not be set before it has passed.
    armed: Option<Instant>,
}

/// Token of the poller's own timer. Callers must not use it, nor [`WAKER`].
const TIMER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;

/// Maximum number of events taken from the kernel per call.
const BATCH: usize = 256;

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Poller {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// The process or the system is out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        // Edge-triggered and never read: setting it again makes it unreadable.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), flags)?;
        Ok(Self { epoll, timer, armed: None })
    }

    /// Watches `socket` in both directions until it is closed or removed.
    ///
    /// Readiness is edge-triggered: after a report, read until a read is short or would block (or,
    /// if [`SocketReadiness::hung_up`], until the end), and write until done or it would block.
    ///
    /// # Errors
    ///
    /// The socket is already being watched, or the kernel refused for lack of memory or watches.
    pub fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        self.add_with_interest(socket, token, Interest::Both)
    }

    /// Like [`Poller::add`], but watches only for the events in `interest`.
    ///
    /// # Errors
    ///
    /// See [`Poller::add`].
    pub fn add_with_interest(
        &self,
        socket: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    /// Changes the events or the token of a socket. Pending readiness is reported again.
    ///
    /// # Errors
    ///
    /// The socket is not being watched, or the kernel is out of memory.
    pub fn set_interest(
        &self,
        socket: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// Stops watching a socket that stays open, so that another poller can watch it.
    ///
    /// # Errors
    ///
    /// The socket is not being watched.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Watches a listener. It is reported as long as connections are pending, so they need not be
    /// accepted all at once; if several pollers watch one socket, not all wake for one connection.
    ///
    /// # Errors
    ///
    /// See [`Poller::add`].
    pub fn add_listener(&self, listener: &Listener, token: Token) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, listener, epoll::EventData::new_u64(token.0), flags)?)
    }

    /// Returns a handle with which other threads can interrupt a wait.
    ///
    /// # Errors
    ///
    /// The process or the system is out of file descriptors, memory or watches.
    pub fn waker(&self) -> io::Result<Waker> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        // Edge-triggered and never read: each write is a new edge.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(WAKER), flags)?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Waits until a socket is ready, a [`Waker`] is used or `deadline` has passed, whichever is
    /// first, and appends the events to `out`. Without a deadline it waits without limit. It may
    /// return early with no events, so the caller must check the time.
    ///
    /// # Errors
    ///
    /// The kernel refused to set the timer or to wait. An interrupted wait returns early without an
    /// error.
    pub fn wait(
        &mut self,
        deadline: Option<Instant>,
        out: &mut Vec<SocketReadiness>,
    ) -> io::Result<()> {
        let is_past = !self.arm(deadline)?;
        let mut ready = [MaybeUninit::uninit(); BATCH];
        let timeout = is_past.then_some(&ZERO);
        let ready = match epoll::wait(&self.epoll, &mut ready[..], timeout) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let flags = event.flags;
            match event.data.u64() {
                TIMER => self.armed = None,
                WAKER => {}
                token => {
                    let broken = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    let hung_up = flags.intersects(broken | epoll::EventFlags::RDHUP);
                    out.push(SocketReadiness {
                        token: Token(token),
                        readable: hung_up || flags.contains(epoll::EventFlags::IN),
                        writable: flags.intersects(broken | epoll::EventFlags::OUT),
                        hung_up,
                    });
                }
            }
        }
        Ok(())
    }

    /// Arms the timer, unless it is armed for an earlier time: that costs one spurious wake-up,
    /// after which the deadline is set, if it still exists. Returns false if the deadline has
    /// passed, so that there is nothing to wait for.
    fn arm(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let Some(deadline) = deadline else { return Ok(true) };
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let setting = Itimerspec { it_interval: ZERO, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        self.armed = Some(deadline);
        Ok(true)
    }
}

/// Interrupts the current or next [`Poller::wait`] of another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Interrupts the wait, at the cost of one system call.
    pub fn wake(&self) {
        // This fails only when the counter is full, and then the poller is awake already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::net::UnixStream, time::Duration};

    #[test]
    fn wait_returns_at_deadline_and_never_early() {
        let mut poller = Poller::new().unwrap();
        let mut out = Vec::new();
        for micros in [0, 1, 150, 2_500] {
            let deadline = Instant::now() + Duration::from_micros(micros);
            while Instant::now() < deadline {
                poller.wait(Some(deadline), &mut out).unwrap();
            }
        }
        assert!(out.is_empty());
    }

    /// Data and hang-up arrive as one edge: if the hang-up were not reported, no further event
    /// would follow a short read.
    #[test]
    fn hangup_with_last_bytes_is_reported() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&ours, Token(7)).unwrap();
        let mut out = Vec::new();
        poller.wait(None, &mut out).unwrap();
        assert!(!out[0].hung_up, "{out:?}");
        theirs.write_all(b"farewell").unwrap();
        drop(theirs);
        out.clear();
        poller.wait(None, &mut out).unwrap();
        assert!(out[0].readable && out[0].hung_up, "{out:?}");
    }

    #[test]
    fn earlier_deadline_replaces_later_one() {
        let mut poller = Poller::new().unwrap();
        let waker = poller.waker().unwrap();
        let mut out = Vec::new();
        waker.wake();
        poller.wait(Some(Instant::now() + Duration::from_secs(3600)), &mut out).unwrap();
        let soon = Instant::now() + Duration::from_millis(1);
        poller.wait(Some(soon), &mut out).unwrap();
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn data_and_hangup_are_reported() {
        let mut poller = Poller::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        poller.add(&ours, Token(7)).unwrap();
        let mut out = Vec::new();
        poller.wait(None, &mut out).unwrap();
        assert!(out.iter().all(|ready| ready.token == Token(7) && ready.writable));
        out.clear();
        theirs.write_all(b"x").unwrap();
        poller.wait(None, &mut out).unwrap();
        assert!(out.iter().any(|ready| ready.readable));
        out.clear();
        drop(theirs);
        poller.wait(None, &mut out).unwrap();
        assert!(out.iter().any(|ready| ready.readable));
    }

    #[test]
    fn waker_interrupts_wait_from_another_thread() {
        let mut poller = Poller::new().unwrap();
        let waker = poller.waker().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            poller.wait(None, &mut Vec::new()).unwrap();
        });
    }
}
