//! The reader of one datagram socket, UDP or unix.
//!
//! ```text
//!            ┌──────────── full batch ────────────┐
//!            ▼                                    │
//!  wait ─► receive ─► lock shard, apply, unlock ──┼─ short ─► pause (busy) ──► receive
//!    ▲                                            └─ short ─► wait  (quiet)
//!    └── readable                 order to stop: refuse new packets, read what there is, end
//! ```
//!
//! Per packet there is no system call, no lock, no allocation and no clock: a batch of up to
//! [`BATCH`] costs one `recvmmsg`, one uncontended lock and one reading of the clock.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memrchr;

use super::{
    Outlet,
    accounts::Counts,
    pace::{Next, Pace},
    stop::Stop,
    sys::{Batch, Memory, refuse_packets},
};

/// Packets taken from the kernel by one call.
const BATCH: usize = 128;

/// Longest packet: as long as UDP's lengths allow. A unix socket may bring longer ones.
const PACKET_BYTES_MAX: usize = 64 << 10;

/// Reads one socket until it is told to stop.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) socket: Arc<OwnedFd>,
    /// Whether senders wait while the socket is full, as they do for unix sockets.
    pub(crate) senders_wait: bool,
    pub(crate) counts: Arc<Counts>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) outlet: Outlet,
}

impl Reader {
    /// Reads until the order to stop, and then what had arrived until then.
    pub(crate) fn run(mut self) {
        let mut batch = Batch::new(BATCH, PACKET_BYTES_MAX);
        let mut pace = self.pace();
        while !self.stop.is_ordered() {
            let read = match batch.receive(&self.socket) {
                Ok(0) => Read::default(),
                Ok(_) => self.deliver(&batch),
                Err(error) => self.tell(&error),
            };
            let full = read.packets == batch.capacity() as u64;
            let waited = match pace.after(read.packets, full, Instant::now()) {
                Next::Ask => Ok(()),
                Next::Pause(pause) => self.stop.pause(pause),
                Next::Wait => self.stop.wait_for(&self.socket),
            };
            if let Err(error) = waited {
                self.tell(&error);
            }
        }
        self.drain(&mut batch);
    }

    fn pace(&self) -> Pace {
        let memory = Memory::of(&self.socket).unwrap_or_default();
        match self.senders_wait {
            true => Pace::without_pauses(Instant::now()),
            false => Pace::new(memory.buffer_bytes, Instant::now()),
        }
    }

    /// Hands a batch on.
    fn deliver(&mut self, batch: &Batch) -> Read {
        let mut read = Read::default();
        let mut cut = 0;
        self.outlet.take(batch.packets().map(|packet| {
            read.packets += 1;
            read.bytes += packet.bytes.len() as u64;
            cut += u64::from(packet.cut);
            if packet.cut { complete_lines(packet.bytes) } else { packet.bytes }
        }));
        self.counts.add(read.packets, read.bytes);
        self.counts.discard(cut);
        read
    }

    /// Takes in what has arrived until now; no more is let in, so this ends.
    fn drain(&mut self, batch: &mut Batch) {
        let refused = match self.senders_wait {
            true => rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read)
                .map_err(io::Error::from),
            false => refuse_packets(&self.socket),
        };
        if let Err(error) = refused {
            // Then packets keep coming, and the deadline alone ends this.
            tracing::warn!(socket = self.counts.name(), %error, "cannot refuse packets");
        }
        while !self.stop.is_overdue() {
            match batch.receive(&self.socket) {
                Ok(0) => return,
                Ok(_) => drop(self.deliver(batch)),
                Err(error) => drop(self.tell(&error)),
            }
        }
    }

    /// A socket error concerns one packet at most, so reading goes on; but not in a hot loop.
    fn tell(&self, error: &io::Error) -> Read {
        tracing::warn!(socket = self.counts.name(), %error, "cannot receive");
        let _ = self.stop.pause(AFTER_ERROR);
        Read::default()
    }
}

/// Pause after an error.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// What a batch held.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    packets: u64,
    bytes: u64,
}

/// What of a packet that was cut can be trusted: up to its last newline.
fn complete_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..memrchr(b'\n', bytes).unwrap_or_default()]
}

#[test]
fn of_a_cut_packet_the_last_line_is_not_used() {
    assert_eq!(complete_lines(b"a:1|c\nb:2|c\nc:3"), b"a:1|c\nb:2|c");
    assert_eq!(complete_lines(b"a:1"), b"");
}
