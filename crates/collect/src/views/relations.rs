//! Tables and indexes of the connection's database: `pg_stat_user_tables`, `pg_stat_user_indexes` and their
//! `pg_statio` twins.
//!
//! Sizes are `relpages`, as the last VACUUM or ANALYZE left them: to ask for the true size takes a lock on
//! each relation, and would wait behind those who hold it.

use crate::{
    Column,
    Unit::{Bytes, Count, Seconds, Text},
    View,
};

const PAGES: &str = "c.relpages::int8 * current_setting('block_size')::int8";

pub(super) const TABLES: View = View {
    name: "tables",
    help: "What happens to each table of the connected database per second.",
    columns: &[
        Column::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        Column::key("table", "Table", &[(9, "s.relname")], "its name"),
        Column::gauge(
            "size",
            "Size",
            Bytes,
            &[(9, PAGES)],
            "its main fork when last vacuumed or analyzed",
        ),
        Column::counter(
            "seq_scans",
            "Seq/s",
            Count,
            &[(9, "s.seq_scan")],
            "sequential scans begun",
        ),
        Column::counter(
            "seq_rows",
            "SeqRows/s",
            Count,
            &[(9, "s.seq_tup_read")],
            "rows read by them",
        ),
        Column::counter("index_scans", "Idx/s", Count, &[(9, "s.idx_scan")], "index scans begun"),
        Column::counter(
            "index_rows",
            "IdxRows/s",
            Count,
            &[(9, "s.idx_tup_fetch")],
            "rows fetched by them",
        ),
        Column::counter("inserted", "Ins/s", Count, &[(9, "s.n_tup_ins")], "rows inserted"),
        Column::counter("updated", "Upd/s", Count, &[(9, "s.n_tup_upd")], "rows updated"),
        Column::counter(
            "hot_updated",
            "Hot/s",
            Count,
            &[(9, "s.n_tup_hot_upd")],
            "of these, without work for indexes",
        ),
        Column::counter("deleted", "Del/s", Count, &[(9, "s.n_tup_del")], "rows deleted"),
        Column::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "i.heap_blks_hit + coalesce(i.idx_blks_hit, 0) + coalesce(i.toast_blks_hit, 0)")],
            "pages found in the buffer cache, indexes and TOAST too",
        ),
        Column::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(
                9,
                "i.heap_blks_read + coalesce(i.idx_blks_read, 0) + coalesce(i.toast_blks_read, 0)",
            )],
            "pages asked of the operating system",
        ),
        Column::gauge("live", "Live", Count, &[(9, "s.n_live_tup")], "rows, estimated"),
        Column::gauge("dead", "Dead", Count, &[(9, "s.n_dead_tup")], "dead rows, estimated"),
        Column::gauge(
            "vacuum_age",
            "Vacuum",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))",
            )],
            "since the last vacuum",
        ),
        Column::gauge(
            "analyze_age",
            "Analyze",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_analyze, s.last_autoanalyze))",
            )],
            "since the last analyze",
        ),
    ],
    from: &[(
        9,
        "pg_stat_user_tables s JOIN pg_statio_user_tables i USING (relid) JOIN pg_class c ON c.oid = s.relid",
    )],
    order: "seq_rows",
    essentials: &[],
    is_of_database: true,
    extension: None,
};

pub(super) const INDEXES: View = View {
    name: "indexes",
    help: "What happens to each index of the connected database per second.",
    columns: &[
        Column::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        Column::key("table", "Table", &[(9, "s.relname")], "its table"),
        Column::key("index", "Index", &[(9, "s.indexrelname")], "its name"),
        Column::gauge("size", "Size", Bytes, &[(9, PAGES)], "when last vacuumed or analyzed"),
        Column::counter("scans", "Scan/s", Count, &[(9, "s.idx_scan")], "scans begun"),
        Column::counter(
            "entries",
            "Entries/s",
            Count,
            &[(9, "s.idx_tup_read")],
            "entries given by scans",
        ),
        Column::counter(
            "rows",
            "Rows/s",
            Count,
            &[(9, "s.idx_tup_fetch")],
            "live rows fetched by plain index scans",
        ),
        Column::counter(
            "blocks_hit",
            "Hit/s",
            Count,
            &[(9, "i.idx_blks_hit")],
            "pages found in the buffer cache",
        ),
        Column::counter(
            "blocks_read",
            "Read/s",
            Count,
            &[(9, "i.idx_blks_read")],
            "pages asked of the operating system",
        ),
        Column::gauge(
            "scans_total",
            "Scans",
            Count,
            &[(9, "s.idx_scan")],
            "scans since the statistics were reset",
        ),
        Column::gauge(
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
    essentials: &[],
    is_of_database: true,
    extension: None,
};
