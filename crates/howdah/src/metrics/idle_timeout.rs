//! [`IdleTimeoutListener`]: closes idle connections, so that a client that sends or reads nothing
//! occupies a connection only for a limited time.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep, sleep},
};

/// How long a connection may be idle. A scraper that keeps its connection open will reconnect.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts connections that fail after an idle timeout.
pub(super) struct IdleTimeoutListener {
    listener: TcpListener,
    idle_timeout: Duration,
}

impl IdleTimeoutListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, idle_timeout: IDLE_TIMEOUT }
    }
}

impl Listener for IdleTimeoutListener {
    type Io = IdleTimeoutStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (IdleTimeoutStream, SocketAddr) {
        // axum's implementation for `TcpListener` logs accept errors, waits and retries.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let idle_timeout = self.idle_timeout;
        (
            IdleTimeoutStream { stream, idle_timeout, deadline: Box::pin(sleep(idle_timeout)) },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when no byte has been read or written for the idle timeout.
pub(super) struct IdleTimeoutStream {
    stream: TcpStream,
    idle_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl IdleTimeoutStream {
    /// Passes on the result of a read or write; if it is pending for too long, returns `TimedOut`.
    fn or_timed_out<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.deadline.as_mut().reset(Instant::now() + self.idle_timeout);
            return progress;
        }
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for IdleTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.or_timed_out(context, progress)
    }
}

impl AsyncWrite for IdleTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_timed_out(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[test]
fn idle_connection_is_closed() {
    use std::io::Read as _;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (address, serving) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = IdleTimeoutListener { listener, idle_timeout: Duration::from_millis(20) };
        (address, tokio::spawn(async { axum::serve(listener, axum::Router::new()).await }))
    });
    let client = move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        // An end of file or a connection error: both mean that it was closed.
        stream.read(&mut [0; 64]).unwrap_or(0)
    };
    let bytes = runtime.block_on(async {
        let bytes = tokio::task::spawn_blocking(client).await.unwrap();
        serving.abort();
        bytes
    });
    assert_eq!(bytes, 0);
}
