//! The health endpoint: `GET /healthz` returns 200 and `up`, or 503 and `down`, like the management
//! port's `health`.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use super::listener::{PortListener, StopFlag};
use crate::server::{ServerCore, ServerStartError};

/// Maximum bytes of a request with its headers.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Timeout of each read and write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: usize = 64;

/// The endpoint, open until dropped.
#[derive(Debug)]
pub(crate) struct Health(PortListener);

impl Health {
    pub(crate) fn listen(
        address: SocketAddr,
        core: &Arc<ServerCore>,
    ) -> Result<Self, ServerStartError> {
        let core = Arc::clone(core);
        let serve = move |stream: TcpStream, _: &StopFlag| {
            if let Err(error) = serve_request(&stream, &core) {
                tracing::debug!(%error, "health check connection failed");
            }
        };
        PortListener::open("statsd-health", address, CONNECTIONS_MAX, serve).map(Self).map_err(
            |source| ServerStartError::Listen { purpose: "health checks", address, source },
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

fn serve_request(stream: &TcpStream, core: &ServerCore) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = BufReader::new(stream.take(REQUEST_BYTES_MAX));
    let mut first = String::new();
    request.read_line(&mut first)?;
    // Unread request data would make close reset the connection before the reply is read.
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match (path, core.is_healthy()) {
        ("/" | "/healthz", true) => ("200 OK", "up\n"),
        ("/" | "/healthz", false) => ("503 Service Unavailable", "down\n"),
        _ => ("404 Not Found", "try /healthz\n"),
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
