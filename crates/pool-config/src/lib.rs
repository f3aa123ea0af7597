//! The pooler's configuration: listening sockets, databases and their servers, users, limits,
//! timeouts.
//!
//! The structs have the structure of the `[pool]` section of `howdah.toml`, whose keys are in
//! kebab-case. A `pgbouncer.ini` with its `userlist.txt` is read into the same structs
//! ([`pgbouncer`]). Units and the meaning of zero are PgBouncer's, and so are most defaults.
//! [`Config::pool`] resolves the settings of one user in one database. This module only reads and
//! checks settings; it does not act on them.

mod adaptive;
mod application_name;
mod auth;
mod capture;
mod cluster;
mod database;
mod diff;
mod exposed_files;
mod file;
pub mod hba;
mod hba_files;
mod ignored_settings;
mod ini;
mod keys;
mod listen;
mod log;
mod mirror;
mod notifications;
mod pairs;
pub mod pgbouncer;
mod pgcat;
mod pool;
#[cfg(test)]
mod reference_page;
mod routing;
mod set_key;
mod tcp;
mod timeouts;
mod tls;
mod to_toml;
mod user;
mod userlist;

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
};

use serde::{Deserialize, Serialize};

use self::auth::secret;
pub use self::{
    adaptive::AdaptiveConfig,
    application_name::ApplicationName,
    auth::{AuthConfig, AuthMethod, AuthQuery, DEFAULT_AUTH_QUERY, PassThrough},
    capture::{CaptureConfig, CopyCapture},
    cluster::{
        ClusterConfig, ClusterPool, ClusterServer, ConfiguredRole, SERVERS_MAX, ServerEntry,
        Strategy,
    },
    database::{DatabaseConfig, LoadBalanceHosts},
    diff::ConfigChange,
    file::{ConfigReadError, FileFormat, ParsedConfig},
    listen::{ListenConfig, PEERS_MAX, PeerAddress, PeerList, ProxySource},
    log::{LogConfig, SYSLOG_FACILITIES},
    mirror::{MIRRORS_MAX, MirrorEntry, MirrorPool},
    notifications::NotificationConfig,
    pool::{PoolSettings, ServerIdentity},
    routing::{
        DefaultShardSetting, HintConfig, KeyedTables, RoutingConfig, ShardCollation, ShardEntry,
        ShardHash, ShardKeyValue, ShardingConfig,
    },
    secret::{SECRET_BYTES_MAX, StoredSecret},
    tcp::TcpConfig,
    timeouts::TimeoutConfig,
    tls::{TlsConfig, TlsSideConfig},
    user::{SecretSource, UserConfig},
    userlist::{UserlistError, UserlistErrorKind, read as read_userlist},
};

pub use howdah_settings::{Diagnostic, SettingsErrors};

pub use self::{database::host_and_port, set_key::SetError};

/// All settings of the pooler: the `[pool]` section.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Addresses and unix sockets on which the pooler listens.
    pub listen: ListenConfig,
    /// Other poolers at the same address, to which CancelRequests with unknown keys are forwarded.
    pub peers: PeerList,
    /// Number of event loops, one per thread; the number of cores if `None`.
    pub workers: Option<NonZeroUsize>,
    /// The operating system's user that the process becomes before it opens sockets, if it is
    /// started as root.
    pub os_user: Option<String>,
    /// The pooling mode, which determines when a client releases its server connection.
    pub mode: PoolMode,
    /// Number of server connections per pool, that is, per user and database.
    pub sizes: SizeConfig,
    /// Limits on the number of connections and on the length of messages.
    pub limits: LimitConfig,
    /// Timeouts of clients, servers and the pooler itself.
    pub timeouts: TimeoutConfig,
    /// How clients authenticate.
    pub auth: AuthConfig,
    /// Encryption of connections from clients and to servers.
    pub tls: TlsConfig,
    /// Parameters that clients may set in the startup packet, in addition to `client_encoding`,
    /// `DateStyle`, `TimeZone`, `standard_conforming_strings` and `application_name`. Listed or
    /// not, every parameter that servers report is restored on each server that a client gets.
    pub tracked_parameters: Vec<String>,
    /// Startup parameters that are ignored instead of refused. The name `options` stands for every
    /// parameter inside `options`.
    pub ignored_startup_parameters: Vec<String>,
    /// Query run when a client releases its server in session mode; none if empty.
    pub reset_query: String,
    /// Whether `reset-query` also runs in transaction and statement mode, whenever a client
    /// releases its server.
    pub reset_query_always: bool,
    /// Maximum number of prepared statements per server connection outside session mode; 0 turns
    /// tracking off.
    pub max_prepared_statements: u32,
    /// Query that checks a server connection which was idle for `timeouts.server-check-delay`; an
    /// empty query by default. `None` turns the check off.
    #[serde(with = "check_query")]
    pub check_query: Option<String>,
    /// Whether the least recently used server connection is chosen instead of the most recently
    /// used one.
    pub round_robin: bool,
    /// Template for the `application_name` sent to servers; the client's own value if `None`.
    pub application_name: Option<ApplicationName>,
    /// Whether clients may use the simple query protocol, in which one message can contain several
    /// statements.
    pub simple_queries: bool,
    /// Condition under which the pooler exits after SIGTERM.
    pub shutdown_mode: ShutdownMode,
    /// Whether cleartext passwords may be sent to servers over connections that are neither
    /// encrypted nor local; databases can override this.
    pub allow_cleartext_password: bool,
    /// Which events are logged in addition to problems.
    pub log: LogConfig,
    /// How clients are pinned to servers in adaptive mode.
    pub adaptive: AdaptiveConfig,
    /// How LISTEN works outside of session mode.
    pub notifications: NotificationConfig,
    /// Whether and how clients' traffic is captured.
    pub capture: CaptureConfig,
    /// Options of TCP sockets to clients and servers, such as keepalive.
    pub tcp: TcpConfig,
    /// Databases, by the name that clients use. The entry `*` matches all other names.
    pub databases: BTreeMap<String, DatabaseConfig>,
    /// Users by name, including those of the user list once it is loaded.
    pub users: BTreeMap<String, UserConfig>,
    /// Users that may run every console command.
    pub admin_users: Vec<String>,
    /// Users that may run the read-only console commands.
    pub stats_users: Vec<String>,
}

/// Serde module for the check query; `false` means none, and `true` an empty query.
mod check_query {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<String>, D::Error>
    where
        D: Deserializer<'de>,
    {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a query, or false for none")]
        enum CheckQueryValue {
            Flag(bool),
            Query(String),
        }
        match CheckQueryValue::deserialize(from)? {
            CheckQueryValue::Flag(false) => Ok(None),
            CheckQueryValue::Flag(true) => Ok(Some(String::new())),
            CheckQueryValue::Query(query) => Ok(Some(query)),
        }
    }

    pub(crate) fn serialize<S: Serializer>(it: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
        match it {
            Some(query) => to.serialize_str(query),
            None => to.serialize_bool(false),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ListenConfig::default(),
            peers: PeerList::default(),
            workers: None,
            os_user: None,
            mode: PoolMode::Session,
            sizes: SizeConfig::default(),
            limits: LimitConfig::default(),
            timeouts: TimeoutConfig::default(),
            auth: AuthConfig::default(),
            tls: TlsConfig::default(),
            tracked_parameters: vec!["IntervalStyle".to_owned()],
            ignored_startup_parameters: Vec::new(),
            reset_query: "DISCARD ALL".to_owned(),
            reset_query_always: false,
            max_prepared_statements: 200,
            check_query: Some(String::new()),
            round_robin: false,
            application_name: None,
            simple_queries: true,
            shutdown_mode: ShutdownMode::default(),
            allow_cleartext_password: false,
            log: LogConfig::default(),
            adaptive: AdaptiveConfig::default(),
            notifications: NotificationConfig::default(),
            capture: CaptureConfig::default(),
            tcp: TcpConfig::default(),
            databases: BTreeMap::new(),
            users: BTreeMap::new(),
            admin_users: Vec::new(),
            stats_users: Vec::new(),
        }
    }
}

/// An example `howdah.toml` with one database, which explains every key and shows its default.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Name of the database entry that matches all names without an entry of their own.
pub const ANY_DATABASE: &str = "*";

/// Names of the admin console, which no database entry may have.
pub const CONSOLE_DATABASES: [&str; 3] = ["howdah", "pgbouncer", "pgcat"];

impl Config {
    /// Returns the entry for the database name that a client requests; `None` if no entry matches.
    pub fn database(&self, name: &str) -> Option<&DatabaseConfig> {
        self.databases.get(name).or_else(|| self.databases.get(ANY_DATABASE))
    }
}

/// The pooling mode, which determines when a client releases its server connection.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PoolMode {
    /// A client keeps its server connection until it disconnects.
    #[default]
    Session,
    /// A client keeps its server connection until the end of its transaction.
    Transaction,
    /// Like `Transaction`, but a client whose session has state that cannot follow it, such as a
    /// temporary table, keeps its server connection until that state is gone.
    Adaptive,
    /// A client keeps its server connection until the end of the statement. Transactions of several
    /// statements are refused.
    Statement,
}

impl PoolMode {
    /// Returns the keyword of this mode in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Adaptive => "adaptive",
            Self::Statement => "statement",
        }
    }
}

/// Condition under which the pooler exits after SIGTERM. SIGINT always waits for servers; SIGQUIT
/// does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShutdownMode {
    /// Disconnects each client once it is outside a transaction, and exits after the last one.
    #[default]
    WaitForServers,
    /// Serves each client until it disconnects, and exits after the last one.
    WaitForClients,
}

impl ShutdownMode {
    /// Returns the keyword of this mode in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitForServers => "wait-for-servers",
            Self::WaitForClients => "wait-for-clients",
        }
    }
}

/// Numbers of server connections of a pool, which serves one user in one database: `[pool.sizes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct SizeConfig {
    /// Maximum number of connections; `None`, written 0, means no limit.
    #[serde(with = "howdah_settings::limit")]
    pub pool: Option<NonZeroU32>,
    /// Number of connections kept open from the pool's first client on, or from the start if the
    /// database forces its user.
    pub min: u32,
    /// Additional connections allowed once a client has waited for `timeouts.reserve-wait`.
    pub reserve: u32,
}

impl Default for SizeConfig {
    fn default() -> Self {
        Self { pool: NonZeroU32::new(20), min: 0, reserve: 0 }
    }
}

/// Limits on the number of connections and on the length of messages: `[pool.limits]`. For the
/// optional ones, `None`, written 0, means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitConfig {
    /// Maximum number of clients of all databases, at least 1.
    pub clients: u32,
    /// Maximum number of TCP connections that have not logged in yet, and separately the same
    /// number of unix socket connections; 0 means the value of `clients`, but at least 128.
    pub logins: u32,
    /// Maximum number of clients per database, unless its entry has `max-clients`.
    #[serde(with = "howdah_settings::limit")]
    pub clients_per_database: Option<NonZeroU32>,
    /// Maximum number of clients per user, unless its entry has `max-clients`.
    #[serde(with = "howdah_settings::limit")]
    pub clients_per_user: Option<NonZeroU32>,
    /// Maximum number of server connections per database, unless its entry has `max-servers`.
    #[serde(with = "howdah_settings::limit")]
    pub servers_per_database: Option<NonZeroU32>,
    /// Maximum number of server connections per user, unless its entry has `max-servers`.
    #[serde(with = "howdah_settings::limit")]
    pub servers_per_user: Option<NonZeroU32>,
    /// Maximum number of server connections to one host and port, for all databases and users. For
    /// a database with several hosts the limit is this number times the number of hosts, for all
    /// hosts together.
    #[serde(with = "howdah_settings::limit")]
    pub servers_per_host: Option<NonZeroU32>,
    /// Maximum length of a protocol message, in bytes.
    pub message_bytes: u32,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            clients: 100,
            logins: 0,
            clients_per_database: None,
            clients_per_user: None,
            servers_per_database: None,
            servers_per_user: None,
            servers_per_host: None,
            message_bytes: i32::MAX.cast_unsigned(),
        }
    }
}

#[cfg(test)]
mod tests;
