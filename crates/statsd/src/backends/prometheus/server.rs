//! The smallest web server that Prometheus needs: a thread that accepts, a short-lived one for each of
//! a few connections, one answer each.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{families::Families, protobuf, text};

/// Scrapes at one time. More are turned away.
const CONNECTIONS_MAX: usize = 16;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(30);
const REQUEST_BYTES_MAX: usize = 16 << 10;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// A running server. Dropping it closes the port.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(address: SocketAddr, families: Arc<Mutex<Families>>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || accept(&listener, &stopped, &families);
        let thread = thread::Builder::new().name("prometheus".into()).spawn(run)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let mut here = self.address;
        if here.ip().is_unspecified() {
            here.set_ip(match here {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        // It waits in accept; a connection wakes it.
        if TcpStream::connect_timeout(&here, Duration::from_secs(1)).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, stop: &AtomicBool, families: &Arc<Mutex<Families>>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if stop.load(Relaxed) {
            return;
        }
        let Ok((peer, _)) = accepted else {
            // Out of descriptors, as a rule: others will close theirs.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Relaxed);
            continue;
        }
        let (families, done) = (Arc::clone(families), Arc::clone(&open));
        let spawned = thread::Builder::new().name("scrape".into()).spawn(move || {
            if let Err(error) = answer(peer, &families) {
                tracing::debug!(%error, "a scrape broke off");
            }
            done.fetch_sub(1, Relaxed);
        });
        if spawned.is_err() {
            open.fetch_sub(1, Relaxed);
        }
    }
}

fn answer(mut peer: TcpStream, families: &Mutex<Families>) -> io::Result<()> {
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 2048];
    let wanted = loop {
        let bytes = peer.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..bytes]);
        match wanted(&request) {
            Some(wanted) => break wanted,
            None if bytes == 0
                || request.len() > REQUEST_BYTES_MAX
                || Instant::now() > deadline =>
            {
                break Wanted::Nonsense;
            }
            None => {}
        }
    };
    let lock = || families.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, kind, body) = match wanted {
        Wanted::Text => ("200 OK", TEXT, text::render(&lock()).into_bytes()),
        Wanted::Protobuf => ("200 OK", PROTOBUF, protobuf::render(&lock())),
        Wanted::Else => ("404 Not Found", "text/plain", b"try /metrics\n".to_vec()),
        Wanted::Nonsense => ("400 Bad Request", "text/plain", b"GET /metrics\n".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    peer.write_all(head.as_bytes())?;
    peer.write_all(&body)
}

enum Wanted {
    Text,
    Protobuf,
    Else,
    Nonsense,
}

/// What a request asks for; `None` while its head is not all there.
fn wanted(request: &[u8]) -> Option<Wanted> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Wanted::Nonsense),
    }
    let path = parsed.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if parsed.method != Some("GET") || path != "/metrics" {
        return Some(Wanted::Else);
    }
    let accept = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map(|header| String::from_utf8_lossy(header.value)).unwrap_or_default();
    // Prometheus names what it likes best first.
    let first = accept.split(',').next().unwrap_or_default();
    let is_protobuf = first.contains("application/vnd.google.protobuf")
        && first.contains("io.prometheus.client.MetricFamily")
        && first.contains("delimited");
    Some(if is_protobuf { Wanted::Protobuf } else { Wanted::Text })
}
