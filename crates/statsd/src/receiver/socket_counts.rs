//! Packets received and lost per socket, counted by its reader and by the kernel.
//!
//! Readers update their counts once per batch, so they cost nothing per packet. Reading the
//! [`LossAccount`] makes the system calls.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::sys::SocketMemory;
use crate::ledger::{LossAccount, LossLedger, SocketAccount};

/// The counts of one socket, shared by its reader and the ledger.
#[derive(Debug)]
pub(crate) struct SocketCounts {
    name: String,
    /// The socket, if it is a datagram socket, at which the kernel may drop packets.
    socket: Option<Arc<OwnedFd>>,
    packets: AtomicU64,
    bytes: AtomicU64,
    discarded: AtomicU64,
    denied: AtomicU64,
    failed_handshakes: AtomicU64,
    kernel: Mutex<KernelCounts>,
}

/// The last values read from the kernel.
#[derive(Debug, Default)]
struct KernelCounts {
    memory: SocketMemory,
    /// Drops so far; the kernel's own counter wraps at 2^32.
    drops_total: u64,
}

impl SocketCounts {
    /// Number of totals that another process continues.
    pub(crate) const TOTALS: usize = 5;

    /// Creates the counts of a socket that is named `name` in logs. `socket` is its descriptor if
    /// it is a datagram socket.
    pub(crate) fn new(name: String, socket: Option<Arc<OwnedFd>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            socket,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            kernel: Mutex::default(),
        })
    }

    /// Returns the socket's name in logs and accounts.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Adds received packets. Only the socket's reader calls this.
    pub(crate) fn add(&self, packets: u64, bytes: u64) {
        // There is only one writer, so no atomic read-modify-write is needed.
        self.packets.store(self.packets.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Adds received packets, for sockets with several readers.
    pub(crate) fn add_shared(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds items that the reader itself discarded.
    pub(crate) fn discard(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.discarded.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds packets or connections of senders that are not permitted.
    pub(crate) fn deny(&self, count: u64) {
        self.denied.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds a connection whose TLS handshake or token failed.
    pub(crate) fn fail_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns packets, bytes, discarded items, denied items and failed handshakes so far, for
    /// another process.
    pub(crate) fn totals(&self) -> [u64; Self::TOTALS] {
        self.all_totals().map(|count| count.load(Ordering::Relaxed))
    }

    /// Continues with the [`totals`](Self::totals) of another process. The kernel's drops are
    /// counted by the socket itself. Only valid while no reader runs.
    pub(crate) fn restore(&self, totals: [u64; Self::TOTALS]) {
        for (count, total) in self.all_totals().into_iter().zip(totals) {
            count.store(total, Ordering::Relaxed);
        }
    }

    fn all_totals(&self) -> [&AtomicU64; Self::TOTALS] {
        let Self { packets, bytes, discarded, denied, failed_handshakes, .. } = self;
        [packets, bytes, discarded, denied, failed_handshakes]
    }

    /// Queries the kernel's counters, adds new drops to the total, and returns all counts.
    fn read(&self) -> SocketAccount {
        let mut kernel = self.kernel.lock();
        if let Some(memory) =
            self.socket.as_ref().and_then(|socket| SocketMemory::query(socket).ok())
        {
            kernel.drops_total += u64::from(memory.drops.wrapping_sub(kernel.memory.drops));
            kernel.memory = memory;
        }
        SocketAccount {
            name: self.name.clone(),
            packets_total: self.packets.load(Ordering::Relaxed),
            bytes_total: self.bytes.load(Ordering::Relaxed),
            drops_total: kernel.drops_total,
            discarded_total: self.discarded.load(Ordering::Relaxed),
            denied_total: self.denied.load(Ordering::Relaxed),
            failed_handshakes_total: self.failed_handshakes.load(Ordering::Relaxed),
            unread_bytes: kernel.memory.unread_bytes.into(),
            // The kernel doubles the requested size to include its own overhead.
            buffer_bytes: u64::from(kernel.memory.buffer_bytes) / 2,
        }
    }
}

/// The [`LossLedger`] of all sockets and of the host's backlog drops.
#[derive(Debug)]
pub(crate) struct SocketLedger {
    sockets: Vec<Arc<SocketCounts>>,
    /// Backlog drops of the host before the server started.
    backlog_before: AtomicU64,
}

impl SocketLedger {
    /// Creates a ledger of `sockets`. Backlog drops are counted from now on.
    pub(crate) fn new(sockets: Vec<Arc<SocketCounts>>) -> Self {
        Self { sockets, backlog_before: backlog_drops().into() }
    }

    /// Returns the host's backlog drops before the server started.
    pub(crate) fn backlog_before(&self) -> u64 {
        self.backlog_before.load(Ordering::Relaxed)
    }

    /// Continues to count backlog drops from a start in another process on the same host.
    pub(crate) fn set_backlog_before(&self, drops: u64) {
        self.backlog_before.store(drops, Ordering::Relaxed);
    }
}

impl LossLedger for SocketLedger {
    fn read(&self) -> LossAccount {
        LossAccount {
            sockets: self.sockets.iter().map(|socket| socket.read()).collect(),
            backlog_drops_total: backlog_drops().saturating_sub(self.backlog_before()),
        }
    }
}

/// Returns the number of packets dropped since boot because a processor's receive queue was full; 0
/// if `/proc` is unreadable.
fn backlog_drops() -> u64 {
    fs::read_to_string("/proc/self/net/softnet_stat").map_or(0, |table| parse_softnet(&table))
}

/// Sums the drops in `softnet_stat`: one line per processor, hexadecimal; the second column is
/// `dropped` (`net/core/net-procfs.c`).
fn parse_softnet(table: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok();
    table.lines().filter_map(dropped).sum()
}

#[test]
fn softnet_rows_add_up() {
    let table = "0017f1ec 0000000a 00000006 00000000\n001b0d6a 00000101 00000001 00000000\n\n";
    assert_eq!(parse_softnet(table), 0x10b);
    assert_eq!(parse_softnet("no table"), 0);
}
