//! The reader of one datagram socket, UDP or unix.
//!
//! ```text
//!            ┌──────────── full batch ────────────┐
//!            ▼                                    │
//!  wait ─► receive ─► lock shard, apply, unlock ──┼─ short ─► pause (busy) ──► receive
//!    ▲                                            └─ short ─► wait  (quiet)
//!    └── readable                 stop signal: refuse new packets, drain the socket, exit
//!                                 halt signal: leave the rest in the socket, return the reader
//! ```
//!
//! No system call, lock, allocation or clock read is needed per packet: a batch of up to [`BATCH`]
//! packets costs one `recvmmsg`, one uncontended lock and one clock read.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memrchr;

use super::{
    PacketHandlers,
    batching::{BatchPacer, ReadDecision},
    senders::SenderFilter,
    socket_counts::SocketCounts,
    stop_signal::StopSignal,
    sys::{PacketBatch, ReceivedPacket, SocketMemory, refuse_packets},
};

/// Maximum number of packets received by one system call.
const BATCH: usize = 128;

/// Maximum size of a packet in bytes; no UDP packet is larger. Longer packets from unix sockets are
/// truncated.
const PACKET_BYTES_MAX: usize = 64 << 10;

/// The reader of one datagram socket, which runs until the stop signal.
#[derive(Debug)]
pub(crate) struct DatagramReader {
    pub(crate) socket: Arc<OwnedFd>,
    /// Whether the service manager has the socket, too, and passes it to the next process.
    pub(crate) is_managed: bool,
    /// Whether senders block while the socket is full, as with unix sockets.
    pub(crate) senders_block: bool,
    /// The permitted senders; `None` if all are.
    pub(crate) senders: Option<SenderFilter>,
    pub(crate) counts: Arc<SocketCounts>,
    pub(crate) stop: Arc<StopSignal>,
    pub(crate) handlers: PacketHandlers,
}

impl DatagramReader {
    /// Reads until the stop signal, then drains the socket. After a signal to halt, returns the
    /// reader instead, which can continue.
    pub(crate) fn run(mut self) -> Option<Self> {
        let mut batch = PacketBatch::new(BATCH, PACKET_BYTES_MAX);
        if self.senders.is_some() {
            batch = batch.with_senders();
        }
        let mut pacer = self.pacer();
        while !self.stop.is_requested() {
            let read = match batch.receive(&self.socket) {
                Ok(0) => BatchCounts::default(),
                Ok(_) => self.deliver(&batch),
                Err(error) => self.report_error(&error),
            };
            let arrived = read.packets + read.denied;
            let full = arrived == batch.capacity() as u64;
            let waited = match pacer.decide(arrived, full, Instant::now()) {
                ReadDecision::ReadNow => Ok(()),
                ReadDecision::Pause(pause) => self.stop.pause(pause),
                ReadDecision::Wait => self.stop.wait_for(&self.socket),
            };
            if let Err(error) = waited {
                self.report_error(&error);
            }
        }
        if self.stop.is_halted() {
            return Some(self);
        }
        // The packets of a managed socket wait for the next process.
        if !self.is_managed {
            self.drain(&mut batch);
        }
        None
    }

    fn pacer(&self) -> BatchPacer {
        let memory = SocketMemory::query(&self.socket).unwrap_or_default();
        if self.senders_block {
            BatchPacer::without_pauses(Instant::now())
        } else {
            BatchPacer::new(memory.buffer_bytes, Instant::now())
        }
    }

    /// Passes a batch to the handlers, and counts its packets and bytes.
    fn deliver(&mut self, batch: &PacketBatch) -> BatchCounts {
        let mut read = BatchCounts::default();
        let mut truncated = 0;
        let Self { handlers, senders, .. } = self;
        let is_permitted = |packet: &ReceivedPacket<'_>| {
            senders.as_mut().is_none_or(|senders| senders.permits(packet.sender))
        };
        handlers.handle_batch(batch.packets().filter(is_permitted).map(|packet| {
            read.packets += 1;
            read.bytes += packet.bytes.len() as u64;
            truncated += u64::from(packet.truncated);
            if packet.truncated { complete_lines(packet.bytes) } else { packet.bytes }
        }));
        self.counts.add(read.packets, read.bytes);
        self.counts.discard(truncated);
        if let Some(senders) = &mut self.senders {
            read.denied = senders.report(&self.counts);
        }
        read
    }

    /// Reads the packets that have arrived so far. New packets are refused, so the loop terminates.
    fn drain(&mut self, batch: &mut PacketBatch) {
        let refused = if self.senders_block {
            rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read)
                .map_err(io::Error::from)
        } else {
            refuse_packets(&self.socket)
        };
        if let Err(error) = refused {
            // New packets may keep arriving; then only the deadline terminates the loop.
            tracing::warn!(socket = self.counts.name(), %error, "cannot refuse packets");
        }
        while !self.stop.is_overdue() {
            match batch.receive(&self.socket) {
                Ok(0) => return,
                Ok(_) => drop(self.deliver(batch)),
                Err(error) => drop(self.report_error(&error)),
            }
        }
    }

    /// Logs an error and pauses. A socket error affects at most one packet, so reading continues,
    /// but not in a busy loop.
    fn report_error(&self, error: &io::Error) -> BatchCounts {
        tracing::warn!(socket = self.counts.name(), %error, "cannot receive packets");
        let _ = self.stop.pause(ERROR_PAUSE);
        BatchCounts::default()
    }
}

/// Pause after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The size of a batch, in packets and in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct BatchCounts {
    packets: u64,
    bytes: u64,
    /// Packets of senders that are not permitted, which are not among `packets`.
    denied: u64,
}

/// Returns the complete lines of a truncated packet: everything up to its last newline.
fn complete_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..memrchr(b'\n', bytes).unwrap_or_default()]
}

#[test]
fn truncated_datagram_drops_last_line() {
    assert_eq!(complete_lines(b"a:1|c\nb:2|c\nc:3"), b"a:1|c\nb:2|c");
    assert_eq!(complete_lines(b"a:1"), b"");
}
