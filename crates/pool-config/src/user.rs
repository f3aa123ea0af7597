//! [`UserConfig`]: the secret, limits and timeouts of a user.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PoolMode, StoredSecret, secret};

/// The settings of a user, `[pool.users.NAME]`: secret, limits and timeouts. `None` means the value
/// of the database or of `[pool]`, unless the field says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct UserConfig {
    /// Password, md5 hash or SCRAM secret. An empty secret makes the user known, but matches no
    /// password. A user without a secret, here and in the user list, is unknown unless an auth
    /// query finds it. An unknown user can log in only by certificate, as an OS user, or with
    /// [`AuthMethod::Any`](super::AuthMethod::Any).
    #[serde(serialize_with = "secret::serialize")]
    pub secret: Option<StoredSecret>,
    /// Whether the secret is from the user list, which may be reloaded.
    #[serde(skip)]
    pub secret_is_listed: bool,
    /// The pool mode, which determines when the user's clients release their server connections.
    pub mode: Option<PoolMode>,
    /// Maximum number of server connections of this user in one database, without the reserve; 0
    /// means no limit.
    pub pool_size: Option<u32>,
    /// Additional server connections in one database, allowed once a client has waited for
    /// `timeouts.reserve-wait`.
    pub reserve_size: Option<u32>,
    /// Maximum number of server connections of this user in all databases; 0 means no limit.
    pub max_servers: Option<u32>,
    /// Maximum number of clients of this user; 0 means no limit.
    pub max_clients: Option<u32>,
    /// Maximum time that a request may run before its client is disconnected.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub query_timeout: Option<Option<Duration>>,
    /// Maximum time that a client waits for a server connection.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub query_wait_timeout: Option<Option<Duration>>,
    /// Maximum time that a transaction, or a request outside one, may take before its client is
    /// disconnected.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub transaction_timeout: Option<Option<Duration>>,
    /// Maximum idle time of a client in a transaction.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub idle_transaction_timeout: Option<Option<Duration>>,
    /// Maximum idle time of a client outside a transaction.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub client_idle_timeout: Option<Option<Duration>>,
}
