//! The receiver: sockets and the threads that read them.
//!
//! A reader thread owns one datagram socket, or all stream sockets, and its [`PacketHandlers`],
//! usually a [`SharedShard`]. It loops: receive a batch, lock the shard, apply each packet
//! ([`SampleShard::apply_packet`](crate::aggregate::SampleShard::apply_packet)), unlock. Other
//! threads hold the lock only while they swap out the values, and it is never held while waiting
//! for the network, so calculations elsewhere never cause the kernel's buffers to fill.
//!
//! Received and lost packets are counted per socket: *sent = delivered + socket drops + backlog
//! drops + unread* ([`crate::ledger`]). On [`PacketReceiver::stop`], sockets refuse new packets and
//! are drained, so that *unread* is 0 unless the timeout passes.

mod access;
pub mod advice;
mod batching;
mod datagram;
mod handshake;
mod line_buffer;
mod senders;
mod socket_counts;
mod sockets;
mod stop_signal;
mod stream;
mod sys;
mod transport;

use std::{
    fmt,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use self::{
    access::StreamAccess,
    senders::SenderFilter,
    socket_counts::{SocketCounts, SocketLedger},
    sockets::{BoundSocket, SocketFile, SocketFileSettings},
    stop_signal::StopSignal,
};
pub use self::{access::StreamAccessError, sockets::ReceiverOpenError};
use crate::{
    aggregate::SharedShard,
    ledger::{LossAccount, LossLedger},
    settings::ListenSettings,
};

/// An observer of raw packets, such as a repeater, which receives them before they are parsed. Each
/// reader thread has its own.
///
/// It runs on the receive path, so it must not block; if it cannot accept a packet, it drops and
/// counts it.
pub trait PacketObserver: Send {
    /// Called for each packet as received from the socket; a truncated packet is passed without its
    /// incomplete last line. From a stream, the complete lines of one read are a packet.
    fn packet(&mut self, bytes: &[u8]);

    /// Called after each batch of the reader.
    fn batch_finished(&mut self) {}
}

/// A function that creates the [`PacketObserver`] of one reader.
pub type ObserverFactory = Box<dyn Fn() -> Box<dyn PacketObserver> + Send + Sync>;

/// The handlers of a reader's packets: a shard, an observer, or both. A proxy has no shard.
#[derive(Default)]
pub struct PacketHandlers {
    /// Aggregates the packets. Exclusive to this reader.
    pub shard: Option<SharedShard>,
    /// Observes the raw packets.
    pub observer: Option<Box<dyn PacketObserver>>,
}

impl PacketHandlers {
    /// Passes one batch to the handlers.
    fn handle_batch<'b>(&mut self, packets: impl Iterator<Item = &'b [u8]>) {
        let mut shard = self.shard.as_ref().map(SharedShard::lock);
        for packet in packets {
            if let Some(observer) = &mut self.observer {
                observer.packet(packet);
            }
            if let Some(shard) = &mut shard {
                shard.apply_packet(packet);
            }
        }
        drop(shard);
        if let Some(observer) = &mut self.observer {
            observer.batch_finished();
        }
    }
}

impl fmt::Debug for PacketHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketHandlers")
            .field("shard", &self.shard.is_some())
            .field("observer", &self.observer.is_some())
            .finish()
    }
}

/// The running receiver, which has a thread for each datagram socket and one for all streams.
///
/// Dropping it stops the threads like [`stop`](Self::stop), with a timeout of one second.
#[derive(Debug)]
pub struct PacketReceiver {
    readers: Vec<JoinHandle<()>>,
    stop: Arc<StopSignal>,
    accounts: Arc<SocketLedger>,
    addresses: Vec<Option<SocketAddr>>,
    /// Access rules of listeners, each with the socket's name.
    access: Vec<(String, Arc<StreamAccess>)>,
    _files: Vec<SocketFile>,
}

/// Maximum time for which a dropped receiver drains its sockets.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

impl PacketReceiver {
    /// Opens all sockets and starts reading. `handlers` is called once per reader thread.
    ///
    /// # Errors
    ///
    /// A socket could not be opened, or a thread could not be started. Then no socket remains open.
    pub fn open(
        listen: &[ListenSettings],
        mut handlers: impl FnMut() -> PacketHandlers,
    ) -> Result<Self, ReceiverOpenError> {
        let stop = Arc::new(StopSignal::new().map_err(ReceiverOpenError::Reader)?);
        let mut sockets = OpenSockets::default();
        for one in listen {
            sockets.add(one, listen)?;
        }
        let counts = sockets.datagrams.iter().map(|reader| Arc::clone(&reader.counts));
        let counts = counts.chain(sockets.streams.iter().map(|one| Arc::clone(&one.counts)));
        let mut receiver = Self {
            readers: Vec::new(),
            accounts: Arc::new(SocketLedger::new(counts.collect())),
            addresses: sockets.addresses,
            access: sockets.access,
            _files: sockets.files,
            stop: Arc::clone(&stop),
        };
        for DatagramSocket { socket, senders_block, senders, counts } in sockets.datagrams {
            let stop = Arc::clone(&stop);
            let reader = datagram::DatagramReader {
                socket,
                senders_block,
                senders,
                counts,
                stop,
                handlers: handlers(),
            };
            receiver.start(move || reader.run())?;
        }
        if !sockets.streams.is_empty() {
            let needs_handshakes = sockets.streams.iter().any(|one| one.access.is_some());
            let handshakes = if needs_handshakes {
                let (thread, queue) = handshake::HandshakeThread::new(Arc::clone(&stop))
                    .map_err(ReceiverOpenError::Reader)?;
                receiver.start(move || thread.run())?;
                Some(queue)
            } else {
                None
            };
            let reader = stream::StreamReader::new(sockets.streams, handshakes, stop, handlers());
            let reader = reader.map_err(ReceiverOpenError::Reader)?;
            receiver.start(move || reader.run())?;
        }
        Ok(receiver)
    }

    fn start(&mut self, run: impl FnOnce() + Send + 'static) -> Result<(), ReceiverOpenError> {
        let name = format!("receiver-{}", self.readers.len());
        let thread = Builder::new().name(name).spawn(run).map_err(ReceiverOpenError::Reader)?;
        self.readers.push(thread);
        Ok(())
    }

    /// Returns the actual address of each configured listener, in order, with the assigned port if
    /// port 0 was configured. `None` for unix sockets.
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        &self.addresses
    }

    /// Returns the ledger of all sockets. It can still be read after the receiver has stopped.
    pub fn ledger(&self) -> Arc<dyn LossLedger> {
        Arc::clone(&self.accounts) as Arc<dyn LossLedger>
    }

    /// Reads the certificates, keys and tokens of all listeners again, for new connections. Logs
    /// files that cannot be used; their previous content stays in use.
    pub fn reload_access(&self) {
        for (socket, access) in &self.access {
            match access.reload() {
                Ok(()) => tracing::info!(socket, "certificates and tokens reloaded"),
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(socket, %error, cause, "keeping the old certificates, tokens");
                }
            }
        }
    }

    /// Stops receiving: sockets refuse new packets and are drained, and the threads exit. In the
    /// returned final account, packets that could not be read within `timeout` are *unread*.
    #[must_use = "the account contains the losses"]
    pub fn stop(mut self, timeout: Duration) -> LossAccount {
        self.stop_readers(timeout);
        self.accounts.read()
    }

    fn stop_readers(&mut self, timeout: Duration) {
        self.stop.request(Instant::now() + timeout);
        for reader in self.readers.drain(..) {
            if reader.join().is_err() {
                tracing::error!("a reader thread panicked");
            }
        }
    }
}

impl Drop for PacketReceiver {
    fn drop(&mut self) {
        self.stop_readers(DROP_TIMEOUT);
    }
}

/// Sockets that are open but have no readers yet.
#[derive(Debug, Default)]
struct OpenSockets {
    datagrams: Vec<DatagramSocket>,
    streams: Vec<stream::StreamListener>,
    addresses: Vec<Option<SocketAddr>>,
    access: Vec<(String, Arc<StreamAccess>)>,
    files: Vec<SocketFile>,
}

#[derive(Debug)]
struct DatagramSocket {
    socket: Arc<OwnedFd>,
    senders_block: bool,
    senders: Option<SenderFilter>,
    counts: Arc<SocketCounts>,
}

impl OpenSockets {
    fn add(
        &mut self,
        one: &ListenSettings,
        all: &[ListenSettings],
    ) -> Result<(), ReceiverOpenError> {
        match one {
            ListenSettings::Udp { address, readers, buffer_bytes, allow } => {
                let mut address = *address;
                let v6_only = sockets::v6_only(address, all);
                let readers = (*readers).clamp(1, READERS_MAX);
                for reader in 0..readers {
                    let opened = sockets::udp(address, readers > 1, v6_only, *buffer_bytes)?;
                    // The other readers share the port assigned to the first.
                    address = opened.address.unwrap_or(address);
                    let name = match readers {
                        1 => opened.name.clone(),
                        _ => format!("{} #{reader}", opened.name),
                    };
                    let senders = SenderFilter::new(allow);
                    self.datagram(BoundSocket { name, ..opened }, false, senders);
                }
                self.addresses.push(Some(address));
            }
            ListenSettings::Unixgram { path, mode, owner, buffer_bytes } => {
                let file = SocketFileSettings { path, mode: *mode, owner: owner.as_deref() };
                let opened = sockets::unixgram(file, *buffer_bytes)?;
                self.addresses.push(None);
                self.datagram(opened, true, None);
            }
            ListenSettings::Tcp { address, connections, allow, idle_timeout, .. } => {
                let opened = sockets::tcp(*address, sockets::v6_only(*address, all))?;
                self.addresses.push(opened.address);
                let access = StreamAccess::open(one).map_err(|source| {
                    let (socket, source) = (opened.name.clone(), Box::new(source));
                    ReceiverOpenError::Access { socket, source }
                })?;
                let rules = (SenderFilter::new(allow), access);
                self.stream(opened, *connections, *idle_timeout, rules);
            }
            ListenSettings::Unix { path, mode, owner, connections, idle_timeout } => {
                let file = SocketFileSettings { path, mode: *mode, owner: owner.as_deref() };
                let opened = sockets::unix_stream(file)?;
                self.addresses.push(None);
                self.stream(opened, *connections, *idle_timeout, (None, None));
            }
        }
        Ok(())
    }

    fn datagram(
        &mut self,
        opened: BoundSocket,
        senders_block: bool,
        senders: Option<SenderFilter>,
    ) {
        let socket = Arc::new(opened.fd);
        self.files.extend(opened.file);
        let counts = SocketCounts::new(opened.name, Some(Arc::clone(&socket)));
        self.datagrams.push(DatagramSocket { socket, senders_block, senders, counts });
    }

    fn stream(
        &mut self,
        opened: BoundSocket,
        connections_max: usize,
        idle_timeout: Duration,
        rules: (Option<SenderFilter>, Option<Arc<StreamAccess>>),
    ) {
        let (senders, access) = rules;
        self.files.extend(opened.file);
        self.access.extend(access.clone().map(|access| (opened.name.clone(), access)));
        let counts = SocketCounts::new(opened.name, None);
        let socket = Arc::new(opened.fd);
        self.streams.push(stream::StreamListener {
            socket,
            counts,
            connections_max,
            connections: 0,
            senders,
            access,
            idle_timeout,
        });
    }
}

/// Maximum number of readers per address; more than common machines have cores.
const READERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
