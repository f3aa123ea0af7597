//! What is known of one user.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PoolMode, StoredSecret, secret, toml};

/// What is known of one user: `[pool.users.NAME]`. `None` is whatever the database or everybody has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct User {
    /// Password, md5 hash or SCRAM secret; an empty one makes the user known, and no password fits
    /// it. Without one, and without one in the user list, the user is unknown, and gets in only by
    /// certificate or with [`AuthMethod::Any`](super::AuthMethod::Any).
    #[serde(serialize_with = "secret::written")]
    pub secret: Option<StoredSecret>,
    /// Whether the secret is the user list's, which may be read again.
    #[serde(skip)]
    pub secret_is_listed: bool,
    /// Pool mode.
    pub mode: Option<PoolMode>,
    /// Most server connections of this user in one database.
    pub pool_size: Option<u32>,
    /// How many more when clients have waited.
    pub reserve_size: Option<u32>,
    /// Server connections of this user in all databases; 0 is without limit.
    pub max_servers: Option<u32>,
    /// Clients of this user; 0 is without limit.
    pub max_clients: Option<u32>,
    /// A query of this user.
    #[serde(with = "toml::given_timeout")]
    pub query_timeout: Option<Option<Duration>>,
    /// A wait of this user for a server.
    #[serde(with = "toml::given_timeout")]
    pub query_wait_timeout: Option<Option<Duration>>,
    /// A transaction of this user.
    #[serde(with = "toml::given_timeout")]
    pub transaction_timeout: Option<Option<Duration>>,
    /// A transaction of this user in which nothing is done.
    #[serde(with = "toml::given_timeout")]
    pub idle_transaction_timeout: Option<Option<Duration>>,
    /// This user's doing nothing.
    #[serde(with = "toml::given_timeout")]
    pub client_idle_timeout: Option<Option<Duration>>,
}
