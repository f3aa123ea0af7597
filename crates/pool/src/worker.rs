//! [`Pooler`]: runs one [`howdah_pool_core::Core`] with its sockets in each worker thread.
//!
//! ```text
//!             ┌───────────────── worker 0 ──────────────────┐          ┌ worker 1 … ┐
//! clients ──► │ listener ─► pending login ─► connection ─┐  │          │            │
//!             │                   ▲ CPU                  ▼  │ messages │            │
//!             │                helpers                  Core│ ◄──────► │    Core    │
//!             │                   ▼ CPU                  ▲  │          │            │
//! servers ◄── │     dial ─► pending login ─► connection ─┘  │          │            │
//!             └─────────────────────────────────────────────┘          └────────────┘
//! ```
//!
//! Workers share limits, the directory of pools, the texts of prepared statements, the state of
//! clusters and the helper threads, but no connections. A client stays with the worker that
//! accepted it. A server stays with the worker that opened it, unless another worker has starving
//! clients.

mod admin_console;
mod auth_query;
mod cancel_peers;
mod capture;
mod captured_server;
mod cluster_monitor;
mod console_clients;
mod control;
mod directory;
mod group;
mod helpers;
mod host_resolver;
mod listen_sockets;
mod maintenance;
mod messages;
mod mirrors;
mod multiplexer;
mod password_checks;
mod peer_connection;
mod pending_login;
mod preflight;
mod refusals;
mod reload;
mod resolver_threads;
mod run;
mod server_secrets;
mod shared_state;
mod socket_check;
mod socket_table;
mod sockets;
mod startups;
mod suspension;
mod takeover;
mod tls;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use howdah_connect::tls::TlsError;
use howdah_net::{ActivatedSocket, ListenError, Listener, Poller};
use howdah_pool_config::Config;
use howdah_pool_core::WorkerId;
use parking_lot::Mutex;

use self::{
    cancel_peers::LookupFn,
    directory::Directory,
    helpers::Helpers,
    listen_sockets::ListenSockets,
    messages::{Mailbox, WorkerMessage},
    run::{PoolWorker, WorkerParts},
    shared_state::{SharedState, SystemServices},
    takeover::{HandoverSender, Successor},
};
pub use self::{
    cancel_peers::{CancelPeerReport, CancelPeersReport},
    capture::CaptureError,
    control::PoolerHandle,
    host_resolver::HostResolver,
    multiplexer::MultiplexerReport,
    preflight::{Preflight, preflight},
    reload::{ConfigOrigin, ReloadError, ReloadReport},
};
use crate::console::ShutdownRequest;

/// A running pooler.
///
/// # Example
///
/// ```no_run
/// use howdah_pool::Pooler;
/// use howdah_pool_config::Config;
///
/// let read = Config::read(std::path::Path::new("howdah.toml"))?;
/// let pooler = Pooler::start(read.config)?;
/// println!("listening on {:?}", pooler.addresses());
/// // On SIGTERM:
/// pooler.drain();
/// pooler.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pooler {
    mailboxes: Arc<[Arc<Mailbox>]>,
    shared: Arc<SharedState>,
    /// A channel that disconnects when the last worker ends; no message is ever sent on it.
    finished: Mutex<Option<mpsc::Receiver<()>>>,
    /// Background threads. Each ends when its sender is dropped.
    background: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    addresses: Vec<SocketAddr>,
    unix_sockets: Vec<PathBuf>,
    /// Unix sockets whose files are removed at shutdown.
    unix_listeners: Vec<Listener>,
    /// The unix socket at which another process can take over.
    handover_path: Option<PathBuf>,
}

/// The reason why a pooler could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolerStartError {
    /// Listening on an address or a unix socket failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An entry of `listen.addresses` is neither an address nor a host name that resolves to one.
    #[error(
        "cannot listen on {text:?}: it is neither an IP address nor a host name that resolves to one"
    )]
    Address {
        /// The entry as configured.
        text: String,
    },
    /// The group in `listen.unix-group` was not found, or `/etc/group` cannot be read.
    #[error("cannot use the group {name:?}: {text}")]
    Group {
        /// The group as configured.
        name: String,
        /// The reason why the group cannot be used.
        text: String,
    },
    /// TLS for connections to servers cannot be set up, usually because a certificate, key or CA
    /// file cannot be used.
    #[error("cannot set up TLS for servers: {key}")]
    ServerTls {
        /// The key below `[pool]` that names the file, or `tls.server` if the error is not about a
        /// single file.
        key: String,
        /// The error, which names the file, if it is about one.
        source: Box<TlsError>,
    },
    /// TLS for connections from clients cannot be set up, usually because a certificate, key or CA
    /// file cannot be used.
    #[error("cannot set up TLS for clients: {key}")]
    ClientTls {
        /// The key below `[pool]` that names the file, or `tls.client` if the error is not about a
        /// single file.
        key: String,
        /// The error, which names the file, if it is about one.
        source: Box<TlsError>,
    },
    /// The settings request more workers than a cancel key can address.
    #[error("cannot start {workers} workers: the maximum is 128")]
    Workers {
        /// The configured number of workers.
        workers: usize,
    },
    /// No running process can be taken over, or the running process refused or ended unexpectedly.
    #[error("cannot take over: {text}")]
    Takeover {
        /// The reason why the takeover failed.
        text: String,
    },
    /// The operating system provides no random bytes, which logins and cancel keys need.
    #[error("cannot read random bytes from the operating system")]
    Randomness,
    /// The capture configured to start with the pooler did not start.
    #[error("cannot start the capture")]
    Capture(#[from] CaptureError),
    /// A thread, a file descriptor or a poller could not be created, or a socket could not be set
    /// up.
    #[error("cannot set up the threads and sockets of the pooler")]
    System(#[from] io::Error),
}

impl Pooler {
    /// Starts listening and starts the workers. Without a file to reload, settings can be
    /// changed only on the console.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError`]. No open sockets or threads remain after an error.
    pub fn start(config: Config) -> Result<Self, PoolerStartError> {
        Self::start_from_source(config, None)
    }

    /// Like [`Pooler::start`], but [`PoolerHandle::reload`] can read the settings again from
    /// `origin`.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError`]. No open sockets or threads remain after an error.
    pub fn start_from_source(
        config: Config,
        origin: Option<ConfigOrigin>,
    ) -> Result<Self, PoolerStartError> {
        Self::start_with_sockets(Vec::new(), config, origin)
    }

    /// Like [`Pooler::start_from_source`], but listens on the sockets in `passed` instead of the
    /// configured addresses, unless `passed` is empty.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError`]. No open sockets or threads remain after an error.
    pub fn start_with_sockets(
        passed: Vec<ActivatedSocket>,
        config: Config,
        origin: Option<ConfigOrigin>,
    ) -> Result<Self, PoolerStartError> {
        Self::start_inner(config, origin, passed, None, SystemServices::default())
    }

    /// Like [`Pooler::start`], but resolves host names with `names`. For tests.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError`]. No open sockets or threads remain after an error.
    #[doc(hidden)]
    pub fn start_with_resolver(
        config: Config,
        names: HostResolver,
    ) -> Result<Self, PoolerStartError> {
        Self::start_inner(
            config,
            None,
            Vec::new(),
            None,
            SystemServices { names, ..SystemServices::default() },
        )
    }

    /// Takes over the listeners and client connections of the running process, through
    /// `listen.takeover`.
    ///
    /// Returns once this process serves new clients. The clients of the other process follow one by
    /// one, each as soon as it is outside a transaction; then the other process ends.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError`]. The other process keeps serving after an error.
    pub fn take_over(
        config: Config,
        origin: Option<ConfigOrigin>,
    ) -> Result<Self, PoolerStartError> {
        let successor = Successor::connect(&config)?;
        Self::start_inner(config, origin, Vec::new(), Some(successor), SystemServices::default())
    }

    /// Whether a process runs that [`Pooler::take_over`] could replace.
    pub fn can_take_over(config: &Config) -> bool {
        takeover::socket_path(config)
            .is_some_and(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
    }

    /// Whether another process has taken over or is taking over.
    pub fn was_taken_over(&self) -> bool {
        self.shared.was_taken_over()
    }

    fn start_inner(
        config: Config,
        origin: Option<ConfigOrigin>,
        passed: Vec<ActivatedSocket>,
        mut successor: Option<Successor>,
        system: SystemServices,
    ) -> Result<Self, PoolerStartError> {
        let workers = match config.workers {
            Some(workers) => workers.get(),
            None => thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
        };
        let workers_max = usize::from(WorkerId::MAX) + 1;
        if workers > workers_max && config.workers.is_some() {
            return Err(PoolerStartError::Workers { workers });
        }
        let workers = workers.min(workers_max);
        let inherited =
            successor.as_mut().map(|it| std::mem::take(&mut it.listeners)).unwrap_or_default();
        let are_passed = successor.as_ref().is_some_and(|successor| successor.are_passed);
        let has_predecessor = successor.is_some();
        let sockets = if passed.is_empty() && !are_passed {
            ListenSockets::from_config(&config, inherited, workers)?
        } else {
            let passed = passed.into_iter().map(|socket| socket.listener);
            ListenSockets::from_passed(&config, passed.chain(inherited).collect(), workers)?
        };
        let ListenSockets { listeners, addresses, owned_unix, handles, are_passed } = sockets;
        let unix_sockets =
            handles.iter().filter_map(Listener::unix_path).map(Path::to_owned).collect();
        let handover_path = takeover::socket_path(&config);

        let tls = tls::server_config(&config.tls)?;
        let directory = Directory::new(config, system.names.clone())?;
        let shared = Arc::new(SharedState::new(directory, tls, origin, system)?);
        *shared.listeners() = handles;
        let helpers = Helpers::start(&shared)?;
        let pollers = (0..workers).map(|_| Poller::new()).collect::<io::Result<Vec<_>>>()?;
        let mailboxes = pollers
            .iter()
            .map(|poller| poller.waker().map(Mailbox::new))
            .collect::<io::Result<Arc<[_]>>>()?;
        let (running, finished) = mpsc::channel::<()>();
        let mut pooler = Self {
            mailboxes,
            shared: Arc::clone(&shared),
            finished: Mutex::new(Some(finished)),
            background: Vec::new(),
            threads: Vec::new(),
            addresses,
            unix_sockets,
            unix_listeners: owned_unix,
            handover_path: handover_path.clone(),
        };
        for (number, (poller, listeners)) in (0_u8..).zip(pollers.into_iter().zip(listeners)) {
            let worker = PoolWorker::new(WorkerParts {
                number: WorkerId(number),
                poller,
                mailboxes: Arc::clone(&pooler.mailboxes),
                shared: Arc::clone(&shared),
                helpers: helpers.clone(),
                listeners,
            })?;
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            let running = running.clone();
            pooler.threads.push(thread.spawn(move || {
                let result = worker.run();
                drop(running);
                result
            })?);
        }
        if shared.directory.config().capture.start {
            pooler.control().start_capture(None)?;
        }
        pooler.spawn_background("statistics", PoolerHandle::run_stats_periods)?;
        pooler.spawn_background("upkeep", PoolerHandle::run_maintenance)?;
        pooler.spawn_background("refusals", PoolerHandle::summarize_refusals)?;
        pooler.spawn_background("names", PoolerHandle::watch_host_names)?;
        pooler.spawn_background("peers", |control, stop| {
            let names = control.shared.directory.names().clone();
            let lookup: LookupFn = Arc::new(move |host, port| names.lookup(host, port));
            let settings = || (control.config(), control.shared.own_sockets());
            control.shared.cancel_peers.watch(stop, settings, &lookup);
        })?;
        if let Some(successor) = successor {
            let receiver = successor.ready(pooler.control())?;
            thread::Builder::new().name("takeover".to_owned()).spawn(move || receiver.run())?;
        }
        if let Some(path) = handover_path {
            let control = pooler.control();
            let sender = HandoverSender { control, are_passed, has_predecessor, path };
            let watch = move || takeover::accept_successor(&sender);
            thread::Builder::new().name("handover".to_owned()).spawn(watch)?;
        }
        Ok(pooler)
    }

    /// Starts a background thread. It must end when its channel disconnects.
    fn spawn_background(
        &mut self,
        name: &str,
        look_after: fn(&PoolerHandle, &mpsc::Receiver<()>),
    ) -> io::Result<()> {
        let (stop, stopped) = mpsc::channel();
        let control = self.control();
        let thread = thread::Builder::new().name(name.to_owned());
        self.background.push((stop, thread.spawn(move || look_after(&control, &stopped))?));
        Ok(())
    }

    /// Returns the TCP addresses that the pooler listens on, with the actual port where port 0 was
    /// configured.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the paths of the unix sockets that the pooler listens on, including sockets passed
    /// to it.
    pub fn unix_sockets(&self) -> impl Iterator<Item = &Path> {
        self.unix_sockets.iter().map(PathBuf::as_path)
    }

    /// Stops accepting clients, disconnects each client as soon as it is outside a transaction, and
    /// stops after the last one.
    pub fn drain(&self) {
        self.control().shut_down(ShutdownRequest::WaitForServers);
    }

    /// Stops accepting clients, and stops after the last connected client has disconnected.
    pub fn wait_for_clients(&self) {
        self.control().shut_down(ShutdownRequest::WaitForClients);
    }

    /// Tells the workers to stop immediately, even if clients are in transactions. Does not wait
    /// for them.
    pub fn stop(&self) {
        self.broadcast(|| WorkerMessage::Stop);
    }

    /// Returns a handle for administration and monitoring.
    pub fn control(&self) -> PoolerHandle {
        PoolerHandle { mailboxes: Arc::clone(&self.mailboxes), shared: Arc::clone(&self.shared) }
    }

    /// Returns a handle that waits until all workers have ended; `None` after the first call.
    pub fn shutdown_waiter(&self) -> Option<ShutdownWaiter> {
        self.finished.lock().take().map(ShutdownWaiter)
    }

    fn broadcast(&self, message: impl Fn() -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(message()));
    }

    /// Whether all workers have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    ///
    /// A worker failed or panicked.
    pub fn join(mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let finished =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(finished);
        }
        result
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.stop();
        self.shared.set_stopped();
        if !self.shared.was_taken_over() {
            self.unix_listeners.iter().for_each(Listener::remove);
            if let Some(handover_path) = &self.handover_path {
                let _ = std::fs::remove_file(handover_path);
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.captures.finish();
        for (stop, thread) in self.background.drain(..) {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// A handle that waits, on any thread, until all workers of a pooler have ended.
#[derive(Debug)]
pub struct ShutdownWaiter(mpsc::Receiver<()>);

impl ShutdownWaiter {
    /// Waits until all workers have ended.
    pub fn wait(self) {
        // No message is ever sent: the call fails when the last worker drops its sender.
        let _ = self.0.recv();
    }
}
