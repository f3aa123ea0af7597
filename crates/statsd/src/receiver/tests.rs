//! Real sockets on the loopback. The sender counts its packets, and the ledger must balance.

use std::{
    io::Write,
    net::{Shutdown, TcpStream, UdpSocket},
    os::unix::net::{UnixDatagram, UnixStream},
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
};

use parking_lot::Mutex;

use super::*;

mod access;

/// Maximum wait for an expected event; tests do not depend on its value.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Forwards packets to the test. Blocks while the test holds `gate`.
struct GatedObserver {
    gate: Arc<Mutex<()>>,
    packets: Sender<Vec<u8>>,
}

impl PacketObserver for GatedObserver {
    fn packet(&mut self, bytes: &[u8]) {
        drop(self.gate.lock());
        self.packets.send(bytes.to_vec()).unwrap();
    }
}

/// A receiver whose packets are available in `packets`.
struct TestReceiver {
    receiver: PacketReceiver,
    gate: Arc<Mutex<()>>,
    packets: Receiver<Vec<u8>>,
}

impl TestReceiver {
    fn open(listen: &[ListenSettings]) -> Self {
        let mut opened = Self::prepare(listen, &mut InheritedSockets::default());
        opened.receiver.release(Vec::new());
        opened
    }

    /// Opens a receiver that does not read yet.
    fn prepare(listen: &[ListenSettings], passed: &mut InheritedSockets) -> Self {
        let gate = Arc::new(Mutex::new(()));
        let (sender, packets) = channel();
        let receiver = PacketReceiver::prepare(listen, passed, || {
            let observer = GatedObserver { gate: Arc::clone(&gate), packets: sender.clone() };
            PacketHandlers { shard: None, observer: Some(Box::new(observer)) }
        });
        Self { receiver: receiver.unwrap(), gate, packets }
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.receiver.addresses()[index].unwrap()
    }

    fn next(&self) -> String {
        String::from_utf8(self.packets.recv_timeout(TEST_TIMEOUT).unwrap()).unwrap()
    }

    /// Reads the ledger until `done` returns true.
    fn wait_for_account(&self, done: impl Fn(&LossAccount) -> bool) -> LossAccount {
        let ledger = self.receiver.ledger();
        howdah_lab::wait_for("the expected ledger", TEST_TIMEOUT, || {
            Some(ledger.read()).filter(&done)
        })
    }
}

fn udp(address: &str, readers: usize, buffer_bytes: usize) -> ListenSettings {
    let allow = Vec::new();
    ListenSettings::Udp { address: address.parse().unwrap(), readers, buffer_bytes, allow }
}

fn tcp(limit: usize) -> ListenSettings {
    let mut listen = ListenSettings::tcp("127.0.0.1:0".parse().unwrap());
    if let ListenSettings::Tcp { connections, .. } = &mut listen {
        *connections = limit;
    }
    listen
}

fn unixgram(path: PathBuf) -> ListenSettings {
    ListenSettings::Unixgram { path, mode: None, owner: None, buffer_bytes: 1 << 20 }
}

fn client(server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    let client = UdpSocket::bind(any).unwrap();
    client.connect(server).unwrap();
    client
}

/// Asserts that *sent = delivered + socket drops + backlog drops + unread*. Backlog drops are
/// counted per host, so they may include packets of other programs.
fn assert_balances(account: &LossAccount, sent: u64) {
    let delivered: u64 = account.sockets.iter().map(|socket| socket.packets_total).sum();
    let unread: u64 = account.sockets.iter().map(|socket| socket.unread_bytes).sum();
    assert_eq!(unread, 0, "{account:?}");
    let missing = sent - delivered - account.drops_total();
    assert!(missing <= account.backlog_drops_total, "{missing} of {sent}: {account:?}");
}

#[test]
fn all_socket_types_receive_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let server = TestReceiver::open(&[
        udp("127.0.0.1:0", 1, 1 << 20),
        udp("[::1]:0", 1, 1 << 20),
        tcp(8),
        unixgram(path("datagram")),
        ListenSettings::unix(path("stream"), Some(0o600)),
    ]);
    client(server.address(0)).send(b"v4:1|c").unwrap();
    assert_eq!(server.next(), "v4:1|c");
    client(server.address(1)).send(b"v6:1|c").unwrap();
    assert_eq!(server.next(), "v6:1|c");
    TcpStream::connect(server.address(2)).unwrap().write_all(b"tcp:1|c\n").unwrap();
    assert_eq!(server.next(), "tcp:1|c\n");
    UnixDatagram::unbound().unwrap().send_to(b"gram:1|c", path("datagram")).unwrap();
    assert_eq!(server.next(), "gram:1|c");
    UnixStream::connect(path("stream")).unwrap().write_all(b"unix:1|c\n").unwrap();
    assert_eq!(server.next(), "unix:1|c\n");

    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_balances(&account, 5);
    let packets: Vec<_> = account.sockets.iter().map(|socket| socket.packets_total).collect();
    assert_eq!(packets, [1, 1, 1, 1, 1], "each packet is counted at its own socket");
    assert!(!path("datagram").exists() && !path("stream").exists());
}

#[test]
fn kernel_drops_are_counted_and_ledger_balances() {
    let server = TestReceiver::open(&[udp("127.0.0.1:0", 1, 1 << 14)]);
    let client = client(server.address(0));
    let before = server.receiver.ledger().read();
    let sent = 10_000;
    let gate = server.gate.lock();
    for _ in 0..sent {
        client.send(b"some.counter:1|c").unwrap();
    }
    drop(gate);
    let account = server.wait_for_account(|account| {
        let backlog = account.backlog_drops_total;
        account.sockets[0].packets_total + account.drops_total() + backlog >= sent
    });
    assert!(
        account.drops_total() > sent / 2,
        "the buffer has room for a few dozen packets: {account:?}"
    );
    let advice = advice::LossAdvice::between(&before, &account);
    assert!(advice[0].to_string().contains("set buffer-bytes = "), "{}", advice[0]);
    assert_balances(&server.receiver.stop(TEST_TIMEOUT), sent);
}

#[test]
fn stop_drains_socket_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("datagram");
    let listen = [udp("127.0.0.1:0", 1, 1 << 20), unixgram(path.clone()), tcp(8)];
    let server = TestReceiver::open(&listen);
    let client = client(server.address(0));
    let mut stream = TcpStream::connect(server.address(2)).unwrap();
    let gate = server.gate.lock();
    for _ in 0..300 {
        client.send(b"a:1|c").unwrap();
    }
    for _ in 0..5 {
        UnixDatagram::unbound().unwrap().send_to(b"b:1|c", &path).unwrap();
    }
    stream.write_all(b"c:1|c\nhalf a li").unwrap();
    // Stopping is requested while the readers are blocked, so all packets are unread.
    server.receiver.stop.request(Instant::now() + TEST_TIMEOUT);
    drop(gate);
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_balances(&account, 306);
    let mut packets: Vec<_> = server.packets.iter().collect();
    packets.sort();
    assert_eq!(packets.len(), 306);
    assert_eq!(packets.last().unwrap(), b"c:1|c\n", "an incomplete line is not a packet");
    // The socket is closed, so sending may fail.
    let _ = client.send(b"late:1|c");
}

#[test]
fn readers_sharing_address_receive_all_packets() {
    let server = TestReceiver::open(&[udp("127.0.0.1:0", 3, 1 << 20)]);
    let clients: Vec<_> = (0..24).map(|_| client(server.address(0))).collect();
    for (round, client) in (0..10).flat_map(|round| clients.iter().map(move |one| (round, one))) {
        client.send(format!("a:{round}|c").as_bytes()).unwrap();
        // One packet at a time, so that small buffers cannot overflow.
        server.next();
    }
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_balances(&account, 240);
    assert_eq!(account.sockets.len(), 3);
    let used = account.sockets.iter().filter(|socket| socket.packets_total > 0).count();
    assert!(used > 1, "24 senders must be distributed over several sockets: {account:?}");
}

#[test]
fn unterminated_last_line_counts_after_disconnect() {
    let server = TestReceiver::open(&[tcp(8)]);
    let mut stream = TcpStream::connect(server.address(0)).unwrap();
    stream.write_all(b"a:1|c\nb:").unwrap();
    assert_eq!(server.next(), "a:1|c\n");
    stream.write_all(b"2|c\nc:3|c").unwrap();
    assert_eq!(server.next(), "b:2|c\n");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.next(), "c:3|c");
}

#[test]
fn overlong_line_is_discarded_and_next_counts() {
    let server = TestReceiver::open(&[tcp(8)]);
    let mut stream = TcpStream::connect(server.address(0)).unwrap();
    stream.write_all(&vec![b'x'; 1 << 20]).unwrap();
    stream.write_all(b"\nafter:1|c\n").unwrap();
    assert_eq!(server.next(), "after:1|c\n");
    assert_eq!(
        server.wait_for_account(|account| account.sockets[0].discarded_total > 0).sockets[0]
            .discarded_total,
        1
    );
}

#[test]
fn connections_above_limit_are_closed() {
    let server = TestReceiver::open(&[tcp(200)]);
    let mut streams: Vec<_> =
        (0..200).map(|_| TcpStream::connect(server.address(0)).unwrap()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        writeln!(stream, "c{number}:1|c").unwrap();
    }
    let mut lines: Vec<_> = (0..200).map(|_| server.next()).collect();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 200);

    let mut above = TcpStream::connect(server.address(0)).unwrap();
    let end = io::Read::read(&mut above, &mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)), "the connection must be closed at once: {end:?}");
    assert_eq!(
        server.wait_for_account(|account| account.sockets[0].discarded_total > 0).sockets[0]
            .discarded_total,
        1
    );

    // A closed connection makes room for another.
    drop(streams.pop());
    howdah_lab::wait_until("a new connection to be accepted", TEST_TIMEOUT, || {
        let mut next = TcpStream::connect(server.address(0)).unwrap();
        let _ = next.write_all(b"again:1|c\n");
        server.packets.recv_timeout(Duration::from_millis(50)).is_ok()
    });
}

#[test]
fn bind_error_names_address_in_use() {
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = first.local_addr().unwrap();
    let error =
        PacketReceiver::open(&[udp(&address.to_string(), 1, 1 << 16)], PacketHandlers::default);
    assert_eq!(error.unwrap_err().to_string(), format!("cannot bind udp {address}"));
}
