//! Takeovers between two servers in one process, and by a process that fails at each step.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    sync::Arc,
    thread,
    time::Instant,
};

use howdah_connect::Environment;
use howdah_lab::{wait_for, wait_until};
use parking_lot::Mutex;

use super::*;
use crate::{
    backends::{
        BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements, ValueBatch,
    },
    flush::FlushSnapshot,
    server::{ServerParts, ServerStartError, StatsdServer},
    settings::{ExtraTypes, GraphiteSettings, InfluxSettings, ListenSettings, StatsdSettings},
};

/// Maximum wait for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The intervals and batches of a backend, in all processes that use it.
#[derive(Clone, Default)]
struct SharedLog {
    snapshots: Arc<Mutex<Vec<Arc<FlushSnapshot>>>>,
    adopted: Arc<Mutex<Vec<BackendSpool>>>,
}

impl SharedLog {
    /// Returns the sum of a counter over all intervals.
    fn sum(&self, key: &str) -> f64 {
        let snapshots = self.snapshots.lock();
        let counters = snapshots.iter().flat_map(|snapshot| &snapshot.counters);
        counters.filter(|counter| counter.name.key() == key).map(|counter| counter.value).sum()
    }
}

/// A backend with a spool that its receiver never accepts.
struct LoggingBackend {
    log: SharedLog,
    status: BackendStatus,
    spool: Vec<u8>,
}

impl MetricBackend for LoggingBackend {
    fn name(&self) -> &'static str {
        "logging"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements {
            names_as_sent: true,
            distributions: true,
            messages: true,
            ..SnapshotRequirements::default()
        }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        self.log.snapshots.lock().push(Arc::clone(snapshot));
        Ok(())
    }

    fn hand_over(
        &mut self,
        _timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        spool.batches.push(ValueBatch::new(std::mem::take(&mut self.spool), 1));
        spool.batches.push(ValueBatch::new(b"later".to_vec(), 1));
        Ok(())
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.log.adopted.lock().push(spool);
    }

    fn exports_state(&self) -> bool {
        true
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        Some(self.spool.clone())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BackendError> {
        self.spool = [state, b"+"].concat();
        Ok(())
    }
}

fn settings(folder: &Path) -> StatsdSettings {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    StatsdSettings {
        listen: vec![
            ListenSettings::Udp {
                address: any,
                readers: 2,
                buffer_bytes: 1 << 20,
                allow: Vec::new(),
            },
            ListenSettings::tcp(any),
            ListenSettings::unix(folder.join("stream"), None),
        ],
        management: Some(any),
        health: Some(any),
        flush_interval: Duration::from_secs(3600),
        takeover: Some(folder.join("takeover")),
        types: ExtraTypes { kv: true, absolute_counter: true },
        ..StatsdSettings::default()
    }
}

fn parts(settings: StatsdSettings, log: &SharedLog) -> ServerParts {
    let (log, status) = (log.clone(), BackendStatus::default());
    let backend = LoggingBackend { log, status, spool: b"spooled".to_vec() };
    ServerParts { settings, backends: vec![Box::new(backend)], ..ServerParts::default() }
}

fn start(settings: &StatsdSettings, log: &SharedLog) -> StatsdServer {
    StatsdServer::start(parts(settings.clone(), log)).unwrap()
}

fn take_over(settings: &StatsdSettings, log: &SharedLog) -> Result<StatsdServer, ServerStartError> {
    let path = settings.takeover.as_deref().unwrap();
    let (predecessor, passed) = Predecessor::connect(path)?;
    let parts = parts(settings.clone(), log);
    StatsdServer::start(ServerParts { predecessor: Some(predecessor), passed, ..parts })
}

/// Starts a server with the backends of its settings, which takes over from the running one if
/// there is one.
fn start_with_backends(settings: &StatsdSettings) -> StatsdServer {
    let connected = Predecessor::connect(settings.takeover.as_deref().unwrap()).ok();
    let (predecessor, passed) = connected.unzip();
    let environment = Some(Environment::from_process());
    let (settings, passed) = (settings.clone(), passed.unwrap_or_default());
    let parts = ServerParts { settings, environment, predecessor, passed, ..Default::default() };
    StatsdServer::start(parts).unwrap()
}

fn status(server: &StatsdServer, backend: &str, field: &str) -> f64 {
    let statuses = server.core.statuses();
    let (_, status) = statuses.iter().find(|(name, _)| *name == backend).unwrap();
    status.get(field).unwrap_or_default()
}

/// Reads a request; `None` if it is not complete, or its sender has closed the connection since.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        text.extend_from_slice(&buffer[..length]);
        let all = String::from_utf8_lossy(&text);
        let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
        let expected = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= expected.unwrap_or(0_usize) {
            let body = body.to_owned();
            stream.set_nonblocking(true).unwrap();
            let is_open = stream.peek(&mut buffer).is_err();
            stream.set_nonblocking(false).unwrap();
            return is_open.then_some(body);
        }
    }
}

/// Accepts all requests of a receiver that has not replied to any before.
fn reply_from_now_on(listener: TcpListener) -> Arc<Mutex<Vec<String>>> {
    let bodies = Arc::<Mutex<Vec<String>>>::default();
    let received = Arc::clone(&bodies);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let received = Arc::clone(&received);
            thread::spawn(move || {
                while let Some(body) = read_request(&mut stream) {
                    received.lock().push(body);
                    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
                }
            });
        }
    });
    bodies
}

/// Returns the sum of a counter in the lines for InfluxDB.
fn sum_of_lines(bodies: &Mutex<Vec<String>>, key: &str) -> f64 {
    let bodies = bodies.lock();
    let lines = bodies.iter().flat_map(|body| body.lines());
    let counts = lines.filter(|line| {
        line.starts_with(&format!("{key},")) || line.starts_with(&format!("{key} "))
    });
    counts
        .map(|line| {
            let (_, rest) =
                line.split_once("count=").unwrap_or_else(|| panic!("no count in {line}"));
            rest.split([',', ' ']).next().unwrap().parse::<f64>().unwrap()
        })
        .sum()
}

/// Settings with a receiver that accepts connections, but does not reply.
fn with_silent_receiver(folder: &Path) -> (StatsdSettings, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(folder);
    let url = format!("http://{}/write?db=x", listener.local_addr().unwrap());
    settings.backends.influx = vec![InfluxSettings::new(url)];
    settings.flush_interval = Duration::from_secs(1);
    settings.shutdown_timeout = Duration::from_secs(2);
    (settings, listener)
}

fn send_hits(server: &StatsdServer, count: u32) {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packet = format!("hits:{count}|c");
    sender.send_to(packet.as_bytes(), server.addresses()[0].unwrap()).unwrap();
}

#[test]
fn spool_of_a_hanging_receiver_survives_two_takeovers_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let (mut settings, listener) = with_silent_receiver(folder.path());
    let first = start_with_backends(&settings);
    send_hits(&first, 1);
    wait_for_packets(&first, 1);
    wait_until("a batch that is not accepted", TIMEOUT, || {
        status(&first, "influx", "spool_batches") >= 1.0
    });
    let second = start_with_backends(&settings);
    send_hits(&second, 2);
    // The first process still tries to deliver.
    settings.shutdown_timeout = TIMEOUT;
    let third = start_with_backends(&settings);
    assert_eq!(first.stop().undelivered, []);
    assert_eq!(second.stop().undelivered, []);
    send_hits(&third, 4);
    wait_for_packets(&third, 3);
    let bodies = reply_from_now_on(listener);
    assert_eq!(third.stop().undelivered, []);
    assert_eq!(sum_of_lines(&bodies, "hits"), 7.0, "{:?}", bodies.lock());
}

#[test]
fn stop_after_a_takeover_waits_for_the_spool_of_the_old_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut settings, listener) = with_silent_receiver(folder.path());
    let old = start_with_backends(&settings);
    send_hits(&old, 1);
    wait_for_packets(&old, 1);
    wait_until("a batch that is not accepted", TIMEOUT, || {
        status(&old, "influx", "spool_batches") >= 1.0
    });
    settings.shutdown_timeout = 2 * TIMEOUT;
    let new = start_with_backends(&settings);
    let replying = thread::spawn(move || {
        assert_eq!(old.stop().undelivered, []);
        reply_from_now_on(listener)
    });
    assert_eq!(new.stop().undelivered, []);
    let bodies = replying.join().unwrap();
    assert_eq!(sum_of_lines(&bodies, "hits"), 1.0, "{:?}", bodies.lock());
}

#[test]
fn spool_is_not_delivered_to_another_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    // The receiver of the old process refuses connections.
    let gone = listen().local_addr().unwrap();
    let (first, second) = (listen(), listen());
    let graphite = |address: SocketAddr| GraphiteSettings {
        host: address.ip().to_string(),
        port: address.port(),
        ..GraphiteSettings::default()
    };
    let mut settings = settings(folder.path());
    settings.flush_interval = Duration::from_secs(1);
    settings.backends.graphite = vec![graphite(gone)];
    let old = start_with_backends(&settings);
    send_hits(&old, 1);
    wait_for_packets(&old, 1);
    wait_until("a batch that is not accepted", TIMEOUT, || {
        status(&old, "graphite", "spool_batches") >= 1.0
    });
    settings.flush_interval = Duration::from_secs(3600);
    let [one, other] = [&first, &second].map(|listener| graphite(listener.local_addr().unwrap()));
    settings.backends.graphite = vec![one, other, graphite(gone)];
    let new = start_with_backends(&settings);
    assert_eq!(old.stop().undelivered, []);
    let spooled = || {
        let statuses = new.core.statuses();
        let batches = statuses.iter().map(|(_, status)| status.get("spool_batches").unwrap_or(0.0));
        batches.collect::<Vec<_>>()
    };
    wait_until("the spool in the third backend", TIMEOUT, || spooled()[2] >= 1.0);
    assert_eq!(spooled()[..2], [0.0, 0.0]);
}

#[test]
fn spool_of_any_size_is_handed_over() {
    let (old, new) = UnixStream::pair().unwrap();
    let id = BackendId::all([("forward", "a:1")].into_iter()).remove(0);
    let bytes = vec![7; howdah_net::takeover::BODY_BYTES_MAX as usize + 1];
    let batches = vec![ValueBatch::new(bytes, 1), ValueBatch::new(b"small".to_vec(), 1)];
    let spool = BackendSpool { batches, ..BackendSpool::default() };
    let sender = thread::spawn(move || predecessor::send_spool(&old, &id, spool));
    for expected in [howdah_net::takeover::BODY_BYTES_MAX as usize + 1, 5] {
        let first = receive_frame(&new).unwrap().unwrap();
        let body = receive_body(&new, first, SPOOL).unwrap();
        let part = format::decode_spool(&body).unwrap();
        assert_eq!(part.spool.batches[0].bytes.len(), expected);
    }
    sender.join().unwrap().unwrap();
}

#[test]
fn new_process_that_does_not_read_delays_packets_only_until_the_commit_is_late() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, log) = (settings(folder.path()), SharedLog::default());
    let server = start(&settings, &log);
    let (predecessor, _) = Predecessor::connect(settings.takeover.as_deref().unwrap()).unwrap();
    let stream = predecessor.into_stream();
    send_frame(&stream, READY, b"", None).unwrap();
    let base = receive_frame(&stream).unwrap().unwrap();
    assert!(!receive_body(&stream, base, BASE).unwrap().is_empty());
    // More than the connection's buffer, so that the old process waits while it sends LAST.
    let mut lines = TcpStream::connect(server.addresses()[1].unwrap()).unwrap();
    let all: String = (0..100_000).map(|number| format!("user.{number:020}:1|c\n")).collect();
    lines.write_all(all.as_bytes()).unwrap();
    lines.write_all(b"end:1|c\n").unwrap();
    let received = || {
        let account = server.account();
        account.sockets.iter().map(|socket| socket.bytes_total).sum::<u64>()
    };
    wait_until("all lines", TIMEOUT, || received() > all.len() as u64);
    send_frame(&stream, PREPARED, b"", None).unwrap();
    let started = Instant::now();
    // The first message after it shows that the server does not read now.
    assert_eq!(receive_frame(&stream).unwrap().unwrap().kind, CONNECTION);
    let before = received();
    lines.write_all(b"hits:1|c\n").unwrap();
    wait_until("the line after the failed takeover", TIMEOUT, || received() > before);
    assert!(started.elapsed() < STEP_TIMEOUT, "each write has waited");
    assert_eq!(server.stop().undelivered, []);
    assert_eq!(log.sum("hits"), 1.0);
}

fn packets(server: &StatsdServer) -> u64 {
    server.account().sockets.iter().map(|socket| socket.packets_total).sum()
}

fn wait_for_packets(server: &StatsdServer, count: u64) {
    wait_until("the packets to arrive", TIMEOUT, || packets(server) >= count);
}

#[test]
fn new_server_continues_counts_connections_and_gauges() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, log) = (settings(folder.path()), SharedLog::default());
    let old = start(&settings, &log);
    let [udp, tcp, _] = old.addresses() else { panic!("three addresses are expected") };
    let (udp, tcp) = (udp.unwrap(), tcp.unwrap());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(tcp).unwrap();
    let lines = b"hits:1|c\ng:5|g\nt:1|ms\nu:ann|s\nbad\nall:100|C\nk:1|kv\n_e{2,1}:up|x";
    sender.send_to(lines, udp).unwrap();
    // The line is complete only after the takeover.
    stream.write_all(b"hits:2|c\nhi").unwrap();
    wait_for_packets(&old, 2);
    old.core.set_healthy(false);
    let new = take_over(&settings, &log).unwrap();
    assert!(!new.core.is_healthy(), "as a command has set it");
    assert_eq!(new.addresses(), old.addresses());
    assert_eq!(packets(&new), 2);
    wait_until("the old server to hand over", TIMEOUT, || old.was_handed_over());
    assert_eq!(old.stop().undelivered, []);
    assert!(log.snapshots.lock().is_empty(), "the running interval is not written by the old");
    sender.send_to(b"hits:4|c\ng:+1|g\nt:3|ms\nu:bob|s\nall:107|C", udp).unwrap();
    stream.write_all(b"ts:8|c\n").unwrap();
    wait_for_packets(&new, 4);
    wait_until("the spool", TIMEOUT, || !log.adopted.lock().is_empty());
    let batches = log.adopted.lock()[0].batches.iter().map(|batch| batch.bytes.clone()).collect();
    let batches: Vec<Vec<u8>> = batches;
    assert_eq!(batches, [&b"spooled"[..], b"later"], "in the same order");
    assert!(folder.path().join("stream").exists());
    assert_eq!(new.stop().undelivered, []);
    assert!(!folder.path().join("stream").exists(), "the new server owns the socket's file");
    assert!(!folder.path().join("takeover").exists());
    let snapshots = log.snapshots.lock();
    let [snapshot] = &snapshots[..] else { panic!("one interval is expected") };
    let counter = |key: &str| {
        let found = snapshot.counters.iter().find(|counter| counter.name.key() == key);
        found.map(|counter| counter.value)
    };
    assert_eq!(counter("hits"), Some(15.0));
    assert_eq!(counter("statsd.packets_received"), Some(4.0));
    assert_eq!(counter("statsd.bad_lines_seen"), Some(1.0));
    assert_eq!(counter("all"), Some(7.0), "the last total of the sender is known");
    assert_eq!((snapshot.timed.len(), snapshot.messages.len()), (1, 1));
    assert_eq!(snapshot.gauges[0].value, 6.0);
    assert_eq!(snapshot.timers[0].summary.as_ref().map(|summary| summary.sum), Some(4.0));
    assert_eq!(snapshot.sets[0].count, 2);
}

/// Plays the new process up to a step, then closes the connection.
fn fail_after(path: &Path, steps: &[u8]) {
    let (predecessor, sockets) = Predecessor::connect(path).unwrap();
    assert!(sockets.labels().count() >= 6, "all sockets are passed");
    let stream = predecessor.into_stream();
    for step in steps {
        send_frame(&stream, *step, b"", None).unwrap();
        // Everything up to the frame that ends the old process's part.
        loop {
            let frame = receive_frame(&stream).unwrap().unwrap();
            if matches!(frame.kind, BASE | LAST) {
                break;
            }
        }
    }
}

#[test]
fn old_server_goes_on_if_the_new_one_fails_before_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, log) = (settings(folder.path()), SharedLog::default());
    let path = settings.takeover.clone().unwrap();
    let server = start(&settings, &log);
    let [udp, tcp, _] = server.addresses() else { panic!("three addresses are expected") };
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(tcp.unwrap()).unwrap();
    for (count, steps) in (1..).zip([&[][..], &[READY], &[READY, PREPARED]]) {
        sender.send_to(b"hits:1|c\ng:+1|g", udp.unwrap()).unwrap();
        stream.write_all(b"lines:1|c\nli").unwrap();
        wait_for_packets(&server, 4 * count - 2);
        fail_after(&path, steps);
        stream.write_all(b"nes:1|c\n").unwrap();
        sender.send_to(b"hits:1|c", udp.unwrap()).unwrap();
        wait_for_packets(&server, 4 * count);
    }
    // A process of another version is refused, with the reason.
    let stream = UnixStream::connect(&path).unwrap();
    let hello = [MAGIC, &(VERSION + 1).to_be_bytes()].concat();
    send_frame(&stream, HELLO, &hello, None).unwrap();
    let refused = receive_frame(&stream).unwrap().unwrap();
    let why = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(refused.kind == REFUSED && why.contains("has version 2"), "{why}");
    // A process that sends something else does not disturb, either.
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(stream);
    // A server that cannot start ends before the commit.
    let mut wrong = settings.clone();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    wrong.health = Some(taken.local_addr().unwrap());
    assert!(matches!(take_over(&wrong, &log), Err(ServerStartError::Listen { .. })));
    // After all that, a takeover succeeds.
    let new = wait_for("a takeover", TIMEOUT, || take_over(&settings, &log).ok());
    assert_eq!(server.stop().undelivered, []);
    assert_eq!(new.stop().undelivered, []);
    assert_eq!((log.sum("hits"), log.sum("lines")), (6.0, 6.0));
    assert_eq!(log.sum("statsd.packets_received"), 12.0);
    assert_eq!(log.snapshots.lock().len(), 1);
}

#[test]
fn commit_that_comes_too_late_is_refused() {
    let (old, new) = UnixStream::pair().unwrap();
    // This is how `wait_for_commit` ends after its timeout.
    old.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(send_frame(&new, TAKEN, b"", None).is_err());
    // A commit that was sent before counts, even if the new process has ended since.
    let (old, new) = UnixStream::pair().unwrap();
    send_frame(&new, TAKEN, b"", None).unwrap();
    drop(new);
    old.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(receive_frame(&old).unwrap().is_some_and(|frame| frame.kind == TAKEN));
}

#[test]
fn removed_listener_and_no_server_are_handled() {
    let folder = tempfile::tempdir().unwrap();
    let (mut settings, log) = (settings(folder.path()), SharedLog::default());
    let nobody = take_over(&settings, &log);
    assert!(matches!(nobody, Err(ServerStartError::Takeover(TakeoverError::Unreachable { .. }))));
    let old = start(&settings, &log);
    settings.listen.truncate(1);
    settings.health = None;
    let new = take_over(&settings, &log).unwrap();
    assert_eq!(old.stop().undelivered, []);
    assert_eq!(new.addresses().len(), 1);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"hits:1|c", new.addresses()[0].unwrap()).unwrap();
    wait_for_packets(&new, 1);
}
