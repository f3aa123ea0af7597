//! Complete servers on free ports.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::Arc,
};

use parking_lot::Mutex;

use super::*;
use crate::{
    backends::{BackendError, BackendStatus},
    flush::{FlushSnapshot, MessageContent},
    settings::{Aggregation, BackendSettings, ListenSettings, RepeaterProtocol, RepeaterSettings},
};

/// Maximum wait for an expected event.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Records all snapshots.
#[derive(Clone, Default)]
struct RecordingBackend {
    snapshots: Arc<Mutex<Vec<Arc<FlushSnapshot>>>>,
    status: BackendStatus,
    fails: bool,
    messages: bool,
}

impl MetricBackend for RecordingBackend {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { messages: self.messages, ..SnapshotRequirements::default() }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        self.snapshots.lock().push(Arc::clone(snapshot));
        if self.fails {
            Err(BackendError {
                receiver: "nowhere".to_owned(),
                action: "sending",
                source: "it is a test".into(),
            })
        } else {
            Ok(())
        }
    }
}

fn settings() -> StatsdSettings {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    StatsdSettings {
        listen: vec![ListenSettings::udp(any)],
        management: Some(any),
        health: Some(any),
        flush_interval: Duration::from_secs(3600),
        ..StatsdSettings::default()
    }
}

fn start(settings: StatsdSettings, backend: &RecordingBackend) -> StatsdServer {
    StatsdServer::start(ServerParts {
        settings,
        backends: vec![Box::new(backend.clone())],
        ..ServerParts::default()
    })
    .unwrap()
}

/// Sends packets and waits until the server has received them.
fn send(server: &StatsdServer, packets: &[&[u8]]) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before: u64 = server.account().sockets.iter().map(|socket| socket.packets_total).sum();
    for packet in packets {
        socket.send_to(packet, server.addresses()[0].unwrap()).unwrap();
    }
    let arrived =
        || server.account().sockets.iter().map(|socket| socket.packets_total).sum::<u64>() - before;
    howdah_lab::wait_until("the packets to arrive", TEST_TIMEOUT, || {
        arrived() >= packets.len() as u64
    });
}

fn request(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn stop_delivers_last_flush_and_balances_ledger() {
    let backend = RecordingBackend::default();
    let server = start(settings(), &backend);
    send(&server, &[b"a:1|c", b"a:2|c\nb:3|g", b"nonsense"]);
    let report = server.stop();
    assert_eq!(report.undelivered, []);
    let socket = &report.account.sockets[0];
    assert_eq!((socket.packets_total, socket.drops_total, socket.unread_bytes), (3, 0, 0));
    let snapshots = backend.snapshots.lock();
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
fn events_and_checks_reach_backend_and_repeater() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let repeater = RepeaterSettings {
        host: "127.0.0.1".to_owned(),
        port: receiver.local_addr().unwrap().port(),
        protocol: RepeaterProtocol::Udp4,
    };
    let backends = BackendSettings { repeater: vec![repeater], ..BackendSettings::default() };
    let backend = RecordingBackend { messages: true, ..RecordingBackend::default() };
    let server = start(StatsdSettings { backends, ..settings() }, &backend);
    let packet = b"_e{2,4}:hi|text|#a:b\n_sc|db|2|m:down";
    send(&server, &[packet]);
    assert_eq!(server.stop().undelivered, []);
    let mut buffer = [0; 100];
    let bytes = receiver.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], packet, "the repeater forwards packets unchanged");
    let snapshots = backend.snapshots.lock();
    let contents = snapshots.last().unwrap().messages.iter().map(|message| &message.content);
    let [MessageContent::Event { title, .. }, MessageContent::Check { message, .. }] =
        contents.collect::<Vec<_>>()[..]
    else {
        panic!("{snapshots:?}")
    };
    assert_eq!((&**title, &**message), ("hi", "down"));
}

#[test]
fn failing_backend_is_named_in_shutdown_report() {
    let backend = RecordingBackend { fails: true, ..RecordingBackend::default() };
    let server = start(settings(), &backend);
    let report = server.stop();
    assert_eq!(
        report.undelivered,
        [("recording", "nowhere: sending failed: it is a test".to_owned())]
    );
}

#[test]
fn flushes_run_at_interval() {
    let backend = RecordingBackend::default();
    let settings = StatsdSettings { flush_interval: Duration::from_millis(20), ..settings() };
    let server = start(settings, &backend);
    howdah_lab::wait_until("three flushes", TEST_TIMEOUT, || backend.snapshots.lock().len() >= 3);
    assert!(backend.status.get("last_flush").is_some());
    assert_eq!(server.stop().undelivered, []);
}

#[test]
fn management_port_accepts_sequential_and_pipelined_commands() {
    let server = start(settings(), &RecordingBackend::default());
    send(&server, &[b"a:1|c"]);
    let management = server.management().unwrap();
    let reply = request(management, "health\r\ncounters\nquit\n");
    assert!(reply.starts_with("health: up\n{\n  'statsd.bad_lines_seen': 0,"), "{reply}");
    assert!(reply.ends_with("a: 1\n}\nEND\n\n"), "{reply}");
    // Without newline and without closing: etsy's server executes what arrives in one read.
    let mut stream = TcpStream::connect(management).unwrap();
    stream.write_all(b"health").unwrap();
    let mut reply = [0; 11];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"health: up\n");
}

#[test]
fn health_endpoint_reports_health_status() {
    let server = start(settings(), &RecordingBackend::default());
    let health = server.health().unwrap();
    let get_health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(request(health, get_health).starts_with("HTTP/1.1 200 OK\r\n"));
    request(server.management().unwrap(), "health down\nquit\n");
    let reply = request(health, get_health);
    assert!(reply.starts_with("HTTP/1.1 503 ") && reply.ends_with("\r\n\r\ndown\n"), "{reply}");
    assert!(request(health, "GET /nothing HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

#[test]
fn reload_reports_settings_that_need_restart() {
    let backend = RecordingBackend::default();
    let server = start(settings(), &backend);
    let aggregation = Aggregation { prefix: "other".to_owned(), ..Aggregation::default() };
    let new = StatsdSettings {
        aggregation,
        flush_interval: Duration::from_secs(5),
        dump_messages: true,
        ..settings()
    };
    assert_eq!(server.reload(&new, Vec::new()), ["flush-interval", "dump-messages"]);
    send(&server, &[b"a:1|c"]);
    let _ = server.stop();
    let snapshots = backend.snapshots.lock();
    let keys: Vec<&str> = snapshots[0].counters.iter().map(|c| c.name.key()).collect();
    assert!(keys.contains(&"other.packets_received"), "{keys:?}");
}

#[test]
fn start_error_names_port_in_use() {
    let first = start(settings(), &RecordingBackend::default());
    let conflicting = StatsdSettings { management: first.management(), ..settings() };
    let error =
        StatsdServer::start(ServerParts { settings: conflicting, ..ServerParts::default() })
            .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cannot listen on 127.0.0.1:"), "{text}");
    assert!(text.ends_with(" for the management port"), "{text}");
}

/// Sums a counter, one flush per permit from `gate`.
struct SlowBackend {
    status: BackendStatus,
    gate: mpsc::Receiver<()>,
    total: Arc<Mutex<f64>>,
}

impl MetricBackend for SlowBackend {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        // The gate is closed at the end of the test; then flushes do not block.
        let _ = self.gate.recv();
        let hits = snapshot.counters.iter().filter(|counter| counter.name.key() == "hits");
        *self.total.lock() += hits.map(|hits| hits.value).sum::<f64>();
        Ok(())
    }
}

#[test]
fn busy_backend_delivers_every_increment() {
    let (open, gate) = mpsc::channel();
    let (status, total) = (BackendStatus::default(), Arc::new(Mutex::new(0.0)));
    let slow = SlowBackend { status: status.clone(), gate, total: Arc::clone(&total) };
    let settings = StatsdSettings { flush_interval: Duration::from_millis(5), ..settings() };
    let server = StatsdServer::start(ServerParts {
        settings,
        backends: vec![Box::new(slow)],
        ..ServerParts::default()
    })
    .unwrap();
    let mut sent = 0;
    let deadline = Instant::now() + TEST_TIMEOUT;
    while status.get("flushes_joined").unwrap_or_default() < 5.0 {
        assert!(Instant::now() < deadline, "five intervals must be joined in time");
        send(&server, &[b"hits:1|c"]);
        sent += 1;
    }
    drop(open);
    assert_eq!(server.stop().undelivered, []);
    assert_eq!(*total.lock(), f64::from(sent));
    assert_eq!(status.get("flushes_dropped"), None);
}

/// Settings with a file backend, and maybe more sections.
fn with_file(folder: &std::path::Path, sections: &str) -> StatsdSettings {
    let file = folder.join("file").display().to_string();
    let text = format!("[backends.file]\npath = '{file}'\n{sections}");
    let read: StatsdSettings = toml::from_str(&text).unwrap();
    StatsdSettings {
        flush_interval: Duration::from_millis(200),
        backends: read.backends,
        ..settings()
    }
}

fn start_reloadable(settings: StatsdSettings) -> StatsdServer {
    StatsdServer::start(ServerParts {
        settings,
        environment: Some(Environment::empty()),
        ..ServerParts::default()
    })
    .unwrap()
}

/// The sum of a counter in the lines of a file backend.
fn sum_in(path: &std::path::Path, key: &str) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let values = text.lines().filter_map(|line| line.strip_prefix(&format!("c\t{key}\t")));
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

#[test]
fn reload_starts_and_stops_backends_and_leaves_others_alone() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sh', '-c', 'cat >> \"$0\"', '";
    let exec = |name: &str| {
        let path = folder.path().join(name).display().to_string();
        format!("[[backends.exec]]\ncommand = ['{script}{path}']\n")
    };
    let server = start_reloadable(with_file(folder.path(), &exec("one")));
    let status = |kind: &str| {
        let statuses = server.core.statuses();
        statuses.into_iter().find(|(name, _)| *name == kind).unwrap().1
    };
    status("file").set("mark", 1.0);
    status("exec").set("mark", 1.0);
    send(&server, &[b"before:1|c"]);
    let input = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    howdah_lab::wait_until("the first program to run", TEST_TIMEOUT, || {
        input("one").contains("counts.before|1|")
    });

    let changed = with_file(folder.path(), &exec("two"));
    assert!(server.reload(&changed, Vec::new()).is_empty());
    assert_eq!(status("file").get("mark"), Some(1.0), "the same backend");
    assert_eq!(status("exec").get("mark"), None, "another backend");
    send(&server, &[b"after:1|c"]);
    howdah_lab::wait_until("the second program to run", TEST_TIMEOUT, || {
        input("two").contains("counts.after|1|")
    });
    assert!(!input("one").contains("after"), "{}", input("one"));

    // Without the section, its backend ends, and nothing else does.
    assert!(server.reload(&with_file(folder.path(), ""), Vec::new()).is_empty());
    assert_eq!(server.core.statuses().len(), 1);
    send(&server, &[b"last:1|c"]);
    let report = server.stop();
    assert_eq!(report.undelivered, []);
    assert!(!input("two").contains("last"));
    let file = folder.path().join("file");
    for key in ["before", "after", "last"] {
        assert!((sum_in(&file, key) - 1.0).abs() < f64::EPSILON, "{key}");
    }
}

#[test]
fn removed_backend_delivers_queued_intervals_without_delaying_flushes() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().display().to_string();
    // The program waits for the gate before it reads its input.
    let script = r#"until [ -e "$0/gate" ]; do sleep 0.05; done; cat >> "$0/input""#;
    let exec = format!(
        "[[backends.exec]]\ntimeout = '60s'\ncommand = ['sh', '-c', '{script}', '{name}']\n"
    );
    let server = start_reloadable(with_file(folder.path(), &exec));
    let exec = server.core.statuses().into_iter().find(|(name, _)| *name == "exec").unwrap().1;
    howdah_lab::wait_until("a full queue", TEST_TIMEOUT, || exec.get("flushes_dropped").is_some());
    let settings =
        StatsdSettings { shutdown_timeout: TEST_TIMEOUT, ..with_file(folder.path(), "") };
    assert!(server.reload(&settings, Vec::new()).is_empty());
    let file = folder.path().join("file");
    let flushes = || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.matches("c\tstatsd.packets_received\t").count()
    };
    let before = flushes();
    howdah_lab::wait_until("flushes to the other backend", TEST_TIMEOUT, || flushes() > before + 2);
    assert!(!folder.path().join("input").exists(), "the removed backend still waits");
    std::fs::write(folder.path().join("gate"), "").unwrap();
    let delivered = || {
        let input = std::fs::read_to_string(folder.path().join("input")).unwrap_or_default();
        input.matches("counts.statsd.packets_received|").count()
    };
    howdah_lab::wait_until("the queued intervals", TEST_TIMEOUT, || delivered() == 3);
    assert_eq!(server.stop().undelivered, []);
    assert_eq!(delivered(), 3, "the last flush is not for removed backends");
}

#[test]
fn changed_prometheus_section_keeps_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let prometheus = |keys: &str| {
        with_file(folder.path(), &format!("[backends.prometheus]\nlisten = '{address}'\n{keys}"))
    };
    let server = start_reloadable(prometheus(""));
    let scrape = || request(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    send(&server, &[b"t:10|ms"]);
    howdah_lab::wait_until("a summary", TEST_TIMEOUT, || scrape().contains("t_seconds{quantile="));

    let changed = prometheus("timers = 'histogram'\nbuckets = [1.0]\n");
    assert!(server.reload(&changed, Vec::new()).is_empty());
    scrape();
    send(&server, &[b"t:10|ms"]);
    howdah_lab::wait_until("a histogram", TEST_TIMEOUT, || {
        scrape().contains("t_seconds_bucket{le=")
    });

    // A section that cannot be used leaves the endpoint as it is.
    let wrong = prometheus("buckets = [2.0, 1.0]\n");
    assert!(server.reload(&wrong, Vec::new()).is_empty());
    assert!(scrape().contains("t_seconds_bucket{le="));
    assert_eq!(server.core.settings().backends, changed.backends);

    assert!(server.reload(&with_file(folder.path(), ""), Vec::new()).is_empty());
    howdah_lab::wait_until("the port to close", TEST_TIMEOUT, || {
        TcpStream::connect(address).is_err()
    });
    assert_eq!(server.stop().undelivered, []);
}

#[test]
fn new_backend_gets_names_as_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_reloadable(with_file(folder.path(), ""));
    send(&server, &[b"hits:1|c|#city:Z\xc3\xbcrich"]);
    let path = folder.path().join("json").display().to_string();
    let exec = format!(
        "[[backends.exec]]\ncommand = ['sh', '-c', 'cat >> \"$0\"', '{path}']\nformat = 'json'\n"
    );
    assert!(server.reload(&with_file(folder.path(), &exec), Vec::new()).is_empty());
    send(&server, &[b"hits:1|c|#city:Z\xc3\xbcrich"]);
    howdah_lab::wait_until("the tag as it was sent", TEST_TIMEOUT, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let mut tags = lines.map(|line: serde_json::Value| line["tags"]["city"].clone());
        tags.any(|city| city == "Z\u{fc}rich")
    });
    assert_eq!(server.stop().undelivered, []);
}

#[test]
fn backends_given_by_caller_need_restart() {
    let backend = RecordingBackend::default();
    let server = start(settings(), &backend);
    let folder = tempfile::tempdir().unwrap();
    let new = StatsdSettings { backends: with_file(folder.path(), "").backends, ..settings() };
    assert_eq!(server.reload(&new, Vec::new()), ["backends"]);
}

#[test]
fn reload_reads_mapping_of_unchanged_backend_and_starts_changed_one() {
    let folder = tempfile::tempdir().unwrap();
    let mapping = folder.path().join("mapping.yml");
    let write = |name: &str| {
        std::fs::write(&mapping, format!("mappings:\n- {{ match: a, name: {name} }}\n")).unwrap();
    };
    write("one");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let section = |more: &str| {
        let path = mapping.display();
        let section =
            format!("[backends.prometheus]\nlisten = '{address}'\nmapping = '{path}'\n{more}\n");
        with_file(folder.path(), &section)
    };
    let server = start_reloadable(section(""));
    let status = || {
        let statuses = server.core.statuses();
        statuses.into_iter().find(|(name, _)| *name == "prometheus").unwrap().1
    };
    status().set("mark", 1.0);
    let wait_for = |line: &str| {
        howdah_lab::wait_until(line, TEST_TIMEOUT, || {
            let mut text = String::new();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            stream.read_to_string(&mut text).unwrap();
            text.lines().any(|found| found == line)
        });
    };
    send(&server, &[b"a:1|c"]);
    wait_for("one 1");
    write("two");
    assert!(server.reload(&section(""), Vec::new()).is_empty());
    assert_eq!(status().get("mark"), Some(1.0), "the same backend");
    send(&server, &[b"a:2|c"]);
    wait_for("two 2");

    write("three");
    assert!(server.reload(&section("series-max = 1000"), Vec::new()).is_empty());
    assert_eq!(status().get("mark"), None, "another backend");
    send(&server, &[b"a:3|c"]);
    wait_for("three 3");
    write("four");
    assert!(server.reload(&section("series-max = 1000"), Vec::new()).is_empty());
    send(&server, &[b"a:4|c"]);
    wait_for("four 4");
    assert_eq!(server.stop().undelivered, []);
}
