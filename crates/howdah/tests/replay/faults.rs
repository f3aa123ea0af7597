//! Failures of the target during a replay: they are recorded, and the rest is replayed.

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres};

use crate::{
    logs::LogBuilder,
    support::{
        AdvisoryLock, FinishedReplay, ReplayFixture, ReplayProcess, TIMEOUT, connect,
        disposition_name, replay, text, value,
    },
};

/// A session that blocks inside its first transaction, has a second one, and then inserts many
/// single rows.
fn interrupted_transaction(database: &str, key: i64) -> LogBuilder {
    let mut log = LogBuilder::new(database);
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

/// The statement in flight failed, and the rest of its transaction was skipped.
fn assert_first_transaction_was_lost(replayed: &FinishedReplay) {
    let executions = replayed.executions();
    let ends: Vec<_> = executions[..5].iter().map(|outcome| disposition_name(outcome)).collect();
    assert_eq!(ends, ["done", "done", "failed", "skipped", "skipped"]);
    let reason = "its transaction was lost with the connection";
    assert_eq!(replayed.report["skipped"][reason], 2);
}

#[test]
fn terminated_session_reconnects_and_skips_rest_of_transaction() {
    let Some(fixture) = ReplayFixture::new("terminated") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    fixture.write("server.log", &interrupted_transaction("terminated", 1).text);
    let mut lock = AdvisoryLock::acquire(fixture.client(), 1);
    let running =
        ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &["-r", "max"]);
    let victim = lock.wait_for_waiter();
    lock.client().query(&format!("select pg_terminate_backend({victim})")).unwrap();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert_first_transaction_was_lost(&replayed);
    assert_eq!(replayed.report["errors"], serde_json::json!({ "57P01": 1 }));
    assert_eq!(replayed.report["connections_lost"], 1);
    assert_eq!(replayed.report["connections"], 2);
    assert!(replayed.complete);
    // Rows 1 and 2 are missing because their transaction was lost; all later rows are there.
    assert_eq!(fixture.value("select min(a) || ' ' || count(*) from t"), "3 101");
}

/// Terminates the idle session whose last statement matches a pattern of LIKE.
fn terminate_idle(client: &mut Client, pattern: &str) {
    let terminate = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where query like '{pattern}' and state = 'idle'"
    );
    howdah_lab::wait_for("the idle session", TIMEOUT, || client.one_value(&terminate).unwrap());
}

#[test]
fn terminated_idle_session_loses_nothing() {
    let Some(fixture) = ReplayFixture::new("terminated_idle") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("terminated_idle");
    log.connect(0, 1).query(1, 1, "insert into t values (1)");
    log.connect(0, 2).query(2, 2, "select pg_advisory_lock(2)");
    // Due long after the first session was terminated, which happens while the second one is
    // blocked.
    log.query(3, 2, "select 'the lock is open'").query(2_000, 1, "insert into t values (2)");
    fixture.write("server.log", &log.text);
    let mut lock = AdvisoryLock::acquire(fixture.client(), 2);
    let running =
        ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &["-r", "1"]);
    lock.wait_for_waiter();
    terminate_idle(lock.client(), "insert into t%");
    lock.release();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["connections_lost"], 1);
    assert_eq!(fixture.value("select count(*) from t"), "2");
}

#[test]
fn settings_of_a_terminated_session_are_restored() {
    let Some(fixture) = ReplayFixture::new("restored") else { return };
    fixture.client().query("create schema app; create table app.t (a text)").unwrap();
    let mut log = LogBuilder::new("restored");
    log.connect(0, 1).query(1, 1, "set search_path = app");
    log.query(2, 1, "begin").query(3, 1, "set work_mem = '4321kB'").query(4, 1, "commit");
    log.query(5, 1, "begin").query(6, 1, "set work_mem = '1MB'").query(7, 1, "rollback");
    log.query(8, 1, "prepare p(text) as insert into t values ($1)");
    log.connect(0, 2).query(20, 2, "select pg_advisory_lock(4)");
    log.query(1_500, 1, "execute p(current_setting('work_mem'))");
    fixture.write("server.log", &log.text);
    let mut lock = AdvisoryLock::acquire(fixture.client(), 4);
    let running = ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &[]);
    lock.wait_for_waiter();
    terminate_idle(lock.client(), "prepare p%");
    lock.release();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    assert_eq!(fixture.value("select a from app.t"), "4321kB");
}

/// A password that expires lets earlier sessions go on; later ones fail, and are counted.
#[test]
fn expired_password_fails_later_sessions() {
    let started = Cluster::builder().name("expired").password("secret of the test").start();
    let Some(cluster) = skip_without_postgres("expired", started) else { return };
    let mut control = connect(&cluster, "postgres");
    control
        .query(
            "create role app login password 'app'; create table t (a int); \
             grant insert on t to app",
        )
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogBuilder::new("postgres");
    log.user("app").connect(0, 1).query(10, 1, "insert into t values (1)");
    log.query(20, 1, "select pg_advisory_lock(5)");
    log.connect(1_500, 2).query(1_510, 2, "insert into t values (2)").disconnect(1_520, 2);
    log.query(1_600, 1, "insert into t values (3)").disconnect(1_700, 1);
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let mut lock = AdvisoryLock::acquire(connect(&cluster, "postgres"), 5);
    let target = cluster.uri("postgres").replace("postgres@", "app:app@");
    let running = ReplayProcess::start(folder.path(), "server.log", &target, &[]);
    lock.wait_for_waiter();
    control.query("alter role app valid until '2001-01-01'").unwrap();
    lock.release();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(!messages.contains("secret of the test"), "{messages}");
    // The login, and the statement of the session that could not log in.
    assert_eq!(replayed.report["errors"], serde_json::json!({ "28P01": 2 }));
    let rows = "select string_agg(a::text, ' ' order by a) from t";
    assert_eq!(value(&mut control, rows), "1 3");
}

/// The shell limits the size of files, like a full disk for one process. The replay goes on without
/// the run, and says so.
#[test]
fn full_disk_ends_only_the_run() {
    let Some(fixture) = ReplayFixture::new("full_disk") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("full_disk");
    log.connect(0, 1);
    for row in 0..20_000_u64 {
        log.query(1 + row / 100, 1, &format!("insert into t values ({row}) /* {} */", row * 7919));
    }
    fixture.write("server.log", &log.text);
    let output = std::process::Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 16; exec "$0" "$@""#])
        .arg(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["replay", "server.log", "--rate", "max", "-o", "run", "--format", "json"])
        .args(["--target", &fixture.uri(), "--allow-production", "full_disk"])
        .current_dir(fixture.folder.path())
        .env("HOME", fixture.folder.path())
        .output()
        .unwrap();
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(messages.contains("no room to write"), "{messages}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["executions"]["done"], 20_000, "{report}");
    assert_eq!(fixture.value("select count(*) from t"), "20000");
}

#[test]
fn replay_at_max_rate_waits_for_crashed_target() {
    let started = Cluster::builder().name("crash").start();
    let Some(mut cluster) = skip_without_postgres("crash", started) else { return };
    connect(&cluster, "postgres").query("create table t (a int)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = interrupted_transaction("postgres", 3).text;
    std::fs::write(folder.path().join("server.log"), log).unwrap();
    let mut lock = AdvisoryLock::acquire(connect(&cluster, "postgres"), 3);
    let target = cluster.uri("postgres");
    let running = ReplayProcess::start(folder.path(), "server.log", &target, &["--rate", "max"]);
    lock.wait_for_waiter();
    cluster.kill().unwrap();
    cluster.start().unwrap();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert_first_transaction_was_lost(&replayed);
    // Only the statement in flight failed: all others waited for the target.
    assert_eq!(replayed.report["executions"]["failed"], 1, "{}", replayed.report);
    assert!(replayed.report["connections_lost"].as_u64().unwrap() >= 1);
    let rows = "select min(a) || ' ' || count(*) from t";
    assert_eq!(value(&mut connect(&cluster, "postgres"), rows), "3 101");
}

#[test]
fn events_fail_when_due_while_target_is_down() {
    let started = Cluster::builder().name("away").start();
    let Some(mut cluster) = skip_without_postgres("away", started) else { return };
    connect(&cluster, "postgres").query("create table t (a int)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogBuilder::new("postgres");
    log.session(7, &["begin", "insert into t values (1)", "select pg_advisory_xact_lock(4)"]);
    log.query(5, 7, "commit");
    for at in 0..400 {
        log.query(10 + at * 10, 8, "insert into t values (2)");
    }
    log.disconnect(4_010, 7).disconnect(4_010, 8);
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let mut lock = AdvisoryLock::acquire(connect(&cluster, "postgres"), 4);
    let running = ReplayProcess::start(folder.path(), "server.log", &cluster.uri("postgres"), &[]);
    lock.wait_for_waiter();
    cluster.kill().unwrap();
    cluster.start().unwrap();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(replayed.report["connections_lost"].as_u64().unwrap() >= 2);
    let inserts: Vec<_> = replayed
        .executions()
        .into_iter()
        .filter(|outcome| outcome.captured_us.is_none() && outcome.rows == Some(1))
        .collect();
    let failed = replayed.report["executions"]["failed"].as_u64().unwrap();
    assert!(failed > 0, "{}", replayed.report);
    let rows = value(&mut connect(&cluster, "postgres"), "select count(*) from t");
    // The crash rolled back the first of these rows.
    assert_eq!(rows, (inserts.len() - 1).to_string(), "{}", replayed.report);
    let last = replayed.executions().pop().unwrap();
    assert_eq!(disposition_name(last), "done", "the target was up again by then: {last:?}");
    assert_eq!(replayed.report["by_kind"]["disconnect"]["done"], 2);
}

#[test]
fn sessions_over_max_connections_are_counted_by_sqlstate() {
    let started = Cluster::builder()
        .name("full")
        .setting("max_connections", "8")
        .setting("max_wal_senders", "0")
        .start();
    let Some(cluster) = skip_without_postgres("full", started) else { return };
    let folder = tempfile::tempdir().unwrap();
    let write_log = |seconds: u32| {
        let mut log = LogBuilder::new("postgres");
        for pid in 1..=12 {
            log.connect(0, pid).query(1, pid, &format!("select pg_sleep({seconds})"));
            log.query(2, pid, "select 1").disconnect(3, pid);
        }
        std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    };
    // Longer than sessions wait for a slot.
    write_log(6);
    let (status, messages, replayed) =
        ReplayProcess::start(folder.path(), "server.log", &cluster.uri("postgres"), &[]).wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    let needs = "note: needs 12 connections at once, the target has room for 5 \
                 (max_connections is 8, 3 are reserved for superusers)\nhint: raise max_connections";
    assert!(messages.starts_with(needs), "{messages}");
    let full = "note: the target refuses connections (sorry, too many clients already) while ";
    assert_eq!(messages.matches(full).count(), 1, "{messages}");
    let refused = &replayed.report["by_kind"]["connect"];
    assert_eq!((&refused["done"], &refused["failed"]), (&8.into(), &4.into()));
    // Each of the 4 refused sessions has two statements, which fail as well.
    assert_eq!(replayed.report["errors"], serde_json::json!({ "53300": 12 }));
    assert_eq!(replayed.report["executions"]["done"], 16);
    assert_eq!(replayed.report["connections_max"], 8);

    // Sessions wait for a slot that is soon free. The server is not to blame for that.
    write_log(1);
    std::fs::remove_dir_all(folder.path().join("run")).unwrap();
    let (status, messages, replayed) =
        ReplayProcess::start(folder.path(), "server.log", &cluster.uri("postgres"), &[]).wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    let executions = replayed.executions();
    let firsts = executions.iter().filter(|it| it.service_us.unwrap() >= 1_000_000);
    let waited = firsts.filter(|it| it.schedule_error_us.unwrap() >= 900_000).count();
    assert_eq!(waited, 4, "{executions:#?}");

    // Without due times, sessions wait for a free connection.
    let (status, messages, replayed) = {
        std::fs::remove_dir_all(folder.path().join("run")).unwrap();
        let words = ["--rate", "max"];
        ReplayProcess::start(folder.path(), "server.log", &cluster.uri("postgres"), &words).wait()
    };
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["executions"]["done"], 24);
    assert!(messages.contains("sessions without a connection wait for one"), "{messages}");
}

#[test]
fn captured_failures_are_distinguished_from_new_ones() {
    let Some(fixture) = ReplayFixture::new("failed_there_too") else { return };
    let mut log = LogBuilder::new("failed_there_too");
    log.connect(0, 1);
    // Captured errors are known by their messages; a log without %e has no SQLSTATEs.
    for at in 1..=2 {
        log.query(at, 1, "select 1/0").line(at, 1, "ERROR:  division by zero");
        log.line(at, 1, "STATEMENT:  select 1/0");
    }
    log.query(3, 1, "select 1/0").query(4, 1, "select no_such_column");
    log.query(5, 1, "select 1").line(5, 1, "ERROR:  canceling statement due to lock timeout");
    log.line(5, 1, "STATEMENT:  select 1").disconnect(6, 1);
    // A streamed log does not tell in advance which statements failed.
    let streamed = fixture.replay(&log.text, &[]).report;
    assert_eq!(streamed["errors"], serde_json::json!({ "22012": 3, "42703": 1 }));
    assert_eq!(streamed["errors_captured_too"], serde_json::Value::Null);
    let import = ["capture", "import", "server.log", "-o", "capture"];
    fixture.howdah().args(import).assert().success();
    let replayed = replay(fixture.folder.path(), "capture", &fixture.uri(), &[]);
    let report = &replayed.report;
    assert_eq!(report["errors"], serde_json::json!({ "22012": 3, "42703": 1 }));
    assert_eq!(report["errors_captured_too"], serde_json::json!({ "22012": 2, "42703": 0 }));
    assert_eq!(report["failed_only_when_captured"], 1);

    let words = ["replay", "capture", "--target", &fixture.uri()];
    let done = fixture.howdah().args(words).assert().success();
    let printed = text(&done.get_output().stdout);
    let lines = [
        "errors        3  22012, 2 failed there too, 1 only here, such as: division by zero",
        "errors        1  42703, only here, such as: column \"no_such_column\" does not exist",
        "no errors     1  failed when captured, but not here",
    ];
    for line in lines {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}
