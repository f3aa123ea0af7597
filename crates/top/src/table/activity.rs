//! Sessions as rows, those that help with a parallel query under its leader.

use std::collections::HashMap;

use howdah_collect::{Backend, Blocker, Cell, Kind, SqlText, State, Unit, Wait};

use super::{Choice, Head, Mark, Row, RowKey, Table, clients};
use crate::Snapshot;

/// Who is behind a session, where there are poolers. It stands behind the time.
pub(super) const POOLED: Head =
    Head::new("pooled", "Pooler's client", Unit::Text, 30, "who is behind it, by its pooler")
        .ranked(4)
        .shrinking();

/// The place of [`POOLED`].
const POOLED_AT: usize = 4;

/// The columns of sessions.
const COLUMNS: [Head; 15] = [
    Head { is_key: true, ..Head::new("pid", "Pid", Unit::Count, 8, "the process").ranked(0) },
    Head::new("database", "Database", Unit::Text, 12, "its database").ranked(6).shrinking(),
    Head::new("user", "User", Unit::Text, 12, "its role").ranked(5).shrinking(),
    Head::new("time", "Time", Unit::Seconds, 7, "how long it has run its statement, or idled")
        .ranked(1),
    Head::new("state", "State", Unit::Text, 10, "what it does").ranked(2),
    Head::new("wait", "Waits for", Unit::Text, 22, "what it waits for").ranked(3),
    Head::new("application", "Application", Unit::Text, 14, "what its client calls itself")
        .shrinking(),
    Head::new("client", "Client", Unit::Text, 15, "where its client is").shrinking(),
    Head::new("transaction", "In tx", Unit::Seconds, 7, "how long its transaction has lasted"),
    Head::new("blocked_by", "Blocked by", Unit::Text, 10, "the processes whose locks it waits for"),
    Head::new("blocked", "Blocked", Unit::Seconds, 7, "how long it has waited for a lock"),
    Head::new(
        "xmin_age",
        "Xmin age",
        Unit::Count,
        8,
        "transactions whose dead rows stay because of it",
    ),
    Head::new("kind", "Kind", Unit::Text, 14, "the kind of process"),
    Head::new("query_id", "Query id", Unit::Text, 20, "the server's identifier of the statement")
        .shrinking(),
    Head::new("query", "Query", Unit::Text, 0, "its statement; of an idle session the last one"),
];

pub(super) fn table(snapshot: &Snapshot, choice: &Choice) -> Table {
    let backends = &snapshot.activity.backends;
    let mut helpers: HashMap<i32, Vec<usize>> = HashMap::new();
    let shown = |backend: &Backend| choice.with_idle || is_of_interest(backend);
    let mut leaders = Vec::new();
    for (at, backend) in backends.iter().enumerate().filter(|(_, backend)| shown(backend)) {
        match backend.leader.filter(|leader| *leader != backend.pid && has(backends, *leader)) {
            Some(leader) => helpers.entry(leader).or_default().push(at),
            None => leaders.push(at),
        }
    }
    let mut words = Words::default();
    let mut row = |at, depth| row(snapshot, at, depth, choice, &mut words);
    let mut rows = Vec::with_capacity(leaders.len());
    for at in leaders {
        rows.push(row(at, 0));
        let below = helpers.remove(&backends[at].pid).unwrap_or_default();
        rows.extend(below.into_iter().map(|at| row(at, 1)));
    }
    // Those whose leader is not shown.
    rows.extend(helpers.into_values().flatten().map(|at| row(at, 0)));
    let mut columns = COLUMNS.to_vec();
    if snapshot.pooled.is_some() {
        columns.insert(POOLED_AT, POOLED);
    }
    Table { columns, rows }
}

fn has(backends: &[Backend], pid: i32) -> bool {
    backends.binary_search_by_key(&pid, |backend| backend.pid).is_ok()
}

/// Whether it does something, or keeps others from doing something. A session that cannot be read is
/// shown: that nothing is known of it is worth knowing.
fn is_of_interest(backend: &Backend) -> bool {
    match backend.state {
        Some(State::Idle) => false,
        Some(_) => true,
        None => !backend.is_readable || backend.kind == Some(Kind::ParallelWorker),
    }
}

/// What to notice about a session.
pub(super) fn mark(backend: &Backend, now_us: i64, slow_seconds: Option<f64>) -> Mark {
    let runs = matches!(backend.state, Some(State::Active | State::FastPath));
    let lasted = backend.duration(now_us).unwrap_or(0.0);
    match backend.state {
        _ if runs && slow_seconds.is_some_and(|slow| lasted > slow) => Mark::Slow,
        _ if !backend.blockers.is_empty() => Mark::Waits,
        Some(state) if state.is_idle_in_transaction() => Mark::IdleInTransaction,
        Some(State::Idle) => Mark::Idle,
        _ => Mark::None,
    }
}

/// Words that many rows have, each made once: a table of ten thousand sessions has to be there before the next
/// picture.
#[derive(Default)]
struct Words<'a> {
    states: HashMap<State, Cell>,
    kinds: HashMap<&'a Kind, Cell>,
    waits: HashMap<&'a Wait, Cell>,
}

impl<'a> Words<'a> {
    fn state(&mut self, state: State) -> Cell {
        self.states.entry(state).or_insert_with(|| state.as_str().into()).clone()
    }

    fn kind(&mut self, kind: &'a Kind) -> Cell {
        self.kinds.entry(kind).or_insert_with(|| kind.as_str().into()).clone()
    }

    fn wait(&mut self, wait: &'a Wait) -> Cell {
        self.waits.entry(wait).or_insert_with(|| wait.to_string().as_str().into()).clone()
    }
}

fn row<'a>(
    snapshot: &'a Snapshot,
    at: usize,
    depth: usize,
    choice: &Choice,
    words: &mut Words<'a>,
) -> Row {
    let backend = &snapshot.activity.backends[at];
    let now_us = snapshot.activity.taken_us;
    // A role that may not look gets NULL for all of these.
    let readable = |cell: Cell| match cell {
        Cell::Null if !backend.is_readable => Cell::Unavailable,
        cell => cell,
    };
    let word = |word: &Option<std::sync::Arc<str>>| Cell::from(word.clone());
    let blocked_by =
        backend.blockers.iter().map(|blocker| name(*blocker)).collect::<Vec<_>>().join(" ");
    let mut cells = vec![
        i64::from(backend.pid).into(),
        word(&backend.database),
        readable(word(&backend.user)),
        readable(backend.duration(now_us).into()),
        readable(backend.state.map(|state| words.state(state)).into()),
        readable(backend.wait.as_ref().map(|wait| words.wait(wait)).into()),
        word(&backend.application),
        readable(word(&backend.client)),
        readable(backend.transaction_age(now_us).into()),
        (!blocked_by.is_empty()).then_some(blocked_by.as_str()).into(),
        match backend.blocked_for(now_us) {
            None if backend.blockers.is_empty() => Cell::Null,
            blocked => readable(blocked.into()),
        },
        backend.xmin_age.into(),
        readable(backend.kind.as_ref().map(|kind| words.kind(kind)).into()),
        backend.query_id.map(|id| id.to_string().as_str().into()).unwrap_or(Cell::Null),
        readable(backend.query.as_ref().map(SqlText::to_shared_line).into()),
    ];
    if let Some(pooled) = &snapshot.pooled {
        cells.insert(POOLED_AT, clients::behind(pooled, backend));
    }
    Row {
        cells,
        key: RowKey::Session(backend.pid, backend.started_us),
        mark: mark(backend, now_us, choice.slow_seconds),
        depth,
        backend: Some(at),
    }
}

/// What people call it.
pub(super) fn name(blocker: Blocker) -> String {
    match blocker {
        Blocker::Process(pid) => pid.to_string(),
        Blocker::Prepared => "prepared".to_owned(),
    }
}
