//! The reader of all stream sockets, TCP and unix: one thread, one epoll set, many connections.
//!
//! Each readable connection is read once per poll, so no connection starves the others. Complete
//! lines are passed on as one packet; an incomplete last line is buffered per connection
//! ([`LineBuffer`]). An idle connection takes a few hundred bytes.

use std::{collections::HashMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll,
    io::Errno,
    net::{SocketFlags, accept_with},
};

use super::{
    PacketHandlers, line_buffer::LineBuffer, socket_counts::SocketCounts, sockets::ACCEPT_BACKLOG,
    stop_signal::StopSignal,
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
    stop: Arc<StopSignal>,
    handlers: PacketHandlers,
    buffer: Vec<u8>,
}

/// A listening socket with its connection count.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) counts: Arc<SocketCounts>,
    /// Maximum number of connections at a time.
    pub(crate) connections_max: usize,
    /// Number of open connections.
    pub(crate) connections: usize,
}

#[derive(Debug)]
struct LineConnection {
    socket: OwnedFd,
    listener: usize,
    lines: LineBuffer,
}

/// Token of the stop signal.
const STOP: u64 = u64::MAX;

impl StreamReader {
    /// Creates a reader, and registers the listeners and the stop signal with epoll.
    ///
    /// # Errors
    ///
    /// The epoll set cannot be created, or a socket cannot be registered with it.
    pub(crate) fn new(
        listeners: Vec<StreamListener>,
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
        let next_token = listeners.len() as u64;
        let buffer = vec![0; LineBuffer::LINE_BYTES_MAX + READ_BYTES];
        let connections = HashMap::new();
        Ok(Self { epoll, listeners, connections, next_token, stop, handlers, buffer })
    }

    /// Reads until the stop signal, then drains all connections.
    pub(crate) fn run(mut self) {
        while !self.stop.is_requested() {
            if let Err(error) = self.poll_once() {
                tracing::warn!(%error, "cannot wait for connections");
                let _ = self.stop.pause(ERROR_PAUSE);
            }
        }
        self.drain();
    }

    /// Waits for events and handles them.
    fn poll_once(&mut self) -> io::Result<()> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NONE }; 64];
        let ready = match epoll::wait(&self.epoll, &mut events, None) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..ready] {
            match event.data.u64() {
                STOP => {}
                listener if listener < self.listeners.len() as u64 => {
                    self.accept(listener as usize);
                }
                token => drop(self.read(token)),
            }
        }
        Ok(())
    }

    /// Accepts waiting connections, and reads only the data that has arrived so far on each, so
    /// that a busy sender cannot delay stopping.
    fn drain(&mut self) {
        for listener in 0..self.listeners.len() {
            let waiting = 0..ACCEPT_BACKLOG;
            waiting.take_while(|_| !self.stop.is_overdue() && self.accept(listener)).for_each(drop);
        }
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            let socket = &self.connections[&token].socket;
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
        let socket = match accept_with(&listener.socket, flags) {
            Ok(socket) => socket,
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
        if listener.connections >= listener.connections_max {
            let (socket, limit) = (listener.counts.name(), listener.connections_max);
            tracing::warn!(socket, limit, "connection limit reached: connection closed");
            listener.counts.discard(1);
            return true;
        }
        let token = epoll::EventData::new_u64(self.next_token);
        if let Err(error) = epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN) {
            tracing::warn!(socket = listener.counts.name(), %error, "cannot register a connection with epoll");
            listener.counts.discard(1);
            return true;
        }
        listener.connections += 1;
        let connection = LineConnection { socket, listener: index, lines: LineBuffer::default() };
        self.connections.insert(self.next_token, connection);
        self.next_token += 1;
        true
    }

    /// Reads a connection once. Returns the number of bytes read; 0 if there were none or it was
    /// closed.
    fn read(&mut self, token: u64) -> usize {
        let Some(connection) = self.connections.get_mut(&token) else { return 0 };
        let counts = &self.listeners[connection.listener].counts;
        let from = connection.lines.restore_tail(&mut self.buffer);
        let room = from..from + READ_BYTES;
        match rustix::io::read(&connection.socket, &mut self.buffer[room]) {
            Ok(0) => {
                deliver(connection.lines.remainder(), counts, &mut self.handlers);
                self.close(token);
            }
            Ok(bytes) => {
                let lines = connection.lines.split_lines(&self.buffer[..from + bytes]);
                deliver(lines, counts, &mut self.handlers);
                counts.discard(connection.lines.take_overlong());
                return bytes;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
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

    /// Closes a connection; closing the descriptor also removes it from the epoll set.
    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            self.listeners[connection.listener].connections -= 1;
        }
    }
}

/// Passes complete lines to the handlers as one packet.
fn deliver(lines: &[u8], counts: &SocketCounts, handlers: &mut PacketHandlers) {
    if !lines.is_empty() {
        handlers.handle_batch(std::iter::once(lines));
        counts.add(1, lines.len() as u64);
    }
}

/// Pause after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Placeholder in the event list that the kernel fills.
const NONE: epoll::EventData = epoll::EventData::new_u64(STOP);
