//! Replay of logs instead of captures: streamed from files and from endless pipes.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, ReplayProcess, TIMEOUT, replay},
};

#[test]
fn first_statement_is_sent_while_pipe_is_open() {
    let Some(fixture) = ReplayFixture::new("endless") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let words = ["--rate", "max", "--input-format", "stderr"];
    let mut running = ReplayProcess::start(fixture.folder.path(), "-", &fixture.uri(), &words);
    let mut pipe = running.child().stdin.take().unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let stop = seen.clone();
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut log = LogBuilder::new("endless");
            log.query(written, 1, "insert into t values (1)");
            pipe.write_all(log.text.as_bytes()).unwrap();
            written += 1;
        }
        // Only here is the pipe closed.
        written
    });
    howdah_lab::wait_for("the first row", TIMEOUT, || {
        (fixture.value("select count(*) from t") != "0").then_some(())
    });
    assert!(running.child().try_wait().unwrap().is_none());
    seen.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["executions"]["done"], written);
    assert_eq!(fixture.value("select count(*) from t"), written.to_string());
}

#[test]
fn late_input_is_counted_as_input_delay() {
    let Some(fixture) = ReplayFixture::new("live") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut running = ReplayProcess::start(
        fixture.folder.path(),
        "-",
        &fixture.uri(),
        &["--input-format", "stderr"],
    );
    let mut pipe = running.child().stdin.take().unwrap();
    let mut log = LogBuilder::new("live");
    log.connect(0, 1).query(1, 1, "insert into t values (0)");
    pipe.write_all(log.text.as_bytes()).unwrap();
    howdah_lab::wait_for("the first row", TIMEOUT, || {
        (fixture.value("select count(*) from t") != "0").then_some(())
    });
    // Due at the same time as the first statement, which has ended: they are late on any machine.
    let mut log = LogBuilder::new("live");
    for _ in 0..4 {
        log.query(1, 1, "insert into t values (1)");
    }
    pipe.write_all(log.text.as_bytes()).unwrap();
    drop(pipe);
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    let executions = replayed.executions();
    assert_eq!(executions.len(), 5);
    for outcome in &executions {
        let parts = [outcome.schedule_error_us, outcome.dependency_lag_us, outcome.input_late_us];
        let sum: u64 = parts.iter().map(|part| part.unwrap()).sum();
        let late = u64::try_from(outcome.sent_us.unwrap() - outcome.due_us).unwrap();
        assert!(late.abs_diff(sum) <= 3, "{late} µs late: {outcome:?}");
    }
    assert!(executions[1..].iter().all(|outcome| outcome.input_late_us.unwrap() > 0));
    assert_eq!(replayed.report["input_late_us"]["count"], 5);
}

#[test]
fn log_and_its_capture_replay_alike() {
    let Some(fixture) = ReplayFixture::new("twice") else { return };
    let mut log = LogBuilder::new("twice");
    for pid in 1..=3 {
        log.connect(u64::from(pid), pid);
    }
    for step in 0..30 {
        let pid = (step % 3) as u32 + 1;
        let at = 10 + step * 4;
        match step % 5 {
            0 => log.query(at, pid, "begin; select 1; commit"),
            1 => log.execute(at, pid, "s1", "select $1::int", "$1 = '5'"),
            2 => log.query(at, pid, "select 1/0"),
            3 => log.query(at, pid, "copy pg_class from stdin"),
            _ => log.execute(at, pid, "fetch from S_1/C_1", "select 1", ""),
        };
    }
    for pid in 1..=3 {
        log.disconnect(200, pid);
    }
    let from_log = fixture.replay(&log.text, &[]);
    let import = ["capture", "import", "server.log", "-o", "capture"];
    fixture.howdah().args(import).assert().success();
    let from_capture = replay(fixture.folder.path(), "capture", &fixture.uri(), &[]);
    assert_eq!(from_log.kinds_and_dispositions(), from_capture.kinds_and_dispositions());
    assert_eq!(from_log.outcomes.len(), 36);
    let counts = |ends: &serde_json::Value| ends["by_kind"].clone();
    assert_eq!(counts(&from_log.report), counts(&from_capture.report));
    assert_eq!(from_log.report["errors"], serde_json::json!({ "22012": 6 }));
    for (one, other) in from_log.executions().into_iter().zip(from_capture.executions()) {
        assert_eq!((one.time, one.due_us), (other.time, other.due_us));
    }
}

#[test]
fn rotated_log_files_are_one_log() {
    let Some(fixture) = ReplayFixture::new("rotated") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut first = LogBuilder::new("rotated");
    first.connect(0, 1).query(1, 1, "begin").query(2, 1, "insert into t values (1)");
    let mut second = LogBuilder::new("rotated");
    second.query(3, 1, "insert into t values (2)").query(4, 1, "commit").disconnect(5, 1);
    fixture.write("monday.log", &first.text);
    fixture.write("tuesday.log", &second.text);
    let replayed = replay(fixture.folder.path(), "monday.log", &fixture.uri(), &["tuesday.log"]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["connections"], 1);
    assert_eq!(fixture.value("select count(*) from t"), "2");
}
