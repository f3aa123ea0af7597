//! Nodes that fail and recover, and the account of every line.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

use super::*;

/// A node: a socket for samples, and a management port with a configurable reply to `health`.
struct StubNode {
    samples: UdpSocket,
    health: Arc<Mutex<&'static str>>,
    settings: settings::ProxyNodeSettings,
}

impl StubNode {
    fn new() -> Self {
        let samples = UdpSocket::bind("127.0.0.1:0").unwrap();
        samples.set_nonblocking(true).unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings::ProxyNodeSettings {
            host: "127.0.0.1".to_owned(),
            port: samples.local_addr().unwrap().port(),
            admin_port: admin.local_addr().unwrap().port(),
        };
        let health = Arc::new(Mutex::new("health: up\n"));
        let reply = Arc::clone(&health);
        // The thread ends with the test process.
        thread::spawn(move || {
            for peer in admin.incoming() {
                let mut peer: TcpStream = peer.unwrap();
                let reply = Arc::clone(&reply);
                // A foreign connection that sends nothing must not block the others.
                thread::spawn(move || {
                    let mut request = [0; 8];
                    if peer.read_exact(&mut request).is_ok() && &request == b"health\r\n" {
                        let _ = peer.write_all(reply.lock().as_bytes());
                    }
                });
            }
        });
        Self { samples, health, settings }
    }

    fn set_health(&self, health: &'static str) {
        *self.health.lock() = health;
    }

    /// Returns all lines received so far.
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

fn proxy(nodes: &[&StubNode]) -> StatsdProxy {
    StatsdProxy::start(&settings::ProxySettings {
        nodes: nodes.iter().map(|node| node.settings.clone()).collect(),
        // Also the timeout of a reply, which must suffice on a busy machine.
        check_interval: Duration::from_secs(2),
    })
    .unwrap()
}

fn wait_for_nodes_up(proxy: &StatsdProxy, count: usize) {
    let what = format!("{count} nodes to be up");
    howdah_lab::wait_until(&what, Duration::from_secs(120), || proxy.nodes_up().len() == count);
}

fn send(router: &mut dyn PacketObserver, keys: std::ops::Range<u32>) {
    router.batch_finished();
    for key in keys {
        router.packet(format!("key.{key}:1|c|#tag:a").as_bytes());
    }
    router.batch_finished();
}

#[test]
fn node_failure_moves_keys_and_accounts_for_every_line() {
    let nodes = [StubNode::new(), StubNode::new(), StubNode::new()];
    let proxy = proxy(&[&nodes[0], &nodes[1], &nodes[2]]);
    let mut router = proxy.observer_factory().unwrap()();
    let keys_of = |node: &StubNode| -> std::collections::BTreeSet<String> {
        node.lines().into_iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
    };

    send(&mut *router, 0..300);
    let before = [keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])];
    assert_eq!(before.iter().map(std::collections::BTreeSet::len).sum::<usize>(), 300);
    assert!(before.iter().all(|keys| !keys.is_empty()));

    nodes[1].set_health("health: down\n");
    wait_for_nodes_up(&proxy, 2);
    send(&mut *router, 0..300);
    let during = [keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])];
    assert!(during[1].is_empty());
    assert_eq!(during[0].len() + during[2].len(), 300);
    assert!(
        before[0].is_subset(&during[0]) && before[2].is_subset(&during[2]),
        "only its keys move"
    );

    for node in [&nodes[0], &nodes[2]] {
        node.set_health("no\n");
    }
    wait_for_nodes_up(&proxy, 0);
    send(&mut *router, 0..300);
    assert!(nodes.iter().all(|node| node.lines().is_empty()));

    nodes.iter().for_each(|node| node.set_health("health: up\n"));
    wait_for_nodes_up(&proxy, 3);
    send(&mut *router, 0..300);
    assert_eq!([keys_of(&nodes[0]), keys_of(&nodes[1]), keys_of(&nodes[2])], before);

    let status = proxy.status();
    let count = |name| status.get(name).unwrap();
    assert_eq!((count("lines"), count("sent"), count("failed")), (1200.0, 900.0, 0.0));
    assert_eq!((count("dropped"), count("ring_changes")), (300.0, 6.0));
}

#[test]
fn refused_datagram_counts_as_failed() {
    let node = StubNode::new();
    let proxy = proxy(&[&node]);
    let mut router = proxy.observer_factory().unwrap()();
    send(&mut *router, 0..10);
    assert_eq!(node.lines().len(), 10);
    // The socket closes but the management port stays open, so the ring does not change.
    let StubNode { samples, .. } = node;
    drop(samples);
    send(&mut *router, 0..11);
    let status = proxy.status();
    let count = |name| status.get(name).unwrap();
    assert_eq!(count("lines"), 21.0);
    assert_eq!(count("sent") + count("failed"), 21.0);
    // The refusal of the last datagram has not been reported yet.
    assert!(count("failed") >= 10.0, "{}", count("failed"));
}

#[test]
fn lines_for_one_node_share_packet() {
    let node = StubNode::new();
    let proxy = proxy(&[&node]);
    let mut router = proxy.observer_factory().unwrap()();
    router.packet(b"a:1|c\n\nb:2|c\n");
    router.packet(b"\n");
    let mut buffer = [0; 100];
    let (sender, receiver) = mpsc::channel();
    sender.send(node.samples.recv(&mut buffer).unwrap()).unwrap();
    assert_eq!(&buffer[..receiver.recv().unwrap()], b"a:1|c\nb:2|c");
    assert!(node.lines().is_empty());
    assert_eq!(proxy.status().get("sent"), Some(2.0));
}

#[test]
fn proxy_without_nodes_is_error() {
    let settings = settings::ProxySettings { nodes: Vec::new(), check_interval: Duration::ZERO };
    assert!(matches!(StatsdProxy::start(&settings), Err(ProxyError::NoNodes)));
}
