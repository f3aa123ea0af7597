//! Probes a server in its own namespaces, with a control group like a container's.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_inspect::{ContainerId, OsProcess, RunningServer};
use howdah_lab::{Cluster, skip_without_postgres, wait_for};
use howdah_probe::{
    extend::ExtensionLocks,
    waits::{SamplerOptions, WaitSampler},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TIMEOUT, may_trace, number, session, try_session};

/// A container id that no other test run uses.
fn id(beginning: &str) -> String {
    format!("{beginning}{:08x}{:052x}", std::process::id(), 7)
}

/// The program in the container is process 1 of its PID namespace, sees its data directory at
/// another path, and belongs to the control group.
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
    /// Runs a program in its own namespaces; `None`, with a message, where that is not permitted.
    fn run(test: &str, id: &str, data: &Path, command_line: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped {test}: only root can create namespaces and control groups");
            return None;
        }
        let group = group(id);
        if group.is_none() {
            eprintln!(
                "{test}: control groups cannot be created here, so the server is found by its process"
            );
        }
        let owner = fs::metadata(data).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount", "--mount-proc"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .args(command_line)
            .env("GROUP", group.as_deref().unwrap_or(Path::new("")))
            .env("DATA", data)
            .env("OWNER", owner.uid().to_string())
            .env("OWNER_GROUP", owner.gid().to_string())
            .stderr(Stdio::null())
            .current_dir("/");
        Some(Self { unshare: command.spawn().unwrap(), group })
    }

    /// The process that `unshare` has started.
    fn first_process(&self) -> u32 {
        let children = || OsProcess::from_pid(self.unshare.id()).ok()?.children().ok();
        wait_for("the first process", TIMEOUT, || children()?.first().map(|child| child.pid()))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Killing process 1 ends all others, and then `unshare`, which waits for it.
        let children = OsProcess::from_pid(self.unshare.id()).and_then(OsProcess::children);
        for child in children.unwrap_or_default() {
            if let Some(pid) = Pid::from_raw(child.pid().cast_signed()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.unshare.wait();
        if let Some(group) = &self.group {
            wait_for("an empty control group", TIMEOUT, || fs::remove_dir(group).ok());
        }
    }
}

/// Creates a control group named like a container's.
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
fn server_in_container_is_probed_from_host() {
    let test = "a server in a container";
    let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    session(&cluster).query("CREATE TABLE grown (pad text)").unwrap();
    cluster.stop().unwrap();
    let postgres = cluster.binaries().program("postgres");
    let port = format!("port={}", cluster.port());
    let command_line = [
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
    let Some(container) = Container::run(test, &id, cluster.data_dir(), &command_line) else {
        return;
    };
    let mut client = wait_for("the server", TIMEOUT, || try_session(&cluster));
    let server = match container.group {
        Some(_) => RunningServer::in_container(&id[..12].parse::<ContainerId>().unwrap()).unwrap(),
        None => RunningServer::from_pid(container.first_process()).unwrap(),
    };
    assert_eq!(server.postmaster().pid(), container.first_process());
    assert_eq!(server.data_dir().unwrap(), Path::new("/mnt/data"));
    let lock_file = fs::read_to_string(cluster.data_dir().join("postmaster.pid")).unwrap();
    assert_eq!(lock_file.lines().next(), Some("1"), "the postmaster is process 1 of its namespace");
    assert_eq!(server.lock_file().unwrap().port, cluster.port());
    let mut sampler = WaitSampler::open(&server, SamplerOptions::default()).unwrap();
    let round = sampler.sample(std::time::Instant::now()).unwrap();
    let names: Vec<_> = round.observations().map(|seen| seen.backend.kind.name()).collect();
    assert!(names.contains(&"checkpointer") && names.contains(&"client backend"), "{names:?}");
    if may_trace(test) {
        let mut locks = ExtensionLocks::attach(&server).unwrap();
        let insert = "INSERT INTO grown SELECT repeat('x', 900) FROM generate_series(1, 900)";
        client.query(insert).unwrap();
        let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
        let mut reported = 0;
        locks.drain(|lock| reported += u32::from(lock.relation == relation));
        assert!(reported > 0, "no extension locks were reported");
    }
}

#[test]
fn container_without_server_is_reported() {
    let test = "a container without a server";
    let id = id("5d12");
    let other: ContainerId = id.parse().unwrap();
    let error = RunningServer::in_container(&other).unwrap_err().to_string();
    assert_eq!(error, format!("no process on this host belongs to container {id}"));
    let data = tempfile::tempdir().unwrap();
    let Some(container) = Container::run(test, &id, data.path(), &["sleep", "1000"]) else {
        return;
    };
    if container.group.is_none() {
        return;
    }
    let error = wait_for("its process", TIMEOUT, || {
        let error = RunningServer::in_container(&other).unwrap_err().to_string();
        error.contains("no process in").then_some(error)
    });
    let expected = format!("no process in container {id} is a PostgreSQL server");
    assert!(error.contains(&expected), "{error}");
}
