//! What a pool is by the settings: its limits, its times, the servers of its cluster and its place among others.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{Inner, Key, LimitOf, Part, mirrors};
use crate::{
    Check, Cluster, ClusterMember, ConnectQuery, Limit, Member, MemberPlace, Mode, PoolSpec,
    Reserve, Reset, Setting, Timeouts,
    cluster::Seat,
    config::{self, ANY_DATABASE, ClusterPool, ClusterServer, Config, PoolMode, PoolSettings},
    worker::watch::Watched,
};

/// Longest pause after failed logins to a member of a cluster.
pub(super) const MEMBER_RETRY_MAX: Duration = Duration::from_secs(1);

/// A limit's number where it has none.
pub(super) fn max(limit: Option<NonZeroU32>) -> u32 {
    limit.map_or(u32::MAX, NonZeroU32::get)
}

/// The key of the pool that serves the clients of a key: of a database that forces its user, the forced
/// user's.
pub(super) fn shared_key(config: &Config, key: &Key) -> Key {
    let forced = config.database(&key.database).and_then(|entry| entry.user.clone());
    Key { user: forced.unwrap_or_else(|| key.user.clone()), ..key.clone() }
}

/// What holds for a pool; `None` if there is no such database.
pub(super) fn settings(config: &Config, key: &Key) -> Option<PoolSettings> {
    let mut settings = config.pool(&key.database, &key.user)?;
    if let Some((replication, own)) = &key.replication {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let own = own.iter().map(|Setting { name, value }| (text(name), text(value)));
        let login = &mut settings.login;
        login.parameters.extend(own);
        login.parameters.push(("replication".to_owned(), (*replication).to_owned()));
        settings.mode = PoolMode::Session;
        settings.mirrors.clear();
    }
    if let Some(Part::Mirror(name)) = &key.part {
        return mirrors::settings(config, settings, name);
    }
    if let Some(Seat { shard, member }) = key.seat() {
        settings.mirrors.clear();
        let clusters = std::mem::take(&mut settings.clusters);
        let cluster = clusters.get(shard)?;
        settings.servers = vec![cluster.servers.get(member)?.endpoint.clone()];
        let dbname = cluster.dbname.as_ref().unwrap_or(&settings.login.database);
        settings.login.database = dbname.clone();
    }
    Some(settings)
}

/// The name under which the settings have a database.
pub(in crate::worker) fn entry_name<'a>(config: &Config, database: &'a str) -> &'a str {
    if config.databases.contains_key(database) { database } else { ANY_DATABASE }
}

/// Says of a pool which members it has, or whose member it is, and gives what is known of them.
pub(super) fn place(
    inner: &mut Inner,
    config: &Config,
    key: &Key,
    settings: &PoolSettings,
    spec: &mut PoolSpec,
) -> Vec<Arc<Watched>> {
    let name = entry_name(config, &key.database);
    let Some(database) = config.database(name) else { return Vec::new() };
    let Ok(clusters) = database.clusters() else { return Vec::new() };
    if key.is_mirror() {
        return Vec::new();
    }
    let Some(seat) = key.seat() else {
        if settings.clusters.is_empty() {
            return Vec::new();
        }
        let shards = clusters.len();
        let watched: Vec<_> = clusters
            .iter()
            .enumerate()
            .map(|(shard, cluster)| inner.watched(name, shard, shards, cluster))
            .collect();
        let found = clusters.iter().zip(&watched).enumerate();
        let found = found.map(|(shard, (cluster, watched))| {
            cluster_of(inner, key, shard, cluster, watched).map(Arc::new)
        });
        spec.clusters = found.collect::<Option<_>>().unwrap_or_default();
        spec.routing = database.routes().ok().map(|routes| inner.routes(name, routes));
        return watched;
    };
    let Some(cluster) = clusters.get(seat.shard) else { return Vec::new() };
    let watched = inner.watched(name, seat.shard, clusters.len(), cluster);
    let home = inner.find(&Key { part: None, ..key.clone() });
    if let (Some(home), Some(state)) = (home, watched.state.members.get(seat.member)) {
        if let Some(Some(entry)) = inner.pools.get(home.index()) {
            spec.greeting = Arc::clone(&entry.spec.greeting);
        }
        let failover_timeout = cluster.settings.failover_timeout;
        let shard = watched.shard;
        spec.member = Some(MemberPlace { home, shard, state: Arc::clone(state), failover_timeout });
        // The next that would do is tried meanwhile.
        let longest = &mut spec.timeouts.login_retry_max;
        *longest = (*longest).min(MEMBER_RETRY_MAX);
    }
    vec![watched]
}

/// A shard's servers, as a pool's clients use them; `None` while it has not the pools of all of them.
pub(super) fn cluster_of(
    inner: &Inner,
    home: &Key,
    shard: usize,
    cluster: &ClusterPool,
    watched: &Watched,
) -> Option<Cluster> {
    let members = cluster.servers.iter().zip(&watched.state.members).enumerate();
    let member = |(member, (server, state)): (usize, (&ClusterServer, &Arc<Member>))| {
        let key = Key { part: Some(Part::Member(Seat { shard, member })), ..home.clone() };
        let (pool, weight) = (inner.find(&key)?, server.weight.get());
        Some(ClusterMember { pool, state: Arc::clone(state), weight })
    };
    Some(Cluster {
        members: members.map(member).collect::<Option<_>>()?,
        strategy: cluster.settings.strategy,
        failover_timeout: cluster.settings.failover_timeout,
        slow_start: cluster.settings.slow_start,
        state: Arc::clone(&watched.state),
    })
}

pub(super) fn spec(
    inner: &mut Inner,
    config: &Config,
    key: &Key,
    settings: &PoolSettings,
    occupants: &Arc<Limit>,
) -> PoolSpec {
    if key.is_mirror() {
        return mirrors::spec(inner, config, key, settings, occupants);
    }
    let of_database = LimitOf::DatabaseServers(key.database.clone());
    let of_user = LimitOf::UserServers(settings.login.user.clone());
    let hosts = settings.servers.iter().map(ToString::to_string).collect::<Vec<_>>();
    // As many for each host of a list: which of them a server will be at is known too late to wait.
    let of_hosts = settings.host_servers.map(|most| {
        let hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        most.saturating_mul(NonZeroU32::new(hosts).unwrap_or(NonZeroU32::MIN))
    });
    let shared = [
        inner.limit(of_database, max(settings.database_servers)),
        inner.limit(of_user, max(settings.user_servers)),
        inner.limit(LimitOf::HostServers(hosts.join(",")), max(of_hosts)),
        Arc::clone(occupants),
    ];
    // A pool that is replaced by that of a forced user has the limits in common with it.
    let shared_key = shared_key(config, key);
    let own = inner.limit(LimitOf::PoolServers(shared_key.clone()), max(settings.size));
    let reserve = inner.limit(LimitOf::PoolReserve(shared_key), settings.reserve_size);
    let with = |limit| [limit].into_iter().chain(shared.iter().cloned()).collect();
    let times = &settings.timeouts;
    let after = times.reserve_wait.filter(|_| settings.reserve_size > 0);
    let defaults = PoolSpec::new(0);
    PoolSpec {
        mode: match settings.mode {
            PoolMode::Session => Mode::Session,
            PoolMode::Transaction => Mode::Transaction,
            PoolMode::Statement => Mode::Statement,
        },
        server_limits: with(own),
        reserve: after.map(|after| Reserve { limits: with(reserve), after }),
        round_robin: config.round_robin,
        listen_bytes: config
            .notifications
            .enabled
            .then_some(config.notifications.client_bytes as usize),
        simple_queries: config.simple_queries,
        reset: reset(config),
        connect_query: connect_query(settings),
        check: check(config, times),
        weight: settings.weight.get(),
        servers_min: settings.min_size,
        statements_per_server: config.max_prepared_statements,
        gate: inner.gate(&key.database),
        user: key.user.as_str().into(),
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

/// What is run when a client leaves its server.
pub(super) fn reset(config: &Config) -> Option<Reset> {
    let query = config.reset_query.as_bytes().into();
    Some(Reset { query, always: config.reset_query_always })
}

/// What is run after each login and each reset of a server connection.
pub(super) fn connect_query(settings: &PoolSettings) -> Option<Arc<ConnectQuery>> {
    let query = settings.login.connect_query.as_deref()?;
    Some(Arc::new(ConnectQuery::new(query)))
}

/// What is asked of a server that was idle for long.
pub(super) fn check(config: &Config, times: &config::Timeouts) -> Option<Check> {
    let query = config.check_query.as_ref()?.as_bytes().into();
    Some(Check { query, idle: times.server_check_delay })
}
