//! Named labs.

use std::time::Duration;

use howdah_lab::{Builder, Cluster, ClusterError, Lab, LabState, Labs, LabsError, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TIMEOUT, is_alive, names, open_tempdir, sql};

fn labs() -> Option<(tempfile::TempDir, Labs)> {
    let dir = open_tempdir();
    let labs = Labs::in_dir(dir.path().join("labs"));
    // One start finds out whether PostgreSQL is available.
    howdah_lab::skip_without_postgres("labs", Cluster::builder().start())?;
    Some((dir, labs))
}

fn listed_names(labs: &Labs) -> Vec<String> {
    let states = labs.list().unwrap();
    states.iter().map(|state| state.name().to_owned()).collect()
}

#[test]
fn lab_runs_until_stopped() {
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
fn dropped_lab_is_removed() {
    let Some((dir, labs)) = labs() else { return };
    let started = labs.start(None, Cluster::builder()).unwrap();
    let lab = started.lab().clone();
    assert_eq!(listed_names(&labs), ["lab"]);
    drop(started);
    assert!(!lab.dir.exists() && listed_names(&labs).is_empty());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
}

#[test]
fn lab_names_are_numbered_and_validated() {
    let Some((_dir, labs)) = labs() else { return };
    let first = labs.start(None, Cluster::builder()).unwrap();
    let second = labs.start(None, Cluster::builder()).unwrap();
    assert_eq!(listed_names(&labs), ["lab", "lab-2"]);
    let error = labs.start(Some("lab"), Cluster::builder()).unwrap_err();
    assert!(matches!(error, LabsError::NameTaken { .. }), "{error}");
    assert_eq!(sql(&first.lab().uri("postgres"), "SELECT 1"), "1", "the first lab is unaffected");
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
fn failed_start_releases_the_name() {
    let Some((dir, labs)) = labs() else { return };
    let failing = Cluster::builder().setting("work_mem", "plenty");
    assert!(labs.start(Some("one"), failing).is_err());
    assert!(listed_names(&labs).is_empty());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
    labs.start(Some("one"), Cluster::builder()).unwrap();
}

/// Ends a lab's server like a crash.
fn crash_server(lab: &Lab) {
    let pid = lab.pid().unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::QUIT).unwrap();
    wait_until("the server to exit", TIMEOUT, || !is_alive(pid));
}

fn is_down(labs: &Labs, name: &str) -> bool {
    let states = labs.list().unwrap();
    states.iter().any(|state| matches!(state, LabState::Down(lab) if lab.name == name))
}

#[test]
fn lab_that_is_down_restarts_with_its_files() {
    let Some((_dir, labs)) = labs() else { return };
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    sql(&lab.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    crash_server(&lab);
    assert!(is_down(&labs, "one") && is_down(&labs, "one"), "listing does not change the state");
    assert!(matches!(labs.get("one"), Err(LabsError::Down { .. })));
    let taken = labs.start(Some("one"), Builder::new()).unwrap_err();
    assert!(matches!(taken, LabsError::NameTaken { .. }), "{taken}");
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(is_down(&labs, "one"), "starting another lab does not remove it");

    let again = labs.restart("one", &[("work_mem", "7MB")]).unwrap();
    assert_eq!(again.uri("postgres"), lab.uri("postgres"));
    assert_eq!(sql(&again.uri("postgres"), "SELECT x FROM t"), "42");
    assert_eq!(sql(&again.uri("postgres"), "SHOW work_mem"), "7MB");

    // A running lab is stopped first.
    let pid = again.pid().unwrap();
    let third = labs.restart("one", &[]).unwrap();
    assert!(!is_alive(pid) && third.pid().is_some_and(is_alive));
    assert_eq!(labs.list().unwrap(), [LabState::Running(third.clone())]);
    crash_server(&third);
    labs.stop("one").unwrap();
    assert!(!lab.dir.exists() && labs.list().unwrap().is_empty());
}

#[test]
fn failed_restart_removes_added_settings() {
    let Some((_dir, labs)) = labs() else { return };
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    let error = labs.restart("one", &[("work_mem", "plenty")]).unwrap_err();
    assert!(error.to_string().contains("work_mem"), "{error}");
    assert!(is_down(&labs, "one") && lab.dir.exists());
    assert!(labs.restart("one", &[("port", "5432")]).is_err());
    let open = labs.restart("one", &[("listen_addresses", "*")]).unwrap_err();
    assert!(matches!(open, LabsError::Cluster(ClusterError::TcpNotEnabled)), "{open}");
    let again = labs.restart("one", &[]).unwrap();
    assert_eq!(sql(&again.uri("postgres"), "SHOW work_mem"), "4MB");
    labs.stop("one").unwrap();
}

#[test]
fn foreground_lab_is_not_restarted() {
    let Some((_dir, labs)) = labs() else { return };
    let started = labs.start(Some("one"), Builder::new()).unwrap();
    let error = labs.restart("one", &[]).unwrap_err();
    assert!(matches!(error, LabsError::Foreground { .. }), "{error}");
    drop(started);
}

#[test]
fn start_removes_labs_down_for_longer_than_grace() {
    let Some((_dir, labs)) = labs() else { return };
    let labs = labs.grace(Duration::ZERO);
    let lab = labs.start(Some("one"), Builder::new()).unwrap().leave_running();
    crash_server(&lab);
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(is_down(&labs, "one"), "the grace period starts when a start finds it down");
    labs.start(Some("two"), Builder::new()).unwrap();
    assert!(labs.list().unwrap().is_empty() && !lab.dir.exists());
}

#[test]
fn directory_of_down_lab_starts_under_another_name() {
    let Some((dir, labs)) = labs() else { return };
    let files = dir.path().join("files");
    let lab = labs.start(Some("one"), Builder::new().dir(&files)).unwrap().leave_running();
    sql(&lab.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    crash_server(&lab);
    let lab = labs.start(Some("two"), Builder::new().dir(&files)).unwrap().leave_running();
    assert_eq!(sql(&lab.uri("postgres"), "SELECT x FROM t"), "42");
    assert_eq!(labs.list().unwrap(), [LabState::Running(lab)]);
    labs.stop("two").unwrap();
    assert!(files.join("data").exists(), "existing files are kept");
}

#[test]
fn kept_files_start_again() {
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
fn unreadable_entry_is_removed_after_grace() {
    let Some((dir, labs)) = labs() else { return };
    drop(labs.start(Some("one"), Cluster::builder()).unwrap());
    std::fs::write(dir.path().join("labs/junk.json"), "{").unwrap();
    assert!(listed_names(&labs).is_empty());
    drop(labs.start(Some("one"), Cluster::builder()).unwrap());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock", "junk.json"]);
    drop(labs.grace(Duration::ZERO).start(Some("one"), Cluster::builder()).unwrap());
    assert_eq!(names(&dir.path().join("labs")), [".labs.lock"]);
}
