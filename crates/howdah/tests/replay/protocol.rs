//! Values, statement names, portals, transactions and cancels: each test is a case that a replay of
//! logs easily gets wrong.

use crate::{
    logs::LogBuilder,
    support::{AdvisoryLock, ReplayFixture, disposition_name},
};

#[test]
fn first_event_of_log_is_replayed() {
    let Some(fixture) = ReplayFixture::new("first_event") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("first_event");
    log.query(0, 1, "insert into t values (1)").query(5, 1, "insert into t values (2)");
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value("select string_agg(a::text, ' ' order by a) from t"), "1 2");
}

/// Since PostgreSQL 17 the DETAIL line starts with `Parameters:` instead of `parameters:`.
#[test]
fn postgresql_17_parameter_values_are_replayed() {
    let Some(fixture) = ReplayFixture::new("binds_17") else { return };
    fixture.client().query("create table t (a int, b text, c text)").unwrap();
    let sql = "insert into t values ($1, $2, $3)";
    let mut log = LogBuilder::new("binds_17");
    log.execute(0, 1, "s1", sql, "");
    log.line(0, 1, "DETAIL:  Parameters: $1 = '42', $2 = 'it''s, $9', $3 = NULL");
    log.execute(1, 1, "s1", sql, "$1 = '43', $2 = 'two\nlines', $3 = ''");
    fixture.replay(&log.text, &[]).assert_all_done();
    let row = |a| fixture.value(&format!("select to_json(t) from t where a = {a}"));
    assert_eq!(row(42), r#"{"a":42,"b":"it's, $9","c":null}"#);
    assert_eq!(row(43), r#"{"a":43,"b":"two\nlines","c":""}"#);
}

#[test]
fn extended_begin_and_rollback_are_replayed() {
    let Some(fixture) = ReplayFixture::new("extended_begin") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("extended_begin");
    let insert = "insert into t values ($1)";
    for (at, (row, end)) in [("1", "ROLLBACK"), ("2", "COMMIT")].iter().enumerate() {
        let at = at as u64 * 10;
        log.execute(at, 1, "<unnamed>", "BEGIN", "");
        log.execute(at + 1, 1, "<unnamed>", insert, &format!("$1 = '{row}'"));
        log.execute(at + 2, 1, "<unnamed>", end, "");
    }
    let replayed = fixture.replay(&log.text, &["--rate", "max"]);
    replayed.assert_all_done();
    assert_eq!(replayed.executions().len(), 6);
    assert_eq!(fixture.value("select string_agg(a::text, ' ') from t"), "2");
}

#[test]
fn reused_statement_name_has_new_text() {
    let Some(fixture) = ReplayFixture::new("name_again") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("name_again");
    log.execute(0, 1, "s1", "insert into t values ($1)", "$1 = '1'");
    log.execute(1, 1, "s1", "insert into t values ($1 * 10)", "$1 = '2'");
    log.execute(2, 1, "s1", "insert into t values ($1)", "$1 = '3'");
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value("select string_agg(a::text, ' ' order by a) from t"), "1 3 20");
}

#[test]
fn deallocated_statements_are_prepared_again() {
    let Some(fixture) = ReplayFixture::new("deallocated") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("deallocated");
    let insert = "insert into t values ($1)";
    log.execute(0, 1, "s1", insert, "$1 = '1'");
    log.query(1, 1, "deallocate all");
    log.execute(2, 1, "s1", insert, "$1 = '2'");
    log.query(3, 1, "select 1; deallocate all");
    log.execute(4, 1, "s1", insert, "$1 = '3'");
    log.execute(5, 1, "<unnamed>", "deallocate all", "");
    log.execute(6, 1, "s1", insert, "$1 = '4'");
    log.query(7, 1, "discard all");
    log.execute(8, 1, "s1", insert, "$1 = '5'");
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value("select string_agg(a::text, ' ' order by a) from t"), "1 2 3 4 5");
}

#[test]
fn portal_fetch_continues_where_it_stopped() {
    let Some(fixture) = ReplayFixture::new("portals") else { return };
    let mut client = fixture.client();
    client.query("create table touched (a int)").unwrap();
    client
        .query(
            "create function touch(a int) returns int volatile language sql \
             as 'insert into touched values (a) returning a'",
        )
        .unwrap();
    let mut log = LogBuilder::new("portals");
    let sql = "select touch(i) from generate_series(1, 1000) i";
    log.query(0, 1, "begin");
    log.execute(1, 1, "S_2/C_3", sql, "");
    // Another portal in between: a fetch must use its own portal, not the last one.
    log.execute(2, 1, "S_4/C_5", "select touch(-i) from generate_series(1, 1000) i", "");
    log.execute(3, 1, "fetch from S_2/C_3", sql, "");
    log.execute(4, 1, "fetch from S_2/C_3", sql, "");
    log.query(5, 1, "commit");
    let replayed = fixture.replay(&log.text, &["--fetch-rows", "30"]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["by_kind"]["fetch"]["done"], 2);
    // 3 × 30 rows, and 30 of the other portal: no portal was restarted.
    assert_eq!(fixture.value("select count(*) from touched where a > 0"), "90");
    assert_eq!(fixture.value("select count(distinct a) from touched where a > 0"), "90");
    assert_eq!(fixture.value("select count(*) from touched where a < 0"), "30");
}

#[test]
fn unusual_statement_names_are_replayed() {
    let Some(fixture) = ReplayFixture::new("odd_names") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("odd_names");
    for (at, name) in (0..).zip(["__asyncpg_stmt_1__", "my-stmt", "a \"b\"", "lrupsc_1_0"]) {
        let value = format!("$1 = '{at}'");
        log.execute(at, 1, name, "insert into t values ($1)", &value);
    }
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value("select count(*) from t"), "4");
}

#[test]
fn failing_statement_aborts_its_transaction_as_captured() {
    let Some(fixture) = ReplayFixture::new("failing") else { return };
    fixture.client().query("create table t (a int primary key)").unwrap();
    let mut log = LogBuilder::new("failing");
    let insert = "insert into t values (1)";
    log.session(1, &[insert, "begin", "insert into t values (2)", insert, "select 1", "commit"]);
    log.query(20, 1, "insert into t values (3)");
    let replayed = fixture.replay(&log.text, &[]);
    assert_eq!(replayed.report["errors"], serde_json::json!({ "23505": 1, "25P02": 1 }));
    assert_eq!(fixture.value("select string_agg(a::text, ' ' order by a) from t"), "1 3");
    assert!(replayed.complete);
}

#[test]
fn cancelled_statement_is_cancelled_at_same_time() {
    let Some(fixture) = ReplayFixture::new("cancelled") else { return };
    // Released only at the end: without the cancel, the statement would wait forever.
    let lock = AdvisoryLock::acquire(fixture.client(), 7);
    let mut log = LogBuilder::new("cancelled");
    let sql = "select pg_advisory_lock(7)";
    log.connect(0, 1).query(10, 1, sql);
    log.line(400, 1, "ERROR:  canceling statement due to user request");
    log.line(400, 1, &format!("STATEMENT:  {sql}"));
    log.query(450, 1, "select 'after it'");
    for rate in ["1", "max"] {
        let replayed = fixture.replay(&log.text, &["--rate", rate]);
        let ends: Vec<_> = replayed.executions().into_iter().map(disposition_name).collect();
        assert_eq!(ends, ["failed", "done"], "at {rate}");
        assert_eq!(replayed.report["errors"], serde_json::json!({ "57014": 1 }), "at {rate}");
        assert_eq!(replayed.report["by_kind"]["cancel"]["done"], 1, "at {rate}");
        assert_eq!(replayed.report["connections_lost"], 0);
        if rate == "1" {
            // The statement ran as long as in the capture.
            let cancelled = replayed.executions()[0].service_us.unwrap();
            assert!(cancelled >= 380_000, "{cancelled}");
        }
    }
    lock.release();
}
