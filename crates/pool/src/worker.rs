//! [`Pooler`]: the sockets around [`crate::Core`], one event loop per thread.
//!
//! ```text
//!             ┌──────────── worker 0 ────────────┐       ┌ worker 1 … ┐
//! clients ──► │ listener ─► entrance ─► link ─┐   │       │            │
//!             │                 ▲ heavy       ▼   │ mail  │            │
//!             │              helpers        Core  │ ◄───► │    Core    │
//!             │                 ▼ heavy       ▲   │       │            │
//! servers ◄── │     dial ─► entrance ─► link ─┘   │       │            │
//!             └──────────────────────────────────┘       └────────────┘
//! ```
//!
//! Workers share limits, the directory of pools and some helper threads, and otherwise nothing: a
//! client stays with the worker that accepted it, and a server too, unless another worker starves.

mod capture;
mod control;
mod desk;
mod directory;
mod entrance;
mod front;
mod group;
mod helpers;
mod hub;
mod link;
mod listening;
mod log_level;
mod lookup;
mod mail;
mod mirrors;
mod names;
mod preflight;
mod refusals;
mod reload;
mod resolve;
mod run;
mod seats;
mod sockets;
mod startups;
mod stillness;
mod takeover;
mod tls;
mod upkeep;
mod watch;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use howdah_connect::tls::TlsError;
use howdah_net::{ActivatedSocket, ListenError, Listener, Poller};

pub(crate) use self::log_level::verbosity;
pub use self::{
    capture::CaptureError,
    control::Control,
    hub::HubReport,
    names::Names,
    preflight::{Preflight, preflight},
    reload::{Origin, ReloadError, Reloaded},
};
use self::{
    directory::Directory,
    front::{Front, System},
    helpers::Helpers,
    listening::Places,
    mail::{Mailbox, WorkerMessage},
    run::{Parts, Worker},
    takeover::{HandoverSender, Successor},
};
use crate::{WorkerId, config::Config, console::Shutdown};

/// A pooler that runs.
///
/// # Example
///
/// ```no_run
/// use howdah_pool::{Pooler, config::Config};
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
    front: Arc<Front>,
    /// Nothing is said here: its end is the news.
    ended: Mutex<Option<mpsc::Receiver<()>>>,
    /// Threads beside the workers; the end of a sender is theirs.
    beside: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    addresses: Vec<SocketAddr>,
    unix_sockets: Vec<PathBuf>,
    /// Kept to be removed from their directories.
    unix: Vec<Listener>,
    /// Where another process may knock to take over.
    door: Option<PathBuf>,
}

/// A pooler could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address or a unix socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A text of `listen.addresses` is no address and no name of one.
    #[error("cannot listen on {text:?}: no such address")]
    Address {
        /// The text.
        text: String,
    },
    /// `listen.unix-group` is nobody's.
    #[error("cannot use the group {name:?}: {text}")]
    Group {
        /// The name.
        name: String,
        /// What is wrong with it.
        text: String,
    },
    /// Certificate, key or authorities of the server side.
    #[error("cannot set up TLS for servers: {key}")]
    ServerTls {
        /// The key below `[pool]` that names the file.
        key: String,
        /// What is wrong with it.
        source: Box<TlsError>,
    },
    /// Certificate, key or authorities of the client side.
    #[error("cannot set up TLS for clients: {key}")]
    ClientTls {
        /// The key below `[pool]` that names the file.
        key: String,
        /// What is wrong with it.
        source: Box<TlsError>,
    },
    /// More workers than cancel keys can name.
    #[error("{workers} workers are too many: at most 128")]
    Workers {
        /// How many.
        workers: usize,
    },
    /// There is no process to take over from, or it does not hand over.
    #[error("cannot take over: {text}")]
    Takeover {
        /// Why.
        text: String,
    },
    /// Without random bytes no login and no key for cancels is safe.
    #[error("the system's source of random bytes fails")]
    Randomness,
    /// The capture that was to begin with it.
    #[error("cannot begin the capture")]
    Capture(#[from] CaptureError),
    /// The system gives no threads, or no descriptors.
    #[error("cannot start a worker")]
    System(#[from] io::Error),
}

impl Pooler {
    /// Listens, and starts the workers. Settings can be changed at the console only.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left behind.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_from(config, None)
    }

    /// The same with settings that [`Control::reload`] reads again from where they came from.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left behind.
    pub fn start_from(config: Config, origin: Option<Origin>) -> Result<Self, StartError> {
        Self::start_at(Vec::new(), config, origin)
    }

    /// The same at sockets that were passed to this process instead of where the settings say; if there
    /// are any.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left behind.
    pub fn start_at(
        passed: Vec<ActivatedSocket>,
        config: Config,
        origin: Option<Origin>,
    ) -> Result<Self, StartError> {
        Self::begin(config, origin, passed, None, System::default())
    }

    /// Listens, and starts the workers, with names of servers looked up in another way: for tests.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left behind.
    #[doc(hidden)]
    pub fn start_with_names(config: Config, names: Names) -> Result<Self, StartError> {
        Self::begin(config, None, Vec::new(), None, System { names, ..System::default() })
    }

    /// Takes over from the process that serves now, by `listen.takeover`: its listeners, and its clients
    /// with their connections, each as soon as it is in no transaction. Returns when new clients are
    /// served here; those of the other process come one by one, and then it ends.
    ///
    /// # Errors
    ///
    /// [`StartError`]; the other process serves on.
    pub fn take_over(config: Config, origin: Option<Origin>) -> Result<Self, StartError> {
        let heir = Successor::knock(&config)?;
        Self::begin(config, origin, Vec::new(), Some(heir), System::default())
    }

    /// Whether another process has taken over, or is about to.
    pub fn was_taken_over(&self) -> bool {
        self.front.was_taken_over()
    }

    fn begin(
        config: Config,
        origin: Option<Origin>,
        passed: Vec<ActivatedSocket>,
        mut heir: Option<Successor>,
        system: System,
    ) -> Result<Self, StartError> {
        let workers = match config.workers {
            Some(workers) => workers.get(),
            None => thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
        };
        let most = usize::from(WorkerId::MAX) + 1;
        if workers > most && config.workers.is_some() {
            return Err(StartError::Workers { workers });
        }
        let workers = workers.min(most);
        let inherited =
            heir.as_mut().map(|it| std::mem::take(&mut it.listeners)).unwrap_or_default();
        let are_given = heir.as_ref().is_some_and(|heir| heir.are_given);
        let places = match passed.is_empty() && !are_given {
            true => Places::named(&config, inherited, workers)?,
            false => {
                let passed = passed.into_iter().map(|socket| socket.listener);
                Places::given(&config, passed.chain(inherited).collect(), workers)?
            }
        };
        let Places { listeners, addresses, unix, shown, are_given } = places;
        let unix_sockets =
            shown.iter().filter_map(Listener::unix_path).map(Path::to_owned).collect();
        let door = takeover::place(&config);

        let tls = tls::server_config(&config.tls)?;
        let directory = Directory::new(config, system.names.clone())?;
        let front = Arc::new(Front::new(directory, tls, origin, system)?);
        *front.listeners() = shown;
        let helpers = Helpers::start(&front)?;
        let pollers = (0..workers).map(|_| Poller::new()).collect::<io::Result<Vec<_>>>()?;
        let mailboxes = pollers
            .iter()
            .map(|poller| poller.waker().map(Mailbox::new))
            .collect::<io::Result<Arc<[_]>>>()?;
        let (alive, ended) = mpsc::channel::<()>();
        let mut pooler = Self {
            mailboxes,
            front: Arc::clone(&front),
            ended: Mutex::new(Some(ended)),
            beside: Vec::new(),
            threads: Vec::new(),
            addresses,
            unix_sockets,
            unix,
            door: door.clone(),
        };
        for (number, (poller, listeners)) in (0_u8..).zip(pollers.into_iter().zip(listeners)) {
            let worker = Worker::new(Parts {
                number: WorkerId(number),
                poller,
                mailboxes: Arc::clone(&pooler.mailboxes),
                front: Arc::clone(&front),
                helpers: helpers.clone(),
                listeners,
            })?;
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            let alive = alive.clone();
            pooler.threads.push(thread.spawn(move || {
                let result = worker.run();
                drop(alive);
                result
            })?);
        }
        if front.directory.config().capture.start {
            pooler.control().start_capture(None)?;
        }
        pooler.put_beside("statistics", Control::keep_history)?;
        pooler.put_beside("upkeep", Control::keep_up)?;
        pooler.put_beside("refusals", Control::keep_refusals)?;
        pooler.put_beside("names", Control::follow_names)?;
        if let Some(heir) = heir {
            let taker = heir.ready(pooler.control())?;
            thread::Builder::new().name("takeover".to_owned()).spawn(move || taker.run())?;
        }
        if let Some(path) = door {
            let control = pooler.control();
            let giver = HandoverSender { control, are_given, path };
            let watch = move || takeover::watch(&giver);
            thread::Builder::new().name("handover".to_owned()).spawn(watch)?;
        }
        Ok(pooler)
    }

    /// Starts a thread that looks after something until its channel ends.
    fn put_beside(
        &mut self,
        name: &str,
        look_after: fn(&Control, &mpsc::Receiver<()>),
    ) -> io::Result<()> {
        let (over, is_over) = mpsc::channel();
        let control = self.control();
        let thread = thread::Builder::new().name(name.to_owned());
        self.beside.push((over, thread.spawn(move || look_after(&control, &is_over))?));
        Ok(())
    }

    /// TCP addresses that are listened on, with the ports that were found for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Unix sockets that are listened on, those that were passed included.
    pub fn unix_sockets(&self) -> impl Iterator<Item = &Path> {
        self.unix_sockets.iter().map(PathBuf::as_path)
    }

    /// Takes no new clients, lets go of each as soon as it is in no transaction, and ends with the
    /// last one.
    pub fn drain(&self) {
        self.control().shut_down(Shutdown::WaitForServers);
    }

    /// Takes no new clients, serves those that there are until they disconnect, and ends with the last one.
    pub fn wait_for_clients(&self) {
        self.control().shut_down(Shutdown::WaitForClients);
    }

    /// Ends now, whatever clients are doing.
    pub fn stop(&self) {
        self.tell(|| WorkerMessage::Stop);
    }

    /// A handle for operators, and for programs that watch.
    pub fn control(&self) -> Control {
        Control { mailboxes: Arc::clone(&self.mailboxes), front: Arc::clone(&self.front) }
    }

    /// What tells another thread of the end; once only.
    pub fn end(&self) -> Option<End> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take().map(End)
    }

    fn tell(&self, mail: impl Fn() -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(mail()));
    }

    /// Whether all workers have ended.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the workers to end.
    ///
    /// # Errors
    ///
    /// One of them could not go on.
    pub fn join(mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.stop();
        self.front.set_over();
        if !self.front.was_taken_over() {
            self.unix.iter().for_each(Listener::remove);
            if let Some(door) = &self.door {
                let _ = std::fs::remove_file(door);
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.front.captures.end();
        for (over, thread) in self.beside.drain(..) {
            drop(over);
            let _ = thread.join();
        }
    }
}

/// The end of a pooler, for who waits for it.
#[derive(Debug)]
pub struct End(mpsc::Receiver<()>);

impl End {
    /// Waits until all workers have ended.
    pub fn wait(self) {
        // Nobody says anything; the last worker takes the sender along.
        let _ = self.0.recv();
    }
}
