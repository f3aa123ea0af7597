//! Programs to be started, a server to send to, and the little HTTP that reading back takes.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{Parts, Server},
    settings::{Backends, Listen, Settings},
};

/// How long a receiver may take to do what it does at once.
const PATIENCE: Duration = Duration::from_secs(120);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The Python that `scripts/setup` made; `HOWDAH_TEST_PYTHON` names another.
pub(crate) fn python() -> PathBuf {
    match std::env::var_os("HOWDAH_TEST_PYTHON") {
        Some(python) => python.into(),
        None => workspace().join("target/tools/venv/bin/python"),
    }
}

/// The program of that name among the tools or in the path; or `None`, after saying on stderr that the
/// test is skipped.
pub(crate) fn program(name: &str, how: &str) -> Option<PathBuf> {
    let tools = match std::env::var_os("HOWDAH_RECEIVERS") {
        Some(folder) => PathBuf::from(folder),
        None => workspace().join("target/tools/receivers/usr/bin"),
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [tools].into_iter().chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.or_else(|| skipped(name, how))
}

/// Says that a receiver is missing.
pub(crate) fn skipped<T>(name: &str, how: &str) -> Option<T> {
    let required = std::env::var_os("HOWDAH_RECEIVERS_REQUIRED").is_some_and(|value| value == "1");
    assert!(!required, "there is no {name}: {how}");
    // To stderr itself, which the test harness does not hide even when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED: there is no {name}: {how}");
    None
}

/// A receiver that runs until it is dropped.
pub(crate) struct Receiver(Child);

impl Receiver {
    pub(crate) fn start(command: &mut Command, output: &Path) -> Self {
        let output = std::fs::File::create(output).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody has now. Programs that cannot tell which one they took need to be told.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Looks again and again until there is something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        // Receivers tell nobody when they have stored something: there is nothing to wait on.
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn wait_for_port(port: u16) {
    wait_for("listening", || TcpStream::connect(("127.0.0.1", port)).ok());
}

/// A certificate that signs itself, and its key.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Made by `openssl`; `None`, after saying so, if there is none.
    pub(crate) fn make(folder: &Path, name: &str, host: &str) -> Option<Self> {
        let made = Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        let openssl = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")])
            .args(["-addext", &format!("subjectAltName=DNS:{host}")])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&made.key)
            .arg("-out")
            .arg(&made.certificate)
            .output();
        match openssl {
            Ok(output) if output.status.success() => Some(made),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => skipped("openssl", "install it"),
        }
    }
}

/// A server with these backends, that flushes every `interval` and when it ends.
pub(crate) fn serve(backends: Backends, interval: Duration) -> Server {
    serve_within(backends, interval, Duration::from_secs(60))
}

/// The same with a patience of its own for the end.
pub(crate) fn serve_within(backends: Backends, interval: Duration, patience: Duration) -> Server {
    let settings = Settings {
        listen: vec![Listen::Udp {
            address: ([127, 0, 0, 1], 0).into(),
            readers: 1,
            buffer_bytes: 1 << 20,
        }],
        management: None,
        flush_interval: interval,
        shutdown_patience: patience,
        backends,
        ..Settings::default()
    };
    let backends = backends::open(&settings, &Environment::from_process()).unwrap();
    Server::start(Parts { settings, backends, ..Parts::default() }).unwrap()
}

/// An interval that does not end within a test: the only flush is the last one.
pub(crate) const AT_THE_END: Duration = Duration::from_secs(3600);

/// Sends what the tests read back.
pub(crate) fn send(server: &Server) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.addresses()[0].unwrap();
    for packet in [
        "api.hits:10|c\napi.hits:2|c|@0.1",
        "api.hits:2|c|#code:500",
        "api.latency:10|ms\napi.latency:20|ms\napi.latency:30|ms",
        "pool.size:-2.5|g",
        "users:anna|s\nusers:bob|s\nusers:anna|s",
    ] {
        socket.send_to(packet.as_bytes(), to).unwrap();
    }
}

/// Ends the server, which flushes; everything has to have been taken.
pub(crate) fn stop(server: Server) {
    let ended = server.stop();
    assert!(ended.undelivered.is_empty(), "{:?}", ended.undelivered);
    assert_eq!(ended.account.drops_total(), 0);
}

/// The body of the reply to a request without one; `None` while nobody answers.
pub(crate) fn http(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let head = "HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close";
    write!(stream, "{method} {path} {head}\r\n\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (_, body) = reply.split_once("\r\n\r\n")?;
    Some(body.to_owned())
}

/// Text for the query of a URL.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}
