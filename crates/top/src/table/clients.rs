//! The clients of poolers as rows, each with the session it holds on this server.

use std::{collections::HashMap, sync::Arc};

use howdah_collect::{Backend, Cell, Held, PoolerClient, SqlText, State, Unit};

use super::{Choice, Head, Mark, Row, RowKey, Table, activity};
use crate::{Pooled, Snapshot};

/// The columns of clients.
const COLUMNS: [Head; 11] = [
    Head { is_key: true, ..Head::new("address", "Client", Unit::Text, 21, "where the client is") },
    Head::new("database", "Database", Unit::Text, 12, "the database it asked the pooler for")
        .shrinking(),
    Head::new("user", "User", Unit::Text, 12, "its role").shrinking(),
    Head::new("state", "State", Unit::Text, 10, "what the pooler says it does"),
    Head::new("waits", "Waits", Unit::Seconds, 7, "how long it has waited for a server connection"),
    Head::new("application", "Application", Unit::Text, 14, "what it calls itself").shrinking(),
    Head::new("pid", "Pid", Unit::Count, 8, "the server's process that it holds"),
    Head::new("time", "Time", Unit::Seconds, 7, "how long that has run its statement, or idled"),
    Head::new("session", "Session", Unit::Text, 10, "what that does"),
    Head::new("wait", "Waits for", Unit::Text, 22, "what that waits for"),
    Head::new("query", "Query", Unit::Text, 0, "its statement"),
];

/// `None` where there is no pooler.
pub(super) fn table(snapshot: &Snapshot, choice: &Choice) -> Option<Table> {
    let pooled = snapshot.pooled.as_ref()?;
    let backends = &snapshot.activity.backends;
    let held = |(at, backend): (usize, &Backend)| {
        Some((Held { pid: backend.pid, client_port: backend.client_port? }, at))
    };
    let places: HashMap<Held, usize> = backends.iter().enumerate().filter_map(held).collect();
    let rows = pooled.clients.iter().filter_map(|client| {
        let at = client.holds.and_then(|held| places.get(&held).copied());
        // A client that holds a session of another server is not this one's.
        let is_elsewhere = client.holds.is_some() && at.is_none();
        let is_idle = client.holds.is_none() && client.waits.is_none();
        (!is_elsewhere && (choice.with_idle || !is_idle)).then(|| row(snapshot, client, at, choice))
    });
    Some(Table { columns: COLUMNS.to_vec(), rows: rows.collect() })
}

fn row(snapshot: &Snapshot, client: &PoolerClient, at: Option<usize>, choice: &Choice) -> Row {
    let now_us = snapshot.activity.taken_us;
    let backend = at.and_then(|at| snapshot.activity.backends.get(at));
    let word = |word: &Arc<str>| Cell::from(Arc::clone(word));
    let of = |cell: fn(&Backend, i64) -> Cell| {
        backend.map_or(Cell::Null, |backend| cell(backend, now_us))
    };
    let cells = vec![
        address(client).as_str().into(),
        word(&client.database),
        word(&client.user),
        word(&client.state),
        client.waits.into(),
        client.application.clone().into(),
        of(|backend, _| i64::from(backend.pid).into()),
        of(|backend, now_us| backend.duration(now_us).into()),
        of(|backend, _| backend.state.map(State::as_str).into()),
        of(|backend, _| {
            backend.wait.as_ref().map(|wait| wait.to_string().as_str().into()).unwrap_or(Cell::Null)
        }),
        of(|backend, _| backend.query.as_ref().map(SqlText::to_shared_line).into()),
    ];
    let mark = match backend {
        Some(backend) => activity::mark(backend, now_us, choice.slow_seconds),
        None if client.waits.is_some() => Mark::Waits,
        None => Mark::Idle,
    };
    // What signals are for is the session; a client without one has nothing to signal.
    let key = match backend {
        Some(backend) => RowKey::Session(backend.pid, backend.started_us),
        None => RowKey::Cells(vec![
            address(client),
            client.user.to_string(),
            client.database.to_string(),
        ]),
    };
    Row { cells, key, mark, depth: 0, backend: at }
}

/// Where a client is, as one word.
fn address(client: &PoolerClient) -> String {
    match &*client.address {
        "unix" => format!("unix:{}", client.port),
        address if address.contains(':') => format!("[{address}]:{}", client.port),
        address => format!("{address}:{}", client.port),
    }
}

/// Who is behind a session, as one cell.
pub(super) fn behind(pooled: &Pooled, backend: &Backend) -> Cell {
    let Some(client) = pooled.behind(backend) else { return Cell::Null };
    let application = client.application.as_deref().unwrap_or_default();
    let name = format!("{} {}@{} {application}", address(client), client.user, client.database);
    name.trim_end().into()
}
