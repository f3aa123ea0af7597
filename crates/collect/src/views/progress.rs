//! Progress of long maintenance commands: the `pg_stat_progress` views.

use crate::{
    ColumnUnit::{Count, Percent, Seconds, Text},
    StatsView, ViewColumn,
};

/// SQL for one command's branch of the `UNION ALL`.
macro_rules! part {
    ($view:literal, $command:literal, $relation:literal, $phase:literal, $done:literal, $total:literal) => {
        concat!(
            " UNION ALL SELECT p.pid, ",
            $command,
            ", p.datid, (",
            $relation,
            ")::oid, (",
            $phase,
            ")::text, (",
            $done,
            ")::int8, (",
            $total,
            ")::int8 FROM ",
            $view,
            " p"
        )
    };
}

macro_rules! union {
    ($($part:expr),* $(,)?) => {
        concat!(
            "(SELECT NULL::int4 AS pid, NULL::text AS command, NULL::oid AS datid, NULL::oid AS relid, ",
            "NULL::text AS phase, NULL::int8 AS done, NULL::int8 AS total WHERE false",
            $($part,)*
            ") p LEFT JOIN pg_stat_activity a ON a.pid = p.pid LEFT JOIN pg_database d ON d.oid = p.datid"
        )
    };
}

macro_rules! vacuum {
    () => {
        part!(
            "pg_stat_progress_vacuum", "'vacuum'", "p.relid", "p.phase",
            "CASE WHEN p.phase = 'vacuuming heap' THEN p.heap_blks_vacuumed ELSE p.heap_blks_scanned END",
            "p.heap_blks_total"
        )
    };
}

macro_rules! since_12 {
    () => {
        concat!(
            part!(
                "pg_stat_progress_create_index", "lower(p.command)", "p.relid", "p.phase",
                "CASE WHEN p.tuples_total > 0 THEN p.tuples_done WHEN p.blocks_total > 0 THEN p.blocks_done ELSE p.lockers_done END",
                "CASE WHEN p.tuples_total > 0 THEN p.tuples_total WHEN p.blocks_total > 0 THEN p.blocks_total ELSE p.lockers_total END"
            ),
            part!(
                "pg_stat_progress_cluster", "lower(p.command)", "p.relid", "p.phase",
                "p.heap_blks_scanned", "p.heap_blks_total"
            )
        )
    };
}

macro_rules! since_13 {
    () => {
        concat!(
            part!(
                "pg_stat_progress_analyze", "'analyze'", "p.relid", "p.phase",
                "p.sample_blks_scanned", "p.sample_blks_total"
            ),
            " UNION ALL SELECT p.pid, 'base backup', NULL, NULL, p.phase, p.backup_streamed, p.backup_total \
             FROM pg_stat_progress_basebackup p"
        )
    };
}

macro_rules! since_14 {
    () => {
        part!(
            "pg_stat_progress_copy",
            "lower(p.command)",
            "p.relid",
            "p.type",
            "p.bytes_processed",
            "nullif(p.bytes_total, 0)"
        )
    };
}

pub(crate) const PROGRESS: StatsView = StatsView {
    name: "progress",
    help: "Progress of VACUUM, ANALYZE, index builds, table rewrites, COPY and base backups.",
    columns: &[
        ViewColumn::key("pid", "Pid", &[(9, "p.pid::text")], "the process"),
        ViewColumn::key("command", "Command", &[(9, "p.command")], "the command"),
        ViewColumn::gauge("database", "Database", Text, &[(9, "d.datname")], "its database"),
        ViewColumn::gauge(
            "relation",
            "Relation",
            Text,
            &[(
                9,
                "CASE WHEN d.datname = current_database() THEN p.relid::regclass::text ELSE p.relid::text END",
            )],
            "the relation; an oid if it is in another database",
        ),
        ViewColumn::gauge("phase", "Phase", Text, &[(9, "p.phase")], "the current phase"),
        ViewColumn::gauge(
            "percent",
            "Done",
            Percent,
            &[(9, "CASE WHEN p.total > 0 THEN least(100, 100.0 * p.done / p.total) END")],
            "completed share of the phase",
        ),
        ViewColumn::gauge("done", "Of", Count, &[(9, "p.done")], "blocks, rows or bytes done"),
        ViewColumn::gauge(
            "total",
            "Total",
            Count,
            &[(9, "p.total")],
            "blocks, rows or bytes in total",
        ),
        ViewColumn::gauge(
            "lasted",
            "Lasted",
            Seconds,
            &[(9, "date_part('epoch', clock_timestamp() - a.query_start)")],
            "how long it has run",
        ),
        ViewColumn::gauge("user", "User", Text, &[(9, "a.usename")], "its role"),
        ViewColumn::gauge(
            "wait",
            "Waits for",
            Text,
            &[(9, "a.wait_event_type || ':' || a.wait_event")],
            "what it waits for",
        ),
    ],
    from: &[
        (9, union!(vacuum!())),
        (12, union!(vacuum!(), since_12!())),
        (13, union!(vacuum!(), since_12!(), since_13!())),
        (14, union!(vacuum!(), since_12!(), since_13!(), since_14!())),
    ],
    order: "lasted",
    essential_columns: &["pid", "command", "percent", "lasted", "relation", "phase"],
    is_per_database: false,
    extension: None,
};
