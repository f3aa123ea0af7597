//! Real sockets on the loopback. What was sent is counted by the sender, and the ledger has to close.

use std::{
    io::Write,
    net::{Shutdown, TcpStream, UdpSocket},
    os::unix::net::{UnixDatagram, UnixStream},
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
};

use super::*;

/// Longest wait for something that has to happen. Nothing is judged by time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends on what it sees. Stands still while the test holds `gate`.
struct Recorder {
    gate: Arc<Mutex<()>>,
    seen: Sender<Vec<u8>>,
}

impl Tap for Recorder {
    fn packet(&mut self, bytes: &[u8]) {
        drop(self.gate.lock());
        self.seen.send(bytes.to_vec()).unwrap();
    }
}

/// An intake whose packets come out of `seen`.
struct Server {
    intake: Intake,
    gate: Arc<Mutex<()>>,
    seen: Receiver<Vec<u8>>,
}

impl Server {
    fn open(listen: &[Listen]) -> Self {
        let gate = Arc::new(Mutex::new(()));
        let (sender, seen) = channel();
        let intake = Intake::open(listen, || {
            let tap = Recorder { gate: Arc::clone(&gate), seen: sender.clone() };
            Outlet { shard: None, tap: Some(Box::new(tap)) }
        });
        Self { intake: intake.unwrap(), gate, seen }
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.intake.addresses()[index].unwrap()
    }

    fn next(&self) -> String {
        String::from_utf8(self.seen.recv_timeout(PATIENCE).unwrap()).unwrap()
    }

    /// Reads the ledger until `done` says that it is what it has to become.
    fn wait(&self, done: impl Fn(&Account) -> bool) -> Account {
        let ledger = self.intake.ledger();
        let end = Instant::now() + PATIENCE;
        loop {
            let account = ledger.read();
            if done(&account) {
                return account;
            }
            assert!(Instant::now() < end, "it never came to it: {account:?}");
            std::thread::yield_now();
        }
    }
}

fn udp(address: &str, readers: usize, buffer_bytes: usize) -> Listen {
    Listen::Udp { address: address.parse().unwrap(), readers, buffer_bytes }
}

fn tcp(connections: usize) -> Listen {
    Listen::Tcp { address: "127.0.0.1:0".parse().unwrap(), connections }
}

fn client(server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    let client = UdpSocket::bind(any).unwrap();
    client.connect(server).unwrap();
    client
}

/// *sent = delivered + socket drops + backlog drops + unread*. The backlog is the host's, so there may
/// have been more drops there than ours.
fn assert_closes(account: &Account, sent: u64) {
    let delivered: u64 = account.sockets.iter().map(|socket| socket.packets_total).sum();
    let unread: u64 = account.sockets.iter().map(|socket| socket.unread_bytes).sum();
    assert_eq!(unread, 0, "{account:?}");
    let missing = sent - delivered - account.drops_total();
    assert!(missing <= account.backlog_drops_total, "{missing} of {sent}: {account:?}");
}

#[test]
fn every_kind_of_socket_takes_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let server = Server::open(&[
        udp("127.0.0.1:0", 1, 1 << 20),
        udp("[::1]:0", 1, 1 << 20),
        tcp(8),
        Listen::Unixgram { path: path("datagram"), mode: None, buffer_bytes: 1 << 20 },
        Listen::Unix { path: path("stream"), mode: Some(0o600), connections: 8 },
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

    let account = server.intake.stop(PATIENCE);
    assert_closes(&account, 5);
    let packets: Vec<_> = account.sockets.iter().map(|socket| socket.packets_total).collect();
    assert_eq!(packets, [1, 1, 1, 1, 1], "each is counted at its own socket");
    assert!(!path("datagram").exists() && !path("stream").exists());
}

#[test]
fn what_the_kernel_drops_is_counted_and_the_sum_closes() {
    let server = Server::open(&[udp("127.0.0.1:0", 1, 1 << 14)]);
    let client = client(server.address(0));
    let before = server.intake.ledger().read();
    let sent = 10_000;
    let gate = server.gate.lock().unwrap();
    for _ in 0..sent {
        client.send(b"some.counter:1|c").unwrap();
    }
    drop(gate);
    let account = server.wait(|account| {
        let backlog = account.backlog_drops_total;
        account.sockets[0].packets_total + account.drops_total() + backlog >= sent
    });
    assert!(account.drops_total() > sent / 2, "the buffer holds a few dozen: {account:?}");
    let advice = advice::Advice::between(&before, &account);
    assert!(advice[0].to_string().contains("set buffer-bytes = "), "{}", advice[0]);
    assert_closes(&server.intake.stop(PATIENCE), sent);
}

#[test]
fn what_is_in_the_buffer_when_told_to_stop_is_still_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("datagram");
    let unixgram = Listen::Unixgram { path: path.clone(), mode: None, buffer_bytes: 1 << 20 };
    let server = Server::open(&[udp("127.0.0.1:0", 1, 1 << 20), unixgram, tcp(8)]);
    let client = client(server.address(0));
    let mut stream = TcpStream::connect(server.address(2)).unwrap();
    let gate = server.gate.lock().unwrap();
    for _ in 0..300 {
        client.send(b"a:1|c").unwrap();
    }
    for _ in 0..5 {
        UnixDatagram::unbound().unwrap().send_to(b"b:1|c", &path).unwrap();
    }
    stream.write_all(b"c:1|c\nhalf a li").unwrap();
    // The order is given while the readers stand still, so all of it is unread then.
    server.intake.stop.order(Instant::now() + PATIENCE);
    drop(gate);
    let account = server.intake.stop(PATIENCE);
    assert_closes(&account, 306);
    let mut seen: Vec<_> = server.seen.iter().collect();
    seen.sort();
    assert_eq!(seen.len(), 306);
    assert_eq!(seen.last().unwrap(), b"c:1|c\n", "half a line is none");
    // Later packets are refused and counted; the closed socket refuses even that.
    let _ = client.send(b"late:1|c");
}

#[test]
fn several_readers_share_an_address_and_lose_nothing() {
    let server = Server::open(&[udp("127.0.0.1:0", 3, 1 << 20)]);
    let clients: Vec<_> = (0..24).map(|_| client(server.address(0))).collect();
    for (round, client) in (0..10).flat_map(|round| clients.iter().map(move |one| (round, one))) {
        client.send(format!("a:{round}|c").as_bytes()).unwrap();
        // One at a time, so that no small buffer is asked too much.
        server.next();
    }
    let account = server.intake.stop(PATIENCE);
    assert_closes(&account, 240);
    assert_eq!(account.sockets.len(), 3);
    let used = account.sockets.iter().filter(|socket| socket.packets_total > 0).count();
    assert!(used > 1, "24 senders hash to more than one socket: {account:?}");
}

#[test]
fn a_last_line_without_newline_counts_once_its_connection_ends() {
    let server = Server::open(&[tcp(8)]);
    let mut stream = TcpStream::connect(server.address(0)).unwrap();
    stream.write_all(b"a:1|c\nb:").unwrap();
    assert_eq!(server.next(), "a:1|c\n");
    stream.write_all(b"2|c\nc:3|c").unwrap();
    assert_eq!(server.next(), "b:2|c\n");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.next(), "c:3|c");
}

#[test]
fn an_endless_line_costs_no_memory_and_the_next_one_counts() {
    let server = Server::open(&[tcp(8)]);
    let mut stream = TcpStream::connect(server.address(0)).unwrap();
    stream.write_all(&vec![b'x'; 1 << 20]).unwrap();
    stream.write_all(b"\nafter:1|c\n").unwrap();
    assert_eq!(server.next(), "after:1|c\n");
    assert_eq!(
        server.wait(|account| account.sockets[0].discarded_total > 0).sockets[0].discarded_total,
        1
    );
}

#[test]
fn many_connections_are_served_and_those_above_the_limit_are_closed() {
    let server = Server::open(&[tcp(200)]);
    let mut streams: Vec<_> =
        (0..200).map(|_| TcpStream::connect(server.address(0)).unwrap()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        writeln!(stream, "c{number}:1|c").unwrap();
    }
    let mut seen: Vec<_> = (0..200).map(|_| server.next()).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 200);

    let mut above = TcpStream::connect(server.address(0)).unwrap();
    let end = std::io::Read::read(&mut above, &mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)), "closed at once: {end:?}");
    assert_eq!(
        server.wait(|account| account.sockets[0].discarded_total > 0).sockets[0].discarded_total,
        1
    );

    // One that ends makes room for another.
    drop(streams.pop());
    let end = Instant::now() + PATIENCE;
    loop {
        let mut next = TcpStream::connect(server.address(0)).unwrap();
        let _ = next.write_all(b"again:1|c\n");
        if server.seen.recv_timeout(Duration::from_millis(50)).is_ok() {
            break;
        }
        assert!(Instant::now() < end, "no connection was let in again");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Intake::open(&[udp(&address.to_string(), 1, 1 << 16)], Outlet::default);
    assert_eq!(error.unwrap_err().to_string(), format!("cannot bind udp {address}"));
}
