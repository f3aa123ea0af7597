//! Reads cluster-wide figures for the screen header.

use howdah_connect::ResultSet;

use crate::{
    ServerVersion,
    view::{VersionedSql, sql_for_version},
};

/// Figures of a cluster at one moment. Counters count from the last reset of the statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// Whether the server is in recovery.
    pub is_standby: bool,
    /// Transactions committed, in all databases.
    pub commits: i64,
    /// Transactions rolled back, in all databases.
    pub rollbacks: i64,
    /// Page requests that found the page in the buffer cache, in all databases.
    pub blocks_hit: i64,
    /// Pages requested from the operating system, in all databases.
    pub blocks_read: i64,
    /// Bytes written to temporary files, in all databases.
    pub temp_bytes: i64,
    /// Deadlocks detected, in all databases.
    pub deadlocks: i64,
    /// Rows inserted, updated and deleted, in all databases.
    pub rows_changed: i64,
    /// The last WAL position written (primary) or received (standby), in bytes; `None` if unknown.
    pub wal_bytes: Option<i64>,
    /// On a standby: bytes received but not yet replayed.
    pub replay_lag_bytes: Option<i64>,
    /// On a standby: seconds since the commit of the last replayed transaction, or zero if
    /// everything received is replayed.
    pub replay_lag_seconds: Option<f64>,
    /// Bytes of WAL not yet replayed by the slowest standby or subscriber; `None` if there are none
    /// or the role may not see them.
    pub followers_lag_bytes: Option<i64>,
    /// Replay lag of the slowest standby or subscriber in seconds, as measured by the server;
    /// `None` if it is unknown, as before PostgreSQL 10 and once all of them have caught up.
    pub followers_lag_seconds: Option<f64>,
    /// Number of standbys and subscribers whose lag the role may not see.
    pub followers_hidden: i64,
    /// Checkpoints that were requested, by the amount of WAL or by CHECKPOINT, rather than due by
    /// time.
    pub checkpoints_requested: Option<i64>,
    /// Age of the oldest unfrozen transaction id, in transactions: the largest `age(datfrozenxid)`.
    pub frozen_age: Option<i64>,
    /// Size of the temporary files that now exist in the default tablespace, in bytes; `None` if
    /// the role may not list them.
    pub temp_file_bytes: Option<i64>,
    /// Process id of the session with most of these bytes.
    pub temp_file_pid: Option<i64>,
    /// Temporary files created, in all databases.
    pub temp_files: i64,
    /// Number of replication slots.
    pub slots: Option<i64>,
    /// The settings that limit the server's workers.
    pub limits: WorkerLimits,
    /// Size of all databases in bytes, if it was requested and the role may read it: see
    /// [`MonitorConnection::database_bytes`](crate::MonitorConnection::database_bytes). It may be
    /// older than the other figures.
    pub database_bytes: Option<i64>,
    /// Growth of that size in bytes per second, over some minutes.
    pub database_growth: Option<i64>,
}

/// The settings that limit the number of the server's workers; `None` where the version lacks one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLimits {
    /// `autovacuum_max_workers`.
    pub autovacuum: Option<i64>,
    /// `max_worker_processes`.
    pub processes: Option<i64>,
    /// `max_parallel_workers`.
    pub parallel: Option<i64>,
    /// `max_logical_replication_workers`.
    pub logical: Option<i64>,
    /// `max_wal_senders`.
    pub wal_senders: Option<i64>,
    /// `max_replication_slots`.
    pub slots: Option<i64>,
}

// Uses the function below pg_stat_replication: the view would join all sessions once more.
const WAL_SINCE_10: &str = "\
    pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() \
    ELSE pg_current_wal_lsn() END, '0/0')::int8, \
    CASE WHEN pg_is_in_recovery() THEN \
    pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::int8 END, \
    CASE WHEN pg_is_in_recovery() THEN \
    CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0 ELSE \
    date_part('epoch', clock_timestamp() - pg_last_xact_replay_timestamp()) END END, \
    (SELECT max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() \
    ELSE pg_current_wal_lsn() END, replay_lsn))::int8 FROM pg_stat_get_wal_senders()), \
    (SELECT max(date_part('epoch', replay_lag)) FROM pg_stat_get_wal_senders()), \
    (SELECT count(*) FROM pg_stat_get_wal_senders() WHERE state IS NULL)";

const WAL_SINCE_9: &str = "\
    pg_xlog_location_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_xlog_receive_location() \
    ELSE pg_current_xlog_location() END, '0/0')::int8, \
    CASE WHEN pg_is_in_recovery() THEN \
    pg_xlog_location_diff(pg_last_xlog_receive_location(), pg_last_xlog_replay_location())::int8 END, \
    CASE WHEN pg_is_in_recovery() THEN \
    CASE WHEN pg_last_xlog_receive_location() = pg_last_xlog_replay_location() THEN 0 ELSE \
    date_part('epoch', clock_timestamp() - pg_last_xact_replay_timestamp()) END END, \
    (SELECT max(pg_xlog_location_diff(CASE WHEN pg_is_in_recovery() \
    THEN pg_last_xlog_receive_location() ELSE pg_current_xlog_location() END, replay_location))::int8 \
    FROM pg_stat_get_wal_senders()), NULL, \
    (SELECT count(*) FROM pg_stat_get_wal_senders() WHERE state IS NULL)";

const CHECKPOINTS: &[VersionedSql] = &[
    (9, "pg_stat_get_bgwriter_requested_checkpoints()"),
    (17, "pg_stat_get_checkpointer_num_requested()"),
];

const WAL: &[VersionedSql] = &[(9, WAL_SINCE_9), (10, WAL_SINCE_10)];

/// The total size of temporary files, and the process with most of it: the names of files start
/// with `pgsql_tmp` and its id (`OpenTemporaryFileInTablespace()` in `fd.c`).
const TEMP_FILES: &str = "(SELECT sum(f.size)::int8 || ' ' || (array_agg(f.pid ORDER BY f.size DESC))[1] \
    FROM (SELECT substring(name FROM '^pgsql_tmp([0-9]+)') AS pid, sum(size) AS size \
    FROM pg_ls_tmpdir() GROUP BY 1) f)";

/// The settings of [`WorkerLimits`], and the number of replication slots.
const WORKERS: &[VersionedSql] = &[
    (
        9,
        "current_setting('autovacuum_max_workers'), NULL, NULL, NULL, \
         current_setting('max_wal_senders'), NULL, NULL",
    ),
    (
        10,
        "current_setting('autovacuum_max_workers'), current_setting('max_worker_processes'), \
         current_setting('max_parallel_workers'), current_setting('max_logical_replication_workers'), \
         current_setting('max_wal_senders'), current_setting('max_replication_slots'), \
         (SELECT count(*) FROM pg_get_replication_slots())",
    ),
];

/// Builds the statement for the size of all databases, which is NULL if the role may not read the
/// size of one of them.
pub(crate) fn sizes_sql(can_read_all_stats: bool) -> String {
    let is_readable =
        if can_read_all_stats { "true" } else { "has_database_privilege(oid, 'CONNECT')" };
    format!(
        "SELECT CASE WHEN bool_and({is_readable}) THEN \
         sum(CASE WHEN {is_readable} THEN pg_database_size(oid) END)::int8 END FROM pg_database"
    )
}

/// Builds the statement for a server version.
pub(crate) fn sql(version: ServerVersion, can_list_temp_files: bool) -> String {
    let temp_files = if can_list_temp_files { TEMP_FILES } else { "NULL" };
    let wal = sql_for_version(WAL, version).unwrap_or("NULL, NULL, NULL, NULL, NULL, NULL");
    let checkpoints = sql_for_version(CHECKPOINTS, version).unwrap_or("NULL");
    let workers = sql_for_version(WORKERS, version).unwrap_or("NULL");
    format!(
        "SELECT (date_part('epoch', clock_timestamp()) * 1e6)::int8, pg_is_in_recovery(), \
         sum(xact_commit)::int8, sum(xact_rollback)::int8, sum(blks_hit)::int8, sum(blks_read)::int8, \
         sum(temp_bytes)::int8, sum(deadlocks)::int8, \
         sum(tup_inserted + tup_updated + tup_deleted)::int8, \
         (SELECT max(age(datfrozenxid)) FROM pg_database), {wal}, {checkpoints}, \
         {temp_files}, sum(temp_files)::int8, {workers} FROM pg_stat_database"
    )
}

impl Overview {
    pub(crate) fn from_result(result: &ResultSet) -> Option<Self> {
        let row = result.rows.first()?;
        let number = |at| row.text(at).and_then(|text| text.parse().ok());
        let temp_files = row.text(17);
        let (temp_file_bytes, temp_file_pid) =
            match temp_files.as_ref().map(|it| it.split_once(' ')) {
                Some(Some((bytes, pid))) => (bytes.parse().ok(), pid.parse().ok()),
                _ => (None, None),
            };
        Some(Self {
            taken_us: number(0)?,
            is_standby: row.bytes(1)? == b"t",
            commits: number(2).unwrap_or(0),
            rollbacks: number(3).unwrap_or(0),
            blocks_hit: number(4).unwrap_or(0),
            blocks_read: number(5).unwrap_or(0),
            temp_bytes: number(6).unwrap_or(0),
            deadlocks: number(7).unwrap_or(0),
            rows_changed: number(8).unwrap_or(0),
            frozen_age: number(9),
            wal_bytes: number(10),
            replay_lag_bytes: number(11),
            replay_lag_seconds: row.text(12).and_then(|text| text.parse().ok()),
            followers_lag_bytes: number(13),
            followers_lag_seconds: row.text(14).and_then(|text| text.parse().ok()),
            followers_hidden: number(15).unwrap_or(0),
            checkpoints_requested: number(16),
            temp_file_bytes,
            temp_file_pid,
            temp_files: number(18).unwrap_or(0),
            limits: WorkerLimits {
                autovacuum: number(19),
                processes: number(20),
                parallel: number(21),
                logical: number(22),
                wal_senders: number(23),
                slots: number(24),
            },
            slots: number(25),
            database_bytes: None,
            database_growth: None,
        })
    }

    /// Returns the growth per second of a counter since `before`; `None` after a reset, if no time
    /// passed, or if a value is unknown.
    pub fn rate(&self, before: &Self, sum: impl Fn(&Self) -> Option<i64>) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
        let of = |growth: i64, microseconds: i64| growth as f64 * 1e6 / microseconds as f64;
        let growth = sum(self)? - sum(before)?;
        let microseconds = self.taken_us - before.taken_us;
        (growth >= 0 && microseconds > 0).then(|| of(growth, microseconds))
    }
}

#[test]
fn reset_counter_has_no_rate() {
    let before = Overview { taken_us: 1_000_000, commits: 100, ..Overview::default() };
    let now = Overview { taken_us: 3_000_000, commits: 300, ..Overview::default() };
    let commits = |overview: &Overview| Some(overview.commits);
    assert_eq!(now.rate(&before, commits), Some(100.0));
    assert_eq!(before.rate(&now, commits), None);
    assert_eq!(now.rate(&now, commits), None);
}
