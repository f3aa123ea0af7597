//! Pooler clients as rows, each with its session on this server.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use howdah_collect::{
    BackendActivity, BackendState, ColumnUnit, PooledBackend, PoolerClient, ViewCell,
};

use super::{RowId, RowMark, ScreenTable, TableColumn, TableOptions, TableRow, activity};
use crate::{PooledClients, ServerSnapshot};

/// Columns of the clients screen.
pub(super) const COLUMNS: [TableColumn; 11] = [
    TableColumn {
        is_key: true,
        ..TableColumn::new("address", "Client", ColumnUnit::Text, 21, "the client's address")
    },
    TableColumn::new("database", "Database", ColumnUnit::Text, 12, "the requested database")
        .shrinking(),
    TableColumn::new("user", "User", ColumnUnit::Text, 12, "its role").shrinking(),
    TableColumn::new("state", "State", ColumnUnit::Text, 10, "its state in the pooler"),
    TableColumn::new(
        "waits",
        "Waits",
        ColumnUnit::Seconds,
        7,
        "how long it has waited for a server connection",
    ),
    TableColumn::new("application", "Application", ColumnUnit::Text, 14, "its application_name")
        .shrinking(),
    TableColumn::new("pid", "Pid", ColumnUnit::Count, 8, "the backend it is linked to"),
    TableColumn::new(
        "time",
        "Time",
        ColumnUnit::Seconds,
        7,
        "how long the backend has run its statement, or idled",
    ),
    TableColumn::new("session", "Session", ColumnUnit::Text, 10, "the backend's state"),
    TableColumn::new("wait", "Waits for", ColumnUnit::Text, 22, "the backend's wait event"),
    TableColumn::new("query", "Query", ColumnUnit::Text, 0, "its statement"),
];

/// Builds the table; `None` without poolers. Omits clients that use a session of another server
/// and, unless `with_idle`, idle clients.
pub(super) fn table(snapshot: &ServerSnapshot, options: &TableOptions) -> Option<ScreenTable> {
    let pooled = snapshot.pooled_clients.as_ref()?;
    let backends = &snapshot.activity.backends;
    let pooled_backend = |(at, backend): (usize, &BackendActivity)| {
        Some((PooledBackend { pid: backend.pid, client_port: backend.client_port? }, at))
    };
    let places: HashMap<PooledBackend, usize> =
        backends.iter().enumerate().filter_map(pooled_backend).collect();
    let blocking = activity::blocking_pids(backends);
    let rows = pooled.clients.iter().filter_map(|client| {
        let at = client.backend.and_then(|pooled_backend| places.get(&pooled_backend).copied());
        // A client linked to a session of another server does not belong here.
        let is_elsewhere = client.backend.is_some() && at.is_none();
        let is_idle = client.backend.is_none() && client.wait_seconds.is_none();
        (!is_elsewhere && (options.with_idle || !is_idle))
            .then(|| row(snapshot, client, at, options, &blocking))
    });
    Some(ScreenTable { columns: COLUMNS.to_vec(), rows: rows.collect() })
}

fn row(
    snapshot: &ServerSnapshot,
    client: &PoolerClient,
    at: Option<usize>,
    options: &TableOptions,
    blocking: &HashSet<i32>,
) -> TableRow {
    let now_us = snapshot.activity.taken_us;
    let backend = at.and_then(|at| snapshot.activity.backends.get(at));
    let word = |word: &Arc<str>| ViewCell::from(Arc::clone(word));
    let of = |cell: fn(&BackendActivity, i64) -> ViewCell| {
        backend.map_or(ViewCell::Null, |backend| cell(backend, now_us))
    };
    let cells = vec![
        address(client).as_str().into(),
        word(&client.database),
        word(&client.user),
        word(&client.state),
        client.wait_seconds.into(),
        client.application.clone().into(),
        of(|backend, _| i64::from(backend.pid).into()),
        of(|backend, now_us| backend.duration(now_us).into()),
        of(|backend, _| backend.state.map(BackendState::as_str).into()),
        of(|backend, _| {
            backend
                .wait
                .as_ref()
                .map(|wait| wait.to_string().as_str().into())
                .unwrap_or(ViewCell::Null)
        }),
        backend
            .and_then(|backend| backend.query.as_ref())
            .map(|query| options.statement(query))
            .into(),
    ];
    let mark = match backend {
        Some(backend) => {
            let is_blocking = blocking.contains(&backend.pid);
            activity::mark(backend, now_us, options.slow_seconds, is_blocking)
        }
        None if client.wait_seconds.is_some() => RowMark::Waiting,
        None => RowMark::Idle,
    };
    // Signals target the session; a client without one cannot be signalled.
    let key = match backend {
        Some(backend) => RowId::Session(backend.pid, backend.started_us),
        None => RowId::Cells(vec![
            address(client),
            client.user.to_string(),
            client.database.to_string(),
        ]),
    };
    TableRow { cells, key, mark, depth: 0, backend: at }
}

/// Formats the address and port of a client.
fn address(client: &PoolerClient) -> String {
    match &*client.address {
        "unix" => format!("unix:{}", client.port),
        address if address.contains(':') => format!("[{address}]:{}", client.port),
        address => format!("{address}:{}", client.port),
    }
}

/// Returns the client of a session, as one cell.
pub(super) fn client_cell(pooled: &PooledClients, backend: &BackendActivity) -> ViewCell {
    let Some(client) = pooled.client_for(backend) else { return ViewCell::Null };
    let application = client.application.as_deref().unwrap_or_default();
    let name = format!("{} {}@{} {application}", address(client), client.user, client.database);
    name.trim_end().into()
}
