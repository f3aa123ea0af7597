//! The target fails in the middle: that is a result, and the rest is played.

use howdah_lab::{Cluster, or_say_why_not};

use crate::{
    logs::Log,
    support::{Gate, Replayed, Running, Stage, connect, howdah, replay, text, until, value, word},
};

/// A session that is stopped inside its first transaction, has a second one, and then inserts many
/// single rows.
fn interrupted_transaction(database: &str, key: i64) -> Log {
    let mut log = Log::new(database);
    let stop = format!("select pg_advisory_xact_lock({key})");
    let first = ["begin", "insert into t values (1)", &stop, "insert into t values (2)", "commit"];
    log.session(7, &first);
    let mut at = 10;
    for sql in ["begin", "insert into t values (3)", "commit"] {
        log.query(at, 7, sql);
        at += 1;
    }
    for row in 100..200 {
        log.query(at, 7, &format!("insert into t values ({row})"));
        at += 1;
    }
    log
}

/// What was in flight failed, the rest of its transaction was skipped.
fn assert_first_transaction_was_lost(replayed: &Replayed) {
    let executions = replayed.executions();
    let ends: Vec<_> = executions[..5].iter().map(|outcome| word(outcome)).collect();
    assert_eq!(ends, ["done", "done", "failed", "skipped", "skipped"]);
    let reason = "its transaction was lost with the connection";
    assert_eq!(replayed.report["skipped"][reason], 2);
}

#[test]
fn a_terminated_session_connects_again_and_skips_the_rest_of_its_transaction() {
    let Some(stage) = Stage::new("terminated") else { return };
    stage.client().query("create table t (a int)").unwrap();
    stage.write("server.log", &interrupted_transaction("terminated", 1).text);
    let mut gate = Gate::close(stage.client(), 1);
    let running = Running::start(stage.folder.path(), "server.log", &stage.uri(), &["-r", "max"]);
    let victim = gate.wait_for_one();
    gate.client().query(&format!("select pg_terminate_backend({victim})")).unwrap();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_first_transaction_was_lost(&replayed);
    assert_eq!(replayed.report["errors"], serde_json::json!({ "57P01": 1 }));
    assert_eq!(replayed.report["connections_lost"], 1);
    assert_eq!(replayed.report["connections"], 2);
    assert!(replayed.complete);
    // Neither 1 nor 2: their transaction is gone. All that came after it is there.
    assert_eq!(stage.value("select min(a) || ' ' || count(*) from t"), "3 101");
}

#[test]
fn an_idle_session_that_is_terminated_loses_nothing() {
    let Some(stage) = Stage::new("terminated_idle") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("terminated_idle");
    log.connect(0, 1).query(1, 1, "insert into t values (1)");
    log.connect(0, 2).query(2, 2, "select pg_advisory_lock(2)");
    // Due long after the first session has lost its connection, which the second waits for.
    log.query(3, 2, "select 'the gate is open'").query(2_000, 1, "insert into t values (2)");
    stage.write("server.log", &log.text);
    let mut gate = Gate::close(stage.client(), 2);
    let running = Running::start(stage.folder.path(), "server.log", &stage.uri(), &["-r", "1"]);
    gate.wait_for_one();
    let terminate = "select pg_terminate_backend(pid) from pg_stat_activity \
                     where query like 'insert into t%' and state = 'idle'";
    until("the idle session is terminated", || gate.client().one_value(terminate).unwrap());
    gate.open();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["connections_lost"], 1);
    assert_eq!(stage.value("select count(*) from t"), "2");
}

#[test]
fn a_target_that_crashes_and_comes_back_is_waited_for_at_the_highest_speed() {
    let started = Cluster::builder().name("crash").start();
    let Some(mut cluster) = or_say_why_not("crash", started) else { return };
    connect(&cluster, "postgres").query("create table t (a int)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = interrupted_transaction("postgres", 3).text;
    std::fs::write(folder.path().join("server.log"), log).unwrap();
    let mut gate = Gate::close(connect(&cluster, "postgres"), 3);
    let target = cluster.uri("postgres");
    let running = Running::start(folder.path(), "server.log", &target, &["--rate", "max"]);
    gate.wait_for_one();
    cluster.kill().unwrap();
    cluster.start().unwrap();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_first_transaction_was_lost(&replayed);
    // Only what was in flight: the others waited for the target to come back.
    assert_eq!(replayed.report["executions"]["failed"], 1, "{}", replayed.report);
    assert!(replayed.report["connections_lost"].as_u64().unwrap() >= 1);
    let rows = "select min(a) || ' ' || count(*) from t";
    assert_eq!(value(&mut connect(&cluster, "postgres"), rows), "3 101");
}

#[test]
fn while_the_target_is_away_events_fail_when_they_are_due() {
    let started = Cluster::builder().name("away").start();
    let Some(mut cluster) = or_say_why_not("away", started) else { return };
    connect(&cluster, "postgres").query("create table t (a int)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("postgres");
    log.session(7, &["begin", "insert into t values (1)", "select pg_advisory_xact_lock(4)"]);
    log.query(5, 7, "commit");
    for at in 0..400 {
        log.query(10 + at * 10, 8, "insert into t values (2)");
    }
    log.disconnect(4_010, 7).disconnect(4_010, 8);
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let mut gate = Gate::close(connect(&cluster, "postgres"), 4);
    let running = Running::start(folder.path(), "server.log", &cluster.uri("postgres"), &[]);
    gate.wait_for_one();
    cluster.kill().unwrap();
    cluster.start().unwrap();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(replayed.report["connections_lost"].as_u64().unwrap() >= 2);
    let inserts: Vec<_> = replayed
        .executions()
        .into_iter()
        .filter(|outcome| outcome.captured_us.is_none() && outcome.rows == Some(1))
        .collect();
    let failed = replayed.report["executions"]["failed"].as_u64().unwrap();
    assert!(failed > 0, "{}", replayed.report);
    let rows = value(&mut connect(&cluster, "postgres"), "select count(*) from t");
    // The first of these was rolled back by the crash.
    assert_eq!(rows, (inserts.len() - 1).to_string(), "{}", replayed.report);
    let last = replayed.executions().pop().unwrap();
    assert_eq!(word(last), "done", "the target was back by then: {last:?}");
    assert_eq!(replayed.report["by_kind"]["disconnect"]["done"], 2);
}

#[test]
fn more_sessions_than_the_target_allows_are_counted_by_their_code() {
    let started = Cluster::builder()
        .name("full")
        .setting("max_connections", "8")
        .setting("max_wal_senders", "0")
        .start();
    let Some(cluster) = or_say_why_not("full", started) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("postgres");
    for pid in 1..=12 {
        log.connect(0, pid).query(1, pid, "select pg_sleep(1)");
        log.query(2, pid, "select 1").disconnect(3, pid);
    }
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let (status, said, replayed) =
        Running::start(folder.path(), "server.log", &cluster.uri("postgres"), &[]).wait();
    assert_eq!(status.code(), Some(0), "{said}");
    let needs = "note: needs 12 connections at once, the target has room for 5 \
                 (max_connections is 8, 3 are reserved for superusers)\nhint: raise max_connections";
    assert!(said.starts_with(needs), "{said}");
    let full = "note: the target refuses connections (sorry, too many clients already) while ";
    assert_eq!(said.matches(full).count(), 1, "{said}");
    let refused = &replayed.report["by_kind"]["connect"];
    assert_eq!((&refused["done"], &refused["failed"]), (&8.into(), &4.into()));
    // Each refused session has two statements, which are due while it has no connection.
    assert_eq!(replayed.report["errors"], serde_json::json!({ "53300": 12 }));
    assert_eq!(replayed.report["executions"]["done"], 16);
    assert_eq!(replayed.report["connections_max"], 8);

    // Without due times they wait for a place.
    let (status, said, replayed) = {
        std::fs::remove_dir_all(folder.path().join("run")).unwrap();
        let words = ["--rate", "max"];
        Running::start(folder.path(), "server.log", &cluster.uri("postgres"), &words).wait()
    };
    assert_eq!(status.code(), Some(0), "{said}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["executions"]["done"], 24);
    assert!(said.contains("sessions without a connection wait for one"), "{said}");
}

#[test]
fn failures_that_production_had_as_well_are_told_from_new_ones() {
    let Some(stage) = Stage::new("failed_there_too") else { return };
    let mut log = Log::new("failed_there_too");
    log.connect(0, 1);
    // Known from their errors; a log without %e has no codes.
    for at in 1..=2 {
        log.query(at, 1, "select 1/0").line(at, 1, "ERROR:  division by zero");
        log.line(at, 1, "STATEMENT:  select 1/0");
    }
    log.query(3, 1, "select 1/0").query(4, 1, "select no_such_column");
    log.query(5, 1, "select 1").line(5, 1, "ERROR:  canceling statement due to lock timeout");
    log.line(5, 1, "STATEMENT:  select 1").disconnect(6, 1);
    // A log that is read as it is played does not know yet what will fail.
    let streamed = stage.replay(&log.text, &[]).report;
    assert_eq!(streamed["errors"], serde_json::json!({ "22012": 3, "42703": 1 }));
    assert_eq!(streamed["errors_captured_too"], serde_json::Value::Null);
    let import = ["capture", "import", "server.log", "-o", "capture"];
    howdah(stage.folder.path()).args(import).assert().success();
    let replayed = replay(stage.folder.path(), "capture", &stage.uri(), &[]);
    let report = &replayed.report;
    assert_eq!(report["errors"], serde_json::json!({ "22012": 3, "42703": 1 }));
    assert_eq!(report["errors_captured_too"], serde_json::json!({ "22012": 2, "42703": 0 }));
    assert_eq!(report["failed_only_when_captured"], 1);

    let words = ["replay", "capture", "--target", &stage.uri()];
    let done = howdah(stage.folder.path()).args(words).assert().success();
    let told = text(&done.get_output().stdout);
    let lines = [
        "errors        3  22012, 2 failed there too, 1 only here, such as: division by zero",
        "errors        1  42703, only here, such as: column \"no_such_column\" does not exist",
        "no errors     1  failed when captured, and not here",
    ];
    for line in lines {
        assert!(told.contains(line), "{line}: {told}");
    }
}
