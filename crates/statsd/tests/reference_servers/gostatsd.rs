//! Compares the lines that gostatsd and this server send to Graphite for one interval.
//!
//! Lines are random, with a new seed in each run, which is printed; `HOWDAH_TEST_SEED` repeats one.
//! Intended differences are listed in [`DIVERGENCES`], and a test checks that each exists.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{BackendSettings, GraphiteSettings, ListenSettings, StatsdSettings},
};

use crate::{
    generate::PacketGenerator,
    support::{ReceiverProcess, free_port},
};

const INTERVAL: Duration = Duration::from_secs(2);
/// Maximum time until the next flush arrives.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines in a packet.
const PACKET_LINES: usize = 20;
/// Maximum attempts to get all lines into one interval.
const ATTEMPTS_MAX: usize = 10;

#[test]
fn random_lines_are_sent_to_graphite_with_equal_values() {
    let Some(gostatsd) = gostatsd() else { return };
    let seed = crate::fresh_seed();
    let mut random = PacketGenerator::new(seed);
    let lines: Vec<String> = (0..1500).map(|number| random.gostatsd_line(number)).collect();
    let (theirs, ours) = (gostatsd.interval(&lines), own_interval(&lines));
    let differences = differences(&theirs, &ours);
    assert!(differences.is_empty(), "seed {seed}\n{}", differences.join("\n"));
    assert!(theirs.len() > 400, "only {} values", theirs.len());
}

/// Intended differences, each with a line that demonstrates it.
const DIVERGENCES: [(&str, &str); 6] = [
    ("counters may be fractions", "a:0.4|c"),
    ("packed timers count each value with its rate", "a:1:2|ms|@0.5"),
    ("d is a distribution", "a:1|d"),
    ("a sign changes a gauge", "a:5|g\na:+1|g"),
    ("an unknown type is a counter", "a:1|x"),
    ("a tag without a value is true", "a:1|c|#canary"),
];

#[test]
fn listed_divergences_from_gostatsd_exist() {
    let Some(gostatsd) = gostatsd() else { return };
    let names = DIVERGENCES.map(|(_, line)| line.to_owned());
    // One interval for all: the names differ.
    let lines: Vec<String> = (0..).zip(&names).map(|(at, line)| renamed(line, at)).collect();
    let differences = differences(&gostatsd.interval(&lines), &own_interval(&lines)).join("\n");
    for (at, (name, _)) in DIVERGENCES.iter().enumerate() {
        assert!(differences.contains(&format!(".a{at}")), "{name}: the servers no longer differ");
    }
}

fn renamed(lines: &str, at: usize) -> String {
    lines.replace("a:", &format!("a{at}:"))
}

/// The installed program.
struct Gostatsd {
    program: PathBuf,
}

/// The program that `HOWDAH_GOSTATSD` names; `None`, with a message, without the variable. It is
/// built from source, because Go's registry does not have it.
fn gostatsd() -> Option<Gostatsd> {
    let program = std::env::var_os("HOWDAH_GOSTATSD");
    if program.is_none() {
        eprintln!("skipped: HOWDAH_GOSTATSD does not name the program");
    }
    Some(Gostatsd { program: program?.into() })
}

impl Gostatsd {
    fn interval(&self, lines: &[String]) -> BTreeMap<String, f64> {
        let folder = tempfile::tempdir().unwrap();
        let carbon = Carbon::listen();
        let port = free_port();
        let settings = folder.path().join("gostatsd.toml");
        fs::write(&settings, format!("[graphite]\naddress = '{}'\n", carbon.address)).unwrap();
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--metrics-addr=127.0.0.1:{port}"))
            .arg(format!("--flush-interval={}ms", INTERVAL.as_millis()))
            .args(["--backends=graphite", "--max-readers=1", "--ignore-host", "--config-path"])
            .arg(settings);
        let _server = ReceiverProcess::start(&mut command, &output_of(folder.path()));
        carbon.interval(lines, ([127, 0, 0, 1], port).into())
    }
}

fn output_of(folder: &Path) -> PathBuf {
    folder.join("output")
}

fn own_interval(lines: &[String]) -> BTreeMap<String, f64> {
    let carbon = Carbon::listen();
    let graphite = GraphiteSettings {
        host: "127.0.0.1".to_owned(),
        port: carbon.address.port(),
        legacy_namespace: false,
        ..GraphiteSettings::default()
    };
    let settings = StatsdSettings {
        listen: vec![ListenSettings::udp(([127, 0, 0, 1], 0).into())],
        management: None,
        flush_interval: INTERVAL,
        backends: BackendSettings { graphite: vec![graphite], ..BackendSettings::default() },
        ..StatsdSettings::default()
    };
    let backends = backends::open(&settings, &Environment::empty()).unwrap();
    let parts = ServerParts { settings, backends, ..ServerParts::default() };
    let server = StatsdServer::start(parts).unwrap();
    let values = carbon.interval(lines, server.addresses()[0].unwrap());
    // gostatsd sends the members of a set without a suffix.
    let plain = |name: String| {
        if name.starts_with("stats.sets.") { name.replacen(".count", "", 1) } else { name }
    };
    values.into_iter().map(|(name, value)| (plain(name), value)).collect()
}

/// A receiver of Graphite's lines that reports each flush.
struct Carbon {
    address: SocketAddr,
    flushes: Receiver<BTreeMap<String, f64>>,
}

impl Carbon {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, flushes) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                thread::spawn(move || read_flushes(stream.unwrap(), &sender));
            }
        });
        Self { address, flushes }
    }

    /// Sends the lines to a server, and returns its values of the interval that has all of them.
    fn interval(&self, lines: &[String], server: SocketAddr) -> BTreeMap<String, f64> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for attempt in 0..ATTEMPTS_MAX {
            // An interval has just begun.
            self.flushes.recv_timeout(FLUSH_TIMEOUT).expect("a flush");
            let marks = [format!("first{attempt}:1|c"), format!("last{attempt}:1|c")];
            socket.send_to(marks[0].as_bytes(), server).unwrap();
            for packet in lines.chunks(PACKET_LINES) {
                socket.send_to(packet.join("\n").as_bytes(), server).unwrap();
            }
            socket.send_to(marks[1].as_bytes(), server).unwrap();
            let counted = |values: &BTreeMap<String, f64>, mark: &str| {
                values.get(&format!("stats.counters.{mark}{attempt}.count")) == Some(&1.0)
            };
            let has_last = |values: &BTreeMap<String, f64>| counted(values, "last");
            let next = || self.flushes.recv_timeout(FLUSH_TIMEOUT).expect("a flush");
            let mut values = std::iter::repeat_with(next).find(has_last).unwrap();
            if counted(&values, "first") {
                // gostatsd divides rates by the time that has really passed.
                let own = ["statsd.", ".first", ".last", ".rate", ".count_ps"];
                values.retain(|name, _| !own.iter().any(|part| name.contains(part)));
                return values;
            }
        }
        panic!("no interval had all lines");
    }
}

/// Reads lines and reports them whenever the time stamp changes or the stream pauses or ends.
fn read_flushes(mut stream: TcpStream, flushes: &mpsc::Sender<BTreeMap<String, f64>>) {
    stream.set_read_timeout(Some(INTERVAL / 4)).unwrap();
    let (mut text, mut chunk) = (Vec::new(), [0; 65536]);
    loop {
        let read = stream.read(&mut chunk);
        if let Ok(bytes @ 1..) = read {
            text.extend_from_slice(&chunk[..bytes]);
            continue;
        }
        if text.ends_with(b"\n") {
            let lines = String::from_utf8(std::mem::take(&mut text)).unwrap();
            let _ = flushes.send(lines.lines().map(parsed).collect());
        }
        if let Ok(0) = read {
            return;
        }
    }
}

/// Parses a line to the name, with sorted tags, and the value.
fn parsed(line: &str) -> (String, f64) {
    let mut fields = line.split(' ');
    let mut parts: Vec<&str> = fields.next().unwrap().split(';').collect();
    parts[1..].sort_unstable();
    (parts.join(";"), fields.next().unwrap().parse().unwrap())
}

/// Values that exist on one side only, or differ in the first six decimals, which gostatsd sends.
fn differences(theirs: &BTreeMap<String, f64>, ours: &BTreeMap<String, f64>) -> Vec<String> {
    let rounded = |values: &BTreeMap<String, f64>| -> BTreeMap<String, f64> {
        values.iter().map(|(name, value)| (name.clone(), (value * 1e6).round() / 1e6)).collect()
    };
    crate::differences(&rounded(theirs), &rounded(ours))
}
