//! Cleanup of a cluster whose owner process dies.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_lab::{BinariesSearch, Cluster, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TIMEOUT, is_alive, names, open_tempdir, start};

/// Not a test: the process that the tests below run. It starts a cluster, prints its process id,
/// and runs until its standard input ends.
#[test]
#[ignore = "run by other tests"]
fn owner() {
    let cache = env::var_os("TEST_CACHE").expect("set by the test");
    let search = BinariesSearch::new().fetch(false).cache_dir(PathBuf::from(cache));
    let cluster = Cluster::builder().search(search).start().unwrap();
    println!("pid={}", cluster.pid().unwrap());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts an owner with all its files in `dir`. Its cache is empty, so it runs initdb first.
fn owner_in(dir: &Path) -> Child {
    let (temp, cache) = (dir.join("tmp"), dir.join("cache"));
    for path in [&temp, &cache] {
        fs::create_dir_all(path).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "orphans::owner"])
        .env("TMPDIR", &temp)
        .env("TEST_CACHE", &cache)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn postmaster_of(owner: &mut Child) -> u32 {
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pid = lines.map(Result::unwrap).find_map(|line| {
        let (_, pid) = line.split_once("pid=")?;
        Some(pid.parse().unwrap())
    });
    pid.expect("the owner did not start its cluster")
}

fn send(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Processes with `dir` in their command line or working directory.
fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let inside = command.contains(dir) || cwd.starts_with(dir);
            (inside && is_alive(pid)).then(|| format!("{pid} {command}"))
        })
        .collect()
}

#[test]
fn killed_owner_of_running_server_is_cleaned_up() {
    if start("killed owner", Cluster::builder()).is_none() {
        return;
    }
    let dir = open_tempdir();
    let mut owner = owner_in(dir.path());
    let postmaster = postmaster_of(&mut owner);
    assert!(is_alive(postmaster) && !names(&dir.path().join("tmp")).is_empty());
    send(&owner, Signal::KILL);
    owner.wait().unwrap();
    wait_until("the server to exit", TIMEOUT, || !is_alive(postmaster));
    wait_until("the removal of files", TIMEOUT, || names(&dir.path().join("tmp")).is_empty());
    wait_until("the reaper to exit", TIMEOUT, || processes_in(dir.path()).is_empty());
}

/// Signals an owner at a moment of its start, recognized by a file, and checks that all is removed.
fn check_cleanup_when_signalled(signal: Signal, moment: impl Fn(&Path) -> bool) {
    let dir = open_tempdir();
    let mut owner = owner_in(dir.path());
    wait_until("the moment to signal", TIMEOUT, || moment(dir.path()));
    send(&owner, signal);
    owner.wait().unwrap();
    wait_until("the removal of files", TIMEOUT, || names(&dir.path().join("tmp")).is_empty());
    wait_until("all processes to exit", TIMEOUT, || processes_in(dir.path()).is_empty());
    let templates = dir.path().join("cache/templates");
    let unfinished = || names(&templates).into_iter().any(|name| name.starts_with(".new"));
    wait_until("the removal of the template", TIMEOUT, || !templates.exists() || !unfinished());
}

fn initdb_is_running(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir.join("cache/templates")) else { return false };
    entries.flatten().any(|entry| entry.path().join("data/base").exists())
}

fn cluster_dir_exists(dir: &Path) -> bool {
    !names(&dir.join("tmp")).is_empty()
}

fn server_is_starting(dir: &Path) -> bool {
    names(&dir.join("tmp"))
        .iter()
        .any(|name| dir.join("tmp").join(name).join("server.log").exists())
}

#[test]
fn ctrl_c_during_start_is_cleaned_up() {
    if start("ctrl-c", Cluster::builder()).is_none() {
        return;
    }
    for moment in [cluster_dir_exists, initdb_is_running, server_is_starting] {
        check_cleanup_when_signalled(Signal::INT, moment);
    }
}

#[test]
fn kill_during_start_is_cleaned_up() {
    if start("killed while starting", Cluster::builder()).is_none() {
        return;
    }
    for moment in [cluster_dir_exists, initdb_is_running, server_is_starting] {
        check_cleanup_when_signalled(Signal::KILL, moment);
    }
}
