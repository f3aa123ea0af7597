//! [`ClientRules`]: the authentication settings shared by all client logins.

use std::sync::Arc;

use howdah_pool_config::{AuthMethod, AuthQuery, Config, StoredSecret};
use howdah_wire::auth::scram::ClientKeys;

use crate::auth::startup::StartupRequest;

/// The authentication settings shared by all client logins, in every worker.
#[derive(Debug)]
pub struct ClientRules {
    pub(super) config: Arc<Config>,
    pub(super) mock: MockSecret,
    /// The UID of the OS user that may use the console without a password; `None` if none may.
    pub(super) owner: Option<u32>,
    /// A cache of the SCRAM keys of plain passwords, so that they are not derived at every login.
    pub(super) keys: ClientKeys,
    /// Whether unknown users get a SCRAM request rather than an md5 request, where the method
    /// allows both.
    pub(super) mock_is_scram: bool,
}

/// The secret of a user that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSecret {
    /// The stored secret. If `None`, logins that need a secret fail.
    pub secret: Option<StoredSecret>,
}

/// The secret from which SCRAM salts are derived for users without a stored verifier.
pub(super) struct MockSecret(pub(super) [u8; 32]);

impl std::fmt::Debug for MockSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MockSecret(…)")
    }
}

impl ClientRules {
    /// Creates the rules of a configuration. `mock_secret` must be random and stay the same across
    /// reloads: SCRAM salts are derived from it, and a salt that changes would show that the user
    /// has no stored verifier. `keys` should be shared across reloads and with server logins.
    pub fn new(config: Arc<Config>, mock_secret: [u8; 32], keys: ClientKeys) -> Self {
        let secrets = || config.users.values().filter_map(|user| user.secret.as_ref());
        let scram = secrets().filter(|secret| matches!(secret, StoredSecret::Scram(_))).count();
        // Requests to unknown users look like those to the majority of the existing users. With
        // auth queries, SCRAM is assumed: it is PostgreSQL's default since version 14.
        let mock_is_scram = scram * 2 > secrets().count() || config.uses_auth_query();
        Self { mock: MockSecret(mock_secret), owner: None, mock_is_scram, keys, config }
    }

    /// Allows this OS user to use the console without a password, over a unix socket.
    #[must_use]
    pub fn with_owner(self, uid: u32) -> Self {
        Self { owner: Some(uid), ..self }
    }

    /// Returns the configured secret of a user. An entry of `[pool.users]` with settings but
    /// without a secret does not make the user known; an empty secret does, as in PgBouncer's user
    /// list.
    pub(super) fn configured_secret(&self, user: &str) -> Option<UserSecret> {
        let secret = self.config.users.get(user)?.secret.as_ref()?;
        Some(UserSecret { secret: Some(secret.clone()).filter(|secret| !secret.is_empty()) })
    }

    /// Returns the auth query for a user, if one is configured and the method is not `any`.
    pub(super) fn auth_query(&self, request: &StartupRequest) -> Option<AuthQuery> {
        let is_open = self.config.auth.method == AuthMethod::Any;
        if is_open { None } else { self.config.auth_query(&request.database, &request.user) }
    }

    /// Returns the configuration that the rules were created from.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }
}
