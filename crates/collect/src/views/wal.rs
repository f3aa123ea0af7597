//! WAL, checkpoints, the background writer and the archiver, one row per figure.
//!
//! PostgreSQL 17 and 18 moved the columns between views; the rows here keep their names. All
//! figures are counters: in milliseconds if the name ends in `_ms`, in bytes if it ends in
//! `_bytes`.

use crate::{ColumnUnit::Count, StatsView, ViewColumn};

macro_rules! figures {
    ($($group:literal: $view:literal [$($name:literal = $sql:literal),* $(,)?]),* $(,)?) => {
        concat!(
            "(SELECT NULL::text AS area, NULL::text AS figure, NULL::float8 AS value WHERE false",
            $($(" UNION ALL SELECT '", $group, "', '", $name, "', (", $sql, ")::float8 FROM ", $view,)*)*
            ") f"
        )
    };
}

const SINCE_9: &str = figures! {
    "checkpoints": "pg_stat_bgwriter" [
        "timed" = "checkpoints_timed", "requested" = "checkpoints_req",
        "buffers" = "buffers_checkpoint", "write_ms" = "checkpoint_write_time",
        "sync_ms" = "checkpoint_sync_time",
    ],
    "background writer": "pg_stat_bgwriter" [
        "buffers" = "buffers_clean", "stopped_early" = "maxwritten_clean",
    ],
    "buffers": "pg_stat_bgwriter" [
        "allocated" = "buffers_alloc", "written_by_backends" = "buffers_backend",
        "synced_by_backends" = "buffers_backend_fsync",
    ],
    "archiver": "pg_stat_archiver" [ "archived" = "archived_count", "failed" = "failed_count" ],
};

const SINCE_14: &str = figures! {
    "wal": "pg_stat_wal" [
        "records" = "wal_records", "full_page_images" = "wal_fpi", "written_bytes" = "wal_bytes",
        "buffers_full" = "wal_buffers_full", "writes" = "wal_write", "syncs" = "wal_sync",
        "write_ms" = "wal_write_time", "sync_ms" = "wal_sync_time",
    ],
    "checkpoints": "pg_stat_bgwriter" [
        "timed" = "checkpoints_timed", "requested" = "checkpoints_req",
        "buffers" = "buffers_checkpoint", "write_ms" = "checkpoint_write_time",
        "sync_ms" = "checkpoint_sync_time",
    ],
    "background writer": "pg_stat_bgwriter" [
        "buffers" = "buffers_clean", "stopped_early" = "maxwritten_clean",
    ],
    "buffers": "pg_stat_bgwriter" [
        "allocated" = "buffers_alloc", "written_by_backends" = "buffers_backend",
        "synced_by_backends" = "buffers_backend_fsync",
    ],
    "archiver": "pg_stat_archiver" [ "archived" = "archived_count", "failed" = "failed_count" ],
};

const SINCE_17: &str = figures! {
    "wal": "pg_stat_wal" [
        "records" = "wal_records", "full_page_images" = "wal_fpi", "written_bytes" = "wal_bytes",
        "buffers_full" = "wal_buffers_full", "writes" = "wal_write", "syncs" = "wal_sync",
        "write_ms" = "wal_write_time", "sync_ms" = "wal_sync_time",
    ],
    "checkpoints": "pg_stat_checkpointer" [
        "timed" = "num_timed", "requested" = "num_requested", "buffers" = "buffers_written",
        "write_ms" = "write_time", "sync_ms" = "sync_time",
        "restartpoints" = "restartpoints_done",
    ],
    "background writer": "pg_stat_bgwriter" [
        "buffers" = "buffers_clean", "stopped_early" = "maxwritten_clean",
    ],
    "buffers": "pg_stat_bgwriter" [ "allocated" = "buffers_alloc" ],
    "archiver": "pg_stat_archiver" [ "archived" = "archived_count", "failed" = "failed_count" ],
};

/// Version 18 moved the writes and syncs of WAL to `pg_stat_io`.
const SINCE_18: &str = figures! {
    "wal": "pg_stat_wal" [
        "records" = "wal_records", "full_page_images" = "wal_fpi", "written_bytes" = "wal_bytes",
        "buffers_full" = "wal_buffers_full",
    ],
    "wal": "pg_stat_io WHERE object = 'wal' AND context = 'normal'" [
        "writes" = "sum(writes)", "syncs" = "sum(fsyncs)", "write_ms" = "sum(write_time)",
        "sync_ms" = "sum(fsync_time)",
    ],
    "checkpoints": "pg_stat_checkpointer" [
        "timed" = "num_timed", "requested" = "num_requested", "done" = "num_done",
        "buffers" = "buffers_written", "slru_buffers" = "slru_written", "write_ms" = "write_time",
        "sync_ms" = "sync_time", "restartpoints" = "restartpoints_done",
    ],
    "background writer": "pg_stat_bgwriter" [
        "buffers" = "buffers_clean", "stopped_early" = "maxwritten_clean",
    ],
    "buffers": "pg_stat_bgwriter" [ "allocated" = "buffers_alloc" ],
    "archiver": "pg_stat_archiver" [ "archived" = "archived_count", "failed" = "failed_count" ],
};

pub(super) const WAL: StatsView = StatsView {
    name: "wal",
    help: "WAL, checkpoints, the background writer and the archiver.",
    columns: &[
        ViewColumn::key("area", "Area", &[(9, "f.area")], "the topic"),
        ViewColumn::key("figure", "Figure", &[(9, "f.figure")], "the figure"),
        ViewColumn::counter(
            "per_second",
            "Per second",
            Count,
            &[(9, "f.value")],
            "growth per second",
        ),
        ViewColumn::gauge(
            "total",
            "Total",
            Count,
            &[(9, "f.value")],
            "the sum since the statistics were reset",
        ),
    ],
    from: &[(9, SINCE_9), (14, SINCE_14), (17, SINCE_17), (18, SINCE_18)],
    order: "per_second",
    essential_columns: &[],
    is_per_database: false,
    extension: None,
};
