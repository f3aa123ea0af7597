//! The state that `connect-query` sets up is the same for every client, whatever earlier clients
//! did.

use howdah_lab::{Cluster, skip_without_postgres, wait_until};

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, start_pooler_with};

/// A server with the table `tenant.t` and the roles `alice` and `bob`, and a pooler with one
/// connection to it and `query` as its `connect-query`.
fn fixture(test: &str, mode: &str, query: &str, more: &str) -> Option<PoolFixture> {
    let server = skip_without_postgres(test, Cluster::builder().start())?;
    let pooler = start_pooler_with(&format!(
        "[pool]\nmode = '{mode}'\nworkers = 1\nsizes = {{ pool = 1 }}\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{port}']\n\
         connect-query = \"{query}\"\n",
        port = server.port()
    ));
    let fixture = PoolFixture { server, pooler };
    fixture.query_server(
        "create schema tenant; create table tenant.t (); create role alice; create role bob",
    );
    Some(fixture)
}

/// The first column of the rows of a query string, as text.
fn query_column(raw: &mut RawClient, sql: &str) -> Vec<String> {
    raw.send_query(sql);
    let rows = raw.read_until(b'Z').into_iter().filter(|(tag, _)| *tag == b'D');
    rows.map(|(_, row)| String::from_utf8_lossy(&row[6..]).into_owned()).collect()
}

fn query_value(fixture: &PoolFixture, sql: &str) -> String {
    query_column(&mut RawClient::log_in(fixture.address()), sql).join(",")
}

/// Runs statements as a client; some may fail.
fn run_statements(fixture: &PoolFixture, statements: &[&str]) {
    let mut raw = RawClient::log_in(fixture.address());
    for sql in statements {
        raw.send_query(sql);
        raw.read_until(b'Z');
    }
}

const SELECT_PID: &str = "select pg_backend_pid()::text";

const SESSION_CHANGES: [&[&str]; 12] = [
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
fn connect_query_settings_survive_every_reset() {
    let query =
        "set search_path = tenant, public; set enable_seqscan = off; set timezone = 'Asia/Tokyo'";
    let expected = "tenant, public|off|Asia/Tokyo";
    let sql = "select concat_ws('|', current_setting('search_path'), current_setting('enable_seqscan'), \
               current_setting('timezone'))";
    for mode in ["transaction", "session", "statement"] {
        let Some(fixture) = fixture("connect-query", mode, query, "") else { return };
        let process = query_value(&fixture, SELECT_PID);
        for statements in SESSION_CHANGES {
            run_statements(&fixture, statements);
            assert_eq!(query_value(&fixture, sql), expected, "{mode}: {statements:?}");
        }
        assert_eq!(
            query_value(&fixture, SELECT_PID),
            process,
            "{mode}: the connection is retained"
        );
    }
}

#[test]
fn connect_query_role_survives_every_reset() {
    for more in ["", "reset-query-always = true"] {
        let Some(fixture) = fixture("connect-query", "transaction", "set role alice", more) else {
            return;
        };
        let process = query_value(&fixture, SELECT_PID);
        for statements in SESSION_CHANGES {
            run_statements(&fixture, statements);
            assert_eq!(
                query_value(&fixture, "select current_user"),
                "alice",
                "{more}: {statements:?}"
            );
        }
        assert_eq!(query_value(&fixture, SELECT_PID), process, "the connection is retained");
    }
}

#[test]
fn connection_is_replaced_if_connect_query_is_not_only_settings() {
    let query = "create temp table own as select 7 as n; set search_path = tenant";
    let Some(fixture) = fixture("connect-query", "transaction", query, "") else { return };
    let process = query_value(&fixture, SELECT_PID);
    run_statements(
        &fixture,
        &["set timezone = 'CET'", "begin", "set local work_mem = '9MB'", "commit"],
    );
    assert_eq!(query_value(&fixture, SELECT_PID), process, "nothing needed a reset");
    for statements in [
        &["set work_mem = '9MB'"][..],
        &["create temp table x ()"],
        &["discard temp"],
        &["drop table own"],
        &["discard all"],
    ] {
        let before = query_value(&fixture, SELECT_PID);
        run_statements(&fixture, statements);
        let after = query_value(
            &fixture,
            "select n::text from own union all select current_setting('search_path')",
        );
        assert_eq!(after, "7,tenant", "{statements:?}");
        assert_ne!(query_value(&fixture, SELECT_PID), before, "{statements:?}");
    }
}

#[test]
fn connection_is_closed_if_connect_query_fails_after_reset() {
    let Some(fixture) = fixture("connect-query", "transaction", "set role alice", "") else {
        return;
    };
    let process = query_value(&fixture, SELECT_PID);
    fixture.query_server("drop role alice");
    run_statements(&fixture, &["set work_mem = '9MB'"]);
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(0, "");
    let mut refused = false;
    while let Ok((tag, body)) = raw.read_message() {
        let is_missing = body.windows(5).any(|code| code == b"alice");
        refused |= tag == b'E' && is_missing;
        assert_ne!(tag, b'D', "no statement runs without the role");
        if tag == b'Z' {
            raw.send_query("select current_user");
        }
    }
    assert!(refused, "the client gets the error");
    fixture.query_server("create role alice");
    // New logins are refused until the pause after a failed login is over.
    wait_until("a successful login", WAIT_TIMEOUT, || {
        let mut raw = RawClient::connect(fixture.address());
        raw.send_startup(0, "");
        loop {
            match raw.read_message() {
                Ok((b'Z', _)) => return true,
                Ok((b'E', _)) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    });
    assert_eq!(query_value(&fixture, "select current_user"), "alice");
    assert_ne!(query_value(&fixture, SELECT_PID), process);
}

#[test]
fn tracked_parameter_is_reset_to_connect_query_value() {
    let (query, more) = ("set search_path = tenant", "tracked-parameters = ['search_path']");
    let Some(fixture) = fixture("connect-query", "transaction", query, more) else { return };
    let mut own = RawClient::log_in_with(fixture.address(), &[("search_path", "elsewhere")]);
    for _ in 0..2 {
        assert_eq!(query_column(&mut own, "show search_path"), ["elsewhere"]);
        assert_eq!(query_value(&fixture, "show search_path"), "tenant");
    }
}
