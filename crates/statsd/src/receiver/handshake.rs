//! The thread that checks new connections of listeners with TLS or tokens.
//!
//! ```text
//!  reader ── accepted ──► handshake thread ── admitted, or closed ──► reader
//! ```
//!
//! A handshake costs milliseconds of processor time and waits for the client, so neither happens on
//! the thread that reads the other connections. A connection that is not admitted within its
//! listener's `handshake-timeout` is closed. The thread runs only if a listener needs it.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Read as _},
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use memchr::memchr;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustls::ServerConnection;

use super::{
    access::{AccessSecrets, StreamAccess, TOKEN_LINE_BYTES_MAX},
    passed::InheritedConnection,
    relay::RelayEnd,
    senders::RefusalNotice,
    socket_counts::SocketCounts,
    stop_signal::{StopSignal, timespec, wait_for_events},
    transport::{LineTransport, receive, send_pending},
};

/// Pause after an error of epoll.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// An accepted connection that must be checked.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    /// The client's address, for log lines.
    pub(crate) peer: Option<SocketAddr>,
    /// Index of the listener at its reader.
    pub(crate) listener: usize,
    pub(crate) counts: Arc<SocketCounts>,
    pub(crate) access: Arc<StreamAccess>,
    /// Leads to the process that takes over.
    pub(crate) relay: Option<RelayEnd>,
}

/// The result of a check: the connection, or `None` if it was closed.
#[derive(Debug)]
pub(crate) struct HandshakeOutcome {
    pub(crate) listener: usize,
    pub(crate) admitted: Option<AdmittedConnection>,
}

/// A connection whose lines count.
#[derive(Debug)]
pub(crate) struct AdmittedConnection {
    pub(crate) transport: LineTransport,
    /// Bytes received after the handshake and the token, at most 64 KiB.
    pub(crate) received: Vec<u8>,
    /// Leads to the process that takes over.
    pub(crate) relay: Option<RelayEnd>,
}

/// The reader's end of the queues to and from the handshake thread.
#[derive(Debug)]
pub(crate) struct HandshakeQueue {
    accepted: Sender<AcceptedConnection>,
    wake: Arc<OwnedFd>,
    outcomes: Receiver<HandshakeOutcome>,
    ready: Arc<OwnedFd>,
}

impl HandshakeQueue {
    /// Passes a connection to the handshake thread. Returns false if that has ended, which closes
    /// the connection.
    pub(crate) fn push(&self, connection: AcceptedConnection) -> bool {
        let is_sent = self.accepted.send(connection).is_ok();
        signal(&self.wake);
        is_sent
    }

    /// Returns the eventfd that is readable if there are outcomes.
    pub(crate) fn ready(&self) -> &OwnedFd {
        &self.ready
    }

    /// Returns the outcomes so far.
    pub(crate) fn poll(&self) -> Vec<HandshakeOutcome> {
        reset(&self.ready);
        self.outcomes.try_iter().collect()
    }

    /// Returns the remaining outcomes once the thread has ended, or after `timeout`.
    pub(crate) fn finish(&self, timeout: Duration) -> Vec<HandshakeOutcome> {
        let deadline = Instant::now() + timeout;
        let mut outcomes = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.outcomes.recv_timeout(left) {
                Ok(outcome) => outcomes.push(outcome),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return outcomes;
                }
            }
        }
    }
}

/// Adds to an eventfd, which makes it readable.
fn signal(event: &OwnedFd) {
    // Fails only if the counter is full, and then the eventfd is readable anyway.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn reset(event: &OwnedFd) {
    // Fails only if the counter is 0 already.
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
}

/// The state of the handshake thread, which runs until the stop signal.
#[derive(Debug)]
pub(crate) struct HandshakeThread {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    accepted: Receiver<AcceptedConnection>,
    outcomes: Sender<HandshakeOutcome>,
    ready: Arc<OwnedFd>,
    pending: HashMap<u64, PendingHandshake>,
    /// The deadlines of all pending handshakes, with their tokens.
    deadlines: BTreeSet<(Instant, u64)>,
    next_token: u64,
    /// By the index of the listener.
    notices: HashMap<usize, RefusalNotice>,
    stop: Arc<StopSignal>,
}

/// Tokens of the stop signal and of the eventfd for new connections.
const STOP: u64 = u64::MAX;
const ACCEPTED: u64 = u64::MAX - 1;

#[derive(Debug)]
struct PendingHandshake {
    connection: AcceptedConnection,
    secrets: Arc<AccessSecrets>,
    tls: Option<Box<ServerConnection>>,
    /// Decrypted bytes so far.
    received: Vec<u8>,
    /// Whether the peer has sent anything.
    has_received: bool,
    deadline: Instant,
    /// Whether epoll also waits until the socket is writable.
    awaits_writable: bool,
}

/// The reason why a connection is not admitted.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error("the connection ended before the handshake was complete")]
    Ended,
    #[error("the first line is not `auth TOKEN` with a valid token")]
    Token,
    #[error("the handshake was not complete within handshake-timeout")]
    Timeout,
}

impl HandshakeThread {
    /// Creates the thread's state and the reader's end of its queues.
    ///
    /// # Errors
    ///
    /// An eventfd or the epoll set cannot be created.
    pub(crate) fn new(stop: Arc<StopSignal>) -> io::Result<(Self, HandshakeQueue)> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (wake, ready) = (event()?, event()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, token) in [(stop.signal(), STOP), (&*wake, ACCEPTED)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        let (to_thread, accepted) = mpsc::channel();
        let (outcomes, from_thread) = mpsc::channel();
        let queue = HandshakeQueue {
            accepted: to_thread,
            wake: Arc::clone(&wake),
            outcomes: from_thread,
            ready: Arc::clone(&ready),
        };
        let thread = Self {
            epoll,
            wake,
            accepted,
            outcomes,
            ready,
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_token: 0,
            notices: HashMap::new(),
            stop,
        };
        Ok((thread, queue))
    }

    /// Runs until the stop signal. Handshakes that are not complete by then are abandoned. After a
    /// signal to halt, returns the thread's state instead, which can continue.
    pub(crate) fn run(mut self) -> Option<Self> {
        while !self.stop.is_requested() {
            if let Err(error) = self.poll_once() {
                tracing::warn!(%error, "cannot wait for handshakes");
                let _ = self.stop.pause(ERROR_PAUSE);
            }
        }
        self.stop.is_halted().then_some(self)
    }

    /// Returns the connections that the process that takes over gets for those whose handshakes are
    /// not complete, which this process completes. `labels` are those of the listeners.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn passed_connections(
        &mut self,
        labels: &[&str],
    ) -> io::Result<Vec<InheritedConnection>> {
        self.start_accepted();
        let connections = self.pending.values_mut().map(|pending| {
            let label = labels.get(pending.connection.listener).copied().unwrap_or_default();
            let (relay, passed) = RelayEnd::pair(label)?;
            pending.connection.relay = Some(relay);
            Ok(passed)
        });
        connections.collect()
    }

    /// Continues after a takeover that failed.
    pub(crate) fn end_relay(&mut self) {
        self.pending.values_mut().for_each(|pending| pending.connection.relay = None);
    }

    fn poll_once(&mut self) -> io::Result<()> {
        let none = epoll::EventData::new_u64(STOP);
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: none }; 64];
        let timeout = self.deadlines.first().map(|(deadline, _)| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: epoll counts milliseconds, and waking too early would be a busy loop.
            timespec(left + Duration::from_millis(1))
        });
        let ready = wait_for_events(&self.epoll, &mut events, timeout.as_ref())?;
        for event in &events[..ready] {
            match event.data.u64() {
                STOP => {}
                ACCEPTED => self.start_accepted(),
                token => self.advance(token),
            }
        }
        self.expire(Instant::now());
        Ok(())
    }

    fn start_accepted(&mut self) {
        reset(&self.wake);
        while let Ok(connection) = self.accepted.try_recv() {
            let listener = connection.listener;
            let counts = Arc::clone(&connection.counts);
            let peer = connection.peer;
            if let Err(error) = self.start(connection) {
                self.refuse(listener, &counts, peer, &error);
            }
        }
    }

    fn start(&mut self, connection: AcceptedConnection) -> Result<(), HandshakeError> {
        let secrets = connection.access.secrets();
        let tls = match &secrets.tls {
            Some(config) => Some(Box::new(ServerConnection::new(Arc::clone(config))?)),
            None => None,
        };
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN)
            .map_err(io::Error::from)?;
        let deadline = Instant::now() + connection.access.timeout;
        self.deadlines.insert((deadline, token));
        let pending = PendingHandshake {
            connection,
            secrets,
            tls,
            received: Vec::new(),
            has_received: false,
            deadline,
            awaits_writable: false,
        };
        self.pending.insert(token, pending);
        Ok(())
    }

    /// Continues a handshake whose socket is ready.
    fn advance(&mut self, token: u64) {
        let Some(pending) = self.pending.get_mut(&token) else { return };
        let outcome = pending.advance();
        match outcome {
            Ok(true) => self.admit(token),
            Ok(false) => {
                if let Err(error) = pending.update_interest(&self.epoll, token) {
                    self.fail(token, &error.into());
                }
            }
            Err(error) => self.fail(token, &error),
        }
    }

    /// Closes the connections whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        while let Some((deadline, token)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.fail(token, &HandshakeError::Timeout);
        }
    }

    fn remove(&mut self, token: u64) -> Option<PendingHandshake> {
        let pending = self.pending.remove(&token)?;
        self.deadlines.remove(&(pending.deadline, token));
        // The reader's own epoll set must be the only one that reports the socket.
        let _ = epoll::delete(&self.epoll, &pending.connection.socket);
        Some(pending)
    }

    fn admit(&mut self, token: u64) {
        let Some(pending) = self.remove(token) else { return };
        let PendingHandshake { connection, tls, received, .. } = pending;
        let AcceptedConnection { socket, listener, relay, .. } = connection;
        let mut transport = LineTransport { socket, tls };
        if relay.is_some() {
            transport.end_output();
        }
        let admitted = Some(AdmittedConnection { transport, received, relay });
        self.report(HandshakeOutcome { listener, admitted });
    }

    fn fail(&mut self, token: u64, error: &HandshakeError) {
        let Some(pending) = self.remove(token) else { return };
        let AcceptedConnection { listener, counts, peer, .. } = &pending.connection;
        if pending.has_received || matches!(error, HandshakeError::Timeout) {
            self.refuse(*listener, counts, *peer, error);
        } else {
            // A health check of a load balancer, for example.
            tracing::debug!(socket = counts.name(), %error, "connection ended");
            self.report(HandshakeOutcome { listener: *listener, admitted: None });
        }
    }

    /// Counts a failed handshake, and logs it from time to time.
    fn refuse(
        &mut self,
        listener: usize,
        counts: &SocketCounts,
        peer: Option<SocketAddr>,
        error: &HandshakeError,
    ) {
        counts.fail_handshake();
        let notice = self.notices.entry(listener).or_default();
        if let Some(failed) = notice.record(1, Instant::now()) {
            let example = peer.map(|peer| peer.ip().to_canonical().to_string());
            let socket = counts.name();
            tracing::warn!(socket, failed, example, %error, "connections closed: access denied");
        }
        self.report(HandshakeOutcome { listener, admitted: None });
    }

    fn report(&self, outcome: HandshakeOutcome) {
        // Fails only while the server stops.
        let _ = self.outcomes.send(outcome);
        signal(&self.ready);
    }
}

impl PendingHandshake {
    /// Reads what is available. Returns true once the handshake is complete and the token right.
    fn advance(&mut self) -> Result<bool, HandshakeError> {
        loop {
            if self.is_admitted()? {
                return Ok(true);
            }
            match self.read() {
                Ok(0) => return Err(HandshakeError::Ended),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads from the socket once, and adds what is decrypted to the received bytes. Returns the
    /// number of bytes from the socket; 0 at the end of the stream.
    fn read(&mut self) -> io::Result<usize> {
        let socket = &self.connection.socket;
        let Some(tls) = &mut self.tls else {
            let mut buffer = [0; 4096];
            let bytes = rustix::io::read(socket, &mut buffer)?;
            self.received.extend_from_slice(&buffer[..bytes]);
            self.has_received |= bytes > 0;
            return Ok(bytes);
        };
        send_pending(socket, tls)?;
        let received = receive(socket, tls);
        self.has_received |= match &received {
            Ok(bytes) => *bytes > 0,
            Err(error) => error.kind() == io::ErrorKind::InvalidData,
        };
        let bytes = received?;
        let mut buffer = [0; 4096];
        loop {
            match tls.reader().read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => self.received.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Whether the handshake is complete and the token right. Removes the token's line from the
    /// received bytes.
    fn is_admitted(&mut self) -> Result<bool, HandshakeError> {
        if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            return Ok(false);
        }
        if !self.secrets.needs_token() {
            return Ok(true);
        }
        match memchr(b'\n', &self.received) {
            Some(end) if self.secrets.accepts(&self.received[..end]) => {
                self.received.drain(..=end);
                Ok(true)
            }
            Some(_) => Err(HandshakeError::Token),
            None if self.received.len() > TOKEN_LINE_BYTES_MAX => Err(HandshakeError::Token),
            None => Ok(false),
        }
    }

    /// Lets epoll wait until the socket is writable while TLS has something to send.
    fn update_interest(&mut self, epoll: &OwnedFd, token: u64) -> io::Result<()> {
        let has_output = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        if has_output != self.awaits_writable {
            self.awaits_writable = has_output;
            let output =
                if has_output { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(token);
            let events = epoll::EventFlags::IN | output;
            epoll::modify(epoll, &self.connection.socket, data, events)?;
        }
        Ok(())
    }
}
