//! `howdah statsd` is replaced by new processes, and started with sockets of a service manager.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_lab::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::{howdah, text, wait_for_value};

/// Maximum time for the servers to react.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running `howdah statsd`.
struct TakenServer {
    child: Child,
    stderr: BufReader<ChildStderr>,
    udp: SocketAddr,
    tcp: SocketAddr,
}

impl TakenServer {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["statsd", "--log-level=info", "--log-format=text", "-c", "howdah.toml"])
            .args(words)
            .current_dir(folder)
            .env("HOME", folder)
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut output = String::new();
        let udp = wait_for_value(&mut stderr, &mut output, "receiving: udp ").parse().unwrap();
        let tcp = wait_for_value(&mut stderr, &mut output, "receiving: tcp ").parse().unwrap();
        Self { child, stderr, udp, tcp }
    }

    /// Waits for the process to end; returns the rest of its messages.
    fn wait(mut self) -> String {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }

    fn terminate(self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.wait()
    }
}

/// Any free port.
const ANY: &str = "127.0.0.1:0";

fn write_settings(folder: &Path, [udp, tcp]: [&str; 2], more: &str) {
    let settings = format!(
        "[statsd]\nmanagement = '127.0.0.1:0'\nflush-interval = '1s'\ntakeover = 'takeover'\n\
         [[statsd.listen]]\ntype = 'udp'\naddress = '{udp}'\n\
         [[statsd.listen]]\ntype = 'tcp'\naddress = '{tcp}'\n\
         [statsd.backends.file]\npath = 'stats.tsv'\ntimestamps = true\n{more}"
    );
    fs::write(folder.join("howdah.toml"), settings).unwrap();
}

/// Sends packets at a rate until stopped, and counts them.
fn send_packets(
    to: SocketAddr,
    rate: u64,
    (sent, stopped): (Arc<AtomicU64>, Arc<AtomicBool>),
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        let started = Instant::now();
        for burst in 1_u64.. {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            let target = rate * burst / 1000;
            let before = sent.load(Ordering::Relaxed);
            for number in before..target {
                let packet = format!("hits:1|c\nlast:{number}|g\nset:{}|s", number % 100);
                // A refused packet would mean that no process has the socket.
                socket.send(packet.as_bytes()).unwrap();
            }
            sent.store(target.max(before), Ordering::Relaxed);
            let next = started + Duration::from_millis(burst);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    })
}

/// Returns the number after a part of the text.
fn number_after(text: &str, part: &str) -> u64 {
    let (_, rest) = text.split_once(part).unwrap_or_else(|| panic!("{part} in {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Ten takeovers in turn under load: every packet that the kernel has not dropped is in exactly one
/// interval. `make takeovers` sends 100,000 packets per second, with many keys.
#[test]
fn ten_takeovers_lose_and_double_nothing() {
    let from_environment = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().unwrap())
    };
    let rate = from_environment("HOWDAH_TAKEOVER_RATE", 5_000);
    let keys = from_environment("HOWDAH_TAKEOVER_KEYS", 1_000);
    let folder = tempfile::tempdir().unwrap();
    write_settings(folder.path(), [ANY, ANY], "");
    let mut server = TakenServer::start(folder.path(), &[]);
    let (udp, tcp) = (server.udp, server.tcp);
    let mut stream = TcpStream::connect(tcp).unwrap();
    for key in 0..keys {
        writeln!(stream, "key.{key}:1|g").unwrap();
    }
    let (sent, stopped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let sender = send_packets(udp, rate, (Arc::clone(&sent), Arc::clone(&stopped)));
    let mut rows = Vec::new();
    for takeover in 1..=10_u64 {
        let before = sent.load(Ordering::Relaxed);
        wait_until("packets between takeovers", TIMEOUT, || {
            sent.load(Ordering::Relaxed) > before + rate / 3
        });
        // A line that begins before and ends after the takeover.
        stream.write_all(b"stream:1|").unwrap();
        let new = TakenServer::start(folder.path(), &["--takeover"]);
        assert_eq!((new.udp, new.tcp), (udp, tcp));
        stream.write_all(b"c\n").unwrap();
        let messages = std::mem::replace(&mut server, new).wait();
        let paused_us = number_after(&messages, "paused_us=");
        rows.push((takeover, paused_us, number_after(&messages, "total_ms=")));
    }
    stopped.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    drop(stream);
    let sent = sent.load(Ordering::Relaxed);
    let messages = server.terminate();
    let dropped = number_after(&messages, "dropped at sockets ");
    let mut sums = BTreeMap::new();
    let mut lines = BTreeMap::new();
    for line in fs::read_to_string(folder.path().join("stats.tsv")).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [time, kind, key, value] = fields[..] else { panic!("{line}") };
        *lines.entry((time.to_owned(), kind.to_owned(), key.to_owned())).or_insert(0) += 1;
        if kind == "c" {
            *sums.entry(key.to_owned()).or_insert(0.0) += value.parse::<f64>().unwrap();
        }
    }
    println!("| takeover | no process reads, ms | in total, ms |\n|---|---|---|");
    for (takeover, paused_us, total_ms) in rows {
        println!("| {takeover} | {:.2} | {total_ms} |", paused_us as f64 / 1000.0);
    }
    println!("{sent} packets sent at {rate}/s with {keys} keys, {dropped} dropped by the kernel");
    assert_eq!(sums["hits"], (sent - dropped) as f64, "{messages}");
    assert_eq!(sums["stream"], 10.0);
    // Reads of the stream are packets, too: at least one for each part of it.
    assert!(sums["statsd.packets_received"] >= (sent - dropped + 10) as f64);
    // The interval that the shutdown cut short may have the time of the one before.
    let end = lines.keys().map(|(time, ..)| time.clone()).max();
    let limit = |time: &String| if Some(time) == end.as_ref() { 2 } else { 1 };
    let twice = lines.iter().find(|((time, ..), count)| **count > limit(time));
    assert_eq!(twice, None, "an interval was written twice");
    assert!(!folder.path().join("takeover").exists());
}

/// A new process that is killed, and one that cannot start, leave the old one as it was.
#[test]
fn failed_takeover_leaves_the_old_process() {
    let folder = tempfile::tempdir().unwrap();
    write_settings(folder.path(), [ANY, ANY], "");
    let mut server = TakenServer::start(folder.path(), &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"hits:1|c", server.udp).unwrap();
    let words = ["statsd", "-c", "howdah.toml", "--takeover"];
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let prometheus = format!("[statsd.backends.prometheus]\nlisten = '{address}'\n");
    write_settings(folder.path(), [ANY, ANY], &prometheus);
    let output = howdah(folder.path()).args(words).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("cannot serve metrics at"), "{messages}");
    write_settings(folder.path(), [ANY, ANY], "");
    let mut starting = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(words)
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is killed before it can have taken over.
    starting.kill().unwrap();
    starting.wait().unwrap();
    socket.send_to(b"hits:1|c", server.udp).unwrap();
    let new = TakenServer::start(folder.path(), &["--takeover"]);
    let mut line = String::new();
    while !line.contains("another process has taken over") {
        line.clear();
        assert!(server.stderr.read_line(&mut line).unwrap() > 0);
    }
    server.wait();
    new.terminate();
    let flushed = fs::read_to_string(folder.path().join("stats.tsv")).unwrap();
    let hits = flushed.lines().filter_map(|line| line.split_once("\tc\thits\t"));
    assert_eq!(hits.map(|(_, value)| value.parse::<u64>().unwrap()).sum::<u64>(), 2);
    // Without a running server, there is nothing to take over.
    let output = howdah(folder.path()).args(words).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("cannot reach a running server at takeover"), "{messages}");
}

/// The reload of the guide's drop-in for systemd, in a shell with the id of the main process, as
/// systemd executes it.
#[test]
fn reload_of_the_service_replaces_the_main_process() {
    let guide = include_str!("../../../../docs/src/guide/statsd.md");
    let (_, script) = guide.split_once("ExecReload=/bin/sh -c '").unwrap();
    let (script, _) = script.split_once('\'').unwrap();
    let program = assert_cmd::cargo::cargo_bin!("howdah").to_str().unwrap();
    let script = script.replace("\\\n", " ").replace("$$", "$");
    let script = script.replace("/usr/bin/howdah", program);
    let folder = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(TIMEOUT)).unwrap();
    let reload = |main: u32, settings: &str| {
        Command::new("sh")
            .args(["-c", &script.replace("/etc/howdah/statsd.toml", settings)])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("MAINPID", main.to_string())
            .env("NOTIFY_SOCKET", folder.path().join("notify"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
    };
    write_settings(folder.path(), [ANY, ANY], "");
    let old = TakenServer::start(folder.path(), &[]);
    let (main, udp) = (old.child.id(), old.udp);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"hits:1|c", udp).unwrap();
    assert!(!reload(main, "missing.toml").success(), "the new process cannot start");
    socket.send_to(b"hits:2|c", udp).unwrap();
    // The ended process must not remain as a zombie.
    let ended = thread::spawn(move || old.wait());
    assert!(reload(main, "howdah.toml").success());
    let messages = ended.join().unwrap();
    assert!(messages.contains("another process has taken over"), "{messages}");
    let mut buffer = [0; 256];
    let length = notify.recv(&mut buffer).unwrap();
    let state = text(&buffer[..length]);
    assert!(state.contains("READY=1"), "{state}");
    let new = number_after(&state, "MAINPID=");
    socket.send_to(b"hits:4|c", udp).unwrap();
    kill_process(Pid::from_raw(i32::try_from(new).unwrap()).unwrap(), Signal::TERM).unwrap();
    wait_until("the last flush of the new process", TIMEOUT, || {
        let flushed = fs::read_to_string(folder.path().join("stats.tsv")).unwrap_or_default();
        let hits = flushed.lines().filter_map(|line| line.split_once("\tc\thits\t"));
        hits.map(|(_, value)| value.parse::<u64>().unwrap()).sum::<u64>() == 7
    });
}

/// Starts a server with two descriptors of a service manager.
fn start_activated(folder: &Path, first: OwnedFd, second: OwnedFd) -> Child {
    // LISTEN_PID must be the server's process id, which is that of the shell that executes it.
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ LISTEN_FDS=2 \
                  LISTEN_FDNAMES=samples:lines exec \"$0\" statsd -c howdah.toml";
    Command::new("sh")
        .args(["-c", script, assert_cmd::cargo::cargo_bin!("howdah").to_str().unwrap()])
        .current_dir(folder)
        .env("HOME", folder)
        .env_remove("NOTIFY_SOCKET")
        .stdin(first)
        .stdout(second)
        .spawn()
        .unwrap()
}

#[test]
fn packets_wait_in_activated_sockets_while_the_server_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let (udp_address, tcp_address) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
    write_settings(folder.path(), [&udp_address.to_string(), &tcp_address.to_string()], "");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sum = || {
        let flushed = fs::read_to_string(folder.path().join("stats.tsv")).unwrap_or_default();
        let hits = flushed.lines().filter_map(|line| line.split_once("\tc\thits\t"));
        hits.map(|(_, value)| value.parse::<u64>().unwrap()).sum::<u64>()
    };
    for round in 1..=2 {
        sender.send_to(b"hits:1|c", udp_address).unwrap();
        TcpStream::connect(tcp_address).unwrap().write_all(b"hits:2|c\n").unwrap();
        let (udp, tcp) = (udp.try_clone().unwrap(), tcp.try_clone().unwrap());
        let mut server = start_activated(folder.path(), udp.into(), tcp.into());
        wait_until("the packets that waited", TIMEOUT, || sum() == 3 * round);
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
    }
}
