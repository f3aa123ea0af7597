//! A TCP listener with one thread per connection, for few connections.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A listener that accepts connections until dropped. Its connections then end when they check
/// their [`StopFlag`].
pub(crate) struct PortListener {
    address: SocketAddr,
    stopping: StopFlag,
    /// Closing it wakes the accepting thread.
    wake: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// A flag that is set when the listener is dropped, so that connections end.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PortListener {
    /// Calls `serve` in a new thread for every connection. Connections beyond `connections_max` are
    /// closed without a reply.
    pub(crate) fn open(
        name: &'static str,
        listener: TcpListener,
        connections_max: usize,
        serve: impl Fn(TcpStream, &StopFlag) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (woken, wake) = io::pipe()?;
        let stopping = StopFlag::default();
        let accept = AcceptLoop {
            name,
            listener,
            woken: woken.into(),
            stopping: stopping.clone(),
            connections_max,
            serve: Arc::new(serve),
        };
        let thread = thread::Builder::new().name(name.into()).spawn(move || accept.run())?;
        Ok(Self { address, stopping, wake: Some(wake), thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.stopping.0.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already logged.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PortListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Pause after a connection could not be accepted for a lack of resources.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits before the next connection is accepted, unless `error` concerns only the one that failed,
/// such as a reset. Without a free descriptor, the connection stays in the queue, so the listener
/// would be ready at once. Ends early once `woken` is closed.
pub(crate) fn pause_after_failed_accept(name: &str, error: &io::Error, woken: &OwnedFd) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock) {
        return;
    }
    tracing::debug!(%error, listener = name, "cannot accept a connection yet");
    // A failure only shortens the pause.
    let _ = poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&ACCEPT_PAUSE));
}

struct AcceptLoop<S> {
    name: &'static str,
    listener: TcpListener,
    woken: OwnedFd,
    stopping: StopFlag,
    connections_max: usize,
    serve: Arc<S>,
}

impl<S: Fn(TcpStream, &StopFlag) + Send + Sync + 'static> AcceptLoop<S> {
    fn run(self) {
        let connections = Arc::new(AtomicUsize::new(0));
        while !self.stopping.is_set() {
            let mut ready = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.woken, PollFlags::IN),
            ];
            if let Err(error) = poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, listener = self.name, "cannot poll for connections; no longer accepting any");
                return;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause_after_failed_accept(self.name, &error, &self.woken);
                    continue;
                }
            };
            if connections.load(Ordering::Relaxed) >= self.connections_max {
                tracing::warn!(listener = self.name, "too many connections: closed a new one");
                continue;
            }
            self.start(stream, &connections);
        }
    }

    fn start(&self, stream: TcpStream, connections: &Arc<AtomicUsize>) {
        let (serve, stopping) = (Arc::clone(&self.serve), self.stopping.clone());
        let permit = ConnectionPermit(Arc::clone(connections));
        permit.0.fetch_add(1, Ordering::Relaxed);
        let started = thread::Builder::new().name(self.name.into()).spawn(move || {
            let _permit = permit;
            if stream.set_nonblocking(false).is_ok() {
                serve(stream, &stopping);
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, listener = self.name, "cannot serve a connection");
        }
    }
}

/// A guard that counts one connection until dropped, even if its thread panics.
struct ConnectionPermit(Arc<AtomicUsize>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn failed_accept_pauses_only_without_resources() {
    let (woken, wake) = io::pipe().unwrap();
    let woken = OwnedFd::from(woken);
    let is_paused = |error: io::Error| {
        let started = std::time::Instant::now();
        pause_after_failed_accept("test", &error, &woken);
        started.elapsed() >= std::time::Duration::from_millis(100)
    };
    let no_descriptor = || io::Error::from(rustix::io::Errno::MFILE);
    assert!(is_paused(no_descriptor()));
    // The writing end is closed, as it is when the listener is dropped.
    drop(wake);
    let started = std::time::Instant::now();
    while is_paused(no_descriptor()) {
        assert!(
            started.elapsed() < std::time::Duration::from_secs(60),
            "the pause never ends early"
        );
    }
}
