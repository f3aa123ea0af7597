//! Routing commands, and the split of reads and writes, with a primary and standbys; in both
//! protocols.

use std::{fs, io::Write as _, path::Path};

use howdah_lab::wait_until;
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use crate::{
    cluster::{AUTO_ROLES, ClusterFixture, FIXED_ROLES, settings},
    support::{RawClient, WAIT_TIMEOUT},
};

/// A client without routing parameters.
fn log_in(fixture: &ClusterFixture) -> RawClient {
    log_in_to_app(fixture.address())
}

pub(crate) fn log_in_to_app(address: std::net::SocketAddr) -> RawClient {
    let mut raw = RawClient::connect(address);
    raw.send_startup_for_database("app", "");
    raw.read_until(b'Z');
    raw
}

/// The replies to a request as text, in order: row values, command tags, `SQLSTATE message` of
/// errors, and the transaction status.
pub(crate) fn read_reply(raw: &mut RawClient) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut output = Vec::new();
    for (tag, body) in raw.read_until(b'Z') {
        output.push(match tag {
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
    output.join(", ")
}

pub(crate) fn query_reply(raw: &mut RawClient, sql: &str) -> String {
    raw.send_query(sql);
    read_reply(raw)
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

/// A Bind with text parameters.
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

/// Sends messages and a Sync, and returns the replies.
pub(crate) fn run_batch(raw: &mut RawClient, messages: &[Vec<u8>]) -> String {
    raw.0.write_all(&[&messages.concat()[..], &sync()].concat()).unwrap();
    read_reply(raw)
}

/// Runs an unnamed statement in the extended protocol.
pub(crate) fn run_extended(raw: &mut RawClient, sql: &str, values: &[&str]) -> String {
    run_batch(raw, &[parse("", sql), bind("", values), execute()])
}

const IS_STANDBY: &str = "select pg_is_in_recovery()";

#[test]
fn session_sets_and_shows_server_role() {
    let Some(fixture) = ClusterFixture::start("role", &FIXED_ROLES, "") else { return };
    let mut raw = fixture.client("any");
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "any, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "SET SERVER ROLE TO 'primary'"), "SET SERVER ROLE, I");
    assert_eq!(query_reply(&mut raw, "show server role;"), "primary, SELECT 1, I");
    for _ in 0..6 {
        assert_eq!(query_reply(&mut raw, IS_STANDBY), "f, SELECT 1, I");
    }
    assert_eq!(query_reply(&mut raw, "set server role to 'replica'"), "SET SERVER ROLE, I");
    for _ in 0..6 {
        assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
    }
    // An invalid value is an error, and changes nothing.
    let wrong = query_reply(&mut raw, "SET SERVER ROLE TO 'leader'");
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "SHOW SHARD"), "unset, SELECT 1, I");
    assert!(query_reply(&mut raw, "SET SHARD TO '1'").starts_with("58000 "));
    assert!(query_reply(&mut raw, "SET SHARDING KEY TO '1'").starts_with("55000 "));
    assert_eq!(query_reply(&mut raw, "SET PRIMARY READS TO 'off'"), "SET PRIMARY READS, I");
    assert_eq!(query_reply(&mut raw, "SHOW PRIMARY READS"), "off, SELECT 1, I");

    // In a transaction the role cannot be changed.
    assert_eq!(query_reply(&mut raw, "begin"), "BEGIN, T");
    let late = query_reply(&mut raw, "SET SERVER ROLE TO 'primary'");
    assert_eq!(late, "25001 SET SERVER ROLE is not possible inside a transaction, T");
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, T");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, T");
    assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");

    // `target_session_attrs` at login sets the default.
    let mut raw = fixture.client("read-only");
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "replica, SELECT 1, I");
    query_reply(&mut raw, "SET SERVER ROLE TO 'primary'");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "f, SELECT 1, I");
    query_reply(&mut raw, "SET SERVER ROLE TO 'default'");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
}

#[test]
fn commands_are_answered_in_order_in_extended_protocol() {
    let Some(fixture) = ClusterFixture::start("role_extended", &FIXED_ROLES, "") else { return };
    let mut raw = fixture.client("any");
    let describe = message(b'D', &[b"P\0"]);
    let messages = [parse("", "SET SERVER ROLE TO 'replica'"), bind("", &[]), describe, execute()];
    assert_eq!(run_batch(&mut raw, &messages), "parsed, bound, no data, SET SERVER ROLE, I");
    assert_eq!(run_extended(&mut raw, IS_STANDBY, &[]), "parsed, bound, t, SELECT 1, I");
    // A named statement, described and executed repeatedly.
    let show = "SHOW SERVER ROLE";
    assert_eq!(run_batch(&mut raw, &[parse("role", show)]), "parsed, I");
    assert!(run_batch(&mut raw, &[parse("role", show)]).starts_with("42P05 "));
    raw.0.set_nodelay(true).unwrap();
    let described = [message(b'D', &[b"Srole\0"]), sync()].concat();
    raw.0.write_all(&described).unwrap();
    let tags: Vec<u8> = raw.read_until(b'Z').into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, b"tTZ");
    for role in ["primary", "replica"] {
        let to = format!("SET SERVER ROLE TO '{role}'");
        assert_eq!(run_extended(&mut raw, &to, &[]), "parsed, bound, SET SERVER ROLE, I");
        let again = run_batch(&mut raw, &[bind("role", &[]), execute()]);
        assert_eq!(again, format!("bound, {role}, SELECT 1, I"));
    }
    assert_eq!(run_batch(&mut raw, &[message(b'C', &[b"Srole\0"])]), "closed, I");
    assert!(run_batch(&mut raw, &[bind("role", &[])]).starts_with("26000 "));
    // An error ends the batch, but does not affect the next one.
    let wrong = run_batch(
        &mut raw,
        &[parse("", "SET SHARD TO '7'"), bind("", &[]), execute(), execute(), execute()],
    );
    assert!(wrong.starts_with("parsed, bound, 58000 ") && wrong.ends_with("unset, I"), "{wrong}");
    // Pipelined commands and queries are answered in order.
    let pipelined = [
        message(b'Q', &[b"select pg_sleep(0.2)::text || 'slept'\0"]),
        message(b'Q', &[b"SET SERVER ROLE TO 'primary'\0"]),
        message(b'Q', &[IS_STANDBY.as_bytes(), b"\0"]),
        message(b'Q', &[b"SET SERVER ROLE TO 'replica'\0"]),
        message(b'Q', &[IS_STANDBY.as_bytes(), b"\0"]),
    ];
    raw.0.write_all(&pipelined.concat()).unwrap();
    let answers: Vec<_> = pipelined.iter().map(|_| read_reply(&mut raw)).collect();
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
    // A command in a batch with other statements is refused.
    let mixed = run_batch(
        &mut raw,
        &[parse("", show), bind("", &[]), execute(), parse("", "select 1"), bind("", &[])],
    );
    assert!(mixed.starts_with("0A000 "), "{mixed}");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
    // The same in a transaction.
    assert_eq!(query_reply(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(run_extended(&mut raw, show, &[]), "parsed, bound, replica, SELECT 1, T");
    let late = run_extended(&mut raw, "SET SERVER ROLE TO 'any'", &[]);
    assert!(late.starts_with("parsed, bound, 25001 ") && late.ends_with(", T"), "{late}");
    assert_eq!(run_extended(&mut raw, IS_STANDBY, &[]), "parsed, bound, t, SELECT 1, T");
    assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");
}

const READ_SPLIT: &str = "cluster = { role = \"auto\" }
    routing = { primary-reads = false, hints = true, read-only-functions = [\"reads_only\"] }";

#[test]
fn reads_go_to_standbys_and_writes_to_primary() {
    let Some(fixture) = ClusterFixture::start("split", &AUTO_ROLES, READ_SPLIT) else { return };
    fixture.query_server(0, "create table t (a int)");
    fixture.query_server(
        0,
        "create function reads_only() returns bool language sql as 'select pg_is_in_recovery()'",
    );
    fixture.query_server(
        0,
        "create function writes() returns bool language sql as 'select pg_is_in_recovery()'",
    );
    for standby in [1, 2] {
        wait_until("the functions at standbys", WAIT_TIMEOUT, || {
            fixture.query_server(standby, "select to_regproc('writes') is not null") == "t"
        });
    }
    let mut raw = log_in(&fixture);
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    for _ in 0..4 {
        assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
        assert_eq!(run_extended(&mut raw, IS_STANDBY, &[]), "parsed, bound, t, SELECT 1, I");
        assert_eq!(query_reply(&mut raw, "insert into t values (1)"), "INSERT 0 1, I");
        assert_eq!(
            run_extended(&mut raw, "insert into t values ($1)", &["2"]),
            "parsed, bound, INSERT 0 1, I"
        );
        assert_eq!(
            query_reply(&mut raw, "select pg_is_in_recovery() for update"),
            "f, SELECT 1, I"
        );
    }
    // Unknown functions need the primary, unless configured as read-only.
    assert_eq!(query_reply(&mut raw, "select writes()"), "f, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "select reads_only()"), "t, SELECT 1, I");
    // A transaction stays at one server.
    assert_eq!(query_reply(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "f, SELECT 1, T");
    assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");
    assert_eq!(query_reply(&mut raw, "begin read only"), "BEGIN, T");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, T");
    let read_only = query_reply(&mut raw, "insert into t values (3)");
    assert!(read_only.starts_with("25006 ") && read_only.ends_with(", E"), "{read_only}");
    assert_eq!(query_reply(&mut raw, "rollback"), "ROLLBACK, I");
    // A batch runs on one server: with a write, its reads run on the primary.
    let both = [
        parse("", IS_STANDBY),
        bind("", &[]),
        execute(),
        parse("", "insert into t values ($1)"),
        bind("", &["4"]),
        execute(),
    ];
    let written = run_batch(&mut raw, &both);
    assert_eq!(written, "parsed, bound, f, SELECT 1, parsed, bound, INSERT 0 1, I");
    // Prepared once, executed repeatedly.
    assert_eq!(run_batch(&mut raw, &[parse("w", "insert into t values ($1)")]), "parsed, I");
    assert_eq!(run_batch(&mut raw, &[parse("r", IS_STANDBY)]), "parsed, I");
    for _ in 0..3 {
        assert_eq!(run_batch(&mut raw, &[bind("w", &["5"]), execute()]), "bound, INSERT 0 1, I");
        assert_eq!(run_batch(&mut raw, &[bind("r", &[]), execute()]), "bound, t, SELECT 1, I");
    }
    // Pipelined statements are routed individually.
    let query = |sql: &str| message(b'Q', &[sql.as_bytes(), b"\0"]);
    let pipelined =
        [query(IS_STANDBY), query("insert into t values (6)"), query(IS_STANDBY)].concat();
    raw.0.write_all(&pipelined).unwrap();
    let answers = [read_reply(&mut raw), read_reply(&mut raw), read_reply(&mut raw)];
    assert_eq!(answers, ["t, SELECT 1, I", "INSERT 0 1, I", "t, SELECT 1, I"]);
    // Hints apply to one statement; an invalid one is refused without ending the session.
    assert_eq!(
        query_reply(&mut raw, &format!("/* role: primary */ {IS_STANDBY}")),
        "f, SELECT 1, I"
    );
    assert_eq!(
        query_reply(&mut raw, &format!("{IS_STANDBY} /* role: replica */")),
        "t, SELECT 1, I"
    );
    assert_eq!(
        run_extended(&mut raw, &format!("/* role: primary */ {IS_STANDBY}"), &[]),
        "parsed, bound, f, SELECT 1, I"
    );
    let wrong = query_reply(&mut raw, "/* role: leader */ select 1");
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    let wrong = run_extended(&mut raw, "/* role: leader */ select 1", &[]);
    assert!(wrong.starts_with("22023 ") && wrong.ends_with(", I"), "{wrong}");
    // With primary reads, the primary serves reads as well.
    assert_eq!(query_reply(&mut raw, "SET PRIMARY READS TO 'on'"), "SET PRIMARY READS, I");
    let mut found: Vec<_> = (0..6).map(|_| query_reply(&mut raw, IS_STANDBY)).collect();
    found.sort();
    found.dedup();
    assert_eq!(found, ["f, SELECT 1, I", "t, SELECT 1, I"]);
    assert_eq!(fixture.query_server(0, "select count(*) from t"), "13");
}

#[test]
fn first_statement_fixes_server_in_session_mode() {
    let more = "mode = \"session\"\ncluster = { role = \"auto\" }";
    let Some(fixture) = ClusterFixture::start("role_session", &FIXED_ROLES, more) else { return };
    let mut raw = log_in(&fixture);
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "f, SELECT 1, I");
    let late = query_reply(&mut raw, "SET SERVER ROLE TO 'replica'");
    assert!(late.starts_with("25001 ") && late.contains("session mode"), "{late}");
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    let mut raw = log_in(&fixture);
    assert_eq!(query_reply(&mut raw, "SET SERVER ROLE TO 'replica'"), "SET SERVER ROLE, I");
    for _ in 0..4 {
        assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
    }
}

#[test]
fn reload_changes_routing() {
    let Some(fixture) = ClusterFixture::start("role_reload", &FIXED_ROLES, "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    let write =
        |more: &str| fs::write(&file, settings(&fixture.servers, &FIXED_ROLES, more)).unwrap();
    write("");
    let config = Config::read(Path::new(&file)).unwrap().config;
    let origin = ConfigOrigin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
    let mut raw = log_in_to_app(pooler.addresses()[0]);
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "any, SELECT 1, I");
    write("cluster = { role = \"auto\" }\nrouting = { primary-reads = false }");
    pooler.control().reload().unwrap();
    assert_eq!(query_reply(&mut raw, "SHOW SERVER ROLE"), "auto, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "select pg_is_in_recovery() for update"), "f, SELECT 1, I");
    // The client's own setting is retained.
    query_reply(&mut raw, "SET SERVER ROLE TO 'primary'");
    write("cluster = { role = \"replica\" }");
    pooler.control().reload().unwrap();
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "f, SELECT 1, I");
    query_reply(&mut raw, "SET SERVER ROLE TO DEFAULT");
    assert_eq!(query_reply(&mut raw, IS_STANDBY), "t, SELECT 1, I");
}
