//! The least that a replay must do: one thread that waits for the next due time or a reply, sends
//! prepared bytes, and reads the replies up to ReadyForQuery.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    mem::MaybeUninit,
    net::TcpStream,
    num::NonZeroU64,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use howdah_stats::Percentiles;
use rustix::{
    event::epoll,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use crate::{
    DATABASE, ROLE, STATEMENT, STATEMENT_NAME,
    schedule::{ScheduledStatement, StatementSchedule},
};

/// Token of the timer; those of sockets are their indexes.
const TIMER: u64 = u64::MAX;

/// Time from the last login to the first statement.
const START_DELAY: Duration = Duration::from_millis(100);

pub(crate) fn run(
    server: &str,
    flat_out: bool,
    schedule: &StatementSchedule,
) -> anyhow::Result<()> {
    // As exact as the timer of a replay: without this the kernel may delay wake-ups by 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut sessions = Vec::with_capacity(schedule.sessions);
    for _ in 0..schedule.sessions {
        let session = BareSession::open(server)?;
        sessions.push(session);
    }
    let statements: Vec<_> = schedule.statements().collect();
    let cpu_before = cpu_time();
    let start = Instant::now() + START_DELAY;
    let mut sender = BareSender {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        sessions,
        start,
        flat_out,
        waiting: 0,
        schedule_error: Percentiles::default(),
        dependency_lag: Percentiles::default(),
        last_reply: start,
    };
    sender.send_all(&statements)?;
    let cpu = cpu_time() - cpu_before;
    let count = statements.len();
    let percentiles = |of: &Percentiles| {
        of.summary().map(|sum| {
            serde_json::json!({
                "p50": sum.p50_us, "p99": sum.p99_us, "p999": sum.p999_us, "max": sum.max_us,
            })
        })
    };
    let seconds = (sender.last_reply - start).as_secs_f64();
    let document = serde_json::json!({
        "statements": count,
        "seconds": seconds,
        "cpu_us_per_statement": cpu.as_secs_f64() * 1e6 / count.max(1) as f64,
        "schedule_error_us": percentiles(&sender.schedule_error),
        "dependency_lag_us": percentiles(&sender.dependency_lag),
    });
    writeln!(std::io::stdout(), "{document}")?;
    Ok(())
}

struct BareSender {
    epoll: rustix::fd::OwnedFd,
    sessions: Vec<BareSession>,
    start: Instant,
    flat_out: bool,
    /// Number of statements without a reply.
    waiting: usize,
    schedule_error: Percentiles,
    dependency_lag: Percentiles,
    last_reply: Instant,
}

impl BareSender {
    fn send_all(&mut self, statements: &[ScheduledStatement]) -> anyhow::Result<()> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        for (index, session) in self.sessions.iter().enumerate() {
            session.set_nonblocking()?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&self.epoll, session.as_fd(), data, edge)?;
        }
        let mut buffer = vec![0; 64 << 10];
        let mut events = [MaybeUninit::uninit(); 256];
        let mut armed = None;
        let mut next = 0;
        loop {
            let mut now = Instant::now();
            while let Some(statement) = statements.get(next)
                && (self.flat_out || self.start + statement.due <= now)
            {
                next += 1;
                self.sessions[statement.session].queue.push_back(*statement);
                self.send_next(statement.session, now)?;
                now = Instant::now();
            }
            let due = statements.get(next).map(|statement| self.start + statement.due);
            if due.is_none() && self.waiting == 0 {
                return Ok(());
            }
            if let Some(due) = due
                && armed != Some(due)
            {
                arm(&timer, due)?;
                armed = Some(due);
            }
            let ready = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok((ready, _)) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in ready {
                let token = event.data.u64();
                if token != TIMER {
                    self.receive(usize::try_from(token)?, &mut buffer)?;
                }
            }
        }
    }

    /// Sends a session's next statement if it is free.
    fn send_next(&mut self, index: usize, now: Instant) -> anyhow::Result<()> {
        let session = &mut self.sessions[index];
        if session.is_busy {
            return Ok(());
        }
        let Some(statement) = session.queue.pop_front() else { return Ok(()) };
        let message = execution(statement.account);
        let sent = session.socket.write(&message)?;
        anyhow::ensure!(sent == message.len(), "the server does not read");
        session.is_busy = true;
        self.waiting += 1;
        if !self.flat_out {
            let due = self.start + statement.due;
            self.schedule_error.record(now.saturating_duration_since(due.max(session.free_since)));
            self.dependency_lag.record(session.free_since.saturating_duration_since(due));
        }
        Ok(())
    }

    fn receive(&mut self, index: usize, buffer: &mut [u8]) -> anyhow::Result<()> {
        let session = &mut self.sessions[index];
        let bytes = match session.socket.read(buffer) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // All replies are short, so they arrive whole, and ReadyForQuery is the end of each.
        if bytes >= 6 && buffer[bytes - 6..bytes - 1] == *b"Z\0\0\0\x05" {
            let now = Instant::now();
            session.is_busy = false;
            session.free_since = now;
            self.last_reply = now;
            self.waiting -= 1;
            self.send_next(index, now)?;
        }
        Ok(())
    }
}

fn arm(timer: impl AsFd, due: Instant) -> anyhow::Result<()> {
    let left = due.saturating_duration_since(Instant::now());
    let value = Timespec {
        tv_sec: i64::try_from(left.as_secs())?,
        // Zero would disarm the timer.
        tv_nsec: i64::from(left.subsec_nanos().max(1)),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// One connection to the server.
struct BareSession {
    socket: BareSocket,
    queue: VecDeque<ScheduledStatement>,
    is_busy: bool,
    free_since: Instant,
}

impl BareSession {
    /// Logs in without a password, and prepares the statement.
    fn open(server: &str) -> anyhow::Result<Self> {
        let mut socket = if server.starts_with('/') {
            BareSocket::Unix(UnixStream::connect(server)?)
        } else {
            let socket = TcpStream::connect(server)?;
            socket.set_nodelay(true)?;
            BareSocket::Tcp(socket)
        };
        let mut startup = 196_608_i32.to_be_bytes().to_vec();
        for word in ["user", ROLE, "database", DATABASE, ""] {
            startup.extend_from_slice(word.as_bytes());
            startup.push(0);
        }
        let length = i32::try_from(startup.len() + 4)?;
        socket.write_all(&[&length.to_be_bytes()[..], &startup].concat())?;
        socket.read_until_ready()?;
        let mut parse = Vec::new();
        // No parameter types.
        message(&mut parse, b'P', &[STATEMENT_NAME.as_bytes(), STATEMENT.as_bytes(), &[0; 2]]);
        message(&mut parse, b'S', &[]);
        socket.write_all(&parse)?;
        socket.read_until_ready()?;
        let now = Instant::now();
        Ok(Self { socket, queue: VecDeque::new(), is_busy: false, free_since: now })
    }

    fn set_nonblocking(&self) -> std::io::Result<()> {
        match &self.socket {
            BareSocket::Tcp(socket) => socket.set_nonblocking(true),
            BareSocket::Unix(socket) => socket.set_nonblocking(true),
        }
    }
}

impl AsFd for BareSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            BareSocket::Tcp(socket) => socket.as_fd(),
            BareSocket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// The messages of one execution: Bind, Execute, Sync.
fn execution(account: u64) -> Vec<u8> {
    let value = account.to_string();
    let length = i32::try_from(value.len()).unwrap_or_default().to_be_bytes();
    let mut bytes = Vec::with_capacity(64);
    // The unnamed portal; no format codes; one value; no result format codes.
    let values = [&[0, 0, 0, 1][..], &length, value.as_bytes(), &[0, 0]].concat();
    message(&mut bytes, b'B', &[b"", STATEMENT_NAME.as_bytes(), &values]);
    message(&mut bytes, b'E', &[b"", &[0; 4]]);
    message(&mut bytes, b'S', &[]);
    bytes
}

/// Appends a message. All parts but the last are strings that end with a zero byte.
fn message(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    out.push(tag);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for (at, part) in parts.iter().enumerate() {
        out.extend_from_slice(part);
        if at + 1 < parts.len() {
            out.push(0);
        }
    }
    let length = u32::try_from(out.len() - start).unwrap_or_default();
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

enum BareSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl BareSocket {
    /// Reads until ReadyForQuery.
    fn read_until_ready(&mut self) -> anyhow::Result<()> {
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        while !received.ends_with(b"Z\0\0\0\x05I") {
            let bytes = self.read(&mut buffer).context("cannot log in")?;
            anyhow::ensure!(
                bytes > 0 && !received.starts_with(b"E"),
                "the server refused: {}",
                String::from_utf8_lossy(&received)
            );
            received.extend_from_slice(&buffer[..bytes]);
        }
        Ok(())
    }
}

impl Read for BareSocket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for BareSocket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let of = |clock| {
        let time = rustix::time::clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    of(rustix::time::ClockId::ProcessCPUTime)
}
