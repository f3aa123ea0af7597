//! Waiting: for sockets, for another thread, for a point in time.

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

/// Names a registered socket in what [`Poller::wait`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// What one socket became ready for.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// The socket.
    pub token: Token,
    /// There may be bytes to read, or the end of the stream.
    pub readable: bool,
    /// There may be room to write, or a connect has finished.
    pub writable: bool,
    /// The peer has closed its side, or the connection is broken. What it sent before may still be
    /// there, and no further report will come: read until the end of the stream, a short read is
    /// not the last.
    pub hung_up: bool,
}

/// What a socket is watched for. The end of the stream is always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes. A unix socket that is also watched for room reports some whenever its peer reads,
    /// so this is what to watch one for as long as nothing waits to be sent.
    Read,
    /// Bytes, and room to send.
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

/// One epoll set with a timer that is exact to well under a millisecond.
///
/// `epoll_wait` itself rounds its timeout up to a millisecond, too coarse for a replay that keeps
/// the captured pace. A timerfd in the set has nanoseconds on every kernel that is still in use
/// (`epoll_pwait2` would need 5.11).
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to, so that it is set again only when that changes.
    armed: Option<Instant>,
}

/// Reserved for the poller's own descriptors; sockets count from zero.
const TIMER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;

/// Events taken from the kernel per call.
const BATCH: usize = 256;

impl Poller {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer, armed: None })
    }

    /// Watches `socket` for both directions until it is closed.
    ///
    /// Readiness is edge-triggered: after a report, read until a read is short or would block (or,
    /// if [`Readiness::hung_up`], until the end), and write until done or it would block.
    ///
    /// # Errors
    ///
    /// The kernel refused, for want of memory or of watches.
    pub fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        self.add_for(socket, token, Interest::Both)
    }

    /// Like [`Poller::add`], for one direction or both.
    ///
    /// # Errors
    ///
    /// The kernel refused, for want of memory or of watches.
    pub fn add_for(&self, socket: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    /// Watches a socket for something else from now on, or under another token. What it is ready
    /// for already is reported again.
    ///
    /// # Errors
    ///
    /// The kernel refused, for want of memory.
    pub fn watch_for(&self, socket: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// Stops watching a socket that stays open, to be watched by another poller.
    ///
    /// # Errors
    ///
    /// It is not being watched.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Watches a listener. It is reported as long as connections wait there, so one need not take
    /// all at once; of several pollers that watch one socket, not all wake for one connection.
    ///
    /// # Errors
    ///
    /// The kernel refused, for want of memory or of watches.
    pub fn add_listener(&self, listener: &Listener, token: Token) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, listener, epoll::EventData::new_u64(token.0), flags)?)
    }

    /// A handle with which other threads can end a wait.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub fn waker(&self) -> io::Result<Waker> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        // Edge-triggered and never read: each write is a new edge.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(WAKER), flags)?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Waits until a socket is ready, a [`Waker`] is used or `deadline` has come, whichever is
    /// first, and appends what is ready to `out`. With `None` only the first two end it.
    ///
    /// # Errors
    ///
    /// Only the kernel's own refusals; an interrupted wait returns early without an error.
    pub fn wait(&mut self, deadline: Option<Instant>, out: &mut Vec<Readiness>) -> io::Result<()> {
        self.arm(deadline)?;
        let mut ready = [MaybeUninit::uninit(); BATCH];
        let ready = match epoll::wait(&self.epoll, &mut ready[..], None) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut rang = false;
        for event in ready {
            let flags = event.flags;
            match event.data.u64() {
                TIMER => rang = true,
                WAKER => {}
                token => {
                    let broken = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    let hung_up = flags.intersects(broken | epoll::EventFlags::RDHUP);
                    out.push(Readiness {
                        token: Token(token),
                        readable: hung_up || flags.contains(epoll::EventFlags::IN),
                        writable: flags.intersects(broken | epoll::EventFlags::OUT),
                        hung_up,
                    });
                }
            }
        }
        if rang {
            self.armed = None;
            // Read it, or it would stay readable.
            let mut ticks = [0_u8; 8];
            let _ = rustix::io::read(&self.timer, &mut ticks);
        }
        Ok(())
    }

    /// Sets the timer. An earlier setting is left in place when nothing is due: it costs at most
    /// one wait that ends for nothing.
    fn arm(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else { return Ok(()) };
        if self.armed == Some(deadline) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would disarm it; a nanosecond is "now".
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()).max(i64::from(left.as_secs() == 0)),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        self.armed = Some(deadline);
        Ok(())
    }
}

/// Ends a [`Poller::wait`] of another thread, at once or the next one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the wait. Cheap enough to call after every batch handed over.
    pub fn wake(&self) {
        // It can only fail when the counter is full, and then the poller is awake already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::net::UnixStream, time::Duration};

    #[test]
    fn a_deadline_ends_the_wait_and_never_early() {
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

    /// Both are one edge: without a word about it, a short read would be the last for ever.
    #[test]
    fn an_end_that_came_with_the_last_bytes_is_told() {
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
    fn an_earlier_deadline_replaces_a_later_one() {
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
    fn bytes_and_the_end_of_a_stream_are_reported() {
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
    fn a_waker_ends_the_wait_from_another_thread() {
        let mut poller = Poller::new().unwrap();
        let waker = poller.waker().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            poller.wait(None, &mut Vec::new()).unwrap();
        });
    }
}
