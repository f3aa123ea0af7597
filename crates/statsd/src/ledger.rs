//! The loss ledger: what arrived, what was lost and where.
//!
//! It holds *sent = delivered + socket drops + backlog drops + unread*. Who fills it is the intake;
//! the flush reads it once per interval, the management port whenever it is asked.

/// One socket's account. Totals count from the opening of the socket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketAccount {
    /// What a person would call it: `udp 127.0.0.1:8125`, `unixgram /run/statsd.sock`.
    pub name: String,
    /// Packets the application got.
    pub packets_total: u64,
    /// Bytes in them.
    pub bytes_total: u64,
    /// Packets the kernel dropped at this socket because its buffer was full.
    pub drops_total: u64,
    /// What the reader itself threw away: lines and ends of packets that were too long, connections
    /// above the limit, the last line of a connection that broke.
    pub discarded_total: u64,
    /// Bytes of memory that unread packets take now, the kernel's own included: up to twice
    /// [`buffer_bytes`](Self::buffer_bytes).
    pub unread_bytes: u64,
    /// The effective receive buffer, as it would be asked for: half of what the kernel accounts with.
    pub buffer_bytes: u64,
}

/// All accounts at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Every socket that packets come through; stream connections are summed by listener.
    pub sockets: Vec<SocketAccount>,
    /// Packets the host dropped before any socket saw them (`/proc/net/softnet_stat`), since the
    /// server began. The counter is the host's, so other programs' packets may be among them.
    pub backlog_drops_total: u64,
}

impl Account {
    /// Packets dropped at our sockets.
    #[must_use]
    pub fn drops_total(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.drops_total).sum()
    }
}

/// Where accounts come from. Reading may cost system calls, so it is asked for once per flush.
pub trait Ledger: Send + Sync {
    /// Reads all accounts now. What cannot be read stays at its last value.
    fn read(&self) -> Account;
}

/// A ledger without sockets: for tests, and while none is open.
impl Ledger for () {
    fn read(&self) -> Account {
        Account::default()
    }
}
