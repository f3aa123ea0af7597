//! The repeater: forwards every packet unchanged to other servers, before parsing.
//!
//! A [`PacketRepeater`] has a thread and a bounded queue per receiver, so that receivers do not
//! delay each other or the readers: if a queue is full, the batch is dropped and its packets are
//! counted. Datagrams are forwarded as they are. Over TCP each packet ends in a newline; a broken
//! connection is reopened, with growing pauses.

use std::{
    io::{self, Write as _},
    net::{SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_connect::deadline::DeadlineStream;

use super::BackendStatus;
use crate::{
    receiver::{ObserverFactory, PacketObserver},
    settings::{self, RepeaterProtocol},
};

/// Maximum number of queued batches per receiver. A batch holds the packets that a reader received
/// at once, up to 128.
const QUEUE_BATCHES: usize = 1024;
/// Maximum size of a batch in bytes; packets that do not fit are dropped.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum time for connecting and for sending a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Packets, concatenated in one buffer, and the offset at which each ends.
#[derive(Debug, Default)]
struct RawPackets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl RawPackets {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// Packet counts of one receiver.
#[derive(Debug, Default)]
struct RepeaterCounts {
    sent: AtomicU64,
    overflow: AtomicU64,
    failed: AtomicU64,
}

/// The repeater, which forwards packets to the configured receivers. Once it and all its observers
/// are dropped, its threads try to send the queued batches, and end.
#[derive(Debug)]
pub struct PacketRepeater {
    queues: Arc<Vec<RepeaterQueue>>,
    threads: Vec<JoinHandle<()>>,
    status: BackendStatus,
}

#[derive(Debug)]
struct RepeaterQueue {
    sender: SyncSender<Arc<RawPackets>>,
    counts: Arc<RepeaterCounts>,
}

impl PacketRepeater {
    /// Starts a thread per receiver, which resolves the receiver's name whenever it opens a socket.
    ///
    /// # Errors
    ///
    /// A thread could not be started.
    pub fn start(receivers: &[settings::RepeaterSettings]) -> io::Result<Self> {
        let mut queues = Vec::new();
        let mut threads = Vec::new();
        for receiver in receivers {
            let (sender, batches) = sync_channel(QUEUE_BATCHES);
            let counts = Arc::new(RepeaterCounts::default());
            queues.push(RepeaterQueue { sender, counts: Arc::clone(&counts) });
            let mut send_thread =
                SendThread { receiver: receiver.clone(), socket: None, counts, outage: None };
            let name = format!("repeat-{}", threads.len());
            threads
                .push(thread::Builder::new().name(name).spawn(move || send_thread.run(&batches))?);
        }
        Ok(Self { queues: Arc::new(queues), threads, status: BackendStatus::default() })
    }

    /// Returns the factory for the [`PacketObserver`] of each reader.
    pub fn observer_factory(&self) -> ObserverFactory {
        let queues = Arc::clone(&self.queues);
        Box::new(move || {
            let queues = Arc::clone(&queues);
            Box::new(RepeaterObserver { queues, packets: RawPackets::default(), overflow: 0 })
        })
    }

    /// Returns the status: packets `sent`, `overflow` (dropped because a queue was full or their
    /// batch too large) and `failed` (could not be sent), over all receivers. Except for queued
    /// packets, the three add up to the number of received packets times the number of receivers.
    pub fn status(&self) -> BackendStatus {
        let sum = |count: fn(&RepeaterCounts) -> &AtomicU64| {
            self.queues.iter().map(|queue| count(&queue.counts).load(Relaxed)).sum::<u64>() as f64
        };
        self.status.set("sent", sum(|counts| &counts.sent));
        self.status.set("overflow", sum(|counts| &counts.overflow));
        self.status.set("failed", sum(|counts| &counts.failed));
        self.status.clone()
    }

    /// Waits up to `timeout` until the queued packets are sent. All observers must have been
    /// dropped before, because the threads run as long as one exists. Returns the final
    /// [`status`](Self::status).
    pub fn finish(self, timeout: Duration) -> BackendStatus {
        let deadline = Instant::now() + timeout;
        let Self { queues, threads, status } = self;
        let counts: Vec<_> = queues.iter().map(|queue| Arc::clone(&queue.counts)).collect();
        drop(queues);
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::park_timeout(Duration::from_millis(2));
            }
        }
        let sum = |count: fn(&RepeaterCounts) -> &AtomicU64| {
            counts.iter().map(|counts| count(counts).load(Relaxed)).sum::<u64>() as f64
        };
        status.set("sent", sum(|counts| &counts.sent));
        status.set("overflow", sum(|counts| &counts.overflow));
        status.set("failed", sum(|counts| &counts.failed));
        status
    }
}

/// The observer that collects the packets of one reader and queues them at the end of each batch.
struct RepeaterObserver {
    queues: Arc<Vec<RepeaterQueue>>,
    packets: RawPackets,
    overflow: u64,
}

impl PacketObserver for RepeaterObserver {
    fn packet(&mut self, bytes: &[u8]) {
        if self.packets.bytes.len() + bytes.len() > BATCH_BYTES_MAX {
            self.overflow += 1;
            return;
        }
        self.packets.bytes.extend_from_slice(bytes);
        self.packets.ends.push(self.packets.bytes.len());
    }

    fn batch_finished(&mut self) {
        let overflow = std::mem::take(&mut self.overflow);
        let packets = Arc::new(std::mem::take(&mut self.packets));
        for queue in self.queues.iter() {
            let refused = match queue.sender.try_send(Arc::clone(&packets)) {
                Ok(()) => 0,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => packets.len(),
            };
            queue.counts.overflow.fetch_add(overflow + refused, Relaxed);
        }
    }
}

/// The thread of one receiver.
struct SendThread {
    receiver: settings::RepeaterSettings,
    socket: Option<RepeaterSocket>,
    counts: Arc<RepeaterCounts>,
    /// The current pause and the time of the next attempt while the receiver is unreachable.
    outage: Option<(Duration, Instant)>,
}

enum RepeaterSocket {
    Datagrams(UdpSocket),
    Stream(DeadlineStream),
}

impl SendThread {
    fn run(&mut self, batches: &Receiver<Arc<RawPackets>>) {
        loop {
            match batches.recv_timeout(Duration::from_secs(60)) {
                Ok(packets) => self.forward(&packets),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn forward(&mut self, packets: &RawPackets) {
        let sent = match self.connect() {
            Ok(()) => match &mut self.socket {
                Some(RepeaterSocket::Datagrams(socket)) => Ok(send_datagrams(socket, packets)),
                Some(RepeaterSocket::Stream(connection)) => {
                    send_stream(connection, packets).map(|()| packets.len())
                }
                None => Ok(0),
            },
            Err(error) => Err(error),
        };
        let sent = sent.unwrap_or_else(|error| {
            self.on_error(&error);
            0
        });
        self.counts.sent.fetch_add(sent, Relaxed);
        self.counts.failed.fetch_add(packets.len() - sent, Relaxed);
    }

    /// Opens the socket unless one is open.
    fn connect(&mut self) -> io::Result<()> {
        if self.socket.is_some() {
            return Ok(());
        }
        if self.outage.is_some_and(|(_, again)| Instant::now() < again) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (host, port) = (self.receiver.host.as_str(), self.receiver.port);
        self.socket = Some(match self.receiver.protocol {
            RepeaterProtocol::Tcp => RepeaterSocket::Stream(DeadlineStream::open(
                host,
                port,
                Instant::now() + SEND_TIMEOUT,
            )?),
            RepeaterProtocol::Udp4 => RepeaterSocket::Datagrams(udp(host, port, false)?),
            RepeaterProtocol::Udp6 => RepeaterSocket::Datagrams(udp(host, port, true)?),
        });
        if self.outage.take().is_some() {
            tracing::info!(host, port, "repeating packets again");
        }
        Ok(())
    }

    fn on_error(&mut self, error: &io::Error) {
        self.socket = None;
        if error.kind() == io::ErrorKind::WouldBlock {
            return;
        }
        let (host, port) = (&self.receiver.host, self.receiver.port);
        let pause = match self.outage {
            None => {
                tracing::warn!(host, port, %error, "cannot repeat packets");
                PAUSE_MIN
            }
            Some((pause, _)) => (pause * 2).min(PAUSE_MAX),
        };
        self.outage = Some((pause, Instant::now() + pause));
    }
}

fn udp(host: &str, port: u16, v6: bool) -> io::Result<UdpSocket> {
    let address = (host, port)
        .to_socket_addrs()?
        .find(|address| address.is_ipv6() == v6)
        .ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the host name has no address of this family")
        })?;
    let local = if v6 { SocketAddr::from(([0; 16], 0)) } else { SocketAddr::from(([0; 4], 0)) };
    let socket = UdpSocket::bind(local)?;
    socket.connect(address)?;
    Ok(socket)
}

/// Sends each packet and returns how many were sent.
fn send_datagrams(socket: &UdpSocket, packets: &RawPackets) -> u64 {
    let mut sent: u64 = 0;
    for packet in packets.iter() {
        match socket.send(packet) {
            Ok(_) => sent += 1,
            // This error reports that the previous packet was refused. The current packet has not
            // been sent yet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                sent = sent.saturating_sub(1);
                sent += u64::from(socket.send(packet).is_ok());
            }
            Err(_) => {}
        }
    }
    sent
}

fn send_stream(connection: &mut DeadlineStream, packets: &RawPackets) -> io::Result<()> {
    if connection.is_closed() {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    connection.set_deadline(Instant::now() + SEND_TIMEOUT);
    let mut lines = Vec::with_capacity(packets.bytes.len() + packets.ends.len());
    for packet in packets.iter() {
        lines.extend_from_slice(packet);
        lines.push(b'\n');
    }
    connection.write_all(&lines)
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, net::TcpListener};

    use super::*;

    fn receiver(port: u16, protocol: RepeaterProtocol) -> settings::RepeaterSettings {
        settings::RepeaterSettings { host: "127.0.0.1".to_owned(), port, protocol }
    }

    #[test]
    fn packets_are_forwarded_unchanged() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let repeater = PacketRepeater::start(&[
            receiver(udp.local_addr().unwrap().port(), RepeaterProtocol::Udp4),
            receiver(tcp.local_addr().unwrap().port(), RepeaterProtocol::Tcp),
        ])
        .unwrap();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            tcp.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut observer = repeater.observer_factory()();
        for packet in [&b"a:1|c"[..], b"nonsense \xff", b"b:1|c\nc:2|c"] {
            observer.packet(packet);
        }
        observer.batch_finished();
        drop(observer);
        let status = repeater.finish(Duration::from_secs(10));
        let mut buffer = [0; 100];
        for packet in [&b"a:1|c"[..], b"nonsense \xff", b"b:1|c\nc:2|c"] {
            let bytes = udp.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..bytes], packet);
        }
        assert_eq!(reader.join().unwrap(), b"a:1|c\nnonsense \xff\nb:1|c\nc:2|c\n");
        assert_eq!((status.get("sent"), status.get("failed")), (Some(6.0), Some(0.0)));
    }

    #[test]
    fn full_queue_counts_dropped_packets() {
        // Connections are refused, so the queue fills.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let repeater = PacketRepeater::start(&[receiver(port, RepeaterProtocol::Tcp)]).unwrap();
        let mut observer = repeater.observer_factory()();
        let rounds = 5 * QUEUE_BATCHES as u64;
        for _ in 0..rounds {
            observer.packet(b"a:1|c");
            observer.batch_finished();
        }
        drop(observer);
        let status = repeater.finish(Duration::from_secs(30));
        let count = |name| status.get(name).unwrap();
        assert_eq!(count("sent"), 0.0);
        assert_eq!(count("overflow") + count("failed"), rounds as f64);
    }

    #[test]
    fn oversized_batch_is_truncated() {
        let repeater = PacketRepeater::start(&[receiver(9, RepeaterProtocol::Udp4)]).unwrap();
        let mut observer = repeater.observer_factory()();
        let packet = vec![b'x'; 60_000];
        (0..20).for_each(|_| observer.packet(&packet));
        observer.batch_finished();
        assert_eq!(repeater.status().get("overflow"), Some(3.0));
    }
}
