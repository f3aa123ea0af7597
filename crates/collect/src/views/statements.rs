//! Normalized statements: `pg_stat_statements`, where it is installed in the connected database.

use crate::{
    ColumnUnit::{Bytes, Count, Milliseconds, Text},
    StatsView, ViewColumn,
};

pub(super) const STATEMENTS: StatsView = StatsView {
    name: "statements",
    help: "Cost of each normalized statement per second; needs pg_stat_statements in the connected database.",
    columns: &[
        ViewColumn::key(
            "query_id",
            "Query id",
            &[(9, "s.queryid::text")],
            "the server's query identifier",
        ),
        ViewColumn::key("database", "Database", &[(9, "d.datname")], "database it ran in"),
        ViewColumn::key("user", "User", &[(9, "r.rolname")], "role that ran it"),
        ViewColumn::key(
            "level",
            "Level",
            &[(9, "'top'"), (14, "CASE WHEN s.toplevel THEN 'top' ELSE 'nested' END")],
            "top, or nested in a function",
        ),
        ViewColumn::counter("calls", "Calls/s", Count, &[(9, "s.calls")], "executions"),
        ViewColumn::counter(
            "total_ms",
            "Time ms/s",
            Milliseconds,
            &[(9, "s.total_time"), (13, "s.total_exec_time")],
            "execution time; 1000 is one process all the time",
        ),
        ViewColumn::counter(
            "plan_ms",
            "Plan ms/s",
            Milliseconds,
            &[(9, ""), (13, "s.total_plan_time")],
            "planning time; needs track_planning",
        ),
        ViewColumn::gauge(
            "mean_ms",
            "Mean ms",
            Milliseconds,
            &[
                (9, "CASE WHEN s.calls > 0 THEN s.total_time / s.calls END"),
                (13, "CASE WHEN s.calls > 0 THEN s.total_exec_time / s.calls END"),
            ],
            "mean execution time since the reset",
        ),
        ViewColumn::counter("rows", "Rows/s", Count, &[(9, "s.rows")], "rows returned or changed"),
        ViewColumn::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "s.shared_blks_hit")],
            "pages found in the buffer cache",
        ),
        ViewColumn::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(9, "s.shared_blks_read")],
            "pages requested from the operating system",
        ),
        ViewColumn::counter(
            "blocks_dirtied",
            "Dirty/s",
            Count,
            &[(9, "s.shared_blks_dirtied")],
            "pages dirtied",
        ),
        ViewColumn::counter(
            "temp_blocks",
            "Temp/s",
            Count,
            &[(9, "s.temp_blks_read + s.temp_blks_written")],
            "pages of temporary files read and written",
        ),
        ViewColumn::counter(
            "wal_bytes",
            "WAL B/s",
            Bytes,
            &[(9, ""), (13, "s.wal_bytes")],
            "bytes of WAL it generated",
        ),
        ViewColumn::gauge(
            "query",
            "Query",
            Text,
            &[(9, "left(s.query, 2000)")],
            "the text, with placeholders for constants",
        ),
    ],
    from: &[(
        9,
        "pg_stat_statements s LEFT JOIN pg_database d ON d.oid = s.dbid LEFT JOIN pg_roles r ON r.oid = s.userid \
         WHERE coalesce(s.query, '') NOT LIKE '%/* howdah */'",
    )],
    order: "total_ms",
    essential_columns: &[
        "total_ms",
        "calls",
        "mean_ms",
        "rows",
        "user",
        "blocks_read",
        "database",
        "temp_blocks",
    ],
    is_per_database: true,
    extension: Some("pg_stat_statements"),
};
