//! Merged replies of three shards are byte for byte those of one server, for every mergeable type,
//! as text and as binary.

use std::sync::Arc;

use howdah_route::{Aggregate, FanOut, Merger, ShardRequest, SortColumn, SortKey};
use howdah_wire::{
    ValueFormat,
    frontend::{self, encode},
};

use super::{
    StatementRandom, server,
    wire::{RawSession, merged, messages, rows},
};

/// Types with sample values, excluding NULL. No two values of a type are equal with different
/// spellings.
const TYPES: &[(&str, &[&str])] = &[
    ("bool", &["true", "false"]),
    ("int2", &["0", "-32768", "32767", "10", "9"]),
    ("int4", &["0", "-2147483648", "2147483647", "10", "9"]),
    ("int8", &["0", "-9223372036854775808", "9223372036854775807", "10", "9"]),
    ("oid", &["0", "4294967295", "10", "9"]),
    ("float4", &["0", "NaN", "Infinity", "-Infinity", "1e-30", "-1.5", "3.25e20", "1e6", "100000"]),
    ("float8", &["0", "NaN", "Infinity", "-Infinity", "1e-300", "-1.5", "0.125", "1e15", "2e-5"]),
    (
        "numeric",
        &["0", "NaN", "Infinity", "-Infinity", "1.50", "-1.5", "10000", "0.0001", "99999999.9"],
    ),
    (
        "numeric(40,20)",
        &["0", "12345678901234567890.12345678901234567891", "-0.00000000000000000001"],
    ),
    (
        "date",
        &["2024-02-29", "0044-03-15 BC", "12024-01-01", "infinity", "-infinity", "1999-12-31"],
    ),
    ("time", &["00:00", "24:00", "12:34:56.789", "12:34:56.7891"]),
    (
        "timestamp",
        &[
            "2024-02-29 10:00",
            "0044-03-15 10:00 BC",
            "infinity",
            "-infinity",
            "2024-02-29 10:00:00.5",
        ],
    ),
    (
        "timestamptz",
        &[
            "2024-10-27 00:30+00",
            "2024-10-27 01:15+00",
            "0044-03-15 10:00+00 BC",
            "infinity",
            "-infinity",
        ],
    ),
    ("uuid", &["00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001"]),
    ("bytea", &["\\x", "\\x00", "\\x00ff", "\\xff", "\\x5c41"]),
    ("text", &["", "a", "B", "ä", "a b", "ab"]),
    ("varchar(9)", &["", "a", "B", "ä", "a b", "ab"]),
    ("char(3)", &["a", "B", "ä", "ab"]),
    ("name", &["a", "B", "ab"]),
    ("\"char\"", &["a", "B"]),
];

/// One type's tables, and sessions with the whole and with each shard.
struct Tables {
    whole: RawSession,
    shards: Vec<RawSession>,
}

impl Tables {
    fn make(admin: &mut howdah_connect::Client, cluster: &howdah_lab::Cluster) -> Self {
        for (place, (of, values)) in TYPES.iter().enumerate() {
            let collated = ["text", "varchar(9)", "char(3)"].contains(of);
            let collate = if collated { "COLLATE \"C\"" } else { "" };
            for path in ["whole", "s0", "s1", "s2"] {
                admin
                    .query(&format!(
                        "CREATE SCHEMA IF NOT EXISTS {path};
                         CREATE TABLE {path}.t{place} (id bigint, v {of} {collate})"
                    ))
                    .unwrap();
            }
            // Each value twice, on two shards, and NULL.
            let values = values.iter().map(|value| format!("'{value}'")).chain(["NULL".to_owned()]);
            for (at, value) in values.enumerate() {
                for id in [at, at + 100, at + 201] {
                    for path in ["whole".to_owned(), format!("s{}", id % 3)] {
                        let insert = format!("INSERT INTO {path}.t{place} VALUES ({id}, {value})");
                        admin.query(&insert).unwrap();
                    }
                }
            }
        }
        let wire = |path: &str| RawSession::new(cluster, path);
        Self { whole: wire("whole"), shards: ["s0", "s1", "s2"].map(wire).into() }
    }

    /// The bytes that one server sends, and the merged bytes of the shards.
    fn both(
        &mut self,
        sql: &str,
        how: FanOut,
        format: ValueFormat,
        random: &mut StatementRandom,
    ) -> [Vec<u8>; 2] {
        let how = Arc::new(how);
        let mut merger = Merger::new(3, true, 1 << 20);
        let request = |looks: bool| {
            let mut buf = Vec::new();
            encode::parse(&mut buf, b"", sql.as_bytes(), &[]).unwrap();
            encode::bind(&mut buf, b"", b"", &[], [], &[format]).unwrap();
            if looks {
                encode::describe(&mut buf, frontend::DescribeTarget::Portal(b"")).unwrap();
            }
            encode::execute(&mut buf, b"", 0).unwrap();
            encode::sync(&mut buf);
            buf
        };
        for asked in [
            ShardRequest::Parse,
            ShardRequest::Bind,
            ShardRequest::HiddenDescribe,
            ShardRequest::Execute(Arc::clone(&how)),
            ShardRequest::Sync,
        ] {
            merger.expect_replies(asked);
        }
        let answers: Vec<_> =
            self.shards.iter_mut().map(|shard| shard.send(&request(true))).collect();
        let together = merged(&mut merger, &answers, random);
        assert!(merger.is_done());
        [self.whole.send(&request(false)), together]
    }
}

#[test]
fn merged_results_of_every_type_match_one_server() {
    let Some((cluster, mut admin)) = server("merges") else { return };
    let mut tables = Tables::make(&mut admin, &cluster);
    let mut random = StatementRandom(11);
    for (place, (of, _)) in TYPES.iter().enumerate() {
        for format in [ValueFormat::Text, ValueFormat::Binary] {
            for (descending, nulls_first) in [(false, false), (true, true), (false, true)] {
                let sql = format!(
                    "SELECT v, id FROM t{place} ORDER BY v {} NULLS {}, 2 LIMIT 11",
                    if descending { "DESC" } else { "ASC" },
                    if nulls_first { "FIRST" } else { "LAST" },
                );
                let column = SortColumn::Named("v".into());
                let v = SortKey { column, descending, nulls_first };
                let column = SortColumn::Position(1);
                let id = SortKey { column, descending: false, nulls_first: false };
                let how = FanOut::Merge { by: vec![v, id], limit: Some(11) };
                let [whole, together] = tables.both(&sql, how, format, &mut random);
                assert_eq!(messages(&together), messages(&whole), "{of}: {sql}");
            }
            let has_extremes = !["bool", "uuid", "bytea", "name", "\"char\""].contains(of);
            if has_extremes {
                let sql = format!("SELECT min(v), max(v), count(v), count(*) FROM t{place}");
                let all = [Aggregate::Min, Aggregate::Max, Aggregate::Count, Aggregate::Count];
                let how = FanOut::Aggregate(all.into());
                let [whole, together] = tables.both(&sql, how, format, &mut random);
                assert_eq!(messages(&together), messages(&whole), "{of}: {sql}");
            }
        }
    }
}

#[test]
fn sums_are_exact() {
    let Some((cluster, mut admin)) = server("sums") else { return };
    let mut tables = Tables::make(&mut admin, &cluster);
    let mut random = StatementRandom(12);
    for (place, (of, values)) in TYPES.iter().enumerate() {
        if !["int2", "int4", "int8", "float4", "float8", "numeric", "numeric(40,20)"].contains(of) {
            continue;
        }
        let own = [format!("v = '{}'", values[values.len() - 1]), "v::text !~ '[Nye]'".to_owned()];
        // Sums of no rows, of one, of some, and with infinite values.
        for when in own.iter().map(String::as_str).chain(["false", "id % 3 = 1", "true"]) {
            let sql =
                format!("SELECT sum(v), sum(v) FILTER (WHERE id > 3) FROM t{place} WHERE {when}");
            for format in [ValueFormat::Text, ValueFormat::Binary] {
                let how = FanOut::Aggregate([Aggregate::Sum; 2].into());
                let [whole, together] = tables.both(&sql, how, format, &mut random);
                assert_eq!(messages(&together), messages(&whole), "{of}: {sql}");
            }
        }
    }
}

#[test]
fn unmergeable_results_are_errors_and_session_continues() {
    let Some((cluster, mut admin)) = server("faults") else { return };
    let mut tables = Tables::make(&mut admin, &cluster);
    admin.query("ALTER TABLE s1.t2 ADD extra int").unwrap();
    let mut random = StatementRandom(13);
    let by_name = |name: &str| FanOut::Merge {
        by: vec![SortKey {
            column: SortColumn::Named(name.into()),
            descending: false,
            nulls_first: false,
        }],
        limit: None,
    };
    let cases = [
        (
            "SELECT '1 day'::interval AS i, id FROM t1 ORDER BY i",
            by_name("i"),
            "\"i\" is not supported",
        ),
        (
            "SELECT sum('1 day'::interval) FROM t1",
            FanOut::Aggregate(vec![Aggregate::Sum]),
            "sum of",
        ),
        ("SELECT id, id FROM t1 ORDER BY id", by_name("id"), "several columns"),
        ("TABLE t2", FanOut::Concatenate, "different columns"),
        ("SELECT 1 / (id - 4) FROM t1", FanOut::Concatenate, "division by zero"),
        ("SELECT nothing FROM t1", FanOut::Concatenate, "does not exist"),
        (
            "SELECT sum(9223372036854775807) FROM t1 WHERE id < 2",
            FanOut::Aggregate(vec![Aggregate::Count]),
            "the count of",
        ),
    ];
    for (sql, how, expected) in cases {
        let [_, together] = tables.both(sql, how, ValueFormat::Text, &mut random);
        let error = rows(&together).unwrap_err();
        assert!(error.contains(expected), "{sql}: {error}");
        let kinds: String = messages(&together).iter().map(|message| message.0).collect();
        assert!(kinds.ends_with("EZ") && kinds.matches('E').count() == 1, "{sql}: {kinds}");
        let [whole, together] = tables.both(
            "SELECT count(*) FROM t3",
            FanOut::Aggregate(vec![Aggregate::Count]),
            ValueFormat::Text,
            &mut random,
        );
        assert_eq!(messages(&together), messages(&whole));
    }
}
