//! [`Front`]: what all workers and their helpers share.

use std::{
    io,
    net::SocketAddr,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use howdah_connect::tls::common_name;
use howdah_net::{Listener, Stream};
use howdah_wire::auth::scram::ClientKeys;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{
    StartError,
    capture::Captures,
    control::History,
    desk::VISITORS_MAX,
    directory::{Directory, ServerTls},
    hub::Hubs,
    names::Names,
    refusals::Refusals,
    reload::Origin,
    startups::Startups,
    tls::ClientTls,
};
use crate::{
    CancelSecret, Limit, Statements, Time,
    auth::{ClientRules, Entropy, TlsFacts},
    config::{Config, Tls},
};

/// So many clients may be on their way in, however few may be in.
const LOGINS_MIN: u32 = 128;

/// How clients come in: what they must prove, and our side of TLS. One that is on its way in keeps those
/// that it began with.
#[derive(Debug)]
pub(super) struct AcceptSettings {
    pub(super) rules: Arc<ClientRules>,
    /// `None` answers no to who asks for TLS.
    pub(super) tls: Option<ClientTls>,
}

/// What all workers and their helpers share.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) directory: Directory,
    doors: RwLock<Arc<AcceptSettings>>,
    /// Clients on their way in.
    pub(super) startups: Arc<Startups>,
    /// From it come the answers to users that do not exist; the same to the end.
    mock_secret: [u8; 32],
    /// Keys of the passwords that we show servers.
    pub(super) server_keys: ClientKeys,
    /// Prepared statements, by text and types.
    pub(super) statements: Arc<Statements>,
    system: System,
    /// A handle to each socket that is listened at, for a process that takes over. None is left open here when
    /// clients are to be refused: the kernel accepts connections for as long as one is.
    listeners: Mutex<Vec<Listener>>,
    /// No new clients are taken, and the process ends with those that there are.
    shutting_down: AtomicBool,
    /// How many operators may be at the console.
    pub(super) visitors: Arc<[Arc<Limit>]>,
    history: Mutex<History>,
    /// What is recorded of clients' traffic.
    pub(super) captures: Captures,
    /// Where settings are read from again; held by the one who changes settings.
    pub(super) origin: Mutex<Option<Origin>>,
    /// Settings of TLS that were set at the console and do not fit together yet.
    pub(super) held_tls: Mutex<Option<Tls>>,
    is_over: AtomicBool,
    /// From when all workers count their time.
    pub(super) began: Instant,
    /// Another process has what we had, or is about to.
    taken_over: AtomicBool,
    /// Workers stand still, or are about to.
    suspended: AtomicBool,
    /// There may be clients that came from another process.
    pub(super) has_foreigners: AtomicBool,
    /// Who listens for clients.
    pub(super) hubs: Hubs,
    /// Logins that were refused.
    pub(super) refusals: Refusals,
    /// That process, while it has clients left. Whoever writes to it holds the lock.
    pub(super) old: Mutex<Option<UnixStream>>,
}

impl Front {
    pub(super) fn new(
        directory: Directory,
        tls: Option<ClientTls>,
        origin: Option<Origin>,
        system: System,
    ) -> Result<Self, StartError> {
        let config = directory.config();
        let mock_secret = system.random_bytes().ok_or(StartError::Randomness)?;
        let keys = ClientKeys::default();
        let rules = Arc::new(rules(config, mock_secret, keys.clone()));
        Ok(Self {
            directory,
            doors: RwLock::new(Arc::new(AcceptSettings { rules, tls })),
            startups: Arc::default(),
            mock_secret,
            server_keys: keys,
            statements: Arc::default(),
            system,
            listeners: Mutex::default(),
            shutting_down: AtomicBool::new(false),
            visitors: [Limit::new(VISITORS_MAX)].into(),
            history: Mutex::default(),
            captures: Captures::default(),
            origin: Mutex::new(origin),
            held_tls: Mutex::default(),
            is_over: AtomicBool::new(false),
            began: Instant::now(),
            taken_over: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            has_foreigners: AtomicBool::new(false),
            hubs: Hubs::default(),
            refusals: Refusals::default(),
            old: Mutex::default(),
        })
    }

    /// Handles to the sockets that are listened at.
    pub(super) fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has TCP clients refused by the kernel, once workers have closed their sockets as well. Unix sockets stay
    /// open, for the console.
    pub(super) fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Relaxed);
        self.listeners().retain(|listener| listener.tcp_address().is_none());
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// How many connections of each kind may be on their way in.
    pub(super) fn logins_max(&self) -> usize {
        let limits = self.directory.config().limits;
        let most = if limits.logins == 0 { limits.clients.max(LOGINS_MIN) } else { limits.logins };
        most as usize
    }

    /// Looks up the addresses of a host. Takes as long as the system's resolver does.
    pub(super) fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.directory.names().look_up(host, port)
    }

    /// How clients come in now.
    pub(super) fn doors(&self) -> Arc<AcceptSettings> {
        Arc::clone(&self.doors.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has other settings hold. Workers are to be told.
    pub(super) fn change(&self, config: Arc<Config>, server: ServerTls, tls: Option<ClientTls>) {
        self.directory.change(Arc::clone(&config), server);
        let rules = Arc::new(rules(config, self.mock_secret, self.server_keys.clone()));
        let doors = Arc::new(AcceptSettings { rules, tls });
        *self.doors.write().unwrap_or_else(PoisonError::into_inner) = doors;
    }

    /// What was counted up to the last periods.
    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that workers have, as of now.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether the pooler has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn was_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }

    pub(super) fn set_taken_over(&self, taken_over: bool) {
        self.taken_over.store(taken_over, Ordering::Relaxed);
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Says whether workers are to stand still; gives whether they were before.
    pub(super) fn set_suspended(&self, suspended: bool) -> bool {
        self.suspended.swap(suspended, Ordering::Relaxed)
    }

    pub(super) fn set_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Random bytes for a login; `None` if the system has none: then nobody is let in, since what protects a
    /// proof from being used again would be known.
    pub(super) fn entropy(&self) -> Option<Entropy> {
        let bytes: [u8; 22] = self.system.random_bytes()?;
        let (nonce, salt) = bytes.split_first_chunk()?;
        Some(Entropy { nonce: *nonce, salt: *salt.first_chunk()? })
    }

    /// Random bytes for a name that nobody guesses; `None` if the system has none.
    pub(super) fn random_bytes(&self) -> Option<[u8; 16]> {
        self.system.random_bytes()
    }

    /// Random bytes for a client's cancel key; `None` if the system has none.
    pub(super) fn cancel_secret(&self) -> Option<CancelSecret> {
        self.system.random_bytes().map(CancelSecret)
    }
}

/// What comes from the operating system, and tests have fail.
#[derive(Clone)]
pub(super) struct System {
    /// Fills all of it with random bytes.
    pub(super) random: fn(&mut [u8]) -> Result<(), ring::error::Unspecified>,
    /// How names of servers are looked up.
    pub(super) names: Names,
}

impl System {
    fn random_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.random)(&mut bytes).ok().map(|()| bytes)
    }
}

impl Default for System {
    fn default() -> Self {
        Self { random: |bytes| SystemRandom::new().fill(bytes), names: Names::default() }
    }
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("System(…)")
    }
}

impl AcceptSettings {
    /// What a TLS handshake with a client has come to.
    pub(super) fn tls_facts(&self, stream: &Stream) -> TlsFacts {
        TlsFacts {
            alpn: stream.alpn_protocol().map(<[u8]>::to_vec),
            end_point_hash: self.tls.as_ref().and_then(|tls| tls.end_point_hash.clone()),
            has_certificate: stream.peer_certificate().is_some(),
            common_name: stream.peer_certificate().and_then(common_name),
        }
    }
}

fn rules(config: Arc<Config>, mock_secret: [u8; 32], keys: ClientKeys) -> ClientRules {
    let owner = rustix::process::geteuid().as_raw();
    ClientRules::new(config, mock_secret, keys).with_owner(owner)
}
