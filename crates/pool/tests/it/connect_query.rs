//! What `connect-query` has set up is there for every client, whatever the one before it has done.

use howdah_lab::{Cluster, or_say_why_not};

use crate::{
    cluster::until,
    support::{Raw, Stage, pooler_of},
};

/// A server whose database has the tables `tenant.t` and the roles `alice` and `bob`, and a pooler with one
/// connection to it, which begins with `query`.
fn stage(test: &str, mode: &str, query: &str, more: &str) -> Option<Stage> {
    let server = or_say_why_not(test, Cluster::builder().start())?;
    let pooler = pooler_of(&format!(
        "[pool]\nmode = '{mode}'\nworkers = 1\nsizes = {{ pool = 1 }}\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{port}']\n\
         connect-query = \"{query}\"\n",
        port = server.port()
    ));
    let stage = Stage { server, pooler };
    stage.direct(
        "create schema tenant; create table tenant.t (); create role alice; create role bob",
    );
    Some(stage)
}

/// The first column of the rows of a query string, as text.
fn column(raw: &mut Raw, sql: &str) -> Vec<String> {
    raw.query(sql);
    let rows = raw.until(b'Z').into_iter().filter(|(tag, _)| *tag == b'D');
    rows.map(|(_, row)| String::from_utf8_lossy(&row[6..]).into_owned()).collect()
}

fn value(stage: &Stage, sql: &str) -> String {
    column(&mut Raw::log_in(stage.address()), sql).join(",")
}

/// Has a client send query strings, of which some may be refused.
fn disturb(stage: &Stage, statements: &[&str]) {
    let mut raw = Raw::log_in(stage.address());
    for sql in statements {
        raw.query(sql);
        raw.until(b'Z');
    }
}

const PROCESS: &str = "select pg_backend_pid()::text";

const DISTURBANCES: [&[&str]; 12] = [
    &["set work_mem = '9MB'"],
    &["reset all"],
    &["discard all"],
    &["reset search_path; reset enable_seqscan"],
    &["set search_path = elsewhere"],
    &["select set_config('search_path', 'elsewhere', false)"],
    &["set role bob"],
    &["reset role"],
    &["set session authorization default"],
    &["begin; set local search_path = elsewhere; reset all; rollback", "begin; reset all; commit"],
    &["create temp table x ()", "select pg_advisory_lock(1)", "prepare p as select 1"],
    &["set timezone = 'CET'", "reset timezone"],
];

#[test]
fn settings_of_the_connect_query_survive_every_reset() {
    let query =
        "set search_path = tenant, public; set enable_seqscan = off; set timezone = 'Asia/Tokyo'";
    let expected = "tenant, public|off|Asia/Tokyo";
    let sql = "select concat_ws('|', current_setting('search_path'), current_setting('enable_seqscan'), \
               current_setting('timezone'))";
    for mode in ["transaction", "session", "statement"] {
        let Some(stage) = stage("connect-query", mode, query, "") else { return };
        let process = value(&stage, PROCESS);
        for statements in DISTURBANCES {
            disturb(&stage, statements);
            assert_eq!(value(&stage, sql), expected, "{mode}: {statements:?}");
        }
        assert_eq!(value(&stage, PROCESS), process, "{mode}: the connection is kept");
    }
}

#[test]
fn role_of_the_connect_query_survives_every_reset() {
    for more in ["", "reset-query-always = true"] {
        let Some(stage) = stage("connect-query", "transaction", "set role alice", more) else {
            return;
        };
        let process = value(&stage, PROCESS);
        for statements in DISTURBANCES {
            disturb(&stage, statements);
            assert_eq!(value(&stage, "select current_user"), "alice", "{more}: {statements:?}");
        }
        assert_eq!(value(&stage, PROCESS), process, "the connection is kept");
    }
}

#[test]
fn connection_is_replaced_where_the_connect_query_is_more_than_settings() {
    let query = "create temp table own as select 7 as n; set search_path = tenant";
    let Some(stage) = stage("connect-query", "transaction", query, "") else { return };
    let process = value(&stage, PROCESS);
    disturb(&stage, &["set timezone = 'CET'", "begin", "set local work_mem = '9MB'", "commit"]);
    assert_eq!(value(&stage, PROCESS), process, "nothing had to be reset");
    for statements in [
        &["set work_mem = '9MB'"][..],
        &["create temp table x ()"],
        &["discard temp"],
        &["drop table own"],
        &["discard all"],
    ] {
        let before = value(&stage, PROCESS);
        disturb(&stage, statements);
        let after = value(
            &stage,
            "select n::text from own union all select current_setting('search_path')",
        );
        assert_eq!(after, "7,tenant", "{statements:?}");
        assert_ne!(value(&stage, PROCESS), before, "{statements:?}");
    }
}

#[test]
fn connection_is_closed_if_the_connect_query_fails_after_a_reset() {
    let Some(stage) = stage("connect-query", "transaction", "set role alice", "") else { return };
    let process = value(&stage, PROCESS);
    stage.direct("drop role alice");
    disturb(&stage, &["set work_mem = '9MB'"]);
    let mut raw = Raw::connect(stage.address());
    raw.start(0, "");
    let mut refused = false;
    while let Ok((tag, body)) = raw.message() {
        let is_missing = body.windows(5).any(|code| code == b"alice");
        refused |= tag == b'E' && is_missing;
        assert_ne!(tag, b'D', "nobody works without the role");
        if tag == b'Z' {
            raw.query("select current_user");
        }
    }
    assert!(refused, "the client is sent away, and told why");
    stage.direct("create role alice");
    // New logins are refused until the pause after a failed login is over.
    until("a client logs in again", || {
        let mut raw = Raw::connect(stage.address());
        raw.start(0, "");
        loop {
            match raw.message() {
                Ok((b'Z', _)) => return true,
                Ok((b'E', _)) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    });
    assert_eq!(value(&stage, "select current_user"), "alice");
    assert_ne!(value(&stage, PROCESS), process);
}

#[test]
fn tracked_parameter_goes_back_to_the_value_of_the_connect_query() {
    let (query, more) = ("set search_path = tenant", "tracked-parameters = ['search_path']");
    let Some(stage) = stage("connect-query", "transaction", query, more) else { return };
    let mut own = Raw::log_in_with(stage.address(), &[("search_path", "elsewhere")]);
    for _ in 0..2 {
        assert_eq!(column(&mut own, "show search_path"), ["elsewhere"]);
        assert_eq!(value(&stage, "show search_path"), "tenant");
    }
}
