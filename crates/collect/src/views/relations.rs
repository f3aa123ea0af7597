//! Tables and indexes of the connected database: `pg_stat_user_tables`, `pg_stat_user_indexes` and
//! the `pg_statio` views.
//!
//! Sizes are `relpages` as of the last VACUUM or ANALYZE: reading the actual size would lock each
//! relation and wait for conflicting locks.

use crate::{
    ColumnUnit::{Bytes, Count, Seconds, Text},
    StatsView, ViewColumn,
};

const PAGES: &str = "c.relpages::int8 * current_setting('block_size')::int8";

pub(super) const TABLES: StatsView = StatsView {
    name: "tables",
    help: "Activity of each table in the connected database per second.",
    columns: &[
        ViewColumn::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        ViewColumn::key("table", "Table", &[(9, "s.relname")], "its name"),
        ViewColumn::gauge(
            "size",
            "Size",
            Bytes,
            &[(9, PAGES)],
            "size of its main fork when last vacuumed or analyzed",
        ),
        ViewColumn::counter(
            "seq_scans",
            "Seq/s",
            Count,
            &[(9, "s.seq_scan")],
            "sequential scans started",
        ),
        ViewColumn::counter(
            "seq_rows",
            "SeqRows/s",
            Count,
            &[(9, "s.seq_tup_read")],
            "rows read by them",
        ),
        ViewColumn::counter(
            "index_scans",
            "Idx/s",
            Count,
            &[(9, "s.idx_scan")],
            "index scans started",
        ),
        ViewColumn::counter(
            "index_rows",
            "IdxRows/s",
            Count,
            &[(9, "s.idx_tup_fetch")],
            "rows fetched by them",
        ),
        ViewColumn::counter("inserted", "Ins/s", Count, &[(9, "s.n_tup_ins")], "rows inserted"),
        ViewColumn::counter("updated", "Upd/s", Count, &[(9, "s.n_tup_upd")], "rows updated"),
        ViewColumn::counter(
            "hot_updated",
            "Hot/s",
            Count,
            &[(9, "s.n_tup_hot_upd")],
            "HOT updates, which add no index entries",
        ),
        ViewColumn::counter("deleted", "Del/s", Count, &[(9, "s.n_tup_del")], "rows deleted"),
        ViewColumn::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "i.heap_blks_hit + coalesce(i.idx_blks_hit, 0) + coalesce(i.toast_blks_hit, 0)")],
            "pages found in the buffer cache, indexes and TOAST too",
        ),
        ViewColumn::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(
                9,
                "i.heap_blks_read + coalesce(i.idx_blks_read, 0) + coalesce(i.toast_blks_read, 0)",
            )],
            "pages requested from the operating system",
        ),
        ViewColumn::gauge("live", "Live", Count, &[(9, "s.n_live_tup")], "rows, estimated"),
        ViewColumn::gauge("dead", "Dead", Count, &[(9, "s.n_dead_tup")], "dead rows, estimated"),
        ViewColumn::gauge(
            "vacuum_age",
            "Vacuum",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))",
            )],
            "time since the last vacuum",
        ),
        ViewColumn::gauge(
            "analyze_age",
            "Analyze",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_analyze, s.last_autoanalyze))",
            )],
            "time since the last analyze",
        ),
    ],
    from: &[(
        9,
        "pg_stat_user_tables s JOIN pg_statio_user_tables i USING (relid) JOIN pg_class c ON c.oid = s.relid",
    )],
    order: "seq_rows",
    essential_columns: &[],
    is_per_database: true,
    extension: None,
};

pub(super) const INDEXES: StatsView = StatsView {
    name: "indexes",
    help: "Activity of each index in the connected database per second.",
    columns: &[
        ViewColumn::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        ViewColumn::key("table", "Table", &[(9, "s.relname")], "its table"),
        ViewColumn::key("index", "Index", &[(9, "s.indexrelname")], "its name"),
        ViewColumn::gauge(
            "size",
            "Size",
            Bytes,
            &[(9, PAGES)],
            "size when last vacuumed or analyzed",
        ),
        ViewColumn::counter("scans", "Scan/s", Count, &[(9, "s.idx_scan")], "scans started"),
        ViewColumn::counter(
            "entries",
            "Entries/s",
            Count,
            &[(9, "s.idx_tup_read")],
            "index entries returned by scans",
        ),
        ViewColumn::counter(
            "rows",
            "Rows/s",
            Count,
            &[(9, "s.idx_tup_fetch")],
            "live rows fetched by plain index scans",
        ),
        ViewColumn::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "i.idx_blks_hit")],
            "pages found in the buffer cache",
        ),
        ViewColumn::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(9, "i.idx_blks_read")],
            "pages requested from the operating system",
        ),
        ViewColumn::gauge(
            "scans_total",
            "Scans",
            Count,
            &[(9, "s.idx_scan")],
            "scans since the statistics were reset",
        ),
        ViewColumn::gauge(
            "is",
            "Is",
            Text,
            &[(
                9,
                "concat_ws(' ', CASE WHEN x.indisprimary THEN 'primary' WHEN x.indisunique THEN 'unique' END, CASE WHEN NOT x.indisvalid THEN 'invalid' END)",
            )],
            "primary, unique, invalid",
        ),
    ],
    from: &[(
        9,
        "pg_stat_user_indexes s JOIN pg_statio_user_indexes i USING (indexrelid) \
         JOIN pg_class c ON c.oid = s.indexrelid JOIN pg_index x ON x.indexrelid = s.indexrelid",
    )],
    order: "scans",
    essential_columns: &[],
    is_per_database: true,
    extension: None,
};
