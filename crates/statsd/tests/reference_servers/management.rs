//! Runs the same session at the management ports of a reference server and of ours. The replies
//! must be equal byte for byte, except for ages, ports and the order of Perl's hashes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_connect::Environment;
use howdah_lab::wait_until;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{StatsdDialect, StatsdSettings},
};

use crate::etsy;

/// Timeout of replies and of the server's start.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum duration of a session, and therefore of ages.
const AGE_SECONDS_MAX: u64 = 600;

/// Settings for etsy's dialect; `UDP` and `MGMT` are replaced by ports. No flush happens during a
/// session.
const ETSY: &str = "{ port: UDP, address: '127.0.0.1', mgmt_port: MGMT, mgmt_address: '127.0.0.1',
  flushInterval: 3600000, deleteIdleStats: true, gaugesMaxTTL: 0,
  histogram: [ { metric: 'x', bins: [] } ], keyFlush: { interval: 0, percent: 50 },
  backends: ['./backends/graphite', './backends/console'] }";
const PERL: &str = r#"{ "port": UDP, "address": "127.0.0.1", "mgmt_port": MGMT,
  "mgmt_address": "127.0.0.1", "flushInterval": 3600000, "backends": ["Console"],
  "log": { "backend": "stdout", "level": "LOG_ERROR" }, }"#;

/// The packet sent to both servers.
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
fn management_port_matches_etsy_server() {
    let Some(etsy) = etsy::install() else { return };
    let session = [&SESSION[..], &["sets", "delcounters  x", "delgauges other  nothing"]].concat();
    // More values than `util.inspect` prints of an array.
    let many: Vec<String> = (1..=120).map(|value| format!("{value}|ms")).collect();
    let packet = format!("{PACKET}\nmany:{}", many.join(":"));
    let theirs = ReferenceServer::start(ETSY, |config| {
        let mut node = Command::new("node");
        node.arg(etsy.script()).arg(config);
        node
    });
    let theirs = theirs.transcript(&packet, &session);
    let ours = TestedServer::start(ETSY, StatsdDialect::Etsy).transcript(&packet, &session);
    // This command exists only in our server.
    let ours = without_reply(&ours, "sets");
    assert_eq!(theirs.replace("> sets\nERROR\n", "> sets\n"), ours);
}

#[test]
fn management_port_matches_perl_server() {
    let Some(perl) = perl() else { return };
    let session = [&SESSION[..], &["sets", "delcounters  x"]].concat();
    let theirs = ReferenceServer::start(PERL, perl).transcript(PACKET, &session);
    let ours = TestedServer::start(PERL, StatsdDialect::Perl).transcript(PACKET, &session);
    assert_eq!(sorted(&theirs), sorted(&ours));
}

/// The command that starts Net::Statsd::Server; `None`, with a message, if the module is missing.
fn perl() -> Option<impl FnOnce(&Path) -> Command> {
    let module = "-MNet::Statsd::Server";
    let status = Command::new("perl").args([module, "-e", "1"]).stderr(Stdio::null()).status();
    if !status.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("HOWDAH_REQUIRE_PERL_STATSD").is_some();
        assert!(!required, "perl has no Net::Statsd::Server");
        eprintln!("skipped: perl has no Net::Statsd::Server; set PERL5LIB to its folder");
        return None;
    }
    Some(move |config: &Path| {
        let mut perl = Command::new("perl");
        let start = "Net::Statsd::Server->new({ config_file => shift })->start_server()";
        perl.args([module, "-e", start]).arg(config);
        perl
    })
}

/// A running reference server.
struct ReferenceServer {
    child: Child,
    udp: u16,
    management: u16,
    _folder: tempfile::TempDir,
}

impl ReferenceServer {
    fn start(config: &str, command: impl FnOnce(&Path) -> Command) -> Self {
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

impl Drop for ReferenceServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our server with the same settings.
struct TestedServer {
    udp: u16,
    management: u16,
    _server: StatsdServer,
}

impl TestedServer {
    fn start(config: &str, dialect: StatsdDialect) -> Self {
        let (udp, management) = (free_port(), free_port());
        let config = with_ports(config, udp, management);
        let read = StatsdSettings::read(&config, Path::new("h.toml"), "host").unwrap();
        let settings = StatsdSettings { dialect, ..read.settings };
        let backends = backends::open(&settings, &Environment::empty()).unwrap();
        let parts = ServerParts {
            settings,
            config_lines: read.config_lines,
            backends,
            ..ServerParts::default()
        };
        Self { udp, management, _server: StatsdServer::start(parts).unwrap() }
    }

    fn transcript(&self, packet: &str, session: &[&str]) -> String {
        transcript(self.udp, self.management, packet, session)
    }
}

fn with_ports(config: &str, udp: u16, management: u16) -> String {
    config.replace("UDP", &udp.to_string()).replace("MGMT", &management.to_string())
}

/// A currently free port, because the reference servers need a fixed one.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends the packet, waits until it has arrived, and runs the commands one by one.
fn transcript(udp: u16, management: u16, packet: &str, session: &[&str]) -> String {
    let counters = || request(management, "counters").unwrap_or_default();
    wait_until("the management port to reply", REPLY_TIMEOUT, || !counters().is_empty());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(packet.as_bytes(), ("127.0.0.1", udp)).unwrap();
    wait_until("the packet to arrive", REPLY_TIMEOUT, || counters().contains("long_counter_name"));
    let ports = [(udp, "UDP"), (management, "MGMT")];
    let mut transcript = String::new();
    for command in session {
        let mut reply = request(management, command).unwrap();
        for (port, placeholder) in ports {
            reply = reply.replace(&port.to_string(), placeholder);
        }
        transcript += &format!("> {command}\n");
        transcript.extend(reply.split_inclusive('\n').map(mask_ages));
    }
    transcript
}

/// Sends one command on a new connection and returns the complete reply.
fn request(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut reply = String::new();
    // A server that closes with unread input may reset the connection.
    let _ = stream.read_to_string(&mut reply);
    Some(reply)
}

/// Replaces a plausible age or time in a line of `stats` by a fixed text.
fn mask_ages(line: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let Some((name, value)) = line.trim_end().split_once(": ") else { return line.to_owned() };
    let Ok(value) = value.parse::<u64>() else { return line.to_owned() };
    let masked = match name.rsplit('.').next().unwrap_or_default() {
        "uptime" | "last_msg_seen" | "last_flush" | "last_exception" if value < AGE_SECONDS_MAX => {
            "AGE"
        }
        // An event that never happened has the age of 1970.
        "last_exception" if now.abs_diff(value) < AGE_SECONDS_MAX => "NEVER",
        "lastFlush" | "lastException" if now.abs_diff(value) < AGE_SECONDS_MAX => "TIME",
        _ => return line.to_owned(),
    };
    format!("{name}: {masked}\n")
}

/// Removes the reply to `command`.
fn without_reply(transcript: &str, command: &str) -> String {
    let command_line = format!("> {command}\n");
    let (before, after) = transcript.split_once(&command_line).unwrap();
    let rest = after.find("\n> ").map_or("", |end| &after[end + 1..]);
    format!("{before}{command_line}{rest}")
}

/// Sorts the entries of JSON objects and the lines of `stats`, because Perl's hashes are unordered.
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
