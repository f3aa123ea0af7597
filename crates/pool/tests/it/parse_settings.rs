//! Settings that change what a literal means: each client finds its own in what it prepares, whatever other
//! clients have prepared by the same text on the same server connection.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
};

use howdah_pool::Pooler;

use crate::support::{Raw, Stage, pooler, pooler_in};

/// A setting, two of its values, and a query whose answer depends on which of them is in force.
struct Case {
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
    kind: Kind,
}

/// How long a value holds that a client has set, and what it is used for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The server reports it, so it follows the client.
    Reported,
    /// It lasts for a transaction.
    Unreported,
    /// The same, and it is used when a statement is planned, which is at its first use.
    Planned,
}

const fn reported(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> Case {
    Case { name, first, second, sql, kind: Kind::Reported }
}

const fn unreported(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> Case {
    Case { name, first, second, sql, kind: Kind::Unreported }
}

const fn planned(
    name: &'static str,
    first: &'static str,
    second: &'static str,
    sql: &'static str,
) -> Case {
    Case { name, first, second, sql, kind: Kind::Planned }
}

const CASES: [Case; 13] = [
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

/// What a client sends.
#[derive(Clone, Copy)]
enum Step {
    /// A query string with the second value in the place of `VALUE`, and the query in that of `SQL`.
    Query(&'static str),
    /// The same as a batch of the extended protocol, without a Sync.
    Batch(&'static str),
    /// A Parse of the query by a name, without a Sync.
    Parse(&'static str),
    /// Bind and Execute by a name, without a Sync.
    Run(&'static str),
    Sync,
    /// Waits for all answers.
    Wait,
}

use Step::{Batch, Parse, Query, Run, Sync, Wait};

struct History {
    name: &'static str,
    kinds: &'static [Kind],
    steps: &'static [Step],
}

const HISTORIES: [History; 13] = [
    History {
        name: "set",
        kinds: &[Kind::Reported],
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
    History {
        name: "set and parse in one write",
        kinds: &[Kind::Reported],
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
    History {
        name: "set after parse",
        kinds: &[Kind::Reported],
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
    History {
        name: "set after parse without a name",
        kinds: &[Kind::Reported],
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
    History {
        name: "set in a transaction",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set local",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set local by a function",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set in one batch",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set by a function in one batch",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set and rollback in one batch",
        kinds: &[Kind::Reported, Kind::Unreported],
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
    History {
        name: "set in transactions",
        kinds: &[Kind::Reported, Kind::Unreported, Kind::Planned],
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
    History {
        name: "set in a block of code",
        kinds: &[Kind::Reported, Kind::Unreported, Kind::Planned],
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
    History {
        name: "prepared in SQL",
        kinds: &[Kind::Reported, Kind::Unreported, Kind::Planned],
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

impl Case {
    /// What a client with these startup parameters is answered: the bodies of rows, and codes of errors.
    fn answers(
        &self,
        address: SocketAddr,
        startup: &[(&str, &str)],
        steps: &[Step],
    ) -> Vec<String> {
        let mut raw = Raw::log_in_with(address, startup);
        let (mut found, mut sent, mut ends) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Query(sql) => {
                    push(&mut sent, b'Q', &[&self.text(sql), &b"\0"[..]].concat());
                    ends += 1;
                }
                Batch(sql) => {
                    push(&mut sent, b'P', &[b"\0", &self.text(sql)[..], b"\0\0\0"].concat());
                    run(&mut sent, "");
                }
                Parse(name) => {
                    let body = [name.as_bytes(), b"\0", self.sql.as_bytes(), b"\0\0\0"].concat();
                    push(&mut sent, b'P', &body);
                }
                Run(name) => run(&mut sent, name),
                Sync => {
                    push(&mut sent, b'S', b"");
                    ends += 1;
                }
                Wait => {
                    raw.0.write_all(&std::mem::take(&mut sent)).unwrap();
                    for _ in 0..std::mem::take(&mut ends) {
                        found.extend(raw.until(b'Z').into_iter().filter_map(essence));
                    }
                }
            }
        }
        raw.send(b'X', b"");
        assert!(raw.is_hung_up_on());
        found
    }

    fn text(&self, sql: &str) -> Vec<u8> {
        let sql = sql.replace("NAME", self.name).replace("SQL", self.sql);
        sql.replace("VALUE", self.second).into_bytes()
    }
}

fn push(sent: &mut Vec<u8>, tag: u8, body: &[u8]) {
    sent.push(tag);
    sent.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    sent.extend_from_slice(body);
}

fn run(sent: &mut Vec<u8>, name: &str) {
    push(sent, b'B', &[b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"].concat());
    push(sent, b'E', b"\0\0\0\0\0");
}

/// What of a message has to be the same through a pooler.
fn essence((tag, body): (u8, Vec<u8>)) -> Option<String> {
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

fn direct_address(stage: &Stage) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, stage.server.port()).into()
}

fn tracking(size: u32) -> String {
    let names: Vec<_> = CASES.iter().map(|case| format!("{:?}", case.name)).collect();
    format!("tracked-parameters = [{}]\nsizes = {{ pool = {size} }}", names.join(", "))
}

/// A client that has prepared the query of a case under its first value, and stays.
fn first_client(case: &Case, pooler: &Pooler) -> Raw {
    let mut first = Raw::log_in_with(pooler.addresses()[0], &[(case.name, case.first)]);
    let mut sent = Vec::new();
    for name in ["s", "other"] {
        push(&mut sent, b'P', &[name.as_bytes(), b"\0", case.sql.as_bytes(), b"\0\0\0"].concat());
        run(&mut sent, name);
    }
    push(&mut sent, b'S', b"");
    first.0.write_all(&sent).unwrap();
    assert_eq!(
        first.until(b'Z').iter().filter(|(tag, _)| *tag == b'D').count(),
        2,
        "{}",
        case.name
    );
    first
}

fn literals_are_those_of_the_client(stage: &Stage, pooler: &Pooler) {
    let mut wrong = Vec::new();
    for case in &CASES {
        let mut check = |what: &str, startup: &[(&str, &str)], steps: &[Step]| {
            let expected = case.answers(direct_address(stage), startup, steps);
            let found = case.answers(pooler.addresses()[0], startup, steps);
            if found != expected {
                wrong.push(format!("{}, {what}: {found:?} and not {expected:?}", case.name));
            }
        };
        for history in HISTORIES.iter().filter(|it| it.kinds.contains(&case.kind)) {
            drop(first_client(case, pooler));
            let first = &[(case.name, case.first)][..];
            check(history.name, &[], history.steps);
            check(history.name, first, history.steps);
        }
        let prepare: &[Step] = &[
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
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clients_with_other_settings_find_their_own_literals_in_transaction_mode() {
    let Some(mut stage) = Stage::set("literals", "") else { return };
    stage.pooler = pooler(&stage.server, &tracking(1));
    literals_are_those_of_the_client(&stage, &stage.pooler);
}

#[test]
fn clients_with_other_settings_find_their_own_literals_on_postgresql_18() {
    let Some(mut stage) = Stage::of_major("literals", 18, "") else { return };
    stage.pooler = pooler(&stage.server, &tracking(1));
    literals_are_those_of_the_client(&stage, &stage.pooler);
}

#[test]
fn clients_with_other_settings_find_their_own_literals_in_session_mode() {
    let Some(mut stage) = Stage::set("literals", "") else { return };
    stage.pooler = pooler_in(&stage.server, "session", &tracking(1));
    literals_are_those_of_the_client(&stage, &stage.pooler);
}

/// Runs a query by name on a client, in a batch of its own.
fn ask(raw: &mut Raw, case: &Case, parse: bool) -> Vec<String> {
    let mut sent = Vec::new();
    if parse {
        push(&mut sent, b'P', &[b"s\0", case.sql.as_bytes(), b"\0\0\0"].concat());
    }
    run(&mut sent, "s");
    push(&mut sent, b'S', b"");
    raw.0.write_all(&sent).unwrap();
    raw.until(b'Z').into_iter().filter_map(essence).collect()
}

fn say(raw: &mut Raw, sql: &str) {
    raw.query(sql);
    raw.until(b'Z');
}

#[test]
fn server_connections_older_than_a_roles_settings_share_no_literals_with_younger_ones() {
    let Some(stage) = Stage::set("literals", "sizes = { pool = 2 }") else { return };
    for case in &CASES {
        let pooler = pooler(&stage.server, "sizes = { pool = 2 }");
        let address = pooler.addresses()[0];
        let old = ask(&mut Raw::log_in(direct_address(&stage)), case, true);
        let mut before = Raw::log_in(address);
        say(&mut before, "begin");
        assert_eq!(ask(&mut before, case, true), old, "{}", case.name);
        stage.direct(&format!("alter role postgres set {} to '{}'", case.name, case.second));
        let new = ask(&mut Raw::log_in(direct_address(&stage)), case, true);
        assert_ne!(old, new, "{}", case.name);
        let mut after = Raw::log_in(address);
        say(&mut after, "begin");
        assert_eq!(ask(&mut after, case, true), new, "{}", case.name);
        say(&mut after, "rollback");
        // The first client goes to the younger connection while another has the older one.
        let mut another = Raw::log_in(address);
        say(&mut before, "rollback");
        say(&mut another, "begin");
        if case.kind != Kind::Planned {
            assert_eq!(ask(&mut before, case, false), old, "{}", case.name);
        }
        say(&mut another, "rollback");
        stage.direct(&format!("alter role postgres reset {}", case.name));
    }
}

#[test]
fn prepared_statements_without_literals_are_shared_whatever_the_settings() {
    let Some(mut stage) = Stage::set("literals", "") else { return };
    stage.pooler = pooler(&stage.server, &tracking(1));
    let parses = |zone| {
        let mut raw = Raw::log_in_with(stage.address(), &[("TimeZone", zone)]);
        let mut sent = Vec::new();
        for (name, sql) in [("a", "select $1 + 1"), ("b", "select '1' || $1")] {
            push(&mut sent, b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat());
        }
        push(&mut sent, b'S', b"");
        raw.0.write_all(&sent).unwrap();
        raw.until(b'Z');
    };
    ["UTC", "Asia/Tokyo", "UTC", "CET"].iter().for_each(|zone| parses(zone));
    let control = stage.pooler.control();
    let totals = control.view(false);
    let tally = &totals.pools.iter().find(|pool| pool.database == "postgres").unwrap().tally;
    assert_eq!((tally.client_parses, tally.server_parses), (8, 4));
}
