//! Whole servers on free ports.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    backends::{BackendError, Status},
    flush::Snapshot,
    settings::{Aggregation, Listen},
};

/// Keeps what it is given.
#[derive(Clone, Default)]
struct Keeper {
    snapshots: Arc<Mutex<Vec<Arc<Snapshot>>>>,
    status: Status,
    fails: bool,
}

impl Backend for Keeper {
    fn name(&self) -> &'static str {
        "keeper"
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        self.snapshots.lock().unwrap().push(Arc::clone(snapshot));
        match self.fails {
            true => Err(BackendError {
                receiver: "nowhere".to_owned(),
                action: "sending",
                source: "it is a test".into(),
            }),
            false => Ok(()),
        }
    }
}

fn settings() -> Settings {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Settings {
        listen: vec![Listen::Udp { address: any, readers: 1, buffer_bytes: 1 << 20 }],
        management: Some(any),
        health: Some(any),
        flush_interval: Duration::from_secs(3600),
        ..Settings::default()
    }
}

fn start(settings: Settings, keeper: &Keeper) -> Server {
    Server::start(Parts { settings, backends: vec![Box::new(keeper.clone())], ..Parts::default() })
        .unwrap()
}

/// Sends packets, and waits until the server has got them.
fn send(server: &Server, packets: &[&[u8]]) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before: u64 = server.account().sockets.iter().map(|socket| socket.packets_total).sum();
    for packet in packets {
        socket.send_to(packet, server.addresses()[0].unwrap()).unwrap();
    }
    let arrived =
        || server.account().sockets.iter().map(|socket| socket.packets_total).sum::<u64>() - before;
    while arrived() < packets.len() as u64 {
        thread::yield_now();
    }
}

fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn the_last_flush_leaves_and_the_ledger_closes() {
    let keeper = Keeper::default();
    let server = start(settings(), &keeper);
    send(&server, &[b"a:1|c", b"a:2|c\nb:3|g", b"nonsense"]);
    let ended = server.stop();
    assert_eq!(ended.undelivered, []);
    let socket = &ended.account.sockets[0];
    assert_eq!((socket.packets_total, socket.drops_total, socket.unread_bytes), (3, 0, 0));
    let snapshots = keeper.snapshots.lock().unwrap();
    let value = |key: &str| {
        let counters = &snapshots.last().unwrap().counters;
        counters.iter().find(|counter| counter.name.key() == key).map(|counter| counter.value)
    };
    assert_eq!(value("a"), Some(3.0));
    assert_eq!(value("statsd.packets_received"), Some(3.0));
    assert_eq!(value("statsd.metrics_received"), Some(4.0));
    assert_eq!(value("statsd.bad_lines_seen"), Some(1.0));
}

#[test]
fn a_backend_that_fails_is_named_at_the_end() {
    let keeper = Keeper { fails: true, ..Keeper::default() };
    let server = start(settings(), &keeper);
    let ended = server.stop();
    assert_eq!(ended.undelivered, [("keeper", "nowhere: sending failed: it is a test".to_owned())]);
}

#[test]
fn flushes_come_by_themselves() {
    let keeper = Keeper::default();
    let settings = Settings { flush_interval: Duration::from_millis(20), ..settings() };
    let server = start(settings, &keeper);
    while keeper.snapshots.lock().unwrap().len() < 3 {
        thread::yield_now();
    }
    assert!(keeper.status.get("last_flush").is_some());
    assert_eq!(server.stop().undelivered, []);
}

#[test]
fn the_management_port_takes_commands_one_after_the_other_or_all_at_once() {
    let server = start(settings(), &Keeper::default());
    send(&server, &[b"a:1|c"]);
    let management = server.management().unwrap();
    let reply = ask(management, "health\r\ncounters\nquit\n");
    assert!(reply.starts_with("health: up\n{\n  'statsd.bad_lines_seen': 0,"), "{reply}");
    assert!(reply.ends_with("a: 1\n}\nEND\n\n"), "{reply}");
    // Without a newline, and without closing: etsy's server takes what arrives together.
    let mut stream = TcpStream::connect(management).unwrap();
    stream.write_all(b"health").unwrap();
    let mut reply = [0; 11];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"health: up\n");
}

#[test]
fn health_is_told_over_http_too() {
    let server = start(settings(), &Keeper::default());
    let health = server.health().unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(ask(health, request).starts_with("HTTP/1.1 200 OK\r\n"));
    ask(server.management().unwrap(), "health down\nquit\n");
    let reply = ask(health, request);
    assert!(reply.starts_with("HTTP/1.1 503 ") && reply.ends_with("\r\n\r\ndown\n"), "{reply}");
    assert!(ask(health, "GET /nothing HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_reload_says_what_it_cannot_do() {
    let keeper = Keeper::default();
    let server = start(settings(), &keeper);
    let aggregation = Aggregation { prefix: "other".to_owned(), ..Aggregation::default() };
    let new = Settings {
        aggregation,
        flush_interval: Duration::from_secs(5),
        dump_messages: true,
        ..settings()
    };
    assert_eq!(server.reload(&new, Vec::new()), ["flush-interval", "dump-messages"]);
    send(&server, &[b"a:1|c"]);
    let _ = server.stop();
    let snapshots = keeper.snapshots.lock().unwrap();
    let keys: Vec<&str> = snapshots[0].counters.iter().map(|c| c.name.key()).collect();
    assert!(keys.contains(&"other.packets_received"), "{keys:?}");
}

#[test]
fn a_taken_port_is_named() {
    let first = start(settings(), &Keeper::default());
    let taken = Settings { management: first.management(), ..settings() };
    let error = Server::start(Parts { settings: taken, ..Parts::default() }).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cannot listen at 127.0.0.1:"), "{text}");
    assert!(text.ends_with(" for the management port"), "{text}");
}

/// Adds counters up, as slowly as its gate lets it.
struct Slow {
    status: Status,
    gate: mpsc::Receiver<()>,
    total: Arc<Mutex<f64>>,
}

impl Backend for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        // Closed at the end of the test: then it is quick.
        let _ = self.gate.recv();
        let hits = snapshot.counters.iter().filter(|counter| counter.name.key() == "hits");
        *self.total.lock().unwrap() += hits.map(|hits| hits.value).sum::<f64>();
        Ok(())
    }
}

#[test]
fn busy_backend_loses_no_increment() {
    let (open, gate) = mpsc::channel();
    let (status, total) = (Status::default(), Arc::new(Mutex::new(0.0)));
    let slow = Slow { status: status.clone(), gate, total: Arc::clone(&total) };
    let settings = Settings { flush_interval: Duration::from_millis(5), ..settings() };
    let server =
        Server::start(Parts { settings, backends: vec![Box::new(slow)], ..Parts::default() })
            .unwrap();
    let mut sent = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while status.get("flushes_joined").unwrap_or_default() < 5.0 {
        assert!(Instant::now() < deadline, "five intervals to be joined");
        send(&server, &[b"hits:1|c"]);
        sent += 1;
    }
    drop(open);
    assert_eq!(server.stop().undelivered, []);
    assert_eq!(*total.lock().unwrap(), f64::from(sent));
    assert_eq!(status.get("flushes_dropped"), None);
}
