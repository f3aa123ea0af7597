//! SHOW POOLS, DATABASES, PAUSED and USERS: numbers of connections, and their limits.

use std::collections::BTreeSet;

use howdah_connect::Endpoint;
use howdah_pool_config::{ANY_DATABASE, LoadBalanceHosts, PoolSettings};
use howdah_pool_core::{ClientPhase, PoolCounts, PoolingMode, ServerPhase};

use super::{
    super::snapshot::{PoolView, PoolerSnapshot},
    CellValue,
    ColumnType::{self, Int4, Text},
    peers::ADMIN_DATABASE,
};

pub(super) const POOLS: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("user", Text),
    ("cl_active", Int4),
    ("cl_waiting", Int4),
    ("cl_active_cancel_req", Int4),
    ("cl_waiting_cancel_req", Int4),
    ("sv_active", Int4),
    ("sv_active_cancel", Int4),
    ("sv_being_canceled", Int4),
    ("sv_idle", Int4),
    ("sv_used", Int4),
    ("sv_tested", Int4),
    ("sv_login", Int4),
    ("maxwait", Int4),
    ("maxwait_us", Int4),
    ("pool_mode", Text),
    ("load_balance_hosts", Text),
];

pub(super) const DATABASES: &[(&str, ColumnType)] = &[
    ("name", Text),
    ("host", Text),
    ("port", Int4),
    ("database", Text),
    ("force_user", Text),
    ("pool_size", Int4),
    ("min_pool_size", Int4),
    ("reserve_pool_size", Int4),
    ("server_lifetime", Int4),
    ("pool_mode", Text),
    ("load_balance_hosts", Text),
    ("max_connections", Int4),
    ("current_connections", Int4),
    ("max_client_connections", Int4),
    ("current_client_connections", Int4),
    ("paused", Int4),
    ("disabled", Int4),
];

pub(super) const PAUSED: &[(&str, ColumnType)] = &[("database", Text), ("user", Text)];

pub(super) const USERS: &[(&str, ColumnType)] = &[
    ("name", Text),
    ("pool_size", Text),
    ("reserve_pool_size", Text),
    ("pool_mode", Text),
    ("max_user_connections", Int4),
    ("current_connections", Int4),
    ("max_user_client_connections", Int4),
    ("current_client_connections", Int4),
];

pub(super) fn pools(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let is_used = |pool: &PoolView| {
        pool.is_owner() && (!pool.is_retired || pool.counts != PoolCounts::default())
    };
    let pools = view.pools.iter().enumerate().filter(|(_, pool)| is_used(pool));
    let pools = pools.map(|(number, pool)| pool_row(view, number, pool));
    std::iter::once(admin_pool_row(view)).chain(pools).collect()
}

/// The row of the console itself, as in PgBouncer.
fn admin_pool_row(view: &PoolerSnapshot) -> Vec<CellValue> {
    let mut row: Vec<CellValue> = vec![ADMIN_DATABASE.into(), ADMIN_DATABASE.into()];
    row.push(view.admins.len().into());
    row.extend((0..12).map(|_| CellValue::Int(0)));
    row.extend([mode(PoolingMode::Statement).into(), CellValue::Null]);
    row
}

fn pool_row(view: &PoolerSnapshot, number: usize, pool: &PoolView) -> Vec<CellValue> {
    let clients = || view.clients.iter().filter(|client| client.pool == number);
    let is_its = |pool: usize| pool == number || view.pools[pool].owner == Some(number);
    let servers = || view.servers.iter().filter(|server| is_its(server.pool));
    let in_phase = |phase| servers().filter(|server| server.phase == phase).count();
    let waiting = || clients().filter(|client| client.phase == ClientPhase::Waiting);
    let wait = waiting().map(|client| client.since).max().unwrap_or_default();
    let cancels: u32 = servers().map(|server| server.cancels).sum();
    vec![
        pool.database.as_str().into(),
        pool.user.as_str().into(),
        clients().filter(|client| client.phase != ClientPhase::Waiting).count().into(),
        waiting().count().into(),
        // No CancelRequest is queued: each is forwarded at once, over its own connection.
        cancels.into(),
        0_u32.into(),
        in_phase(ServerPhase::Active).into(),
        cancels.into(),
        in_phase(ServerPhase::BeingCanceled).into(),
        in_phase(ServerPhase::Idle).into(),
        in_phase(ServerPhase::Used).into(),
        in_phase(ServerPhase::Tested).into(),
        in_phase(ServerPhase::Login).into(),
        wait.as_secs().into(),
        wait.subsec_micros().into(),
        mode(pool.mode).into(),
        load_balance_hosts(&pool.settings),
    ]
}

/// Returns the rows of SHOW PAUSED. In a row for a paused database, `user` is null.
pub(super) fn paused(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let rows = view.databases.iter().flat_map(|database| {
        let all = database.is_paused.then_some(CellValue::Null);
        let users = database.paused_users.iter().map(|user| user.as_str().into());
        all.into_iter().chain(users).map(|user| vec![database.name.as_str().into(), user])
    });
    rows.collect()
}

fn mode(mode: PoolingMode) -> &'static str {
    match mode {
        PoolingMode::Session => "session",
        PoolingMode::Transaction => "transaction",
        PoolingMode::Adaptive => "adaptive",
        PoolingMode::Statement => "statement",
    }
}

/// Returns the order in which hosts are used; null for a single host.
fn load_balance_hosts(settings: &PoolSettings) -> CellValue {
    if settings.servers.len() < 2 {
        return CellValue::Null;
    }
    match settings.load_balance_hosts {
        LoadBalanceHosts::RoundRobin => "round-robin",
        LoadBalanceHosts::First => "disable",
    }
    .into()
}

pub(super) fn databases(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |database: &super::super::snapshot::DatabaseView,
               member: Option<(&Endpoint, Option<&str>)>| {
        let name = database.name.as_str();
        let is_its = |pool: usize| view.pools[pool].database == name && !view.pools[pool].is_mirror;
        let is_there = |pool: usize| {
            member.is_none_or(|(endpoint, dbname)| {
                let its = &view.pools[pool].settings;
                its.servers == [endpoint.clone()]
                    && dbname.is_none_or(|dbname| its.login.database == dbname)
            })
        };
        let servers = view.servers.iter();
        let servers = servers.filter(|it| is_its(it.pool) && is_there(it.pool)).count();
        let clients = view.clients.iter().filter(|client| is_its(client.pool)).count();
        // An empty user name yields the settings of a user without an entry.
        let mut settings = view.config.pool(name, "")?;
        if let Some((endpoint, dbname)) = member {
            settings.servers = vec![endpoint.clone()];
            settings.login.database = dbname.unwrap_or(&settings.login.database).to_owned();
        }
        let entry = view.config.database(name)?;
        let hosts = settings.servers.iter().map(host).collect::<Vec<_>>().join(",");
        Some(vec![
            name.into(),
            hosts.into(),
            settings.servers.first().map_or(0, port).into(),
            settings.login.database.as_str().into(),
            entry.user.as_deref().into(),
            settings.size.map_or(0, std::num::NonZeroU32::get).into(),
            settings.min_size.into(),
            settings.reserve_size.into(),
            settings.timeouts.server_lifetime.as_secs().into(),
            entry.mode.map(howdah_pool_config::PoolMode::as_str).into(),
            load_balance_hosts(&settings),
            settings.database_servers.map_or(0, std::num::NonZeroU32::get).into(),
            servers.into(),
            settings.database_clients.map_or(0, std::num::NonZeroU32::get).into(),
            clients.into(),
            database.is_paused.into(),
            database.is_disabled.into(),
        ])
    };
    let admin = vec![
        ADMIN_DATABASE.into(),
        CellValue::Null,
        view.config.listen.port.into(),
        ADMIN_DATABASE.into(),
        ADMIN_DATABASE.into(),
        CellValue::Int(2),
        CellValue::Int(0),
        CellValue::Int(0),
        view.config.timeouts.server_lifetime.as_secs().into(),
        mode(PoolingMode::Statement).into(),
        CellValue::Null,
        CellValue::Int(0),
        CellValue::Int(0),
        CellValue::Int(0),
        view.admins.len().into(),
        CellValue::Int(0),
        CellValue::Int(0),
    ];
    let mut rows = vec![admin];
    for database in view.databases.iter().filter(|it| it.name != ANY_DATABASE) {
        let settings = view.config.pool(&database.name, "");
        let clusters = settings.map(|settings| settings.clusters).unwrap_or_default();
        if clusters.is_empty() {
            rows.extend(row(database, None));
        }
        for cluster in &clusters {
            let dbname = cluster.dbname.as_deref();
            let servers = cluster.servers.iter();
            rows.extend(servers.filter_map(|it| row(database, Some((&it.endpoint, dbname)))));
        }
    }
    rows
}

pub(super) fn host(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp { host, .. } => host.clone(),
        Endpoint::Unix { path } => path.parent().unwrap_or(path).to_string_lossy().into_owned(),
    }
}

pub(super) fn port(endpoint: &Endpoint) -> u16 {
    match endpoint {
        Endpoint::Tcp { port, .. } => *port,
        // The port is the extension of the socket's name, as in `.s.PGSQL.5432`.
        Endpoint::Unix { path } => {
            path.extension().and_then(|end| end.to_str()?.parse().ok()).unwrap_or_default()
        }
    }
}

/// A user's own size as text, right-aligned in nine columns as by PgBouncer; empty without one.
fn size(own: Option<u32>) -> CellValue {
    own.map_or_else(String::new, |size| format!("{size:9}")).into()
}

pub(super) fn users(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let known = view.config.users.keys().map(String::as_str);
    let seen = view.pools.iter().map(|pool| pool.user.as_str());
    let clients = view.clients.iter().map(|client| view.client_user(client));
    let admins = view.admins.iter().map(|admin| admin.user.as_str());
    let names: BTreeSet<_> =
        known.chain(seen).chain(clients).chain(admins).chain([ADMIN_DATABASE]).collect();
    let row = |name: &str| {
        let none = howdah_pool_config::UserConfig::default();
        let own = view.config.users.get(name).unwrap_or(&none);
        let limits = &view.config.limits;
        let cap = |own: Option<u32>, all: Option<std::num::NonZeroU32>| {
            own.unwrap_or_else(|| all.map_or(0, std::num::NonZeroU32::get))
        };
        let servers = view
            .servers
            .iter()
            .filter(|server| {
                let pool = &view.pools[server.pool];
                pool.settings.login.user == name && !pool.is_mirror
            })
            .count();
        let admins = view.admins.iter().filter(|admin| admin.user == name).count();
        let clients = view.clients.iter().filter(|client| view.client_user(client) == name).count();
        let clients = clients + admins;
        vec![
            name.into(),
            size(own.pool_size),
            size(own.reserve_size),
            own.mode.map(howdah_pool_config::PoolMode::as_str).into(),
            cap(own.max_servers, limits.servers_per_user).into(),
            servers.into(),
            cap(own.max_clients, limits.clients_per_user).into(),
            clients.into(),
        ]
    };
    names.into_iter().map(row).collect()
}
