//! Starts receivers and servers, and reads values back over HTTP.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use howdah_connect::Environment;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{BackendSettings, ListenSettings, StatsdSettings},
};

/// Maximum wait for a receiver.
pub(crate) const RECEIVER_TIMEOUT: Duration = Duration::from_secs(120);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The Python installed by `scripts/setup`, or the one in `HOWDAH_TEST_PYTHON`.
pub(crate) fn python() -> PathBuf {
    match std::env::var_os("HOWDAH_TEST_PYTHON") {
        Some(python) => python.into(),
        None => workspace().join("target/tools/venv/bin/python"),
    }
}

/// The folder of installed programs, or the one in `HOWDAH_RECEIVERS`.
pub(crate) fn tools_folder() -> PathBuf {
    match std::env::var_os("HOWDAH_RECEIVERS") {
        Some(folder) => folder.into(),
        None => workspace().join("target/tools/receivers/usr/bin"),
    }
}

/// Finds a program among the installed tools or in the path; `None`, with a message on stderr, if
/// it is missing.
pub(crate) fn program(name: &str, how: &str) -> Option<PathBuf> {
    let tools = tools_folder();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [tools].into_iter().chain(std::env::split_paths(&path));
    let program = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    program.or_else(|| report_skipped(name, how))
}

/// Reports on stderr that a receiver is missing.
pub(crate) fn report_skipped<T>(name: &str, how: &str) -> Option<T> {
    let required = std::env::var_os("HOWDAH_RECEIVERS_REQUIRED").is_some_and(|value| value == "1");
    assert!(!required, "{name} is missing: {how}");
    // Written to stderr directly, which the test harness does not capture.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is missing: {how}");
    None
}

/// A receiver process, killed when dropped.
pub(crate) struct ReceiverProcess(Child);

impl ReceiverProcess {
    pub(crate) fn start(command: &mut Command, output: &Path) -> Self {
        let output = std::fs::File::create(output).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Self(command.spawn().unwrap())
    }
}

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A currently free port, for programs that do not report a port chosen by the kernel.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until a local port accepts connections.
pub(crate) fn wait_for_port(port: u16) {
    let what = format!("port {port} to accept connections");
    howdah_lab::wait_until(&what, RECEIVER_TIMEOUT, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
}

/// A self-signed certificate and its key.
pub(crate) struct TestCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl TestCertificate {
    /// Creates a certificate with `openssl`; `None`, with a message, if it is not installed.
    pub(crate) fn make(folder: &Path, name: &str, host: &str) -> Option<Self> {
        let files = Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        let openssl = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")])
            .args(["-addext", &format!("subjectAltName=DNS:{host}")])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&files.key)
            .arg("-out")
            .arg(&files.certificate)
            .output();
        match openssl {
            Ok(output) if output.status.success() => Some(files),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => report_skipped("openssl", "install it"),
        }
    }
}

/// Starts a server with these backends that flushes every `interval` and at shutdown.
pub(crate) fn serve(backends: BackendSettings, interval: Duration) -> StatsdServer {
    serve_with_timeout(backends, interval, Duration::from_secs(60))
}

/// As [`serve`], with a shutdown timeout.
pub(crate) fn serve_with_timeout(
    backends: BackendSettings,
    interval: Duration,
    timeout: Duration,
) -> StatsdServer {
    let settings = StatsdSettings {
        listen: vec![ListenSettings::udp(([127, 0, 0, 1], 0).into())],
        management: None,
        flush_interval: interval,
        shutdown_timeout: timeout,
        backends,
        ..StatsdSettings::default()
    };
    let backends = backends::open(&settings, &Environment::from_process()).unwrap();
    StatsdServer::start(ServerParts { settings, backends, ..ServerParts::default() }).unwrap()
}

/// A flush interval longer than any test: the only flush is the one at shutdown.
pub(crate) const NO_PERIODIC_FLUSH: Duration = Duration::from_secs(3600);

/// Sends the samples that the tests read back.
pub(crate) fn send(server: &StatsdServer) {
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

/// Stops the server, which flushes, and asserts that all values were delivered.
pub(crate) fn stop(server: StatsdServer) {
    let report = server.stop();
    assert!(report.undelivered.is_empty(), "{:?}", report.undelivered);
    assert_eq!(report.account.drops_total(), 0);
}

/// Sends a request without a body and returns the body of the reply; `None` if the receiver does
/// not reply.
pub(crate) fn http(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let head = "HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close";
    write!(stream, "{method} {path} {head}\r\n\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (_, body) = reply.split_once("\r\n\r\n")?;
    Some(body.to_owned())
}

/// Percent-encodes text for the query of a URL.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}
