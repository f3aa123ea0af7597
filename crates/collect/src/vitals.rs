//! Data for a recorder that samples once a second: server-wide counters, and the details of lock
//! waits, prepared transactions and temporary files, which are requested only for a reason.

use howdah_connect::{ResultRow, ResultSet};

use crate::{
    MonitorConnection, ServerVersion,
    error::CollectError,
    text::sanitized_line,
    view::{VersionedSql, sql_for_version},
};

/// Figures of a server at one moment. Counters count from the last reset of the statistics, over
/// all databases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerVitals {
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions rolled back.
    pub rollbacks: u64,
    /// Deadlocks detected.
    pub deadlocks: u64,
    /// Temporary files created.
    pub temp_files: u64,
    /// Bytes written to temporary files, counted when a file is closed.
    pub temp_bytes: u64,
    /// Sessions started; `None` before PostgreSQL 14.
    pub sessions_started: Option<u64>,
    /// Present number of client sessions.
    pub clients: u64,
    /// Present number of sessions and autovacuum workers that are not idle, without this
    /// connection's; sessions that the role may not see count.
    pub busy: u64,
    /// Checkpoints that started because `checkpoint_timeout` had passed.
    pub timed_checkpoints: u64,
    /// Checkpoints that were requested: by the amount of WAL, by `CHECKPOINT`, or by a backup.
    pub requested_checkpoints: u64,
    /// Bytes of WAL that the slowest standby or subscriber has not replayed; on a standby, bytes
    /// that the server itself has not replayed. `None` without standbys.
    pub replay_lag_bytes: Option<u64>,
    /// The same as time, in seconds, as measured by the server; `None` if it is unknown, and once
    /// everything is replayed.
    pub replay_lag_seconds: Option<f64>,
    /// Position in the WAL, in bytes, that the slowest standby or subscriber has replayed; on a
    /// standby, that the server itself has replayed. `None` without standbys.
    pub replayed_lsn: Option<u64>,
}

/// The standby or subscriber of a primary that has replayed the least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowestStandby {
    /// The process that sends the WAL to it.
    pub pid: i32,
    /// Bytes of WAL that it has not written to its disk.
    pub flush_lag_bytes: u64,
    /// Bytes of WAL that it has not replayed.
    pub replay_lag_bytes: u64,
}

/// A process's wait for a heavyweight lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedLock {
    /// The waiting process.
    pub pid: i32,
    /// Type of the lock, as in `pg_locks.locktype`.
    pub kind: String,
    /// The requested mode, as in `pg_locks.mode`.
    pub mode: String,
    /// Oids of the database (0 for a shared catalog) and of the relation, if the lock is on one, on
    /// a part of one, or on the transaction that has changed a row of it.
    pub relation: Option<(u32, u32)>,
    /// Page and number of the row, if the process waits for a row, or for the transaction that has
    /// changed one.
    pub row: Option<(u32, u16)>,
    /// Id of the transaction that the process waits for.
    pub transaction: Option<u32>,
}

/// A prepared transaction, which holds locks without a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// Its identifier, as in `COMMIT PREPARED`.
    pub gid: String,
    /// The role that prepared it.
    pub owner: String,
    /// Name of the database that it changed.
    pub database: String,
    /// Time at which it was prepared, in microseconds since 1970 by the server's clock.
    pub prepared_us: i64,
}

const CHECKPOINTS: &[VersionedSql] = &[
    (9, "SELECT checkpoints_timed, checkpoints_req FROM pg_stat_bgwriter"),
    (17, "SELECT num_timed, num_requested FROM pg_stat_checkpointer"),
];

const STARTED: &[VersionedSql] = &[(9, "NULL::int8"), (14, "sum(sessions)::int8")];

/// Sums over all databases, sessions, checkpoints and standbys in one row. Sessions and standbys
/// are read from the functions below the views, which join names to each row.
pub(crate) fn sql(version: ServerVersion) -> String {
    let checkpoints = sql_for_version(CHECKPOINTS, version).unwrap_or("SELECT NULL, NULL");
    let started = sql_for_version(STARTED, version).unwrap_or("NULL::int8");
    format!(
        "SELECT (date_part('epoch', clock_timestamp()) * 1e6)::int8, d.*, a.*, c.*, \
         CASE WHEN r.is_standby \
           THEN pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::int8 \
           ELSE (SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::int8 \
             FROM pg_stat_get_wal_senders() WHERE state <> 'backup') END, \
         CASE WHEN r.is_standby THEN \
           CASE WHEN pg_last_wal_receive_lsn() <> pg_last_wal_replay_lsn() \
             THEN date_part('epoch', clock_timestamp() - pg_last_xact_replay_timestamp()) END \
           ELSE (SELECT max(date_part('epoch', replay_lag)) FROM pg_stat_get_wal_senders() \
             WHERE state <> 'backup') END, \
         CASE WHEN r.is_standby THEN pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::int8 \
           ELSE (SELECT min(pg_wal_lsn_diff(replay_lsn, '0/0'))::int8 \
             FROM pg_stat_get_wal_senders() WHERE state <> 'backup') END \
         FROM (SELECT sum(xact_commit)::int8, sum(xact_rollback)::int8, sum(deadlocks)::int8, \
             sum(temp_files)::int8, sum(temp_bytes)::int8, {started} FROM pg_stat_database) d, \
           (SELECT count(*) FILTER (WHERE coalesce(backend_type = 'client backend', datid IS NOT NULL)), \
             count(*) FILTER (WHERE state IS DISTINCT FROM 'idle' AND pid <> pg_backend_pid() \
               AND (backend_type IS NULL AND datid IS NOT NULL OR backend_type IN \
                 ('client backend', 'parallel worker', 'autovacuum worker'))) \
             FROM pg_stat_get_activity(NULL)) a, \
           ({checkpoints}) c, (SELECT pg_is_in_recovery() AS is_standby) r"
    )
}

/// Selects all locks once: the function that reads them locks the server's lock tables. A session
/// that waits for another's transaction usually has the lock of the row that both change, which
/// names the relation.
const WAITED_LOCKS: &str = "\
    WITH l AS (SELECT pid, locktype, mode, database, relation, page, tuple, transactionid, granted \
      FROM pg_locks WHERE NOT granted OR locktype = 'tuple') \
    SELECT w.pid, w.locktype, w.mode, coalesce(w.database, t.database), \
      coalesce(w.relation, t.relation), coalesce(w.page, t.page), coalesce(w.tuple, t.tuple), \
      w.transactionid \
    FROM l w LEFT JOIN LATERAL (SELECT o.database, o.relation, o.page, o.tuple FROM l o \
      WHERE o.pid = w.pid AND o.granted LIMIT 1) t ON w.locktype = 'transactionid' \
    WHERE NOT w.granted LIMIT 1000";

/// Selects no row on a standby.
const SLOWEST_STANDBY: &str = "\
    SELECT s.pid, pg_wal_lsn_diff(n.lsn, s.flush_lsn)::int8, \
      pg_wal_lsn_diff(n.lsn, s.replay_lsn)::int8 FROM pg_stat_get_wal_senders() s, \
      (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END AS lsn) n \
    WHERE s.state <> 'backup' AND s.replay_lsn < n.lsn ORDER BY s.replay_lsn LIMIT 1";

/// The process that replays the WAL of a standby waits for a lock without being listed among the
/// processes for which `pg_blocking_pids` works. It needs all locks exclusively.
const REPLAY_BLOCKERS: &str = "\
    SELECT DISTINCT h.pid FROM pg_locks w JOIN pg_locks h ON h.locktype = w.locktype \
      AND h.database = w.database AND h.relation = w.relation AND h.granted AND h.pid <> w.pid \
    WHERE NOT w.granted AND w.locktype = 'relation' AND w.pid = \
      (SELECT pid FROM pg_stat_get_activity(NULL) WHERE backend_type = 'startup') LIMIT 16";

const PREPARED: &str = "\
    SELECT gid, owner, database, (date_part('epoch', prepared) * 1e6)::int8 \
    FROM pg_prepared_xacts ORDER BY prepared LIMIT 16";

/// Files of a parallel hash join are in directories of their own, which the function omits.
const TEMP_FILES: &str = "\
    SELECT substring(name from '^pgsql_tmp([0-9]{1,9})')::int4, sum(size)::int8 \
    FROM pg_ls_tmpdir() GROUP BY 1 ORDER BY 2 DESC LIMIT 64";

impl ServerVitals {
    fn from_result(result: &ResultSet) -> Option<Self> {
        let row = result.rows.first()?;
        let number = |at| row.text(at).and_then(|text| text.parse().ok());
        Some(Self {
            taken_us: row.text(0)?.parse().ok()?,
            commits: number(1).unwrap_or(0),
            rollbacks: number(2).unwrap_or(0),
            deadlocks: number(3).unwrap_or(0),
            temp_files: number(4).unwrap_or(0),
            temp_bytes: number(5).unwrap_or(0),
            sessions_started: number(6),
            clients: number(7).unwrap_or(0),
            busy: number(8).unwrap_or(0),
            timed_checkpoints: number(9).unwrap_or(0),
            requested_checkpoints: number(10).unwrap_or(0),
            replay_lag_bytes: number(11),
            replay_lag_seconds: row.text(12).and_then(|text| text.parse().ok()),
            replayed_lsn: number(13),
        })
    }
}

impl MonitorConnection {
    /// Reads the server-wide figures of a recorder, in one small statement.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed, or the response lacks the figures.
    pub fn vitals(&mut self) -> Result<ServerVitals, CollectError> {
        let result = self.run_named("vitals", sql)?;
        ServerVitals::from_result(&result).ok_or(CollectError::NotPostgres { what: "statistics" })
    }

    /// Reads the waits for heavyweight locks, at most a thousand. Every role may read them.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn waited_locks(&mut self) -> Result<Vec<WaitedLock>, CollectError> {
        let result = self.run_named("waited_locks", |_| WAITED_LOCKS.to_owned())?;
        let lock = |row: &ResultRow| {
            let oid = |at| row.text(at).and_then(|text| text.parse().ok());
            Some(WaitedLock {
                pid: row.text(0)?.parse().ok()?,
                kind: sanitized_line(&row.text(1)?).into_owned(),
                mode: sanitized_line(&row.text(2)?).into_owned(),
                relation: oid(3).zip(oid(4)),
                row: oid(5).zip(row.text(6).and_then(|text| text.parse().ok())),
                transaction: oid(7),
            })
        };
        Ok(result.rows.iter().filter_map(lock).collect())
    }

    /// Reads the oldest prepared transactions, at most sixteen. Every role may read them.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn prepared_transactions(&mut self) -> Result<Vec<PreparedTransaction>, CollectError> {
        let result = self.run_named("prepared_transactions", |_| PREPARED.to_owned())?;
        let transaction = |row: &ResultRow| {
            let text = |at| row.text(at).map(|text| sanitized_line(&text).into_owned());
            Some(PreparedTransaction {
                gid: text(0)?,
                owner: text(1).unwrap_or_default(),
                database: text(2).unwrap_or_default(),
                prepared_us: row.text(3)?.parse().ok()?,
            })
        };
        Ok(result.rows.iter().filter_map(transaction).collect())
    }

    /// Reads which standby or subscriber has replayed the least; `None` on a standby, if all has
    /// been replayed, and for roles that may not see it.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn slowest_standby(&mut self) -> Result<Option<SlowestStandby>, CollectError> {
        let result = self.run_named("slowest_standby", |_| SLOWEST_STANDBY.to_owned())?;
        let standby = |row: &ResultRow| {
            let bytes = |at| row.text(at).and_then(|text| text.parse().ok());
            Some(SlowestStandby {
                pid: row.text(0)?.parse().ok()?,
                flush_lag_bytes: bytes(1).unwrap_or(0),
                replay_lag_bytes: bytes(2)?,
            })
        };
        Ok(result.rows.first().and_then(standby))
    }

    /// Reads the sessions for whose locks the replay of the WAL waits, on a standby.
    ///
    /// # Errors
    ///
    /// The statement or the connection failed.
    pub fn replay_blockers(&mut self) -> Result<Vec<i32>, CollectError> {
        let result = self.run_named("replay_blockers", |_| REPLAY_BLOCKERS.to_owned())?;
        Ok(result.rows.iter().filter_map(|row| row.text(0)?.parse().ok()).collect())
    }

    /// Reads the size of the temporary files of each process in the default tablespace: pid and
    /// bytes, the largest first. Requires `pg_monitor`, and PostgreSQL 12.
    ///
    /// # Errors
    ///
    /// The role may not read them, or the connection failed.
    pub fn temp_files(&mut self) -> Result<Vec<(i32, u64)>, CollectError> {
        let result = self.run_named("temp_files", |_| TEMP_FILES.to_owned())?;
        let usage =
            |row: &ResultRow| Some((row.text(0)?.parse().ok()?, row.text(1)?.parse().ok()?));
        Ok(result.rows.iter().filter_map(usage).collect())
    }
}

#[test]
fn vitals_statement_matches_server_version() {
    let checkpointer =
        |major| sql(ServerVersion::from_major(major)).contains("pg_stat_checkpointer");
    assert_eq!([14, 15, 16, 17, 18].map(checkpointer), [false, false, false, true, true]);
}
