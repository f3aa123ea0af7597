//! [`CancelPeers`]: the poolers that share the address of this one, and CancelRequests between
//! them.
//!
//! A load balancer may send a CancelRequest to a pooler that does not have the client. If no worker
//! knows the key, the request is forwarded to all peers:
//!
//! ```text
//! length  80877102  prefix (16 bytes)  process id  secret
//!                   └ its first 4 bytes are the process id of the forwarded request
//! ```
//!
//! Only peers may send such a request, and it is never forwarded again. The worker that has found
//! the key to be unknown opens the connections. They do not block, and each address has a limit, so
//! an address that does not respond affects no other one, and unknown keys cause limited work.
//!
//! Host names are resolved regularly. Each lookup has a thread, which may take half a minute if a
//! name server does not respond. This module neither routes requests inside of the process nor
//! hands them to a process that is being taken over.

mod table;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use howdah_net::{Dialer, Stream};
use howdah_pool_config::Config;
use howdah_wire::startup::{self, CancelKey};
use parking_lot::RwLock;

use self::table::{PeerTable, TableBuilder};

/// The bytes before the key in a forwarded CancelRequest. As a process id they are negative, so no
/// pooler issues a key that starts with them.
const FORWARD_PREFIX: [u8; 16] = [
    0x84, 0xbc, 0x63, 0xc4, 0x13, 0xf1, 0xa1, 0x52, 0x4e, 0x34, 0x79, 0x0f, 0x0b, 0x95, 0xa4, 0xa6,
];

/// Maximum number of requests in flight to one address.
const REQUESTS_MAX: u32 = 8;

/// Time after which a peer that has neither accepted a request nor closed the connection is
/// considered unreachable.
pub(super) const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between checks for changed settings and due lookups.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same while a lookup is in progress.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(20);

/// A function that resolves a host and port.
pub(super) type LookupFn = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// The addresses that this process listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnSockets {
    pub(super) tcp: Vec<SocketAddr>,
    pub(super) unix: Vec<PathBuf>,
}

/// The peers of this process, with their current addresses.
#[derive(Debug, Default)]
pub(super) struct CancelPeers {
    table: RwLock<Arc<PeerTable>>,
    counts: Arc<ForwardCounts>,
}

/// Counts of requests since the start of the process.
#[derive(Debug, Default)]
struct ForwardCounts {
    sent: AtomicU64,
    received: AtomicU64,
    dropped: AtomicU64,
}

/// The peers and the counts of requests between them and this process.
#[derive(Clone, Debug, Default)]
pub struct CancelPeersReport {
    /// All configured peers, including this process if it is among them.
    pub peers: Vec<CancelPeerReport>,
    /// Number of requests sent to peers, counted once for each address.
    pub sent: u64,
    /// Number of requests received from peers.
    pub received: u64,
    /// Number of requests that could not be sent to an address, because it was not reachable or had
    /// too many requests in flight, or because no address was known.
    pub dropped: u64,
}

/// A configured peer.
#[derive(Clone, Debug)]
pub struct CancelPeerReport {
    /// The number of the peer.
    pub number: u16,
    /// Host name or address, or the directory of a unix socket.
    pub host: String,
    /// The port of the peer.
    pub port: u16,
    /// Maximum number of connections to one address of the peer.
    pub connections_max: u32,
    /// Number of connections that are being opened to the peer.
    pub connecting: u32,
    /// Number of requests sent over connections that the peer has not closed yet.
    pub sent: u32,
}

impl CancelPeers {
    /// Follows the settings and the addresses of host names until `stop` is closed.
    pub(super) fn watch(
        &self,
        stop: &Receiver<()>,
        settings: impl Fn() -> (Arc<Config>, OwnSockets),
        lookup: &LookupFn,
    ) {
        let mut builder = TableBuilder::default();
        loop {
            let (config, own) = settings();
            let before = Arc::clone(&self.table.read());
            if let Some(table) = builder.update(&config, own, &before, lookup) {
                *self.table.write() = Arc::new(table);
            }
            let interval = if builder.is_waiting() { LOOKUP_INTERVAL } else { CHECK_INTERVAL };
            if stop.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Whether an unknown key may be known to a peer.
    pub(super) fn is_empty(&self) -> bool {
        !self.table.read().has_peers
    }

    /// Returns a request for each address of the peers, and counts those that are dropped.
    pub(super) fn requests(&self, key: &CancelKey) -> Vec<ForwardRequest> {
        let table = Arc::clone(&self.table.read());
        let mut targets = table.targets().peekable();
        let packet = packet(key).filter(|_| targets.peek().is_some());
        let Some(packet) = packet.map(Arc::<[u8]>::from) else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        };
        let mut requests = Vec::new();
        for target in targets {
            let counts = Arc::clone(&self.counts);
            match ForwardRequest::reserve(target, counts, Arc::clone(&packet)) {
                Some(request) => requests.push(request),
                None => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(peer = %target.address, "too many cancel requests in flight");
                }
            }
        }
        requests
    }

    /// Whether a connection is from a peer, which may send forwarded requests: from one of the
    /// peers' IP addresses, or over a unix socket from a process of the same user or of root. A
    /// proxy's connection never is, whatever address it reports.
    pub(super) fn is_peer(&self, stream: &Stream) -> bool {
        let table = self.table.read();
        if stream.proxied_address().is_some() {
            false
        } else if stream.is_unix() {
            let own = rustix::process::geteuid().as_raw();
            table.has_unix && stream.peer_uid().is_some_and(|uid| uid == own || uid == 0)
        } else {
            let from = stream.peer_address().map(|address| address.ip().to_canonical());
            from.is_some_and(|from| table.sources.contains(&from))
        }
    }

    /// Counts a request from a peer.
    pub(super) fn count_received(&self) {
        self.counts.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the peers, with the numbers of requests in flight.
    pub(super) fn report(&self) -> CancelPeersReport {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let ForwardCounts { sent, received, dropped } = &*self.counts;
        CancelPeersReport {
            peers: self.table.read().report(),
            sent: count(sent),
            received: count(received),
            dropped: count(dropped),
        }
    }
}

/// Returns the packet that forwards a key; `None` if the key is too long.
fn packet(key: &CancelKey) -> Option<Vec<u8>> {
    let (process_id, rest) = FORWARD_PREFIX.split_first_chunk()?;
    let secret = [rest, &key.process_id().to_be_bytes(), key.secret()].concat();
    let key = CancelKey::new(i32::from_be_bytes(*process_id), &secret)?;
    let mut packet = Vec::new();
    startup::cancel_request(&mut packet, &key);
    Some(packet)
}

/// Returns the key that a forwarded request contains; `None` if the request is not a forwarded one.
pub(super) fn forwarded_key(key: &CancelKey) -> Option<CancelKey> {
    let (process_id, rest) = FORWARD_PREFIX.split_first_chunk()?;
    if key.process_id() != i32::from_be_bytes(*process_id) {
        return None;
    }
    let (process_id, secret) = key.secret().strip_prefix(rest)?.split_first_chunk()?;
    CancelKey::new(i32::from_be_bytes(*process_id), secret)
}

/// Whether the bytes of a packet are a forwarded request.
pub(super) fn is_forwarded(packet: &[u8]) -> bool {
    packet.get(8..).is_some_and(|key| key.starts_with(&FORWARD_PREFIX))
}

/// An address of a peer.
#[derive(Debug)]
struct CancelTarget {
    address: TargetAddress,
    /// Number of connections that are being opened.
    connecting: AtomicU32,
    /// Number of requests sent over connections that are still open.
    sent: AtomicU32,
    /// Whether the last request failed, which is logged once.
    has_failed: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TargetAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl TargetAddress {
    /// Returns the IP address from which the peer's requests come.
    fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }
}

impl std::fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl CancelTarget {
    fn new(address: TargetAddress) -> Self {
        let (connecting, sent) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { address, connecting, sent, has_failed: AtomicBool::new(false) }
    }
}

/// A request in flight to one address of a peer.
#[derive(Debug)]
pub(super) struct ForwardRequest {
    target: Arc<CancelTarget>,
    counts: Arc<ForwardCounts>,
    packet: Arc<[u8]>,
    is_sent: bool,
}

impl ForwardRequest {
    /// Reserves a connection to the address; `None` if too many requests are in flight.
    fn reserve(
        target: &Arc<CancelTarget>,
        counts: Arc<ForwardCounts>,
        packet: Arc<[u8]>,
    ) -> Option<Self> {
        let target = Arc::clone(target);
        let connecting = target.connecting.fetch_add(1, Ordering::Relaxed);
        if connecting + target.sent.load(Ordering::Relaxed) >= REQUESTS_MAX {
            target.connecting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self { target, counts, packet, is_sent: false })
    }

    /// Starts to connect. Does not block.
    ///
    /// # Errors
    ///
    /// The connection failed at once.
    pub(super) fn dial(&self) -> Result<Stream, howdah_net::DialError> {
        match &self.target.address {
            TargetAddress::Tcp(address) => Dialer::tcp_at(*address),
            TargetAddress::Unix(path) => Dialer::unix(path),
        }
        .dial()
    }

    /// Returns the bytes to send, unless they have been sent.
    pub(super) fn unsent(&self) -> Option<&[u8]> {
        (!self.is_sent).then_some(&*self.packet)
    }

    /// Records that the request has been sent.
    pub(super) fn set_sent(&mut self) {
        self.is_sent = true;
        self.target.sent.fetch_add(1, Ordering::Relaxed);
        self.target.connecting.fetch_sub(1, Ordering::Relaxed);
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        if self.target.has_failed.swap(false, Ordering::Relaxed) {
            tracing::info!(peer = %self.target.address, "cancel requests reach the peer again");
        }
    }
}

impl Drop for ForwardRequest {
    fn drop(&mut self) {
        if self.is_sent {
            self.target.sent.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.target.connecting.fetch_sub(1, Ordering::Relaxed);
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.target.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(peer = %self.target.address, "cannot forward a cancel request to the peer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_request_contains_key_and_has_reserved_prefix() {
        for bytes in [4, 32, 240] {
            let key = CancelKey::new(0x0080_0001, &[7; 240][..bytes]).unwrap();
            let packet = packet(&key).unwrap();
            assert!(is_forwarded(&packet) && packet.len() == 8 + 16 + 4 + bytes);
            assert_eq!(
                packet[..8],
                [&u32::try_from(28 + bytes).unwrap().to_be_bytes()[..], &[4, 210, 22, 46]].concat()
            );
            assert_eq!(packet[8..24], FORWARD_PREFIX);
            let Some((startup::Packet::CancelRequest(received), [])) =
                startup::Packet::split(&packet, startup::PACKET_BYTES_MAX).unwrap()
            else {
                panic!("the packet is a CancelRequest");
            };
            assert_eq!(forwarded_key(&received), Some(key.clone()));
            assert!(received.process_id() < 0);
            assert_eq!(forwarded_key(&key), None);
        }
        let long = CancelKey::new(1, &[7; 241]).unwrap();
        assert_eq!(packet(&long), None);
        let process_id = i32::from_be_bytes(*FORWARD_PREFIX.first_chunk().unwrap());
        for secret in [&FORWARD_PREFIX[4..], &[0; 40], &[&FORWARD_PREFIX[4..], &[1; 7]].concat()] {
            assert_eq!(forwarded_key(&CancelKey::new(process_id, secret).unwrap()), None);
        }
    }

    #[test]
    fn requests_to_one_address_are_limited_and_counted() {
        let target = Arc::new(CancelTarget::new(TargetAddress::Unix("/nowhere".into())));
        let counts = Arc::<ForwardCounts>::default();
        let reserve = || ForwardRequest::reserve(&target, Arc::clone(&counts), [1].into());
        let mut requests: Vec<_> = (0..REQUESTS_MAX).map(|_| reserve().unwrap()).collect();
        assert!(reserve().is_none());
        requests[0].set_sent();
        assert!(reserve().is_none(), "a request that was sent still has a connection");
        assert_eq!(requests[0].unsent(), None);
        drop(requests);
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert_eq!((count(&counts.sent), count(&counts.dropped)), (1, 7));
        assert!(reserve().is_some());
    }
}
