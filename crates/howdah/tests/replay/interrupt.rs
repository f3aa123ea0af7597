//! Ctrl-C: what was played until then is a run like any other, and says that it is not complete.

use std::{io::Write as _, os::unix::process::ExitStatusExt as _};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    logs::Log,
    support::{Gate, Running, Stage, connect, until, value},
};

#[test]
fn ctrl_c_in_the_middle_leaves_a_valid_run() {
    let Some(stage) = Stage::new("ctrl_c") else { return };
    let mut log = Log::new("ctrl_c");
    log.session(1, &["select 1", "select pg_advisory_lock(5)", "select 2", "select 3"]);
    log.session(2, &["select 4"]).query(900, 2, "select 5").query(3_000_000, 2, "select 6");
    stage.write("server.log", &log.text);
    let mut gate = Gate::close(stage.client(), 5);
    let mut running = Running::start(stage.folder.path(), "server.log", &stage.uri(), &[]);
    gate.wait_for_one();
    running.interrupt();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("howdah: interrupted"), "{said}");
    assert!(!replayed.complete);
    assert_eq!(replayed.report["complete"], false);
    assert!(replayed.report["skipped"]["interrupted"].as_u64().unwrap() >= 3);
    assert_eq!(replayed.report["executions"]["failed"], 0);
}

/// Two sessions that sleep, and have something to do much later.
fn sleepers(database: &str) -> Log {
    let mut log = Log::new(database);
    for pid in 1..=2 {
        log.session(pid, &["select pg_sleep(3600)"]).query(3_000_000, pid, "select 'never'");
    }
    log
}

fn assert_nothing_runs_on(cluster: &howdah_lab::Cluster, database: &str, more: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.log"), sleepers(database).text).unwrap();
    let target =
        format!("host=127.0.0.1 port={} user=postgres dbname={database} {more}", cluster.port());
    let mut running = Running::start(folder.path(), "server.log", &target, &["--rate", "max"]);
    let mut client = connect(cluster, "postgres");
    let mut count = || {
        let active = "select count(*) from pg_stat_activity where query like '%pg_sleep(3600)' \
                      and state = 'active' and pid <> pg_backend_pid()";
        value(&mut client, active)
    };
    until("both sleep", || (count() == "2").then_some(()));
    running.interrupt();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(count(), "0", "they sleep on");
    let cancelled = "in flight when interrupted, cancelled on the target";
    assert_eq!(replayed.report["skipped"][cancelled], 2, "{}", replayed.report);
    assert_eq!(replayed.report["skipped"]["interrupted"], 2, "{}", replayed.report);
    assert_eq!(replayed.report["executions"]["failed"], 0);
    // What waited a long way off was not played, although it had been read.
    assert!(replayed.report["captured_s"].as_f64().unwrap() < 1.0, "{}", replayed.report);
}

#[test]
fn ctrl_c_cancels_on_the_target_what_runs_there() {
    let Some(stage) = Stage::new("sleepers") else { return };
    assert_nothing_runs_on(stage.cluster, "sleepers", "");
}

#[test]
fn ctrl_c_cancels_by_tls_where_sessions_have_it() {
    let built = howdah_lab::Cluster::builder().name("tls-cancel").start();
    let Some(mut cluster) = howdah_lab::or_say_why_not("tls-cancel", built) else { return };
    if crate::who::with_tls(&mut cluster) {
        assert_nothing_runs_on(&cluster, "postgres", "sslmode=require");
    }
}

#[test]
fn ctrl_c_is_heard_while_a_pipe_is_silent() {
    let Some(stage) = Stage::new("silent_pipe") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut running = Running::start(stage.folder.path(), "-", &stage.uri(), &[]);
    let mut pipe = running.child().stdin.take().unwrap();
    let mut log = Log::new("silent_pipe");
    log.session(1, &["insert into t values (1)"]);
    pipe.write_all(log.text.as_bytes()).unwrap();
    until("the statement has run", || (stage.value("select count(*) from t") == "1").then_some(()));
    running.interrupt();
    let (status, said, replayed) = running.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(!replayed.complete);
    assert_eq!(replayed.report["events"]["done"], replayed.report["events_read"]);
    drop(pipe);
}

#[test]
fn a_signal_before_the_first_event_ends_it_at_once_and_makes_no_run() {
    let Some(stage) = Stage::new("nothing_yet") else { return };
    let mut running = Running::start(stage.folder.path(), "-", &stage.uri(), &[]);
    let seen = "select pid from pg_stat_activity where datname = 'nothing_yet' \
                and backend_type = 'client backend' and pid <> pg_backend_pid()";
    let mut client = stage.client();
    until("it has connected", || client.one_value(seen).unwrap());
    // Not SIGINT: where a shell runs the tests in the background, programs inherit it as ignored.
    let pid = Pid::from_child(running.child());
    kill_process(pid, Signal::TERM).unwrap();
    let status = running.child().wait().unwrap();
    assert_eq!(status.signal(), Some(15), "{status:?}");
    assert!(!stage.path("run").exists());
}
