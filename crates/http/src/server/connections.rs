//! [`LimitedListener`]: limits how many connections are open and for how long, so that clients that
//! send or read nothing cannot lock others out.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;

use super::tls::AcceptedStream;

/// Durations after which a connection is closed.
#[derive(Clone, Copy, Debug)]
struct ConnectionTimeouts {
    /// Maximum time without a byte read or written.
    idle: Duration,
    /// Maximum time until the request is complete, for clients that send it byte by byte.
    request: Duration,
}

const TIMEOUTS: ConnectionTimeouts =
    ConnectionTimeouts { idle: Duration::from_secs(10), request: Duration::from_secs(30) };

/// Accepts TCP connections whose reads and writes fail after a timeout. A connection for which no
/// permit is left is closed.
pub(super) struct LimitedListener {
    name: &'static str,
    listener: TcpListener,
    permits: Arc<Semaphore>,
    timeouts: ConnectionTimeouts,
    acceptor: Option<TlsAcceptor>,
}

impl LimitedListener {
    /// Creates a listener; `name` appears in logs. Each open connection holds one of `permits`.
    /// With an acceptor, connections are encrypted.
    pub(super) fn new(
        name: &'static str,
        listener: TcpListener,
        permits: Arc<Semaphore>,
        acceptor: Option<TlsAcceptor>,
    ) -> Self {
        Self { name, listener, permits, timeouts: TIMEOUTS, acceptor }
    }
}

impl Listener for LimitedListener {
    type Io = AcceptedStream<LimitedStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AcceptedStream<LimitedStream>, SocketAddr) {
        loop {
            // axum's implementation for `TcpListener` waits and retries after an error.
            let (stream, address) = Listener::accept(&mut self.listener).await;
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                tracing::warn!(server = self.name, "too many connections: closed a new one");
                continue;
            };
            let stream = LimitedStream::new(stream, self.timeouts, permit);
            return (AcceptedStream::new(stream, self.acceptor.as_ref()), address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A TCP connection whose reads and writes fail after a timeout. Dropping it releases its permit.
pub(super) struct LimitedStream {
    stream: TcpStream,
    idle_timeout: Duration,
    request_deadline: Instant,
    /// The time after which reads and writes fail.
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl LimitedStream {
    fn new(stream: TcpStream, timeouts: ConnectionTimeouts, permit: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            idle_timeout: timeouts.idle,
            request_deadline: Instant::now() + timeouts.request,
            deadline: Box::pin(sleep(timeouts.idle)),
            _permit: permit,
        }
    }

    /// Returns the result of a read or write, or `TimedOut` if it is pending after the deadline. A
    /// completed one moves the deadline to the idle timeout from now, at most to `deadline_max`.
    fn or_timed_out<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
        deadline_max: Option<Instant>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            let deadline = Instant::now() + self.idle_timeout;
            let deadline = deadline_max.map_or(deadline, |max| deadline.min(max));
            self.deadline.as_mut().reset(deadline);
            return progress;
        }
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        let request_deadline = self.request_deadline;
        self.or_timed_out(context, progress, Some(request_deadline))
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_timed_out(context, progress, None)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// Runs `client` with the address of a server that has no routes.
    fn with_server<T: Send + 'static>(
        connections_max: usize,
        timeouts: ConnectionTimeouts,
        client: impl FnOnce(SocketAddr) -> T + Send + 'static,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let listener = LimitedListener {
                timeouts,
                ..LimitedListener::new(
                    "t",
                    listener,
                    Arc::new(Semaphore::new(connections_max)),
                    None,
                )
            };
            let serving = tokio::spawn(async { axum::serve(listener, axum::Router::new()).await });
            let result = tokio::task::spawn_blocking(move || client(address)).await.unwrap();
            serving.abort();
            result
        })
    }

    #[test]
    fn idle_connection_is_closed() {
        let timeouts = ConnectionTimeouts { idle: Duration::from_millis(20), ..TIMEOUTS };
        let bytes = with_server(1, timeouts, |address| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            // An end of file or a connection error: both mean that the connection was closed.
            stream.read(&mut [0; 64]).unwrap_or(0)
        });
        assert_eq!(bytes, 0);
    }

    #[test]
    fn request_sent_too_slowly_is_not_served() {
        let timeouts = ConnectionTimeouts { request: Duration::from_millis(20), ..TIMEOUTS };
        let bytes = with_server(1, timeouts, |address| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            stream.read(&mut [0; 64]).unwrap_or(0)
        });
        assert_eq!(bytes, 0);
    }

    #[test]
    fn connections_beyond_the_limit_are_closed() {
        with_server(2, TIMEOUTS, |address| {
            let connect = || {
                let stream = std::net::TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                stream
            };
            let (_first, mut second, mut third) = (connect(), connect(), connect());
            assert_eq!(third.read(&mut [0; 64]).unwrap_or(0), 0);
            second.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
            let mut response = String::new();
            second.read_to_string(&mut response).unwrap();
            assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        });
    }
}
