//! Every packet as it came, to other servers, before anything is made of it.
//!
//! A [`Repeater`] has a thread and a bounded queue for each receiver, so that none waits for another
//! and the readers wait for none: a batch that finds the queue full is dropped and its packets are
//! counted. Datagrams are sent as they came; over TCP each packet ends with a newline, on one
//! connection that is made anew, with growing pauses, when it breaks.

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

use howdah_post::Connection;

use super::Status;
use crate::{
    intake::{MakeTap, Tap},
    settings::{self, RepeaterProtocol},
};

/// Batches that wait for one receiver. A batch is what a reader took in at once: up to 64 packets.
const QUEUE_BATCHES: usize = 1024;
/// Bytes of a batch. What comes beyond within one round of a reader is dropped.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// How long connecting and sending may take.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Packets end to end.
#[derive(Debug, Default)]
struct Packets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packets {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// What one receiver was sent and was not.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    overflow: AtomicU64,
    failed: AtomicU64,
}

/// Sends packets on. Dropping it ends the threads, after what is queued was tried.
#[derive(Debug)]
pub struct Repeater {
    lanes: Arc<Vec<Lane>>,
    threads: Vec<JoinHandle<()>>,
    status: Status,
}

#[derive(Debug)]
struct Lane {
    queue: SyncSender<Arc<Packets>>,
    counts: Arc<Counts>,
}

impl Repeater {
    /// Starts a thread for each receiver. Names are looked up there, and again after an error.
    ///
    /// # Errors
    ///
    /// A thread could not be started.
    pub fn start(receivers: &[settings::Repeater]) -> io::Result<Self> {
        let mut lanes = Vec::new();
        let mut threads = Vec::new();
        for receiver in receivers {
            let (queue, batches) = sync_channel(QUEUE_BATCHES);
            let counts = Arc::new(Counts::default());
            lanes.push(Lane { queue, counts: Arc::clone(&counts) });
            let mut sender = Sender { receiver: receiver.clone(), way: None, counts, away: None };
            let name = format!("repeat-{}", threads.len());
            threads.push(thread::Builder::new().name(name).spawn(move || sender.run(&batches))?);
        }
        Ok(Self { lanes: Arc::new(lanes), threads, status: Status::default() })
    }

    /// What makes the [`Tap`] of a reader.
    #[must_use]
    pub fn taps(&self) -> MakeTap {
        let lanes = Arc::clone(&self.lanes);
        Box::new(move || {
            let lanes = Arc::clone(&lanes);
            Box::new(RepeaterTap { lanes, packets: Packets::default(), overflow: 0 })
        })
    }

    /// Its account: packets `sent`, `overflow` (dropped because a queue was full) and `failed` (the
    /// receiver did not take them), over all receivers. The three add up to the packets that came
    /// times the receivers, but for those that are queued.
    pub fn status(&self) -> Status {
        let sum = |count: fn(&Counts) -> &AtomicU64| {
            self.lanes.iter().map(|lane| count(&lane.counts).load(Relaxed)).sum::<u64>() as f64
        };
        self.status.set("sent", sum(|counts| &counts.sent));
        self.status.set("overflow", sum(|counts| &counts.overflow));
        self.status.set("failed", sum(|counts| &counts.failed));
        self.status.clone()
    }

    /// Waits until what is queued was sent, but not beyond `patience`. All taps have to be gone
    /// before, or the threads wait for them.
    pub fn finish(self, patience: Duration) -> Status {
        let deadline = Instant::now() + patience;
        let Self { lanes, threads, status } = self;
        let counts: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.counts)).collect();
        drop(lanes);
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::park_timeout(Duration::from_millis(2));
            }
        }
        let sum = |count: fn(&Counts) -> &AtomicU64| {
            counts.iter().map(|counts| count(counts).load(Relaxed)).sum::<u64>() as f64
        };
        status.set("sent", sum(|counts| &counts.sent));
        status.set("overflow", sum(|counts| &counts.overflow));
        status.set("failed", sum(|counts| &counts.failed));
        status
    }
}

/// Collects what one reader sees, and hands it on at the end of each of its rounds.
struct RepeaterTap {
    lanes: Arc<Vec<Lane>>,
    packets: Packets,
    overflow: u64,
}

impl Tap for RepeaterTap {
    fn packet(&mut self, bytes: &[u8]) {
        if self.packets.bytes.len() + bytes.len() > BATCH_BYTES_MAX {
            self.overflow += 1;
            return;
        }
        self.packets.bytes.extend_from_slice(bytes);
        self.packets.ends.push(self.packets.bytes.len());
    }

    fn end_of_batch(&mut self) {
        let overflow = std::mem::take(&mut self.overflow);
        let packets = Arc::new(std::mem::take(&mut self.packets));
        for lane in self.lanes.iter() {
            let refused = match lane.queue.try_send(Arc::clone(&packets)) {
                Ok(()) => 0,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => packets.len(),
            };
            lane.counts.overflow.fetch_add(overflow + refused, Relaxed);
        }
    }
}

/// The thread of one receiver.
struct Sender {
    receiver: settings::Repeater,
    way: Option<Way>,
    counts: Arc<Counts>,
    /// While the receiver cannot be reached: the pause, and when to try again.
    away: Option<(Duration, Instant)>,
}

enum Way {
    Datagrams(UdpSocket),
    Stream(Connection),
}

impl Sender {
    fn run(&mut self, batches: &Receiver<Arc<Packets>>) {
        loop {
            match batches.recv_timeout(Duration::from_secs(60)) {
                Ok(packets) => self.repeat(&packets),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn repeat(&mut self, packets: &Packets) {
        let sent = match self.reach() {
            Ok(()) => match &mut self.way {
                Some(Way::Datagrams(socket)) => Ok(datagrams(socket, packets)),
                Some(Way::Stream(connection)) => {
                    stream(connection, packets).map(|()| packets.len())
                }
                None => Ok(0),
            },
            Err(error) => Err(error),
        };
        let sent = sent.unwrap_or_else(|error| {
            self.lost(&error);
            0
        });
        self.counts.sent.fetch_add(sent, Relaxed);
        self.counts.failed.fetch_add(packets.len() - sent, Relaxed);
    }

    /// Has a socket, or says why not.
    fn reach(&mut self) -> io::Result<()> {
        if self.way.is_some() {
            return Ok(());
        }
        if self.away.is_some_and(|(_, again)| Instant::now() < again) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (host, port) = (self.receiver.host.as_str(), self.receiver.port);
        self.way = Some(match self.receiver.protocol {
            RepeaterProtocol::Tcp => {
                Way::Stream(Connection::open(host, port, Instant::now() + PATIENCE)?)
            }
            RepeaterProtocol::Udp4 => Way::Datagrams(udp(host, port, false)?),
            RepeaterProtocol::Udp6 => Way::Datagrams(udp(host, port, true)?),
        });
        if self.away.take().is_some() {
            tracing::info!(host, port, "packets are repeated again");
        }
        Ok(())
    }

    fn lost(&mut self, error: &io::Error) {
        self.way = None;
        if error.kind() == io::ErrorKind::WouldBlock {
            return;
        }
        let (host, port) = (&self.receiver.host, self.receiver.port);
        let pause = match self.away {
            None => {
                tracing::warn!(host, port, %error, "packets cannot be repeated");
                PAUSE_MIN
            }
            Some((pause, _)) => (pause * 2).min(PAUSE_MAX),
        };
        self.away = Some((pause, Instant::now() + pause));
    }
}

fn udp(host: &str, port: u16, v6: bool) -> io::Result<UdpSocket> {
    let address = (host, port)
        .to_socket_addrs()?
        .find(|address| address.is_ipv6() == v6)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address of that family"))?;
    let local = match v6 {
        true => SocketAddr::from(([0; 16], 0)),
        false => SocketAddr::from(([0; 4], 0)),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(address)?;
    Ok(socket)
}

/// Sends each packet; gives how many went out.
fn datagrams(socket: &UdpSocket, packets: &Packets) -> u64 {
    let mut sent: u64 = 0;
    for packet in packets.iter() {
        match socket.send(packet) {
            Ok(_) => sent += 1,
            // It tells of the packet before: nobody listens there. This one was not sent yet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                sent = sent.saturating_sub(1);
                sent += u64::from(socket.send(packet).is_ok());
            }
            Err(_) => {}
        }
    }
    sent
}

fn stream(connection: &mut Connection, packets: &Packets) -> io::Result<()> {
    if connection.is_closed() {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    connection.set_deadline(Instant::now() + PATIENCE);
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

    fn receiver(port: u16, protocol: RepeaterProtocol) -> settings::Repeater {
        settings::Repeater { host: "127.0.0.1".to_owned(), port, protocol }
    }

    #[test]
    fn packets_arrive_as_they_came_by_datagrams_and_by_stream() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let repeater = Repeater::start(&[
            receiver(udp.local_addr().unwrap().port(), RepeaterProtocol::Udp4),
            receiver(tcp.local_addr().unwrap().port(), RepeaterProtocol::Tcp),
        ])
        .unwrap();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            tcp.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut tap = repeater.taps()();
        for packet in [&b"a:1|c"[..], b"nonsense \xff", b"b:1|c\nc:2|c"] {
            tap.packet(packet);
        }
        tap.end_of_batch();
        drop(tap);
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
    fn what_finds_the_queue_full_is_counted_and_nobody_waits() {
        // Nobody takes the connection, and nobody reads: the queue of one lane fills.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let repeater = Repeater::start(&[receiver(port, RepeaterProtocol::Tcp)]).unwrap();
        let mut tap = repeater.taps()();
        let rounds = 5 * QUEUE_BATCHES as u64;
        for _ in 0..rounds {
            tap.packet(b"a:1|c");
            tap.end_of_batch();
        }
        drop(tap);
        let status = repeater.finish(Duration::from_secs(30));
        let count = |name| status.get(name).unwrap();
        assert_eq!(count("sent"), 0.0);
        assert_eq!(count("overflow") + count("failed"), rounds as f64);
    }

    #[test]
    fn a_round_larger_than_a_batch_is_cut() {
        let repeater = Repeater::start(&[receiver(9, RepeaterProtocol::Udp4)]).unwrap();
        let mut tap = repeater.taps()();
        let packet = vec![b'x'; 60_000];
        (0..20).for_each(|_| tap.packet(&packet));
        tap.end_of_batch();
        assert_eq!(repeater.status().get("overflow"), Some(3.0));
    }
}
