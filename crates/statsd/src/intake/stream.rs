//! The reader of all stream sockets, TCP and unix: one thread, one epoll set, many connections.
//!
//! Each connection that is readable is read once per round, so none starves the others. Complete
//! lines go on as one packet; what is left of the last one waits in the connection
//! ([`Lines`]). A connection that is idle costs a few hundred bytes.

use std::{collections::HashMap, io, os::fd::OwnedFd, sync::Arc};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{SocketFlags, accept_with},
};

use super::{Outlet, accounts::Counts, lines::Lines, stop::Stop};

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
            if let Err(error) = self.round(None) {
                tracing::warn!(%error, "cannot wait for connections");
                let _ = self.stop.pause(std::time::Duration::from_millis(100));
            }
        }
        self.listeners.iter().for_each(|listener| {
            let _ = epoll::delete(&self.epoll, &listener.socket);
        });
        let _ = epoll::delete(&self.epoll, self.stop.signal());
        while !self.stop.is_overdue() && matches!(self.round(Some(&NOW)), Ok(1..)) {}
    }

    /// Serves what is ready; tells how much was.
    fn round(&mut self, patience: Option<&Timespec>) -> io::Result<usize> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NONE }; 64];
        let ready = match epoll::wait(&self.epoll, &mut events, patience) {
            Ok(ready) => ready,
            Err(Errno::INTR) => return Ok(1),
            Err(error) => return Err(error.into()),
        };
        for event in &events[..ready] {
            match event.data.u64() {
                STOP => {}
                listener if listener < self.listeners.len() as u64 => {
                    self.accept(listener as usize);
                }
                token => self.read(token),
            }
        }
        Ok(ready)
    }

    /// Lets one connection in. If more wait, the next round reports the listener again.
    fn accept(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&listener.socket, flags) {
            Ok(socket) => socket,
            // It has gone again, or another process was faster.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return,
            Err(error) => {
                let socket = listener.counts.name();
                tracing::warn!(socket, %error, "cannot accept a connection");
                // Out of descriptors, as a rule: it stays readable, so not in a hot loop.
                let _ = self.stop.pause(std::time::Duration::from_millis(100));
                return;
            }
        };
        if listener.connections >= listener.connections_max {
            let (socket, limit) = (listener.counts.name(), listener.connections_max);
            tracing::warn!(socket, limit, "a connection above the limit was closed");
            listener.counts.discard(1);
            return;
        }
        let token = epoll::EventData::new_u64(self.next_token);
        if let Err(error) = epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN) {
            tracing::warn!(socket = listener.counts.name(), %error, "cannot watch a connection");
            listener.counts.discard(1);
            return;
        }
        listener.connections += 1;
        let connection = Connection { socket, listener: index, lines: Lines::default() };
        self.connections.insert(self.next_token, connection);
        self.next_token += 1;
    }

    /// Reads a connection once.
    fn read(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
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

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NONE: epoll::EventData = epoll::EventData::new_u64(STOP);
