//! [`PoolSettings`]: the settings of one user in one database, resolved from those of `[pool]`, the
//! database and the user.

use std::{num::NonZeroU32, time::Duration};

use howdah_connect::Endpoint;

use super::{
    ClusterPool, Config, DatabaseConfig, LoadBalanceHosts, MirrorPool, PoolMode, SecretSource,
    StoredSecret, TimeoutConfig, UserConfig,
};

/// The resolved settings of a pool, that is, of one user in one database.
///
/// Settings of the user override those of the database, which override those of `[pool]`. For
/// maximum numbers, `None` means no limit.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// Endpoints of the servers; never empty.
    pub servers: Vec<Endpoint>,
    /// The directory of a unix socket to use instead of TCP where it leads to the same server.
    pub local_socket: Option<String>,
    /// The order in which `servers` are used.
    pub load_balance_hosts: LoadBalanceHosts,
    /// The cluster of `servers`, or one cluster per shard, whose servers have separate pools; empty
    /// for a database with `hosts`.
    pub clusters: Vec<ClusterPool>,
    /// Mirrors to which the clients' traffic is copied; empty in session mode.
    pub mirrors: Vec<MirrorPool>,
    /// Role, database and secret for logins to the servers.
    pub login: ServerIdentity,
    /// Where the password for the login comes from, if not from `login`.
    pub secret_source: Option<SecretSource>,
    /// Whether cleartext passwords may be sent over connections that are neither encrypted nor
    /// local.
    pub allow_cleartext_password: bool,
    /// The pool mode, which determines when a client releases its server connection.
    pub mode: PoolMode,
    /// Maximum number of server connections, without the reserve; `None` means no limit.
    pub size: Option<NonZeroU32>,
    /// Number of server connections kept open.
    pub min_size: u32,
    /// Additional server connections allowed once a client has waited for `timeouts.reserve_wait`.
    pub reserve_size: u32,
    /// Maximum number of server connections of the whole database.
    pub database_servers: Option<NonZeroU32>,
    /// Maximum number of clients of the whole database.
    pub database_clients: Option<NonZeroU32>,
    /// Maximum number of server connections of the user in all databases.
    pub user_servers: Option<NonZeroU32>,
    /// Maximum number of server connections of all pools to the same host and port.
    pub host_servers: Option<NonZeroU32>,
    /// The pool's weight, relative to other pools, when pools compete for server connections under
    /// a shared limit.
    pub weight: NonZeroU32,
    /// Maximum number of clients of the user in all databases.
    pub user_clients: Option<NonZeroU32>,
    /// Timeouts of `[pool]`, overridden by those of the database and the user.
    pub timeouts: TimeoutConfig,
}

/// The role, database and secret with which the pooler logs in to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The role that the pooler logs in as.
    pub user: String,
    /// Whether the database forces this role for all clients.
    pub is_forced: bool,
    /// Name of the database on the server.
    pub database: String,
    /// The role's stored secret. A SCRAM secret is only sufficient together with the client key
    /// recovered from the client's own login.
    pub secret: Option<StoredSecret>,
    /// Additional startup parameters: names and values.
    pub parameters: Vec<(String, String)>,
    /// Query run on the connection before its first use, and again after each reset.
    pub connect_query: Option<String>,
}

impl Config {
    /// Resolves the settings of `user` in the database that clients call `database`. Whether the
    /// user exists is checked at login. Returns `None` if no entry matches the database, or if the
    /// entry has an invalid host, which [`Config::read`] would have refused.
    pub fn pool(&self, database: &str, user: &str) -> Option<PoolSettings> {
        let entry = self.database(database)?;
        let login = self.server_login(entry, database, user);
        // Limits and mode are those of the pool's user, which is the forced user if one is
        // configured.
        let none = UserConfig::default();
        let own = self.users.get(&login.user).unwrap_or(&none);
        let cap = |own: Option<u32>, all: Option<NonZeroU32>| own.map_or(all, NonZeroU32::new);
        let limits = &self.limits;
        let mode = own.mode.or(entry.mode).unwrap_or(self.mode);
        let is_mirrored = mode != PoolMode::Session;
        let mirrors = if is_mirrored { entry.mirror_pools().ok()? } else { Vec::new() };
        Some(PoolSettings {
            mirrors,
            // A secret of the database itself is for its `user` there.
            secret_source: own.secret_source().filter(|_| entry.secret.is_none()),
            allow_cleartext_password: entry
                .allow_cleartext_password
                .unwrap_or(self.allow_cleartext_password),
            servers: entry.endpoints(self).ok()?,
            local_socket: entry.local_socket.clone(),
            load_balance_hosts: entry.load_balance_hosts,
            clusters: entry.clusters().ok()?,
            mode,
            size: cap(own.pool_size.or(entry.pool_size), self.sizes.pool),
            min_size: entry.min_size.unwrap_or(self.sizes.min),
            reserve_size: own.reserve_size.or(entry.reserve_size).unwrap_or(self.sizes.reserve),
            database_servers: cap(entry.max_servers, limits.servers_per_database),
            database_clients: cap(entry.max_clients, limits.clients_per_database),
            user_servers: cap(own.max_servers, limits.servers_per_user),
            host_servers: limits.servers_per_host,
            weight: entry.weight.unwrap_or(NonZeroU32::MIN),
            user_clients: self.max_clients(user),
            timeouts: self.pool_timeouts(entry, own),
            login,
        })
    }

    /// Returns the maximum number of clients of a user in all databases; `None` means no limit.
    pub fn max_clients(&self, user: &str) -> Option<NonZeroU32> {
        let own = self.users.get(user).and_then(|user| user.max_clients);
        own.map_or(self.limits.clients_per_user, NonZeroU32::new)
    }

    fn server_login(&self, entry: &DatabaseConfig, database: &str, user: &str) -> ServerIdentity {
        let server_user = entry.user.as_deref().unwrap_or(user);
        let own = entry.user.as_ref().and(entry.secret.clone());
        let listed = || self.users.get(server_user).and_then(|user| user.secret.clone());
        ServerIdentity {
            user: server_user.to_owned(),
            is_forced: entry.user.is_some(),
            database: entry.dbname.clone().unwrap_or_else(|| database.to_owned()),
            secret: own.or_else(listed),
            parameters: entry.parameters.clone().into_iter().collect(),
            connect_query: entry.connect_query.clone(),
        }
    }

    /// Derives the pooler's identity at a mirror from `login`, its identity at the database's own
    /// servers.
    pub fn mirror_login(&self, login: &ServerIdentity, mirror: &MirrorPool) -> ServerIdentity {
        let mut login = login.clone();
        if let Some(user) = &mirror.entry.user {
            let listed = || self.users.get(user).and_then(|user| user.secret.clone());
            login.secret = mirror.entry.secret.clone().or_else(listed);
            login.user.clone_from(user);
            login.is_forced = true;
        }
        if let Some(dbname) = &mirror.entry.dbname {
            login.database.clone_from(dbname);
        }
        login
    }

    fn pool_timeouts(&self, entry: &DatabaseConfig, own: &UserConfig) -> TimeoutConfig {
        let all = self.timeouts;
        let or = |own: Option<Option<Duration>>, all: Option<Duration>| own.unwrap_or(all);
        TimeoutConfig {
            client_idle: or(own.client_idle_timeout, all.client_idle),
            query_wait: or(own.query_wait_timeout.or(entry.query_wait_timeout), all.query_wait),
            query: or(own.query_timeout, all.query),
            transaction: or(own.transaction_timeout, all.transaction),
            idle_transaction: or(own.idle_transaction_timeout, all.idle_transaction),
            server_lifetime: entry.server_lifetime.unwrap_or(all.server_lifetime),
            ..all
        }
    }
}
