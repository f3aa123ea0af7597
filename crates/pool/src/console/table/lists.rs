//! Small tables: LISTS, STATE, VERSION, and those that are always empty.

use howdah_pool_config::ANY_DATABASE;

use super::{
    super::snapshot::PoolerSnapshot,
    CellValue,
    ColumnType::{self, Bytea, Int4, Int8, Text},
};
use crate::CancelPeerReport;

pub(super) const LISTS: &[(&str, ColumnType)] = &[("list", Text), ("items", Int4)];

pub(super) const STATE: &[(&str, ColumnType)] = &[("key", Text), ("value", Text)];

pub(super) const VERSION: &[(&str, ColumnType)] = &[("version", Text)];

pub(super) const MEM: &[(&str, ColumnType)] =
    &[("name", Text), ("size", Int4), ("used", Int4), ("free", Int4), ("memtotal", Int4)];

pub(super) const DNS_HOSTS: &[(&str, ColumnType)] =
    &[("hostname", Text), ("ttl", Int8), ("addrs", Text)];

pub(super) const DNS_ZONES: &[(&str, ColumnType)] =
    &[("zonename", Text), ("serial", Int8), ("count", Int4)];

pub(super) const FDS: &[(&str, ColumnType)] = &[
    ("fd", Int4),
    ("task", Text),
    ("user", Text),
    ("database", Text),
    ("addr", Text),
    ("port", Int4),
    ("cancel", Int8),
    ("link", Int4),
    ("client_encoding", Text),
    ("std_strings", Text),
    ("datestyle", Text),
    ("timezone", Text),
    ("password", Text),
    ("scram_client_key", Bytea),
    ("scram_server_key", Bytea),
];

pub(super) const PEERS: &[(&str, ColumnType)] =
    &[("peer_id", Int4), ("host", Text), ("port", Int4), ("pool_size", Int4)];

pub(super) const PEER_POOLS: &[(&str, ColumnType)] = &[
    ("peer_id", Int4),
    ("cl_active_cancel_req", Int4),
    ("cl_waiting_cancel_req", Int4),
    ("sv_active_cancel", Int4),
    ("sv_login", Int4),
];

/// Returns the rows of PEERS: the poolers to which cancel requests are forwarded.
pub(super) fn peers(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |peer: &CancelPeerReport| {
        let (number, host, port) =
            (peer.number.into(), peer.host.as_str().into(), peer.port.into());
        vec![number, host, port, peer.connections_max.into()]
    };
    view.cancel_peers.peers.iter().map(row).collect()
}

/// Returns the rows of PEER_POOLS. The connection of a client that sent a cancel request is closed
/// at once, so none is counted.
pub(super) fn peer_pools(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |peer: &CancelPeerReport| {
        let none = || 0_u32.into();
        vec![peer.number.into(), none(), none(), peer.sent.into(), peer.connecting.into()]
    };
    view.cancel_peers.peers.iter().map(row).collect()
}

/// Returns the result of SHOW VERSION: the version of howdah, and the PgBouncer version whose
/// console it follows.
pub(super) fn version() -> String {
    format!("howdah {} (console of PgBouncer 1.25)", env!("CARGO_PKG_VERSION"))
}

pub(super) fn lists(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let login =
        view.servers.iter().filter(|it| it.phase == howdah_pool_core::ServerPhase::Login).count();
    let used = view.clients.len() + view.admins.len();
    let max = view.config.limits.clients as usize;
    let lists = [
        ("databases", 1 + view.databases.iter().filter(|it| it.name != ANY_DATABASE).count()),
        ("users", super::pools::users(view).len()),
        ("peers", view.cancel_peers.peers.len()),
        ("pools", super::pools::pools(view).len()),
        ("peer_pools", view.cancel_peers.peers.len()),
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
