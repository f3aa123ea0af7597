//! Named labs.

use std::time::Duration;

use howdah_lab::{Builder, Cluster, Error, Lab, LabState, Labs, LabsError};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{eventually, is_alive, names, open_tempdir, sql};

fn labs() -> Option<(tempfile::TempDir, Labs)> {
    let dir = open_tempdir();
    let labs = Labs::in_dir(dir.path().join("labs"));
    // One start shows whether there is any PostgreSQL.
    howdah_lab::or_say_why_not("labs", Cluster::builder().start())?;
    Some((dir, labs))
}

fn running(labs: &Labs) -> Vec<String> {
    let states = labs.list().unwrap();
    states.iter().map(|state| state.name().to_owned()).collect()
}

#[test]
fn a_lab_runs_until_it_is_stopped() {
    let Some((_dir, labs)) = labs() else { return };
    assert!(labs.list().unwrap().is_empty());
    let lab = labs.start(Some("one"), Cluster::builder()).unwrap().leave_running();
    assert_eq!(sql(&lab.uri("postgres"), "SHOW cluster_name"), "one");
    assert_eq!(labs.list().unwrap(), [LabState::Running(lab.clone())]);
    assert_eq!(labs.get("one").unwrap(), lab);
    let pid = lab.pid().unwrap();
    assert_eq!(labs.stop("one").unwrap(), lab);
    assert!(!is_alive(pid) && !lab.dir.exists() && labs.list().unwrap().is_empty());
}

#[test]
fn a_lab_ends_with_its_value_unless_it_is_left() {
    let Some((dir, labs)) = labs() else { return };
    let started = labs.start(None, Cluster::builder()).unwrap();
    let lab = started.lab().clone();
    assert_eq!(running(&labs), ["lab"]);
    drop(started);
    assert!(!lab.dir.exists() && running(&labs).is_empty());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
}

#[test]
fn names_are_chosen_and_refused() {
    let Some((_dir, labs)) = labs() else { return };
    let first = labs.start(None, Cluster::builder()).unwrap();
    let second = labs.start(None, Cluster::builder()).unwrap();
    assert_eq!(running(&labs), ["lab", "lab-2"]);
    let error = labs.start(Some("lab"), Cluster::builder()).unwrap_err();
    assert!(matches!(error, LabsError::NameTaken { .. }), "{error}");
    assert_eq!(sql(&first.lab().uri("postgres"), "SELECT 1"), "1", "the first was not touched");
    for name in ["../evil", "", "A"] {
        assert!(labs.start(Some(name), Cluster::builder()).is_err());
    }
    match labs.stop("x") {
        Err(LabsError::Unknown { known, .. }) => assert_eq!(known, ["lab", "lab-2"]),
        other => unreachable!("{other:?}"),
    }
    drop(second);
}

#[test]
fn a_lab_that_fails_to_start_has_no_name() {
    let Some((dir, labs)) = labs() else { return };
    let failing = Cluster::builder().setting("work_mem", "plenty");
    assert!(labs.start(Some("one"), failing).is_err());
    assert!(running(&labs).is_empty());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
    labs.start(Some("one"), Cluster::builder()).unwrap();
}

/// Ends a lab's server as a crash or `pg_ctl stop` does.
fn take_down(lab: &Lab) {
    let pid = lab.pid().unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::QUIT).unwrap();
    eventually("the server's end", || !is_alive(pid));
}

fn is_down(labs: &Labs, name: &str) -> bool {
    let states = labs.list().unwrap();
    states.iter().any(|state| matches!(state, LabState::Down(lab) if lab.name == name))
}

#[test]
fn lab_whose_server_is_down_keeps_its_files_and_restarts() {
    let Some((_dir, labs)) = labs() else { return };
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    sql(&lab.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    take_down(&lab);
    assert!(is_down(&labs, "one") && is_down(&labs, "one"), "listing changes nothing");
    assert!(matches!(labs.get("one"), Err(LabsError::Down { .. })));
    let taken = labs.start(Some("one"), Builder::new()).unwrap_err();
    assert!(matches!(taken, LabsError::NameTaken { .. }), "{taken}");
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(is_down(&labs, "one"), "a start of another lab leaves it");

    let again = labs.restart("one", &[("work_mem", "7MB")]).unwrap();
    assert_eq!(again.uri("postgres"), lab.uri("postgres"));
    assert_eq!(sql(&again.uri("postgres"), "SELECT x FROM t"), "42");
    assert_eq!(sql(&again.uri("postgres"), "SHOW work_mem"), "7MB");

    // One that runs is stopped first.
    let pid = again.pid().unwrap();
    let third = labs.restart("one", &[]).unwrap();
    assert!(!is_alive(pid) && third.pid().is_some_and(is_alive));
    assert_eq!(labs.list().unwrap(), [LabState::Running(third.clone())]);
    take_down(&third);
    labs.stop("one").unwrap();
    assert!(!lab.dir.exists() && labs.list().unwrap().is_empty());
}

#[test]
fn restart_with_bad_settings_takes_them_back() {
    let Some((_dir, labs)) = labs() else { return };
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    let error = labs.restart("one", &[("work_mem", "plenty")]).unwrap_err();
    assert!(error.to_string().contains("work_mem"), "{error}");
    assert!(is_down(&labs, "one") && lab.dir.exists());
    assert!(labs.restart("one", &[("port", "5432")]).is_err());
    let open = labs.restart("one", &[("listen_addresses", "*")]).unwrap_err();
    assert!(matches!(open, LabsError::Cluster(Error::TcpNotEnabled)), "{open}");
    let again = labs.restart("one", &[]).unwrap();
    assert_eq!(sql(&again.uri("postgres"), "SHOW work_mem"), "4MB");
    labs.stop("one").unwrap();
}

#[test]
fn lab_that_ends_with_its_owner_is_not_restarted() {
    let Some((_dir, labs)) = labs() else { return };
    let started = labs.start(Some("one"), Builder::new()).unwrap();
    let error = labs.restart("one", &[]).unwrap_err();
    assert!(matches!(error, LabsError::Foreground { .. }), "{error}");
    drop(started);
}

#[test]
fn start_removes_labs_that_were_down_for_longer_than_the_grace() {
    let Some((_dir, labs)) = labs() else { return };
    let labs = labs.grace(Duration::ZERO);
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    take_down(&lab);
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(is_down(&labs, "one"), "the grace begins when a start finds it down");
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(labs.list().unwrap().is_empty() && !lab.dir.exists());
}

#[test]
fn folder_of_a_lab_that_is_down_can_be_started_under_another_name() {
    let Some((dir, labs)) = labs() else { return };
    let files = dir.path().join("files");
    let lab = labs.start(Some("one"), Builder::new().dir(&files)).unwrap().leave_running();
    sql(&lab.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    take_down(&lab);
    let lab = labs.start(Some("two"), Builder::new().dir(&files)).unwrap().leave_running();
    assert_eq!(sql(&lab.uri("postgres"), "SELECT x FROM t"), "42");
    assert_eq!(labs.list().unwrap(), [LabState::Running(lab)]);
    labs.stop("two").unwrap();
    assert!(files.join("data").exists(), "files that were there stay");
}

#[test]
fn kept_files_stay_and_start_again() {
    let Some((dir, labs)) = labs() else { return };
    let files = dir.path().join("files");
    let builder = || Cluster::builder().dir(&files).keep(true);
    let lab = labs.start(Some("one"), builder()).unwrap().leave_running();
    sql(&lab.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    labs.stop("one").unwrap();
    assert_eq!(names(&files), ["data", "server.log"]);
    let lab = labs.start(Some("two"), builder()).unwrap().leave_running();
    assert_eq!(sql(&lab.uri("postgres"), "SELECT x FROM t"), "42");
    labs.stop("two").unwrap();
}

#[test]
fn unreadable_entry_is_removed_by_a_start_after_the_grace() {
    let Some((dir, labs)) = labs() else { return };
    drop(labs.start(Some("one"), Cluster::builder()).unwrap());
    std::fs::write(dir.path().join("labs/junk.json"), "{").unwrap();
    assert!(running(&labs).is_empty());
    drop(labs.start(Some("one"), Cluster::builder()).unwrap());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock", "junk.json"]);
    drop(labs.grace(Duration::ZERO).start(Some("one"), Cluster::builder()).unwrap());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
}
