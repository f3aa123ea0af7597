//! [`Front`]: what all workers and their helpers share.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use howdah_connect::tls::common_name;
use howdah_net::Stream;
use howdah_wire::auth::scram::ClientKeys;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::ServerConfig;

use super::{control::History, desk::VISITORS_MAX, directory::Directory, tls::ClientTls};
use crate::{
    CancelSecret, Limit, Statements,
    auth::{ClientRules, Entropy, TlsFacts},
};

/// So many clients may be on their way in, however few may be in.
const LOGINS_MIN: u32 = 128;

/// What all workers and their helpers share.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) directory: Directory,
    /// The client leg's TLS; `None` answers no to who asks for it.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// How many clients may be on their way in: strangers must not take all descriptors.
    pub(super) logins: Arc<[Arc<Limit>]>,
    pub(super) rules: Arc<ClientRules>,
    /// Keys of the passwords that we show servers.
    pub(super) server_keys: ClientKeys,
    /// Of our certificate, for channel binding.
    end_point_hash: Option<Vec<u8>>,
    /// Prepared statements, by text and types.
    pub(super) statements: Arc<Statements>,
    random: SystemRandom,
    /// How many operators may be at the console.
    pub(super) visitors: Arc<[Arc<Limit>]>,
    pub(super) history: Mutex<History>,
    is_over: AtomicBool,
}

impl Front {
    pub(super) fn new(directory: Directory, tls: Option<ClientTls>) -> Self {
        let config = directory.config();
        let logins = [Limit::new(config.limits.clients.max(LOGINS_MIN))].into();
        let random = SystemRandom::new();
        let mut mock_secret = [0; 32];
        // Without a working source of randomness nobody gets in: see below.
        let _ = random.fill(&mut mock_secret);
        let keys = ClientKeys::default();
        let rules = ClientRules::new(Arc::clone(config), mock_secret, keys.clone());
        let rules = Arc::new(rules.with_owner(rustix::process::geteuid().as_raw()));
        let (tls, end_point_hash) = match tls {
            Some(tls) => (Some(tls.config), tls.end_point_hash),
            None => (None, None),
        };
        Self {
            directory,
            tls,
            logins,
            rules,
            server_keys: keys,
            end_point_hash,
            statements: Arc::default(),
            random,
            visitors: [Limit::new(VISITORS_MAX)].into(),
            history: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Whether the pooler has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
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

    /// What a TLS handshake with a client has come to.
    pub(super) fn tls_facts(&self, stream: &Stream) -> TlsFacts {
        TlsFacts {
            alpn: stream.alpn_protocol().map(<[u8]>::to_vec),
            end_point_hash: self.end_point_hash.clone(),
            has_certificate: stream.peer_certificate().is_some(),
            common_name: stream.peer_certificate().and_then(common_name),
        }
    }

    /// Random bytes for a client's cancel key; `None` if the system has none.
    pub(super) fn cancel_secret(&self) -> Option<CancelSecret> {
        let mut secret = [0; 32];
        self.random.fill(&mut secret).ok().map(|()| CancelSecret(secret))
    }
}
