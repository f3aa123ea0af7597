//! [`UserConfig`]: the secret, limits and timeouts of a user.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{PoolMode, StoredSecret, secret};

/// How long a printed password is used if `secret-lifetime` is not set.
const SECRET_LIFETIME: Duration = Duration::from_secs(600);

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
    /// A program that prints the password for logins to servers, with its arguments. It replaces
    /// `secret` there; clients are still checked with `secret`.
    pub secret_command: Option<Vec<String>>,
    /// How long a printed password is used; the program can print another time.
    #[serde(with = "howdah_settings::optional_duration")]
    pub secret_lifetime: Option<Duration>,
    /// A file with the password for logins to servers, which is read at each of them.
    pub secret_file: Option<PathBuf>,
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

/// Where the password of a user for logins to servers comes from, if not from the settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// A program that prints it.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// How long the password is used.
        lifetime: Duration,
    },
    /// A file that contains it.
    File(PathBuf),
}

impl UserConfig {
    /// Returns the source of the password for logins to servers; `None` if the secret is used.
    pub fn secret_source(&self) -> Option<SecretSource> {
        let lifetime = self.secret_lifetime.unwrap_or(SECRET_LIFETIME);
        match (&self.secret_command, &self.secret_file) {
            (Some(command), _) => {
                Some(SecretSource::Command { command: command.clone(), lifetime })
            }
            (None, Some(file)) => Some(SecretSource::File(file.clone())),
            (None, None) => None,
        }
    }

    /// Returns the keys below the user that are invalid, each with the reason.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let program = self.secret_command.as_ref().map(|command| command.first());
        let is_relative = |program: &String| !program.starts_with('/');
        let errors = [
            (
                program.is_some_and(|program| program.is_none_or(is_relative)),
                "secret-command",
                "must be a list of an absolute path and arguments; no shell interprets them",
            ),
            (
                self.secret_command.is_some() && self.secret_file.is_some(),
                "secret-file",
                "give either secret-file or secret-command",
            ),
            (
                self.secret_lifetime.is_some() && self.secret_command.is_none(),
                "secret-lifetime",
                "needs secret-command",
            ),
        ];
        errors.into_iter().filter(|(is_wrong, ..)| *is_wrong).map(|(_, key, why)| (key, why))
    }
}
