//! Lock wait trees as rows.

use howdah_collect::{BackendState, BlockingNode, BlockingTrees, ColumnUnit, ViewCell};

use super::{RowId, RowMark, ScreenTable, TableColumn, TableOptions, TableRow, activity, clients};
use crate::ServerSnapshot;

/// Index at which the column of the pooler's client is inserted, if there are poolers.
const POOLED_COLUMN: usize = 3;

const COLUMNS: [TableColumn; 11] = [
    TableColumn {
        is_key: true,
        ..TableColumn::new("pid", "Pid", ColumnUnit::Text, 16, "the process, below its blocker")
            .ranked(0)
            .shrinking()
    },
    TableColumn::new(
        "victims",
        "Victims",
        ColumnUnit::Count,
        7,
        "how many wait for it, directly or not",
    )
    .ranked(3),
    TableColumn::new("blocked", "Blocked", ColumnUnit::Seconds, 7, "how long it has waited")
        .ranked(1),
    TableColumn::new("wait", "Waits for", ColumnUnit::Text, 20, "its wait event").ranked(2),
    TableColumn::new("state", "State", ColumnUnit::Text, 10, "its state").ranked(4),
    TableColumn::new("time", "Time", ColumnUnit::Seconds, 7, "how long it has been in that state"),
    TableColumn::new("database", "Database", ColumnUnit::Text, 12, "its database").shrinking(),
    TableColumn::new("user", "User", ColumnUnit::Text, 12, "its role").shrinking(),
    TableColumn::new("application", "Application", ColumnUnit::Text, 14, "its application_name")
        .shrinking(),
    TableColumn::new("also", "Also", ColumnUnit::Text, 10, "its other blockers"),
    TableColumn::new("query", "Query", ColumnUnit::Text, 0, "its statement, or its last one"),
];

pub(super) fn table(snapshot: &ServerSnapshot, options: &TableOptions) -> ScreenTable {
    let trees = BlockingTrees::from_activity(&snapshot.activity);
    let rows = trees.nodes.iter().map(|node| row(snapshot, node, options)).collect();
    ScreenTable { columns: columns(snapshot.pooled_clients.is_some()), rows }
}

/// Returns the columns, with that of poolers if there are any.
pub(super) fn columns(has_poolers: bool) -> Vec<TableColumn> {
    let mut columns = COLUMNS.to_vec();
    if has_poolers {
        columns.insert(POOLED_COLUMN, activity::POOLED);
    }
    columns
}

fn row(snapshot: &ServerSnapshot, node: &BlockingNode, options: &TableOptions) -> TableRow {
    let now_us = snapshot.activity.taken_us;
    let backend = node.backend.map(|at| &snapshot.activity.backends[at]);
    let name = activity::blocker_name(node.process);
    let cycle = if node.is_in_cycle { " (cycle)" } else { "" };
    let also: Vec<_> =
        node.other_blockers.iter().map(|blocker| activity::blocker_name(*blocker)).collect();
    let of = |cell: fn(&howdah_collect::BackendActivity, i64) -> ViewCell| {
        backend.map_or(ViewCell::Null, |backend| cell(backend, now_us))
    };
    // An unprivileged role sees the relations between blockers and waiters, but not their activity.
    let is_hidden = backend.is_some_and(|backend| !backend.is_readable);
    let readable = |cell: ViewCell| match cell {
        ViewCell::Null if is_hidden => ViewCell::Unavailable,
        cell => cell,
    };
    let mut cells = vec![
        format!("{name}{cycle}").as_str().into(),
        i64::try_from(node.victims).unwrap_or(i64::MAX).into(),
        match of(|backend, now_us| backend.blocked_for(now_us).into()) {
            // The root of a tree waits for nothing.
            cell if node.depth == 0 && !node.is_in_cycle => cell,
            cell => readable(cell),
        },
        readable(of(|backend, _| {
            backend.wait.as_ref().map_or(ViewCell::Null, |wait| wait.to_string().as_str().into())
        })),
        readable(of(|backend, _| backend.state.map(BackendState::as_str).into())),
        readable(of(|backend, now_us| backend.duration(now_us).into())),
        of(|backend, _| backend.database.clone().into()),
        of(|backend, _| backend.user.clone().into()),
        of(|backend, _| backend.application.clone().into()),
        (!also.is_empty()).then(|| also.join(" ")).as_deref().into(),
        readable(
            backend
                .and_then(|backend| backend.query.as_ref())
                .map(|query| options.statement(query))
                .into(),
        ),
    ];
    if let Some(pooled) = &snapshot.pooled_clients {
        cells.insert(
            POOLED_COLUMN,
            backend.map_or(ViewCell::Null, |backend| clients::client_cell(pooled, backend)),
        );
    }
    let mark = match backend {
        _ if node.depth == 0 => RowMark::Blocking,
        Some(backend) => activity::mark(backend, now_us, options.slow_seconds, false),
        None => RowMark::Waiting,
    };
    TableRow {
        cells,
        key: backend.map_or_else(
            || RowId::Cells(vec![name]),
            |backend| RowId::Session(backend.pid, backend.started_us),
        ),
        mark,
        depth: node.depth,
        backend: node.backend,
    }
}
