//! Sockets, and the threads that read them.
//!
//! A reader thread owns one datagram socket, or all stream sockets, and one [`Outlet`], which as a
//! rule leads to a [`SharedShard`]. Its loop: receive a batch, lock the
//! shard, give it each packet ([`Shard::apply_packet`](crate::aggregate::Shard::apply_packet)),
//! unlock. The lock is free but for the few instructions of a swap, and never held while waiting for
//! the network; so nothing that is calculated elsewhere makes the kernel's buffers fill.
//!
//! What arrived and what was lost is kept per socket: *sent = delivered + socket drops + backlog
//! drops + unread* ([`crate::ledger`]). In the end ([`Intake::stop`]) sockets refuse new packets and
//! are read until they are empty, so that *unread* is 0 unless time ran out.

mod accounts;
pub mod advice;
mod datagram;
mod lines;
mod open;
mod pace;
mod stop;
mod stream;
mod sys;

use std::{
    fmt,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

pub use self::open::OpenError;
use self::{
    accounts::{Accounts, Counts},
    open::{Opened, SocketFile},
    stop::Stop,
};
use crate::{
    aggregate::SharedShard,
    ledger::{Account, Ledger},
    settings::Listen,
};

/// Sees raw packets before they are parsed: a repeater, a capture. One per reader thread.
///
/// It runs on the receive path, so it may not block; what it cannot take it drops and counts.
pub trait Tap: Send {
    /// One packet as it came from the socket.
    fn packet(&mut self, bytes: &[u8]);

    /// The reader's batch is over: time to send what was collected.
    fn end_of_batch(&mut self) {}
}

/// Makes the [`Tap`] of one more reader.
pub type MakeTap = Box<dyn Fn() -> Box<dyn Tap> + Send + Sync>;

/// Where a reader's packets go: a shard, a tap, or both. A proxy has no shard.
#[derive(Default)]
pub struct Outlet {
    /// Adds up what they say. No other reader has it.
    pub shard: Option<SharedShard>,
    /// Sees them as they came.
    pub tap: Option<Box<dyn Tap>>,
}

impl Outlet {
    /// Hands on one batch.
    fn take<'b>(&mut self, packets: impl Iterator<Item = &'b [u8]>) {
        let mut shard = self.shard.as_ref().map(SharedShard::lock);
        for packet in packets {
            if let Some(tap) = &mut self.tap {
                tap.packet(packet);
            }
            if let Some(shard) = &mut shard {
                shard.apply_packet(packet);
            }
        }
        drop(shard);
        if let Some(tap) = &mut self.tap {
            tap.end_of_batch();
        }
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet")
            .field("shard", &self.shard.is_some())
            .field("tap", &self.tap.is_some())
            .finish()
    }
}

/// Open sockets, with a thread for each datagram socket and one for all streams.
///
/// Dropping it stops the threads as [`stop`](Self::stop) does, for a second at most.
#[derive(Debug)]
pub struct Intake {
    readers: Vec<JoinHandle<()>>,
    stop: Arc<Stop>,
    accounts: Arc<Accounts>,
    addresses: Vec<Option<SocketAddr>>,
    _files: Vec<SocketFile>,
}

/// How long a dropped intake reads what had arrived.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

impl Intake {
    /// Opens all sockets, then starts to read. `outlet` is asked once per reader thread.
    ///
    /// # Errors
    ///
    /// A socket could not be opened; then none is.
    pub fn open(listen: &[Listen], mut outlet: impl FnMut() -> Outlet) -> Result<Self, OpenError> {
        let stop = Arc::new(Stop::new().map_err(OpenError::Thread)?);
        let mut plan = Plan::default();
        for one in listen {
            plan.add(one, listen)?;
        }
        let counts = plan.datagrams.iter().map(|reader| Arc::clone(&reader.counts));
        let counts = counts.chain(plan.streams.iter().map(|one| Arc::clone(&one.counts)));
        let mut intake = Self {
            readers: Vec::new(),
            accounts: Arc::new(Accounts::new(counts.collect())),
            addresses: plan.addresses,
            _files: plan.files,
            stop: Arc::clone(&stop),
        };
        for Datagrams { socket, senders_wait, counts } in plan.datagrams {
            let stop = Arc::clone(&stop);
            let reader = datagram::Reader { socket, senders_wait, counts, stop, outlet: outlet() };
            intake.start(move || reader.run())?;
        }
        if !plan.streams.is_empty() {
            let reader = stream::Reader::new(plan.streams, stop, outlet());
            let reader = reader.map_err(OpenError::Thread)?;
            intake.start(move || reader.run())?;
        }
        Ok(intake)
    }

    fn start(&mut self, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let name = format!("intake-{}", self.readers.len());
        let thread = Builder::new().name(name).spawn(run).map_err(OpenError::Thread)?;
        self.readers.push(thread);
        Ok(())
    }

    /// Where each of the places asked for really listens, in their order: with its port where a free
    /// one was asked for. None for unix sockets.
    #[must_use]
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        &self.addresses
    }

    /// The account of all sockets. It can still be read after the end.
    #[must_use]
    pub fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::clone(&self.accounts) as Arc<dyn Ledger>
    }

    /// Stops: sockets refuse new packets, what they have got is read, threads end. Returns the final
    /// account, in which what could not be read within `patience` is *unread*.
    #[must_use = "it tells what was lost"]
    pub fn stop(mut self, patience: Duration) -> Account {
        self.end(patience);
        self.accounts.read()
    }

    fn end(&mut self, patience: Duration) {
        self.stop.order(Instant::now() + patience);
        for reader in self.readers.drain(..) {
            if reader.join().is_err() {
                tracing::error!("a reader of samples has ended by a panic");
            }
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.end(DROP_PATIENCE);
    }
}

/// Sockets that are open and not yet read.
#[derive(Debug, Default)]
struct Plan {
    datagrams: Vec<Datagrams>,
    streams: Vec<stream::Listener>,
    addresses: Vec<Option<SocketAddr>>,
    files: Vec<SocketFile>,
}

#[derive(Debug)]
struct Datagrams {
    socket: Arc<OwnedFd>,
    senders_wait: bool,
    counts: Arc<Counts>,
}

impl Plan {
    fn add(&mut self, one: &Listen, all: &[Listen]) -> Result<(), OpenError> {
        match one {
            Listen::Udp { address, readers, buffer_bytes } => {
                let mut address = *address;
                let v6_only = open::v6_only(address, all);
                let readers = (*readers).clamp(1, READERS_MAX);
                for reader in 0..readers {
                    let opened = open::udp(address, readers > 1, v6_only, *buffer_bytes)?;
                    // The others share the port that the first one got.
                    address = opened.address.unwrap_or(address);
                    let name = match readers {
                        1 => opened.name.clone(),
                        _ => format!("{} #{reader}", opened.name),
                    };
                    self.datagram(Opened { name, ..opened }, false);
                }
                self.addresses.push(Some(address));
            }
            Listen::Unixgram { path, mode, buffer_bytes } => {
                let opened = open::unixgram(path, *mode, *buffer_bytes)?;
                self.addresses.push(None);
                self.datagram(opened, true);
            }
            Listen::Tcp { address, connections } => {
                let opened = open::tcp(*address, open::v6_only(*address, all))?;
                self.addresses.push(opened.address);
                self.stream(opened, *connections);
            }
            Listen::Unix { path, mode, connections } => {
                let opened = open::unix_stream(path, *mode)?;
                self.addresses.push(None);
                self.stream(opened, *connections);
            }
        }
        Ok(())
    }

    fn datagram(&mut self, opened: Opened, senders_wait: bool) {
        let socket = Arc::new(opened.fd);
        self.files.extend(opened.file);
        let counts = Counts::new(opened.name, Some(Arc::clone(&socket)));
        self.datagrams.push(Datagrams { socket, senders_wait, counts });
    }

    fn stream(&mut self, opened: Opened, connections_max: usize) {
        self.files.extend(opened.file);
        let counts = Counts::new(opened.name, None);
        let socket = Arc::new(opened.fd);
        self.streams.push(stream::Listener { socket, counts, connections_max, connections: 0 });
    }
}

/// Most readers of one address: more than a machine has cores for.
const READERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
