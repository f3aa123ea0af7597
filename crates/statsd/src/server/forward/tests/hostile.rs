//! Peers that send anything but what a forwarding server sends.

use super::*;
use crate::{
    flush::ForwardedBatch,
    forwarding::{BatchId, encode_batch, encode_frame},
    hyperloglog::HyperLogLog,
    receiver::testing::{TestIdentity, token_file},
};

/// A peer that has sent HELLO.
struct Peer {
    stream: TcpStream,
    sequence: u64,
}

impl Peer {
    fn connect(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&encode_frame(HELLO, &forwarding::hello())).unwrap();
        Self { stream, sequence: 0 }
    }

    /// Sends a part, and returns the reply.
    fn send(&mut self, part: &[u8]) -> ForwardFrame {
        self.sequence += 1;
        let id = BatchId { sender: "x".to_owned(), incarnation: 1, sequence: self.sequence };
        self.stream.write_all(&encode_frame(BATCH, &encode_batch(&id, part))).unwrap();
        receive_frame(&mut self.stream, 1000).unwrap().unwrap()
    }

    /// Sends a part that can never be merged, and returns the reason.
    fn send_refused(&mut self, part: &[u8]) -> String {
        let ForwardFrame { kind, body } = self.send(part);
        assert_eq!((kind, body[0]), (NO, 1));
        String::from_utf8_lossy(&body[2..]).into_owned()
    }
}

/// EncodedCells of one type.
#[derive(Default)]
struct EncodedCells(usize, Vec<u8>);

impl EncodedCells {
    fn add(mut self, key: &str, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.0 += 1;
        self.1.write_text(key);
        self.1.write_bool(false);
        write(&mut self.1);
        self
    }
}

fn interval(counts: [u64; 9], cells: &[EncodedCells; 4]) -> Vec<u8> {
    let mut out = Vec::new();
    counts.iter().for_each(|count| out.write_varint(*count));
    out.extend([0, 0]);
    for EncodedCells(count, bytes) in cells {
        out.write_count(*count);
        out.extend_from_slice(bytes);
    }
    out.extend([0, 0, 0]);
    out
}

/// A part of one interval.
fn part(cells: &[EncodedCells; 4]) -> Vec<u8> {
    [&[1], &interval([0; 9], cells)[..], &[0, 0]].concat()
}

fn counters(cells: EncodedCells) -> Vec<u8> {
    part(&[cells, EncodedCells::default(), EncodedCells::default(), EncodedCells::default()])
}

fn sets(cells: EncodedCells) -> Vec<u8> {
    part(&[EncodedCells::default(), EncodedCells::default(), EncodedCells::default(), cells])
}

fn counter(out: &mut Vec<u8>, sum: f64) {
    out.write_f64(sum);
    out.write_varint(1);
}

/// Waits until the parent has closed the connection.
fn assert_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    let is_timeout = end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    assert!(!is_timeout, "the connection must be closed");
}

#[test]
fn batch_that_takes_too_much_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = ParentLog::default();
    let parent = start_parent(&parent_settings(folder.path()), &log, false);
    let mut peer = Peer::connect(parent.addresses()[0].unwrap());
    // Each member takes a byte of the batch.
    let members = ForwardedBatch::MEMORY_MAX / 32;
    let large = EncodedCells::default().add("large", |out| {
        out.write_count(members);
        out.resize(out.len() + members + 3, 0);
    });
    assert_eq!(peer.send_refused(&sets(large)), "the values take too much memory");
    // Small estimates take little memory.
    let mut estimate = HyperLogLog::default();
    estimate.add(b"one");
    let estimates = (0..100_000).fold(EncodedCells::default(), |cells, at| {
        cells.add(&format!("estimate{at}"), |out| {
            out.extend([0, 1]);
            out.write_bytes(&estimate.to_bytes());
            out.extend([0, 1]);
        })
    });
    assert_eq!(peer.send(&sets(estimates)).kind, ACK);
    assert_eq!(
        peer.send(&counters(EncodedCells::default().add("a", |out| counter(out, 1.0)))).kind,
        ACK
    );
    parent.stop();
    assert_eq!(log.sum("a"), 1.0);
}

#[test]
fn connections_without_complete_messages_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = parent_settings(folder.path());
    if let ListenSettings::Forward { handshake_timeout, idle_timeout, connections, .. } =
        &mut settings.listen[0]
    {
        *handshake_timeout = Duration::from_millis(200);
        *idle_timeout = Duration::from_millis(300);
        *connections = 2;
    }
    let parent = start_parent(&settings, &ParentLog::default(), false);
    let address = parent.addresses()[0].unwrap();
    let head = |bytes: u32| [&[BATCH][..], &bytes.to_le_bytes(), &[0; 8]].concat();
    // More connections than the limit: closed ones make room.
    for sent in [&b""[..], b"\x01", &encode_frame(HELLO, &forwarding::hello())[..20]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(sent).unwrap();
        assert_closed(&mut stream);
    }
    // Before HELLO, a large frame is not even received.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&head(BODY_BYTES_MAX as u32)).unwrap();
    assert_closed(&mut stream);
    assert!(parent.account().failed_handshakes_total() >= 3);
    // After it, a silent connection is closed, too.
    assert_closed(&mut Peer::connect(address).stream);
    let mut peer = Peer::connect(address);
    peer.stream.write_all(&head(BODY_BYTES_MAX as u32 + 1)).unwrap();
    assert_closed(&mut peer.stream);
}

#[test]
fn numbers_of_a_peer_do_not_become_infinite_or_stop_takeovers() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, log) = (parent_settings(folder.path()), ParentLog::default());
    let parent = start_parent(&settings, &log, false);
    let mut peer = Peer::connect(parent.addresses()[0].unwrap());
    let none = || [(); 4].map(|()| EncodedCells::default());
    let two = [&[2], &interval([0; 9], &none())[..], &interval([0; 9], &none()), &[0, 0]].concat();
    let counts = [&[1], &interval([1 << 53; 9], &none())[..], &[0, 0]].concat();
    for refused in [&[0, 0, 0][..], &two, &counts] {
        assert!(peer.send_refused(refused).contains("one interval, without counts"));
    }
    let huge = || {
        let counters = EncodedCells::default()
            .add("huge", |out| counter(out, f64::MAX))
            .add("fine", |out| counter(out, 1e18));
        let timers = EncodedCells::default().add("huge", |out| {
            // Unit, no weights, and one sample.
            out.extend([0, 0, 0, 1]);
            counter(out, f64::MAX);
        });
        let timers = timers.add("huge.sketch", |out| {
            out.extend([0, 0, 1]);
            // Buckets, zeros, count, sum and range of the sketch.
            out.extend([0, 0]);
            [1.0, 1.0, f64::MAX].iter().for_each(|number| out.write_f64(*number));
            out.extend([1]);
            [0.0, 0.0].iter().for_each(|number| out.write_f64(*number));
            out.write_varint(1 << 53);
            [f64::MAX, f64::MAX].iter().for_each(|number| out.write_f64(*number));
            out.extend([1]);
            [0.0, 0.0].iter().for_each(|number| out.write_f64(*number));
            out.extend([1]);
        });
        let gauges = EncodedCells::default().add("huge", |out| {
            out.extend([0, 1, 1]);
            counter(out, f64::MAX);
        });
        let sets = EncodedCells::default().add("huge", |out| {
            out.extend([0, 0]);
            out.write_varint(1 << 53);
            out.extend([1]);
        });
        part(&[counters, timers, gauges, sets])
    };
    for _ in 0..3 {
        assert_eq!(peer.send(&huge()).kind, ACK);
    }
    let successor = start_parent(&settings, &log, true);
    assert_eq!(parent.stop().undelivered, []);
    let mut peer = Peer::connect(successor.addresses()[0].unwrap());
    peer.sequence = 6;
    assert_eq!(peer.send(&huge()).kind, ACK);
    assert_eq!(successor.stop().undelivered, []);
    assert_eq!((log.sum("fine"), log.sum("huge")), (4e18, 0.0));
    assert_eq!(log.sum("statsd.bad_lines_seen"), 4.0 * 5.0, "each is rejected and counted");
    let snapshots = log.0.lock();
    assert!(snapshots.iter().all(|one| one.timers.is_empty() && one.gauges.len() <= 1));
}

#[test]
fn peers_need_certificate_and_token() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = TestIdentity::make(folder.path(), "server") else { return };
    let Some(own) = TestIdentity::make(folder.path(), "child") else { return };
    let mut settings = parent_settings(folder.path());
    if let ListenSettings::Forward {
        tls_certificate, tls_key, client_ca, token_file: tokens, ..
    } = &mut settings.listen[0]
    {
        *tls_certificate = Some(server.certificate.clone());
        *tls_key = Some(server.key.clone());
        *client_ca = Some(own.certificate.clone());
        *tokens = Some(token_file(folder.path(), "sesame\n"));
    }
    let log = ParentLog::default();
    let parent = start_parent(&settings, &log, false);
    let port = parent.addresses()[0].unwrap().port();
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "sesam").unwrap();
    let admitted = ForwardSettings {
        tls: true,
        ca_file: Some(server.certificate.clone()),
        tls_certificate: Some(own.certificate.clone()),
        tls_key: Some(own.key.clone()),
        token_file: Some(folder.path().join("tokens")),
        ..ForwardSettings::new(HostAndPort { host: "localhost".to_owned(), port })
    };
    let others = [
        ForwardSettings { tls: false, ..admitted.clone() },
        ForwardSettings { tls_certificate: None, tls_key: None, ..admitted.clone() },
        ForwardSettings { token_file: None, ..admitted.clone() },
        ForwardSettings { token_file: Some(wrong), ..admitted.clone() },
    ];
    let start = |forward: &ForwardSettings| {
        let child = start_forwarding(forward);
        let sender = UdpSocket::bind(ANY).unwrap();
        sender.send_to(b"hits:1|c", child.addresses()[0].unwrap()).unwrap();
        child
    };
    let mut failed = 0;
    for other in &others {
        let child = start(other);
        wait_until("a refusal", TIMEOUT, || parent.account().failed_handshakes_total() > failed);
        failed = parent.account().failed_handshakes_total();
        assert_eq!(child.stop().undelivered.len(), 1, "{other:?}");
    }
    let child = start(&admitted);
    wait_until("the increment", TIMEOUT, || log.sum("hits") == 1.0);
    assert_eq!(child.stop().undelivered, []);
    assert_eq!(parent.stop().undelivered, []);
    assert_eq!(log.sum("hits"), 1.0);
    let missing = ForwardSettings { tls_certificate: Some("/missing".into()), ..admitted };
    assert!(ForwardBackend::new(&missing, "unused").is_err());
}

#[test]
fn gauges_of_replaced_sender_do_not_return() {
    let folder = tempfile::tempdir().unwrap();
    let log = ParentLog::default();
    let parent = start_parent(&parent_settings(folder.path()), &log, false);
    let mut stream = Peer::connect(parent.addresses()[0].unwrap()).stream;
    for (incarnation, value) in [(2, 20.0), (1, 10.0)] {
        let set = |out: &mut Vec<u8>| {
            out.extend([1, 1]);
            out.write_f64(value);
            out.extend([0, 1]);
        };
        let mut gauges = EncodedCells::default().add("g", set);
        if incarnation == 1 {
            gauges = gauges.add("only.old", set);
        }
        let none = EncodedCells::default;
        let id = BatchId { sender: "x".to_owned(), incarnation, sequence: 1 };
        let batch = encode_batch(&id, &part(&[none(), none(), gauges, none()]));
        stream.write_all(&encode_frame(BATCH, &batch)).unwrap();
        assert_eq!(receive_frame(&mut stream, 1000).unwrap().unwrap().kind, ACK);
    }
    assert_eq!(parent.stop().undelivered, []);
    let snapshots = log.0.lock();
    let gauges = snapshots.last().unwrap().gauges.iter();
    let gauges: Vec<_> = gauges.map(|gauge| (gauge.name.key(), gauge.value)).collect();
    assert!(gauges.contains(&("g", 20.0)) && gauges.contains(&("only.old", 10.0)), "{gauges:?}");
}
