//! A server in namespaces of its own, with a control group as a container has it.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_inspect::{ContainerId, Process, Server};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::{
    extend::ExtensionLocks,
    waits::{Options, Sampler},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{may_trace, number, session, try_session, until};

/// An id that no other test run has.
fn id(beginning: &str) -> String {
    format!("{beginning}{:08x}{:052x}", std::process::id(), 7)
}

/// What runs in the container is the first process of its own numbering, sees its data directory elsewhere,
/// and is in the control group.
const SCRIPT: &str = r#"
    set -e
    if [ -n "$GROUP" ]; then echo 0 > "$GROUP/cgroup.procs"; fi
    mount -t tmpfs none /mnt
    mkdir /mnt/data
    mount --bind "$DATA" /mnt/data
    exec setpriv --reuid "$OWNER" --regid "$OWNER_GROUP" --clear-groups "$@"
"#;

struct Container {
    unshare: Child,
    group: Option<PathBuf>,
}

impl Container {
    /// Runs a program in namespaces of its own; `None`, and why, where that is not allowed.
    fn run(test: &str, id: &str, data: &Path, words: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped {test}: only root makes namespaces and control groups");
            return None;
        }
        let group = group(id);
        if group.is_none() {
            eprintln!("{test}: control groups cannot be made here, so it is named by its process");
        }
        let owner = fs::metadata(data).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount", "--mount-proc"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .args(words)
            .env("GROUP", group.as_deref().unwrap_or(Path::new("")))
            .env("DATA", data)
            .env("OWNER", owner.uid().to_string())
            .env("OWNER_GROUP", owner.gid().to_string())
            .stderr(Stdio::null())
            .current_dir("/");
        Some(Self { unshare: command.spawn().unwrap(), group })
    }

    /// What `unshare` has started.
    fn first_process(&self) -> u32 {
        let children = || Process::of(self.unshare.id()).ok()?.children().ok();
        until("the first process", || children()?.first().map(|child| child.pid()))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With its first process go all others, and then `unshare`, which waits for it.
        let children = Process::of(self.unshare.id()).and_then(Process::children);
        for child in children.unwrap_or_default() {
            if let Some(pid) = Pid::from_raw(child.pid().cast_signed()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.unshare.wait();
        if let Some(group) = &self.group {
            until("an empty control group", || fs::remove_dir(group).ok());
        }
    }
}

/// A control group that is named as a container's is.
fn group(id: &str) -> Option<PathBuf> {
    ["", "unified", "freezer", "pids", "systemd"].into_iter().find_map(|hierarchy| {
        let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(format!("docker-{id}.scope"));
        fs::create_dir(&group).ok()?;
        if group.join("cgroup.procs").exists() {
            return Some(group);
        }
        fs::remove_dir(&group).ok();
        None
    })
}

#[test]
fn a_server_in_a_container_is_seen_from_its_host() {
    let test = "a server in a container";
    let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    session(&cluster).query("CREATE TABLE grown (pad text)").unwrap();
    cluster.stop().unwrap();
    let postgres = cluster.binaries().program("postgres");
    let port = format!("port={}", cluster.port());
    let words = [
        postgres.to_str().unwrap(),
        "-D",
        "/mnt/data",
        "-c",
        &port,
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
    ];
    let id = id("4c01");
    let Some(container) = Container::run(test, &id, cluster.data_dir(), &words) else { return };
    let mut client = until("the server", || try_session(&cluster));
    let server = match container.group {
        Some(_) => Server::in_container(&id[..12].parse::<ContainerId>().unwrap()).unwrap(),
        None => Server::with_process(container.first_process()).unwrap(),
    };
    assert_eq!(server.postmaster().pid(), container.first_process());
    assert_eq!(server.data_dir().unwrap(), Path::new("/mnt/data"));
    let lock_file = fs::read_to_string(cluster.data_dir().join("postmaster.pid")).unwrap();
    assert_eq!(lock_file.lines().next(), Some("1"), "it is the first of its own numbering");
    assert_eq!(server.lock_file().unwrap().port, cluster.port());
    let mut sampler = Sampler::open(&server, Options::default()).unwrap();
    let round = sampler.sample(std::time::Instant::now()).unwrap();
    let names: Vec<_> = round.observations().map(|seen| seen.backend.kind.name()).collect();
    assert!(names.contains(&"checkpointer") && names.contains(&"client backend"), "{names:?}");
    if may_trace(test) {
        let mut locks = ExtensionLocks::attach(&server).unwrap();
        let insert = "INSERT INTO grown SELECT repeat('x', 900) FROM generate_series(1, 900)";
        client.query(insert).unwrap();
        let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
        let mut told = 0;
        locks.drain(|lock| told += u32::from(lock.relation == relation));
        assert!(told > 0, "extension locks are told");
    }
}

#[test]
fn a_container_without_a_server_is_called_so() {
    let test = "a container without a server";
    let id = id("5d12");
    let other: ContainerId = id.parse().unwrap();
    let error = Server::in_container(&other).unwrap_err().to_string();
    assert_eq!(error, format!("no process of this host is in a container {id}"));
    let data = tempfile::tempdir().unwrap();
    let Some(container) = Container::run(test, &id, data.path(), &["sleep", "1000"]) else {
        return;
    };
    if container.group.is_none() {
        return;
    }
    let error = until("its process", || {
        let error = Server::in_container(&other).unwrap_err().to_string();
        error.contains("none of the").then_some(error)
    });
    let expected = format!("processes of the container {id} is a PostgreSQL server's");
    assert!(error.contains(&expected), "{error}");
}
