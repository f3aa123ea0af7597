//! A minimal HTTP server for Prometheus: one thread accepts, and each of a limited number of
//! connections gets a short-lived thread and one response.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{families::FamilyTable, protobuf, text};

/// Maximum concurrent scrapes; further connections are closed.
const CONNECTIONS_MAX: usize = 16;
/// Maximum duration of a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(30);
const REQUEST_BYTES_MAX: usize = 16 << 10;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// A running server. Dropping it closes the port.
#[derive(Debug)]
pub(super) struct ScrapeServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ScrapeServer {
    pub(super) fn start(
        address: SocketAddr,
        families: Arc<Mutex<FamilyTable>>,
    ) -> io::Result<Self> {
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

impl Drop for ScrapeServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let mut here = self.address;
        if here.ip().is_unspecified() {
            here.set_ip(match here {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        // The thread blocks in accept; a connection wakes it.
        if TcpStream::connect_timeout(&here, Duration::from_secs(1)).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, stop: &AtomicBool, families: &Arc<Mutex<FamilyTable>>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if stop.load(Relaxed) {
            return;
        }
        let Ok((peer, _)) = accepted else {
            // Usually out of file descriptors: wait for other connections to close.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Relaxed);
            continue;
        }
        let (families, done) = (Arc::clone(families), Arc::clone(&open));
        let spawned = thread::Builder::new().name("scrape".into()).spawn(move || {
            if let Err(error) = serve_scrape(peer, &families) {
                tracing::debug!(%error, "scrape failed");
            }
            done.fetch_sub(1, Relaxed);
        });
        if spawned.is_err() {
            open.fetch_sub(1, Relaxed);
        }
    }
}

fn serve_scrape(mut peer: TcpStream, families: &Mutex<FamilyTable>) -> io::Result<()> {
    peer.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
    peer.set_write_timeout(Some(SCRAPE_TIMEOUT))?;
    let deadline = Instant::now() + SCRAPE_TIMEOUT;
    let mut request = Vec::new();
    let mut buffer = [0; 2048];
    let scrape = loop {
        let bytes = peer.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..bytes]);
        match parse_request(&request) {
            Some(scrape) => break scrape,
            None if bytes == 0
                || request.len() > REQUEST_BYTES_MAX
                || Instant::now() > deadline =>
            {
                break ScrapeRequest::Malformed;
            }
            None => {}
        }
    };
    let lock = || families.lock();
    let (status, kind, body) = match scrape {
        ScrapeRequest::Text => ("200 OK", TEXT, text::render(&lock()).into_bytes()),
        ScrapeRequest::Protobuf => ("200 OK", PROTOBUF, protobuf::render(&lock())),
        ScrapeRequest::NotFound => ("404 Not Found", "text/plain", b"try /metrics\n".to_vec()),
        ScrapeRequest::Malformed => ("400 Bad Request", "text/plain", b"GET /metrics\n".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    peer.write_all(head.as_bytes())?;
    peer.write_all(&body)
}

enum ScrapeRequest {
    Text,
    Protobuf,
    NotFound,
    Malformed,
}

/// Parses a request; `None` while its head is incomplete.
fn parse_request(request: &[u8]) -> Option<ScrapeRequest> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(ScrapeRequest::Malformed),
    }
    let path = parsed.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if parsed.method != Some("GET") || path != "/metrics" {
        return Some(ScrapeRequest::NotFound);
    }
    let accept = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map(|header| String::from_utf8_lossy(header.value)).unwrap_or_default();
    // Prometheus lists its preferred format first.
    let first = accept.split(',').next().unwrap_or_default();
    let is_protobuf = first.contains("application/vnd.google.protobuf")
        && first.contains("io.prometheus.client.MetricFamily")
        && first.contains("delimited");
    Some(if is_protobuf { ScrapeRequest::Protobuf } else { ScrapeRequest::Text })
}
