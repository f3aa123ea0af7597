//! What several tests need.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Builder, Cluster, or_say_why_not};

/// A running cluster, or `None` after saying why not.
pub(crate) fn start(test: &str, builder: Builder) -> Option<Cluster> {
    or_say_why_not(test, builder.start())
}

/// A connection, with nothing taken from the tester's environment.
pub(crate) fn connect(uri: &str) -> Client {
    let target = Target::resolve(&Words::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).unwrap()
}

/// The first value of the answer.
pub(crate) fn sql(uri: &str, sql: &str) -> String {
    connect(uri).one_value(sql).unwrap().unwrap_or_default()
}

/// Waits for what another process does.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let since = Instant::now();
    while !happened() {
        assert!(since.elapsed() < Duration::from_secs(120), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A temporary directory that the server's account can reach.
pub(crate) fn open_tempdir() -> tempfile::TempDir {
    tempdir(0o777)
}

/// A temporary directory that only we can reach.
pub(crate) fn private_tempdir() -> tempfile::TempDir {
    tempdir(0o700)
}

fn tempdir(mode: u32) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    dir
}
