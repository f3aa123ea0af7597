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
//!
//! Sockets may come from another process ([`InheritedSockets`]) and go on to another one: readers
//! halt after a batch and leave everything else to the next process. Sockets of the service manager
//! are not drained either, because it passes them to the next process.

mod access;
pub mod advice;
mod batching;
mod datagram;
mod handshake;
mod line_buffer;
mod passed;
mod relay;
mod senders;
mod socket_counts;
mod sockets;
mod stop_signal;
mod stream;
mod sys;
#[cfg(test)]
pub(crate) mod testing;
mod transport;

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use self::{
    access::StreamAccess,
    datagram::DatagramReader,
    handshake::HandshakeThread,
    passed::configured_label,
    senders::SenderFilter,
    socket_counts::SocketLedger,
    sockets::{BoundSocket, SocketFileSettings},
    stop_signal::StopSignal,
    stream::StreamReader,
};
pub use self::{
    access::StreamAccessError,
    passed::{InheritedConnection, InheritedSocket, InheritedSocketError, InheritedSockets},
    sockets::ReceiverOpenError,
};
pub(crate) use self::{
    access::TOKEN_LINE_BYTES_MAX, senders::RefusalNotice, socket_counts::SocketCounts,
    sockets::SocketFile,
};
use crate::{
    aggregate::SharedShard,
    ledger::{LossAccount, LossLedger},
    settings::{ListenSettings, SenderNetwork},
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
    readers: Vec<JoinHandle<Option<HaltedReader>>>,
    shard_sockets: Vec<String>,
    /// Readers without a thread.
    halted: Vec<HaltedReader>,
    /// Let the threads of `readers` begin, each once.
    gates: Vec<mpsc::Sender<Vec<InheritedConnection>>>,
    stop: Arc<StopSignal>,
    accounts: Arc<SocketLedger>,
    addresses: Vec<Option<SocketAddr>>,
    /// Access rules of listeners, each with the socket's name.
    access: Vec<(String, Arc<StreamAccess>)>,
    sockets: Vec<SharedSocket>,
    forwards: Vec<ForwardListener>,
    files: Vec<SocketFile>,
}

/// A listener for the aggregates of other servers. The receiver opens it; the server serves it.
#[derive(Debug)]
pub(crate) struct ForwardListener {
    pub(crate) listener: TcpListener,
    /// Counts batches as packets.
    pub(crate) counts: Arc<SocketCounts>,
    pub(crate) rules: ForwardRules,
}

/// The rules for the connections of a [`ForwardListener`].
#[derive(Debug)]
pub(crate) struct ForwardRules {
    pub(crate) connections_max: usize,
    /// The permitted servers; `None` if all are.
    pub(crate) senders: Option<SenderFilter>,
    /// TLS and tokens, if the listener demands them.
    pub(crate) access: Option<Arc<StreamAccess>>,
    /// Maximum time until the first message.
    pub(crate) handshake_timeout: Duration,
    /// Maximum time between two batches; no limit if zero.
    pub(crate) idle_timeout: Duration,
}

/// A reader between two runs.
#[derive(Debug)]
enum HaltedReader {
    Datagram(Box<DatagramReader>),
    Handshake(Box<HandshakeThread>),
    Stream(Box<StreamReader>),
}

impl HaltedReader {
    fn run(self) -> Option<Self> {
        match self {
            Self::Datagram(reader) => reader.run().map(|reader| Self::Datagram(Box::new(reader))),
            Self::Handshake(reader) => reader.run().map(|reader| Self::Handshake(Box::new(reader))),
            Self::Stream(reader) => reader.run().map(|reader| Self::Stream(Box::new(reader))),
        }
    }
}

/// A socket that can be passed on to another process.
#[derive(Debug)]
struct SharedSocket {
    label: String,
    socket: Arc<OwnedFd>,
    is_managed: bool,
    is_stream: bool,
    counts: Arc<SocketCounts>,
}

/// The totals of one socket, for the process that continues to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketTotals {
    /// The label of the socket; several readers of one address have the same.
    pub(crate) label: String,
    /// The counts, as in [`SocketCounts::totals`].
    pub(crate) totals: [u64; Self::COUNT],
}

impl SocketTotals {
    /// Number of counts.
    pub(crate) const COUNT: usize = SocketCounts::TOTALS;
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
        handlers: impl FnMut() -> PacketHandlers,
    ) -> Result<Self, ReceiverOpenError> {
        let mut receiver = Self::prepare(listen, &mut InheritedSockets::default(), handlers)?;
        receiver.release(Vec::new());
        Ok(receiver)
    }

    /// Opens all sockets and starts the threads, which do not read before
    /// [`release`](Self::release). Uses the passed sockets that match the settings.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`open`](Self::open).
    pub(crate) fn prepare(
        listen: &[ListenSettings],
        passed: &mut InheritedSockets,
        mut handlers: impl FnMut() -> PacketHandlers,
    ) -> Result<Self, ReceiverOpenError> {
        let stop = Arc::new(StopSignal::new().map_err(ReceiverOpenError::Reader)?);
        let mut sockets = OpenSockets::default();
        for one in listen {
            sockets.add(one, listen, passed)?;
        }
        let counts = sockets.datagrams.iter().map(|reader| Arc::clone(&reader.counts));
        let counts = counts.chain(sockets.streams.iter().map(|one| Arc::clone(&one.counts)));
        let counts = counts.chain(sockets.forwards.iter().map(|one| Arc::clone(&one.counts)));
        let mut receiver = Self {
            readers: Vec::new(),
            shard_sockets: Vec::new(),
            halted: Vec::new(),
            gates: Vec::new(),
            accounts: Arc::new(SocketLedger::new(counts.collect())),
            addresses: sockets.addresses,
            access: sockets.access,
            sockets: sockets.shared,
            forwards: sockets.forwards,
            files: sockets.files,
            stop: Arc::clone(&stop),
        };
        for socket in sockets.datagrams {
            let DatagramSocket { socket, is_managed, senders_block, senders, counts } = socket;
            receiver.shard_sockets.push(counts.name().to_owned());
            let reader = DatagramReader {
                socket,
                is_managed,
                senders_block,
                senders,
                counts,
                stop: Arc::clone(&stop),
                handlers: handlers(),
            };
            receiver.halted.push(HaltedReader::Datagram(Box::new(reader)));
        }
        if !sockets.streams.is_empty() {
            let needs_handshakes = sockets.streams.iter().any(|one| one.access.is_some());
            let handshakes = if needs_handshakes {
                let (thread, queue) =
                    HandshakeThread::new(Arc::clone(&stop)).map_err(ReceiverOpenError::Reader)?;
                receiver.halted.push(HaltedReader::Handshake(Box::new(thread)));
                Some(queue)
            } else {
                None
            };
            receiver.shard_sockets.push("streams".to_owned());
            let reader = StreamReader::new(sockets.streams, handshakes, stop, handlers());
            let reader = reader.map_err(ReceiverOpenError::Reader)?;
            receiver.halted.push(HaltedReader::Stream(Box::new(reader)));
        }
        receiver.park()?;
        Ok(receiver)
    }

    /// Returns the label of the socket of each [`PacketHandlers`], in the order of the calls.
    pub(crate) fn shard_sockets(&self) -> &[String] {
        &self.shard_sockets
    }

    /// Takes the listeners for the aggregates of other servers.
    pub(crate) fn take_forwards(&mut self) -> Vec<ForwardListener> {
        std::mem::take(&mut self.forwards)
    }

    /// Starts a thread for each reader without one. They wait for [`release`](Self::release).
    fn park(&mut self) -> Result<(), ReceiverOpenError> {
        for mut reader in std::mem::take(&mut self.halted) {
            let (gate, begin) = mpsc::channel::<Vec<InheritedConnection>>();
            let name = format!("receiver-{}", self.readers.len());
            let run = move || {
                // Without a release, the receiver was dropped.
                let connections = begin.recv().ok()?;
                if let HaltedReader::Stream(reader) = &mut reader {
                    connections.into_iter().for_each(|connection| reader.adopt(connection));
                }
                reader.run()
            };
            let thread = Builder::new().name(name).spawn(run).map_err(ReceiverOpenError::Reader)?;
            self.readers.push(thread);
            self.gates.push(gate);
        }
        Ok(())
    }

    /// Lets the threads read, and continues `connections` of another process. From now on the
    /// files of unix sockets belong to this process.
    pub(crate) fn release(&mut self, connections: Vec<InheritedConnection>) {
        self.files.iter_mut().for_each(|file| file.set_owned(true));
        let mut connections = Some(connections);
        let gates = std::mem::take(&mut self.gates);
        for (at, gate) in (1..).zip(&gates) {
            // The reader of streams is the last one.
            let passed = connections.take_if(|_| at == gates.len()).unwrap_or_default();
            // A thread that has ended has panicked, which was logged.
            let _ = gate.send(passed);
        }
    }

    /// Stops all readers after their current batch. All other packets stay in the sockets.
    pub(crate) fn halt(&mut self) {
        self.stop.request_halt();
        for reader in self.readers.drain(..) {
            match reader.join() {
                Ok(reader) => self.halted.extend(reader),
                Err(_) => tracing::error!("a reader thread panicked"),
            }
        }
        for reader in &mut self.halted {
            if let HaltedReader::Stream(reader) = reader {
                reader.finish_halt();
            }
        }
        self.stop.reset();
    }

    /// Lets the readers continue after [`halt`](Self::halt).
    ///
    /// # Errors
    ///
    /// A thread could not be started; its socket is not read any more.
    pub(crate) fn resume(&mut self) -> Result<(), ReceiverOpenError> {
        for reader in &mut self.halted {
            match reader {
                HaltedReader::Datagram(_) => {}
                HaltedReader::Handshake(thread) => thread.end_relay(),
                HaltedReader::Stream(reader) => reader.end_relay(),
            }
        }
        let parked = self.park();
        self.release(Vec::new());
        parked
    }

    /// Returns copies of all sockets, for another process.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn passed_sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let sockets = self.sockets.iter().map(|shared| {
            Ok(InheritedSocket {
                label: shared.label.clone(),
                descriptor: shared.socket.try_clone()?,
                is_managed: shared.is_managed,
            })
        });
        sockets.collect()
    }

    /// Returns connections for another process, which continue all connections of readers that are
    /// halted.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn passed_connections(&mut self) -> io::Result<Vec<InheritedConnection>> {
        let mut connections = Vec::new();
        for reader in &mut self.halted {
            connections.extend(match reader {
                HaltedReader::Datagram(_) => Vec::new(),
                HaltedReader::Handshake(thread) => {
                    let streams = self.sockets.iter().filter(|socket| socket.is_stream);
                    let labels: Vec<&str> = streams.map(|socket| &*socket.label).collect();
                    thread.passed_connections(&labels)?
                }
                HaltedReader::Stream(reader) => reader.passed_connections()?,
            });
        }
        Ok(connections)
    }

    /// Returns the totals of all sockets, and the host's backlog drops before the server started.
    pub(crate) fn totals(&self) -> (Vec<SocketTotals>, u64) {
        let totals = self.sockets.iter().map(|shared| SocketTotals {
            label: shared.label.clone(),
            totals: shared.counts.totals(),
        });
        (totals.collect(), self.accounts.backlog_before())
    }

    /// Continues to count with the [`totals`](Self::totals) of another process. Only valid before
    /// [`release`](Self::release).
    pub(crate) fn restore_totals(&self, totals: Vec<SocketTotals>, backlog_before: u64) {
        self.accounts.set_backlog_before(backlog_before);
        let mut totals = totals;
        for shared in &self.sockets {
            if let Some(at) = totals.iter().position(|one| one.label == shared.label) {
                shared.counts.restore(totals.remove(at).totals);
            }
        }
    }

    /// Ends a receiver whose sockets were handed over: closes them here, and leaves their contents
    /// and files to the other process. The lines of encrypted connections are relayed until the
    /// returned value is dropped.
    pub(crate) fn detach(mut self) -> LineRelay {
        self.files.iter_mut().for_each(|file| file.set_owned(false));
        let (relays, ended) = mpsc::channel::<()>();
        for mut reader in std::mem::take(&mut self.halted) {
            let relays = match &mut reader {
                HaltedReader::Datagram(_) => continue,
                HaltedReader::Handshake(_) => None,
                HaltedReader::Stream(reader) => {
                    reader.start_relay();
                    Some(relays.clone())
                }
            };
            let run = move || {
                let ended = reader.run();
                // Ends the wait.
                drop(relays);
                ended
            };
            match Builder::new().name("statsd-relay".into()).spawn(run) {
                Ok(thread) => self.readers.push(thread),
                Err(error) => {
                    tracing::error!(%error, "the lines of encrypted connections are lost");
                }
            }
        }
        LineRelay { _receiver: self, ended }
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
        // Threads that have not begun end here.
        self.gates.clear();
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

/// The readers of encrypted connections after a takeover.
#[derive(Debug)]
pub(crate) struct LineRelay {
    _receiver: PacketReceiver,
    /// Disconnected once the reader of streams has ended.
    ended: mpsc::Receiver<()>,
}

impl LineRelay {
    /// Waits until all clients have closed their connections, or until `deadline`.
    pub(crate) fn finish(self, deadline: Instant) {
        let _ = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Sockets that are open but have no readers yet.
#[derive(Debug, Default)]
struct OpenSockets {
    datagrams: Vec<DatagramSocket>,
    streams: Vec<stream::StreamListener>,
    forwards: Vec<ForwardListener>,
    addresses: Vec<Option<SocketAddr>>,
    access: Vec<(String, Arc<StreamAccess>)>,
    files: Vec<SocketFile>,
    /// All sockets, in the order of the settings.
    shared: Vec<SharedSocket>,
}

/// How other processes know a socket.
#[derive(Debug)]
struct SocketOrigin {
    label: String,
    /// Whether the service manager opened it.
    is_managed: bool,
}

impl SocketOrigin {
    fn new(label: String, passed: Option<&InheritedSocket>) -> Self {
        Self { label, is_managed: passed.is_some_and(|passed| passed.is_managed) }
    }
}

/// The rules for the connections of a listener.
#[derive(Debug)]
struct StreamRules {
    connections_max: usize,
    idle_timeout: Duration,
    senders: Option<SenderFilter>,
    access: Option<Arc<StreamAccess>>,
}

#[derive(Debug)]
struct DatagramSocket {
    socket: Arc<OwnedFd>,
    is_managed: bool,
    senders_block: bool,
    senders: Option<SenderFilter>,
    counts: Arc<SocketCounts>,
}

impl OpenSockets {
    fn add(
        &mut self,
        one: &ListenSettings,
        all: &[ListenSettings],
        passed: &mut InheritedSockets,
    ) -> Result<(), ReceiverOpenError> {
        let label = configured_label(one);
        match one {
            ListenSettings::Udp { address, readers, buffer_bytes, allow } => {
                let passed: Vec<_> = std::iter::from_fn(|| passed.take(&label)).collect();
                if !passed.is_empty() {
                    return self.adopt_udp(passed, *buffer_bytes, allow);
                }
                let mut address = *address;
                let v6_only = sockets::v6_only(address, all);
                let readers = (*readers).clamp(1, READERS_MAX);
                for reader in 0..readers {
                    let opened = sockets::udp(address, readers > 1, v6_only, *buffer_bytes)?;
                    // The other readers share the port assigned to the first.
                    address = opened.address.unwrap_or(address);
                    let name = reader_name(&opened.name, reader, readers);
                    let label = SocketOrigin { label: label.clone(), is_managed: false };
                    let rules = (false, SenderFilter::new(allow));
                    self.datagram(BoundSocket { name, ..opened }, label, rules);
                }
                self.addresses.push(Some(address));
            }
            ListenSettings::Unixgram { path, mode, owner, buffer_bytes } => {
                let file = SocketFileSettings { path, mode: *mode, owner: owner.as_deref() };
                let passed = passed.take(&label);
                let origin = SocketOrigin::new(label, passed.as_ref());
                let opened = match passed {
                    Some(passed) => sockets::adopt(passed, Some(path), Some(*buffer_bytes))?,
                    None => sockets::unixgram(file, *buffer_bytes)?,
                };
                self.addresses.push(None);
                self.datagram(opened, origin, (true, None));
            }
            ListenSettings::Tcp { address, connections, allow, idle_timeout, .. } => {
                let passed = passed.take(&label);
                let origin = SocketOrigin::new(label, passed.as_ref());
                let opened = match passed {
                    Some(passed) => sockets::adopt(passed, None, None)?,
                    None => sockets::tcp(*address, sockets::v6_only(*address, all))?,
                };
                self.addresses.push(opened.address);
                let access = open_access(one, &opened.name)?;
                let senders = SenderFilter::new(allow);
                let rules = StreamRules {
                    connections_max: *connections,
                    idle_timeout: *idle_timeout,
                    senders,
                    access,
                };
                self.stream(opened, origin, rules);
            }
            ListenSettings::Forward {
                address,
                connections,
                allow,
                handshake_timeout,
                idle_timeout,
                ..
            } => {
                let activated = format!("tcp {address}");
                let passed = passed.take(&label).or_else(|| passed.take(&activated));
                let origin = SocketOrigin::new(label, passed.as_ref());
                let opened = match passed {
                    Some(passed) => sockets::adopt(passed, None, None)?,
                    None => sockets::tcp(*address, sockets::v6_only(*address, all))?,
                };
                self.addresses.push(opened.address);
                let rules = ForwardRules {
                    connections_max: *connections,
                    senders: SenderFilter::new(allow),
                    access: open_access(one, &opened.name)?,
                    handshake_timeout: *handshake_timeout,
                    idle_timeout: *idle_timeout,
                };
                self.forward(opened, origin, rules)?;
            }
            ListenSettings::Unix { path, mode, owner, connections, idle_timeout } => {
                let file = SocketFileSettings { path, mode: *mode, owner: owner.as_deref() };
                let passed = passed.take(&label);
                let origin = SocketOrigin::new(label, passed.as_ref());
                let opened = match passed {
                    Some(passed) => sockets::adopt(passed, Some(path), None)?,
                    None => sockets::unix_stream(file)?,
                };
                self.addresses.push(None);
                let rules = StreamRules {
                    connections_max: *connections,
                    idle_timeout: *idle_timeout,
                    senders: None,
                    access: None,
                };
                self.stream(opened, origin, rules);
            }
        }
        Ok(())
    }

    /// Adopts all sockets that were passed for an address. Their number replaces the configured
    /// number of readers, because closing one would lose what it has received.
    fn adopt_udp(
        &mut self,
        passed: Vec<InheritedSocket>,
        buffer_bytes: usize,
        allow: &[SenderNetwork],
    ) -> Result<(), ReceiverOpenError> {
        let readers = passed.len();
        let mut address = None;
        for (reader, passed) in passed.into_iter().enumerate() {
            let origin = SocketOrigin::new(passed.label.clone(), Some(&passed));
            let opened = sockets::adopt(passed, None, Some(buffer_bytes))?;
            address = address.or(opened.address);
            let name = reader_name(&opened.name, reader, readers);
            let rules = (false, SenderFilter::new(allow));
            self.datagram(BoundSocket { name, ..opened }, origin, rules);
        }
        self.addresses.push(address);
        Ok(())
    }

    fn datagram(
        &mut self,
        opened: BoundSocket,
        origin: SocketOrigin,
        (senders_block, senders): (bool, Option<SenderFilter>),
    ) {
        let socket = Arc::new(opened.fd);
        self.files.extend(opened.file);
        let counts = SocketCounts::new(opened.name, Some(Arc::clone(&socket)));
        let SocketOrigin { label, is_managed } = origin;
        self.shared.push(SharedSocket {
            label,
            socket: Arc::clone(&socket),
            is_managed,
            is_stream: false,
            counts: Arc::clone(&counts),
        });
        let datagram = DatagramSocket { socket, is_managed, senders_block, senders, counts };
        self.datagrams.push(datagram);
    }

    fn forward(
        &mut self,
        opened: BoundSocket,
        origin: SocketOrigin,
        rules: ForwardRules,
    ) -> Result<(), ReceiverOpenError> {
        let SocketOrigin { label, is_managed } = origin;
        let name = match opened.address {
            Some(address) => format!("forward {address}"),
            None => label.clone(),
        };
        self.access.extend(rules.access.clone().map(|access| (name.clone(), access)));
        let counts = SocketCounts::new(name, None);
        let copy = opened.fd.try_clone().map_err(ReceiverOpenError::Reader)?;
        self.shared.push(SharedSocket {
            label,
            socket: Arc::new(copy),
            is_managed,
            is_stream: false,
            counts: Arc::clone(&counts),
        });
        let listener = opened.fd.into();
        self.forwards.push(ForwardListener { listener, counts, rules });
        Ok(())
    }

    fn stream(&mut self, opened: BoundSocket, origin: SocketOrigin, rules: StreamRules) {
        let SocketOrigin { label, is_managed } = origin;
        let StreamRules { connections_max, idle_timeout, senders, access } = rules;
        self.files.extend(opened.file);
        self.access.extend(access.clone().map(|access| (opened.name.clone(), access)));
        let counts = SocketCounts::new(opened.name, None);
        let socket = Arc::new(opened.fd);
        self.shared.push(SharedSocket {
            label: label.clone(),
            socket: Arc::clone(&socket),
            is_managed,
            is_stream: true,
            counts: Arc::clone(&counts),
        });
        self.streams.push(stream::StreamListener {
            label,
            socket,
            counts,
            is_managed,
            connections_max,
            connections: 0,
            senders,
            access,
            idle_timeout,
        });
    }
}

fn open_access(
    listen: &ListenSettings,
    socket: &str,
) -> Result<Option<Arc<StreamAccess>>, ReceiverOpenError> {
    StreamAccess::open(listen).map_err(|source| {
        let (socket, source) = (socket.to_owned(), Box::new(source));
        ReceiverOpenError::Access { socket, source }
    })
}

/// Returns the name of one of several readers of a socket's address.
fn reader_name(name: &str, reader: usize, readers: usize) -> String {
    match readers {
        1 => name.to_owned(),
        _ => format!("{name} #{reader}"),
    }
}

/// Maximum number of readers per address; more than common machines have cores.
const READERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
