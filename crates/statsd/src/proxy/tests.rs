//! Nodes that are lost and come back, and where every line went.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

use super::*;

/// A node: a socket for samples, and a management port that answers `health` while it is told to.
struct Stub {
    samples: UdpSocket,
    health: Arc<Mutex<&'static str>>,
    settings: settings::ProxyNode,
}

impl Stub {
    fn new() -> Self {
        let samples = UdpSocket::bind("127.0.0.1:0").unwrap();
        samples.set_nonblocking(true).unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings::ProxyNode {
            host: "127.0.0.1".to_owned(),
            port: samples.local_addr().unwrap().port(),
            admin_port: admin.local_addr().unwrap().port(),
        };
        let health = Arc::new(Mutex::new("health: up\n"));
        let says = Arc::clone(&health);
        // It ends with the test's process.
        thread::spawn(move || {
            for peer in admin.incoming() {
                let mut peer: TcpStream = peer.unwrap();
                let says = Arc::clone(&says);
                // Who connects and says nothing, a stranger to this test, must not hold up the rest.
                thread::spawn(move || {
                    let mut question = [0; 8];
                    if peer.read_exact(&mut question).is_ok() && &question == b"health\r\n" {
                        let _ = peer.write_all(says.lock().unwrap().as_bytes());
                    }
                });
            }
        });
        Self { samples, health, settings }
    }

    fn says(&self, health: &'static str) {
        *self.health.lock().unwrap() = health;
    }

    /// All lines that have arrived.
    fn lines(&self) -> Vec<String> {
        let mut buffer = vec![0; 65_536];
        let mut lines = Vec::new();
        while let Ok(bytes) = self.samples.recv(&mut buffer) {
            let text = std::str::from_utf8(&buffer[..bytes]).unwrap();
            lines.extend(text.split('\n').map(str::to_owned));
        }
        lines
    }
}

fn proxy(nodes: &[&Stub]) -> Proxy {
    Proxy::start(&settings::Proxy {
        nodes: nodes.iter().map(|node| node.settings.clone()).collect(),
        // Also how long an answer may take, on a machine that does other things, too.
        check_interval: Duration::from_secs(2),
    })
    .unwrap()
}

fn wait_for(what: impl Fn() -> bool) {
    let give_up = std::time::Instant::now() + Duration::from_secs(120);
    while !what() {
        assert!(std::time::Instant::now() < give_up, "it did not happen");
        // The health checks have their own rhythm; there is nothing to be told of. Who looks all
        // the time takes the processor from those who answer.
        thread::sleep(Duration::from_millis(5));
    }
}

fn send(tap: &mut dyn Tap, keys: std::ops::Range<u32>) {
    tap.end_of_batch();
    for key in keys {
        tap.packet(format!("key.{key}:1|c|#tag:a").as_bytes());
    }
    tap.end_of_batch();
}

#[test]
fn a_node_is_lost_and_comes_back_and_every_line_is_accounted_for() {
    let nodes = [Stub::new(), Stub::new(), Stub::new()];
    let proxy = proxy(&[&nodes[0], &nodes[1], &nodes[2]]);
    let mut tap = proxy.taps().unwrap()();
    let keys_of = |node: &Stub| -> std::collections::BTreeSet<String> {
        node.lines().into_iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
    };

    send(&mut *tap, 0..300);
    let before = [keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])];
    assert_eq!(before.iter().map(std::collections::BTreeSet::len).sum::<usize>(), 300);
    assert!(before.iter().all(|keys| !keys.is_empty()));

    nodes[1].says("health: down\n");
    wait_for(|| proxy.nodes_up().len() == 2);
    send(&mut *tap, 0..300);
    let during = [keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])];
    assert!(during[1].is_empty());
    assert_eq!(during[0].len() + during[2].len(), 300);
    assert!(
        before[0].is_subset(&during[0]) && before[2].is_subset(&during[2]),
        "only its keys move"
    );

    for node in [&nodes[0], &nodes[2]] {
        node.says("no\n");
    }
    wait_for(|| proxy.nodes_up().is_empty());
    send(&mut *tap, 0..300);
    assert!(nodes.iter().all(|node| node.lines().is_empty()));

    nodes.iter().for_each(|node| node.says("health: up\n"));
    wait_for(|| proxy.nodes_up().len() == 3);
    send(&mut *tap, 0..300);
    assert_eq!([keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])], before);

    let status = proxy.status();
    let count = |name| status.get(name).unwrap();
    assert_eq!((count("lines"), count("sent"), count("failed")), (1200.0, 900.0, 0.0));
    assert_eq!((count("dropped"), count("ring_changes")), (300.0, 6.0));
}

#[test]
fn a_datagram_that_came_back_is_counted_as_failed() {
    let node = Stub::new();
    let proxy = proxy(&[&node]);
    let mut tap = proxy.taps().unwrap()();
    send(&mut *tap, 0..10);
    assert_eq!(node.lines().len(), 10);
    // The socket goes, the management port stays: the ring does not change.
    let Stub { samples, .. } = node;
    drop(samples);
    send(&mut *tap, 0..11);
    let status = proxy.status();
    let count = |name| status.get(name).unwrap();
    assert_eq!(count("lines"), 21.0);
    assert_eq!(count("sent") + count("failed"), 21.0);
    // Of the last one nothing has been heard yet.
    assert!(count("failed") >= 10.0, "{}", count("failed"));
}

#[test]
fn lines_of_one_packet_for_one_node_stay_together() {
    let node = Stub::new();
    let proxy = proxy(&[&node]);
    let mut tap = proxy.taps().unwrap()();
    tap.packet(b"a:1|c\n\nb:2|c\n");
    tap.packet(b"\n");
    let mut buffer = [0; 100];
    let (sender, receiver) = mpsc::channel();
    sender.send(node.samples.recv(&mut buffer).unwrap()).unwrap();
    assert_eq!(&buffer[..receiver.recv().unwrap()], b"a:1|c\nb:2|c");
    assert!(node.lines().is_empty());
    assert_eq!(proxy.status().get("sent"), Some(2.0));
}

#[test]
fn no_nodes_is_an_error() {
    let settings = settings::Proxy { nodes: Vec::new(), check_interval: Duration::ZERO };
    assert!(matches!(Proxy::start(&settings), Err(ProxyError::NoNodes)));
}
