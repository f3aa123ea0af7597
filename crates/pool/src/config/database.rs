//! One database that clients may ask for.

use std::{collections::BTreeMap, num::NonZeroU32, path::Path, time::Duration};

use howdah_connect::Endpoint;
use serde::{Deserialize, Serialize};

use super::{
    ClusterSettings, Config, MirrorEntry, PoolMode, Routing, ServerEntry, ShardEntry, Sharding,
    StoredSecret, secret, toml,
};

/// The port of a server that was given none.
pub(super) const DEFAULT_PORT: u16 = 5432;

/// One database that clients may ask for: `[pool.databases.NAME]`. `None` is whatever all have.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Database {
    /// Servers that have it: names, addresses or directories of unix sockets, with `:port` where it
    /// differs from `port`. None: the server whose socket is in the first of our own
    /// `listen.unix-directories`.
    pub hosts: Vec<String>,
    /// The port of servers.
    pub port: u16,
    /// What servers call it; the name that the client used if none is given.
    pub dbname: Option<String>,
    /// The user that we are at servers, whoever the client is.
    pub user: Option<String>,
    /// Its secret; the user list's if none is given.
    #[serde(serialize_with = "secret::written")]
    pub secret: Option<StoredSecret>,
    /// Whether its servers get a password in the clear without TLS.
    pub allow_cleartext_password: Option<bool>,
    /// Pool mode.
    pub mode: Option<PoolMode>,
    /// Most server connections per user.
    pub pool_size: Option<u32>,
    /// How many are kept open.
    pub min_size: Option<u32>,
    /// How many more when clients have waited.
    pub reserve_size: Option<u32>,
    /// Server connections of all users; 0 is without limit.
    pub max_servers: Option<u32>,
    /// Clients of all users; 0 is without limit.
    pub max_clients: Option<u32>,
    /// The part of each of its pools, beside that of others, of a limit on server connections that they
    /// share; 1 if none is given.
    pub weight: Option<NonZeroU32>,
    /// Age at which an unused server connection is closed.
    #[serde(with = "toml::given_duration")]
    pub server_lifetime: Option<Duration>,
    /// A client's wait for a server.
    #[serde(with = "toml::given_timeout")]
    pub query_wait_timeout: Option<Option<Duration>>,
    /// In which order `hosts` are used.
    pub load_balance_hosts: LoadBalanceHosts,
    /// What is run on a new server connection before anybody gets it.
    pub connect_query: Option<String>,
    /// Who looks up secrets of this database's users at servers.
    pub auth_user: Option<String>,
    /// In which database, by the name that clients use.
    pub auth_dbname: Option<String>,
    /// What is asked there.
    pub auth_query: Option<String>,
    /// Settings that server connections begin with: `client_encoding`, `application_name`, …
    pub parameters: BTreeMap<String, String>,
    /// Several servers that hold the same, each with pools of its own; in the place of `hosts`.
    pub servers: Vec<ServerEntry>,
    /// How clients are spread over `servers`, or over those of each shard.
    pub cluster: ClusterSettings,
    /// How their requests are routed.
    pub routing: Routing,
    /// Which row is on which shard.
    pub sharding: Sharding,
    /// Parts of the data, each with servers of its own; in the place of `servers`.
    pub shards: Vec<ShardEntry>,
    /// Other clusters on which a share of its traffic is run, too.
    pub mirrors: Vec<MirrorEntry>,
}

/// In which order several hosts are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadBalanceHosts {
    /// Each new connection goes to the next one.
    #[default]
    RoundRobin,
    /// The first that can be reached.
    First,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            port: DEFAULT_PORT,
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
            cluster: ClusterSettings::default(),
            routing: Routing::default(),
            sharding: Sharding::default(),
            shards: Vec::new(),
            mirrors: Vec::new(),
        }
    }
}

impl Database {
    /// Where its servers are, in the order given.
    ///
    /// # Errors
    ///
    /// A text in `hosts` that names no place.
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

/// `name`, `name:port`, `address`, `[address]:port`, `/directory`, `/directory:port`, `@abstract`.
pub(super) fn endpoint(text: &str, port: u16) -> Result<Endpoint, String> {
    let (host, port) = host_and_port(text, port)?;
    Ok(match host.starts_with(['/', '@']) {
        true => Endpoint::in_directory(host, port),
        false => {
            let hostaddr = host.parse().ok();
            Endpoint::Tcp { host: host.to_owned(), hostaddr, port }
        }
    })
}

/// A place's host and port.
pub(crate) fn host_and_port(text: &str, port: u16) -> Result<(&str, u16), String> {
    let wrong = |why: &str| format!("{text:?} is no host: {why}");
    let (host, own_port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("] is missing"))?;
            (host, rest.strip_prefix(':'))
        }
        // An IPv6 address has more than one colon, and none of them is before a port.
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
fn hosts_are_names_addresses_and_directories() {
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
