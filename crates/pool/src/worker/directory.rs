//! [`Directory`]: all pools, shared by all workers. A pool is created when it is first needed,
//! usually when the first client of a user logs in to a database, or at the start if it has a
//! minimum size and a forced user.
//!
//! A pool keeps its ID for life. When settings change, each pool is rebuilt under its ID with its
//! existing limits, so that permits stay counted. The pool mode, and whether the pooler manages
//! prepared statements on servers, are fixed at the start of a session. If a change affects either
//! of them, connected clients stay in their pool, which is retired, and new clients get a pool with
//! another ID under the same limits. A pool that has been unused for its idle timeout is removed
//! (see [`idle_pools`]), and its ID is reused.

mod entry;
mod idle_pools;
mod local_socket;
mod mirrors;
mod spec;
pub(in crate::worker) use spec::topology_settings;

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use howdah_pool_config::{ANY_DATABASE, ClusterPool, Config, PoolMode, PoolSettings, StoredSecret};
use howdah_pool_core::{
    AdminState, ConnectionLimit, MemberIndex, Mirror, Permits, PoolId, PoolSpec, SessionParameter,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

pub(super) use self::{
    entry::{ClientLimits, PoolEntry, ServerRoute, ServerTls},
    local_socket::LocalSocket,
    spec::entry_name,
};
use self::{
    idle_pools::IdlePoolReaper,
    spec::{attach_cluster, max_or_unlimited, pool_settings, pool_spec, shared_key},
};
use super::{PoolerStartError, cluster_monitor::ClusterMonitor, host_resolver::HostResolver};
use crate::auth::{PasswordCheck, Rejection, Replication};

/// Maximum number of pools. Without this limit, clients that may name any database could create any
/// number of pools.
const POOLS_MAX: usize = 100_000;

/// Idle timeout of servers in a pool that was rebuilt with new settings and retired.
const RETIRED_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pools of the process, and the state that they share.
#[derive(Debug)]
pub(super) struct Directory {
    names: HostResolver,
    /// The settings in effect. Written only while `state` is locked, so that a thread that holds
    /// the lock sees pools and settings in the same version.
    current: RwLock<CurrentConfig>,
    /// The limit on clients of the whole pooler.
    clients: Arc<ConnectionLimit>,
    state: Mutex<DirectoryState>,
}

/// The reason why a client gets no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPool {
    /// No entry in the settings matches the database's name.
    #[error("the database is not configured")]
    UnknownDatabase,
    /// [`POOLS_MAX`] is reached.
    #[error("no more pools allowed: the pooler can have {POOLS_MAX}")]
    TooManyPools,
}

impl NoPool {
    /// Returns the error for a client that has logged in to `database`.
    pub(super) fn rejection(self, database: String) -> Rejection {
        match self {
            Self::UnknownDatabase => Rejection::UnknownDatabase(database),
            Self::TooManyPools => Rejection::TooManyPools(POOLS_MAX),
        }
    }
}

/// The settings in effect.
#[derive(Clone, Debug)]
struct CurrentConfig {
    config: Arc<Config>,
    tls: Arc<ServerTls>,
}

#[derive(Debug, Default)]
struct DirectoryState {
    pools: Vec<Option<Arc<PoolEntry>>>,
    reaper: IdlePoolReaper,
    /// The pools for new clients.
    by_key: HashMap<PoolKey, PoolId>,
    limits: HashMap<LimitKey, Arc<ConnectionLimit>>,
    /// Admin states by the database's name for clients.
    admin_states: BTreeMap<String, Arc<AdminState>>,
    /// The monitors of clusters, by the database's name in the settings and the shard.
    monitors: HashMap<(String, usize), Arc<ClusterMonitor>>,
    /// The statistics of mirrors, by the database's name in the settings and the mirror's name.
    mirrors: BTreeMap<(String, String), Arc<Mirror>>,
    /// The routing settings, by the database's name in the settings; shared by all users.
    routes: HashMap<String, Arc<howdah_route::RouteSettings>>,
}

/// Identifies a pool by the clients and servers that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    /// The database, by the name that clients use.
    pub(super) database: String,
    /// The client's user, or the user that the database forces, which has one pool for all clients.
    pub(super) user: String,
    /// For a replication connection: the value of `replication`, and the client's startup
    /// parameters, which must be sent at the server's login.
    pub(super) replication: Option<(&'static str, Vec<SessionParameter>)>,
    /// The cluster member or mirror; `None` for the pool that has the clients.
    pub(super) part: Option<PoolPart>,
}

/// A server with a separate pool, in addition to the pool that has the clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PoolPart {
    /// A member of a cluster.
    Member(MemberIndex),
    /// A mirror, by its name in the settings.
    Mirror(String),
}

impl PoolKey {
    /// Returns the member of a cluster, if the pool is for one.
    pub(super) fn member_index(&self) -> Option<MemberIndex> {
        match self.part {
            Some(PoolPart::Member(member_index)) => Some(member_index),
            _ => None,
        }
    }

    /// Whether the pool is for a mirror. Mirrors are not part of a database's statistics.
    pub(super) fn is_mirror(&self) -> bool {
        matches!(self.part, Some(PoolPart::Mirror(_)))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum LimitKey {
    PoolServers(PoolKey),
    PoolReserve(PoolKey),
    PoolPinned(PoolKey),
    DatabaseServers(String),
    /// Servers by endpoint; a pool with a list of hosts has one limit for the list.
    HostServers(String),
    UserServers(String),
    DatabaseClients(String),
    UserClients(String),
}

impl Directory {
    /// Creates a directory without pools.
    ///
    /// # Errors
    ///
    /// The TLS files for connections to servers cannot be used.
    pub(super) fn new(config: Config, names: HostResolver) -> Result<Self, PoolerStartError> {
        let tls = Arc::new(ServerTls::new(&config)?);
        let clients = ConnectionLimit::new(config.limits.clients);
        let current = RwLock::new(CurrentConfig { config: Arc::new(config), tls });
        Ok(Self { names, current, clients, state: Mutex::default() })
    }

    /// Returns the resolver for host names of servers.
    pub(super) fn names(&self) -> &HostResolver {
        &self.names
    }

    /// Returns the current settings.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.current.read().config)
    }

    fn current(&self) -> CurrentConfig {
        self.current.read().clone()
    }

    fn state(&self) -> MutexGuard<'_, DirectoryState> {
        self.state.lock()
    }

    /// Applies new settings to all pools. The caller notifies the workers.
    pub(super) fn apply_config(&self, config: Arc<Config>, tls: ServerTls) {
        let mut state = self.state();
        let before = self.current();
        let has_moved = before.config.tls.server != config.tls.server;
        let now = CurrentConfig { config, tls: Arc::new(tls) };
        *self.current.write() = now.clone();
        self.clients.set_max(now.config.limits.clients);
        for index in 0..state.pools.len() {
            let Some(before) = state.pools[index].clone() else { continue };
            let changed = self.reconfigured(&mut state, &now, &before, has_moved);
            state.pools[index] = Some(Arc::new(changed));
        }
        let DirectoryState { pools, by_key, reaper, .. } = &mut *state;
        let pools = pools.iter().flatten();
        let open = pools.filter(|pool| !pool.is_retired && !reaper.is_closing(pool.id));
        *by_key = open.map(|pool| (pool.key.clone(), pool.id)).collect();
    }

    /// Returns a pool whose login can be used to check a cluster member: the pool of the configured
    /// check user, which is created if needed, or else of a user of the database, a different one
    /// at each attempt.
    pub(super) fn health_check_pool(
        &self,
        monitor: &ClusterMonitor,
        member: usize,
        attempt: usize,
    ) -> Option<Arc<PoolEntry>> {
        let config = self.config();
        let member_index = MemberIndex { shard: monitor.shard as usize, member };
        let is_its = |pool: &&Arc<PoolEntry>| {
            let key = &pool.key;
            key.member_index() == Some(member_index)
                && key.replication.is_none()
                && !pool.is_retired
                && entry_name(&config, &key.database) == monitor.name
        };
        let pools = self.pools();
        let users: Vec<_> = pools.iter().filter(is_its).collect();
        let Some(user) = monitor.cluster.settings.check_user.clone() else {
            return users.get(attempt % users.len().max(1)).map(|pool| Arc::clone(pool));
        };
        let is_name = monitor.name != ANY_DATABASE;
        let database = if is_name { &monitor.name } else { &users.first()?.key.database };
        let home = PoolKey { database: database.clone(), user, replication: None, part: None };
        let home = shared_key(&config, &home);
        let count = |entry: &PoolEntry, _: &ClientLimits| {
            Ok::<_, Infallible>(Permits::acquire(&entry.occupancy))
        };
        let _used = self.admit(&home, count).ok()?;
        let state = self.state();
        let id =
            state.by_key.get(&PoolKey { part: Some(PoolPart::Member(member_index)), ..home })?;
        state.pools.get(id.index())?.clone()
    }

    /// Returns entries, outside the directory, for checking a client's password by a login to a
    /// server: one for the database's hosts, or one for each member of its first cluster, those
    /// that are known to be down last.
    pub(super) fn entries_for_check(&self, check: &PasswordCheck) -> Vec<Arc<PoolEntry>> {
        let current = self.current();
        let replication = match check.replication {
            Replication::None => None,
            Replication::Physical => Some(("true", Vec::new())),
            Replication::Logical => Some(("database", Vec::new())),
        };
        let PasswordCheck { user, database, password, .. } = check;
        let (database, user) = (database.clone(), user.clone());
        let key = PoolKey { database, user, replication, part: None };
        let Some(mut settings) = pool_settings(&current.config, &key) else { return Vec::new() };
        // If the database forces another user, the client's own password is checked nevertheless.
        settings.login.user.clone_from(&key.user);
        settings.login.secret = Some(StoredSecret::Plain(password.clone()));
        settings.login.connect_query = None;
        settings.secret_source = None;
        let servers = match std::mem::take(&mut settings.clusters).into_iter().next() {
            None => vec![settings.servers.clone()],
            Some(cluster) => {
                if let Some(dbname) = &cluster.dbname {
                    settings.login.database.clone_from(dbname);
                }
                let name = (entry_name(&current.config, &key.database).to_owned(), 0);
                let monitor = self.state().monitors.get(&name).cloned();
                let is_down = |member: &usize| {
                    let members = monitor.as_ref().map(|monitor| &monitor.state.members);
                    let health = members.and_then(|members| members.get(*member));
                    health.is_some_and(|health| ["down", "banned"].contains(&health.report().state))
                };
                let mut order: Vec<_> = (0..cluster.servers.len()).collect();
                order.sort_by_key(is_down);
                let endpoint = |member: usize| vec![cluster.servers[member].endpoint.clone()];
                order.into_iter().map(endpoint).collect()
            }
        };
        let entry = |servers: Vec<Endpoint>| {
            let occupants = ConnectionLimit::new(u32::MAX);
            let settings = PoolSettings { servers, ..settings.clone() };
            Arc::new(PoolEntry {
                id: PoolId(u32::MAX), // No pool has this ID.
                key: key.clone(),
                spec: Arc::new(PoolSpec::new(0)),
                occupancy: [Arc::clone(&occupants)].into(),
                occupants,
                is_retired: true,
                endpoints: settings.servers.iter().cloned().map(Arc::new).collect(),
                local_sockets: Vec::new(),
                settings,
                names: self.names.clone(),
                tls: Arc::clone(&current.tls),
                tcp: current.config.tcp.options(),
                client_keys: Mutex::default(),
                cached_secret: Mutex::default(),
                next_host: AtomicUsize::new(0),
                monitors: Vec::new(),
            })
        };
        servers.into_iter().map(entry).collect()
    }

    /// Returns the monitors of all clusters used so far.
    pub(super) fn monitors(&self) -> Vec<Arc<ClusterMonitor>> {
        self.state().monitors.values().cloned().collect()
    }

    /// Returns a pool rebuilt with new settings.
    fn reconfigured(
        &self,
        state: &mut DirectoryState,
        now: &CurrentConfig,
        before: &PoolEntry,
        has_moved: bool,
    ) -> PoolEntry {
        let new_settings = pool_settings(&now.config, &before.key);
        let is_gone = new_settings.is_none();
        let was_cluster = !before.settings.clusters.is_empty();
        if new_settings.as_ref().is_some_and(|it| it.clusters.is_empty() == was_cluster) {
            return before.retired(); // Connected clients stay in this pool.
        }
        let mut settings = new_settings.unwrap_or_else(|| before.settings.clone());
        let mode = std::mem::replace(&mut settings.mode, before.settings.mode);
        let occupants = Arc::clone(&before.occupants);
        self.create_parts(state, now, &before.key, &settings, &occupants);
        let mut entry = self.new_entry(state, now, before.id, &before.key, settings, occupants);
        let is_same_kind = mode == before.settings.mode
            && (mode == PoolMode::Session
                || (entry.spec.statements_per_server == 0)
                    == (before.spec.statements_per_server == 0));
        let is_shared = shared_key(&now.config, &before.key) != before.key;
        entry.is_retired = is_gone || !is_same_kind || is_shared;
        let has_moved = has_moved
            || entry.settings.servers != before.settings.servers
            || entry.settings.login != before.settings.login;
        let mut spec = PoolSpec {
            welcome: Arc::clone(&before.spec.welcome),
            edition: before.spec.edition.wrapping_add(u32::from(has_moved)),
            is_closing: is_gone && before.key.part.is_none(),
            ..PoolSpec::clone(&entry.spec)
        };
        if entry.is_retired {
            spec.servers_min = 0;
            spec.timeouts.server_idle = Some(RETIRED_IDLE_TIMEOUT);
        }
        if !is_same_kind {
            spec.statements_per_server = before.spec.statements_per_server;
        }
        entry.spec = Arc::new(spec);
        if entry.settings.login.secret == before.settings.login.secret {
            let keys = before.client_keys.lock().clone();
            entry.client_keys = Mutex::new(keys);
            let found = before.cached_secret.lock().clone();
            entry.cached_secret = Mutex::new(found);
        }
        entry
    }

    /// Returns all pools, in order of their IDs.
    pub(super) fn pools(&self) -> Vec<Arc<PoolEntry>> {
        self.state().pools.iter().flatten().cloned().collect()
    }

    /// Returns the admin state of a database; `None` if no entry in the settings matches its name.
    pub(super) fn admin_state(&self, database: &str) -> Option<Arc<AdminState>> {
        self.config().database(database)?;
        Some(self.state().admin_state(database))
    }

    /// Returns the admin states of all databases that are configured by name or were used, sorted
    /// by name.
    pub(super) fn admin_states(&self) -> Vec<(String, Arc<AdminState>)> {
        let mut state = self.state();
        let config = self.config();
        for name in config.databases.keys().filter(|name| *name != ANY_DATABASE) {
            state.admin_state(name);
        }
        let known = state.admin_states.iter().filter(|(name, _)| config.database(name).is_some());
        known.map(|(name, admin_state)| (name.clone(), Arc::clone(admin_state))).collect()
    }

    /// Returns the pool with this ID; `None` if it was removed.
    pub(super) fn by_id(&self, id: PoolId) -> Option<Arc<PoolEntry>> {
        self.state().pools.get(id.index())?.clone()
    }

    /// Returns the pool for a new client, and creates it if needed.
    ///
    /// `take_permits` returns the client's permits, which must include [`PoolEntry::occupancy`]:
    /// the pool is not removed while they are held.
    ///
    /// # Errors
    ///
    /// [`NoPool`], or, in the inner result, any error of `take_permits`.
    pub(super) fn admit<E>(
        &self,
        key: &PoolKey,
        take_permits: impl FnOnce(&PoolEntry, &ClientLimits) -> Result<Permits, E>,
    ) -> Result<Result<(Arc<PoolEntry>, Permits), E>, NoPool> {
        let mut state = self.state();
        let current = self.current();
        let home = shared_key(&current.config, key);
        let entry = self.find_or_create(&mut state, &home).ok_or_else(|| {
            match pool_settings(&current.config, &home) {
                Some(_) => NoPool::TooManyPools,
                None => NoPool::UnknownDatabase,
            }
        })?;
        let limits = self.client_limits(&mut state, &current.config, &key.user, &entry);
        // Permits are taken under the lock, so that the reaper sees the pool as occupied.
        let permits = take_permits(&entry, &limits);
        state.reaper.mark_used(entry.id);
        for pool in entry.parts() {
            state.reaper.mark_used(pool);
        }
        Ok(permits.map(|permits| (entry, permits)))
    }

    /// Returns the pools that open servers before their first client, and creates missing ones.
    /// They have a minimum size and a forced user; without a forced user, the users of a database
    /// are not known beforehand.
    pub(super) fn forced_pools_with_minimum(&self) -> Vec<PoolId> {
        let mut state = self.state();
        let config = self.config();
        let forced = config.databases.iter().filter(|(name, _)| *name != ANY_DATABASE);
        let forced = forced.filter_map(|(name, entry)| Some((name, entry.user.as_ref()?)));
        let keys = forced.map(|(database, user)| {
            let (database, user) = (database.clone(), user.clone());
            PoolKey { database, user, replication: None, part: None }
        });
        let has_minimum = |key: &PoolKey| {
            pool_settings(&config, key).is_some_and(|settings| settings.min_size > 0)
        };
        let made = keys.filter(has_minimum).filter_map(|key| self.find_or_create(&mut state, &key));
        made.map(|entry| entry.id).collect()
    }

    fn find_or_create(&self, state: &mut DirectoryState, key: &PoolKey) -> Option<Arc<PoolEntry>> {
        if let Some(id) = state.by_key.get(key) {
            return state.pools.get(id.index())?.clone();
        }
        self.create(state, &self.current(), key, &ConnectionLimit::new(u32::MAX))
    }

    /// Creates a pool, and the pools of its cluster members and mirrors. All of them count
    /// occupants together, so that either all or none of them are in use.
    fn create(
        &self,
        state: &mut DirectoryState,
        current: &CurrentConfig,
        key: &PoolKey,
        occupants: &Arc<ConnectionLimit>,
    ) -> Option<Arc<PoolEntry>> {
        let settings = pool_settings(&current.config, key)?;
        let id = match state.reaper.take_free_id(Instant::now()) {
            Some(free) => free,
            None if state.pools.len() < POOLS_MAX => {
                state.pools.push(None);
                PoolId(u32::try_from(state.pools.len() - 1).ok()?)
            }
            None => return None,
        };
        let make = |state: &mut DirectoryState| {
            let (settings, occupants) = (settings.clone(), Arc::clone(occupants));
            self.new_entry(state, current, id, key, settings, occupants)
        };
        let mut entry = Arc::new(make(state));
        state.pools[id.index()] = Some(Arc::clone(&entry));
        state.by_key.insert(key.clone(), id);
        if !settings.clusters.is_empty() || !settings.mirrors.is_empty() {
            // Build the owner pool a second time: it and its members refer to each other by ID.
            self.create_parts(state, current, key, &settings, occupants);
            let greeting = Arc::clone(&entry.spec.welcome);
            let mut home = make(state);
            home.spec = Arc::new(PoolSpec { welcome: greeting, ..PoolSpec::clone(&home.spec) });
            entry = Arc::new(home);
            state.pools[id.index()] = Some(Arc::clone(&entry));
        }
        Some(entry)
    }

    /// Creates the missing pools of members and mirrors.
    fn create_parts(
        &self,
        state: &mut DirectoryState,
        current: &CurrentConfig,
        home: &PoolKey,
        settings: &PoolSettings,
        occupants: &Arc<ConnectionLimit>,
    ) {
        let clusters = settings.clusters.iter().enumerate();
        let members = clusters.flat_map(|(shard, cluster)| {
            (0..cluster.servers.len())
                .map(move |member| PoolPart::Member(MemberIndex { shard, member }))
        });
        let mirrors = settings.mirrors.iter().map(|mirror| PoolPart::Mirror(mirror.name.clone()));
        for part in members.chain(mirrors) {
            let key = PoolKey { part: Some(part), ..home.clone() };
            if state.find(&key).is_none() {
                self.create(state, current, &key, occupants);
            }
        }
    }

    fn new_entry(
        &self,
        state: &mut DirectoryState,
        current: &CurrentConfig,
        id: PoolId,
        key: &PoolKey,
        settings: PoolSettings,
        occupants: Arc<ConnectionLimit>,
    ) -> PoolEntry {
        let mut spec = pool_spec(state, &current.config, key, &settings, &occupants);
        let monitor = attach_cluster(state, &current.config, key, &settings, &mut spec);
        spec.mirrors = mirrors::targets(state, &current.config, key, &settings);
        let endpoints: Vec<_> = settings.servers.iter().cloned().map(Arc::new).collect();
        let local = |endpoint: &Arc<Endpoint>| match (&**endpoint, &settings.local_socket) {
            (Endpoint::Tcp { port, .. }, Some(directory)) => {
                let socket = Endpoint::in_directory(directory, *port);
                Some(Arc::new(LocalSocket::new(Arc::clone(endpoint), socket)))
            }
            _ => None,
        };
        PoolEntry {
            id,
            key: key.clone(),
            spec: Arc::new(spec),
            occupancy: [Arc::clone(&occupants)].into(),
            occupants,
            is_retired: false,
            local_sockets: endpoints.iter().map(local).collect(),
            endpoints,
            settings,
            names: self.names.clone(),
            tls: Arc::clone(&current.tls),
            tcp: current.config.tcp.options(),
            client_keys: Mutex::default(),
            cached_secret: Mutex::default(),
            next_host: AtomicUsize::new(0),
            monitors: monitor,
        }
    }

    fn client_limits(
        &self,
        state: &mut DirectoryState,
        config: &Config,
        user: &str,
        entry: &PoolEntry,
    ) -> ClientLimits {
        let PoolEntry { key, settings, occupants, .. } = entry;
        let of_database = LimitKey::DatabaseClients(key.database.clone());
        let of_user = LimitKey::UserClients(user.to_owned());
        let limits = [
            Arc::clone(&self.clients),
            state.limit(of_database, max_or_unlimited(settings.database_clients)),
            state.limit(of_user, max_or_unlimited(config.max_clients(user))),
            Arc::clone(occupants),
        ];
        let names = ["max_client_conn", "max_db_client_connections", "max_user_client_connections"];
        ClientLimits { limits: limits.into(), names }
    }
}

impl DirectoryState {
    fn admin_state(&mut self, database: &str) -> Arc<AdminState> {
        Arc::clone(self.admin_states.entry(database.to_owned()).or_default())
    }

    /// Returns the pool of a key, even if the pool is retired, but not if it is about to be
    /// removed.
    fn find(&self, key: &PoolKey) -> Option<PoolId> {
        let is_it = |pool: &&Arc<PoolEntry>| pool.key == *key && !self.reaper.is_closing(pool.id);
        let open = self.by_key.get(key).copied();
        open.or_else(|| self.pools.iter().flatten().find(is_it).map(|pool| pool.id))
    }

    /// Returns the monitor of a shard. Creates one if there is none yet, or if the cluster settings
    /// have changed.
    fn monitor(
        &mut self,
        name: &str,
        shard: usize,
        shards: usize,
        cluster: &ClusterPool,
    ) -> Arc<ClusterMonitor> {
        let key = (name.to_owned(), shard);
        let is_same = |known: &&Arc<ClusterMonitor>| {
            known.cluster == *cluster && known.is_sharded == (shards > 1)
        };
        if let Some(monitor) = self.monitors.get(&key).filter(is_same) {
            return Arc::clone(monitor);
        }
        let number = u32::try_from(shard).unwrap_or(u32::MAX);
        let monitor = Arc::new(ClusterMonitor::new(name, (number, shards), cluster.clone()));
        if let Some(before) = self.monitors.insert(key, Arc::clone(&monitor)) {
            before.stop();
        }
        monitor
    }

    /// Returns the shared routing settings of a database. The object stays the same while the
    /// settings are unchanged, so that caches stay valid.
    fn routes(
        &mut self,
        name: &str,
        routes: howdah_route::RouteSettings,
    ) -> Arc<howdah_route::RouteSettings> {
        if let Some(same) = self.routes.get(name).filter(|known| ***known == routes) {
            return Arc::clone(same);
        }
        let routes = Arc::new(routes);
        self.routes.insert(name.to_owned(), Arc::clone(&routes));
        routes
    }

    /// Returns the shared limit of a key, set to `max`. Permits acquired before a change stay
    /// counted.
    fn limit(&mut self, of: LimitKey, max: u32) -> Arc<ConnectionLimit> {
        let limit = self.limits.entry(of).or_insert_with(|| ConnectionLimit::new(max));
        limit.set_max(max);
        Arc::clone(limit)
    }
}
