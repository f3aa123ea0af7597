//! [`AuthConfig`]: how clients authenticate, `[pool.auth]`.

mod query;
pub(crate) mod secret;

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::query::{AuthQuery, DEFAULT_AUTH_QUERY};
use super::hba::Hba;

/// Client authentication: `[pool.auth]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct AuthConfig {
    /// The authentication method; the TOML key is `type`.
    #[serde(rename = "type")]
    pub method: AuthMethod,
    /// User list: a file of users and secrets in the format of PgBouncer's `userlist.txt`.
    pub file: Option<PathBuf>,
    /// File with rules in the format of `pg_hba.conf`, for [`AuthMethod::Hba`].
    pub hba_file: Option<PathBuf>,
    /// File with user name maps in the format of `pg_ident.conf`, for the rules in `hba_file`.
    pub ident_file: Option<PathBuf>,
    /// The parsed contents of `hba_file` and `ident_file`.
    #[serde(skip)]
    pub hba: Option<Arc<Hba>>,
    /// The role that queries servers for the secrets of users that are not listed; `None` turns
    /// this off for databases without `auth-user`.
    pub user: Option<String>,
    /// The database, by the name that clients use, in which secrets are queried; the database that
    /// the client requests if `None`.
    pub dbname: Option<String>,
    /// The SQL query for a secret. `$1` is the user name; the result's columns are user name and
    /// secret.
    pub query: String,
    /// SCRAM iterations for keys derived from plain passwords.
    pub scram_iterations: NonZeroU32,
    /// Text of a notice that each client gets when it has logged in; none by default.
    pub login_notice: Option<String>,
    /// Whether users whose secret is not known are checked at the server, and over which
    /// connections.
    pub pass_through: PassThrough,
    /// How long a password that the server has accepted is not checked there again; zero means that
    /// it is checked at each login.
    #[serde(with = "howdah_settings::duration")]
    pub pass_through_recheck: Duration,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            method: AuthMethod::ScramSha256,
            file: None,
            hba_file: None,
            ident_file: None,
            hba: None,
            user: None,
            dbname: None,
            query: DEFAULT_AUTH_QUERY.to_owned(),
            scram_iterations: NonZeroU32::new(4096).expect("4096 is not zero"),
            login_notice: None,
            pass_through: PassThrough::Off,
            pass_through_recheck: Duration::from_secs(60),
        }
    }
}

/// Pass-through authentication: users whose secret is not known send their password in cleartext,
/// and it is checked by a login to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassThrough {
    /// Only where a rule in `hba_file` has the method `pass-through`, over TLS and unix sockets.
    #[default]
    Off,
    /// Over TLS and unix sockets.
    Encrypted,
    /// Also from loopback addresses without TLS.
    Loopback,
}

impl PassThrough {
    /// Returns the keyword in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Encrypted => "encrypted",
            Self::Loopback => "loopback",
        }
    }
}

/// Method of client authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// No authentication and any user name, for databases that force their user.
    Any,
    /// No authentication, but the user must be known.
    Trust,
    /// The client sends its password in cleartext.
    Plain,
    /// The client sends an md5 hash of its password; SCRAM is used for users whose stored secret is
    /// a SCRAM secret.
    Md5,
    /// SCRAM-SHA-256, over TLS with channel binding if the client supports it.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// The client presents a TLS certificate whose common name is the user name.
    Cert,
    /// The method that `hba_file` selects for each connection.
    Hba,
}

impl AuthMethod {
    /// All methods, in the order in which the documentation lists them.
    pub const ALL: [Self; 7] =
        [Self::Any, Self::Trust, Self::Plain, Self::Md5, Self::ScramSha256, Self::Cert, Self::Hba];

    /// Returns the keyword of this method in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Trust => "trust",
            Self::Plain => "plain",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
            Self::Cert => "cert",
            Self::Hba => "hba",
        }
    }
}
