//! Settings that change the meaning of literals: statements prepared by a client use its own
//! settings, even if other clients have prepared the same text on the same server connection.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
};

use howdah_pool::Pooler;

use crate::support::{PoolFixture, RawClient, start_pooler, start_pooler_in_mode};

/// A setting, two of its values, and a query whose result depends on the value.
struct SettingCase {
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
    kind: SettingKind,
}

/// How long a value lasts that a client has set, and when it is used.
#[derive(Clone, Copy, PartialEq)]
enum SettingKind {
    /// The server reports the parameter, so that it follows the client.
    Reported,
    /// The value lasts for a transaction.
    Unreported,
    /// The same, and the value is used for planning, at the first execution of a statement.
    Planned,
}

const fn reported(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> SettingCase {
    SettingCase { name, first, second, sql, kind: SettingKind::Reported }
}

const fn unreported(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> SettingCase {
    SettingCase { name, first, second, sql, kind: SettingKind::Unreported }
}

const fn planned(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> SettingCase {
    SettingCase { name, first, second, sql, kind: SettingKind::Planned }
}

const CASES: [SettingCase; 13] = [
    reported(
        "TimeZone",
        "UTC",
        "Asia/Tokyo",
        "select extract(epoch from timestamptz '2024-01-01')",
    ),
    reported("DateStyle", "ISO, MDY", "ISO, DMY", "select date '01/02/2024' - date '2024-01-01'"),
    reported(
        "IntervalStyle",
        "postgres",
        "sql_standard",
        "select extract(epoch from interval '-1 2:03')",
    ),
    reported("client_encoding", "UTF8", "LATIN1", "select length('é')"),
    reported("standard_conforming_strings", "on", "off", r"select length('a\\b')"),
    unreported("backslash_quote", "on", "off", r"select E'it\'s'"),
    unreported(
        "array_nulls",
        "on",
        "off",
        "select '{null}'::text[] is distinct from array[null]::text[]",
    ),
    unreported("transform_null_equals", "off", "on", "select count(*) where null = null"),
    unreported("xmloption", "content", "document", "select 'words'::xml"),
    unreported(
        "timezone_abbreviations",
        "Default",
        "Australia",
        "select extract(epoch from timestamptz '2024-01-01 00:00 EST')",
    ),
    planned("bytea_output", "hex", "escape", r"select E'\\x61'::bytea::text"),
    planned("extra_float_digits", "1", "-5", "select sqrt(2)::text"),
    planned("quote_all_identifiers", "off", "on", "select quote_ident('a')"),
];

/// A client's next request in a generated dialogue.
#[derive(Clone, Copy)]
enum TestStep {
    /// A query string; `VALUE` stands for the second value, and `SQL` for the query.
    Query(&'static str),
    /// The same as a batch of the extended protocol, without a Sync.
    Batch(&'static str),
    /// A Parse of the query under a name, without a Sync.
    Parse(&'static str),
    /// Bind and Execute of a named statement, without a Sync.
    Run(&'static str),
    Sync,
    /// Waits for all replies.
    Wait,
}

use TestStep::{Batch, Parse, Query, Run, Sync, Wait};

struct StepSequence {
    name: &'static str,
    kinds: &'static [SettingKind],
    steps: &'static [TestStep],
}

const STEP_SEQUENCES: [StepSequence; 13] = [
    StepSequence {
        name: "set",
        kinds: &[SettingKind::Reported],
        steps: &[
            Query("set NAME to 'VALUE'"),
            Wait,
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set and parse in one write",
        kinds: &[SettingKind::Reported],
        steps: &[
            Query("set NAME to 'VALUE'"),
            Parse("s"),
            Run("s"),
            Parse(""),
            Run(""),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set after parse",
        kinds: &[SettingKind::Reported],
        steps: &[
            Parse("s"),
            Sync,
            Wait,
            Query("set NAME to 'VALUE'"),
            Wait,
            Run("s"),
            Sync,
            Wait,
            Parse("t"),
            Run("t"),
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set after parse without a name",
        kinds: &[SettingKind::Reported],
        steps: &[
            Parse(""),
            Sync,
            Wait,
            Batch("set NAME to 'VALUE'"),
            Sync,
            Wait,
            Parse(""),
            Run(""),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set in a transaction",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Query("begin"),
            Wait,
            Query("set NAME to 'VALUE'"),
            Wait,
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Run("s"),
            Parse(""),
            Run(""),
            Sync,
            Wait,
            Query("rollback"),
            Wait,
            Parse("t"),
            Run("t"),
            Sync,
            Wait,
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set local",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Parse("before"),
            Sync,
            Wait,
            Query("begin; set local NAME to 'VALUE'"),
            Wait,
            Run("before"),
            Sync,
            Wait,
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Query("commit"),
            Wait,
            Parse("t"),
            Run("t"),
            Sync,
            Wait,
            Run("s"),
            Run("before"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set local by a function",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Query("begin"),
            Wait,
            Query("select set_config('NAME', 'VALUE', true)"),
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Query("commit"),
            Wait,
            Parse("t"),
            Run("t"),
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set in one batch",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Parse("before"),
            Batch("set local NAME to 'VALUE'"),
            Parse("s"),
            Run("s"),
            Run("before"),
            Parse(""),
            Run(""),
            Sync,
            Wait,
            Parse("t"),
            Run("t"),
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set by a function in one batch",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Batch("select set_config('NAME', 'VALUE', true)"),
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Parse("t"),
            Run("t"),
            Run("s"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set and rollback in one batch",
        kinds: &[SettingKind::Reported, SettingKind::Unreported],
        steps: &[
            Batch("begin"),
            Batch("savepoint a"),
            Batch("set local NAME to 'VALUE'"),
            Parse("s"),
            Batch("rollback to savepoint a"),
            Parse("t"),
            Run("s"),
            Run("t"),
            Batch("commit"),
            Parse("u"),
            Run("u"),
            Sync,
            Wait,
            Run("s"),
            Run("t"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "set in transactions",
        kinds: &[SettingKind::Reported, SettingKind::Unreported, SettingKind::Planned],
        steps: &[
            Query("begin; set NAME to 'VALUE'"),
            Wait,
            Parse("s"),
            Run("s"),
            Run("s"),
            Sync,
            Wait,
            Query("rollback"),
            Wait,
            Parse("t"),
            Run("t"),
            Sync,
            Wait,
            Batch("begin"),
            Batch("set local NAME to 'VALUE'"),
            Parse("u"),
            Run("u"),
            Batch("commit"),
            Parse("v"),
            Run("v"),
            Sync,
            Wait,
            Query("begin"),
            Query("select set_config('NAME', 'VALUE', true)"),
            Parse(""),
            Run(""),
            Sync,
            Wait,
            Query("commit"),
            Wait,
        ],
    },
    StepSequence {
        name: "set in a block of code",
        kinds: &[SettingKind::Reported, SettingKind::Unreported, SettingKind::Planned],
        steps: &[
            Query("begin"),
            Query("do $$ begin set local NAME to 'VALUE'; end $$"),
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Query("commit"),
            Wait,
            Parse("t"),
            Run("t"),
            Sync,
            Wait,
        ],
    },
    StepSequence {
        name: "prepared in SQL",
        kinds: &[SettingKind::Reported, SettingKind::Unreported, SettingKind::Planned],
        steps: &[
            Query("begin"),
            Wait,
            Query("prepare p as SQL"),
            Wait,
            Query("set local NAME to 'VALUE'"),
            Wait,
            Query("prepare q as SQL"),
            Wait,
            Query("execute p"),
            Wait,
            Query("execute q"),
            Wait,
            Query(
                "rollback; begin; set local NAME to 'VALUE'; prepare r as SQL; execute r; commit",
            ),
            Wait,
        ],
    },
];

impl SettingCase {
    /// The replies to a client with these startup parameters: rows, and SQLSTATEs of errors.
    fn replies(
        &self,
        address: SocketAddr,
        startup: &[(&str, &str)],
        steps: &[TestStep],
    ) -> Vec<String> {
        let mut raw = RawClient::log_in_with(address, startup);
        let (mut found, mut sent, mut ends) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Query(sql) => {
                    push_message(&mut sent, b'Q', &[&self.text(sql), &b"\0"[..]].concat());
                    ends += 1;
                }
                Batch(sql) => {
                    push_message(
                        &mut sent,
                        b'P',
                        &[b"\0", &self.text(sql)[..], b"\0\0\0"].concat(),
                    );
                    push_execution(&mut sent, "");
                }
                Parse(name) => {
                    let body = [name.as_bytes(), b"\0", self.sql.as_bytes(), b"\0\0\0"].concat();
                    push_message(&mut sent, b'P', &body);
                }
                Run(name) => push_execution(&mut sent, name),
                Sync => {
                    push_message(&mut sent, b'S', b"");
                    ends += 1;
                }
                Wait => {
                    raw.0.write_all(&std::mem::take(&mut sent)).unwrap();
                    for _ in 0..std::mem::take(&mut ends) {
                        found.extend(raw.read_until(b'Z').into_iter().filter_map(comparable_part));
                    }
                }
            }
        }
        raw.send(b'X', b"");
        assert!(raw.is_disconnected());
        found
    }

    fn text(&self, sql: &str) -> Vec<u8> {
        let sql = sql.replace("NAME", self.name).replace("SQL", self.sql);
        sql.replace("VALUE", self.second).into_bytes()
    }
}

fn push_message(sent: &mut Vec<u8>, tag: u8, body: &[u8]) {
    sent.push(tag);
    sent.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    sent.extend_from_slice(body);
}

fn push_execution(sent: &mut Vec<u8>, name: &str) {
    push_message(sent, b'B', &[b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"].concat());
    push_message(sent, b'E', b"\0\0\0\0\0");
}

/// The part of a message that must be the same through a pooler.
fn comparable_part((tag, body): (u8, Vec<u8>)) -> Option<String> {
    match tag {
        b'D' => Some(body.escape_ascii().to_string()),
        b'E' => {
            let fields = body.split(|byte| *byte == 0);
            let code = fields.into_iter().find(|field| field.first() == Some(&b'C'))?;
            Some(code.escape_ascii().to_string())
        }
        _ => None,
    }
}

fn direct_address(fixture: &PoolFixture) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, fixture.server.port()).into()
}

fn tracking_settings(size: u32) -> String {
    let names: Vec<_> = CASES.iter().map(|case| format!("{:?}", case.name)).collect();
    format!("tracked-parameters = [{}]\nsizes = {{ pool = {size} }}", names.join(", "))
}

/// A client that has prepared the query of a case under its first value.
fn prepare_under_first_value(case: &SettingCase, pooler: &Pooler) -> RawClient {
    let mut first = RawClient::log_in_with(pooler.addresses()[0], &[(case.name, case.first)]);
    let mut sent = Vec::new();
    for name in ["s", "other"] {
        push_message(
            &mut sent,
            b'P',
            &[name.as_bytes(), b"\0", case.sql.as_bytes(), b"\0\0\0"].concat(),
        );
        push_execution(&mut sent, name);
    }
    push_message(&mut sent, b'S', b"");
    first.0.write_all(&sent).unwrap();
    assert_eq!(
        first.read_until(b'Z').iter().filter(|(tag, _)| *tag == b'D').count(),
        2,
        "{}",
        case.name
    );
    first
}

fn check_literals(fixture: &PoolFixture, pooler: &Pooler) {
    let mut mismatches = Vec::new();
    for case in &CASES {
        let mut check = |what: &str, startup: &[(&str, &str)], steps: &[TestStep]| {
            let expected = case.replies(direct_address(fixture), startup, steps);
            let found = case.replies(pooler.addresses()[0], startup, steps);
            if found != expected {
                mismatches
                    .push(format!("{}, {what}: {found:?} instead of {expected:?}", case.name));
            }
        };
        for history in STEP_SEQUENCES.iter().filter(|it| it.kinds.contains(&case.kind)) {
            drop(prepare_under_first_value(case, pooler));
            let first = &[(case.name, case.first)][..];
            check(history.name, &[], history.steps);
            check(history.name, first, history.steps);
        }
        let prepare: &[TestStep] = &[
            Parse("s"),
            Run("s"),
            Sync,
            Wait,
            Run("s"),
            Sync,
            Wait,
            Parse(""),
            Run(""),
            Sync,
            Wait,
            Query("begin"),
            Wait,
            Query("prepare p as SQL"),
            Wait,
            Query("execute p"),
            Wait,
            Query("rollback"),
            Wait,
        ];
        check("startup", &[(case.name, case.second)], prepare);
        check("startup, the other", &[(case.name, case.first)], prepare);
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

#[test]
fn literals_follow_client_settings_in_transaction_mode() {
    let Some(mut fixture) = PoolFixture::start("literals", "") else { return };
    fixture.pooler = start_pooler(&fixture.server, &tracking_settings(1));
    check_literals(&fixture, &fixture.pooler);
}

#[test]
fn literals_follow_client_settings_on_postgresql_18() {
    let Some(mut fixture) = PoolFixture::start_major("literals", 18, "") else { return };
    fixture.pooler = start_pooler(&fixture.server, &tracking_settings(1));
    check_literals(&fixture, &fixture.pooler);
}

#[test]
fn literals_follow_client_settings_in_session_mode() {
    let Some(mut fixture) = PoolFixture::start("literals", "") else { return };
    fixture.pooler = start_pooler_in_mode(&fixture.server, "session", &tracking_settings(1));
    check_literals(&fixture, &fixture.pooler);
}

/// Runs a named statement in a batch, after a Parse if `parse`.
fn run_prepared(raw: &mut RawClient, case: &SettingCase, parse: bool) -> Vec<String> {
    let mut sent = Vec::new();
    if parse {
        push_message(&mut sent, b'P', &[b"s\0", case.sql.as_bytes(), b"\0\0\0"].concat());
    }
    push_execution(&mut sent, "s");
    push_message(&mut sent, b'S', b"");
    raw.0.write_all(&sent).unwrap();
    raw.read_until(b'Z').into_iter().filter_map(comparable_part).collect()
}

fn run_query(raw: &mut RawClient, sql: &str) {
    raw.send_query(sql);
    raw.read_until(b'Z');
}

#[test]
fn connections_with_other_role_settings_share_no_statements() {
    let Some(fixture) = PoolFixture::start("literals", "sizes = { pool = 2 }") else { return };
    for case in &CASES {
        let pooler = start_pooler(&fixture.server, "sizes = { pool = 2 }");
        let address = pooler.addresses()[0];
        let old = run_prepared(&mut RawClient::log_in(direct_address(&fixture)), case, true);
        let mut before = RawClient::log_in(address);
        run_query(&mut before, "begin");
        assert_eq!(run_prepared(&mut before, case, true), old, "{}", case.name);
        fixture
            .query_server(&format!("alter role postgres set {} to '{}'", case.name, case.second));
        let new = run_prepared(&mut RawClient::log_in(direct_address(&fixture)), case, true);
        assert_ne!(old, new, "{}", case.name);
        let mut after = RawClient::log_in(address);
        run_query(&mut after, "begin");
        assert_eq!(run_prepared(&mut after, case, true), new, "{}", case.name);
        run_query(&mut after, "rollback");
        // The first client gets the newer connection while another one has the older one.
        let mut another = RawClient::log_in(address);
        run_query(&mut before, "rollback");
        run_query(&mut another, "begin");
        if case.kind != SettingKind::Planned {
            assert_eq!(run_prepared(&mut before, case, false), old, "{}", case.name);
        }
        run_query(&mut another, "rollback");
        fixture.query_server(&format!("alter role postgres reset {}", case.name));
    }
}

#[test]
fn statements_without_literals_are_shared_across_settings() {
    let Some(mut fixture) = PoolFixture::start("literals", "") else { return };
    fixture.pooler = start_pooler(&fixture.server, &tracking_settings(1));
    let parses = |zone| {
        let mut raw = RawClient::log_in_with(fixture.address(), &[("TimeZone", zone)]);
        let mut sent = Vec::new();
        for (name, sql) in [("a", "select $1 + 1"), ("b", "select '1' || $1")] {
            push_message(
                &mut sent,
                b'P',
                &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat(),
            );
        }
        push_message(&mut sent, b'S', b"");
        raw.0.write_all(&sent).unwrap();
        raw.read_until(b'Z');
    };
    ["UTC", "Asia/Tokyo", "UTC", "CET"].iter().for_each(|zone| parses(zone));
    let control = fixture.pooler.control();
    let totals = control.snapshot(false);
    let tally = &totals.pools.iter().find(|pool| pool.database == "postgres").unwrap().tally;
    assert_eq!((tally.client_parses, tally.server_parses), (8, 4));
}
