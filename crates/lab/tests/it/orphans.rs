//! What becomes of a cluster whose owner dies.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_lab::{Cluster, Search};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{eventually, is_alive, names, open_tempdir, start};

/// Not a test: what the tests below run as another process. It starts a cluster, says so, and lives
/// until its standard input ends.
#[test]
#[ignore = "run by other tests"]
fn owner() {
    let cache = env::var_os("TEST_CACHE").expect("set by the test");
    let search = Search::new().fetch(false).cache_dir(PathBuf::from(cache));
    let cluster = Cluster::builder().search(search).start().unwrap();
    println!("pid={}", cluster.pid().unwrap());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// An owner whose files are all below `dir`; its cache is cold, so it runs initdb first.
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
    pid.expect("the owner has started its cluster")
}

fn send(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Processes that have anything below `dir` on their command line or as working directory.
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
fn owner_killed_while_its_server_runs() {
    if start("killed owner", Cluster::builder()).is_none() {
        return;
    }
    let dir = open_tempdir();
    let mut owner = owner_in(dir.path());
    let postmaster = postmaster_of(&mut owner);
    assert!(is_alive(postmaster) && !names(&dir.path().join("tmp")).is_empty());
    send(&owner, Signal::KILL);
    owner.wait().unwrap();
    eventually("the server's end", || !is_alive(postmaster));
    eventually("the removal", || names(&dir.path().join("tmp")).is_empty());
    eventually("the janitor's end", || processes_in(dir.path()).is_empty());
}

/// At several moments of a start, each known by what it leaves in the file system.
fn stopped_while_starting(signal: Signal, moment: impl Fn(&Path) -> bool) {
    let dir = open_tempdir();
    let mut owner = owner_in(dir.path());
    eventually("the moment", || moment(dir.path()));
    send(&owner, signal);
    owner.wait().unwrap();
    eventually("the removal", || names(&dir.path().join("tmp")).is_empty());
    eventually("the end of all processes", || processes_in(dir.path()).is_empty());
    let templates = dir.path().join("cache/templates");
    let unfinished = || names(&templates).into_iter().any(|name| name.starts_with(".new"));
    eventually("the removal of the template", || !templates.exists() || !unfinished());
}

fn initdb_works(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir.join("cache/templates")) else { return false };
    entries.flatten().any(|entry| entry.path().join("data/base").exists())
}

fn cluster_dir_exists(dir: &Path) -> bool {
    !names(&dir.join("tmp")).is_empty()
}

fn server_starts(dir: &Path) -> bool {
    names(&dir.join("tmp"))
        .iter()
        .any(|name| dir.join("tmp").join(name).join("server.log").exists())
}

#[test]
fn ctrl_c_while_starting() {
    if start("ctrl-c", Cluster::builder()).is_none() {
        return;
    }
    for moment in [cluster_dir_exists, initdb_works, server_starts] {
        stopped_while_starting(Signal::INT, moment);
    }
}

#[test]
fn owner_killed_while_starting() {
    if start("killed while starting", Cluster::builder()).is_none() {
        return;
    }
    for moment in [cluster_dir_exists, initdb_works, server_starts] {
        stopped_while_starting(Signal::KILL, moment);
    }
}
