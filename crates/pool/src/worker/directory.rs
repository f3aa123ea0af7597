//! [`Directory`]: which pools there are, the same for all workers. Pools come to be when the first
//! client of a user in a database has logged in.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use howdah_connect::{
    Endpoint, TlsSettings,
    tls::{self, Encryption},
};
use howdah_net::{Dialer, Stream, TcpOptions};
use howdah_wire::{auth::scram::ScramKeys, startup::ProtocolVersion};
use rustls::ClientConfig;

use super::StartError;
use crate::{
    Check, Gate, Limit, Mode, Permits, PoolId, PoolSpec, Reserve, Reset, Setting, Timeouts,
    auth::{ServerIntent, ServerProtection},
    config::{ANY_DATABASE, Config, HostOrder, PoolMode, PoolSettings, StoredSecret},
};

/// Most pools there may be: where users may name any database, they could make more without end.
const POOLS_MAX: usize = 100_000;

/// All pools.
#[derive(Debug)]
pub(super) struct Directory {
    config: Arc<Config>,
    /// How many clients may be logged in.
    clients: Arc<Limit>,
    tls: TlsSettings,
    tls_config: Option<Arc<ClientConfig>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pools: Vec<Arc<PoolEntry>>,
    by_key: HashMap<Key, PoolId>,
    limits: HashMap<LimitOf, Arc<Limit>>,
    /// Of databases, by the names that clients use.
    gates: BTreeMap<String, Arc<Gate>>,
}

/// Whom a pool is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The database, by the name that clients use.
    pub(super) database: String,
    /// The client's user.
    pub(super) user: String,
    /// What the startup packet says of `replication`, if it is for that, and the client's settings:
    /// a replication connection has to begin with them.
    pub(super) replication: Option<(&'static str, Vec<Setting>)>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum LimitOf {
    DatabaseServers(String),
    UserServers(String),
    DatabaseClients(String),
    UserClients(String),
}

/// How many clients there may be: of all databases, of one, of one user.
#[derive(Debug)]
pub(super) struct ClientLimits {
    limits: Arc<[Arc<Limit>]>,
    /// PgBouncer's name of each, for who is turned away.
    names: Vec<&'static str>,
}

impl ClientLimits {
    /// Takes a client in.
    ///
    /// # Errors
    ///
    /// There are as many as there may be; by the name of the limit that says so.
    pub(super) fn try_take(&self) -> Result<Permits, &'static str> {
        Permits::try_take(&self.limits).ok_or_else(|| {
            let full = self.limits.iter().position(|limit| limit.taken() >= limit.max());
            self.names[full.unwrap_or(0)]
        })
    }
}

/// A pool, as workers need it.
#[derive(Debug)]
pub(super) struct PoolEntry {
    pub(super) id: PoolId,
    pub(super) key: Key,
    pub(super) spec: Arc<PoolSpec>,
    pub(super) settings: PoolSettings,
    pub(super) clients: ClientLimits,
    tls: TlsSettings,
    tls_config: Option<Arc<ClientConfig>>,
    /// What the kernel is told about its connections.
    pub(super) tcp: TcpOptions,
    /// Keys that a client's login by SCRAM has shown: they open servers that keep the same secret.
    client_keys: Mutex<Option<ScramKeys>>,
    /// The user's secret as it was looked up last, where none is written down.
    found_secret: Mutex<Option<StoredSecret>>,
    next_host: AtomicUsize,
}

/// Where and how one server connection was made; a CancelRequest goes the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Index of the endpoint among the pool's.
    host: usize,
    encryption: Encryption,
}

impl Directory {
    /// # Errors
    ///
    /// The files that the server leg's TLS needs cannot be used.
    pub(super) fn new(config: Config) -> Result<Self, StartError> {
        let tls = config.tls.server_settings();
        let wanted = tls.mode != howdah_connect::SslMode::Disable;
        let tls_config = if wanted { Some(tls::client_config(&tls)?) } else { None };
        let clients = Limit::new(config.limits.clients);
        let config = Arc::new(config);
        Ok(Self { config, clients, tls, tls_config, inner: Mutex::default() })
    }

    pub(super) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// All pools, in the order of their numbers.
    pub(super) fn pools(&self) -> Vec<Arc<PoolEntry>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).pools.clone()
    }

    /// The gate of a database; `None` if there is no such database.
    pub(super) fn gate(&self, database: &str) -> Option<Arc<Gate>> {
        self.config.database(database)?;
        Some(self.inner.lock().unwrap_or_else(PoisonError::into_inner).gate(database))
    }

    /// The gates of all databases that have a name of their own or were used, by name.
    pub(super) fn gates(&self) -> Vec<(String, Arc<Gate>)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for name in self.config.databases.keys().filter(|name| *name != ANY_DATABASE) {
            inner.gate(name);
        }
        inner.gates.iter().map(|(name, gate)| (name.clone(), Arc::clone(gate))).collect()
    }

    /// The pool with this number, which somebody has been given before.
    pub(super) fn by_id(&self, id: PoolId) -> Option<Arc<PoolEntry>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.pools.get(id.index()).cloned()
    }

    /// The pool for a client; `None` if there is no such database, or if there are too many pools.
    pub(super) fn pool(&self, key: &Key) -> Option<Arc<PoolEntry>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = inner.by_key.get(key) {
            return inner.pools.get(id.index()).cloned();
        }
        if inner.pools.len() >= POOLS_MAX {
            return None;
        }
        let mut settings = self.config.pool(&key.database, &key.user)?;
        if let Some((replication, own)) = &key.replication {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let own = own.iter().map(|Setting { name, value }| (text(name), text(value)));
            let login = &mut settings.login;
            login.parameters.extend(own);
            login.parameters.push(("replication".to_owned(), (*replication).to_owned()));
            settings.mode = PoolMode::Session;
        }
        let spec = self.spec(&mut inner, key, &settings);
        let clients = self.client_limits(&mut inner, key, &settings);
        let id = PoolId(u32::try_from(inner.pools.len()).ok()?);
        let entry = Arc::new(PoolEntry {
            id,
            key: key.clone(),
            spec: Arc::new(spec),
            settings,
            clients,
            tls: self.tls.clone(),
            tls_config: self.tls_config.clone(),
            tcp: self.config.tcp.options(),
            client_keys: Mutex::default(),
            found_secret: Mutex::default(),
            next_host: AtomicUsize::new(0),
        });
        inner.pools.push(Arc::clone(&entry));
        inner.by_key.insert(key.clone(), id);
        Some(entry)
    }

    fn client_limits(&self, inner: &mut Inner, key: &Key, settings: &PoolSettings) -> ClientLimits {
        let mut limits = vec![Arc::clone(&self.clients)];
        let mut names = vec!["max_client_conn"];
        let of_database = LimitOf::DatabaseClients(key.database.clone());
        let of_user = LimitOf::UserClients(key.user.clone());
        let own = [
            (of_database, settings.database_clients, "max_db_client_connections"),
            (of_user, settings.user_clients, "max_user_client_connections"),
        ];
        for (of, max, name) in own {
            if let Some(limit) = inner.limit(of, max) {
                limits.push(limit);
                names.push(name);
            }
        }
        ClientLimits { limits: limits.into(), names }
    }

    fn spec(&self, inner: &mut Inner, key: &Key, settings: &PoolSettings) -> PoolSpec {
        let max = |limit: Option<NonZeroU32>| limit.map_or(u32::MAX, NonZeroU32::get);
        let mut limits = Vec::new();
        let of_database = LimitOf::DatabaseServers(key.database.clone());
        limits.extend(inner.limit(of_database, settings.database_servers));
        let of_user = LimitOf::UserServers(settings.login.user.clone());
        limits.extend(inner.limit(of_user, settings.user_servers));
        let times = &settings.timeouts;
        let with = |size| [Limit::new(size)].into_iter().chain(limits.iter().cloned()).collect();
        let reserve = times.reserve_wait.filter(|_| settings.reserve_size > 0);
        let reserve = reserve.map(|after| Reserve { limits: with(settings.reserve_size), after });
        let defaults = PoolSpec::new(0);
        PoolSpec {
            mode: match settings.mode {
                PoolMode::Session => Mode::Session,
                PoolMode::Transaction => Mode::Transaction,
                PoolMode::Statement => Mode::Statement,
            },
            server_limits: with(max(settings.size)),
            reserve,
            round_robin: self.config.round_robin,
            simple_queries: self.config.simple_queries,
            reset: Some(Reset {
                query: self.config.reset_query.as_bytes().into(),
                always: self.config.reset_query_always,
            }),
            check: self.config.check_query.as_ref().map(|query| Check {
                query: query.as_bytes().into(),
                idle: times.server_check_delay,
            }),
            servers_min: settings.min_size,
            statements_per_server: self.config.max_prepared_statements,
            gate: inner.gate(&key.database),
            settings_at_login: key.replication.is_some(),
            servers_once: key.replication.is_some() || times.server_lifetime.is_zero(),
            timeouts: Timeouts {
                query_wait: times.query_wait,
                query: times.query,
                transaction: times.transaction,
                query_wait_notify: times.query_wait_notify,
                idle_transaction: times.idle_transaction,
                client_idle: times.client_idle,
                server_idle: times.server_idle,
                server_lifetime: Some(times.server_lifetime),
                login_retry_max: times.server_login_retry,
                ..defaults.timeouts.clone()
            },
            ..defaults
        }
    }
}

impl Inner {
    fn gate(&mut self, database: &str) -> Arc<Gate> {
        Arc::clone(self.gates.entry(database.to_owned()).or_default())
    }

    /// A limit that several pools share, if it is one.
    fn limit(&mut self, of: LimitOf, max: Option<NonZeroU32>) -> Option<Arc<Limit>> {
        let max = max?.get();
        Some(Arc::clone(self.limits.entry(of).or_insert_with(|| Limit::new(max))))
    }
}

impl Route {
    /// Whether it may be encrypted.
    pub(super) fn is_encrypted(self) -> bool {
        self.encryption != Encryption::Plain
    }
}

impl PoolEntry {
    /// The ways to a server, in the order they are to be tried for one connection.
    pub(super) fn routes(&self) -> Vec<Route> {
        let hosts = self.settings.servers.len();
        let first = match self.settings.host_order {
            HostOrder::RoundRobin => self.next_host.fetch_add(1, Ordering::Relaxed) % hosts.max(1),
            HostOrder::First => 0,
        };
        (0..hosts)
            .map(|host| (host + first) % hosts)
            .flat_map(|host| {
                let attempts = self.tls.attempts(&self.settings.servers[host]);
                attempts.iter().map(move |encryption| Route { host, encryption: *encryption })
            })
            .collect()
    }

    /// Whether to know the address takes a look-up, which blocks.
    pub(super) fn needs_lookup(&self, route: Route) -> bool {
        match &self.settings.servers[route.host] {
            Endpoint::Tcp { host, hostaddr: None, .. } => host.parse::<std::net::IpAddr>().is_err(),
            _ => false,
        }
    }

    /// Looks the address up.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be what a certificate is for.
    pub(super) fn dialer(&self, route: Route) -> Result<Dialer, String> {
        let endpoint = &self.settings.servers[route.host];
        let dialer = match endpoint {
            Endpoint::Tcp { host, hostaddr, port } => {
                let host = hostaddr.map_or_else(|| host.clone(), |address| address.to_string());
                Dialer::tcp(&host, *port).map_err(|error| error.to_string())?
            }
            Endpoint::Unix { path } => Dialer::unix(path),
        };
        let (Some(config), true) = (&self.tls_config, route.encryption != Encryption::Plain) else {
            return Ok(dialer);
        };
        let name = tls::server_name(endpoint).map_err(|error| error.to_string())?;
        let direct = route.encryption == Encryption::Direct;
        let dialer = dialer.with_tls(Arc::clone(config), name, direct);
        Ok(match route.encryption {
            Encryption::Optional => dialer.tls_optional(),
            _ => dialer,
        })
    }

    /// Keeps keys that a client's login has shown.
    pub(super) fn learn(&self, keys: ScramKeys) {
        *self.client_keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }

    /// Keeps the user's secret as it was looked up.
    pub(super) fn learn_secret(&self, secret: StoredSecret) {
        *self.found_secret.lock().unwrap_or_else(PoisonError::into_inner) = Some(secret);
    }

    /// What we want at a server that this stream leads to.
    pub(super) fn intent(&self, newest: ProtocolVersion, stream: &Stream) -> ServerIntent {
        let protection = match (stream.is_unix(), stream.is_encrypted()) {
            (true, _) => ServerProtection::UnixSocket,
            (false, true) => ServerProtection::Tls {
                end_point_hash: self.tls.binding(stream.peer_certificate()),
            },
            (false, false) => ServerProtection::None,
        };
        let client_keys = self.client_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut identity = self.settings.login.clone();
        if identity.secret.is_none() && !identity.is_forced {
            let found = self.found_secret.lock().unwrap_or_else(PoisonError::into_inner);
            identity.secret.clone_from(&found);
        }
        ServerIntent { identity, parameters: Vec::new(), newest, client_keys, protection }
    }

    /// Where a route leads, for messages.
    pub(super) fn place(&self, route: Route) -> String {
        self.settings.servers[route.host].to_string()
    }
}
