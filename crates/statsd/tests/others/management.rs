//! The same session with the management port of a real server and with ours. The replies have to be the
//! same bytes, but for what differs by nature: ages, ports, and the order of Perl's hashes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{Parts, Server},
    settings::{Dialect, Settings},
};

use crate::etsy;

/// How long something may take that is done at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// No session lasts longer: ages are below it.
const AGE_SECONDS_MAX: u64 = 600;

/// `UDP` and `MGMT` are replaced by ports. No flush happens within a session.
const ETSY: &str = "{ port: UDP, address: '127.0.0.1', mgmt_port: MGMT, mgmt_address: '127.0.0.1',
  flushInterval: 3600000, deleteIdleStats: true, gaugesMaxTTL: 0,
  histogram: [ { metric: 'x', bins: [] } ], keyFlush: { interval: 0, percent: 50 },
  backends: ['./backends/graphite', './backends/console'] }";
const PERL: &str = r#"{ "port": UDP, "address": "127.0.0.1", "mgmt_port": MGMT,
  "mgmt_address": "127.0.0.1", "flushInterval": 3600000, "backends": ["Console"],
  "log": { "backend": "stdout", "level": "LOG_ERROR" }, }"#;

/// Both see one packet.
const PACKET: &str = "a.b:1.5|c\na.b:1|c|@0.5\n7:1|c\nlong_counter_name:1|c\nt:3|ms\nt:1|ms\n\
     long.timer:1|ms:2|ms:3|ms:4|ms:5|ms:6|ms:7|ms\ntemp.x:1|g\ntemp.y:2|g\nother:-3|g\n\
     users:ann|s\nnonsense";

const SESSION: [&str; 26] = [
    "help",
    "stats",
    "counters",
    "timers",
    "gauges",
    "delcounters a.b never.seen",
    "delcounters",
    "delgauges temp.*",
    "delgauges",
    "deltimers t",
    "deltimers",
    "counters",
    "timers",
    "gauges",
    "health",
    "health DOWN",
    "health sideways",
    "health up",
    "config",
    "",
    "  help  ",
    "HELP",
    "helpme",
    "what is this",
    "quit",
    "stats",
];

#[test]
fn etsys_management_port_says_the_same() {
    let Some(etsy) = etsy::install() else { return };
    let session = [&SESSION[..], &["sets", "delcounters  x", "delgauges other  nothing"]].concat();
    // Longer than what is shown of an array.
    let many: Vec<String> = (1..=120).map(|value| format!("{value}|ms")).collect();
    let packet = format!("{PACKET}\nmany:{}", many.join(":"));
    let theirs = Rival::start(ETSY, |config| {
        let mut node = Command::new("node");
        node.arg(etsy.script()).arg(config);
        node
    });
    let theirs = theirs.transcript(&packet, &session);
    let ours = Ours::start(ETSY, Dialect::Etsy).transcript(&packet, &session);
    // Those commands answer here and not there.
    let ours = without_reply(&ours, "sets");
    assert_eq!(theirs.replace("> sets\nERROR\n", "> sets\n"), ours);
}

#[test]
fn the_perl_servers_management_port_says_the_same() {
    let Some(perl) = perl() else { return };
    let session = [&SESSION[..], &["sets", "delcounters  x"]].concat();
    let theirs = Rival::start(PERL, perl).transcript(PACKET, &session);
    let ours = Ours::start(PERL, Dialect::Perl).transcript(PACKET, &session);
    assert_eq!(sorted(&theirs), sorted(&ours));
}

/// What starts Net::Statsd::Server; `None` where Perl has no such module.
fn perl() -> Option<impl FnOnce(&std::path::Path) -> Command> {
    let module = "-MNet::Statsd::Server";
    let found = Command::new("perl").args([module, "-e", "1"]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("HOWDAH_REQUIRE_PERL_STATSD").is_some();
        assert!(!required, "perl has no Net::Statsd::Server");
        eprintln!("skipped: perl has no Net::Statsd::Server; PERL5LIB may say where it is");
        return None;
    }
    Some(move |config: &std::path::Path| {
        let mut perl = Command::new("perl");
        let start = "Net::Statsd::Server->new({ config_file => shift })->start_server()";
        perl.args([module, "-e", start]).arg(config);
        perl
    })
}

/// Somebody else's server, running.
struct Rival {
    child: Child,
    udp: u16,
    management: u16,
    _folder: tempfile::TempDir,
}

impl Rival {
    fn start(config: &str, command: impl FnOnce(&std::path::Path) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (udp, management) = (free_port(), free_port());
        let file = folder.path().join("config.js");
        fs::write(&file, with_ports(config, udp, management)).unwrap();
        let mut command = command(&file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, udp, management, _folder: folder }
    }

    fn transcript(&self, packet: &str, session: &[&str]) -> String {
        transcript(self.udp, self.management, packet, session)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This server with the same settings.
struct Ours {
    udp: u16,
    management: u16,
    _server: Server,
}

impl Ours {
    fn start(config: &str, dialect: Dialect) -> Self {
        let (udp, management) = (free_port(), free_port());
        let read = Settings::read(&with_ports(config, udp, management), "host").unwrap();
        let settings = Settings { dialect, ..read.settings };
        let backends = backends::open(&settings, &Environment::empty()).unwrap();
        let parts = Parts { settings, config_lines: read.config_lines, backends, taps: Vec::new() };
        Self { udp, management, _server: Server::start(parts).unwrap() }
    }

    fn transcript(&self, packet: &str, session: &[&str]) -> String {
        transcript(self.udp, self.management, packet, session)
    }
}

fn with_ports(config: &str, udp: u16, management: u16) -> String {
    config.replace("UDP", &udp.to_string()).replace("MGMT", &management.to_string())
}

/// A port that nobody has now: servers have to be told which one to take.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends the packet, waits until it has arrived, and asks one question after the other.
fn transcript(udp: u16, management: u16, packet: &str, session: &[&str]) -> String {
    let start = Instant::now();
    let counters = || ask(management, "counters").unwrap_or_default();
    while counters().is_empty() {
        assert!(start.elapsed() < PATIENCE, "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(packet.as_bytes(), ("127.0.0.1", udp)).unwrap();
    while !counters().contains("long_counter_name") {
        assert!(start.elapsed() < PATIENCE, "the packet does not arrive: {}", counters());
        std::thread::sleep(Duration::from_millis(20));
    }
    let ports = [(udp, "UDP"), (management, "MGMT")];
    let mut transcript = String::new();
    for command in session {
        let mut reply = ask(management, command).unwrap();
        for (port, word) in ports {
            reply = reply.replace(&port.to_string(), word);
        }
        transcript += &format!("> {command}\n");
        transcript.extend(reply.split_inclusive('\n').map(ageless));
    }
    transcript
}

/// One command over a connection of its own; all that comes back.
fn ask(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut reply = String::new();
    // A server that hangs up on what it was not asked for may reset the connection.
    let _ = stream.read_to_string(&mut reply);
    Some(reply)
}

/// A line of `stats` with its age or time replaced, if that is what it can be.
fn ageless(line: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let Some((name, value)) = line.trim_end().split_once(": ") else { return line.to_owned() };
    let Ok(value) = value.parse::<u64>() else { return line.to_owned() };
    let shown = match name.rsplit('.').next().unwrap_or_default() {
        "uptime" | "last_msg_seen" | "last_flush" | "last_exception" if value < AGE_SECONDS_MAX => {
            "AGE"
        }
        // What never happened was in 1970.
        "last_exception" if now.abs_diff(value) < AGE_SECONDS_MAX => "NEVER",
        "lastFlush" | "lastException" if now.abs_diff(value) < AGE_SECONDS_MAX => "TIME",
        _ => return line.to_owned(),
    };
    format!("{name}: {shown}\n")
}

/// Without what was answered to `command`.
fn without_reply(transcript: &str, command: &str) -> String {
    let asked = format!("> {command}\n");
    let (before, after) = transcript.split_once(&asked).unwrap();
    let rest = after.find("\n> ").map_or("", |end| &after[end + 1..]);
    format!("{before}{asked}{rest}")
}

/// Perl's hashes come in any order: words of JSON objects, and the lines of `stats`, by the alphabet.
fn sorted(transcript: &str) -> String {
    let mut replies: Vec<String> = Vec::new();
    for reply in transcript.split("> ") {
        let mut lines: Vec<String> = reply.lines().map(sorted_object).collect();
        if reply.starts_with("stats") {
            lines.sort_unstable();
        }
        replies.push(lines.join("\n"));
    }
    replies.join("\n> ")
}

fn sorted_object(line: &str) -> String {
    let Some(inside) = line.strip_prefix('{').and_then(|line| line.strip_suffix('}')) else {
        return line.to_owned();
    };
    let mut entries: Vec<String> = Vec::new();
    let mut depth = 0;
    for piece in inside.split(", ") {
        match entries.last_mut() {
            Some(last) if depth > 0 => *last += &format!(", {piece}"),
            _ => entries.push(piece.to_owned()),
        }
        depth += piece.matches('[').count();
        depth -= piece.matches(']').count();
    }
    entries.sort_unstable();
    format!("{{{}}}", entries.join(", "))
}
