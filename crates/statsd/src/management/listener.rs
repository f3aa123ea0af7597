//! A TCP listener with a thread for each of a few connections.

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

/// Listens until dropped. Connections end soon after that, when they look at [`Stopping`].
pub(super) struct Listener {
    address: SocketAddr,
    stopping: Stopping,
    /// Closing it wakes the thread.
    wake: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Tells connections that the listener is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopping(Arc<AtomicBool>);

impl Stopping {
    pub(super) fn is_ordered(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Listener {
    /// Calls `serve` in a thread of its own for every connection; more than `connections_max` at once
    /// are closed without a word.
    pub(super) fn open(
        name: &'static str,
        address: SocketAddr,
        connections_max: usize,
        serve: impl Fn(TcpStream, &Stopping) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (woken, wake) = io::pipe()?;
        let stopping = Stopping::default();
        let accept = Accept {
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

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stopping.0.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // What went wrong in it was logged there.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

struct Accept<S> {
    name: &'static str,
    listener: TcpListener,
    woken: OwnedFd,
    stopping: Stopping,
    connections_max: usize,
    serve: Arc<S>,
}

impl<S: Fn(TcpStream, &Stopping) + Send + Sync + 'static> Accept<S> {
    fn run(self) {
        let connections = Arc::new(AtomicUsize::new(0));
        while !self.stopping.is_ordered() {
            let mut ready = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.woken, PollFlags::IN),
            ];
            if let Err(error) = poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, listener = self.name, "no longer accepts connections");
                return;
            }
            // Errors of one connection, such as a reset before it was accepted, are its own.
            let Ok((stream, _)) = self.listener.accept() else { continue };
            if connections.load(Ordering::Relaxed) >= self.connections_max {
                tracing::warn!(listener = self.name, "too many connections, one is closed");
                continue;
            }
            self.start(stream, &connections);
        }
    }

    fn start(&self, stream: TcpStream, connections: &Arc<AtomicUsize>) {
        let (serve, stopping) = (Arc::clone(&self.serve), self.stopping.clone());
        let place = Place(Arc::clone(connections));
        place.0.fetch_add(1, Ordering::Relaxed);
        let started = thread::Builder::new().name(self.name.into()).spawn(move || {
            let _place = place;
            if stream.set_nonblocking(false).is_ok() {
                serve(stream, &stopping);
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, listener = self.name, "cannot serve a connection");
        }
    }
}

/// One of the connections; dropped with its thread, however that ends.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
