//! The statement that reads all sessions.
//!
//! Its rows have two columns. The first is
//!
//! - of our own session, the clock and moments before it: `clock|µs|idle|sessions|texts`, see [`super::told`];
//! - of a session that has idled since before `$1`, its process id;
//! - of any other, a record of [`FIELDS`], of which the last is a record of [`FIXED`] that is there in the first
//!   readings that have the session.
//!
//! The second is its statement's text, if that was not told before `$4`: the beginning, with a zero byte behind it,
//! of one that has not run for `$5` yet, else the whole. Both are bytes as the session sent them. To cut characters
//! the server would have to know them, and a text of a database with another encoding would fail the statement.
//!
//! `$2`: whether what idle sessions ran last is wanted; `$3`: sessions from before that are known; `$6`: the moment
//! that times are told as microseconds after; `$7`: the name of an application that is told as NULL.
//!
//! What a session's role, database and encoding are called is looked up only where it is told, so that most rows
//! need nothing but the server's list of sessions.

use crate::{
    Version,
    view::{Since, chosen},
};

/// SQL for a moment in microseconds since 1970.
macro_rules! micros {
    ($sql:literal) => {
        concat!("(date_part('epoch', ", $sql, ") * 1e6)::int8")
    };
}

/// SQL for what of idle sessions is told only to who asks what they ran.
macro_rules! ran {
    ($($sql:expr),*) => {
        concat!("CASE WHEN a.state = 'idle' AND NOT $2::bool THEN NULL ELSE ", $($sql),*, " END")
    };
}

/// SQL for "this session waits for a heavyweight lock".
///
/// A role without `pg_read_all_stats` gets NULL for the wait event and for the start of other roles' sessions, but
/// may read all of `pg_locks`. The subquery depends on no session, so it is executed once in a reading, and never
/// where each start is visible.
macro_rules! waits_for_lock {
    () => {
        "a.wait_event_type = 'Lock' OR a.backend_start IS NULL \
         AND a.pid IN (SELECT w.pid FROM pg_locks w WHERE NOT w.granted)"
    };
}

/// What is told of a session that does something, or whose idling is news.
const FIELDS: &[&[Since]] = &[
    &[(9, "a.pid")],
    &[(9, "NULLIF(coalesce(a.application_name, ''), $7::text)")],
    &[(9, "NULL::int4"), (13, "a.leader_pid")],
    // The words that most have are short.
    &[(9, "CASE a.state WHEN 'active' THEN 'a' WHEN 'idle' THEN 'i' ELSE a.state END")],
    &[(9, "CASE a.wait_event WHEN 'ClientRead' THEN 'r' ELSE a.wait_event_type END")],
    &[(9, "NULLIF(a.wait_event, 'ClientRead')")],
    &[(9, "age(a.backend_xid)")],
    &[(9, "age(a.backend_xmin)")],
    &[(9, ran!(micros!("a.query_start"), " - $6::int8"))],
    // A transaction of one statement begins with it.
    &[(
        9,
        concat!(
            "CASE WHEN a.xact_start = a.query_start THEN '=' ELSE (",
            micros!("a.xact_start"),
            " - $6::int8)::text END"
        ),
    )],
    // Where it runs, since its statement began: that is soon.
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

/// What never changes of a session. A role that may not look gets NULL for its start, and all else in each reading.
const FIXED: &[&[Since]] = &[
    &[(9, micros!("a.backend_start"))],
    &[(9, "d.datname")],
    &[(9, "r.rolname")],
    &[(9, "host(a.client_addr)")],
    &[(9, "a.client_port")],
    &[(9, "NULL::text"), (10, "a.backend_type")],
    &[(9, "r.rolsuper")],
    &[(9, "pg_encoding_to_char(d.encoding)")],
];

/// The bytes of a beginning, if it is not all of a text.
pub(super) const BEGINNING_BYTES: usize = 200;

/// What stands behind a beginning. No text has it.
pub(super) const CUT: u8 = 0;

/// What our own session's row begins with.
pub(super) const CLOCK: &[u8] = b"clock|";

pub(super) fn sql(version: Version) -> String {
    let list = |columns: &[&'static [Since]]| {
        let columns = columns.iter().map(|column| chosen(column, version).unwrap_or("NULL::text"));
        columns.collect::<Vec<_>>().join(", ")
    };
    let (fields, fixed) = (list(FIELDS), list(FIXED));
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
             THEN substring(textsend(a.query) from 1 for {BEGINNING_BYTES}) || '\\x00'::bytea \
             ELSE textsend(a.query) END END \
         FROM pg_stat_activity a"
    )
}

#[test]
fn every_version_has_a_statement_with_what_it_knows() {
    for major in [9, 10, 13, 14, 18] {
        let sql = sql(Version::of_major(major));
        assert!(sql.contains("pg_stat_activity"), "{major}");
        assert_eq!(sql.contains("waitstart"), major >= 14, "{major}");
        assert_eq!(sql.contains("leader_pid"), major >= 13, "{major}");
    }
}
