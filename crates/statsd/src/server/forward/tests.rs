//! Trees of real servers, with connections that break at the worst moments.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, UdpSocket},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use howdah_lab::wait_until;
use parking_lot::Mutex;

use super::*;

mod hostile;

use crate::{
    backends::{BackendError, BackendStatus, ForwardBackend, MetricBackend},
    flush::FlushSnapshot,
    server::{Predecessor, ServerParts, StatsdServer},
    settings::{ForwardSettings, HostAndPort, ListenSettings, StatsdSettings},
};

/// Maximum wait for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All intervals of a parent, in all processes that continue it.
#[derive(Clone, Default)]
struct ParentLog(Arc<Mutex<Vec<Arc<FlushSnapshot>>>>);

impl ParentLog {
    fn sum(&self, key: &str) -> f64 {
        let snapshots = self.0.lock();
        let counters = snapshots.iter().flat_map(|snapshot| &snapshot.counters);
        counters.filter(|counter| counter.name.key() == key).map(|counter| counter.value).sum()
    }
}

impl MetricBackend for ParentLog {
    fn name(&self) -> &'static str {
        "log"
    }

    fn status(&self) -> BackendStatus {
        BackendStatus::default()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        self.0.lock().push(Arc::clone(snapshot));
        Ok(())
    }
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn parent_settings(folder: &std::path::Path) -> StatsdSettings {
    StatsdSettings {
        listen: vec![ListenSettings::forward(ANY)],
        management: None,
        flush_interval: Duration::from_millis(100),
        takeover: Some(folder.join("takeover")),
        ..StatsdSettings::default()
    }
}

fn start_parent(settings: &StatsdSettings, log: &ParentLog, takes_over: bool) -> StatsdServer {
    let mut parts = ServerParts {
        settings: settings.clone(),
        backends: vec![Box::new(log.clone())],
        ..ServerParts::default()
    };
    if takes_over {
        let path = settings.takeover.as_deref().unwrap();
        let (predecessor, passed) = Predecessor::connect(path).unwrap();
        (parts.predecessor, parts.passed) = (Some(predecessor), passed);
    }
    StatsdServer::start(parts).unwrap()
}

fn start_child(to: SocketAddr, name: &str) -> StatsdServer {
    let to = HostAndPort { host: to.ip().to_string(), port: to.port() };
    let sender = Some(name.to_owned());
    start_forwarding(&ForwardSettings { sender, ..ForwardSettings::new(to) })
}

fn start_forwarding(forward: &ForwardSettings) -> StatsdServer {
    let settings = StatsdSettings {
        listen: vec![ListenSettings::udp(ANY)],
        management: None,
        flush_interval: Duration::from_millis(50),
        ..StatsdSettings::default()
    };
    let backend = ForwardBackend::new(forward, "unused").unwrap();
    let backends: Vec<Box<dyn MetricBackend>> = vec![Box::new(backend)];
    StatsdServer::start(ServerParts { settings, backends, ..ServerParts::default() }).unwrap()
}

/// A TCP proxy that breaks connections until told to stop that.
struct BreakingProxy {
    address: SocketAddr,
    is_breaking: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl BreakingProxy {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(ANY).unwrap();
        let address = listener.local_addr().unwrap();
        let is_breaking = Arc::new(AtomicBool::new(true));
        let connections = Arc::new(AtomicUsize::new(0));
        let (breaking, count) = (Arc::clone(&is_breaking), Arc::clone(&connections));
        thread::spawn(move || {
            for child in listener.incoming() {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let Ok(parent) = TcpStream::connect(to) else { continue };
                let breaking = breaking.load(Ordering::Relaxed);
                thread::spawn(move || relay(&child.unwrap(), &parent, breaking.then_some(number)));
            }
        });
        Self { address, is_breaking, connections }
    }
}

/// Copies in both directions. Of three connections that break, the first loses an acknowledgement,
/// the second is cut in the middle of a batch, and the third is cut after an acknowledgement.
fn relay(child: &TcpStream, parent: &TcpStream, breaking: Option<usize>) {
    let way = breaking.map(|number| number % 3);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (child, parent);
            let mut buffer = [0; 4096];
            let mut left = if way == Some(1) { 60 } else { usize::MAX };
            while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                let passed = bytes.min(left);
                left -= passed;
                if to.write_all(&buffer[..passed]).is_err() || left == 0 {
                    break;
                }
            }
            let _ = (child.shutdown(Shutdown::Both), parent.shutdown(Shutdown::Both));
        });
        let (mut from, mut to) = (parent, child);
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            if way == Some(0) || to.write_all(&buffer[..bytes]).is_err() || way.is_some() {
                break;
            }
        }
        let _ = (child.shutdown(Shutdown::Both), parent.shutdown(Shutdown::Both));
    });
}

#[test]
fn totals_are_equal_although_connections_break() {
    let folder = tempfile::tempdir().unwrap();
    let log = ParentLog::default();
    let parent = start_parent(&parent_settings(folder.path()), &log, false);
    let proxy = BreakingProxy::start(parent.addresses()[0].unwrap());
    let children = ["one", "two"].map(|name| start_child(proxy.address, name));
    let sender = UdpSocket::bind(ANY).unwrap();
    let mut sent = 0_u32;
    // Each child has connections that break in each way.
    wait_until("broken connections", TIMEOUT, || {
        for child in &children {
            sent += 1;
            let packet = format!("hits:1|c\nt:{sent}|ms\nseen:{sent}|s\nlast:{sent}|g\nsum:+1|g");
            sender.send_to(packet.as_bytes(), child.addresses()[0].unwrap()).unwrap();
        }
        proxy.connections.load(Ordering::Relaxed) >= 12
    });
    proxy.is_breaking.store(false, Ordering::Relaxed);
    wait_until("all increments", TIMEOUT, || log.sum("hits") >= f64::from(sent));
    for child in children {
        assert_eq!(child.stop().undelivered, []);
    }
    let account = parent.account();
    assert_eq!(parent.stop().undelivered, []);
    assert_eq!(log.sum("hits"), f64::from(sent));
    assert!(account.sockets[0].name.starts_with("forward "), "{account:?}");
    let snapshots = log.0.lock();
    let summaries = snapshots.iter().flat_map(|snapshot| &snapshot.timers);
    let samples = summaries.filter_map(|timer| Some(timer.summary.as_ref()?.samples));
    assert_eq!(samples.sum::<u64>(), u64::from(sent));
    let gauge = |key: &str| {
        let gauges = &snapshots.last().unwrap().gauges;
        gauges.iter().find(|gauge| gauge.name.key() == key).map(|gauge| gauge.value)
    };
    assert_eq!(gauge("sum"), Some(f64::from(sent)), "changes of both children add up");
    assert!(gauge("last").is_some_and(|last| last >= f64::from(sent - 1)));
}

#[test]
fn batches_survive_takeovers_of_the_parent() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, log) = (parent_settings(folder.path()), ParentLog::default());
    let mut parent = start_parent(&settings, &log, false);
    let proxy = BreakingProxy::start(parent.addresses()[0].unwrap());
    let child = start_child(proxy.address, "one");
    let sender = UdpSocket::bind(ANY).unwrap();
    let mut sent = 0_u32;
    for takeover in 1..=3 {
        wait_until("broken connections", TIMEOUT, || {
            sent += 1;
            sender.send_to(b"hits:1|c", child.addresses()[0].unwrap()).unwrap();
            proxy.connections.load(Ordering::Relaxed) >= 2 * takeover
        });
        let new = start_parent(&settings, &log, true);
        assert_eq!(std::mem::replace(&mut parent, new).stop().undelivered, []);
    }
    proxy.is_breaking.store(false, Ordering::Relaxed);
    wait_until("all increments", TIMEOUT, || log.sum("hits") >= f64::from(sent));
    assert_eq!(child.stop().undelivered, []);
    assert_eq!(parent.stop().undelivered, []);
    assert_eq!(log.sum("hits"), f64::from(sent));
}

#[test]
fn other_protocols_and_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let parent = start_parent(&parent_settings(folder.path()), &ParentLog::default(), false);
    let address = parent.addresses()[0].unwrap();
    for first in [&b"howdah statsd forward\x02\x00"[..], b""] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&forwarding::encode_frame(HELLO, first)).unwrap();
        let reply = receive_frame(&mut stream, 100).unwrap().unwrap();
        assert_eq!(reply.kind, NO);
        assert!(String::from_utf8_lossy(&reply.body).contains("version 1"));
        assert_eq!(receive_frame(&mut stream, 100).unwrap(), None);
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&forwarding::encode_frame(HELLO, &forwarding::hello())).unwrap();
    let id = forwarding::BatchId { sender: "x".to_owned(), incarnation: 1, sequence: 1 };
    let batch = forwarding::encode_batch(&id, b"\x09");
    stream.write_all(&forwarding::encode_frame(BATCH, &batch)).unwrap();
    let reply = receive_frame(&mut stream, 100).unwrap().unwrap();
    assert_eq!((reply.kind, reply.body[0]), (NO, 1), "it can never be merged");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}
