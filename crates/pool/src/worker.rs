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
//! Workers share limits, the directory of pools and four helper threads, and otherwise nothing: a
//! client stays with the worker that accepted it, and a server too, unless another worker starves.

mod control;
mod desk;
mod directory;
mod entrance;
mod front;
mod group;
mod helpers;
mod link;
mod lookup;
mod mail;
mod reload;
mod run;
mod seats;
mod sockets;
mod stillness;
mod takeover;
mod tls;
mod upkeep;
mod watch;

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use howdah_connect::tls::TlsError;
use howdah_net::{ListenError, Listener, Poller};

pub use self::{
    control::Control,
    reload::{Origin, ReloadError, Reloaded},
};
use self::{
    directory::Directory,
    front::Front,
    helpers::Helpers,
    mail::{Mail, Mailbox},
    run::{Parts, Worker},
    takeover::{Giver, Heir},
};
use crate::{WorkerId, config::Config};

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
    /// Certificates, keys or authorities.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    /// The client leg's certificate or key.
    #[error("cannot set up TLS for clients: {path}: {text}")]
    ClientTls {
        /// The file, or the setting that lacks one.
        path: String,
        /// What is wrong with it.
        text: String,
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
        Self::begin(config, origin, None)
    }

    /// Takes over from the process that serves now, by `listen.takeover`: its listeners, and its clients
    /// with their connections, each as soon as it is in no transaction. Returns when new clients are
    /// served here; those of the other process come one by one, and then it ends.
    ///
    /// # Errors
    ///
    /// [`StartError`]; the other process serves on.
    pub fn take_over(config: Config, origin: Option<Origin>) -> Result<Self, StartError> {
        let heir = Heir::knock(&config)?;
        Self::begin(config, origin, Some(heir))
    }

    /// Whether another process has taken over, or is about to.
    pub fn was_taken_over(&self) -> bool {
        self.front.was_taken_over()
    }

    fn begin(
        config: Config,
        origin: Option<Origin>,
        mut heir: Option<Heir>,
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
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        listeners.resize_with(workers, Vec::new);
        let mut inherited =
            heir.as_mut().map(|it| std::mem::take(&mut it.listeners)).unwrap_or_default();
        listen_tcp(&config, &mut inherited, &mut listeners, &mut addresses)?;
        let unix = listen_unix(&config, &mut inherited, &addresses, &mut listeners)?;
        drop(inherited);
        let door = takeover::place(&config);
        let tcp = listeners.iter().flatten().filter(|it| it.tcp_address().is_some());
        let shown = tcp.chain(&unix).filter(|_| door.is_some());
        let shown = shown.map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;

        let tls = tls::server_config(&config.tls)?;
        let front = Arc::new(Front::new(Directory::new(config)?, tls, origin));
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
        pooler.put_beside("statistics", Control::keep_history)?;
        pooler.put_beside("upkeep", Control::keep_up)?;
        if let Some(heir) = heir {
            let taker = heir.ready(pooler.control())?;
            thread::Builder::new().name("takeover".to_owned()).spawn(move || taker.run())?;
        }
        if let Some(path) = door {
            let giver = Giver { control: pooler.control(), listeners: shown, path };
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

    /// Takes no new clients, lets go of each as soon as it is in no transaction, and ends with the
    /// last one.
    pub fn drain(&self) {
        self.tell(|| Mail::Drain);
    }

    /// Ends now, whatever clients are doing.
    pub fn stop(&self) {
        self.tell(|| Mail::Stop);
    }

    /// A handle for operators, and for programs that watch.
    pub fn control(&self) -> Control {
        Control { mailboxes: Arc::clone(&self.mailboxes), front: Arc::clone(&self.front) }
    }

    /// What tells another thread of the end; once only.
    pub fn end(&self) -> Option<End> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take().map(End)
    }

    fn tell(&self, mail: impl Fn() -> Mail) {
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

/// One listener per address and worker.
fn listen_tcp(
    config: &Config,
    inherited: &mut Vec<Listener>,
    listeners: &mut [Vec<Listener>],
    addresses: &mut Vec<SocketAddr>,
) -> Result<(), StartError> {
    let listen = &config.listen;
    for text in &listen.addresses {
        for address in resolve(text, listen.port)? {
            let mut found = address;
            let is_it = |listener: &mut Listener| {
                let there = listener.tcp_address();
                there.is_some_and(|it| {
                    it.ip() == address.ip() && [0, it.port()].contains(&address.port())
                })
            };
            let mut ready = inherited.extract_if(.., is_it).collect::<Vec<_>>().into_iter();
            if let Some(first) = ready.as_slice().first() {
                found = first.tcp_address().unwrap_or(found);
            } else if found.port() != 0 {
                Listener::check_free(found)?;
            }
            for own in &mut *listeners {
                if let Some(listener) = ready.next() {
                    own.push(listener);
                    continue;
                }
                let listener = Listener::tcp(found, listen.backlog, listen.defer_accept)?;
                config.tcp.options().apply(&listener)?;
                found = listener.tcp_address().unwrap_or(found);
                own.push(listener);
            }
            // Connections wait at each of them.
            ready
                .zip((0..listeners.len()).cycle())
                .for_each(|(it, worker)| listeners[worker].push(it));
            addresses.push(found);
        }
    }
    Ok(())
}

fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, StartError> {
    if text == "*" {
        return Ok(vec![([0, 0, 0, 0], port).into(), ([0_u16; 8], port).into()]);
    }
    let wrong = || StartError::Address { text: text.to_owned() };
    let (host, port) = crate::config::host_and_port(text, port).map_err(|_| wrong())?;
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(|_| wrong())?.collect();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// One listener per directory, which all workers watch.
fn listen_unix(
    config: &Config,
    inherited: &mut Vec<Listener>,
    addresses: &[SocketAddr],
    listeners: &mut [Vec<Listener>],
) -> Result<Vec<Listener>, StartError> {
    let listen = &config.listen;
    let port = match (listen.port, addresses.first()) {
        (0, Some(found)) => found.port(),
        (port, _) => port,
    };
    let group = listen.unix_group.as_deref().map(group::number).transpose()?;
    let mut unix = Vec::new();
    for directory in &listen.unix_directories {
        let path = directory.join(format!(".s.PGSQL.{port}"));
        let is_it = |listener: &Listener| listener.unix_path() == Some(&path);
        let listener = match inherited.iter().position(is_it) {
            Some(at) => inherited.swap_remove(at),
            None => Listener::unix(&path, listen.unix_mode, group, listen.backlog)?,
        };
        for own in &mut *listeners {
            own.push(listener.try_clone()?);
        }
        unix.push(listener);
    }
    Ok(unix)
}
