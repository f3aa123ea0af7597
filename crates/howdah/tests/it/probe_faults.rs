//! `howdah probe` of servers that stop, start again, or are none.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::Capabilities;
use rustix::process::{Pid, Signal, kill_process};

use crate::{howdah, text};

/// Probes that run until they are told to end, and whether they need programs in the kernel.
const PROBES: [(&str, bool); 6] = [
    ("waits", false),
    ("sweep", false),
    ("checkpoints", false),
    ("extend", true),
    ("locks", true),
    ("lwlocks", false),
];

/// Begins a probe, and waits until it has attached: it says so by a first look of its own.
fn begin(folder: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(howdah(folder).get_program());
    command.current_dir(folder).arg("probe").args(args).args(["--interval", "0.1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a process sleeps in its loop: it has caught the signals that end it.
fn until_it_runs(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        // SIGINT is signal 2.
        if u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
        std::thread::yield_now();
    }
}

/// Exit code and what was said.
fn end(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    (child.wait().unwrap().code(), said)
}

#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn probes() -> impl Iterator<Item = &'static str> {
    let may_trace = Capabilities::own().may_trace();
    if !may_trace {
        eprintln!("only probes of memory: {} is missing", Capabilities::own().missing());
    }
    PROBES.into_iter().filter(move |(_, traces)| may_trace || !traces).map(|(name, _)| name)
}

#[test]
fn a_server_that_stops_under_a_probe_is_called_so() {
    let test = "a server that stops";
    let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let running: Vec<_> =
        probes().map(|probe| (probe, begin(folder.path(), &[probe, "--pid", &pid]))).collect();
    running.iter().for_each(|(_, child)| until_it_runs(child));
    cluster.stop().unwrap();
    for (probe, child) in running {
        let (code, said) = end(child);
        let words = format!("the server has ended: its first process, {pid}, is gone");
        assert!(code == Some(1) && said.contains(&words), "{probe}: {code:?} {said}");
    }
}

#[test]
fn a_server_that_starts_again_under_a_probe_is_another_one() {
    let test = "a server that starts again";
    let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = cluster.pid().unwrap().to_string();
    let running: Vec<_> =
        probes().map(|probe| (probe, begin(folder.path(), &[probe, "--pid", &before]))).collect();
    for (_, child) in &running {
        until_it_runs(child);
        // It does not look until the server is there again.
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    }
    cluster.restart().unwrap();
    let after = cluster.pid().unwrap();
    for (probe, child) in running {
        kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
        let (code, said) = end(child);
        let hint = format!("hint: it was started again, as process {after}: begin the probe anew");
        assert!(code == Some(1) && said.contains(&hint), "{probe}: {code:?} {said}");
    }
}

/// A kernel without links of many points: the same by perf events.
#[test]
fn a_kernel_without_links_of_many_points_is_traced_by_perf() {
    if !Capabilities::own().may_trace() {
        eprintln!("skipped: {} is missing", Capabilities::own().missing());
        return;
    }
    let Some(cluster) = or_say_why_not("perf links", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let probe = |args: &[&str]| {
        let mut command = Command::new(howdah(folder.path()).get_program());
        command.arg("probe").args(args).args(["--pid", &pid]);
        command.env("HOWDAH_PROBE_PERF_LINKS", "1");
        command
    };
    let said = text(&probe(&["doctor"]).output().unwrap().stdout);
    assert!(said.contains("one link a point"), "{said}");
    let args = ["lwlocks", "--interval", "0.1", "--threshold", "0", "--format", "ndjson"];
    let mut child = probe(&args).stdout(Stdio::piped()).spawn().unwrap();
    until_it_runs(&child);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let uri = cluster.uri("postgres");
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let words = howdah_connect::Words::from_conninfo(uri.clone());
                    let environment = howdah_connect::Environment::empty();
                    let target = howdah_connect::Target::resolve(&words, &environment).unwrap();
                    howdah_connect::Client::connect(&target).unwrap();
                }
            });
        }
        // Sessions that come and go wait for each other in the list of processes.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told = lines.find(|line| line.contains(r#""kind":"call""#));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(told.is_some_and(|line| line.contains(r#""source":"bpf""#)));
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_upgraded_binary_is_named_by_the_doctor() {
    // What runs is found by the process, whatever lies at its path: `doctor` says which it is.
    let Some(cluster) = or_say_why_not("doctor's binary", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pid = cluster.pid().unwrap().to_string();
    let output = howdah(folder.path()).args(["probe", "doctor", "--pid", &pid]).output().unwrap();
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.starts_with("binary")).unwrap();
    assert!(line.ends_with("bin/postgres"), "{line}");
}

#[test]
fn every_probe_is_listed_with_its_points() {
    let folder = tempfile::tempdir().unwrap();
    let said = text(&howdah(folder.path()).args(["probe", "list"]).output().unwrap().stdout);
    for words in ["checkpoints", "marker checkpoint__start", "PGSemaphoreLock", "StrategyControl"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let Some(cluster) = or_say_why_not("probe list", Cluster::builder().start()) else { return };
    let pid = cluster.pid().unwrap().to_string();
    let args = ["probe", "list", "--pid", &pid, "--format", "ndjson"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    let rows: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() >= 10);
    for row in &rows {
        assert!(row["source_here"].is_string() && row["tells"].is_string(), "{row}");
    }
    let of = |probe: &str| rows.iter().find(|row| row["probe"] == probe).unwrap();
    assert_eq!(of("waits")["source_here"], "memory");
    assert_eq!(of("waits")["sources"], "memory, sql");
}

#[test]
fn a_container_that_is_not_there_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    let said = |id: &str| {
        let args = ["probe", "waits", "--container", id];
        let output = howdah(folder.path()).args(args).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let none = said(&"ab".repeat(32));
    assert!(none.contains("no process of this host is in a container abab"), "{none}");
    let name = said("shop-db");
    assert!(name.contains("12 to 64 hexadecimal digits"), "{name}");
}
