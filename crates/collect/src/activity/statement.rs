//! The statement that reads all sessions.
//!
//! Its rows have two columns. The first is
//!
//! - for our own session, the clock and earlier timestamps: `clock|µs|idle|sessions|texts`, see
//!   [`super::cursor`];
//! - for a session that has idled since before `$1`, without a `backend_xmin`, its process id;
//! - for any other, a record of [`FIELDS`], whose last value is a record of [`FIXED_FIELDS`] in the
//!   first samples that include the session.
//!
//! The second is its statement's text: the beginning, followed by a zero byte, of one that started
//! less than `$5` ago, else the full text. It is NULL if the statement started before `$4`, or is
//! the last one of an idle session and not requested. Texts are bytes as sent by the session:
//! truncating by characters would require a valid encoding, and a text from a database with another
//! encoding would fail the statement.
//!
//! `$2`: include the last statements of idle sessions; `$3`: sessions that started before this time
//! are known; `$6`: the time that timestamps are relative to, in microseconds; `$7`: the
//! application name that is sent as NULL.
//!
//! Names of role, database and encoding are looked up only when they are sent, so that most rows
//! need nothing but the server's list of sessions.

use crate::{
    ServerVersion,
    view::{VersionedSql, sql_for_version},
};

/// SQL for a timestamp in microseconds since 1970, or for an interval in microseconds.
macro_rules! micros {
    ($sql:literal) => {
        concat!("(date_part('epoch', ", $sql, ") * 1e6)::int8")
    };
}

/// SQL for a field that is sent for idle sessions only if their last statements are requested.
macro_rules! ran {
    ($($sql:expr),*) => {
        concat!("CASE WHEN a.state = 'idle' AND NOT $2::bool THEN NULL ELSE ", $($sql),*, " END")
    };
}

/// SQL for whether the row's session waits for a heavyweight lock.
///
/// A role without `pg_read_all_stats` gets NULL for the wait event and the start time of other
/// roles' sessions, but may read all of `pg_locks`. The subquery does not depend on the session, so
/// it is not repeated for each, and does not run at all if each start time is visible.
macro_rules! waits_for_lock {
    () => {
        "a.wait_event_type = 'Lock' OR a.backend_start IS NULL \
         AND a.pid IN (SELECT w.pid FROM pg_locks w WHERE NOT w.granted)"
    };
}

/// Fields of a session that is sent with more than its process id, in order.
const FIELDS: &[&[VersionedSql]] = &[
    &[(9, "a.pid")],
    &[(9, "NULLIF(coalesce(a.application_name, ''), $7::text)")],
    &[(9, "NULL::int4"), (13, "a.leader_pid")],
    // The most frequent values are abbreviated.
    &[(9, "CASE a.state WHEN 'active' THEN 'a' WHEN 'idle' THEN 'i' ELSE a.state END")],
    &[(9, "CASE a.wait_event WHEN 'ClientRead' THEN 'r' ELSE a.wait_event_type END")],
    &[(9, "NULLIF(a.wait_event, 'ClientRead')")],
    &[(9, "age(a.backend_xid)")],
    &[(9, "age(a.backend_xmin)")],
    &[(9, ran!(micros!("a.query_start"), " - $6::int8"))],
    // A single-statement transaction starts with its statement.
    &[(
        9,
        concat!(
            "CASE WHEN a.xact_start = a.query_start THEN '=' ELSE (",
            micros!("a.xact_start"),
            " - $6::int8)::text END"
        ),
    )],
    // Sent relative to the start of the statement for an active session, because the difference is
    // small.
    &[(
        9,
        concat!(
            "CASE WHEN a.state = 'active' AND a.query_start IS NOT NULL THEN ",
            micros!("a.state_change - a.query_start"),
            " ELSE ",
            micros!("a.state_change"),
            " - $6::int8 END"
        ),
    )],
    &[(9, "NULL::int8"), (14, ran!("a.query_id"))],
    &[(9, concat!("CASE WHEN ", waits_for_lock!(), " THEN pg_blocking_pids(a.pid) END"))],
    &[
        (9, "NULL::int8"),
        (
            14,
            concat!(
                "CASE WHEN ",
                waits_for_lock!(),
                " THEN (SELECT ",
                micros!("min(l.waitstart)"),
                " FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted) END"
            ),
        ),
    ],
];

/// Fields that hardly ever change. A role that may not see a session gets NULL for its start time,
/// and the other fields in each sample.
const FIXED_FIELDS: &[&[VersionedSql]] = &[
    &[(9, micros!("a.backend_start"))],
    &[(9, "d.datname")],
    &[(9, "r.rolname")],
    &[(9, "host(a.client_addr)")],
    &[(9, "a.client_port")],
    &[(9, "NULL::text"), (10, "a.backend_type")],
    &[(9, "r.rolsuper")],
    &[(9, "pg_encoding_to_char(d.encoding)")],
];

/// Length in bytes of the beginning of a text, which the server sends if the whole text is not
/// needed.
pub(super) const PREFIX_BYTES: usize = 200;

/// A zero byte, sent after the beginning of a text. No text contains one.
pub(super) const TRUNCATION_MARK: u8 = 0;

/// Prefix of our own session's row.
pub(super) const CLOCK_PREFIX: &[u8] = b"clock|";

pub(super) fn sql(version: ServerVersion) -> String {
    let list = |columns: &[&'static [VersionedSql]]| {
        let columns =
            columns.iter().map(|column| sql_for_version(column, version).unwrap_or("NULL::text"));
        columns.collect::<Vec<_>>().join(", ")
    };
    let (fields, fixed) = (list(FIELDS), list(FIXED_FIELDS));
    let clock = micros!("statement_timestamp()");
    format!(
        "SELECT CASE WHEN a.pid = pg_backend_pid() THEN \
           concat_ws('|', 'clock', {clock}, statement_timestamp() - interval '0.2 s', \
             statement_timestamp() - interval '5 s', statement_timestamp() - interval '1.2 s') \
         WHEN a.state = 'idle' AND a.state_change < $1::timestamptz AND a.backend_xmin IS NULL \
           THEN a.pid::text \
         ELSE ROW({fields}, CASE WHEN a.backend_start < $3::timestamptz THEN NULL ELSE \
           (SELECT ROW({fixed})::text FROM (SELECT 1) one \
            LEFT JOIN pg_database d ON d.oid = a.datid \
            LEFT JOIN pg_roles r ON r.oid = a.usesysid) END)::text END, \
         CASE WHEN a.query_start >= $4::timestamptz AND (a.state <> 'idle' OR $2::bool) THEN \
           CASE WHEN a.query_start > statement_timestamp() - $5::interval \
             THEN substring(textsend(a.query) from 1 for {PREFIX_BYTES}) || '\\x00'::bytea \
             ELSE textsend(a.query) END END \
         FROM pg_stat_activity a"
    )
}

#[test]
fn activity_statement_matches_server_version() {
    for major in [9, 10, 13, 14, 18] {
        let sql = sql(ServerVersion::from_major(major));
        assert!(sql.contains("pg_stat_activity"), "{major}");
        assert_eq!(sql.contains("waitstart"), major >= 14, "{major}");
        assert_eq!(sql.contains("leader_pid"), major >= 13, "{major}");
    }
}
