//! [`PoolEntry`]: a pool as workers need it, as its settings were at one time.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use howdah_connect::{
    Endpoint, SslMode, TlsSettings,
    tls::{self, Encryption},
};
use howdah_net::{Dialer, Stream, TcpOptions};
use howdah_wire::{auth::scram::ScramKeys, startup::ProtocolVersion};
use rustls::ClientConfig;

use super::Key;
use crate::{
    Limit, Permits, PoolId, PoolSpec,
    auth::{ServerIntent, ServerProtection},
    config::{Config, LoadBalanceHosts, PoolSettings, StoredSecret},
    worker::{StartError, names::Names, tls::key_of, watch::Watched},
};

/// How many clients there may be: of all databases, of one, of one user; and, without end, of the pool.
#[derive(Clone, Debug)]
pub(in crate::worker) struct ClientLimits {
    pub(in crate::worker) limits: Arc<[Arc<Limit>]>,
    /// PgBouncer's name of each that has an end, for who is turned away.
    pub(in crate::worker) names: [&'static str; 3],
}

impl ClientLimits {
    /// Takes a client in that is there already, however many there may be.
    pub(in crate::worker) fn take(&self) -> Permits {
        Permits::take(&self.limits)
    }

    /// Takes a client in.
    ///
    /// # Errors
    ///
    /// There are as many as there may be; by the name of the limit that says so.
    pub(in crate::worker) fn try_take(&self) -> Result<Permits, &'static str> {
        Permits::try_take(&self.limits).ok_or_else(|| {
            let full = self.limits.iter().position(|limit| limit.taken() >= limit.max());
            full.and_then(|full| self.names.get(full).copied()).unwrap_or(self.names[0])
        })
    }
}

/// A pool, as workers need it.
#[derive(Debug)]
pub(in crate::worker) struct PoolEntry {
    pub(in crate::worker) id: PoolId,
    pub(in crate::worker) key: Key,
    pub(in crate::worker) spec: Arc<PoolSpec>,
    pub(in crate::worker) settings: PoolSettings,
    /// Clients and servers that there are, in all workers and between them. Without end.
    pub(in crate::worker) occupants: Arc<Limit>,
    /// What somebody takes a permit of who is in the pool and under no limit.
    pub(in crate::worker) occupancy: Arc<[Arc<Limit>]>,
    /// Whether new clients of its key go elsewhere: to nowhere, or to a pool of another mode.
    pub(in crate::worker) is_retired: bool,
    /// What `settings.servers` says, for routes that outlive it.
    pub(in crate::worker) endpoints: Vec<Arc<Endpoint>>,
    pub(in crate::worker) names: Names,
    pub(in crate::worker) tls: Arc<ServerTls>,
    /// What the kernel is told about its connections.
    pub(in crate::worker) tcp: TcpOptions,
    /// Keys that a client's login by SCRAM has shown: they open servers that keep the same secret.
    pub(in crate::worker) client_keys: Mutex<Option<ScramKeys>>,
    /// The user's secret as it was looked up last, where none is written down.
    pub(in crate::worker) found_secret: Mutex<Option<StoredSecret>>,
    pub(in crate::worker) next_host: AtomicUsize,
    /// What is known of its servers: of each shard's, if they are clusters, or of the one it is a member of.
    pub(in crate::worker) watched: Vec<Arc<Watched>>,
}

/// The server leg's TLS, for all pools.
#[derive(Debug)]
pub(in crate::worker) struct ServerTls {
    pub(in crate::worker) settings: TlsSettings,
    config: Option<Arc<ClientConfig>>,
}

impl ServerTls {
    /// # Errors
    ///
    /// The files that it needs cannot be used.
    pub(in crate::worker) fn new(config: &Config) -> Result<Self, StartError> {
        let settings = config.tls.server_settings();
        let wanted = settings.mode != SslMode::Disable;
        let made = if wanted { tls::client_config(&settings).map(Some) } else { Ok(None) };
        let config = made.map_err(|source| {
            let key = format!("tls.server{}", key_of(&config.tls.server, &source));
            StartError::ServerTls { key, source: Box::new(source) }
        })?;
        Ok(Self { settings, config })
    }
}

/// Where and how one server connection was made; a CancelRequest goes the same way.
#[derive(Clone, Debug)]
pub(in crate::worker) struct Route {
    /// As it was then: settings may have changed since.
    endpoint: Arc<Endpoint>,
    encryption: Encryption,
}

impl Route {
    /// Whether it may be encrypted.
    pub(in crate::worker) fn is_encrypted(&self) -> bool {
        self.encryption != Encryption::Plain
    }

    /// The host and port whose address has to be looked up, which takes as long as the resolver does.
    pub(in crate::worker) fn host(&self) -> Option<(String, u16)> {
        match &*self.endpoint {
            Endpoint::Tcp { host, hostaddr: None, port } if host.parse::<IpAddr>().is_err() => {
                Some((host.clone(), *port))
            }
            _ => None,
        }
    }

    /// Where it leads, for messages.
    pub(in crate::worker) fn place(&self) -> String {
        self.endpoint.to_string()
    }
}

impl PoolEntry {
    /// The ways to a server, in the order they are to be tried for one connection.
    pub(in crate::worker) fn routes(&self) -> Vec<Route> {
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
                let endpoint = &self.endpoints[host];
                let attempts = self.tls.settings.attempts(endpoint);
                attempts.iter().map(move |encryption| Route {
                    endpoint: Arc::clone(endpoint),
                    encryption: *encryption,
                })
            })
            .collect()
    }

    /// What dials a route; `address` is that of its host, if that has a name.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be what a certificate is for.
    pub(in crate::worker) fn dialer(
        &self,
        route: &Route,
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

    /// The same for those who are there, for ever: who comes goes elsewhere.
    pub(super) fn retired(&self) -> Self {
        let mut spec = PoolSpec::clone(&self.spec);
        spec.servers_min = 0;
        let keys = self.client_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = self.found_secret.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self {
            id: self.id,
            key: self.key.clone(),
            spec: Arc::new(spec),
            settings: self.settings.clone(),
            occupants: Arc::clone(&self.occupants),
            occupancy: Arc::clone(&self.occupancy),
            is_retired: true,
            endpoints: self.endpoints.clone(),
            names: self.names.clone(),
            tls: Arc::clone(&self.tls),
            tcp: self.tcp,
            client_keys: Mutex::new(keys),
            found_secret: Mutex::new(found),
            next_host: AtomicUsize::new(0),
            watched: self.watched.clone(),
        }
    }

    /// The pools of its servers, if they have some of their own, and of its mirrors.
    pub(in crate::worker) fn parts(&self) -> impl Iterator<Item = PoolId> {
        let clusters = self.spec.clusters.iter();
        let members = clusters.flat_map(|cluster| cluster.members.iter().map(|member| member.pool));
        members.chain(self.spec.mirrors.iter().map(|target| target.pool))
    }

    /// The user of a client of it, where that is not its own.
    pub(in crate::worker) fn other_user(&self, user: &str) -> Option<Arc<str>> {
        (user != self.key.user).then(|| user.into())
    }

    /// Keeps keys that a client's login has shown.
    pub(in crate::worker) fn learn(&self, keys: ScramKeys) {
        *self.client_keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }

    /// Keeps the user's secret as it was looked up.
    pub(in crate::worker) fn learn_secret(&self, secret: StoredSecret) {
        *self.found_secret.lock().unwrap_or_else(PoisonError::into_inner) = Some(secret);
    }

    /// What logins of its clients have shown: keys, and the secret as it was looked up.
    pub(in crate::worker) fn learned(&self) -> (Option<ScramKeys>, Option<StoredSecret>) {
        let keys = self.client_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = self.found_secret.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (keys, found)
    }

    /// Keeps what logins in another process have shown, unless a login here has shown something newer.
    pub(in crate::worker) fn inherit(
        &self,
        keys: Option<&ScramKeys>,
        looked_up: Option<&StoredSecret>,
    ) {
        let mut own = self.client_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_none() {
            *own = keys.cloned();
        }
        drop(own);
        let mut own = self.found_secret.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_none() {
            *own = looked_up.cloned();
        }
    }

    /// What we want at a server that this stream leads to.
    pub(in crate::worker) fn intent(
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
        let client_keys = self.client_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut identity = self.settings.login.clone();
        let has_secret = identity.secret.as_ref().is_some_and(|secret| !secret.is_empty());
        if !has_secret && !identity.is_forced {
            let found = self.found_secret.lock().unwrap_or_else(PoisonError::into_inner);
            identity.secret.clone_from(&found);
        }
        ServerIntent { identity, parameters: Vec::new(), newest, client_keys, protection }
    }
}
