//! Reads and writes by who did them: `pg_stat_io`, since PostgreSQL 16.

use crate::{
    Column,
    Unit::{Bytes, Count, Milliseconds},
    View,
};

pub(super) const IO: View = View {
    name: "io",
    help: "Reads and writes per second by kind of process; since PostgreSQL 16.",
    columns: &[
        Column::key("backend_type", "Process", &[(16, "s.backend_type")], "the kind of process"),
        Column::key("object", "Object", &[(16, "s.object")], "relation, temp relation, wal"),
        Column::key(
            "context",
            "Context",
            &[(16, "s.context")],
            "normal, vacuum, bulkread, bulkwrite, init",
        ),
        Column::counter("reads", "Read/s", Count, &[(16, "s.reads")], "reads"),
        Column::counter(
            "read_bytes",
            "Read B/s",
            Bytes,
            &[(16, "s.reads * s.op_bytes"), (18, "s.read_bytes")],
            "bytes read",
        ),
        Column::counter(
            "read_ms",
            "Read ms/s",
            Milliseconds,
            &[(16, "s.read_time")],
            "time of reads; needs track_io_timing",
        ),
        Column::counter("writes", "Write/s", Count, &[(16, "s.writes")], "writes"),
        Column::counter(
            "write_bytes",
            "Write B/s",
            Bytes,
            &[(16, "s.writes * s.op_bytes"), (18, "s.write_bytes")],
            "bytes written",
        ),
        Column::counter(
            "write_ms",
            "Write ms/s",
            Milliseconds,
            &[(16, "s.write_time")],
            "time of writes; needs track_io_timing",
        ),
        Column::counter(
            "extends",
            "Extend/s",
            Count,
            &[(16, "s.extends")],
            "times a relation was made longer",
        ),
        Column::counter(
            "extend_ms",
            "Extend ms/s",
            Milliseconds,
            &[(16, "s.extend_time")],
            "time of that",
        ),
        Column::counter(
            "hits",
            "Hit/s",
            Count,
            &[(16, "s.hits")],
            "pages found in the buffer cache",
        ),
        Column::counter(
            "evictions",
            "Evict/s",
            Count,
            &[(16, "s.evictions")],
            "pages thrown out to make room",
        ),
        Column::counter(
            "reuses",
            "Reuse/s",
            Count,
            &[(16, "s.reuses")],
            "buffers of a ring used again",
        ),
        Column::counter("fsyncs", "Fsync/s", Count, &[(16, "s.fsyncs")], "fsync calls"),
        Column::counter(
            "fsync_ms",
            "Fsync ms/s",
            Milliseconds,
            &[(16, "s.fsync_time")],
            "time of these",
        ),
    ],
    from: &[(
        16,
        "pg_stat_io s WHERE coalesce(s.reads, 0) + coalesce(s.writes, 0) + coalesce(s.extends, 0) \
         + coalesce(s.hits, 0) + coalesce(s.fsyncs, 0) > 0",
    )],
    order: "reads",
    essentials: &[],
    is_of_database: false,
    extension: None,
};
