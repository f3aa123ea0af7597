//! What holds for one user in one database, after everybody's, the database's and the user's own
//! settings.

use std::{num::NonZeroU32, time::Duration};

use howdah_connect::Endpoint;

use super::{
    ClusterPool, Config, Database, LoadBalanceHosts, MirrorPool, PoolMode, StoredSecret, Timeouts,
    User,
};

/// What holds for one pool: for the clients of one user in one database.
///
/// Where several say something, the user wins over the database, and the database over all.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// Where the servers are; not empty.
    pub servers: Vec<Endpoint>,
    /// In which order they are used.
    pub load_balance_hosts: LoadBalanceHosts,
    /// The same servers where each has pools of its own: those of each shard.
    pub clusters: Vec<ClusterPool>,
    /// Where its clients' traffic is run, too.
    pub mirrors: Vec<MirrorPool>,
    /// Who we are there.
    pub login: ServerIdentity,
    /// Whether its servers get a password in the clear over connections that are neither encrypted nor
    /// local.
    pub allow_cleartext_password: bool,
    /// When a server connection may go to another client.
    pub mode: PoolMode,
    /// Most server connections, without the reserve; `None` is without limit.
    pub size: Option<NonZeroU32>,
    /// How many of them are kept open.
    pub min_size: u32,
    /// How many more when a client has waited for `timeouts.reserve_wait`.
    pub reserve_size: u32,
    /// Server connections of the whole database.
    pub database_servers: Option<NonZeroU32>,
    /// Clients of the whole database.
    pub database_clients: Option<NonZeroU32>,
    /// Server connections of the user in all databases.
    pub user_servers: Option<NonZeroU32>,
    /// Server connections of all pools at the same host.
    pub host_servers: Option<NonZeroU32>,
    /// Its part, beside that of others, of limits that it shares with them.
    pub weight: NonZeroU32,
    /// Clients of the user in all databases.
    pub user_clients: Option<NonZeroU32>,
    /// How long things may take.
    pub timeouts: Timeouts,
}

/// Who we are at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The role.
    pub user: String,
    /// Whether that is the database's user, whoever the client is.
    pub is_forced: bool,
    /// The database, by the server's name for it.
    pub database: String,
    /// What we know of the role's password. One that is SCRAM's own form lets us in only together
    /// with the key that the client's login has shown.
    pub secret: Option<StoredSecret>,
    /// Settings that the connection begins with.
    pub parameters: Vec<(String, String)>,
    /// What is run before anybody gets the connection.
    pub connect_query: Option<String>,
}

impl Config {
    /// What holds for `user` in the database that clients call `database`; `None` if there is no
    /// such database. Whether there is such a user is for the login to say.
    pub fn pool(&self, database: &str, user: &str) -> Option<PoolSettings> {
        let entry = self.database(database)?;
        let login = self.server_login(entry, database, user);
        // Limits and modes are the forced user's, if one is forced: it is the pool's user.
        let none = User::default();
        let own = self.users.get(&login.user).unwrap_or(&none);
        let cap = |own: Option<u32>, all: Option<NonZeroU32>| own.map_or(all, NonZeroU32::new);
        let limits = &self.limits;
        let mode = own.mode.or(entry.mode).unwrap_or(self.mode);
        let is_mirrored = mode != PoolMode::Session;
        let mirrors = if is_mirrored { entry.mirror_pools().ok()? } else { Vec::new() };
        Some(PoolSettings {
            mirrors,
            allow_cleartext_password: entry
                .allow_cleartext_password
                .unwrap_or(self.allow_cleartext_password),
            servers: entry.endpoints(self).ok()?,
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
            user_clients: self.clients_of(user),
            timeouts: self.pool_timeouts(entry, own),
            login,
        })
    }

    /// Most clients of a user in all databases.
    pub(crate) fn clients_of(&self, user: &str) -> Option<NonZeroU32> {
        let own = self.users.get(user).and_then(|user| user.max_clients);
        own.map_or(self.limits.clients_per_user, NonZeroU32::new)
    }

    fn server_login(&self, entry: &Database, database: &str, user: &str) -> ServerIdentity {
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

    /// Who we are at a mirror.
    pub(crate) fn mirror_login(
        &self,
        login: &ServerIdentity,
        mirror: &MirrorPool,
    ) -> ServerIdentity {
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

    fn pool_timeouts(&self, entry: &Database, own: &User) -> Timeouts {
        let all = self.timeouts;
        let or = |own: Option<Option<Duration>>, all: Option<Duration>| own.unwrap_or(all);
        Timeouts {
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
