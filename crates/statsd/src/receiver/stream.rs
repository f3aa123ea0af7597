//! The reader of all stream sockets, TCP and unix: one thread, one epoll set, many connections.
//!
//! Each readable connection is read once per poll, so no connection starves the others. Complete
//! lines are passed on as one packet; an incomplete last line is buffered per connection
//! ([`LineBuffer`]). An idle connection takes a few hundred bytes.
//!
//! Connections of listeners with TLS or tokens pass through [`super::handshake`] before.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{SocketFlags, acceptfrom_with},
};

use super::{
    PacketHandlers,
    access::StreamAccess,
    handshake::{AcceptedConnection, AdmittedConnection, HandshakeOutcome, HandshakeQueue},
    line_buffer::LineBuffer,
    passed::InheritedConnection,
    relay::RelayEnd,
    senders::SenderFilter,
    socket_counts::SocketCounts,
    sockets::ACCEPT_BACKLOG,
    stop_signal::{StopSignal, timespec, wait_for_events},
    transport::LineTransport,
};

/// Maximum number of bytes read from a connection at once.
const READ_BYTES: usize = 64 << 10;

/// The reader of the connections of all stream listeners, which runs until the stop signal.
#[derive(Debug)]
pub(crate) struct StreamReader {
    epoll: OwnedFd,
    listeners: Vec<StreamListener>,
    connections: HashMap<u64, LineConnection>,
    /// Tokens are never reused, so an event for a connection closed in the same poll cannot be
    /// attributed to another one.
    next_token: u64,
    /// The queue of the handshake thread; `None` if no listener needs it.
    handshakes: Option<HandshakeQueue>,
    idle: Option<IdleSchedule>,
    /// Whether another process has taken over.
    only_relays: bool,
    stop: Arc<StopSignal>,
    handlers: PacketHandlers,
    buffer: Vec<u8>,
}

/// The schedule for closing idle connections.
#[derive(Debug)]
struct IdleSchedule {
    interval: Duration,
    next: Instant,
}

/// A listening socket with its connection count.
#[derive(Debug)]
pub(crate) struct StreamListener {
    /// The label by which other processes know the listener.
    pub(crate) label: String,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) counts: Arc<SocketCounts>,
    /// Whether the service manager has the socket, too, and passes it to the next process.
    pub(crate) is_managed: bool,
    /// Maximum number of connections at a time.
    pub(crate) connections_max: usize,
    /// Number of open connections, including those in a handshake.
    pub(crate) connections: usize,
    /// The permitted senders; `None` if all are.
    pub(crate) senders: Option<SenderFilter>,
    /// TLS and tokens; `None` if neither is needed.
    pub(crate) access: Option<Arc<StreamAccess>>,
    /// Connections without data for this long are closed; never if zero.
    pub(crate) idle_timeout: Duration,
}

#[derive(Debug)]
struct LineConnection {
    transport: LineTransport,
    listener: usize,
    lines: LineBuffer,
    /// The last time at which data arrived, if the listener limits idle time.
    active: Option<Instant>,
    /// Leads to the process that takes over, which gets the lines of an encrypted connection.
    relay: Option<RelayEnd>,
}

impl LineConnection {
    fn new(listener: usize, transport: LineTransport) -> Self {
        let lines = LineBuffer::default();
        Self { transport, listener, lines, active: None, relay: None }
    }

    /// Passes on complete lines, as one packet.
    fn deliver(&mut self, lines: &[u8], counts: &SocketCounts, handlers: &mut PacketHandlers) {
        match &mut self.relay {
            _ if lines.is_empty() => {}
            // The other process counts them.
            Some(relay) => relay.send(lines, counts),
            None => {
                handlers.handle_batch(std::iter::once(lines));
                counts.add(1, lines.len() as u64);
            }
        }
    }
}

/// Token of the stop signal.
const STOP: u64 = u64::MAX;
/// Token of the handshake thread's outcomes.
const HANDSHAKES: u64 = u64::MAX - 1;

impl StreamReader {
    /// Creates a reader, and registers the listeners and the stop signal with epoll.
    ///
    /// # Errors
    ///
    /// The epoll set cannot be created, or a socket cannot be registered with it.
    pub(crate) fn new(
        listeners: Vec<StreamListener>,
        handshakes: Option<HandshakeQueue>,
        stop: Arc<StopSignal>,
        handlers: PacketHandlers,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = |fd: &OwnedFd, token: u64| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        readable(stop.signal(), STOP)?;
        for (token, listener) in (0..).zip(&listeners) {
            readable(&listener.socket, token)?;
        }
        if let Some(handshakes) = &handshakes {
            readable(handshakes.ready(), HANDSHAKES)?;
        }
        let next_token = listeners.len() as u64;
        let limits = listeners.iter().map(|listener| listener.idle_timeout);
        let shortest = limits.filter(|limit| !limit.is_zero()).min();
        let idle = shortest.map(|limit| IdleSchedule::new(limit, Instant::now()));
        let buffer = vec![0; LineBuffer::LINE_BYTES_MAX + READ_BYTES];
        let connections = HashMap::new();
        Ok(Self {
            epoll,
            listeners,
            connections,
            next_token,
            handshakes,
            idle,
            only_relays: false,
            stop,
            handlers,
            buffer,
        })
    }

    /// Reads until the stop signal, then drains all connections. After a signal to halt, returns
    /// the reader instead, which can continue.
    pub(crate) fn run(mut self) -> Option<Self> {
        while self.is_needed() && !self.stop.is_requested() {
            if let Err(error) = self.poll_once() {
                tracing::warn!(%error, "cannot wait for connections");
                let _ = self.stop.pause(ERROR_PAUSE);
            }
        }
        if self.stop.is_halted() {
            return Some(self);
        }
        self.drain();
        None
    }

    /// Returns copies of all open connections, for another process. The state of TLS cannot be
    /// passed on: for an encrypted connection, the other process gets one from this process, which
    /// relays the lines.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn passed_connections(&mut self) -> io::Result<Vec<InheritedConnection>> {
        let Self { connections, listeners, .. } = self;
        let connections = connections.values_mut().map(|connection| {
            let listener = &listeners[connection.listener].label;
            if connection.transport.tls.is_some() {
                let (relay, passed) = RelayEnd::pair(listener)?;
                connection.relay = Some(relay);
                return Ok(passed);
            }
            let (tail, is_skipping) = connection.lines.state();
            Ok(InheritedConnection {
                descriptor: connection.transport.socket.try_clone()?,
                listener: listener.clone(),
                tail: tail.to_vec(),
                is_skipping,
            })
        });
        connections.collect()
    }

    /// Reads the connections that were admitted before the halt.
    pub(crate) fn finish_halt(&mut self) {
        self.poll_handshakes();
    }

    /// Continues after a takeover that failed.
    pub(crate) fn end_relay(&mut self) {
        self.connections.values_mut().for_each(|connection| connection.relay = None);
    }

    /// Accepts no more connections, and only relays the lines of those that are encrypted, because
    /// another process has all others. Tells clients to reconnect.
    pub(crate) fn start_relay(&mut self) {
        self.only_relays = true;
        for listener in &self.listeners {
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        let is_passed = |connection: &LineConnection| connection.relay.is_none();
        let passed = self.connections.iter().filter(|(_, connection)| is_passed(connection));
        let passed: Vec<u64> = passed.map(|(token, _)| *token).collect();
        for token in passed {
            // Closing is not enough, because the other process has the same socket.
            if let Some(connection) = self.connections.get(&token) {
                let _ = epoll::delete(&self.epoll, &connection.transport.socket);
            }
            self.close(token);
        }
        for connection in self.connections.values_mut() {
            connection.transport.end_output();
        }
    }

    /// Whether lines may still arrive.
    fn is_needed(&self) -> bool {
        !self.only_relays || self.listeners.iter().any(|listener| listener.connections > 0)
    }

    /// Continues a connection that another process has accepted. It is closed if its listener is
    /// not configured any more.
    pub(crate) fn adopt(&mut self, passed: InheritedConnection) {
        let InheritedConnection { descriptor, listener, tail, is_skipping } = passed;
        let Some(at) = self.listeners.iter().position(|one| one.label == listener) else {
            tracing::warn!(listener, "a connection is closed: its listener is not configured");
            return;
        };
        let mut connection =
            LineConnection::new(at, LineTransport { socket: descriptor, tls: None });
        connection.lines = LineBuffer::continued(&tail, is_skipping);
        self.listeners[at].connections += 1;
        self.register(connection);
    }

    /// Waits for events and handles them.
    fn poll_once(&mut self) -> io::Result<()> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NONE }; 64];
        let timeout = self.idle.as_ref().map(|idle| idle.time_until_next(Instant::now()));
        let ready = wait_for_events(&self.epoll, &mut events, timeout.as_ref())?;
        for event in &events[..ready] {
            match event.data.u64() {
                STOP => {}
                HANDSHAKES => self.poll_handshakes(),
                listener if listener < self.listeners.len() as u64 => {
                    self.accept(listener as usize);
                }
                token => drop(self.read(token)),
            }
        }
        self.close_idle();
        Ok(())
    }

    /// Accepts waiting connections, and reads only the data that has arrived so far on each, so
    /// that a busy sender cannot delay stopping.
    fn drain(&mut self) {
        if let Some(handshakes) = &self.handshakes {
            // The handshake thread ends at once.
            let outcomes = handshakes.finish(HANDSHAKES_END_TIMEOUT);
            outcomes.into_iter().for_each(|outcome| self.handle_outcome(outcome));
        }
        for listener in 0..self.listeners.len() {
            // The next process accepts those of a managed socket.
            if self.only_relays || self.listeners[listener].is_managed {
                continue;
            }
            let waiting = 0..ACCEPT_BACKLOG;
            waiting.take_while(|_| !self.stop.is_overdue() && self.accept(listener)).for_each(drop);
        }
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            let socket = &self.connections[&token].transport.socket;
            let mut available = rustix::io::ioctl_fionread(socket).unwrap_or_default();
            loop {
                let read = self.read(token) as u64;
                if read == 0 || available == 0 || self.stop.is_overdue() {
                    break;
                }
                available = available.saturating_sub(read);
            }
        }
    }

    /// Accepts one connection, or closes it if there are too many. Returns false if none was
    /// waiting or it could not be accepted. If more are waiting, the next poll reports the listener
    /// again.
    fn accept(&mut self, index: usize) -> bool {
        let listener = &mut self.listeners[index];
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = match acceptfrom_with(&listener.socket, flags) {
            Ok(accepted) => accepted,
            // The connection is already gone, or another process accepted it.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return false,
            Err(error) => {
                let socket = listener.counts.name();
                tracing::warn!(socket, %error, "cannot accept a connection");
                // Usually out of file descriptors. The listener stays readable, so avoid a busy
                // loop.
                let _ = self.stop.pause(ERROR_PAUSE);
                return false;
            }
        };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        if let Some(senders) = &mut listener.senders
            && !senders.permits(peer.map(|peer| peer.ip()))
        {
            senders.report(&listener.counts);
            return true;
        }
        if listener.connections >= listener.connections_max {
            let (socket, limit) = (listener.counts.name(), listener.connections_max);
            tracing::warn!(socket, limit, "connection limit reached: connection closed");
            listener.counts.discard(1);
            return true;
        }
        listener.connections += 1;
        match &listener.access {
            None => {
                let transport = LineTransport { socket, tls: None };
                self.register(LineConnection::new(index, transport));
            }
            Some(access) => {
                let connection = AcceptedConnection {
                    socket,
                    peer,
                    listener: index,
                    counts: Arc::clone(&listener.counts),
                    access: Arc::clone(access),
                    relay: None,
                };
                let is_sent =
                    self.handshakes.as_ref().is_some_and(|thread| thread.push(connection));
                // The handshake thread ends only when the server stops.
                listener.connections -= usize::from(!is_sent);
            }
        }
        true
    }

    /// Adds a connection to the epoll set. Returns its token, or `None` if it had to be closed.
    fn register(&mut self, mut connection: LineConnection) -> Option<u64> {
        let listener = &mut self.listeners[connection.listener];
        let token = self.next_token;
        let data = epoll::EventData::new_u64(token);
        let socket = &connection.transport.socket;
        if let Err(error) = epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN) {
            let socket = listener.counts.name();
            tracing::warn!(socket, %error, "cannot register a connection with epoll");
            listener.counts.discard(1);
            listener.connections -= 1;
            return None;
        }
        connection.active = (!listener.idle_timeout.is_zero()).then(Instant::now);
        self.connections.insert(token, connection);
        self.next_token += 1;
        Some(token)
    }

    fn poll_handshakes(&mut self) {
        let outcomes = self.handshakes.as_ref().map(HandshakeQueue::poll).unwrap_or_default();
        outcomes.into_iter().for_each(|outcome| self.handle_outcome(outcome));
    }

    /// Reads a connection that the handshake thread admitted, or counts one less.
    fn handle_outcome(&mut self, outcome: HandshakeOutcome) {
        let Some(AdmittedConnection { transport, received, relay }) = outcome.admitted else {
            self.listeners[outcome.listener].connections -= 1;
            return;
        };
        let mut connection = LineConnection::new(outcome.listener, transport);
        connection.relay = relay;
        let Some(token) = self.register(connection) else { return };
        self.buffer[..received.len()].copy_from_slice(&received);
        self.deliver_lines(token, received.len());
        // TLS may have bytes, or the end of the stream, for which epoll does not report the socket.
        self.read(token);
    }

    /// Closes connections without data for longer than their listener's limit, if it is time to
    /// look for them.
    fn close_idle(&mut self) {
        let Some(idle) = &mut self.idle else { return };
        let now = Instant::now();
        if !idle.poll(now) {
            return;
        }
        let is_idle = |connection: &LineConnection| {
            let limit = self.listeners[connection.listener].idle_timeout;
            let idle = |active| now.saturating_duration_since(active);
            connection.active.is_some_and(|active| idle(active) >= limit)
        };
        let idle = self.connections.iter().filter(|(_, connection)| is_idle(connection));
        let idle: Vec<u64> = idle.map(|(token, _)| *token).collect();
        for token in idle {
            if let Some(connection) = self.connections.get_mut(&token) {
                let counts = &self.listeners[connection.listener].counts;
                let truncated = !connection.lines.remainder().is_empty();
                counts.discard(u64::from(truncated));
                tracing::debug!(socket = counts.name(), truncated, "idle connection closed");
            }
            self.close(token);
        }
    }

    /// Reads a connection once. Returns the number of bytes read; 0 if there were none or it was
    /// closed.
    fn read(&mut self, token: u64) -> usize {
        let Some(connection) = self.connections.get_mut(&token) else { return 0 };
        let counts = &self.listeners[connection.listener].counts;
        let from = connection.lines.restore_tail(&mut self.buffer);
        let room = from..from + READ_BYTES;
        match connection.transport.read(&mut self.buffer[room]) {
            Ok(0) => {
                let last = connection.lines.take_remainder();
                connection.deliver(&last, counts, &mut self.handlers);
                self.close(token);
            }
            Ok(bytes) => {
                if let Some(active) = &mut connection.active {
                    *active = Instant::now();
                }
                self.deliver_lines(token, from + bytes);
                return bytes;
            }
            Err(error) if is_temporary(&error) => {}
            Err(error) => {
                // The incomplete last line of a broken connection may contain a truncated number.
                let truncated = !connection.lines.remainder().is_empty();
                counts.discard(u64::from(truncated));
                tracing::debug!(socket = counts.name(), %error, truncated, "connection failed");
                self.close(token);
            }
        }
        0
    }

    /// Passes on the complete lines in the first `filled` bytes of the buffer, which are the
    /// connection's incomplete line and what it sent after that.
    fn deliver_lines(&mut self, token: u64, filled: usize) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let counts = &self.listeners[connection.listener].counts;
        let lines = connection.lines.split_lines(&self.buffer[..filled]);
        connection.deliver(lines, counts, &mut self.handlers);
        counts.discard(connection.lines.take_overlong());
    }

    /// Closes a connection; closing the descriptor also removes it from the epoll set.
    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            self.listeners[connection.listener].connections -= 1;
        }
    }
}

impl IdleSchedule {
    /// Connections are closed at most a quarter later than the shortest limit demands.
    fn new(shortest_limit: Duration, now: Instant) -> Self {
        let interval = (shortest_limit / 4).max(Duration::from_millis(1));
        Self { interval, next: now + interval }
    }

    fn time_until_next(&self, now: Instant) -> Timespec {
        // Rounded up: epoll counts milliseconds.
        timespec(self.next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    /// Whether it is time to look for idle connections; if so, schedules the next time.
    fn poll(&mut self, now: Instant) -> bool {
        let is_expired = now >= self.next;
        if is_expired {
            self.next = now + self.interval;
        }
        is_expired
    }
}

/// Whether reading may succeed later.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Maximum wait for the handshake thread to end once stopping is requested.
const HANDSHAKES_END_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Placeholder in the event list that the kernel fills.
const NONE: epoll::EventData = epoll::EventData::new_u64(STOP);
