//! Sessions as rows, with parallel workers below their leader.

use std::collections::{HashMap, HashSet};

use howdah_collect::{
    BackendActivity, BackendState, BackendType, BackendWait, Blocker, ColumnUnit, ViewCell,
};

use super::{
    RowId, RowMark, ScreenTable, TableColumn, TableOptions, TableRow, TimeMeasure, clients,
};
use crate::{ServerSnapshot, host::ProcessFigures};

/// The column with the pooler's client of a session.
pub(super) const POOLED: TableColumn = TableColumn::new(
    "pooled",
    "Pooler's client",
    ColumnUnit::Text,
    30,
    "its client, according to the pooler",
)
.ranked(5)
.shrinking();

/// Index at which [`POOLED`] is inserted into [`COLUMNS`]: after the time column.
const POOLED_COLUMN: usize = 4;

/// Columns with figures of a session's process, if the server runs on this host. Rates are since
/// the previous sample.
const PROCESS_COLUMNS: [TableColumn; 4] = [
    TableColumn::new(
        "cpu",
        "CPU",
        ColumnUnit::Percent,
        6,
        "processor time of its process, in percent of one processor",
    )
    .ranked(5),
    TableColumn::new("read", "Read/s", ColumnUnit::Bytes, 7, "bytes that it reads from disks")
        .ranked(6),
    TableColumn::new("write", "Write/s", ColumnUnit::Bytes, 8, "bytes that it writes to disks")
        .ranked(6),
    TableColumn::new(
        "memory",
        "Memory",
        ColumnUnit::Bytes,
        7,
        "memory that its process does not share with others",
    )
    .ranked(7),
];

/// Index at which [`PROCESS_COLUMNS`] are inserted into [`COLUMNS`]: after the wait event.
const PROCESS_COLUMN: usize = 6;

/// Columns of the activity screen.
const COLUMNS: [TableColumn; 15] = [
    TableColumn {
        is_key: true,
        ..TableColumn::new("pid", "Pid", ColumnUnit::Count, 7, "the process").ranked(0)
    },
    TableColumn::new("database", "Database", ColumnUnit::Text, 12, "its database")
        .ranked(9)
        .shrinking(),
    TableColumn::new("user", "User", ColumnUnit::Text, 12, "its role").ranked(4).shrinking(),
    TableColumn::new(
        "time",
        "Time",
        ColumnUnit::Seconds,
        7,
        "how long it has run its statement, or idled; or its transaction has lasted, or the session",
    )
    .ranked(1),
    TableColumn::new("state", "State", ColumnUnit::Text, 10, "its state").ranked(2),
    TableColumn::new("wait", "Waits for", ColumnUnit::Text, 20, "its wait event").ranked(3),
    TableColumn::new("application", "Application", ColumnUnit::Text, 14, "its application_name")
        .shrinking(),
    TableColumn::new("client", "Client", ColumnUnit::Text, 15, "its client's address").shrinking(),
    TableColumn::new(
        "transaction",
        "In tx",
        ColumnUnit::Seconds,
        7,
        "how long its transaction has lasted",
    ),
    TableColumn::new(
        "blocked_by",
        "Blocked by",
        ColumnUnit::Text,
        10,
        "the processes whose locks it waits for",
    ),
    TableColumn::new(
        "blocked",
        "Blocked",
        ColumnUnit::Seconds,
        7,
        "how long it has waited for a lock",
    ),
    TableColumn::new(
        "xmin_age",
        "Xmin age",
        ColumnUnit::Count,
        8,
        "transactions whose dead rows it holds",
    ),
    TableColumn::new("kind", "Kind", ColumnUnit::Text, 14, "the backend type"),
    TableColumn::new(
        "query_id",
        "Query id",
        ColumnUnit::Text,
        20,
        "the server's identifier of the statement",
    )
    .shrinking(),
    TableColumn::new(
        "query",
        "Query",
        ColumnUnit::Text,
        0,
        "its statement; for an idle session its last one",
    ),
];

pub(super) fn table(snapshot: &ServerSnapshot, options: &TableOptions) -> ScreenTable {
    let backends = &snapshot.activity.backends;
    let mut helpers: HashMap<i32, Vec<usize>> = HashMap::new();
    let shown = |backend: &BackendActivity| options.with_idle || is_of_interest(backend);
    let mut leaders = Vec::new();
    for (at, backend) in backends.iter().enumerate().filter(|(_, backend)| shown(backend)) {
        match backend
            .leader
            .filter(|leader| *leader != backend.pid && contains_pid(backends, *leader))
        {
            Some(leader) => helpers.entry(leader).or_default().push(at),
            None => leaders.push(at),
        }
    }
    let blocking = blocking_pids(backends);
    let mut shared_cells = SharedCells { blocking, ..SharedCells::default() };
    let mut row = |at, depth| row(snapshot, at, depth, options, &mut shared_cells);
    let mut rows = Vec::with_capacity(leaders.len());
    for at in leaders {
        rows.push(row(at, 0));
        let below = helpers.remove(&backends[at].pid).unwrap_or_default();
        rows.extend(below.into_iter().map(|at| row(at, 1)));
    }
    // Workers whose leader is not displayed.
    rows.extend(helpers.into_values().flatten().map(|at| row(at, 0)));
    let mut columns = columns(snapshot.processes.is_some(), snapshot.pooled_clients.is_some());
    let time = columns.iter_mut().find(|column| column.name == "time");
    time.into_iter().for_each(|column| column.title = options.time.title());
    ScreenTable { columns, rows }
}

/// Returns the columns, with those of local processes and of poolers if there are any.
pub(super) fn columns(has_processes: bool, has_poolers: bool) -> Vec<TableColumn> {
    let mut columns = COLUMNS.to_vec();
    if has_processes {
        columns.splice(PROCESS_COLUMN..PROCESS_COLUMN, PROCESS_COLUMNS);
    }
    if has_poolers {
        columns.insert(POOLED_COLUMN, POOLED);
    }
    columns
}

fn contains_pid(backends: &[BackendActivity], pid: i32) -> bool {
    backends.binary_search_by_key(&pid, |backend| backend.pid).is_ok()
}

/// Whether a session is active or may hold resources. Hidden sessions are included, to show that
/// there is something the role cannot see.
fn is_of_interest(backend: &BackendActivity) -> bool {
    match backend.state {
        Some(BackendState::Idle) => false,
        Some(_) => true,
        None => !backend.is_readable || backend.kind == Some(BackendType::ParallelWorker),
    }
}

/// Process ids of the sessions that others wait for.
pub(super) fn blocking_pids(backends: &[BackendActivity]) -> HashSet<i32> {
    let blockers = backends.iter().flat_map(|backend| &backend.blockers);
    let pid = |blocker: &Blocker| match blocker {
        Blocker::Process(pid) => Some(*pid),
        Blocker::Prepared => None,
    };
    blockers.filter_map(pid).collect()
}

/// Returns the mark for a session's state; the most urgent one if several apply.
pub(super) fn mark(
    backend: &BackendActivity,
    now_us: i64,
    slow_seconds: Option<f64>,
    is_blocking: bool,
) -> RowMark {
    let runs = matches!(backend.state, Some(BackendState::Active | BackendState::FastPath));
    let lasted = backend.duration(now_us).unwrap_or(0.0);
    match backend.state {
        _ if runs && slow_seconds.is_some_and(|slow| lasted > slow) => RowMark::Slow,
        _ if !backend.blockers.is_empty() => RowMark::Waiting,
        _ if is_blocking => RowMark::Blocking,
        Some(state) if state.is_idle_in_transaction() => RowMark::IdleInTransaction,
        Some(BackendState::Idle) => RowMark::Idle,
        _ => RowMark::None,
    }
}

/// Cells shared by many rows, each created once, because building ten thousand rows must not delay
/// a redraw, and the sessions that block others.
#[derive(Default)]
struct SharedCells<'a> {
    states: HashMap<BackendState, ViewCell>,
    kinds: HashMap<&'a BackendType, ViewCell>,
    waits: HashMap<&'a BackendWait, ViewCell>,
    blocking: HashSet<i32>,
}

impl<'a> SharedCells<'a> {
    fn state(&mut self, state: BackendState) -> ViewCell {
        self.states.entry(state).or_insert_with(|| state.as_str().into()).clone()
    }

    fn kind(&mut self, kind: &'a BackendType) -> ViewCell {
        self.kinds.entry(kind).or_insert_with(|| kind.as_str().into()).clone()
    }

    fn wait(&mut self, wait: &'a BackendWait) -> ViewCell {
        self.waits.entry(wait).or_insert_with(|| wait.to_string().as_str().into()).clone()
    }
}

fn row<'a>(
    snapshot: &'a ServerSnapshot,
    at: usize,
    depth: usize,
    options: &TableOptions,
    shared_cells: &mut SharedCells<'a>,
) -> TableRow {
    let backend = &snapshot.activity.backends[at];
    let now_us = snapshot.activity.taken_us;
    // A role without the privilege gets NULL for all of these.
    let readable = |cell: ViewCell| match cell {
        ViewCell::Null if !backend.is_readable => ViewCell::Unavailable,
        cell => cell,
    };
    let word = |word: &Option<std::sync::Arc<str>>| ViewCell::from(word.clone());
    let blocked_by =
        backend.blockers.iter().map(|blocker| blocker_name(*blocker)).collect::<Vec<_>>().join(" ");
    let mut cells = vec![
        i64::from(backend.pid).into(),
        word(&backend.database),
        readable(word(&backend.user)),
        readable(time(backend, options.time, now_us).into()),
        readable(backend.state.map(|state| shared_cells.state(state)).into()),
        readable(backend.wait.as_ref().map(|wait| shared_cells.wait(wait)).into()),
        word(&backend.application),
        readable(word(&backend.client)),
        readable(backend.transaction_age(now_us).into()),
        (!blocked_by.is_empty()).then_some(blocked_by.as_str()).into(),
        match backend.blocked_for(now_us) {
            None if backend.blockers.is_empty() => ViewCell::Null,
            blocked => readable(blocked.into()),
        },
        backend.xmin_age.into(),
        readable(backend.kind.as_ref().map(|kind| shared_cells.kind(kind)).into()),
        backend.query_id.map(|id| id.to_string().as_str().into()).unwrap_or(ViewCell::Null),
        readable(backend.query.as_ref().map(|query| options.statement(query)).into()),
    ];
    if let Some(processes) = &snapshot.processes {
        cells.splice(PROCESS_COLUMN..PROCESS_COLUMN, process_cells(processes.get(&backend.pid)));
    }
    if let Some(pooled) = &snapshot.pooled_clients {
        cells.insert(POOLED_COLUMN, clients::client_cell(pooled, backend));
    }
    TableRow {
        cells,
        key: RowId::Session(backend.pid, backend.started_us),
        mark: mark(
            backend,
            now_us,
            options.slow_seconds,
            shared_cells.blocking.contains(&backend.pid),
        ),
        depth,
        backend: Some(at),
    }
}

/// Returns what the time column measures, in seconds.
fn time(backend: &BackendActivity, measure: TimeMeasure, now_us: i64) -> Option<f64> {
    match measure {
        TimeMeasure::Statement => backend.duration(now_us),
        TimeMeasure::Transaction => backend.transaction_age(now_us),
        #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
        TimeMeasure::Session => {
            (backend.started_us > 0).then(|| (now_us - backend.started_us).max(0) as f64 / 1e6)
        }
    }
}

/// Returns the cells of [`PROCESS_COLUMNS`].
fn process_cells(figures: Option<&ProcessFigures>) -> [ViewCell; PROCESS_COLUMNS.len()] {
    let Some(figures) = figures else { return [const { ViewCell::Null }; PROCESS_COLUMNS.len()] };
    [
        figures.cpu_percent.into(),
        figures.read_bytes.into(),
        figures.write_bytes.into(),
        figures.memory_bytes.into(),
    ]
}

/// Returns the process id of a blocker, or `prepared` for a prepared transaction.
pub(super) fn blocker_name(blocker: Blocker) -> String {
    match blocker {
        Blocker::Process(pid) => pid.to_string(),
        Blocker::Prepared => "prepared".to_owned(),
    }
}
