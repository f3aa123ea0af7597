//! Ctrl-C: what was played until then is a run like any other, and says that it is not complete.

use std::{io::Write as _, os::unix::process::ExitStatusExt as _};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    logs::Log,
    support::{Gate, Running, Stage, until},
};

#[test]
fn ctrl_c_in_the_middle_leaves_a_valid_run() {
    let Some(stage) = Stage::new("ctrl_c") else { return };
    let mut log = Log::new("ctrl_c");
    log.session(1, &["select 1", "select pg_advisory_lock(5)", "select 2", "select 3"]);
    log.session(2, &["select 4"]).query(900, 2, "select 5").query(3_600_000, 2, "select 6");
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
