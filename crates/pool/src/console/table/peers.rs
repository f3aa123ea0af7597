//! SHOW CLIENTS, SERVERS and SOCKETS: one row per connection.

use std::{net::SocketAddr, time::SystemTime};

use howdah_pool_core::{ClientPhase, ServerPhase};

use super::{
    super::snapshot::{
        AdminView, ClientView, ConnectionNumber, PoolerSnapshot, ServerView, SocketAddresses,
    },
    CellValue,
    ColumnType::{self, Int4, Text},
    ShowColumn,
};

/// The database of console connections, in tables.
pub(super) const ADMIN_DATABASE: &str = "pgbouncer";

/// The values that SHOW CLIENTS, SERVERS and SOCKETS show for a connection.
struct ConnectionRow<'a> {
    kind: &'static str,
    user: &'a str,
    database: &'a str,
    is_replication: bool,
    state: &'static str,
    place: &'a SocketAddresses,
    connected: SystemTime,
    changed: SystemTime,
    wait: std::time::Duration,
    close_needed: bool,
    id: ConnectionNumber,
    pointer: u64,
    link: Option<u64>,
    process_id: i32,
    application_name: &'a str,
    statements: usize,
}

/// A column: name, type and getter.
type ConnectionColumn = (&'static str, ColumnType, fn(&ConnectionRow<'_>) -> CellValue);

const PEERS: &[ConnectionColumn] = &[
    ("type", Text, |peer| peer.kind.into()),
    ("user", Text, |peer| peer.user.into()),
    ("database", Text, |peer| peer.database.into()),
    ("replication", Text, |peer| if peer.is_replication { "physical" } else { "none" }.into()),
    ("state", Text, |peer| peer.state.into()),
    ("addr", Text, |peer| address(peer.place.peer)),
    ("port", Int4, |peer| port(peer.place.peer)),
    ("local_addr", Text, |peer| address(peer.place.local)),
    ("local_port", Int4, |peer| port(peer.place.local)),
    ("connect_time", Text, |peer| clock(peer.connected)),
    ("request_time", Text, |peer| clock(peer.changed)),
    ("wait", Int4, |peer| peer.wait.as_secs().into()),
    ("wait_us", Int4, |peer| peer.wait.subsec_micros().into()),
    ("close_needed", Int4, |peer| peer.close_needed.into()),
    ("ptr", Text, |peer| pointer(Some(peer.pointer))),
    ("link", Text, |peer| pointer(peer.link)),
    ("remote_pid", Int4, |peer| peer.process_id.into()),
    ("tls", Text, |peer| peer.place.tls.clone().unwrap_or_default().into()),
    ("application_name", Text, |peer| peer.application_name.into()),
    ("prepared_statements", Int4, |peer| peer.statements.into()),
    ("id", Int4, |peer| peer.id.into()),
];

/// Additional columns of SHOW SOCKETS. They are always 0: positions in buffers are not recorded.
pub(super) const SOCKET: &[(&str, ColumnType)] = &[
    ("recv_pos", Int4),
    ("pkt_pos", Int4),
    ("pkt_remain", Int4),
    ("send_pos", Int4),
    ("send_remain", Int4),
    ("pkt_avail", Int4),
    ("send_avail", Int4),
];

/// Columns of SHOW PINNED.
pub(super) const PINNED: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("user", Text),
    ("id", Int4),
    ("application_name", Text),
    ("addr", Text),
    ("port", Int4),
    ("remote_pid", Int4),
    ("seconds", Int4),
    ("reason", Text),
];

/// Returns the rows of SHOW PINNED: the longest pinned client first.
pub(super) fn pinned(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let mut pinned: Vec<_> = view
        .servers
        .iter()
        .filter_map(|server| {
            let client =
                view.clients.iter().find(|client| Some(client.pointer) == server.client)?;
            Some((server.pin.as_ref()?, client, server))
        })
        .collect();
    pinned.sort_by_key(|(pin, ..)| std::cmp::Reverse(pin.since));
    let rows = pinned.into_iter().map(|(pin, client, server)| {
        vec![
            view.pools[client.pool].database.as_str().into(),
            view.client_user(client).into(),
            client.id.into(),
            client.application_name.as_str().into(),
            address(client.addresses.peer),
            port(client.addresses.peer),
            server.process_id.into(),
            pin.since.as_secs().into(),
            pin.reasons.as_str().into(),
        ]
    });
    rows.collect()
}

pub(super) fn columns() -> Vec<ShowColumn> {
    PEERS.iter().map(|(name, kind, _)| ShowColumn { name, kind: *kind }).collect()
}

pub(super) fn clients(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let admins = view.admins.iter().map(|admin| admin_row(view, admin));
    let clients = view.clients.iter().map(|client| client_row(view, client));
    admins.chain(clients).map(|peer| row(&peer)).collect()
}

pub(super) fn servers(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    view.servers.iter().map(|server| row(&server_row(view, server))).collect()
}

pub(super) fn sockets(view: &PoolerSnapshot, only_active: bool) -> Vec<Vec<CellValue>> {
    let is_shown = |linked: bool| linked || !only_active;
    let clients = view.clients.iter().filter(|it| is_shown(it.server.is_some()));
    let servers = view.servers.iter().filter(|it| is_shown(it.client.is_some()));
    let admins = view.admins.iter().filter(|_| !only_active).map(|admin| admin_row(view, admin));
    let clients = clients.map(|client| client_row(view, client));
    let servers = servers.map(|server| server_row(view, server));
    // As in PgBouncer, a state has the prefix of its column in SHOW POOLS here.
    let prefixed = |mut peer: ConnectionRow<'_>| {
        peer.state = match (peer.kind, peer.state) {
            ("C", "waiting") => "cl_waiting",
            ("C", _) => "cl_active",
            (_, "new") => "sv_login",
            (_, "idle") => "sv_idle",
            (_, "used") => "sv_used",
            (_, "tested") => "sv_tested",
            (_, "being_canceled") => "sv_being_canceled",
            _ => "sv_active",
        };
        row(&peer)
    };
    let mut rows: Vec<_> = admins.chain(clients).chain(servers).map(prefixed).collect();
    rows.iter_mut().for_each(|row| row.extend(SOCKET.iter().map(|_| CellValue::Int(0))));
    rows
}

fn row(peer: &ConnectionRow<'_>) -> Vec<CellValue> {
    PEERS.iter().map(|(.., value)| value(peer)).collect()
}

fn client_row<'a>(view: &'a PoolerSnapshot, client: &'a ClientView) -> ConnectionRow<'a> {
    let pool = &view.pools[client.pool];
    let waits = client.phase == ClientPhase::Waiting;
    ConnectionRow {
        kind: "C",
        user: view.client_user(client),
        database: &pool.database,
        is_replication: client.is_replication,
        state: match client.phase {
            ClientPhase::Idle => "idle",
            ClientPhase::Active => "active",
            ClientPhase::Waiting => "waiting",
        },
        place: &client.addresses,
        connected: client.connected,
        changed: view.at - client.since,
        wait: if waits { client.since } else { std::time::Duration::ZERO },
        close_needed: false,
        id: client.id,
        pointer: client.pointer,
        link: client.server,
        process_id: client.process_id,
        application_name: &client.application_name,
        statements: client.statements,
    }
}

fn admin_row<'a>(view: &PoolerSnapshot, admin: &'a AdminView) -> ConnectionRow<'a> {
    ConnectionRow {
        kind: "C",
        user: &admin.user,
        database: ADMIN_DATABASE,
        is_replication: false,
        state: "idle",
        place: &admin.addresses,
        connected: admin.connected,
        changed: view.at,
        wait: std::time::Duration::ZERO,
        close_needed: false,
        id: admin.id,
        pointer: u64::from(admin.id.unsigned_abs()),
        link: None,
        process_id: 0,
        application_name: &admin.application_name,
        statements: 0,
    }
}

fn server_row<'a>(view: &'a PoolerSnapshot, server: &'a ServerView) -> ConnectionRow<'a> {
    let pool = &view.pools[server.pool];
    ConnectionRow {
        kind: "S",
        user: &pool.settings.login.user,
        database: &pool.database,
        is_replication: server.is_replication,
        state: match server.phase {
            ServerPhase::Login => "new",
            ServerPhase::Idle => "idle",
            ServerPhase::Used => "used",
            ServerPhase::Active => "active",
            ServerPhase::Tested => "tested",
            ServerPhase::BeingCanceled => "being_canceled",
        },
        place: &server.addresses,
        connected: server.connected,
        changed: view.at - server.since,
        wait: std::time::Duration::ZERO,
        close_needed: server.is_outdated,
        id: server.id,
        pointer: server.pointer,
        link: server.client,
        process_id: server.process_id,
        application_name: &server.application_name,
        statements: server.statements,
    }
}

fn address(address: Option<SocketAddr>) -> CellValue {
    address.map_or_else(|| "unix".into(), |address| address.ip().to_string().into())
}

fn port(address: Option<SocketAddr>) -> CellValue {
    address.map_or(0, |address| address.port()).into()
}

/// Formats the id of a connection like PgBouncer's memory addresses.
fn pointer(id: Option<u64>) -> CellValue {
    id.map(|id| format!("{id:#x}")).unwrap_or_default().into()
}

/// Formats a time as text, in UTC.
pub(super) fn clock(time: SystemTime) -> CellValue {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC").into()
}

/// Converts a number of days since 1970-01-01 to year, month and day of the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years start in March, so that the leap day is the last day of a year; 400 years have 146,097
    // days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[test]
fn clock_formats_calendar_time() {
    let at = |seconds| clock(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
    for (seconds, text) in [
        (0, "1970-01-01 00:00:00 UTC"),
        (951_782_400, "2000-02-29 00:00:00 UTC"),
        (1_772_323_199, "2026-02-28 23:59:59 UTC"),
        (4_107_542_400, "2100-03-01 00:00:00 UTC"),
    ] {
        assert_eq!(at(seconds), CellValue::from(text));
    }
}
