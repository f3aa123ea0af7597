//! The proxy: distributes keys over several statsd servers by consistent hashing.
//!
//! ```text
//!            ┌► node 1 ◄─┐
//!  packets ──┼► node 2 ◄─┤ health check: does its management port reply "up"?
//!            └► node 3 ◄─┘ no ► its keys move to other nodes until it is up again
//! ```
//!
//! The key is the text of a line before its first `:`, so tags after `|#` are ignored. Keys are
//! placed as in etsy's proxy ([`HashRing`]). Lines of a packet for the same node are sent as one
//! packet.
//!
//! Every line is accounted for: *lines = sent + failed + dropped*. `failed` counts lines in
//! datagrams that were too long, that the kernel did not accept, or that were refused because no
//! process listened, and all lines of a reader whose sockets could not be created; `dropped` counts
//! lines received while no node was up. Losses on the network to a failing node cannot be detected,
//! but soon after a refused datagram, the nodes are checked.

mod health;
mod ring;

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use self::health::CheckSchedule;
pub use self::ring::HashRing;
use crate::{
    backends::BackendStatus,
    receiver::{ObserverFactory, PacketObserver},
    settings,
};

/// Maximum size of a datagram in bytes: the limit of UDP over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The running proxy, which routes packets to nodes. Dropping it stops the health checks.
#[derive(Debug)]
pub struct StatsdProxy {
    shared: Arc<ProxyState>,
    checker: Option<JoinHandle<()>>,
    status: BackendStatus,
}

/// The reason why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// No nodes are configured.
    #[error("the proxy has no nodes: set `nodes`")]
    NoNodes,
    /// The host name of a node cannot be resolved.
    #[error("cannot resolve the proxy node {node}")]
    Node {
        /// The node, as `host:port`.
        node: String,
        /// The cause.
        source: io::Error,
    },
    /// A thread or socket cannot be created.
    #[error("cannot create a thread or socket for the proxy")]
    Start(#[source] io::Error),
}

#[derive(Debug)]
struct ProxyState {
    nodes: Vec<NodeState>,
    /// The nodes that are up.
    ring: RwLock<Arc<HashRing>>,
    /// Serialises updates of the ring.
    ring_update: Mutex<()>,
    counts: ProxyCounts,
    checks: CheckSchedule,
    interval: Duration,
}

#[derive(Debug)]
struct NodeState {
    name: String,
    address: SocketAddr,
    admin: (String, u16),
    up: AtomicBool,
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct ProxyCounts {
    lines: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    ring_changes: AtomicU64,
}

impl StatsdProxy {
    /// Resolves the nodes, assumes all of them to be up, as etsy's proxy does, and starts health
    /// checks.
    ///
    /// # Errors
    ///
    /// There are no nodes, a host name cannot be resolved, or the thread for health checks cannot
    /// be started.
    pub fn start(settings: &settings::ProxySettings) -> Result<Self, ProxyError> {
        if settings.nodes.is_empty() {
            return Err(ProxyError::NoNodes);
        }
        let nodes = settings.nodes.iter().map(NodeState::new).collect::<Result<Vec<_>, _>>()?;
        let ring =
            HashRing::new(nodes.iter().enumerate().map(|(at, node)| (at, node.name.as_str())));
        let shared = Arc::new(ProxyState {
            nodes,
            ring: RwLock::new(Arc::new(ring)),
            ring_update: Mutex::default(),
            counts: ProxyCounts::default(),
            checks: CheckSchedule::default(),
            interval: settings.check_interval.max(Duration::from_millis(10)),
        });
        let shared_by_checker = Arc::clone(&shared);
        let checker = std::thread::Builder::new()
            .name("proxy-health".into())
            .spawn(move || health::run(&shared_by_checker))
            .map_err(ProxyError::Start)?;
        Ok(Self { shared, checker: Some(checker), status: BackendStatus::default() })
    }

    /// Returns the factory for the [`PacketObserver`] that routes a reader's packets.
    ///
    /// # Errors
    ///
    /// A socket for a node cannot be created.
    pub fn observer_factory(&self) -> Result<ObserverFactory, ProxyError> {
        // Tried once here, where an error can still be returned.
        PacketRouter::new(&self.shared).map_err(ProxyError::Start)?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(move || match PacketRouter::new(&shared) {
            Ok(route) => Box::new(route),
            Err(error) => {
                tracing::error!(%error, "cannot create a reader's sockets for the proxy nodes");
                Box::new(FailingRouter(Arc::clone(&shared)))
            }
        }))
    }

    /// Returns the nodes that are up, in the order of the settings, as the management command
    /// `status` displays them.
    pub fn nodes_up(&self) -> Vec<String> {
        let ring = self.shared.ring();
        ring.nodes().map(|node| self.shared.nodes[node].name.clone()).collect()
    }

    /// Returns the status: `lines`, `sent`, `failed`, `dropped`, `nodes_up`, `ring_changes`.
    pub fn status(&self) -> BackendStatus {
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

    /// Returns the number of lines sent to each node since the start.
    pub fn sent_by_node(&self) -> Vec<(String, u64)> {
        let nodes = self.shared.nodes.iter();
        nodes.map(|node| (node.name.clone(), node.sent.load(Relaxed))).collect()
    }
}

impl Drop for StatsdProxy {
    fn drop(&mut self) {
        self.shared.checks.stop();
        if let Some(checker) = self.checker.take() {
            // A panic in the thread was already logged.
            let _ = checker.join();
        }
    }
}

impl NodeState {
    fn new(settings: &settings::ProxyNodeSettings) -> Result<Self, ProxyError> {
        let name = format!("{}:{}", settings.host, settings.port);
        let unresolved = |source| ProxyError::Node { node: name.clone(), source };
        let mut addresses =
            (settings.host.as_str(), settings.port).to_socket_addrs().map_err(unresolved)?;
        let none = || io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        let address = addresses.next().ok_or_else(|| unresolved(none()))?;
        Ok(Self {
            address,
            admin: (settings.host.clone(), settings.admin_port),
            up: AtomicBool::new(true),
            sent: AtomicU64::new(0),
            name,
        })
    }
}

impl ProxyState {
    fn ring(&self) -> Arc<HashRing> {
        Arc::clone(&self.ring.read())
    }

    /// Records the result of a health check, and rebuilds the ring if the node's state changed.
    fn record_check(&self, node: usize, up: bool) {
        let checked = &self.nodes[node];
        // Nodes are checked concurrently: an older ring must not replace a newer one.
        let _update = self.ring_update.lock();
        if checked.up.swap(up, Relaxed) == up {
            return;
        }
        let name = &checked.name;
        if up {
            tracing::warn!(node = name, "adding the node to the ring");
        } else {
            tracing::warn!(node = name, "removing the node from the ring");
        }
        self.counts.ring_changes.fetch_add(1, Relaxed);
        let alive = self.nodes.iter().enumerate().filter(|(_, node)| node.up.load(Relaxed));
        let ring = HashRing::new(alive.map(|(at, node)| (at, node.name.as_str())));
        *self.ring.write() = Arc::new(ring);
    }
}

/// The observer that routes the packets of one reader.
struct PacketRouter {
    shared: Arc<ProxyState>,
    ring: Arc<HashRing>,
    queues: Vec<NodeQueue>,
}

/// The socket of one node, and the lines of the current packet for it.
struct NodeQueue {
    socket: UdpSocket,
    packet: Vec<u8>,
    lines: u64,
    /// Lines in the last sent datagram, for which an error may still be reported.
    last_lines: u64,
}

impl PacketRouter {
    fn new(shared: &Arc<ProxyState>) -> io::Result<Self> {
        let queues = shared.nodes.iter().map(|node| NodeQueue::new(node.address));
        let queues = queues.collect::<io::Result<_>>()?;
        Ok(Self { shared: Arc::clone(shared), ring: shared.ring(), queues })
    }

    fn send(&mut self) {
        for (queue, node) in self.queues.iter_mut().zip(&self.shared.nodes) {
            if !queue.packet.is_empty() {
                queue.send(node, &self.shared);
            }
        }
    }
}

impl PacketObserver for PacketRouter {
    fn packet(&mut self, bytes: &[u8]) {
        let mut dropped = 0;
        let mut count = 0;
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            count += 1;
            let key = line.split(|byte| *byte == b':').next().unwrap_or_default();
            match self.ring.node(key).and_then(|node| self.queues.get_mut(node)) {
                Some(queue) => queue.add(line),
                None => dropped += 1,
            }
        }
        self.shared.counts.lines.fetch_add(count, Relaxed);
        if dropped > 0 {
            self.shared.counts.dropped.fetch_add(dropped, Relaxed);
            self.shared.checks.warn_all_down();
        }
        self.send();
    }

    fn batch_finished(&mut self) {
        self.ring = self.shared.ring();
    }
}

impl NodeQueue {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let local = if address.is_ipv6() {
            SocketAddr::from(([0; 16], 0))
        } else {
            SocketAddr::from(([0; 4], 0))
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

    fn send(&mut self, node: &NodeState, shared: &ProxyState) {
        let lines = std::mem::take(&mut self.lines);
        let counts = &shared.counts;
        // A batch from a stream may exceed the maximum datagram.
        let mut result = if self.packet.len() <= DATAGRAM_BYTES_MAX {
            self.socket.send(&self.packet).map(drop)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) {
            // This error reports that the previous datagram was refused. The current one has not
            // been sent yet.
            let refused = std::mem::take(&mut self.last_lines);
            counts.sent.fetch_sub(refused, Relaxed);
            node.sent.fetch_sub(refused, Relaxed);
            counts.failed.fetch_add(refused, Relaxed);
            shared.checks.request_check();
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

/// The observer of a reader without sockets: counts all lines as failed.
struct FailingRouter(Arc<ProxyState>);

impl PacketObserver for FailingRouter {
    fn packet(&mut self, bytes: &[u8]) {
        let lines =
            bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() as u64;
        self.0.counts.lines.fetch_add(lines, Relaxed);
        self.0.counts.failed.fetch_add(lines, Relaxed);
    }
}

impl fmt::Debug for PacketRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketRouter").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
