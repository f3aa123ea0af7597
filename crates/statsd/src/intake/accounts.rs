//! What each socket got and lost, counted by its reader and by the kernel.
//!
//! Readers store their counts once per batch; whoever asks for the [`Account`] pays for the system
//! calls. Costs per packet: none.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::sys::Memory;
use crate::ledger::{Account, Ledger, SocketAccount};

/// The counts of one socket, shared by its reader and the ledger.
#[derive(Debug)]
pub(crate) struct Counts {
    name: String,
    /// The socket, if it is one that the kernel drops packets at.
    socket: Option<Arc<OwnedFd>>,
    packets: AtomicU64,
    bytes: AtomicU64,
    discarded: AtomicU64,
    kernel: Mutex<Kernel>,
}

/// What the kernel said last.
#[derive(Debug, Default)]
struct Kernel {
    memory: Memory,
    /// The kernel counts modulo 2^32.
    drops_total: u64,
}

impl Counts {
    /// For `socket`, which is called `name`.
    pub(crate) fn new(name: String, socket: Option<Arc<OwnedFd>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            socket,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            kernel: Mutex::default(),
        })
    }

    /// What the socket is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Adds what was given to the shard. Called by the one reader only.
    pub(crate) fn add(&self, packets: u64, bytes: u64) {
        // One writer, so no read-modify-write that locks the bus is needed.
        self.packets.store(self.packets.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Adds what the reader itself threw away.
    pub(crate) fn discard(&self, pieces: u64) {
        if pieces == 0 {
            return;
        }
        self.discarded.fetch_add(pieces, Ordering::Relaxed);
    }

    /// All of it, now.
    fn read(&self) -> SocketAccount {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = self.socket.as_ref().and_then(|socket| Memory::of(socket).ok()) {
            kernel.drops_total += u64::from(memory.drops.wrapping_sub(kernel.memory.drops));
            kernel.memory = memory;
        }
        SocketAccount {
            name: self.name.clone(),
            packets_total: self.packets.load(Ordering::Relaxed),
            bytes_total: self.bytes.load(Ordering::Relaxed),
            drops_total: kernel.drops_total,
            discarded_total: self.discarded.load(Ordering::Relaxed),
            unread_bytes: kernel.memory.unread_bytes.into(),
            // The kernel accounts with twice what was asked for: its own memory is part of it.
            buffer_bytes: u64::from(kernel.memory.buffer_bytes) / 2,
        }
    }
}

/// The ledger of all sockets.
#[derive(Debug)]
pub(crate) struct Accounts {
    sockets: Vec<Arc<Counts>>,
    /// What the host had dropped before we began.
    backlog_before: u64,
}

impl Accounts {
    /// Over these sockets, from now on.
    pub(crate) fn new(sockets: Vec<Arc<Counts>>) -> Self {
        Self { sockets, backlog_before: backlog_drops() }
    }
}

impl Ledger for Accounts {
    fn read(&self) -> Account {
        Account {
            sockets: self.sockets.iter().map(|socket| socket.read()).collect(),
            backlog_drops_total: backlog_drops().saturating_sub(self.backlog_before),
        }
    }
}

/// Packets that the host dropped because a processor's queue of received packets was full, since it
/// was started. 0 where `/proc` does not say.
fn backlog_drops() -> u64 {
    fs::read_to_string("/proc/net/softnet_stat").map_or(0, |table| parse_softnet(&table))
}

/// One line per processor, numbers in base 16; the second is `dropped` (`net/core/net-procfs.c`).
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
