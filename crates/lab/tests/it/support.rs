//! Helpers of several tests.

use std::{path::Path, time::Duration};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Builder, Cluster, skip_without_postgres};

/// Maximum time for another process to react.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a cluster; `None` if the test is skipped.
pub(crate) fn start(test: &str, builder: Builder) -> Option<Cluster> {
    skip_without_postgres(test, builder.start())
}

/// Connects without reading the environment.
pub(crate) fn connect(uri: &str) -> Client {
    let target =
        ConnectTarget::resolve(&ConnParams::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).unwrap()
}

/// Runs a query and returns its first value.
pub(crate) fn sql(uri: &str, sql: &str) -> String {
    connect(uri).one_value(sql).unwrap().unwrap_or_default()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The sorted names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A temporary directory that the server's account can enter.
pub(crate) fn open_tempdir() -> tempfile::TempDir {
    tempdir(0o777)
}

/// A temporary directory that only the current user can enter.
pub(crate) fn private_tempdir() -> tempfile::TempDir {
    tempdir(0o700)
}

fn tempdir(mode: u32) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    dir
}
