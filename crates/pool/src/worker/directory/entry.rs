//! [`PoolEntry`]: a pool with its settings at one point in time, shared with the workers.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use howdah_connect::{
    Endpoint, SslMode, TlsSettings,
    tls::{self, Encryption},
};
use howdah_net::{Dialer, Stream, TcpOptions};
use howdah_pool_config::{Config, LoadBalanceHosts, PoolSettings, StoredSecret};
use howdah_pool_core::{ConnectionLimit, Permits, PoolId, PoolSpec};
use howdah_wire::{auth::scram::ScramKeys, startup::ProtocolVersion};
use parking_lot::Mutex;
use rustls::ClientConfig;

use super::{PoolKey, local_socket::LocalSocket};
use crate::{
    auth::{ServerIntent, ServerProtection},
    worker::{
        PoolerStartError, cluster_monitor::ClusterMonitor, host_resolver::HostResolver,
        tls::setting_key,
    },
};

/// The limits that a client counts against: those of the pooler, the database and the user, and the
/// pool's occupants, which are unlimited.
#[derive(Clone, Debug)]
pub(in crate::worker) struct ClientLimits {
    pub(in crate::worker) limits: Arc<[Arc<ConnectionLimit>]>,
    /// PgBouncer's names of the first three limits, for error messages.
    pub(in crate::worker) names: [&'static str; 3],
}

impl ClientLimits {
    /// Returns permits for a client that is already connected, even beyond the limits.
    pub(in crate::worker) fn acquire(&self) -> Permits {
        Permits::acquire(&self.limits)
    }

    /// Returns permits for a new client.
    ///
    /// # Errors
    ///
    /// A limit is reached; returns its name.
    pub(in crate::worker) fn try_acquire(&self) -> Result<Permits, &'static str> {
        Permits::try_acquire(&self.limits).ok_or_else(|| {
            let full = self.limits.iter().position(|limit| limit.in_use() >= limit.max());
            full.and_then(|full| self.names.get(full).copied()).unwrap_or(self.names[0])
        })
    }
}

/// A pool with its settings at one point in time.
#[derive(Debug)]
pub(in crate::worker) struct PoolEntry {
    pub(in crate::worker) id: PoolId,
    pub(in crate::worker) key: PoolKey,
    pub(in crate::worker) spec: Arc<PoolSpec>,
    pub(in crate::worker) settings: PoolSettings,
    /// An unlimited counter of the clients and servers in all workers and in transit between
    /// workers. The pools of cluster members and mirrors share it with their owner pool.
    pub(in crate::worker) occupants: Arc<ConnectionLimit>,
    /// `occupants` as a list, for clients that count against no limit.
    pub(in crate::worker) occupancy: Arc<[Arc<ConnectionLimit>]>,
    /// Whether the pool gets no new clients: they get another pool, or are refused.
    pub(in crate::worker) is_retired: bool,
    /// The endpoints of `settings.servers`, shared with routes that may outlive this entry.
    pub(in crate::worker) endpoints: Vec<Arc<Endpoint>>,
    /// The unix socket of each endpoint that has one in addition.
    pub(in crate::worker) local_sockets: Vec<Option<Arc<LocalSocket>>>,
    pub(in crate::worker) names: HostResolver,
    pub(in crate::worker) tls: Arc<ServerTls>,
    /// TCP options for connections to the servers.
    pub(in crate::worker) tcp: TcpOptions,
    /// The SCRAM keys from a client's login. They are valid for logins to servers that store the
    /// same verifier.
    pub(in crate::worker) client_keys: Mutex<Option<ScramKeys>>,
    /// The user's secret from the last auth query, or the password that a server has accepted last;
    /// for users without a configured secret.
    pub(in crate::worker) cached_secret: Mutex<Option<StoredSecret>>,
    pub(in crate::worker) next_host: AtomicUsize,
    /// The monitors of the pool's clusters, one per shard; for a member's pool, the monitor of its
    /// cluster.
    pub(in crate::worker) monitors: Vec<Arc<ClusterMonitor>>,
}

/// TLS for connections to servers, shared by all pools.
#[derive(Debug)]
pub(in crate::worker) struct ServerTls {
    pub(in crate::worker) settings: TlsSettings,
    config: Option<Arc<ClientConfig>>,
}

impl ServerTls {
    /// Loads the TLS files for connections to servers, unless TLS is disabled.
    ///
    /// # Errors
    ///
    /// A configured TLS file cannot be used.
    pub(in crate::worker) fn new(config: &Config) -> Result<Self, PoolerStartError> {
        let settings = config.tls.server_settings();
        let wanted = settings.mode != SslMode::Disable;
        let made = if wanted { tls::client_config(&settings).map(Some) } else { Ok(None) };
        let config = made.map_err(|source| {
            let key = format!("tls.server{}", setting_key(&config.tls.server, &source));
            PoolerStartError::ServerTls { key, source: Box::new(source) }
        })?;
        Ok(Self { settings, config })
    }
}

/// The endpoint and encryption of a server connection. A CancelRequest for the connection is sent
/// over the same route.
#[derive(Clone, Debug)]
pub(in crate::worker) struct ServerRoute {
    /// The endpoint at the time the connection was opened; the settings may have changed since.
    endpoint: Arc<Endpoint>,
    encryption: Encryption,
    /// If the endpoint is a unix socket in place of a TCP port: that socket with its check.
    local_socket: Option<Arc<LocalSocket>>,
}

impl ServerRoute {
    /// Whether the connection may be encrypted.
    pub(in crate::worker) fn is_encrypted(&self) -> bool {
        self.encryption != Encryption::Plain
    }

    /// Returns the host and port to resolve; `None` for an IP address or a unix socket.
    pub(in crate::worker) fn host(&self) -> Option<(String, u16)> {
        match &*self.endpoint {
            Endpoint::Tcp { host, hostaddr: None, port } if host.parse::<IpAddr>().is_err() => {
                Some((host.clone(), *port))
            }
            _ => None,
        }
    }

    /// Returns the unix socket that the route uses in place of a TCP port.
    pub(in crate::worker) fn local_socket(&self) -> Option<&Arc<LocalSocket>> {
        self.local_socket.as_ref()
    }

    /// Returns the endpoint as text, for messages.
    pub(in crate::worker) fn endpoint_name(&self) -> String {
        self.endpoint.to_string()
    }
}

impl PoolEntry {
    /// Returns the routes for a new server connection, in the order in which to try them. A unix
    /// socket in place of a TCP port comes before that port.
    pub(in crate::worker) fn routes(&self) -> Vec<ServerRoute> {
        let hosts = self.endpoints.len();
        let first = match self.settings.load_balance_hosts {
            LoadBalanceHosts::RoundRobin => {
                self.next_host.fetch_add(1, Ordering::Relaxed) % hosts.max(1)
            }
            LoadBalanceHosts::First => 0,
        };
        (0..hosts)
            .map(|host| (host + first) % hosts)
            .flat_map(|host| {
                let local = self.local_sockets.get(host).cloned().flatten();
                let local = local.map(|local| ServerRoute {
                    endpoint: Arc::clone(&local.socket),
                    encryption: Encryption::Plain,
                    local_socket: Some(local),
                });
                local.into_iter().chain(self.routes_to(&self.endpoints[host]))
            })
            .collect()
    }

    /// Returns the routes to one endpoint.
    pub(in crate::worker) fn routes_to(&self, endpoint: &Arc<Endpoint>) -> Vec<ServerRoute> {
        let attempts = self.tls.settings.attempts(endpoint);
        let route = |encryption: &Encryption| ServerRoute {
            endpoint: Arc::clone(endpoint),
            encryption: *encryption,
            local_socket: None,
        };
        attempts.iter().map(route).collect()
    }

    /// Returns a dialer for a route. `address` is the resolved address if the route has a host
    /// name.
    ///
    /// # Errors
    ///
    /// A host name has no address, or is not a valid name for a certificate check.
    pub(in crate::worker) fn dialer(
        &self,
        route: &ServerRoute,
        address: Option<SocketAddr>,
    ) -> Result<Dialer, String> {
        let endpoint = &*route.endpoint;
        let dialer = match endpoint {
            Endpoint::Tcp { host, hostaddr, port } => {
                let literal = hostaddr.or_else(|| host.parse().ok());
                let literal = literal.map(|address| SocketAddr::new(address, *port));
                let unknown = || format!("no address found for host {host:?}");
                let dialer = Dialer::tcp_at(address.or(literal).ok_or_else(unknown)?);
                dialer.with_tcp_options(self.tcp)
            }
            Endpoint::Unix { path } => Dialer::unix(path),
        };
        let (Some(config), true) = (&self.tls.config, route.encryption != Encryption::Plain) else {
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

    /// Returns a retired copy of this pool: connected clients stay, and new clients get another
    /// pool.
    pub(super) fn retired(&self) -> Self {
        let mut spec = PoolSpec::clone(&self.spec);
        spec.servers_min = 0;
        let keys = self.client_keys.lock().clone();
        let found = self.cached_secret.lock().clone();
        Self {
            id: self.id,
            key: self.key.clone(),
            spec: Arc::new(spec),
            settings: self.settings.clone(),
            occupants: Arc::clone(&self.occupants),
            occupancy: Arc::clone(&self.occupancy),
            is_retired: true,
            endpoints: self.endpoints.clone(),
            local_sockets: self.local_sockets.clone(),
            names: self.names.clone(),
            tls: Arc::clone(&self.tls),
            tcp: self.tcp,
            client_keys: Mutex::new(keys),
            cached_secret: Mutex::new(found),
            next_host: AtomicUsize::new(0),
            monitors: self.monitors.clone(),
        }
    }

    /// Returns the pools of cluster members and mirrors.
    pub(in crate::worker) fn parts(&self) -> impl Iterator<Item = PoolId> {
        let clusters = self.spec.clusters.iter();
        let members = clusters.flat_map(|cluster| cluster.members.iter().map(|member| member.pool));
        members.chain(self.spec.mirrors.iter().map(|target| target.pool))
    }

    /// Returns a client's user if it differs from the pool's.
    pub(in crate::worker) fn differing_user(&self, user: &str) -> Option<Arc<str>> {
        (user != self.key.user).then(|| user.into())
    }

    /// Caches the SCRAM keys from a client's login.
    pub(in crate::worker) fn cache_keys(&self, keys: ScramKeys) {
        *self.client_keys.lock() = Some(keys);
    }

    /// Caches the user's secret from an auth query, or the password that a server has accepted.
    /// Returns whether it differs from the former one.
    pub(in crate::worker) fn cache_secret(&self, secret: StoredSecret) -> bool {
        let mut cached = self.cached_secret.lock();
        let is_new = cached.as_ref() != Some(&secret);
        *cached = Some(secret);
        is_new
    }

    /// Returns the cached SCRAM keys and secret.
    pub(in crate::worker) fn cached_credentials(
        &self,
    ) -> (Option<ScramKeys>, Option<StoredSecret>) {
        let keys = self.client_keys.lock().clone();
        let found = self.cached_secret.lock().clone();
        (keys, found)
    }

    /// Caches credentials from the predecessor process, unless a login in this process has cached
    /// newer ones.
    pub(in crate::worker) fn adopt_credentials(
        &self,
        keys: Option<&ScramKeys>,
        secret: Option<&StoredSecret>,
    ) {
        let mut own = self.client_keys.lock();
        if own.is_none() {
            *own = keys.cloned();
        }
        drop(own);
        let mut own = self.cached_secret.lock();
        if own.is_none() {
            *own = secret.cloned();
        }
    }

    /// Returns the parameters of a login to a server over `stream`.
    pub(in crate::worker) fn server_intent(
        &self,
        newest: ProtocolVersion,
        stream: &Stream,
    ) -> ServerIntent {
        let is_loopback =
            || stream.peer_address().is_some_and(|it| it.ip().to_canonical().is_loopback());
        let protection = if stream.is_encrypted() {
            let end_point_hash = self.tls.settings.binding(stream.peer_certificate());
            ServerProtection::Tls { end_point_hash }
        } else if stream.is_unix() || is_loopback() {
            ServerProtection::Local
        } else if self.settings.allow_cleartext_password {
            ServerProtection::CleartextAllowed
        } else {
            ServerProtection::None
        };
        let client_keys = self.client_keys.lock().clone();
        let mut identity = self.settings.login.clone();
        let has_secret = identity.secret.as_ref().is_some_and(|secret| !secret.is_empty());
        if !has_secret && !identity.is_forced {
            let found = self.cached_secret.lock();
            identity.secret.clone_from(&found);
        }
        ServerIntent { identity, parameters: Vec::new(), newest, client_keys, protection }
    }
}
