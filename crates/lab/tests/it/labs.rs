//! Named labs.

use howdah_lab::{Cluster, LabState, Labs, LabsError};
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

#[test]
fn a_lab_whose_server_died_is_cleaned_up_by_the_next_who_looks() {
    let Some((_dir, labs)) = labs() else { return };
    let lab = labs.start(Some("one"), Cluster::builder()).unwrap().leave_running();
    let pid = lab.pid().unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::QUIT).unwrap();
    eventually("the server's end", || !is_alive(pid));
    assert!(lab.dir.exists());
    assert!(running(&labs).is_empty());
    assert!(!lab.dir.exists());
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
fn an_entry_that_nobody_can_read_is_removed() {
    let Some((dir, labs)) = labs() else { return };
    drop(labs.start(Some("one"), Cluster::builder()).unwrap());
    std::fs::write(dir.path().join("labs/junk.json"), "{").unwrap();
    assert!(running(&labs).is_empty());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
}
