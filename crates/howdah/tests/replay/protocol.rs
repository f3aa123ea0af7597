//! How statements arrive: values, names, portals, transactions, cancels. Each of these stories is
//! one that a replay of logs is easily wrong about.

use crate::{
    logs::Log,
    support::{Gate, Stage, word},
};

#[test]
fn the_first_event_of_a_log_is_replayed() {
    let Some(stage) = Stage::new("first_event") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("first_event");
    log.query(0, 1, "insert into t values (1)").query(5, 1, "insert into t values (2)");
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value("select string_agg(a::text, ' ' order by a) from t"), "1 2");
}

/// The word before the values has a capital letter from that version on.
#[test]
fn postgresql_17_binds_arrive_with_their_values() {
    let Some(stage) = Stage::new("binds_17") else { return };
    stage.client().query("create table t (a int, b text, c text)").unwrap();
    let sql = "insert into t values ($1, $2, $3)";
    let mut log = Log::new("binds_17");
    log.execute(0, 1, "s1", sql, "");
    log.line(0, 1, "DETAIL:  Parameters: $1 = '42', $2 = 'it''s, $9', $3 = NULL");
    log.execute(1, 1, "s1", sql, "$1 = '43', $2 = 'two\nlines', $3 = ''");
    stage.replay(&log.text, &[]).assert_all_done();
    let row = |a| stage.value(&format!("select to_json(t) from t where a = {a}"));
    assert_eq!(row(42), r#"{"a":42,"b":"it's, $9","c":null}"#);
    assert_eq!(row(43), r#"{"a":43,"b":"two\nlines","c":""}"#);
}

#[test]
fn an_extended_begin_without_values_is_played_and_its_rollback_undoes() {
    let Some(stage) = Stage::new("extended_begin") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("extended_begin");
    let insert = "insert into t values ($1)";
    for (at, (row, end)) in [("1", "ROLLBACK"), ("2", "COMMIT")].iter().enumerate() {
        let at = at as u64 * 10;
        log.execute(at, 1, "<unnamed>", "BEGIN", "");
        log.execute(at + 1, 1, "<unnamed>", insert, &format!("$1 = '{row}'"));
        log.execute(at + 2, 1, "<unnamed>", end, "");
    }
    let replayed = stage.replay(&log.text, &["--rate", "max"]);
    replayed.assert_all_done();
    assert_eq!(replayed.executions().len(), 6);
    assert_eq!(stage.value("select string_agg(a::text, ' ') from t"), "2");
}

#[test]
fn a_prepared_name_used_again_means_its_new_text() {
    let Some(stage) = Stage::new("name_again") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("name_again");
    log.execute(0, 1, "s1", "insert into t values ($1)", "$1 = '1'");
    log.execute(1, 1, "s1", "insert into t values ($1 * 10)", "$1 = '2'");
    log.execute(2, 1, "s1", "insert into t values ($1)", "$1 = '3'");
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value("select string_agg(a::text, ' ' order by a) from t"), "1 3 20");
}

#[test]
fn what_deallocate_all_took_away_is_prepared_again() {
    let Some(stage) = Stage::new("deallocated") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("deallocated");
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
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value("select string_agg(a::text, ' ' order by a) from t"), "1 2 3 4 5");
}

#[test]
fn portals_are_fetched_from_where_they_stopped() {
    let Some(stage) = Stage::new("portals") else { return };
    let mut client = stage.client();
    client.query("create table touched (a int)").unwrap();
    client
        .query(
            "create function touch(a int) returns int volatile language sql \
             as 'insert into touched values (a) returning a'",
        )
        .unwrap();
    let mut log = Log::new("portals");
    let sql = "select touch(i) from generate_series(1, 1000) i";
    log.query(0, 1, "begin");
    log.execute(1, 1, "S_2/C_3", sql, "");
    // Another one in between: a fetch is from its own portal, not from the last.
    log.execute(2, 1, "S_4/C_5", "select touch(-i) from generate_series(1, 1000) i", "");
    log.execute(3, 1, "fetch from S_2/C_3", sql, "");
    log.execute(4, 1, "fetch from S_2/C_3", sql, "");
    log.query(5, 1, "commit");
    let replayed = stage.replay(&log.text, &["--fetch-rows", "30"]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["by_kind"]["fetch"]["done"], 2);
    // Three times thirty, and thirty of the other: nothing was run from its beginning again.
    assert_eq!(stage.value("select count(*) from touched where a > 0"), "90");
    assert_eq!(stage.value("select count(distinct a) from touched where a > 0"), "90");
    assert_eq!(stage.value("select count(*) from touched where a < 0"), "30");
}

#[test]
fn names_that_are_no_words_are_names() {
    let Some(stage) = Stage::new("odd_names") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("odd_names");
    for (at, name) in (0..).zip(["__asyncpg_stmt_1__", "my-stmt", "a \"b\"", "lrupsc_1_0"]) {
        let value = format!("$1 = '{at}'");
        log.execute(at, 1, name, "insert into t values ($1)", &value);
    }
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value("select count(*) from t"), "4");
}

#[test]
fn a_failing_statement_is_a_result_and_fails_its_transaction_as_it_did() {
    let Some(stage) = Stage::new("failing") else { return };
    stage.client().query("create table t (a int primary key)").unwrap();
    let mut log = Log::new("failing");
    let insert = "insert into t values (1)";
    log.session(1, &[insert, "begin", "insert into t values (2)", insert, "select 1", "commit"]);
    log.query(20, 1, "insert into t values (3)");
    let replayed = stage.replay(&log.text, &[]);
    assert_eq!(replayed.report["errors"], serde_json::json!({ "23505": 1, "25P02": 1 }));
    assert_eq!(stage.value("select string_agg(a::text, ' ' order by a) from t"), "1 3");
    assert!(replayed.complete);
}

#[test]
fn a_cancelled_statement_is_cancelled_at_the_same_point() {
    let Some(stage) = Stage::new("cancelled") else { return };
    // Nobody opens it: without a cancel the statement would wait for ever.
    let gate = Gate::close(stage.client(), 7);
    let mut log = Log::new("cancelled");
    let sql = "select pg_advisory_lock(7)";
    log.connect(0, 1).query(10, 1, sql);
    log.line(400, 1, "ERROR:  canceling statement due to user request");
    log.line(400, 1, &format!("STATEMENT:  {sql}"));
    log.query(450, 1, "select 'after it'");
    for rate in ["1", "max"] {
        let replayed = stage.replay(&log.text, &["--rate", rate]);
        let ends: Vec<_> = replayed.executions().into_iter().map(word).collect();
        assert_eq!(ends, ["failed", "done"], "at {rate}");
        assert_eq!(replayed.report["errors"], serde_json::json!({ "57014": 1 }), "at {rate}");
        assert_eq!(replayed.report["by_kind"]["cancel"]["done"], 1, "at {rate}");
        assert_eq!(replayed.report["connections_lost"], 0);
        if rate == "1" {
            // It was given the time that it had.
            let cancelled = replayed.executions()[0].service_us.unwrap();
            assert!(cancelled >= 380_000, "{cancelled}");
        }
    }
    gate.open();
}
