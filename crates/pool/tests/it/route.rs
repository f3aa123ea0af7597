//! Commands, and the split of reads and writes, before a primary with standbys; in both protocols.

use std::{fs, io::Write as _, path::Path};

use howdah_pool::{Origin, Pooler, config::Config};

use crate::{
    cluster::{AUTO, NAMED, Stage, settings, until},
    support::Raw,
};

/// A client that says nothing at its start.
fn client(stage: &Stage) -> Raw {
    client_at(stage.address())
}

pub(crate) fn client_at(address: std::net::SocketAddr) -> Raw {
    let mut raw = Raw::connect(address);
    raw.start_in("app", "");
    raw.until(b'Z');
    raw
}

/// What was answered to one request: values of rows, tags, `SQLSTATE message` of errors, and the status of
/// the transaction, in the order they came.
pub(crate) fn said(raw: &mut Raw) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut said = Vec::new();
    for (tag, body) in raw.until(b'Z') {
        said.push(match tag {
            b'D' if body[..2] == [0, 1] => text(&body[6..]),
            b'C' => text(body.strip_suffix(b"\0").unwrap()),
            b'E' => {
                let fields = body.split(|byte| *byte == 0).filter(|field| !field.is_empty());
                let of = |code: u8| fields.clone().find(|field| field[0] == code).unwrap();
                assert_eq!(of(b'V'), b"VERROR", "{}", body.escape_ascii());
                format!("{} {}", text(&of(b'C')[1..]), text(&of(b'M')[1..]))
            }
            b'Z' => text(&body),
            b'1' => "parsed".to_owned(),
            b'2' => "bound".to_owned(),
            b'3' => "closed".to_owned(),
            b'n' => "no data".to_owned(),
            _ => continue,
        });
    }
    said.join(", ")
}

pub(crate) fn asked(raw: &mut Raw, sql: &str) -> String {
    raw.query(sql);
    said(raw)
}

/// A message of the extended protocol.
pub(crate) fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &length, &body].concat()
}

pub(crate) fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"])
}

/// A Bind of texts.
pub(crate) fn bind(name: &str, values: &[&str]) -> Vec<u8> {
    let count = u16::try_from(values.len()).unwrap().to_be_bytes();
    let value = |value: &&str| {
        let length = u32::try_from(value.len()).unwrap().to_be_bytes();
        [&length[..], value.as_bytes()].concat()
    };
    let values: Vec<u8> = values.iter().flat_map(value).collect();
    message(b'B', &[b"\0", name.as_bytes(), b"\0\0\0", &count, &values, b"\0\0"])
}

pub(crate) fn execute() -> Vec<u8> {
    message(b'E', &[b"\0\0\0\0\0"])
}

pub(crate) fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// Sends messages of a batch, and a Sync behind them.
pub(crate) fn batch(raw: &mut Raw, messages: &[Vec<u8>]) -> String {
    raw.0.write_all(&[&messages.concat()[..], &sync()].concat()).unwrap();
    said(raw)
}

/// A statement by the extended protocol, without a name.
pub(crate) fn run(raw: &mut Raw, sql: &str, values: &[&str]) -> String {
    batch(raw, &[parse("", sql), bind("", values), execute()])
}

const STANDBY: &str = "select pg_is_in_recovery()";

#[test]
fn a_session_says_which_servers_it_wants_and_is_told() {
    let Some(stage) = Stage::set("role", &NAMED, "") else { return };
    let mut raw = stage.client("any");
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "any, SELECT 1, I");
    assert_eq!(asked(&mut raw, "SET SERVER ROLE TO 'primary'"), "SET SERVER ROLE, I");
    assert_eq!(asked(&mut raw, "show server role;"), "primary, SELECT 1, I");
    for _ in 0..6 {
        assert_eq!(asked(&mut raw, STANDBY), "f, SELECT 1, I");
    }
    assert_eq!(asked(&mut raw, "set server role to 'replica'"), "SET SERVER ROLE, I");
    for _ in 0..6 {
        assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
    }
    // What cannot be is an error, and nothing has changed.
    let wrong = asked(&mut raw, "SET SERVER ROLE TO 'leader'");
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, I");
    assert_eq!(asked(&mut raw, "SHOW SHARD"), "unset, SELECT 1, I");
    assert!(asked(&mut raw, "SET SHARD TO '1'").starts_with("58000 "));
    assert!(asked(&mut raw, "SET SHARDING KEY TO '1'").starts_with("55000 "));
    assert_eq!(asked(&mut raw, "SET PRIMARY READS TO 'off'"), "SET PRIMARY READS, I");
    assert_eq!(asked(&mut raw, "SHOW PRIMARY READS"), "off, SELECT 1, I");

    // In a transaction it stays where it is.
    assert_eq!(asked(&mut raw, "begin"), "BEGIN, T");
    let late = asked(&mut raw, "SET SERVER ROLE TO 'primary'");
    assert_eq!(late, "25001 SET SERVER ROLE is not possible inside a transaction, T");
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, T");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, T");
    assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");

    // One who said at its start what it wants has that for its default.
    let mut raw = stage.client("read-only");
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, I");
    asked(&mut raw, "SET SERVER ROLE TO 'primary'");
    assert_eq!(asked(&mut raw, STANDBY), "f, SELECT 1, I");
    asked(&mut raw, "SET SERVER ROLE TO 'default'");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
}

#[test]
fn commands_are_answered_in_the_extended_protocol_and_behind_what_was_asked_before() {
    let Some(stage) = Stage::set("role_extended", &NAMED, "") else { return };
    let mut raw = stage.client("any");
    let describe = message(b'D', &[b"P\0"]);
    let messages = [parse("", "SET SERVER ROLE TO 'replica'"), bind("", &[]), describe, execute()];
    assert_eq!(batch(&mut raw, &messages), "parsed, bound, no data, SET SERVER ROLE, I");
    assert_eq!(run(&mut raw, STANDBY, &[]), "parsed, bound, t, SELECT 1, I");
    // By a name, described, and again and again.
    let shown = "SHOW SERVER ROLE";
    assert_eq!(batch(&mut raw, &[parse("role", shown)]), "parsed, I");
    assert!(batch(&mut raw, &[parse("role", shown)]).starts_with("42P05 "));
    raw.0.set_nodelay(true).unwrap();
    let described = [message(b'D', &[b"Srole\0"]), sync()].concat();
    raw.0.write_all(&described).unwrap();
    let tags: Vec<u8> = raw.until(b'Z').into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, b"tTZ");
    for role in ["primary", "replica"] {
        let to = format!("SET SERVER ROLE TO '{role}'");
        assert_eq!(run(&mut raw, &to, &[]), "parsed, bound, SET SERVER ROLE, I");
        let again = batch(&mut raw, &[bind("role", &[]), execute()]);
        assert_eq!(again, format!("bound, {role}, SELECT 1, I"));
    }
    assert_eq!(batch(&mut raw, &[message(b'C', &[b"Srole\0"])]), "closed, I");
    assert!(batch(&mut raw, &[bind("role", &[])]).starts_with("26000 "));
    // An error ends the batch, and the next is as good as ever.
    let wrong = batch(
        &mut raw,
        &[parse("", "SET SHARD TO '7'"), bind("", &[]), execute(), execute(), execute()],
    );
    assert!(wrong.starts_with("parsed, bound, 58000 ") && wrong.ends_with("0), I"), "{wrong}");
    // A command is answered in its turn: what was asked before it, and behind it, too.
    let pipelined = [
        message(b'Q', &[b"select pg_sleep(0.2)::text || 'slept'\0"]),
        message(b'Q', &[b"SET SERVER ROLE TO 'primary'\0"]),
        message(b'Q', &[STANDBY.as_bytes(), b"\0"]),
        message(b'Q', &[b"SET SERVER ROLE TO 'replica'\0"]),
        message(b'Q', &[STANDBY.as_bytes(), b"\0"]),
    ];
    raw.0.write_all(&pipelined.concat()).unwrap();
    let answers: Vec<_> = pipelined.iter().map(|_| said(&mut raw)).collect();
    assert_eq!(
        answers,
        [
            "slept, SELECT 1, I",
            "SET SERVER ROLE, I",
            "f, SELECT 1, I",
            "SET SERVER ROLE, I",
            "t, SELECT 1, I"
        ]
    );
    // Among other statements it is none.
    let mixed = batch(
        &mut raw,
        &[parse("", shown), bind("", &[]), execute(), parse("", "select 1"), bind("", &[])],
    );
    assert!(mixed.starts_with("0A000 "), "{mixed}");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
    // In a transaction, too.
    assert_eq!(asked(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(run(&mut raw, shown, &[]), "parsed, bound, replica, SELECT 1, T");
    let late = run(&mut raw, "SET SERVER ROLE TO 'any'", &[]);
    assert!(late.starts_with("parsed, bound, 25001 ") && late.ends_with(", T"), "{late}");
    assert_eq!(run(&mut raw, STANDBY, &[]), "parsed, bound, t, SELECT 1, T");
    assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");
}

const SPLIT: &str = "cluster = { role = \"auto\" }
    routing = { primary-reads = false, hints = true, read-only-functions = [\"looks\"] }";

#[test]
fn reads_go_to_standbys_and_everything_else_to_the_primary() {
    let Some(stage) = Stage::set("split", &AUTO, SPLIT) else { return };
    stage.direct(0, "create table t (a int)");
    stage.direct(
        0,
        "create function looks() returns bool language sql as 'select pg_is_in_recovery()'",
    );
    stage.direct(
        0,
        "create function acts() returns bool language sql as 'select pg_is_in_recovery()'",
    );
    for standby in [1, 2] {
        until("the functions are everywhere", || {
            stage.direct(standby, "select to_regproc('acts') is not null") == "t"
        });
    }
    let mut raw = client(&stage);
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    for _ in 0..4 {
        assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
        assert_eq!(run(&mut raw, STANDBY, &[]), "parsed, bound, t, SELECT 1, I");
        assert_eq!(asked(&mut raw, "insert into t values (1)"), "INSERT 0 1, I");
        assert_eq!(
            run(&mut raw, "insert into t values ($1)", &["2"]),
            "parsed, bound, INSERT 0 1, I"
        );
        assert_eq!(asked(&mut raw, "select pg_is_in_recovery() for update"), "f, SELECT 1, I");
    }
    // Functions that nobody knows need the primary, unless the settings say otherwise.
    assert_eq!(asked(&mut raw, "select acts()"), "f, SELECT 1, I");
    assert_eq!(asked(&mut raw, "select looks()"), "t, SELECT 1, I");
    // A transaction is where it began.
    assert_eq!(asked(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(asked(&mut raw, STANDBY), "f, SELECT 1, T");
    assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");
    assert_eq!(asked(&mut raw, "begin read only"), "BEGIN, T");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, T");
    let read_only = asked(&mut raw, "insert into t values (3)");
    assert!(read_only.starts_with("25006 ") && read_only.ends_with(", E"), "{read_only}");
    assert_eq!(asked(&mut raw, "rollback"), "ROLLBACK, I");
    // A batch is on one server: a write in it has the reads with it.
    let both = [
        parse("", STANDBY),
        bind("", &[]),
        execute(),
        parse("", "insert into t values ($1)"),
        bind("", &["4"]),
        execute(),
    ];
    let written = batch(&mut raw, &both);
    assert_eq!(written, "parsed, bound, f, SELECT 1, parsed, bound, INSERT 0 1, I");
    // Prepared once, bound again and again.
    assert_eq!(batch(&mut raw, &[parse("w", "insert into t values ($1)")]), "parsed, I");
    assert_eq!(batch(&mut raw, &[parse("r", STANDBY)]), "parsed, I");
    for _ in 0..3 {
        assert_eq!(batch(&mut raw, &[bind("w", &["5"]), execute()]), "bound, INSERT 0 1, I");
        assert_eq!(batch(&mut raw, &[bind("r", &[]), execute()]), "bound, t, SELECT 1, I");
    }
    // Sent without waiting: each goes where it would alone.
    let query = |sql: &str| message(b'Q', &[sql.as_bytes(), b"\0"]);
    let pipelined = [query(STANDBY), query("insert into t values (6)"), query(STANDBY)].concat();
    raw.0.write_all(&pipelined).unwrap();
    let answers = [said(&mut raw), said(&mut raw), said(&mut raw)];
    assert_eq!(answers, ["t, SELECT 1, I", "INSERT 0 1, I", "t, SELECT 1, I"]);
    // Hints, for one statement; one that cannot be is refused, and the session goes on.
    assert_eq!(asked(&mut raw, &format!("/* role: primary */ {STANDBY}")), "f, SELECT 1, I");
    assert_eq!(asked(&mut raw, &format!("{STANDBY} /* role: replica */")), "t, SELECT 1, I");
    assert_eq!(
        run(&mut raw, &format!("/* role: primary */ {STANDBY}"), &[]),
        "parsed, bound, f, SELECT 1, I"
    );
    let wrong = asked(&mut raw, "/* role: leader */ select 1");
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    let wrong = run(&mut raw, "/* role: leader */ select 1", &[]);
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    // With reads on the primary, it takes its part.
    assert_eq!(asked(&mut raw, "SET PRIMARY READS TO 'on'"), "SET PRIMARY READS, I");
    let mut found: Vec<_> = (0..6).map(|_| asked(&mut raw, STANDBY)).collect();
    found.sort();
    found.dedup();
    assert_eq!(found, ["f, SELECT 1, I", "t, SELECT 1, I"]);
    assert_eq!(stage.direct(0, "select count(*) from t"), "13");
}

#[test]
fn in_session_mode_the_first_statement_fixes_the_server() {
    let more = "mode = \"session\"\ncluster = { role = \"auto\" }";
    let Some(stage) = Stage::set("role_session", &NAMED, more) else { return };
    let mut raw = client(&stage);
    assert_eq!(asked(&mut raw, STANDBY), "f, SELECT 1, I");
    let late = asked(&mut raw, "SET SERVER ROLE TO 'replica'");
    assert!(late.starts_with("25001 ") && late.contains("session mode"), "{late}");
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    let mut raw = client(&stage);
    assert_eq!(asked(&mut raw, "SET SERVER ROLE TO 'replica'"), "SET SERVER ROLE, I");
    for _ in 0..4 {
        assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
    }
}

#[test]
fn settings_of_routing_are_followed() {
    let Some(stage) = Stage::set("role_reload", &NAMED, "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    let write = |more: &str| fs::write(&file, settings(&stage.servers, &NAMED, more)).unwrap();
    write("");
    let config = Config::read(Path::new(&file)).unwrap().config;
    let origin = Origin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from(config, Some(origin)).unwrap();
    let mut raw = client_at(pooler.addresses()[0]);
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "any, SELECT 1, I");
    write("cluster = { role = \"auto\" }\nrouting = { primary-reads = false }");
    pooler.control().reload().unwrap();
    assert_eq!(asked(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
    assert_eq!(asked(&mut raw, "select pg_is_in_recovery() for update"), "f, SELECT 1, I");
    // What a client has said stays.
    asked(&mut raw, "SET SERVER ROLE TO 'primary'");
    write("cluster = { role = \"replica\" }");
    pooler.control().reload().unwrap();
    assert_eq!(asked(&mut raw, STANDBY), "f, SELECT 1, I");
    asked(&mut raw, "SET SERVER ROLE TO DEFAULT");
    assert_eq!(asked(&mut raw, STANDBY), "t, SELECT 1, I");
}
