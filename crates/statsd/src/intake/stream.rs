//! The reader of all stream sockets, TCP and unix: one thread, one epoll set, many connections.
//!
//! Each connection that is readable is read once per round, so none starves the others. Complete
//! lines go on as one packet; what is left of the last one waits in the connection
//! ([`Lines`]). A connection that is idle costs a few hundred bytes.

use std::{collections::HashMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll,
    io::Errno,
    net::{SocketFlags, accept_with},
};

use super::{Outlet, accounts::Counts, lines::Lines, open::QUEUE, stop::Stop};

/// Bytes read from a connection at once.
const READ_BYTES: usize = 64 << 10;

/// Reads the connections of all stream listeners until it is told to stop.
#[derive(Debug)]
pub(crate) struct Reader {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    connections: HashMap<u64, Connection>,
    /// Tokens are never used twice, so a report about a connection closed in the same round meets
    /// nobody else.
    next_token: u64,
    stop: Arc<Stop>,
    outlet: Outlet,
    buffer: Vec<u8>,
}

/// A socket that connections come from.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) counts: Arc<Counts>,
    /// Connections served at once.
    pub(crate) connections_max: usize,
    /// Connections there are now.
    pub(crate) connections: usize,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    listener: usize,
    lines: Lines,
}

/// The order to stop.
const STOP: u64 = u64::MAX;

impl Reader {
    /// Over these listeners.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub(crate) fn new(
        listeners: Vec<Listener>,
        stop: Arc<Stop>,
        outlet: Outlet,
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
        let buffer = vec![0; Lines::LINE_BYTES_MAX + READ_BYTES];
        let connections = HashMap::new();
        Ok(Self { epoll, listeners, connections, next_token, stop, outlet, buffer })
    }

    /// Reads until the order to stop, and then what had arrived until then.
    pub(crate) fn run(mut self) {
        while !self.stop.is_ordered() {
            if let Err(error) = self.round() {
                tracing::warn!(%error, "cannot wait for connections");
                let _ = self.stop.pause(AFTER_ERROR);
            }
        }
        self.drain();
    }

    /// Serves what is ready.
    fn round(&mut self) -> io::Result<()> {
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

    /// Takes in what has arrived until now: whoever waits to be let in, and of each connection as
    /// much as is there at this moment, so that a busy sender cannot hold us.
    fn drain(&mut self) {
        for listener in 0..self.listeners.len() {
            let waiting = 0..QUEUE;
            waiting.take_while(|_| !self.stop.is_overdue() && self.accept(listener)).for_each(drop);
        }
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            let socket = &self.connections[&token].socket;
            let mut there = rustix::io::ioctl_fionread(socket).unwrap_or_default();
            loop {
                let read = self.read(token) as u64;
                if read == 0 || there == 0 || self.stop.is_overdue() {
                    break;
                }
                there = there.saturating_sub(read);
            }
        }
    }

    /// Lets one connection in, and tells whether one was there. If more wait, the next round reports
    /// the listener again.
    fn accept(&mut self, index: usize) -> bool {
        let listener = &mut self.listeners[index];
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&listener.socket, flags) {
            Ok(socket) => socket,
            // It has gone again, or another process was faster.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return false,
            Err(error) => {
                let socket = listener.counts.name();
                tracing::warn!(socket, %error, "cannot accept a connection");
                // Out of descriptors, as a rule: it stays readable, so not in a hot loop.
                let _ = self.stop.pause(AFTER_ERROR);
                return false;
            }
        };
        if listener.connections >= listener.connections_max {
            let (socket, limit) = (listener.counts.name(), listener.connections_max);
            tracing::warn!(socket, limit, "a connection above the limit was closed");
            listener.counts.discard(1);
            return true;
        }
        let token = epoll::EventData::new_u64(self.next_token);
        if let Err(error) = epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN) {
            tracing::warn!(socket = listener.counts.name(), %error, "cannot watch a connection");
            listener.counts.discard(1);
            return true;
        }
        listener.connections += 1;
        let connection = Connection { socket, listener: index, lines: Lines::default() };
        self.connections.insert(self.next_token, connection);
        self.next_token += 1;
        true
    }

    /// Reads a connection once. Returns how many bytes came; 0 if none, or if it has ended.
    fn read(&mut self, token: u64) -> usize {
        let Some(connection) = self.connections.get_mut(&token) else { return 0 };
        let counts = &self.listeners[connection.listener].counts;
        let from = connection.lines.begin(&mut self.buffer);
        let room = from..from + READ_BYTES;
        match rustix::io::read(&connection.socket, &mut self.buffer[room]) {
            Ok(0) => {
                deliver(connection.lines.finish(), counts, &mut self.outlet);
                self.close(token);
            }
            Ok(bytes) => {
                let lines = connection.lines.take(&self.buffer[..from + bytes]);
                deliver(lines, counts, &mut self.outlet);
                counts.discard(connection.lines.take_overlong());
                return bytes;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                // What the broken connection had of its last line may be half a number.
                let cut = !connection.lines.finish().is_empty();
                counts.discard(u64::from(cut));
                tracing::debug!(socket = counts.name(), %error, cut, "a connection broke");
                self.close(token);
            }
        }
        0
    }

    /// Closing the descriptor takes it out of the epoll set, too.
    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            self.listeners[connection.listener].connections -= 1;
        }
    }
}

/// Hands complete lines on, as one packet.
fn deliver(lines: &[u8], counts: &Counts, outlet: &mut Outlet) {
    if !lines.is_empty() {
        outlet.take(std::iter::once(lines));
        counts.add(1, lines.len() as u64);
    }
}

/// Pause after an error.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Placeholder in a list that the kernel fills.
const NONE: epoll::EventData = epoll::EventData::new_u64(STOP);
