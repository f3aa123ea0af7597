//! `GET /healthz` over HTTP: 200 and `up`, or 503 and `down`, as the management port's `health` says.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use super::listener::{Listener, Stopping};
use crate::server::{Core, StartError};

/// A request with its headers.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// For the whole request.
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: usize = 64;

/// The endpoint, open until dropped.
#[derive(Debug)]
pub(crate) struct Health(Listener);

impl Health {
    pub(crate) fn listen(address: SocketAddr, core: &Arc<Core>) -> Result<Self, StartError> {
        let core = Arc::clone(core);
        let serve = move |stream: TcpStream, _: &Stopping| {
            if let Err(error) = answer(&stream, &core) {
                tracing::debug!(%error, "a health check broke");
            }
        };
        Listener::open("statsd-health", address, CONNECTIONS_MAX, serve)
            .map(Self)
            .map_err(|source| StartError::Listen { purpose: "health checks", address, source })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

fn answer(stream: &TcpStream, core: &Core) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = BufReader::new(stream.take(REQUEST_BYTES_MAX));
    let mut first = String::new();
    request.read_line(&mut first)?;
    // The rest is read so that closing does not reset the connection under the answer.
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
