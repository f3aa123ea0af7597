//! [`DatabaseConfig`]: the settings of a database, under the name that clients use.

use std::{collections::BTreeMap, num::NonZeroU32, path::Path, time::Duration};

use howdah_connect::Endpoint;
use serde::{Deserialize, Serialize};

use super::{
    ClusterConfig, Config, MirrorEntry, PoolMode, RoutingConfig, ServerEntry, ShardEntry,
    ShardingConfig, StoredSecret, secret,
};

/// PostgreSQL's default port.
pub(super) const DEFAULT_PORT: u16 = 5432;

/// The settings of a database, `[pool.databases.NAME]`, where NAME is the name that clients use.
/// `None` means the value of `[pool]`, unless the field says otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Hosts of the database's server: names, addresses or directories of unix sockets, optionally
    /// with `:port`, which overrides `port`. If empty, the server is reached by its unix socket in
    /// the first of `listen.unix-directories`, or in `/tmp` if that list is empty too.
    pub hosts: Vec<String>,
    /// Default port of the database's servers.
    pub port: u16,
    /// The directory of a server's unix socket, which is used instead of TCP where both lead to the
    /// same running server; `None` means TCP. An `@name` is in Linux's abstract namespace.
    pub local_socket: Option<String>,
    /// Name of the database on the server; the name that the client requests if `None`.
    pub dbname: Option<String>,
    /// The forced user: the role that the pooler logs in to servers as for all clients. If `None`,
    /// each client's own user name.
    pub user: Option<String>,
    /// The forced user's secret; if `None`, the user's secret in `[pool.users]` or the user list.
    #[serde(serialize_with = "secret::serialize")]
    pub secret: Option<StoredSecret>,
    /// Whether cleartext passwords may be sent to the database's servers over connections that are
    /// neither encrypted nor local.
    pub allow_cleartext_password: Option<bool>,
    /// The pool mode, which determines when a client releases its server connection.
    pub mode: Option<PoolMode>,
    /// Maximum number of server connections per user, without the reserve; 0 means no limit.
    pub pool_size: Option<u32>,
    /// Number of server connections kept open per user.
    pub min_size: Option<u32>,
    /// Additional server connections per user, allowed once a client has waited for
    /// `timeouts.reserve-wait`.
    pub reserve_size: Option<u32>,
    /// Maximum number of server connections of all users; 0 means no limit.
    pub max_servers: Option<u32>,
    /// Maximum number of clients of all users; 0 means no limit.
    pub max_clients: Option<u32>,
    /// Weight of each pool of this database, relative to other pools, when pools compete for server
    /// connections under a shared limit; 1 if `None`.
    pub weight: Option<NonZeroU32>,
    /// Age at which an idle server connection is closed.
    #[serde(with = "howdah_settings::optional_duration")]
    pub server_lifetime: Option<Duration>,
    /// Maximum time that a client waits for a server connection.
    #[serde(with = "howdah_settings::optional_timeout")]
    pub query_wait_timeout: Option<Option<Duration>>,
    /// The order in which `hosts` are used.
    pub load_balance_hosts: LoadBalanceHosts,
    /// Query run on each new server connection before its first use, and again after each reset of
    /// the connection; `None` means no query.
    pub connect_query: Option<String>,
    /// The role that queries servers for the secrets of this database's users.
    pub auth_user: Option<String>,
    /// The database to query for secrets, by the name that clients use. If `auth.dbname` is unset
    /// as well, secrets are queried in the database that the client requests.
    pub auth_dbname: Option<String>,
    /// The SQL query for a user's secret; `$1` is the user.
    pub auth_query: Option<String>,
    /// Startup parameters of server connections: `client_encoding`, `application_name`, …
    pub parameters: BTreeMap<String, String>,
    /// Several servers with the same data, a primary and its standbys, each with its own pools;
    /// instead of `hosts`.
    pub servers: Vec<ServerEntry>,
    /// Load balancing over `servers`, or over the servers of each shard.
    pub cluster: ClusterConfig,
    /// Settings for routing requests to servers.
    pub routing: RoutingConfig,
    /// The distribution of rows over shards.
    pub sharding: ShardingConfig,
    /// Shards, each with its own servers; instead of `servers`.
    pub shards: Vec<ShardEntry>,
    /// Other clusters to which a sample of the traffic is mirrored.
    pub mirrors: Vec<MirrorEntry>,
}

/// The order in which several hosts are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadBalanceHosts {
    /// Each new connection is opened to the next host.
    #[default]
    RoundRobin,
    /// Each new connection is opened to the first reachable host.
    First,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            port: DEFAULT_PORT,
            local_socket: None,
            dbname: None,
            user: None,
            secret: None,
            allow_cleartext_password: None,
            mode: None,
            pool_size: None,
            min_size: None,
            reserve_size: None,
            max_servers: None,
            max_clients: None,
            weight: None,
            server_lifetime: None,
            query_wait_timeout: None,
            load_balance_hosts: LoadBalanceHosts::default(),
            connect_query: None,
            auth_user: None,
            auth_dbname: None,
            auth_query: None,
            parameters: BTreeMap::new(),
            servers: Vec::new(),
            cluster: ClusterConfig::default(),
            routing: RoutingConfig::default(),
            sharding: ShardingConfig::default(),
            shards: Vec::new(),
            mirrors: Vec::new(),
        }
    }
}

impl DatabaseConfig {
    /// Returns the endpoints of the database's servers, in configured order.
    ///
    /// # Errors
    ///
    /// An entry of `hosts` or `servers`, or a server of a shard, is not a valid host.
    pub fn endpoints(&self, config: &Config) -> Result<Vec<Endpoint>, String> {
        if self.is_routed() {
            let clusters = self.clusters()?;
            let servers = clusters.into_iter().flat_map(|cluster| cluster.servers);
            return Ok(servers.map(|server| server.endpoint).collect());
        }
        if self.hosts.is_empty() {
            let own = config.listen.unix_directories.first();
            let directory = own.map_or(Path::new("/tmp"), std::path::PathBuf::as_path);
            return Ok(vec![Endpoint::in_directory(directory, self.port)]);
        }
        self.hosts.iter().map(|host| endpoint(host, self.port)).collect()
    }
}

/// Parses a host, optionally followed by `:port`: a name, an IPv4 address, an IPv6 address in
/// brackets, a `/directory` or an `@abstract` socket. An IPv6 address without a port needs no
/// brackets. `port` is used for a text without a port.
pub(super) fn endpoint(text: &str, port: u16) -> Result<Endpoint, String> {
    let (host, port) = host_and_port(text, port)?;
    Ok(if host.starts_with(['/', '@']) {
        Endpoint::in_directory(host, port)
    } else {
        let hostaddr = host.parse().ok();
        Endpoint::Tcp { host: host.to_owned(), hostaddr, port }
    })
}

/// Splits `host:port` or `[address]:port` into host and port; without a port in the text, the port
/// is `port`.
pub fn host_and_port(text: &str, port: u16) -> Result<(&str, u16), String> {
    let wrong = |why: &str| format!("{text:?} is not a host: {why}");
    let (host, own_port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("] is missing"))?;
            (host, rest.strip_prefix(':'))
        }
        // A text with more than one colon is an IPv6 address without a port.
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(wrong("write a name, an address or the directory of a unix socket"));
    }
    match own_port.map(str::parse) {
        None => Ok((host, port)),
        Some(Ok(port)) => Ok((host, port)),
        Some(Err(_)) => Err(wrong("the port must be from 1 to 65535")),
    }
}

#[test]
fn host_is_name_address_or_directory() {
    let shown = |text: &str| endpoint(text, 5432).map(|it| it.to_string());
    assert_eq!(shown("db1").unwrap(), "db1:5432");
    assert_eq!(shown("db1:5433").unwrap(), "db1:5433");
    assert_eq!(shown("10.0.0.1:1").unwrap(), "10.0.0.1:1");
    assert_eq!(shown("::1").unwrap(), "[::1]:5432");
    assert_eq!(shown("[::1]:7").unwrap(), "[::1]:7");
    assert_eq!(shown("/run/pg").unwrap(), "/run/pg/.s.PGSQL.5432");
    assert_eq!(shown("/run/pg:7").unwrap(), "/run/pg/.s.PGSQL.7");
    for wrong in ["", ":5", "db1:x", "db1:70000", "[::1", "a b"] {
        assert!(shown(wrong).is_err(), "{wrong}");
    }
}
