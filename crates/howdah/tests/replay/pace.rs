//! The pace of sessions that are late, think times, and changes of the rate while a replay runs.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use howdah_lab::{Cluster, skip_without_postgres};

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, ReplayProcess, connect, ended_us, howdah, text, value},
};

#[test]
fn session_that_stays_late_keeps_its_think_times() {
    let Some(fixture) = ReplayFixture::new("keep_lag") else { return };
    let mut log = LogBuilder::new("keep_lag");
    log.connect(0, 1).query(10, 1, "select pg_sleep(0.5)");
    log.query(60, 1, "select 1").query(160, 1, "select 2");
    let replayed = fixture.replay(&log.text, &["--lag", "keep"]);
    replayed.assert_all_done();
    let executions = replayed.executions();
    // The log has no durations, so a think time starts with the previous statement.
    for (pair, gap) in executions.windows(2).zip([50_000, 100_000]) {
        let think = pair[1].sent_us.unwrap() - ended_us(pair[0]);
        assert!(think >= gap, "{think} µs instead of {gap}: {pair:?}");
        let due = pair[1].due_us - ended_us(pair[0]);
        assert!((gap - 2..=gap + 2).contains(&due), "due after {due} µs: {pair:?}");
    }
}

#[test]
fn think_times_replace_the_schedule() {
    let Some(fixture) = ReplayFixture::new("think_time") else { return };
    let mut log = LogBuilder::new("think_time");
    log.connect(0, 1).query(10, 1, "select 1").query(60_010, 1, "select 2");
    let replayed = fixture.replay(&log.text, &["--think-time", "0.001"]);
    replayed.assert_all_done();
    let executions = replayed.executions();
    let due = executions[1].due_us - ended_us(executions[0]);
    assert!((59_998..=60_002).contains(&due), "due after {due} µs");
}

#[test]
fn late_transactions_are_dropped_and_counted() {
    let Some(fixture) = ReplayFixture::new("drop_late") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("drop_late");
    log.connect(0, 1).query(10, 1, "select pg_sleep(1)");
    log.query(20, 1, "begin").query(21, 1, "insert into t values (1)").query(22, 1, "commit");
    log.query(30, 1, "set work_mem = '1234kB'");
    log.query(40, 1, "insert into t values (2)");
    log.query(3_000, 1, "insert into t values (3)");
    let replayed = fixture.replay(&log.text, &["--lag", "drop-late>200ms"]);
    let ends: Vec<_> = replayed.executions().iter().map(|it| disposition(it)).collect();
    assert_eq!(ends, ["done", "dropped", "dropped", "dropped", "done", "dropped", "done"]);
    assert_eq!(replayed.report["dropped"]["later than drop-late allows"], 4);
    assert_eq!(replayed.report["executions"]["dropped"], 4);
    assert!(replayed.complete);
    assert_eq!(fixture.value("select string_agg(a::text, ' ') from t"), "3");
}

fn disposition(outcome: &howdah_dataset::ReplayOutcome) -> &'static str {
    crate::support::disposition_name(outcome)
}

#[test]
fn replay_ends_when_a_session_is_later_than_allowed() {
    let Some(fixture) = ReplayFixture::new("abort_lag") else { return };
    let mut log = LogBuilder::new("abort_lag");
    log.connect(0, 1).query(10, 1, "select pg_sleep(60)").query(20, 1, "select 2");
    fixture.write("server.log", &log.text);
    let target = fixture.uri();
    let words = ["--lag", "abort>300ms"];
    let running = ReplayProcess::start(fixture.folder.path(), "server.log", &target, &words);
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{messages}");
    assert!(messages.contains("more than --lag allows"), "{messages}");
    let ends: Vec<_> = replayed.executions().iter().map(|it| disposition(it)).collect();
    assert_eq!(ends, ["skipped", "skipped"]);
    assert!(replayed.report["lag_abort"]["lag_s"].as_f64().unwrap() > 0.3);
    assert!(!replayed.complete);
}

#[test]
fn transactions_of_a_session_need_not_wait_for_each_other() {
    let Some(fixture) = ReplayFixture::new("order_none") else { return };
    fixture.client().query("create table t (a text)").unwrap();
    let mut log = LogBuilder::new("order_none");
    log.connect(0, 1).query(10, 1, "set work_mem = '1234kB'");
    log.query(50, 1, "select pg_sleep(1)");
    log.query(60, 1, "begin");
    log.query(61, 1, "insert into t values (current_setting('work_mem'))");
    log.query(62, 1, "commit");
    log.disconnect(2_000, 1);
    let replayed = fixture.replay(&log.text, &["--order", "none"]);
    replayed.assert_all_done();
    let executions = replayed.executions();
    assert!(ended_us(executions[4]) < ended_us(executions[1]), "{executions:#?}");
    assert_eq!(fixture.value("select a from t"), "1234kB");
    assert_eq!(replayed.report["sessions"], 1);
    assert_eq!(replayed.report["connections_max"], 2);
}

#[test]
fn rate_is_changed_while_the_replay_runs() {
    let Some(fixture) = ReplayFixture::new("change_rate") else { return };
    let mut log = LogBuilder::new("change_rate");
    // Half an hour.
    log.connect(0, 1).query(10, 1, "select 1").query(1_800_000, 1, "select 2");
    fixture.write("server.log", &log.text);
    let words = ["--admin", "127.0.0.1:0"];
    let mut running =
        ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &words);
    let address = running.read_announced("admin: http://").replace("/status", "");
    let request = |method: &str, path: &str, header: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n{header}\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    howdah_lab::wait_for("the replay to begin", crate::support::TIMEOUT, || {
        request("GET", "/rate", "", "").ends_with("\r\n\r\n1\n").then_some(())
    });
    let refused = request("PUT", "/rate", "Origin: http://evil.example\r\n", "1000");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let refused = request("PUT", "/rate", "", "0");
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("0.000001"), "{refused}");
    assert!(request("PUT", "/rate", "", "max").starts_with("HTTP/1.1 409"));
    let changed = request("PUT", "/rate", "", "100000");
    assert!(changed.starts_with("HTTP/1.1 200"), "{changed}");
    assert!(request("GET", "/status", "", "").contains("\"rate\": \"100000\""));
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    let changes = &replayed.report["rate_changes"];
    assert_eq!(changes[0]["rate"], 100_000.0, "{changes}");
    let changed_at = changes[0]["at_s"].as_f64().unwrap() * 1e6;
    let expected = changed_at + (1_800_000e3 - changed_at) / 100_000.0;
    let due = replayed.executions()[1].due_us as f64;
    assert!((due - expected).abs() < 1_000.0, "due at {due}, not at {expected} µs");
}

#[test]
fn sessions_are_spread_over_several_targets() {
    let Some(fixture) = ReplayFixture::new("spread") else { return };
    let started = Cluster::builder().name("spread").start();
    let Some(other) = skip_without_postgres("spread", started) else { return };
    connect(&other, "postgres").query("create database spread").unwrap();
    for cluster in [fixture.cluster, &other] {
        connect(cluster, "spread").query("create table t (a int)").unwrap();
    }
    let mut log = LogBuilder::new("spread");
    for pid in 1..=4 {
        log.connect(u64::from(pid), pid);
        for row in 0..5_u64 {
            log.query(10 + row, pid, &format!("insert into t values ({row})"));
        }
    }
    let second = other.uri("spread");
    let replayed = fixture.replay(&log.text, &["--target", &second]);
    replayed.assert_all_done();
    for cluster in [fixture.cluster, &other] {
        assert_eq!(value(&mut connect(cluster, "spread"), "select count(*) from t"), "10");
    }
    let refused = howdah(fixture.folder.path())
        .args(["replay", "server.log", "--order", "commit", "--target", &second])
        .args(["--target", &fixture.uri()])
        .assert()
        .code(2);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("--order commit needs one target"), "{message}");
}
