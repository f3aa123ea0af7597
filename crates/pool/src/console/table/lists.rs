//! Small tables: LISTS, STATE, VERSION, and those that are always empty.

use super::{
    super::snapshot::PoolerSnapshot,
    CellValue,
    ColumnType::{self, Int4, Int8, Text},
};

pub(super) const LISTS: &[(&str, ColumnType)] = &[("list", Text), ("items", Int4)];

pub(super) const STATE: &[(&str, ColumnType)] = &[("key", Text), ("value", Text)];

pub(super) const VERSION: &[(&str, ColumnType)] = &[("version", Text)];

pub(super) const MEM: &[(&str, ColumnType)] =
    &[("name", Text), ("size", Int4), ("used", Int4), ("free", Int4), ("memtotal", Int8)];

pub(super) const DNS_HOSTS: &[(&str, ColumnType)] =
    &[("hostname", Text), ("ttl", Int8), ("addrs", Text)];

pub(super) const DNS_ZONES: &[(&str, ColumnType)] =
    &[("zonename", Text), ("serial", Text), ("count", Int4)];

pub(super) const PEERS: &[(&str, ColumnType)] =
    &[("peer_id", Int4), ("host", Text), ("port", Int4), ("pool_size", Int4)];

pub(super) const PEER_POOLS: &[(&str, ColumnType)] = &[
    ("peer_id", Int4),
    ("cl_active_cancel_req", Int4),
    ("cl_waiting_cancel_req", Int4),
    ("sv_active_cancel", Int4),
    ("sv_login", Int4),
];

/// Returns the result of SHOW VERSION: the version of howdah, and the PgBouncer version whose
/// console it follows.
pub(super) fn version() -> String {
    format!("howdah {} (console of PgBouncer 1.25)", env!("CARGO_PKG_VERSION"))
}

pub(super) fn lists(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let login =
        view.servers.iter().filter(|it| it.phase == howdah_pool_core::ServerPhase::Login).count();
    let used = view.clients.len();
    let max = view.config.limits.clients as usize;
    let lists = [
        ("databases", view.databases.len()),
        ("users", view.config.users.len()),
        ("peers", 0),
        ("pools", view.pools.iter().filter(|pool| pool.is_owner()).count()),
        ("peer_pools", 0),
        ("free_clients", max.saturating_sub(used)),
        ("used_clients", used),
        ("login_clients", view.logins),
        ("free_servers", 0),
        ("used_servers", view.servers.len() - login),
        ("dns_names", 0),
        ("dns_zones", 0),
        ("dns_queries", 0),
        ("dns_pending", 0),
    ];
    lists.into_iter().map(|(list, items)| vec![list.into(), items.into()]).collect()
}

pub(super) fn state(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let paused = !view.databases.is_empty() && view.databases.iter().all(|it| it.is_paused);
    let suspended = view.is_suspended;
    let active = !paused && !suspended;
    let states = [("active", active), ("paused", paused), ("suspended", suspended)];
    let text = |value: bool| if value { "yes" } else { "no" };
    states.into_iter().map(|(key, value)| vec![key.into(), text(value).into()]).collect()
}
