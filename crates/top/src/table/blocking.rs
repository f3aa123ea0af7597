//! Who waits for whom, as a tree.

use howdah_collect::{BlockingTrees, Cell, Node, SqlText, State, Unit};

use super::{Choice, Head, Mark, Row, RowKey, Table, activity, clients};
use crate::Snapshot;

/// The place of the pooler's client, where there are poolers.
const POOLED_AT: usize = 3;

const COLUMNS: [Head; 11] = [
    Head {
        is_key: true,
        ..Head::new("pid", "Pid", Unit::Text, 16, "the process, under what it waits for")
    },
    Head::new("victims", "Victims", Unit::Count, 7, "how many wait for it, directly or not"),
    Head::new("blocked", "Blocked", Unit::Seconds, 7, "how long it has waited"),
    Head::new("wait", "Waits for", Unit::Text, 22, "what it waits for"),
    Head::new("state", "State", Unit::Text, 10, "what it does"),
    Head::new("time", "Time", Unit::Seconds, 7, "for how long"),
    Head::new("database", "Database", Unit::Text, 12, "its database").shrinking(),
    Head::new("user", "User", Unit::Text, 12, "its role").shrinking(),
    Head::new("application", "Application", Unit::Text, 14, "what its client calls itself")
        .shrinking(),
    Head::new("also", "Also", Unit::Text, 10, "processes it waits for beside the one above it"),
    Head::new("query", "Query", Unit::Text, 0, "its statement, or its last one"),
];

pub(super) fn table(snapshot: &Snapshot, choice: &Choice) -> Table {
    let forest = BlockingTrees::of(&snapshot.activity);
    let rows = forest.nodes.iter().map(|node| row(snapshot, node, choice)).collect();
    let mut columns = COLUMNS.to_vec();
    if snapshot.pooled.is_some() {
        columns.insert(POOLED_AT, activity::POOLED);
    }
    Table { columns, rows }
}

fn row(snapshot: &Snapshot, node: &Node, choice: &Choice) -> Row {
    let now_us = snapshot.activity.taken_us;
    let backend = node.backend.map(|at| &snapshot.activity.backends[at]);
    let name = activity::name(node.who);
    let ring = if node.is_in_ring { " (ring)" } else { "" };
    let also: Vec<_> = node.also.iter().map(|blocker| activity::name(*blocker)).collect();
    let of = |cell: fn(&howdah_collect::Backend, i64) -> Cell| {
        backend.map_or(Cell::Null, |backend| cell(backend, now_us))
    };
    // A role without grants sees who waits for whom, and not what they do.
    let is_hidden = backend.is_some_and(|backend| !backend.is_readable);
    let readable = |cell: Cell| match cell {
        Cell::Null if is_hidden => Cell::Unavailable,
        cell => cell,
    };
    let mut cells = vec![
        format!("{name}{ring}").as_str().into(),
        i64::try_from(node.victims).unwrap_or(i64::MAX).into(),
        match of(|backend, now_us| backend.blocked_for(now_us).into()) {
            // The root of a tree waits for nothing.
            cell if node.depth == 0 && !node.is_in_ring => cell,
            cell => readable(cell),
        },
        readable(of(|backend, _| {
            backend.wait.as_ref().map_or(Cell::Null, |wait| wait.to_string().as_str().into())
        })),
        readable(of(|backend, _| backend.state.map(State::as_str).into())),
        readable(of(|backend, now_us| backend.duration(now_us).into())),
        of(|backend, _| backend.database.clone().into()),
        of(|backend, _| backend.user.clone().into()),
        of(|backend, _| backend.application.clone().into()),
        (!also.is_empty()).then(|| also.join(" ")).as_deref().into(),
        readable(of(|backend, _| backend.query.as_ref().map(SqlText::to_shared_line).into())),
    ];
    if let Some(pooled) = &snapshot.pooled {
        cells.insert(
            POOLED_AT,
            backend.map_or(Cell::Null, |backend| clients::behind(pooled, backend)),
        );
    }
    let mark = match backend {
        _ if node.depth == 0 => Mark::Blocks,
        Some(backend) => activity::mark(backend, now_us, choice.slow_seconds),
        None => Mark::Waits,
    };
    Row {
        cells,
        key: backend.map_or_else(
            || RowKey::Cells(vec![name]),
            |backend| RowKey::Session(backend.pid, backend.started_us),
        ),
        mark,
        depth: node.depth,
        backend: node.backend,
    }
}
