//! Derives a pool from the settings: its limits, timeouts, cluster members and mirrors.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use howdah_pool_config::{
    ANY_DATABASE, ClusterPool, ClusterServer, Config, ConfiguredRole, PoolMode, PoolSettings,
    Strategy, TimeoutConfig,
};
use howdah_pool_core::{
    AssignedRole, BalancingStrategy, CheckQuery, ClusterMember, ClusterMembership, ClusterSpec,
    ConnectQuery, ConnectionLimit, MemberHealth, MemberIndex, PinningSpec, PoolSpec, PoolTimeouts,
    PoolingMode, ReservePool, ResetQuery, SessionParameter, TopologySettings,
};

use super::{DirectoryState, LimitKey, PoolKey, PoolPart, mirrors};
use crate::worker::cluster_monitor::ClusterMonitor;

/// Maximum delay before a failed login to a cluster member or a mirror is retried.
pub(super) const MEMBER_RETRY_MAX: Duration = Duration::from_secs(1);

/// Returns a limit's value, or `u32::MAX` if it is not set.
pub(super) fn max_or_unlimited(limit: Option<NonZeroU32>) -> u32 {
    limit.map_or(u32::MAX, NonZeroU32::get)
}

/// Returns the key of the pool that serves the clients of `key`. If the database forces a user,
/// that user's pool serves them.
pub(super) fn shared_key(config: &Config, key: &PoolKey) -> PoolKey {
    let forced = config.database(&key.database).and_then(|entry| entry.user.clone());
    PoolKey { user: forced.unwrap_or_else(|| key.user.clone()), ..key.clone() }
}

/// Returns the settings of a pool; `None` if its database, cluster member or mirror does not exist.
pub(super) fn pool_settings(config: &Config, key: &PoolKey) -> Option<PoolSettings> {
    let mut settings = config.pool(&key.database, &key.user)?;
    if let Some((replication, own)) = &key.replication {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let own = own.iter().map(|SessionParameter { name, value }| (text(name), text(value)));
        let login = &mut settings.login;
        login.parameters.extend(own);
        login.parameters.push(("replication".to_owned(), (*replication).to_owned()));
        settings.mode = PoolMode::Session;
        settings.mirrors.clear();
    }
    if let Some(PoolPart::Mirror(name)) = &key.part {
        return mirrors::mirror_settings(config, settings, name);
    }
    if let Some(MemberIndex { shard, member }) = key.member_index() {
        settings.mirrors.clear();
        let clusters = std::mem::take(&mut settings.clusters);
        let cluster = clusters.get(shard)?;
        settings.servers = vec![cluster.servers.get(member)?.endpoint.clone()];
        let dbname = cluster.dbname.as_ref().unwrap_or(&settings.login.database);
        settings.login.database = dbname.clone();
    }
    Some(settings)
}

/// Returns the name of the entry in the settings that applies to a database: the database's own
/// name, or `*`.
pub(in crate::worker) fn entry_name<'a>(config: &Config, database: &'a str) -> &'a str {
    if config.databases.contains_key(database) { database } else { ANY_DATABASE }
}

/// Sets the clusters and the routing of a pool, or the cluster membership of a member's pool.
/// Returns the monitors.
pub(super) fn attach_cluster(
    directory: &mut DirectoryState,
    config: &Config,
    key: &PoolKey,
    settings: &PoolSettings,
    spec: &mut PoolSpec,
) -> Vec<Arc<ClusterMonitor>> {
    let name = entry_name(config, &key.database);
    let Some(database) = config.database(name) else { return Vec::new() };
    let Ok(clusters) = database.clusters() else { return Vec::new() };
    if key.is_mirror() {
        return Vec::new();
    }
    let Some(member_index) = key.member_index() else {
        if settings.clusters.is_empty() {
            return Vec::new();
        }
        let shards = clusters.len();
        let monitor: Vec<_> = clusters
            .iter()
            .enumerate()
            .map(|(shard, cluster)| directory.monitor(name, shard, shards, cluster))
            .collect();
        let found = clusters.iter().zip(&monitor).enumerate();
        let found = found.map(|(shard, (cluster, monitor))| {
            cluster_spec(directory, key, shard, cluster, monitor).map(Arc::new)
        });
        spec.clusters = found.collect::<Option<_>>().unwrap_or_default();
        spec.routing =
            database.routing_settings().ok().map(|routes| directory.routes(name, routes));
        return monitor;
    };
    let Some(cluster) = clusters.get(member_index.shard) else { return Vec::new() };
    let monitor = directory.monitor(name, member_index.shard, clusters.len(), cluster);
    let home = directory.find(&PoolKey { part: None, ..key.clone() });
    if let (Some(home), Some(state)) = (home, monitor.state.members.get(member_index.member)) {
        if let Some(Some(entry)) = directory.pools.get(home.index()) {
            spec.welcome = Arc::clone(&entry.spec.welcome);
        }
        let failover_timeout = cluster.settings.failover_timeout;
        let shard = monitor.shard;
        spec.member = Some(ClusterMembership {
            owner: home,
            shard,
            state: Arc::clone(state),
            failover_timeout,
        });
        // Meanwhile other members are tried, so retry soon.
        let longest = &mut spec.timeouts.login_retry_max;
        *longest = (*longest).min(MEMBER_RETRY_MAX);
    }
    vec![monitor]
}

/// Returns a shard's members for a pool's clients; `None` until all member pools exist.
pub(super) fn cluster_spec(
    directory: &DirectoryState,
    home: &PoolKey,
    shard: usize,
    cluster: &ClusterPool,
    monitor: &ClusterMonitor,
) -> Option<ClusterSpec> {
    let members = cluster.servers.iter().zip(&monitor.state.members).enumerate();
    let member = |(member, (server, state)): (usize, (&ClusterServer, &Arc<MemberHealth>))| {
        let key =
            PoolKey { part: Some(PoolPart::Member(MemberIndex { shard, member })), ..home.clone() };
        let (pool, weight) = (directory.find(&key)?, server.weight.get());
        Some(ClusterMember { pool, state: Arc::clone(state), weight })
    };
    Some(ClusterSpec {
        members: members.map(member).collect::<Option<_>>()?,
        strategy: balancing_strategy(cluster.settings.strategy),
        failover_timeout: cluster.settings.failover_timeout,
        slow_start: cluster.settings.slow_start,
        state: Arc::clone(&monitor.state),
    })
}

fn balancing_strategy(strategy: Strategy) -> BalancingStrategy {
    match strategy {
        Strategy::RoundRobin => BalancingStrategy::RoundRobin,
        Strategy::Random => BalancingStrategy::Random,
        Strategy::LeastOutstanding => BalancingStrategy::LeastOutstanding,
        Strategy::Weighted => BalancingStrategy::Weighted,
        Strategy::Latency => BalancingStrategy::Latency,
    }
}

/// Returns what the cluster's topology must know of its settings.
pub(in crate::worker) fn topology_settings(cluster: &ClusterPool) -> TopologySettings {
    let role = |server: &ClusterServer| match server.role {
        ConfiguredRole::Auto => AssignedRole::Auto,
        ConfiguredRole::Primary => AssignedRole::Primary,
        ConfiguredRole::Replica => AssignedRole::Replica,
    };
    TopologySettings {
        roles: cluster.servers.iter().map(role).collect(),
        check_failure_timeout: cluster.settings.check_failure_timeout,
        max_lag: cluster.settings.max_lag,
        max_lag_bytes: cluster.settings.max_lag_bytes,
        primary_rejoin_delay: cluster.settings.primary_rejoin_delay,
        require_same_system_identifier: cluster.settings.require_same_system_identifier,
    }
}

pub(super) fn pool_spec(
    directory: &mut DirectoryState,
    config: &Config,
    key: &PoolKey,
    settings: &PoolSettings,
    occupants: &Arc<ConnectionLimit>,
) -> PoolSpec {
    if key.is_mirror() {
        return mirrors::mirror_spec(directory, config, key, settings, occupants);
    }
    let of_database = LimitKey::DatabaseServers(key.database.clone());
    let of_user = LimitKey::UserServers(settings.login.user.clone());
    let hosts = settings.servers.iter().map(ToString::to_string).collect::<Vec<_>>();
    // The limit is per host, but the host of a new server connection is selected only after the
    // wait for a permit.
    let of_hosts = settings.host_servers.map(|per_host| {
        let hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        per_host.saturating_mul(NonZeroU32::new(hosts).unwrap_or(NonZeroU32::MIN))
    });
    let shared = [
        directory.limit(of_database, max_or_unlimited(settings.database_servers)),
        directory.limit(of_user, max_or_unlimited(settings.user_servers)),
        directory.limit(LimitKey::HostServers(hosts.join(",")), max_or_unlimited(of_hosts)),
        Arc::clone(occupants),
    ];
    let pinned = directory.limit(
        LimitKey::PoolPinned(shared_key(config, key)),
        max_or_unlimited(config.adaptive.pinned_max),
    );
    // A pool shares its limits with the forced user's pool that replaces it.
    let shared_key = shared_key(config, key);
    let own =
        directory.limit(LimitKey::PoolServers(shared_key.clone()), max_or_unlimited(settings.size));
    let reserve = directory.limit(LimitKey::PoolReserve(shared_key), settings.reserve_size);
    let with = |limit| [limit].into_iter().chain(shared.iter().cloned()).collect();
    let times = &settings.timeouts;
    let after = times.reserve_wait.filter(|_| settings.reserve_size > 0);
    let defaults = PoolSpec::new(0);
    PoolSpec {
        mode: match settings.mode {
            PoolMode::Session => PoolingMode::Session,
            PoolMode::Transaction => PoolingMode::Transaction,
            PoolMode::Adaptive => PoolingMode::Adaptive,
            PoolMode::Statement => PoolingMode::Statement,
        },
        server_limits: with(own),
        reserve: after.map(|after| ReservePool { limits: with(reserve), after }),
        is_round_robin: config.round_robin,
        closes_outdated_sessions: times.server_fast_close,
        listen_bytes: config
            .notifications
            .enabled
            .then_some(config.notifications.client_bytes as usize),
        allows_simple_queries: config.simple_queries,
        pinning: PinningSpec {
            stateless_functions: config
                .adaptive
                .stateless_functions
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            limits: [pinned].into(),
            idle: config.adaptive.pinned_idle,
            lasting: config.adaptive.pinned_time,
        },
        reset: reset(config),
        connect_query: connect_query(settings),
        check: check_query(config, times),
        weight: settings.weight.get(),
        servers_min: settings.min_size,
        statements_per_server: config.max_prepared_statements,
        admin_state: directory.admin_state(&key.database),
        user: key.user.as_str().into(),
        has_parameters_at_login: key.replication.is_some(),
        is_single_use: key.replication.is_some() || times.server_lifetime.is_zero(),
        timeouts: PoolTimeouts {
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

/// Returns the query that resets a server after a client has released it, and whether it runs in
/// all modes or only in session mode.
pub(super) fn reset(config: &Config) -> Option<ResetQuery> {
    let query = config.reset_query.as_bytes().into();
    Some(ResetQuery { query, is_always: config.reset_query_always })
}

/// Returns the query to run after each login and reset of a server connection.
pub(super) fn connect_query(settings: &PoolSettings) -> Option<Arc<ConnectQuery>> {
    let query = settings.login.connect_query.as_deref()?;
    Some(Arc::new(ConnectQuery::new(query)))
}

/// Returns the query that checks a server after a long idle time.
pub(super) fn check_query(config: &Config, times: &TimeoutConfig) -> Option<CheckQuery> {
    let query = config.check_query.as_ref()?.as_bytes().into();
    Some(CheckQuery { query, idle: times.server_check_delay })
}
