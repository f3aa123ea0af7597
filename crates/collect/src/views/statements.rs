//! Statements by shape: `pg_stat_statements`, where it is installed in the connection's database.

use crate::{
    Column,
    Unit::{Bytes, Count, Milliseconds, Text},
    View,
};

pub(super) const STATEMENTS: View = View {
    name: "statements",
    help: "What each shape of statement costs per second; needs pg_stat_statements in the connected database.",
    columns: &[
        Column::key(
            "query_id",
            "Query id",
            &[(9, "s.queryid::text")],
            "the server's identifier of the shape",
        ),
        Column::key("database", "Database", &[(9, "d.datname")], "where it ran"),
        Column::key("user", "User", &[(9, "r.rolname")], "who ran it"),
        Column::key(
            "level",
            "Level",
            &[(9, "'top'"), (14, "CASE WHEN s.toplevel THEN 'top' ELSE 'nested' END")],
            "top, or nested in a function",
        ),
        Column::counter("calls", "Calls/s", Count, &[(9, "s.calls")], "times it ran"),
        Column::counter(
            "total_ms",
            "Time ms/s",
            Milliseconds,
            &[(9, "s.total_time"), (13, "s.total_exec_time")],
            "time it ran; 1000 is one process all the time",
        ),
        Column::counter(
            "plan_ms",
            "Plan ms/s",
            Milliseconds,
            &[(9, ""), (13, "s.total_plan_time")],
            "time it was planned; needs track_planning",
        ),
        Column::gauge(
            "mean_ms",
            "Mean ms",
            Milliseconds,
            &[
                (9, "CASE WHEN s.calls > 0 THEN s.total_time / s.calls END"),
                (13, "CASE WHEN s.calls > 0 THEN s.total_exec_time / s.calls END"),
            ],
            "mean time of a run since the reset",
        ),
        Column::counter("rows", "Rows/s", Count, &[(9, "s.rows")], "rows returned or changed"),
        Column::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "s.shared_blks_hit")],
            "pages found in the buffer cache",
        ),
        Column::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(9, "s.shared_blks_read")],
            "pages asked of the operating system",
        ),
        Column::counter(
            "blocks_dirtied",
            "Dirty/s",
            Count,
            &[(9, "s.shared_blks_dirtied")],
            "pages made dirty",
        ),
        Column::counter(
            "temp_blocks",
            "Temp/s",
            Count,
            &[(9, "s.temp_blks_read + s.temp_blks_written")],
            "pages of temporary files read and written",
        ),
        Column::counter(
            "wal_bytes",
            "WAL B/s",
            Bytes,
            &[(9, ""), (13, "s.wal_bytes")],
            "bytes of log it made",
        ),
        Column::gauge(
            "query",
            "Query",
            Text,
            &[(9, "left(s.query, 2000)")],
            "the text of one run, with placeholders",
        ),
    ],
    from: &[(
        9,
        "pg_stat_statements s LEFT JOIN pg_database d ON d.oid = s.dbid LEFT JOIN pg_roles r ON r.oid = s.userid",
    )],
    order: "total_ms",
    essentials: &[
        "total_ms",
        "calls",
        "mean_ms",
        "rows",
        "user",
        "blocks_read",
        "database",
        "temp_blocks",
    ],
    is_of_database: true,
    extension: Some("pg_stat_statements"),
};
