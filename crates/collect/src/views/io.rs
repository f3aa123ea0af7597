//! I/O by backend type: `pg_stat_io`, since PostgreSQL 16.

use crate::{
    ColumnUnit::{Bytes, Count, Milliseconds},
    StatsView, ViewColumn,
};

pub(super) const IO: StatsView = StatsView {
    name: "io",
    help: "Reads and writes per second by backend type; since PostgreSQL 16.",
    columns: &[
        ViewColumn::key("backend_type", "Process", &[(16, "s.backend_type")], "the backend type"),
        ViewColumn::key("object", "Object", &[(16, "s.object")], "relation, temp relation, wal"),
        ViewColumn::key(
            "context",
            "Context",
            &[(16, "s.context")],
            "normal, vacuum, bulkread, bulkwrite, init",
        ),
        ViewColumn::counter("reads", "Read/s", Count, &[(16, "s.reads")], "reads"),
        ViewColumn::counter(
            "read_bytes",
            "Read B/s",
            Bytes,
            &[(16, "s.reads * s.op_bytes"), (18, "s.read_bytes")],
            "bytes read",
        ),
        ViewColumn::counter(
            "read_ms",
            "Read ms/s",
            Milliseconds,
            &[(16, "s.read_time")],
            "time of reads; needs track_io_timing",
        ),
        ViewColumn::counter("writes", "Write/s", Count, &[(16, "s.writes")], "writes"),
        ViewColumn::counter(
            "write_bytes",
            "Write B/s",
            Bytes,
            &[(16, "s.writes * s.op_bytes"), (18, "s.write_bytes")],
            "bytes written",
        ),
        ViewColumn::counter(
            "write_ms",
            "Write ms/s",
            Milliseconds,
            &[(16, "s.write_time")],
            "time of writes; needs track_io_timing",
        ),
        ViewColumn::counter(
            "extends",
            "Extend/s",
            Count,
            &[(16, "s.extends")],
            "relation extensions",
        ),
        ViewColumn::counter(
            "extend_ms",
            "Extend ms/s",
            Milliseconds,
            &[(16, "s.extend_time")],
            "time of extensions",
        ),
        ViewColumn::counter(
            "hits",
            "Hit/s",
            Count,
            &[(16, "s.hits")],
            "pages found in the buffer cache",
        ),
        ViewColumn::counter(
            "evictions",
            "Evict/s",
            Count,
            &[(16, "s.evictions")],
            "pages evicted to make room",
        ),
        ViewColumn::counter(
            "reuses",
            "Reuse/s",
            Count,
            &[(16, "s.reuses")],
            "buffers reused within a ring",
        ),
        ViewColumn::counter("fsyncs", "Fsync/s", Count, &[(16, "s.fsyncs")], "fsync calls"),
        ViewColumn::counter(
            "fsync_ms",
            "Fsync ms/s",
            Milliseconds,
            &[(16, "s.fsync_time")],
            "time of fsync calls",
        ),
    ],
    from: &[(
        16,
        "pg_stat_io s WHERE coalesce(s.reads, 0) + coalesce(s.writes, 0) + coalesce(s.extends, 0) \
         + coalesce(s.hits, 0) + coalesce(s.fsyncs, 0) > 0",
    )],
    order: "reads",
    essential_columns: &[],
    is_per_database: false,
    extension: None,
};
