//! A proxy before several statsd servers: each key goes to one of them, by consistent hashing.
//!
//! ```text
//!            ┌► node 1 ◄─┐
//!  packets ──┼► node 2 ◄─┤ health: is "up" in the answer of its management port?
//!            └► node 3 ◄─┘ no ► its keys go to the others; yes again ► back to it
//! ```
//!
//! The key is the text of a line before its first `:`, so tags do not count. Placement is that of
//! etsy's proxy ([`Ring`]). Lines of one packet that belong to one node stay one packet.
//!
//! Every line is accounted for: *lines = sent + failed + dropped*. `failed` are lines in datagrams
//! that the kernel did not take or that came back because nobody listened; `dropped` are those that
//! came while no node was up. What is lost on the way to a node that is dying elsewhere nobody can
//! know; a refused datagram has the node checked at once.

mod health;
mod ring;

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use self::health::Checks;
pub use self::ring::Ring;
use crate::{
    backends::Status,
    intake::{MakeTap, Tap},
    settings,
};

/// Most bytes of one datagram: what UDP can carry over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Routes packets. Dropping it ends the health checks.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    checker: Option<JoinHandle<()>>,
    status: Status,
}

/// A proxy cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// There is nobody to send to.
    #[error("the proxy has no nodes: give it some under `nodes`")]
    NoNodes,
    /// A node's name has no address.
    #[error("cannot find the proxy's node {node}")]
    Node {
        /// The node, as `host:port`.
        node: String,
        /// Why not.
        source: io::Error,
    },
    /// The system is short of something.
    #[error("the proxy cannot start")]
    Start(#[source] io::Error),
}

#[derive(Debug)]
struct Shared {
    nodes: Vec<Node>,
    /// The nodes that are up.
    ring: RwLock<Arc<Ring>>,
    /// Held by whoever makes another ring.
    turn: Mutex<()>,
    counts: Counts,
    checks: Checks,
    interval: Duration,
}

#[derive(Debug)]
struct Node {
    name: String,
    address: SocketAddr,
    admin: (String, u16),
    up: AtomicBool,
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    lines: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    ring_changes: AtomicU64,
}

impl Proxy {
    /// Looks the nodes up, believes all of them to be up as etsy's proxy does, and begins to check.
    ///
    /// # Errors
    ///
    /// There are no nodes, a name has no address, or a thread or socket cannot be had.
    pub fn start(settings: &settings::Proxy) -> Result<Self, ProxyError> {
        if settings.nodes.is_empty() {
            return Err(ProxyError::NoNodes);
        }
        let nodes = settings.nodes.iter().map(Node::new).collect::<Result<Vec<_>, _>>()?;
        let ring = Ring::new(nodes.iter().enumerate().map(|(at, node)| (at, node.name.as_str())));
        let shared = Arc::new(Shared {
            nodes,
            ring: RwLock::new(Arc::new(ring)),
            turn: Mutex::default(),
            counts: Counts::default(),
            checks: Checks::default(),
            interval: settings.check_interval.max(Duration::from_millis(10)),
        });
        let checked = Arc::clone(&shared);
        let checker = std::thread::Builder::new()
            .name("proxy-health".into())
            .spawn(move || health::run(&checked))
            .map_err(ProxyError::Start)?;
        Ok(Self { shared, checker: Some(checker), status: Status::default() })
    }

    /// What makes the [`Tap`] that routes a reader's packets.
    ///
    /// # Errors
    ///
    /// A socket for a node cannot be had.
    pub fn taps(&self) -> Result<MakeTap, ProxyError> {
        // Tried once here, where somebody can be told.
        Route::new(&self.shared).map_err(ProxyError::Start)?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(move || match Route::new(&shared) {
            Ok(route) => Box::new(route),
            Err(error) => {
                tracing::error!(%error, "a reader has no sockets for the proxy's nodes");
                Box::new(Lost(Arc::clone(&shared)))
            }
        }))
    }

    /// The nodes that are up, in the ring's order: what `status` shows.
    #[must_use]
    pub fn nodes_up(&self) -> Vec<String> {
        let ring = self.shared.ring();
        ring.nodes().map(|node| self.shared.nodes[node].name.clone()).collect()
    }

    /// Its account: `lines`, `sent`, `failed`, `dropped`, `nodes_up`, `ring_changes`.
    pub fn status(&self) -> Status {
        let counts = &self.shared.counts;
        for (name, count) in [
            ("lines", &counts.lines),
            ("sent", &counts.sent),
            ("failed", &counts.failed),
            ("dropped", &counts.dropped),
            ("ring_changes", &counts.ring_changes),
        ] {
            self.status.set(name, count.load(Relaxed) as f64);
        }
        self.status.set("nodes_up", self.shared.ring().nodes().count() as f64);
        self.status.clone()
    }

    /// Lines sent to each node since the start.
    #[must_use]
    pub fn sent_by_node(&self) -> Vec<(String, u64)> {
        let nodes = self.shared.nodes.iter();
        nodes.map(|node| (node.name.clone(), node.sent.load(Relaxed))).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.checks.stop();
        if let Some(checker) = self.checker.take() {
            // What went wrong in it was logged there.
            let _ = checker.join();
        }
    }
}

impl Node {
    fn new(settings: &settings::ProxyNode) -> Result<Self, ProxyError> {
        let name = format!("{}:{}", settings.host, settings.port);
        let lost = |source| ProxyError::Node { node: name.clone(), source };
        let mut addresses =
            (settings.host.as_str(), settings.port).to_socket_addrs().map_err(lost)?;
        let none = || io::Error::new(io::ErrorKind::NotFound, "no address");
        let address = addresses.next().ok_or_else(|| lost(none()))?;
        Ok(Self {
            address,
            admin: (settings.host.clone(), settings.admin_port),
            up: AtomicBool::new(true),
            sent: AtomicU64::new(0),
            name,
        })
    }
}

impl Shared {
    fn ring(&self) -> Arc<Ring> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes what a check said; the ring changes when it says something new.
    fn checked(&self, node: usize, up: bool) {
        let found = &self.nodes[node];
        // Nodes are checked at the same time: a ring of before must not replace one of after.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if found.up.swap(up, Relaxed) == up {
            return;
        }
        let name = &found.name;
        match up {
            true => tracing::warn!(node = name, "adding the node to the ring"),
            false => tracing::warn!(node = name, "removing the node from the ring"),
        }
        self.counts.ring_changes.fetch_add(1, Relaxed);
        let alive = self.nodes.iter().enumerate().filter(|(_, node)| node.up.load(Relaxed));
        let ring = Ring::new(alive.map(|(at, node)| (at, node.name.as_str())));
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }
}

/// Routes the packets of one reader.
struct Route {
    shared: Arc<Shared>,
    ring: Arc<Ring>,
    lanes: Vec<Lane>,
}

/// The way to one node, and the lines of the present packet that go there.
struct Lane {
    socket: UdpSocket,
    packet: Vec<u8>,
    lines: u64,
    /// Lines in the datagram sent last, which an error may yet tell of.
    last_lines: u64,
}

impl Route {
    fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        let lanes = shared.nodes.iter().map(|node| Lane::new(node.address));
        let lanes = lanes.collect::<io::Result<_>>()?;
        Ok(Self { shared: Arc::clone(shared), ring: shared.ring(), lanes })
    }

    fn send(&mut self) {
        for (lane, node) in self.lanes.iter_mut().zip(&self.shared.nodes) {
            if !lane.packet.is_empty() {
                lane.send(node, &self.shared);
            }
        }
    }
}

impl Tap for Route {
    fn packet(&mut self, bytes: &[u8]) {
        let mut dropped = 0;
        let mut count = 0;
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            count += 1;
            let key = line.split(|byte| *byte == b':').next().unwrap_or_default();
            match self.ring.node(key).and_then(|node| self.lanes.get_mut(node)) {
                Some(lane) => lane.add(line),
                None => dropped += 1,
            }
        }
        self.shared.counts.lines.fetch_add(count, Relaxed);
        if dropped > 0 {
            self.shared.counts.dropped.fetch_add(dropped, Relaxed);
            self.shared.checks.say_none_is_up();
        }
        self.send();
    }

    fn end_of_batch(&mut self) {
        self.ring = self.shared.ring();
    }
}

impl Lane {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let local = match address.is_ipv6() {
            true => SocketAddr::from(([0; 16], 0)),
            false => SocketAddr::from(([0; 4], 0)),
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, packet: Vec::new(), lines: 0, last_lines: 0 })
    }

    fn add(&mut self, line: &[u8]) {
        if !self.packet.is_empty() {
            self.packet.push(b'\n');
        }
        self.packet.extend_from_slice(line);
        self.lines += 1;
    }

    fn send(&mut self, node: &Node, shared: &Shared) {
        let lines = std::mem::take(&mut self.lines);
        let counts = &shared.counts;
        // A stream's batch may be larger than a datagram can be.
        let mut result = match self.packet.len() <= DATAGRAM_BYTES_MAX {
            true => self.socket.send(&self.packet).map(drop),
            false => Err(io::ErrorKind::InvalidInput.into()),
        };
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) {
            // It tells of the datagram before: that one came back, this one was not sent yet.
            let back = std::mem::take(&mut self.last_lines);
            counts.sent.fetch_sub(back, Relaxed);
            node.sent.fetch_sub(back, Relaxed);
            counts.failed.fetch_add(back, Relaxed);
            shared.checks.hurry();
            result = self.socket.send(&self.packet).map(drop);
        }
        self.packet.clear();
        match result {
            Ok(()) => {
                counts.sent.fetch_add(lines, Relaxed);
                node.sent.fetch_add(lines, Relaxed);
                self.last_lines = lines;
            }
            Err(_) => {
                counts.failed.fetch_add(lines, Relaxed);
            }
        }
    }
}

/// A reader without sockets: all it sees is counted as failed.
struct Lost(Arc<Shared>);

impl Tap for Lost {
    fn packet(&mut self, bytes: &[u8]) {
        let lines =
            bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() as u64;
        self.0.counts.lines.fetch_add(lines, Relaxed);
        self.0.counts.failed.fetch_add(lines, Relaxed);
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
