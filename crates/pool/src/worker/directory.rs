//! [`Directory`]: which pools there are, the same for all workers. Pools come to be when the first
//! client of a user in a database has logged in.
//!
//! A pool keeps its number to the end. When settings change, each pool is made anew under its number,
//! with the limits that it had, so that what is taken of them stays counted. Clients learn in the first
//! moments of a session whether a server is theirs alone and whether it knows their statements' names;
//! so where that changes, those who are there keep the pool that they have, and who comes gets another
//! number, under the same limits. A pool that nobody has used for its time is given up, see [`vacancies`];
//! then its number is free.

mod entry;
mod mirrors;
mod spec;
mod vacancies;

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicUsize},
    time::{Duration, Instant},
};

pub(super) use self::{
    entry::{ClientLimits, PoolEntry, Route, ServerTls},
    spec::entry_name,
};
use self::{
    spec::{max, place, settings, shared_key, spec},
    vacancies::IdlePoolReaper,
};
use super::{StartError, names::Names, watch::Watched};
use crate::{
    Gate, Limit, Mirror, Permits, PoolId, PoolSpec, Setting,
    cluster::Seat,
    config::{ANY_DATABASE, ClusterPool, Config, PoolMode, PoolSettings},
};

/// Most pools there may be: where users may name any database, they could make more without end.
const POOLS_MAX: usize = 100_000;

/// A server that is idle for this long in a pool to which nobody comes any more is closed.
const RETIRED_SERVER_IDLE: Duration = Duration::from_secs(2);

/// All pools.
#[derive(Debug)]
pub(super) struct Directory {
    names: Names,
    /// Written while `inner` is held, so who holds that finds both of one time.
    current: RwLock<Current>,
    /// How many clients may be logged in.
    clients: Arc<Limit>,
    inner: Mutex<Inner>,
}

/// What holds now.
#[derive(Clone, Debug)]
struct Current {
    config: Arc<Config>,
    tls: Arc<ServerTls>,
}

#[derive(Debug, Default)]
struct Inner {
    pools: Vec<Option<Arc<PoolEntry>>>,
    vacancies: IdlePoolReaper,
    /// Of those that new clients come to.
    by_key: HashMap<Key, PoolId>,
    limits: HashMap<LimitOf, Arc<Limit>>,
    /// Of databases, by the names that clients use.
    gates: BTreeMap<String, Arc<Gate>>,
    /// Of databases with several servers, by their names in the settings and the shard.
    watched: HashMap<(String, usize), Arc<Watched>>,
    /// What is counted of mirrors, by the names of their databases in the settings and their own.
    mirrors: BTreeMap<(String, String), Arc<Mirror>>,
    /// How requests are routed, by the names of databases in the settings: one for all users.
    routes: HashMap<String, Arc<howdah_route::Settings>>,
}

/// Whom a pool is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The database, by the name that clients use.
    pub(super) database: String,
    /// The client's user, or the one that the database forces: it has one pool for all clients.
    pub(super) user: String,
    /// What the startup packet says of `replication`, if it is for that, and the client's settings:
    /// a replication connection has to begin with them.
    pub(super) replication: Option<(&'static str, Vec<Setting>)>,
    /// Which of its servers; `None` is what clients come to.
    pub(super) part: Option<Part>,
}

/// Servers that have pools of their own beside what clients come to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// One of several that hold the same.
    Member(Seat),
    /// A mirror, by its name in the settings.
    Mirror(String),
}

impl Key {
    /// Which of several servers that hold the same.
    pub(super) fn seat(&self) -> Option<Seat> {
        match self.part {
            Some(Part::Member(seat)) => Some(seat),
            _ => None,
        }
    }

    /// Whether it is of a mirror, whose numbers are not the database's.
    pub(super) fn is_mirror(&self) -> bool {
        matches!(self.part, Some(Part::Mirror(_)))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum LimitOf {
    PoolServers(Key),
    PoolReserve(Key),
    DatabaseServers(String),
    /// By where they are; pools with several have them together.
    HostServers(String),
    UserServers(String),
    DatabaseClients(String),
    UserClients(String),
}

impl Directory {
    /// # Errors
    ///
    /// The files that the server leg's TLS needs cannot be used.
    pub(super) fn new(config: Config, names: Names) -> Result<Self, StartError> {
        let tls = Arc::new(ServerTls::new(&config)?);
        let clients = Limit::new(config.limits.clients);
        let current = RwLock::new(Current { config: Arc::new(config), tls });
        Ok(Self { names, current, clients, inner: Mutex::default() })
    }

    /// How names of servers are looked up.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// The settings that hold now.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all pools follow other settings. Workers are to be told.
    pub(super) fn change(&self, config: Arc<Config>, tls: ServerTls) {
        let mut inner = self.inner();
        let before = self.current();
        let is_elsewhere = before.config.tls.server != config.tls.server;
        let now = Current { config, tls: Arc::new(tls) };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = now.clone();
        self.clients.set_max(now.config.limits.clients);
        for index in 0..inner.pools.len() {
            let Some(before) = inner.pools[index].clone() else { continue };
            let changed = self.changed(&mut inner, &now, &before, is_elsewhere);
            inner.pools[index] = Some(Arc::new(changed));
        }
        let Inner { pools, by_key, vacancies, .. } = &mut *inner;
        let pools = pools.iter().flatten();
        let open = pools.filter(|pool| !pool.is_retired && !vacancies.is_leaving(pool.id));
        *by_key = open.map(|pool| (pool.key.clone(), pool.id)).collect();
    }

    /// A pool by whose login a server of a cluster can be checked: of who is named for it, or of one of
    /// those who use it, another at each attempt.
    pub(super) fn checker(
        &self,
        watched: &Watched,
        member: usize,
        attempt: usize,
    ) -> Option<Arc<PoolEntry>> {
        let config = self.config();
        let seat = Seat { shard: watched.shard as usize, member };
        let is_its = |pool: &&Arc<PoolEntry>| {
            let key = &pool.key;
            key.seat() == Some(seat)
                && key.replication.is_none()
                && !pool.is_retired
                && entry_name(&config, &key.database) == watched.name
        };
        let pools = self.pools();
        let users: Vec<_> = pools.iter().filter(is_its).collect();
        let Some(user) = watched.cluster.settings.check_user.clone() else {
            return users.get(attempt % users.len().max(1)).map(|pool| Arc::clone(pool));
        };
        let is_name = watched.name != ANY_DATABASE;
        let database = if is_name { &watched.name } else { &users.first()?.key.database };
        let home = Key { database: database.clone(), user, replication: None, part: None };
        let home = shared_key(&config, &home);
        let count = |entry: &PoolEntry, _: &ClientLimits| {
            Ok::<_, Infallible>(Permits::take(&entry.occupancy))
        };
        let _used = self.enter(&home, count)?;
        let inner = self.inner();
        let id = inner.by_key.get(&Key { part: Some(Part::Member(seat)), ..home })?;
        inner.pools.get(id.index())?.clone()
    }

    /// What is known of the servers of all clusters that were used.
    pub(super) fn watched(&self) -> Vec<Arc<Watched>> {
        self.inner().watched.values().cloned().collect()
    }

    /// A pool as it is by other settings.
    fn changed(
        &self,
        inner: &mut Inner,
        now: &Current,
        before: &PoolEntry,
        is_elsewhere: bool,
    ) -> PoolEntry {
        let wanted = settings(&now.config, &before.key);
        let is_gone = wanted.is_none();
        let was_cluster = !before.settings.clusters.is_empty();
        if wanted.as_ref().is_some_and(|it| it.clusters.is_empty() == was_cluster) {
            return before.retired(); // Who is there stays where it is.
        }
        let mut settings = wanted.unwrap_or_else(|| before.settings.clone());
        let mode = std::mem::replace(&mut settings.mode, before.settings.mode);
        let occupants = Arc::clone(&before.occupants);
        self.make_members(inner, now, &before.key, &settings, &occupants);
        let mut entry = self.entry(inner, now, before.id, &before.key, settings, occupants);
        let is_kind = mode == before.settings.mode
            && (mode == PoolMode::Session
                || (entry.spec.statements_per_server == 0)
                    == (before.spec.statements_per_server == 0));
        let is_shared = shared_key(&now.config, &before.key) != before.key;
        entry.is_retired = is_gone || !is_kind || is_shared;
        let is_elsewhere = is_elsewhere
            || entry.settings.servers != before.settings.servers
            || entry.settings.login != before.settings.login;
        let mut spec = PoolSpec {
            greeting: Arc::clone(&before.spec.greeting),
            edition: before.spec.edition.wrapping_add(u32::from(is_elsewhere)),
            closes: is_gone && before.key.part.is_none(),
            ..PoolSpec::clone(&entry.spec)
        };
        if entry.is_retired {
            spec.servers_min = 0;
            spec.timeouts.server_idle = Some(RETIRED_SERVER_IDLE);
        }
        if !is_kind {
            spec.statements_per_server = before.spec.statements_per_server;
        }
        entry.spec = Arc::new(spec);
        if entry.settings.login.secret == before.settings.login.secret {
            let keys = before.client_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
            entry.client_keys = Mutex::new(keys);
            let found = before.found_secret.lock().unwrap_or_else(PoisonError::into_inner).clone();
            entry.found_secret = Mutex::new(found);
        }
        entry
    }

    /// All pools, in the order of their numbers.
    pub(super) fn pools(&self) -> Vec<Arc<PoolEntry>> {
        self.inner().pools.iter().flatten().cloned().collect()
    }

    /// The gate of a database; `None` if there is no such database.
    pub(super) fn gate(&self, database: &str) -> Option<Arc<Gate>> {
        self.config().database(database)?;
        Some(self.inner().gate(database))
    }

    /// The gates of all databases that have a name of their own or were used, by name.
    pub(super) fn gates(&self) -> Vec<(String, Arc<Gate>)> {
        let mut inner = self.inner();
        let config = self.config();
        for name in config.databases.keys().filter(|name| *name != ANY_DATABASE) {
            inner.gate(name);
        }
        let known = inner.gates.iter().filter(|(name, _)| config.database(name).is_some());
        known.map(|(name, gate)| (name.clone(), Arc::clone(gate))).collect()
    }

    /// The pool with this number, which somebody has been given before.
    pub(super) fn by_id(&self, id: PoolId) -> Option<Arc<PoolEntry>> {
        self.inner().pools.get(id.index())?.clone()
    }

    /// The pool for a client whom `admit` gives its permits, of the limits on clients that hold for it or
    /// others, among them those of [`PoolEntry::occupancy`]; for as long as it has them the pool is not given up. `None` if there is
    /// no such database, or if there are too many pools.
    ///
    /// # Errors
    ///
    /// That of `admit`.
    pub(super) fn enter<E>(
        &self,
        key: &Key,
        admit: impl FnOnce(&PoolEntry, &ClientLimits) -> Result<Permits, E>,
    ) -> Option<Result<(Arc<PoolEntry>, Permits), E>> {
        let mut inner = self.inner();
        let current = self.current();
        let entry = self.find_or_make(&mut inner, &shared_key(&current.config, key))?;
        let limits = self.client_limits(&mut inner, &current.config, &key.user, &entry);
        // Before the lock goes: whoever gives up pools finds it occupied.
        let permits = admit(&entry, &limits);
        inner.vacancies.is_used(entry.id);
        for pool in entry.parts() {
            inner.vacancies.is_used(pool);
        }
        Some(permits.map(|permits| (entry, permits)))
    }

    /// Pools of which servers are to be open before anybody comes: of databases that force their user,
    /// since of others nobody knows who will. Made where they are missing.
    pub(super) fn forced_pools_with_minimum(&self) -> Vec<PoolId> {
        let mut inner = self.inner();
        let config = self.config();
        let forced = config.databases.iter().filter(|(name, _)| *name != ANY_DATABASE);
        let forced = forced.filter_map(|(name, entry)| Some((name, entry.user.as_ref()?)));
        let keys = forced.map(|(database, user)| {
            let (database, user) = (database.clone(), user.clone());
            Key { database, user, replication: None, part: None }
        });
        let has_minimum =
            |key: &Key| settings(&config, key).is_some_and(|settings| settings.min_size > 0);
        let made = keys.filter(has_minimum).filter_map(|key| self.find_or_make(&mut inner, &key));
        made.map(|entry| entry.id).collect()
    }

    fn find_or_make(&self, inner: &mut Inner, key: &Key) -> Option<Arc<PoolEntry>> {
        if let Some(id) = inner.by_key.get(key) {
            return inner.pools.get(id.index())?.clone();
        }
        self.make(inner, &self.current(), key, &Limit::new(u32::MAX))
    }

    /// Makes a pool, and those of the members of its cluster. They have their occupants in common, so
    /// that all of them are used or none.
    fn make(
        &self,
        inner: &mut Inner,
        current: &Current,
        key: &Key,
        occupants: &Arc<Limit>,
    ) -> Option<Arc<PoolEntry>> {
        let settings = settings(&current.config, key)?;
        let id = match inner.vacancies.number(Instant::now()) {
            Some(free) => free,
            None if inner.pools.len() < POOLS_MAX => {
                inner.pools.push(None);
                PoolId(u32::try_from(inner.pools.len() - 1).ok()?)
            }
            None => return None,
        };
        let make = |inner: &mut Inner| {
            let (settings, occupants) = (settings.clone(), Arc::clone(occupants));
            self.entry(inner, current, id, key, settings, occupants)
        };
        let mut entry = Arc::new(make(inner));
        inner.pools[id.index()] = Some(Arc::clone(&entry));
        inner.by_key.insert(key.clone(), id);
        if !settings.clusters.is_empty() || !settings.mirrors.is_empty() {
            // Home and members know each other by their numbers.
            self.make_members(inner, current, key, &settings, occupants);
            let greeting = Arc::clone(&entry.spec.greeting);
            let mut home = make(inner);
            home.spec = Arc::new(PoolSpec { greeting, ..PoolSpec::clone(&home.spec) });
            entry = Arc::new(home);
            inner.pools[id.index()] = Some(Arc::clone(&entry));
        }
        Some(entry)
    }

    /// Makes the pools of members and mirrors that have none yet.
    fn make_members(
        &self,
        inner: &mut Inner,
        current: &Current,
        home: &Key,
        settings: &PoolSettings,
        occupants: &Arc<Limit>,
    ) {
        let clusters = settings.clusters.iter().enumerate();
        let seats = clusters.flat_map(|(shard, cluster)| {
            (0..cluster.servers.len()).map(move |member| Part::Member(Seat { shard, member }))
        });
        let mirrors = settings.mirrors.iter().map(|mirror| Part::Mirror(mirror.name.clone()));
        for part in seats.chain(mirrors) {
            let key = Key { part: Some(part), ..home.clone() };
            if inner.find(&key).is_none() {
                self.make(inner, current, &key, occupants);
            }
        }
    }

    fn entry(
        &self,
        inner: &mut Inner,
        current: &Current,
        id: PoolId,
        key: &Key,
        settings: PoolSettings,
        occupants: Arc<Limit>,
    ) -> PoolEntry {
        let mut spec = spec(inner, &current.config, key, &settings, &occupants);
        let watched = place(inner, &current.config, key, &settings, &mut spec);
        spec.mirrors = mirrors::targets(inner, &current.config, key, &settings);
        PoolEntry {
            id,
            key: key.clone(),
            spec: Arc::new(spec),
            occupancy: [Arc::clone(&occupants)].into(),
            occupants,
            is_retired: false,
            endpoints: settings.servers.iter().cloned().map(Arc::new).collect(),
            settings,
            names: self.names.clone(),
            tls: Arc::clone(&current.tls),
            tcp: current.config.tcp.options(),
            client_keys: Mutex::default(),
            found_secret: Mutex::default(),
            next_host: AtomicUsize::new(0),
            watched,
        }
    }

    fn client_limits(
        &self,
        inner: &mut Inner,
        config: &Config,
        user: &str,
        entry: &PoolEntry,
    ) -> ClientLimits {
        let PoolEntry { key, settings, occupants, .. } = entry;
        let of_database = LimitOf::DatabaseClients(key.database.clone());
        let of_user = LimitOf::UserClients(user.to_owned());
        let limits = [
            Arc::clone(&self.clients),
            inner.limit(of_database, max(settings.database_clients)),
            inner.limit(of_user, max(config.clients_of(user))),
            Arc::clone(occupants),
        ];
        let names = ["max_client_conn", "max_db_client_connections", "max_user_client_connections"];
        ClientLimits { limits: limits.into(), names }
    }
}

impl Inner {
    fn gate(&mut self, database: &str) -> Arc<Gate> {
        Arc::clone(self.gates.entry(database.to_owned()).or_default())
    }

    /// The pool of a key, be it for nobody any more.
    fn find(&self, key: &Key) -> Option<PoolId> {
        let is_it =
            |pool: &&Arc<PoolEntry>| pool.key == *key && !self.vacancies.is_leaving(pool.id);
        let open = self.by_key.get(key).copied();
        open.or_else(|| self.pools.iter().flatten().find(is_it).map(|pool| pool.id))
    }

    /// What is known of the servers of a shard. Other settings begin anew.
    fn watched(
        &mut self,
        name: &str,
        shard: usize,
        shards: usize,
        cluster: &ClusterPool,
    ) -> Arc<Watched> {
        let key = (name.to_owned(), shard);
        let is_same =
            |known: &&Arc<Watched>| known.cluster == *cluster && known.is_sharded == (shards > 1);
        if let Some(watched) = self.watched.get(&key).filter(is_same) {
            return Arc::clone(watched);
        }
        let number = u32::try_from(shard).unwrap_or(u32::MAX);
        let watched = Arc::new(Watched::new(name, (number, shards), cluster.clone()));
        if let Some(before) = self.watched.insert(key, Arc::clone(&watched)) {
            before.end();
        }
        watched
    }

    /// How requests are routed: the same object while the settings are the same, so that what was learnt by
    /// them is kept.
    fn routes(
        &mut self,
        name: &str,
        routes: howdah_route::Settings,
    ) -> Arc<howdah_route::Settings> {
        if let Some(same) = self.routes.get(name).filter(|known| ***known == routes) {
            return Arc::clone(same);
        }
        let routes = Arc::new(routes);
        self.routes.insert(name.to_owned(), Arc::clone(&routes));
        routes
    }

    /// A limit by whom it is of, so that pools share it and it outlives changes of its number.
    fn limit(&mut self, of: LimitOf, max: u32) -> Arc<Limit> {
        let limit = self.limits.entry(of).or_insert_with(|| Limit::new(max));
        limit.set_max(max);
        Arc::clone(limit)
    }
}
