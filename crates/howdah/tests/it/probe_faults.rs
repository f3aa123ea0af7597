//! `howdah probe` of servers that stop, restart, or do not exist.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use howdah_lab::{Cluster, skip_without_postgres};
use howdah_probe::Capabilities;
use rustix::process::{Pid, Signal, kill_process};

use crate::{howdah, text};

/// Probes that run until they are stopped, and whether they need eBPF.
const PROBES: [(&str, bool); 7] = [
    ("waits", false),
    ("sweep", false),
    ("checkpoints", false),
    ("extend", true),
    ("locks", true),
    ("lwlocks", false),
    ("spins", true),
];

/// Starts a probe.
fn start_probe(folder: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(howdah(folder).get_program());
    command.current_dir(folder).arg("probe").args(args).args(["--interval", "0.1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a probe catches signals and waits for its next sample.
fn wait_until_sampling(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let wait_channel = format!("/proc/{}/wchan", child.id());
    howdah_lab::wait_until("the first sample", std::time::Duration::from_secs(60), || {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        // SIGINT is signal 2, so bit 1 of the mask.
        u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
            && std::fs::read_to_string(&wait_channel).unwrap().contains("nanosleep")
    });
}

/// Waits for the process to exit; returns exit code and stderr.
fn wait_with_stderr(mut child: Child) -> (Option<i32>, String) {
    let mut messages = String::new();
    child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    (child.wait().unwrap().code(), messages)
}

#[expect(clippy::print_stderr, reason = "a partly skipped test reports it")]
fn runnable_probes() -> impl Iterator<Item = &'static str> {
    let may_trace = Capabilities::current().may_trace();
    if !may_trace {
        eprintln!("only probes of memory: {} is missing", Capabilities::current().missing());
    }
    PROBES.into_iter().filter(move |(_, traces)| may_trace || !traces).map(|(name, _)| name)
}

#[test]
fn stopped_server_ends_probe_with_reason() {
    let test = "a server that stops";
    let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let running: Vec<_> = runnable_probes()
        .map(|probe| (probe, start_probe(folder.path(), &[probe, "--pid", &pid])))
        .collect();
    running.iter().for_each(|(_, child)| wait_until_sampling(child));
    cluster.stop().unwrap();
    for (probe, child) in running {
        let (code, messages) = wait_with_stderr(child);
        let words = format!("the server has stopped: postmaster {pid} is gone");
        assert!(code == Some(1) && messages.contains(&words), "{probe}: {code:?} {messages}");
    }
}

#[test]
fn restarted_server_ends_probe_with_hint() {
    let test = "a server that starts again";
    let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = cluster.pid().unwrap().to_string();
    let running: Vec<_> = runnable_probes()
        .map(|probe| (probe, start_probe(folder.path(), &[probe, "--pid", &before])))
        .collect();
    for (_, child) in &running {
        wait_until_sampling(child);
        // Stopped, so that the probe first checks after the restart.
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    }
    cluster.restart().unwrap();
    let after = cluster.pid().unwrap();
    for (probe, child) in running {
        kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
        let (code, messages) = wait_with_stderr(child);
        let hint =
            format!("hint: it was restarted, with postmaster {after}: start the probe again");
        assert!(code == Some(1) && messages.contains(&hint), "{probe}: {code:?} {messages}");
    }
}

/// Without multi-uprobe links in the kernel, each probe point gets a perf event.
#[test]
fn kernel_without_multi_links_falls_back_to_perf() {
    if !Capabilities::current().may_trace() {
        eprintln!("skipped: {} is missing", Capabilities::current().missing());
        return;
    }
    let Some(cluster) = skip_without_postgres("perf links", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let probe = |args: &[&str]| {
        let mut command = Command::new(howdah(folder.path()).get_program());
        command.arg("probe").args(args).args(["--pid", &pid]);
        command.env("HOWDAH_PROBE_PERF_LINKS", "1");
        command
    };
    let messages = text(&probe(&["doctor"]).output().unwrap().stdout);
    assert!(messages.contains("one link per probe point"), "{messages}");
    let args = ["lwlocks", "--interval", "0.1", "--threshold", "0", "--format", "ndjson"];
    let mut child = probe(&args).stdout(Stdio::piped()).spawn().unwrap();
    wait_until_sampling(&child);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let uri = cluster.uri("postgres");
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let words = howdah_connect::ConnParams::from_conninfo(uri.clone());
                    let environment = howdah_connect::Environment::empty();
                    let target =
                        howdah_connect::ConnectTarget::resolve(&words, &environment).unwrap();
                    howdah_connect::Client::connect(&target).unwrap();
                }
            });
        }
        // Connecting sessions contend for ProcArrayLock.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told = lines.find(|line| line.contains(r#""kind":"call""#));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(told.is_some_and(|line| line.contains(r#""source":"bpf""#)));
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn doctor_names_the_running_binary() {
    // The binary is found through the process, even if the file at its path was replaced.
    let Some(cluster) = skip_without_postgres("doctor's binary", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let output = howdah(folder.path()).args(["probe", "doctor", "--pid", &pid]).output().unwrap();
    let messages = text(&output.stdout);
    let line = messages.lines().find(|line| line.starts_with("binary")).unwrap();
    assert!(line.ends_with("bin/postgres"), "{line}");
}

#[test]
fn list_has_every_probe_with_its_points() {
    let folder = tempfile::tempdir().unwrap();
    let messages = text(&howdah(folder.path()).args(["probe", "list"]).output().unwrap().stdout);
    for words in ["checkpoints", "usdt checkpoint__start", "PGSemaphoreLock", "StrategyControl"] {
        assert!(messages.contains(words), "{words}: {messages}");
    }
    let Some(cluster) = skip_without_postgres("probe list", Cluster::builder().start()) else {
        return;
    };
    let pid = cluster.pid().unwrap().to_string();
    let args = ["probe", "list", "--pid", &pid, "--format", "ndjson"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    let rows: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() >= 10);
    for row in &rows {
        assert!(row["source_here"].is_string() && row["description"].is_string(), "{row}");
    }
    let of = |probe: &str| rows.iter().find(|row| row["probe"] == probe).unwrap();
    assert_eq!(of("waits")["source_here"], "memory");
    assert_eq!(of("waits")["sources"], "memory, sql");
}

#[test]
fn missing_container_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let messages = |id: &str| {
        let args = ["probe", "waits", "--container", id];
        let output = howdah(folder.path()).args(args).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let none = messages(&"ab".repeat(32));
    assert!(none.contains("no process on this host belongs to container abab"), "{none}");
    let name = messages("shop-db");
    assert!(name.contains("12 to 64 hexadecimal digits"), "{name}");
}
