//! [`Front`]: what all workers and their helpers share.

use std::{
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use howdah_connect::tls::common_name;
use howdah_net::Stream;
use howdah_wire::auth::scram::ClientKeys;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{
    capture::Captures,
    control::History,
    desk::VISITORS_MAX,
    directory::{Directory, ServerTls},
    hub::Hubs,
    reload::Origin,
    tls::ClientTls,
};
use crate::{
    CancelSecret, Limit, Statements, Time,
    auth::{ClientRules, Entropy, TlsFacts},
    config::Config,
};

/// So many clients may be on their way in, however few may be in.
const LOGINS_MIN: u32 = 128;

/// How clients come in: what they must prove, and our side of TLS. One that is on its way in keeps those
/// that it began with.
#[derive(Debug)]
pub(super) struct Doors {
    pub(super) rules: Arc<ClientRules>,
    /// `None` answers no to who asks for TLS.
    pub(super) tls: Option<ClientTls>,
}

/// What all workers and their helpers share.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) directory: Directory,
    doors: RwLock<Arc<Doors>>,
    /// How many clients may be on their way in: strangers must not take all descriptors.
    pub(super) logins: Arc<[Arc<Limit>]>,
    /// From it come the answers to users that do not exist; the same to the end.
    mock_secret: [u8; 32],
    /// Keys of the passwords that we show servers.
    pub(super) server_keys: ClientKeys,
    /// Prepared statements, by text and types.
    pub(super) statements: Arc<Statements>,
    random: SystemRandom,
    /// How many operators may be at the console.
    pub(super) visitors: Arc<[Arc<Limit>]>,
    history: Mutex<History>,
    /// What is recorded of clients' traffic.
    pub(super) captures: Captures,
    /// Where settings are read from again; held by the one who changes settings.
    pub(super) origin: Mutex<Option<Origin>>,
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
    /// That process, while it has clients left. Whoever writes to it holds the lock.
    pub(super) old: Mutex<Option<UnixStream>>,
}

impl Front {
    pub(super) fn new(
        directory: Directory,
        tls: Option<ClientTls>,
        origin: Option<Origin>,
    ) -> Self {
        let config = directory.config();
        let logins = [Limit::new(logins_max(&config))].into();
        let random = SystemRandom::new();
        let mut mock_secret = [0; 32];
        // Without a working source of randomness nobody gets in: see below.
        let _ = random.fill(&mut mock_secret);
        let keys = ClientKeys::default();
        let rules = Arc::new(rules(config, mock_secret, keys.clone()));
        Self {
            directory,
            doors: RwLock::new(Arc::new(Doors { rules, tls })),
            logins,
            mock_secret,
            server_keys: keys,
            statements: Arc::default(),
            random,
            visitors: [Limit::new(VISITORS_MAX)].into(),
            history: Mutex::default(),
            captures: Captures::default(),
            origin: Mutex::new(origin),
            is_over: AtomicBool::new(false),
            began: Instant::now(),
            taken_over: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            has_foreigners: AtomicBool::new(false),
            hubs: Hubs::default(),
            old: Mutex::default(),
        }
    }

    /// How clients come in now.
    pub(super) fn doors(&self) -> Arc<Doors> {
        Arc::clone(&self.doors.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has other settings hold. Workers are to be told.
    pub(super) fn change(&self, config: Arc<Config>, server: ServerTls, tls: Option<ClientTls>) {
        self.logins.iter().for_each(|limit| limit.set_max(logins_max(&config)));
        self.directory.change(Arc::clone(&config), server);
        let rules = Arc::new(rules(config, self.mock_secret, self.server_keys.clone()));
        let doors = Arc::new(Doors { rules, tls });
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

    /// Random bytes for a login. Without a working source they are zeros, and SCRAM is weaker by
    /// what it guards against replays.
    pub(super) fn entropy(&self) -> Entropy {
        let mut entropy = Entropy { nonce: [0; 18], salt: [0; 4] };
        let mut bytes = [0; 22];
        let _ = self.random.fill(&mut bytes);
        entropy.nonce.copy_from_slice(&bytes[..18]);
        entropy.salt.copy_from_slice(&bytes[18..]);
        entropy
    }

    /// Random bytes for a client's cancel key; `None` if the system has none.
    pub(super) fn cancel_secret(&self) -> Option<CancelSecret> {
        let mut secret = [0; 32];
        self.random.fill(&mut secret).ok().map(|()| CancelSecret(secret))
    }
}

impl Doors {
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

fn logins_max(config: &Config) -> u32 {
    config.limits.clients.max(LOGINS_MIN)
}
