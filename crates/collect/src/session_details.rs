//! Reads what one session's page shows beside its activity: locks, progress, I/O and WAL.

use std::sync::Arc;

use howdah_connect::{ResultRow, ResultSet};

use crate::{
    ServerVersion,
    text::sanitized_line,
    views::{LOCKED_OBJECT, PROGRESS},
};

/// Locks, progress, I/O and WAL of one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionDetails {
    /// Process id of the session.
    pub pid: i32,
    /// Locks that it waits for or has, the awaited ones first; at most 200.
    pub locks: Vec<SessionLock>,
    /// Number of its locks, including those that are not in `locks`.
    pub lock_count: i64,
    /// Progress of its command, if the server reports any.
    pub progress: Option<SessionProgress>,
    /// I/O since the session began, by object and context; `None` before PostgreSQL 18.
    pub io: Option<Vec<BackendIo>>,
    /// Bytes of WAL that the session has generated; `None` before PostgreSQL 18.
    pub wal_bytes: Option<i64>,
}

/// A lock that a session has or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLock {
    /// The lock mode, such as `RowExclusiveLock`.
    pub mode: Arc<str>,
    /// The locked object: a relation by name if it is in the connected database.
    pub object: Arc<str>,
    /// Whether the session has the lock rather than waiting for it.
    pub is_granted: bool,
    /// Time that it has waited for the lock, in microseconds (since PostgreSQL 14).
    pub waited_us: Option<i64>,
}

/// Progress of a maintenance command, as in the `progress` view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionProgress {
    /// The command, such as `vacuum`.
    pub command: Arc<str>,
    /// The relation; an oid if it is in another database.
    pub relation: Arc<str>,
    /// The current phase.
    pub phase: Arc<str>,
    /// Blocks, rows or bytes done.
    pub done: Option<i64>,
    /// Blocks, rows or bytes in total.
    pub total: Option<i64>,
}

/// I/O of a session on one kind of object in one context, as in `pg_stat_io`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendIo {
    /// `object` and `context`, such as `relation normal`.
    pub target: Arc<str>,
    /// Pages found in shared or local buffers.
    pub hits: i64,
    /// Read operations, and their bytes.
    pub reads: (i64, i64),
    /// Write operations, and their bytes.
    pub writes: (i64, i64),
    /// Extend operations, and their bytes.
    pub extends: (i64, i64),
}

/// Maximum number of locks that are read. A session may have thousands.
const LOCKS_MAX: usize = 200;

pub(crate) fn locks_sql(version: ServerVersion) -> String {
    let waited = match version.major() {
        14.. => "(date_part('epoch', clock_timestamp() - l.waitstart) * 1e6)::int8",
        _ => "NULL",
    };
    // A session always has the lock of its own virtual transaction id, which tells nothing.
    format!(
        "SELECT l.mode, {LOCKED_OBJECT}, l.granted, {waited}, count(*) OVER () \
         FROM pg_locks l LEFT JOIN pg_database d ON d.oid = l.database, \
         (SELECT oid FROM pg_database WHERE datname = current_database()) m \
         WHERE l.pid = $1::int4 AND NOT (l.locktype = 'virtualxid' AND l.granted) \
         ORDER BY l.granted, l.locktype <> 'relation', 2, 1 LIMIT {LOCKS_MAX}"
    )
}

pub(crate) fn progress_sql(version: ServerVersion) -> String {
    // Every version has the view.
    let view = PROGRESS.sql(version).unwrap_or_default();
    format!(
        "SELECT v.command, v.relation, v.phase, v.done, v.total FROM ({view}) v \
         WHERE v.pid = $1::text LIMIT 1"
    )
}

pub(crate) const IO_SQL: &str = "SELECT object || ' ' || context, coalesce(hits, 0), coalesce(reads, 0), \
    coalesce(read_bytes, 0)::int8, coalesce(writes, 0), coalesce(write_bytes, 0)::int8, \
    coalesce(extends, 0), coalesce(extend_bytes, 0)::int8 FROM pg_stat_get_backend_io($1::int4) \
    WHERE coalesce(hits, 0) + coalesce(reads, 0) + coalesce(writes, 0) + coalesce(extends, 0) > 0 \
    ORDER BY 1";

pub(crate) const WAL_SQL: &str = "SELECT wal_bytes::int8 FROM pg_stat_get_backend_wal($1::int4)";

impl SessionDetails {
    /// Builds the details from the results of [`locks_sql`], [`progress_sql`] and, where the server
    /// has these functions, of [`IO_SQL`] and [`WAL_SQL`].
    pub(crate) fn from_results(
        pid: i32,
        locks: &ResultSet,
        progress: &ResultSet,
        io_and_wal: Option<(ResultSet, ResultSet)>,
    ) -> Self {
        let mut details = Self { pid, ..Self::default() };
        details.set_locks(locks);
        details.progress = progress.rows.first().map(progress_of);
        if let Some((io, wal)) = io_and_wal {
            details.io = Some(io.rows.iter().map(io_of).collect());
            details.wal_bytes = wal.rows.first().and_then(|row| number(row, 0));
        }
        details
    }

    fn set_locks(&mut self, result: &ResultSet) {
        self.lock_count = result.rows.first().and_then(|row| number(row, 4)).unwrap_or(0);
        let lock = |row: &ResultRow| SessionLock {
            mode: line(row, 0),
            object: line(row, 1),
            is_granted: row.bytes(2) == Some(b"t"),
            waited_us: number(row, 3),
        };
        self.locks = result.rows.iter().map(lock).collect();
    }
}

fn progress_of(row: &ResultRow) -> SessionProgress {
    SessionProgress {
        command: line(row, 0),
        relation: line(row, 1),
        phase: line(row, 2),
        done: number(row, 3),
        total: number(row, 4),
    }
}

fn io_of(row: &ResultRow) -> BackendIo {
    let pair = |at| (number(row, at).unwrap_or(0), number(row, at + 1).unwrap_or(0));
    BackendIo {
        target: line(row, 0),
        hits: number(row, 1).unwrap_or(0),
        reads: pair(2),
        writes: pair(4),
        extends: pair(6),
    }
}

fn line(row: &ResultRow, at: usize) -> Arc<str> {
    sanitized_line(&row.text(at).unwrap_or_default()).into()
}

fn number(row: &ResultRow, at: usize) -> Option<i64> {
    row.text(at)?.parse().ok()
}
