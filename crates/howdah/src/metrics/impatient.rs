//! A listener whose connections end when they are silent: a client that connects and says nothing, or reads
//! nothing, takes a place only for a while.

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

/// How long a connection may be silent. A scraper that keeps its connection makes another one.
const SILENCE: Duration = Duration::from_secs(10);

/// Accepts connections that end by silence.
pub(super) struct Impatient {
    listener: TcpListener,
    silence: Duration,
}

impl Impatient {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, silence: SILENCE }
    }
}

impl Listener for Impatient {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // What fails while accepting is waited for there.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let silence = self.silence;
        (Connection { stream, silence, end: Box::pin(sleep(silence)) }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing has moved on it for a while.
pub(super) struct Connection {
    stream: TcpStream,
    silence: Duration,
    end: Pin<Box<Sleep>>,
}

impl Connection {
    /// What came of a read or a write; an error if there has been none for too long.
    fn heard<T>(
        &mut self,
        context: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.end.as_mut().reset(Instant::now() + self.silence);
            return moved;
        }
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard(context, moved)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.heard(context, moved)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[test]
fn a_silent_connection_is_let_go() {
    use std::io::Read as _;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (address, serving) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Impatient { listener, silence: Duration::from_millis(20) };
        (address, tokio::spawn(async { axum::serve(listener, axum::Router::new()).await }))
    });
    let silent = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        // The end of the connection, whichever way it is told.
        stream.read(&mut [0; 64]).unwrap_or(0)
    });
    runtime.block_on(async {
        while !silent.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
        serving.abort();
    });
    assert_eq!(silent.join().unwrap(), 0);
}
