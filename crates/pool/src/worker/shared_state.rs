//! [`SharedState`]: the state shared by all workers and helper threads.

use std::{
    io,
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use howdah_connect::tls::common_name;
use howdah_net::{Listener, Stream};
use howdah_pool_config::{Config, TlsConfig};
use howdah_pool_core::{CancelSecret, StatementRegistry, Time};
use howdah_wire::auth::scram::ClientKeys;
use parking_lot::{Mutex, MutexGuard, RwLock};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{
    PoolerStartError,
    cancel_peers::{CancelPeers, OwnSockets},
    capture::Captures,
    console_clients::ConsoleClients,
    control::StatsHistory,
    directory::{Directory, ServerTls},
    host_resolver::HostResolver,
    multiplexer::ListenMultiplexers,
    password_checks::PasswordChecks,
    refusals::Refusals,
    reload::ConfigOrigin,
    server_secrets::ServerSecrets,
    startups::Startups,
    tls::ClientTls,
};
use crate::auth::{ClientRules, ClientTlsInfo, Entropy};

/// Lower bound of the default limit on connections that have not logged in, however low the client
/// limit is.
const LOGINS_MIN: u32 = 128;

/// The settings for accepting clients: authentication rules and TLS. A login keeps the settings
/// that it started with.
#[derive(Debug)]
pub(super) struct AcceptSettings {
    pub(super) rules: Arc<ClientRules>,
    /// TLS for clients; `None` if TLS is refused.
    pub(super) tls: Option<ClientTls>,
}

/// The state shared by all workers and helper threads.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) directory: Directory,
    accept_settings: RwLock<Arc<AcceptSettings>>,
    /// Connections that have not logged in.
    pub(super) startups: Arc<Startups>,
    /// The secret from which SCRAM salts are derived for users without a stored verifier; constant
    /// for the life of the process.
    mock_secret: [u8; 32],
    /// A cache of the SCRAM keys of plain passwords, for logins of clients and for logins to
    /// servers.
    pub(super) server_keys: ClientKeys,
    /// Prepared statements, by text and parameter types.
    pub(super) statements: Arc<StatementRegistry>,
    system: SystemServices,
    /// Random bytes for logins.
    random: RandomBuffer,
    /// A handle to each listening socket, for a process that takes over. Those of TCP sockets are
    /// closed when a shutdown starts: the kernel accepts connections for as long as any handle is
    /// open.
    listeners: Mutex<Vec<Listener>>,
    /// Whether a shutdown that waits for servers or clients has started: new clients are accepted
    /// only by the console.
    shutting_down: AtomicBool,
    /// The connections to the console.
    pub(super) console: ConsoleClients,
    history: Mutex<StatsHistory>,
    /// The running capture of client traffic, or the last one.
    pub(super) captures: Captures,
    /// The file that settings are reloaded from. Locked while settings are changed.
    pub(super) origin: Mutex<Option<ConfigOrigin>>,
    /// TLS settings that were set on the console and do not match each other yet.
    pub(super) pending_tls: Mutex<Option<TlsConfig>>,
    is_stopped: AtomicBool,
    /// Time 0 of the workers' clocks.
    pub(super) started_at: Instant,
    /// Whether another process has taken over or is taking over.
    taken_over: AtomicBool,
    /// Whether workers are suspended or about to be.
    suspended: AtomicBool,
    /// The LISTEN multiplexers of all databases.
    pub(super) multiplexers: ListenMultiplexers,
    /// Counts of refused logins.
    pub(super) refusals: Refusals,
    /// The passwords for servers that programs have printed.
    pub(super) server_secrets: ServerSecrets,
    /// The passwords that servers have accepted.
    pub(super) password_checks: PasswordChecks,
    /// The process that was or is being taken over.
    pub(super) predecessor: PredecessorLink,
    /// The poolers to which CancelRequests with unknown keys are forwarded.
    pub(super) cancel_peers: CancelPeers,
}

/// The process that was or is being taken over, if any.
#[derive(Debug, Default)]
pub(super) struct PredecessorLink {
    /// Whether there may be clients that came from it.
    pub(super) has_clients: AtomicBool,
    /// The socket to it, while it has clients. The lock serializes writes.
    pub(super) socket: Mutex<Option<UnixStream>>,
}

impl SharedState {
    pub(super) fn new(
        directory: Directory,
        tls: Option<ClientTls>,
        origin: Option<ConfigOrigin>,
        system: SystemServices,
    ) -> Result<Self, PoolerStartError> {
        let config = directory.config();
        let mock_secret = system.random_bytes().ok_or(PoolerStartError::Randomness)?;
        let keys = ClientKeys::default();
        let rules = Arc::new(rules(config, mock_secret, keys.clone()));
        Ok(Self {
            directory,
            accept_settings: RwLock::new(Arc::new(AcceptSettings { rules, tls })),
            startups: Arc::default(),
            mock_secret,
            server_keys: keys,
            statements: Arc::default(),
            system,
            random: RandomBuffer::default(),
            listeners: Mutex::default(),
            shutting_down: AtomicBool::new(false),
            console: ConsoleClients::default(),
            history: Mutex::default(),
            captures: Captures::default(),
            origin: Mutex::new(origin),
            pending_tls: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            started_at: Instant::now(),
            taken_over: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            multiplexers: ListenMultiplexers::default(),
            refusals: Refusals::default(),
            server_secrets: ServerSecrets::default(),
            password_checks: PasswordChecks::default(),
            predecessor: PredecessorLink::default(),
            cancel_peers: CancelPeers::default(),
        })
    }

    /// Locks the handles to the listening sockets.
    pub(super) fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock()
    }

    /// Returns the addresses that this process listens on.
    pub(super) fn own_sockets(&self) -> OwnSockets {
        let listeners = self.listeners();
        let unix = listeners.iter().filter_map(Listener::unix_path).map(Path::to_owned);
        let tcp = listeners.iter().filter_map(Listener::tcp_address);
        OwnSockets { tcp: tcp.collect(), unix: unix.collect() }
    }

    /// Starts a shutdown. The kernel refuses TCP clients once the workers have also closed their
    /// sockets. Unix sockets stay open for the console.
    pub(super) fn start_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Relaxed);
        self.listeners().retain(|listener| listener.tcp_address().is_none());
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// Returns the limit on connections that have not logged in; it applies separately to TCP and
    /// unix sockets.
    pub(super) fn logins_max(&self) -> usize {
        let limits = self.directory.config().limits;
        let max = if limits.logins == 0 { limits.clients.max(LOGINS_MIN) } else { limits.logins };
        max as usize
    }

    /// Resolves a host name. Blocks as long as the system's resolver does.
    pub(super) fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.directory.names().lookup(host, port)
    }

    /// Returns the current settings for accepting clients.
    pub(super) fn accept_settings(&self) -> Arc<AcceptSettings> {
        Arc::clone(&self.accept_settings.read())
    }

    /// Applies new settings. The caller notifies the workers.
    pub(super) fn apply_config(
        &self,
        config: Arc<Config>,
        server: ServerTls,
        tls: Option<ClientTls>,
    ) {
        let before = self.directory.config();
        if before.databases != config.databases || before.tls.server != config.tls.server {
            self.password_checks.clear();
        }
        self.directory.apply_config(Arc::clone(&config), server);
        let rules = Arc::new(rules(config, self.mock_secret, self.server_keys.clone()));
        let settings = Arc::new(AcceptSettings { rules, tls });
        *self.accept_settings.write() = settings;
    }

    /// Locks the totals of the last statistics periods.
    pub(super) fn history(&self) -> MutexGuard<'_, StatsHistory> {
        self.history.lock()
    }

    /// Returns the current time on the workers' clock.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether the pooler has stopped or is stopping, so that threads must end.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
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

    /// Sets whether workers are suspended; returns the previous value.
    pub(super) fn set_suspended(&self, suspended: bool) -> bool {
        self.suspended.swap(suspended, Ordering::Relaxed)
    }

    pub(super) fn set_stopped(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns random bytes for a login; `None` if the system provides none. Logins are then
    /// refused, because with a predictable nonce an observed login could be replayed.
    pub(super) fn entropy(&self) -> Option<Entropy> {
        let bytes: [u8; 22] = self.random.take(&self.system)?;
        let (nonce, salt) = bytes.split_first_chunk()?;
        Some(Entropy { nonce: *nonce, salt: *salt.first_chunk()? })
    }

    /// Returns random bytes for an unguessable name; `None` if the system provides none.
    pub(super) fn random_bytes(&self) -> Option<[u8; 16]> {
        self.system.random_bytes()
    }

    /// Returns random bytes for a client's cancel key; `None` if the system provides none.
    pub(super) fn cancel_secret(&self) -> Option<CancelSecret> {
        self.random.take(&self.system).map(CancelSecret)
    }
}

/// Services of the operating system that tests replace.
#[derive(Clone)]
pub(super) struct SystemServices {
    /// Fills a slice with random bytes.
    pub(super) random: fn(&mut [u8]) -> Result<(), ring::error::Unspecified>,
    /// Resolves host names of servers.
    pub(super) names: HostResolver,
}

impl SystemServices {
    fn random_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.random)(&mut bytes).ok().map(|()| bytes)
    }
}

impl Default for SystemServices {
    fn default() -> Self {
        Self { random: |bytes| SystemRandom::new().fill(bytes), names: HostResolver::default() }
    }
}

impl std::fmt::Debug for SystemServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemServices(…)")
    }
}

/// Random bytes that were requested from the system together, so that not every login takes a
/// system call. No byte is used twice: the process never forks, and used bytes are erased.
struct RandomBuffer(Mutex<(usize, [u8; Self::BYTES])>);

impl RandomBuffer {
    /// Enough for the nonces and cancel keys of some twenty logins.
    const BYTES: usize = 1024;

    /// Removes bytes from the buffer, which is refilled first if it has too few; `None` if the
    /// system provides none.
    fn take<const N: usize>(&self, system: &SystemServices) -> Option<[u8; N]> {
        let mut buffer = self.0.lock();
        let (left, bytes) = &mut *buffer;
        if *left < N {
            *left = 0;
            (system.random)(bytes).ok()?;
            *left = Self::BYTES;
        }
        let taken = &mut bytes[*left - N..*left];
        let result = taken.try_into().ok()?;
        taken.fill(0);
        *left -= N;
        Some(result)
    }
}

impl Default for RandomBuffer {
    fn default() -> Self {
        Self(Mutex::new((0, [0; Self::BYTES])))
    }
}

impl std::fmt::Debug for RandomBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RandomBuffer(…)")
    }
}

impl AcceptSettings {
    /// Returns the result of a client's TLS handshake.
    pub(super) fn client_tls_info(&self, stream: &Stream) -> ClientTlsInfo {
        ClientTlsInfo {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn random_bytes_are_used_once_and_erased() {
        let (buffer, system) = (RandomBuffer::default(), SystemServices::default());
        let taken: HashSet<[u8; 32]> =
            (0..100).map(|_| buffer.take(&system).expect("the system has random bytes")).collect();
        assert_eq!(taken.len(), 100);
        let guard = buffer.0.lock();
        let (left, bytes) = &*guard;
        assert!(bytes[*left..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn random_bytes_are_refused_without_source() {
        let system = SystemServices {
            random: |_| Err(ring::error::Unspecified),
            ..SystemServices::default()
        };
        let buffer = RandomBuffer::default();
        assert_eq!(buffer.take::<22>(&system), None);
        assert_eq!(buffer.take::<22>(&system), None, "a failed refill leaves nothing to use");
    }
}
