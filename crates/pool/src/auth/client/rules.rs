//! [`ClientRules`]: what all clients' logins share.

use std::sync::Arc;

use howdah_wire::auth::scram::ClientKeys;

use crate::{
    auth::startup::StartupRequest,
    config::{AuthMethod, Config, Lookup, StoredSecret},
};

/// What all clients' logins share, in every worker.
#[derive(Debug)]
pub struct ClientRules {
    pub(super) config: Arc<Config>,
    pub(super) mock: MockSecret,
    /// Who runs this process, by the system's number.
    pub(super) owner: Option<u32>,
    /// Keys of plain passwords, so that each is computed once.
    pub(super) keys: ClientKeys,
    /// Whether users that do not exist look as if they had a SCRAM secret, where both kinds are
    /// accepted.
    pub(super) mock_is_scram: bool,
}

/// What is known of a user who exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The secret; without one, nobody can log in who is asked for it.
    pub secret: Option<StoredSecret>,
}

/// What answers to users that do not exist are made of.
pub(super) struct MockSecret(pub(super) [u8; 32]);

impl std::fmt::Debug for MockSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MockSecret(…)")
    }
}

impl ClientRules {
    /// Rules of a configuration. `mock_secret` has to be random, and to stay the same when the
    /// configuration is read again: from it come the answers to users that do not exist. `keys` are
    /// best shared with those of before, and with the server's leg.
    pub fn new(config: Arc<Config>, mock_secret: [u8; 32], keys: ClientKeys) -> Self {
        let secrets = || config.users.values().filter_map(|user| user.secret.as_ref());
        let scram = secrets().filter(|secret| matches!(secret, StoredSecret::Scram(_))).count();
        // Most of those who exist: a guess that a client cannot improve on.
        // Servers keep SCRAM's secrets since PostgreSQL 14 unless told otherwise.
        let mock_is_scram = scram * 2 > secrets().count() || config.looks_up();
        Self { mock: MockSecret(mock_secret), owner: None, mock_is_scram, keys, config }
    }

    /// Lets who runs this process to the console without more ado, over a unix socket.
    #[must_use]
    pub fn with_owner(self, uid: u32) -> Self {
        Self { owner: Some(uid), ..self }
    }

    /// What is known of a user without a look-up. An entry of `[pool.users]` that has settings and
    /// no secret does not make its user known; an empty secret does, as in PgBouncer's user list.
    pub(super) fn listed(&self, user: &str) -> Option<Known> {
        let secret = self.config.users.get(user)?.secret.as_ref()?;
        Some(Known { secret: Some(secret.clone()).filter(|secret| !secret.is_empty()) })
    }

    /// How to find out more, where that may change anything.
    pub(super) fn lookup(&self, wish: &StartupRequest) -> Option<Lookup> {
        let is_open = self.config.auth.method == AuthMethod::Any;
        if is_open { None } else { self.config.lookup(&wish.database, &wish.user) }
    }

    /// The settings.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }
}
