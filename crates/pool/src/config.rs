//! What a person can set: where clients come in, where servers are, who may share what for how long.
//!
//! The shape is the `[pool]` section of `howdah.toml`, kebab-case; a `pgbouncer.ini` with its
//! `userlist.txt` is read into the same shape ([`pgbouncer`]). Units, defaults and the meaning of
//! zero are PgBouncer's. [`Config::pool`] answers what holds for one user in one database, after
//! the user's and the database's own settings. Nothing here acts on any of it.

mod application_name;
mod capture;
mod changes;
mod cluster;
mod database;
mod durations;
mod file;
mod hba_files;
mod ini;
mod log;
mod lookup;
mod mirror;
mod notifications;
#[cfg(test)]
mod page;
mod pairs;
pub mod pgbouncer;
mod pgcat;
mod pool;
mod routing;
mod secret;
mod set;
mod tcp;
mod timeouts;
mod tls;
mod toml;
mod unused;
mod user;
mod userlist;
mod write;

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::hba::Hba;

pub use self::{
    application_name::ApplicationName,
    capture::{Capture, CopyCapture},
    changes::Change,
    cluster::{
        ClusterPool, ClusterServer, ClusterSettings, ConfiguredRole, SERVERS_MAX, ServerEntry,
    },
    database::{Database, LoadBalanceHosts},
    file::{Form, Read, ReadError, Remark, Wrong},
    log::Log,
    lookup::{DEFAULT_QUERY, Lookup},
    mirror::{MIRRORS_MAX, MirrorEntry, MirrorPool},
    notifications::Notifications,
    pool::{PoolSettings, ServerIdentity},
    routing::{
        Hints, KeyedTables, Place, Routing, ShardEntry, ShardHash, Sharding, TextOrder, Value,
    },
    secret::{SECRET_BYTES_MAX, StoredSecret},
    tcp::Tcp,
    timeouts::Timeouts,
    tls::{Tls, TlsLeg},
    user::User,
    userlist::{UserlistError, UserlistErrorKind, read as read_userlist},
};

pub(crate) use self::{changes::needs_restart, database::host_and_port, set::SetError};
pub use crate::proxy::ProxySource;

/// All of it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Where clients come in.
    pub listen: Listen,
    /// Event loops, one per thread; as many as the machine has cores if none is given.
    pub workers: Option<NonZeroUsize>,
    /// When a server connection may go to another client.
    pub mode: PoolMode,
    /// How many server connections a pool has.
    pub sizes: Sizes,
    /// How many connections there may be at all.
    pub limits: Limits,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// What clients must prove.
    pub auth: Auth,
    /// Encryption of both legs.
    pub tls: Tls,
    /// Parameters that follow a client to whichever server it gets, beside those that always do:
    /// `client_encoding`, `DateStyle`, `TimeZone`, `standard_conforming_strings`,
    /// `application_name`. Only those that servers report can.
    pub tracked_parameters: Vec<String>,
    /// Parameters of startup packets that are passed over instead of refused. `options` among them
    /// stands for every parameter inside of `options`.
    pub ignored_startup_parameters: Vec<String>,
    /// What is run when a client leaves its server in session mode; nothing if empty.
    pub reset_query: String,
    /// Whether `reset-query` is run in every mode, after each transaction.
    pub reset_query_always: bool,
    /// Prepared statements kept at each server connection outside of session mode; none are
    /// followed if 0.
    pub max_prepared_statements: u32,
    /// What is run to see whether a server that was idle for `timeouts.server-check-delay` lives: an
    /// empty query unless told otherwise. `None` asks nothing.
    #[serde(with = "toml::check_query")]
    pub check_query: Option<String>,
    /// Whether the least recently used server connection is taken, instead of the most recently
    /// used one.
    pub round_robin: bool,
    /// What servers are told as `application_name`, of what clients begin with; as they say it if there
    /// is none.
    pub application_name: Option<ApplicationName>,
    /// Whether clients may use the simple query protocol, where one message may hold several
    /// statements.
    pub simple_queries: bool,
    /// What SIGTERM does.
    pub shutdown_mode: ShutdownMode,
    /// Whether servers that ask for a password in the clear get it over connections that are neither
    /// encrypted nor local, for databases that do not say it themselves.
    pub allow_cleartext_password: bool,
    /// What is told in the log.
    pub log: Log,
    /// LISTEN where clients share servers.
    pub notifications: Notifications,
    /// What is recorded of clients' traffic.
    pub capture: Capture,
    /// What the kernel is told about connections.
    pub tcp: Tcp,
    /// Databases that clients may ask for, by the name they ask for. `*` is for all other names.
    pub databases: BTreeMap<String, Database>,
    /// What is known of users, by name. Those of the user list are among them once it is read.
    pub users: BTreeMap<String, User>,
    /// Who may do everything at the console.
    pub admin_users: Vec<String>,
    /// Who may look at the console.
    pub stats_users: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            workers: None,
            mode: PoolMode::Session,
            sizes: Sizes::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            auth: Auth::default(),
            tls: Tls::default(),
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
            log: Log::default(),
            notifications: Notifications::default(),
            capture: Capture::default(),
            tcp: Tcp::default(),
            databases: BTreeMap::new(),
            users: BTreeMap::new(),
            admin_users: Vec::new(),
            stats_users: Vec::new(),
        }
    }
}

/// A `howdah.toml` with every key, its default and what it means, and one database.
pub const EXAMPLE: &str = include_str!("config/example.toml");

/// Name of the database that takes all names which have no entry of their own.
pub const ANY_DATABASE: &str = "*";

/// Names that are the console's, which no database may have.
pub const CONSOLE_DATABASES: [&str; 3] = ["howdah", "pgbouncer", "pgcat"];

impl Config {
    /// The database that a client means by this name, if there is one.
    pub fn database(&self, name: &str) -> Option<&Database> {
        self.databases.get(name).or_else(|| self.databases.get(ANY_DATABASE))
    }
}

/// Where clients come in: `[pool.listen]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Listen {
    /// Host names or addresses, `*` for all of the machine's; `host:port` where the port differs
    /// from `port`. Default: 127.0.0.1.
    pub addresses: Vec<String>,
    /// The port, also in the names of unix sockets. 0 takes a free one.
    pub port: u16,
    /// Directories of unix sockets; a name that begins with `@` is in Linux's abstract namespace.
    pub unix_directories: Vec<PathBuf>,
    /// Permissions of unix sockets, such as 0o770.
    pub unix_mode: u32,
    /// Group of unix sockets; the process's own if none is given.
    pub unix_group: Option<String>,
    /// Connections that the kernel keeps for us until we accept them.
    pub backlog: u32,
    /// The unix socket by which a new process takes over from this one; beside the first unix socket if
    /// none is given.
    pub takeover: Option<PathBuf>,
    /// Who brings connections of others and says so by a header of the PROXY protocol, version 1 or 2:
    /// networks, and `unix` for unix sockets. They have to begin with one, and nobody else may.
    pub proxy_from: Vec<ProxySource>,
    /// How long the kernel keeps a TCP connection for us on which nothing was sent; 0 gives it at once.
    #[serde(with = "durations::whole")]
    pub defer_accept: Duration,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            addresses: vec!["127.0.0.1".to_owned()],
            port: 6432,
            unix_directories: vec![PathBuf::from("/tmp")],
            unix_mode: 0o777,
            unix_group: None,
            backlog: 128,
            takeover: None,
            proxy_from: Vec::new(),
            defer_accept: Duration::from_secs(1),
        }
    }
}

/// When a server connection may go to another client.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PoolMode {
    /// When its client leaves.
    #[default]
    Session,
    /// When its transaction is over.
    Transaction,
    /// When its statement is over; transactions of several statements are refused.
    Statement,
}

impl PoolMode {
    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// What SIGTERM waits for. SIGINT waits for servers, and SIGQUIT for nothing, in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShutdownMode {
    /// Transactions: each client is disconnected when it is in none.
    #[default]
    WaitForServers,
    /// Clients: each is served until it disconnects.
    WaitForClients,
}

impl ShutdownMode {
    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitForServers => "wait-for-servers",
            Self::WaitForClients => "wait-for-clients",
        }
    }
}

/// Server connections of one user in one database: `[pool.sizes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sizes {
    /// Most of them; `None`, written 0, is without limit.
    #[serde(with = "toml::limit")]
    pub pool: Option<NonZeroU32>,
    /// How many are kept open as long as a client is there, or the database's user is forced.
    pub min: u32,
    /// How many more are allowed when a client has waited for `timeouts.reserve-wait`.
    pub reserve: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { pool: NonZeroU32::new(20), min: 0, reserve: 0 }
    }
}

/// How many connections there may be: `[pool.limits]`. `None`, written 0, is without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    /// Clients of all databases, at least 1.
    pub clients: u32,
    /// TCP connections that have not logged in, and as many unix sockets; 0: as many as `clients`, and 128 at
    /// least.
    pub logins: u32,
    /// Clients of one database.
    #[serde(with = "toml::limit")]
    pub clients_per_database: Option<NonZeroU32>,
    /// Clients of one user.
    #[serde(with = "toml::limit")]
    pub clients_per_user: Option<NonZeroU32>,
    /// Server connections of one database.
    #[serde(with = "toml::limit")]
    pub servers_per_database: Option<NonZeroU32>,
    /// Server connections of one user.
    #[serde(with = "toml::limit")]
    pub servers_per_user: Option<NonZeroU32>,
    /// Server connections at one host and port, of all databases and users. Where a database has
    /// several hosts, as many for each are counted for all of them together.
    #[serde(with = "toml::limit")]
    pub servers_per_host: Option<NonZeroU32>,
    /// Longest message that is let through.
    pub message_bytes: u32,
}

impl Default for Limits {
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

/// What clients must prove: `[pool.auth]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Auth {
    /// How.
    #[serde(rename = "type")]
    pub method: AuthMethod,
    /// A list of users and secrets in the form of PgBouncer's `userlist.txt`.
    pub file: Option<PathBuf>,
    /// Rules in the form of `pg_hba.conf`, for [`AuthMethod::Hba`].
    pub hba_file: Option<PathBuf>,
    /// Maps in the form of `pg_ident.conf`, which those rules may name.
    pub ident_file: Option<PathBuf>,
    /// What stands in both.
    #[serde(skip)]
    pub hba: Option<Arc<Hba>>,
    /// Who looks up at servers the secrets of users that are not listed; nobody if none is given.
    pub user: Option<String>,
    /// The database, by the name that clients use, in which secrets are looked up; the one that the
    /// client asks for if none is given.
    pub dbname: Option<String>,
    /// What is asked there: `$1` is the user, and the answer's two columns are user and secret.
    pub query: String,
    /// Iterations of the keys that are made of plain passwords.
    pub scram_iterations: NonZeroU32,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            method: AuthMethod::ScramSha256,
            file: None,
            hba_file: None,
            ident_file: None,
            hba: None,
            user: None,
            dbname: None,
            query: DEFAULT_QUERY.to_owned(),
            scram_iterations: NonZeroU32::new(4096).expect("it is not zero"),
        }
    }
}

/// How clients prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// Not at all, and whatever name they give: for databases whose user is forced.
    Any,
    /// Not at all, but the name must be known.
    Trust,
    /// The password as it is.
    Plain,
    /// By an md5 of it; by SCRAM those whose secret is one of SCRAM.
    Md5,
    /// By SCRAM-SHA-256, bound to the TLS connection where there is one.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// By a TLS certificate whose common name is the user.
    Cert,
    /// As `hba_file` says for each connection.
    Hba,
}

impl AuthMethod {
    /// Every method.
    pub const ALL: [Self; 7] =
        [Self::Any, Self::Trust, Self::Plain, Self::Md5, Self::ScramSha256, Self::Cert, Self::Hba];

    /// The word that stands for it.
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

#[cfg(test)]
mod tests;
