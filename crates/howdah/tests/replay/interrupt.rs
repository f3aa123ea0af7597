//! Ctrl-C: the run is valid, and marked as incomplete.

use std::{io::Write as _, os::unix::process::ExitStatusExt as _};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    logs::LogBuilder,
    support::{AdvisoryLock, ReplayFixture, ReplayProcess, TIMEOUT, connect, value},
};

#[test]
fn ctrl_c_leaves_a_valid_run() {
    let Some(fixture) = ReplayFixture::new("ctrl_c") else { return };
    let mut log = LogBuilder::new("ctrl_c");
    log.session(1, &["select 1", "select pg_advisory_lock(5)", "select 2", "select 3"]);
    log.session(2, &["select 4"]).query(900, 2, "select 5").query(3_000_000, 2, "select 6");
    fixture.write("server.log", &log.text);
    let mut lock = AdvisoryLock::acquire(fixture.client(), 5);
    let mut running =
        ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &[]);
    lock.wait_for_waiter();
    running.interrupt();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{messages}");
    assert!(messages.contains("howdah: interrupted"), "{messages}");
    assert!(!replayed.complete);
    assert_eq!(replayed.report["complete"], false);
    assert!(replayed.report["skipped"]["interrupted"].as_u64().unwrap() >= 3);
    assert_eq!(replayed.report["executions"]["failed"], 0);
}

/// Two sessions that sleep, each with a statement due much later.
fn log_with_sleepers(database: &str) -> LogBuilder {
    let mut log = LogBuilder::new(database);
    for pid in 1..=2 {
        log.session(pid, &["select pg_sleep(3600)"]).query(3_000_000, pid, "select 'never'");
    }
    log
}

fn check_statements_are_cancelled(cluster: &howdah_lab::Cluster, database: &str, more: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.log"), log_with_sleepers(database).text).unwrap();
    let target =
        format!("host=127.0.0.1 port={} user=postgres dbname={database} {more}", cluster.port());
    let mut running =
        ReplayProcess::start(folder.path(), "server.log", &target, &["--rate", "max"]);
    let mut client = connect(cluster, "postgres");
    let mut count = || {
        let active = "select count(*) from pg_stat_activity where query like '%pg_sleep(3600)' \
                      and state = 'active' and pid <> pg_backend_pid()";
        value(&mut client, active)
    };
    howdah_lab::wait_for("both sessions to sleep", TIMEOUT, || (count() == "2").then_some(()));
    running.interrupt();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{messages}");
    assert_eq!(count(), "0", "statements still run");
    let cancelled = "in flight when interrupted, cancelled on the target";
    assert_eq!(replayed.report["skipped"][cancelled], 2, "{}", replayed.report);
    assert_eq!(replayed.report["skipped"]["interrupted"], 2, "{}", replayed.report);
    assert_eq!(replayed.report["executions"]["failed"], 0);
    // The statements due much later were read, but not replayed.
    assert!(replayed.report["captured_s"].as_f64().unwrap() < 1.0, "{}", replayed.report);
}

#[test]
fn ctrl_c_cancels_running_statements_on_target() {
    let Some(fixture) = ReplayFixture::new("sleepers") else { return };
    check_statements_are_cancelled(fixture.cluster, "sleepers", "");
}

#[test]
fn ctrl_c_cancels_over_tls() {
    let built = howdah_lab::Cluster::builder().name("tls-cancel").start();
    let Some(mut cluster) = howdah_lab::skip_without_postgres("tls-cancel", built) else { return };
    if crate::logins::enable_tls(&mut cluster) {
        check_statements_are_cancelled(&cluster, "postgres", "sslmode=require");
    }
}

#[test]
fn ctrl_c_works_while_pipe_is_silent() {
    let Some(fixture) = ReplayFixture::new("silent_pipe") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut running = ReplayProcess::start(fixture.folder.path(), "-", &fixture.uri(), &[]);
    let mut pipe = running.child().stdin.take().unwrap();
    let mut log = LogBuilder::new("silent_pipe");
    log.session(1, &["insert into t values (1)"]);
    pipe.write_all(log.text.as_bytes()).unwrap();
    howdah_lab::wait_for("the first row", TIMEOUT, || {
        (fixture.value("select count(*) from t") == "1").then_some(())
    });
    running.interrupt();
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{messages}");
    assert!(!replayed.complete);
    assert_eq!(replayed.report["events"]["done"], replayed.report["events_read"]);
    drop(pipe);
}

#[test]
fn signal_before_first_event_creates_no_run() {
    let Some(fixture) = ReplayFixture::new("nothing_yet") else { return };
    let mut running = ReplayProcess::start(fixture.folder.path(), "-", &fixture.uri(), &[]);
    let seen = "select pid from pg_stat_activity where datname = 'nothing_yet' \
                and backend_type = 'client backend' and pid <> pg_backend_pid()";
    let mut client = fixture.client();
    howdah_lab::wait_for("the replay to connect", TIMEOUT, || client.one_value(seen).unwrap());
    // Not SIGINT: programs that a shell starts in the background inherit it as ignored.
    let pid = Pid::from_child(running.child());
    kill_process(pid, Signal::TERM).unwrap();
    let status = running.child().wait().unwrap();
    assert_eq!(status.signal(), Some(15), "{status:?}");
    assert!(!fixture.path("run").exists());
}
