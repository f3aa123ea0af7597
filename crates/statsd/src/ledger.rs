//! The loss ledger: the numbers of packets that arrived, and of those that were lost, by location.
//!
//! The invariant is *sent = delivered + socket drops + backlog drops + unread*, where packets of
//! senders that are not permitted count as denied instead of delivered. The receiver fills the
//! ledger; the flush reads it once per interval, and the management port on request.

/// The account of one socket. Totals are since the socket was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketAccount {
    /// The socket's name: `udp 127.0.0.1:8125`, `unixgram /run/statsd.sock`.
    pub name: String,
    /// Packets delivered to the application. From a stream, the complete lines of one read are a
    /// packet.
    pub packets_total: u64,
    /// Bytes in the delivered packets.
    pub bytes_total: u64,
    /// Packets that the kernel dropped at this socket, because its buffer was full or because the
    /// server was stopping.
    pub drops_total: u64,
    /// Items discarded by the reader: overlong lines, truncated packets, rejected connections, and
    /// the last line of a broken connection.
    pub discarded_total: u64,
    /// Packets, or connections, of senders that are not in the listener's list.
    pub denied_total: u64,
    /// Connections closed because their TLS handshake or token failed or was not sent in time.
    pub failed_handshakes_total: u64,
    /// Memory currently used by unread packets, including the kernel's overhead: up to twice
    /// [`buffer_bytes`](Self::buffer_bytes).
    pub unread_bytes: u64,
    /// The effective receive buffer size as it would be configured: half of the kernel's value.
    pub buffer_bytes: u64,
}

/// The accounts of all sockets at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossAccount {
    /// All receiving sockets; stream connections are summed per listener.
    pub sockets: Vec<SocketAccount>,
    /// Packets dropped by the host before they reached a socket (`/proc/net/softnet_stat`), since
    /// the server started. The counter is per host, so it may include packets of other programs.
    pub backlog_drops_total: u64,
}

impl LossAccount {
    /// Returns the number of packets dropped at the server's sockets.
    pub fn drops_total(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.drops_total).sum()
    }

    /// Returns the number of packets and connections of senders that are not permitted.
    pub fn denied_total(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.denied_total).sum()
    }

    /// Returns the number of connections whose TLS handshake or token failed.
    pub fn failed_handshakes_total(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.failed_handshakes_total).sum()
    }
}

/// A source of [`LossAccount`]s. Reading may make system calls, so it is done once per flush and on
/// request, not for each packet.
pub trait LossLedger: Send + Sync {
    /// Reads all accounts. A socket that cannot be queried keeps its previous values.
    fn read(&self) -> LossAccount;
}

/// A ledger without sockets, for tests.
impl LossLedger for () {
    fn read(&self) -> LossAccount {
        LossAccount::default()
    }
}
