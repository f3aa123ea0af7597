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

use rustix::event::{PollFd, PollFlags, poll};

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
            // An error concerns only one connection, such as a reset before it was accepted.
            let Ok((stream, _)) = self.listener.accept() else { continue };
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
