//! `howdah probe` by its commands, in real servers.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_inspect::Server;
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::Capabilities;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().start())
}

fn session(cluster: &Cluster) -> Client {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Client::connect(&Target::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// Begins a probe that writes to a pipe.
fn begin(folder: &Path, args: &[&str]) -> Child {
    let program = howdah(folder).get_program().to_owned();
    let mut command = Command::new(program);
    command.current_dir(folder).arg("probe").args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn rows(output: &[u8]) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_doctor_names_the_server_and_a_source_for_each_figure() {
    let Some(cluster) = cluster("probe doctor") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(["probe", "doctor", &cluster.uri("postgres")]).output();
    let said = text(&output.unwrap().stdout);
    assert!(said.contains(&format!("PostgreSQL {}, postmaster", cluster.major())), "{said}");
    assert!(said.contains("build id"), "{said}");
    for figure in ["checkpoints", "extend", "sweep", "waits", "locks", "io"] {
        let row = said.lines().find(|line| line.starts_with(figure)).unwrap_or_default();
        let source = row.split_whitespace().nth(1);
        let is_known = matches!(source, Some("bpf" | "memory"))
            || source == Some("none") && !Capabilities::own().may_trace();
        assert!(is_known, "{said}");
    }
}

#[test]
fn a_checkpoint_is_told_to_its_end() {
    let Some(cluster) = cluster("probe checkpoints") else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir().to_str().unwrap();
    for source in ["memory", "best"] {
        let mut probe = begin(
            folder.path(),
            &[
                "checkpoints",
                "--data-dir",
                data,
                "--source",
                source,
                "--until-checkpoint",
                "--duration",
                "60",
                "--format",
                "ndjson",
            ],
        );
        let mut session = session(&cluster);
        session.query("CREATE TABLE IF NOT EXISTS t AS SELECT generate_series(1, 10000)").unwrap();
        // One that began before the probe was there is not told.
        while probe.try_wait().unwrap().is_none() {
            session.query("CHECKPOINT").unwrap();
        }
        let output = probe.wait_with_output().unwrap();
        assert!(output.status.success());
        let rows = rows(&output.stdout);
        let last = rows.last().unwrap();
        assert_eq!(last["phase"], "checkpoint");
        assert!(last["buffers_written"].is_u64() && last["start"].as_str() < last["end"].as_str());
        assert!(rows.iter().any(|row| row["phase"] == "sync" && row["depth"].as_u64() > Some(0)));
        assert!(source != "memory" || rows.iter().all(|row| row["source"] == "memory"));
    }
}

#[test]
fn extension_locks_have_names_and_a_summary() {
    if !Capabilities::own().may_trace() {
        return;
    }
    let Some(cluster) = cluster("probe extend") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut session = session(&cluster);
    session.query("CREATE TABLE grown (pad text)").unwrap();
    let uri = cluster.uri("postgres");
    let args = ["extend", &uri, "--threshold", "0", "--interval", "0.1", "--format", "ndjson"];
    let mut probe = begin(folder.path(), &args);
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    // The first interval says that it is there.
    lines.next().unwrap().unwrap();
    session
        .query("INSERT INTO grown SELECT repeat('x', 900) FROM generate_series(1, 999)")
        .unwrap();
    let mut seen = Vec::new();
    while !seen.iter().any(|row: &Value| row["kind"] == "lock") {
        seen.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
    }
    kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
    seen.extend(lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()));
    assert!(probe.wait().unwrap().success());
    let of = |kind: &str| seen.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(of("lock")["relation"], "postgres.public.grown");
    assert_eq!(of("relation")["relation"], "postgres.public.grown");
    assert_eq!((&of("end")["lost"], &of("end")["source"]), (&Value::from(0), &Value::from("bpf")));
}

/// A wait for a lock is told with those who stood before it, exactly and by SQL.
#[test]
fn a_wait_for_a_lock_names_who_was_before_it() {
    let Some(cluster) = cluster("probe locks") else { return };
    let folder = tempfile::tempdir().unwrap();
    session(&cluster).query("CREATE TABLE locked (id int)").unwrap();
    let uri = cluster.uri("postgres");
    let sources = [("bpf", Capabilities::own().may_trace()), ("sql", true)];
    for (source, _) in sources.into_iter().filter(|(_, may)| *may) {
        let mut holder = session(&cluster);
        let args =
            ["locks", &uri, "--source", source, "--threshold", "300ms", "--format", "ndjson"];
        let mut probe = begin(folder.path(), &args);
        let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
        let mut seen: Vec<Value> = Vec::new();
        // One wait may end before the probe is there; there are as many as it takes.
        let is_enough = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiter = session(&cluster);
                let waited = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                    AND waitstart < clock_timestamp() - interval '0.8 s'";
                while !is_enough.load(Ordering::Relaxed) {
                    holder.query("BEGIN; LOCK TABLE locked").unwrap();
                    thread::scope(|scope| {
                        scope.spawn(|| waiter.query("SELECT * FROM locked").unwrap());
                        while holder.one_value(waited).unwrap().as_deref() == Some("0") {
                            thread::yield_now();
                        }
                        holder.query("COMMIT").unwrap();
                    });
                }
            });
            while !seen.iter().any(|row| row["kind"] == "call" && row["blocked_by"].is_string()) {
                seen.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
            }
            is_enough.store(true, Ordering::Relaxed);
        });
        kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
        seen.extend(lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()));
        assert!(probe.wait().unwrap().success());
        let call = seen.iter().find(|row| row["blocked_by"].is_string()).unwrap();
        let holder = holder.process_id().unwrap().to_string();
        assert_eq!(
            (&call["blocked_by"], &call["source"]),
            (&holder.clone().into(), &source.into())
        );
        assert!(call["subject"].as_str().unwrap().contains("locked"), "{call}");
        let behind = seen.iter().find(|row| row["kind"] == "blocker").unwrap();
        assert_eq!(behind["blocked_by"], holder);
        assert!(behind["total_ms"].as_f64() > Some(300.0), "{behind}");
    }
}

/// Waits for lightweight locks stand apart by tranche, and long ones say where they were.
#[test]
fn lightweight_locks_have_a_tranche_and_a_stack() {
    if !Capabilities::own().may_trace() {
        eprintln!("skipped: needs CAP_BPF and CAP_PERFMON");
        return;
    }
    let Some(cluster) = cluster("probe lwlocks") else { return };
    let folder = tempfile::tempdir().unwrap();
    session(&cluster).query("CREATE TABLE t (id int)").unwrap();
    let uri = cluster.uri("postgres");
    let args =
        ["lwlocks", &uri, "--threshold", "0", "--stacks", "--budget", "100", "--format", "ndjson"];
    let mut probe = begin(folder.path(), &args);
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    let stop = AtomicBool::new(false);
    let mut seen: Vec<Value> = Vec::new();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut session = session(&cluster);
                while !stop.load(Ordering::Relaxed) {
                    session.query("INSERT INTO t VALUES (1)").unwrap();
                }
            });
        }
        while !seen.iter().any(|row| row["kind"] == "interval") {
            seen.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
    seen.extend(lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()));
    assert!(probe.wait().unwrap().success());
    let of = |kind: &str| seen.iter().find(|row| row["kind"] == kind).unwrap();
    assert!(of("interval")["subject"].is_string() && of("interval")["calls"].as_u64() > Some(0));
    assert!(of("subject")["p99_ms"].is_f64());
    let stacks: Vec<_> = seen
        .iter()
        .filter_map(|row| row["stack"].as_str())
        .filter(|s| s.contains("LWLock"))
        .collect();
    assert!(!stacks.is_empty(), "no stack names a function of lightweight locks");
    assert_eq!((&of("end")["operation"], &of("end")["source"]), (&"lwlock".into(), &"bpf".into()));
}

/// A probe that costs too much goes by itself, and says so.
#[test]
fn a_budget_that_is_used_up_ends_a_probe() {
    if !Capabilities::own().may_trace() {
        return;
    }
    let Some(cluster) = cluster("probe budget") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let stop = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = session(&cluster);
            while !stop.load(Ordering::Relaxed) {
                session.query("SELECT 1").unwrap();
            }
        });
        let args = ["probe", "queries", &uri, "--budget", "0.001", "--duration", "60"];
        let output = howdah(folder.path()).args(args).output();
        stop.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("detached: it cost"), "{said}");
    assert!(text(&output.stdout).contains("execute"), "{:?}", text(&output.stdout));
}

/// Nothing is left in the server's code, however the probe ends.
#[test]
fn a_killed_probe_leaves_the_code_as_it_was() {
    if !Capabilities::own().may_trace() {
        return;
    }
    let Some(cluster) = cluster("killed probe") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    // Other tests attach to the same file, and whoever records; nobody else looks at sorts.
    let address = server.binary().address("tuplesort_performsort").unwrap();
    let code = || server.memory().bytes::<16>(address).unwrap();
    let before = code();
    let data = cluster.data_dir().to_str().unwrap();
    let mut command = Command::new(howdah(folder.path()).get_program());
    command.args(["probe", "sorts", "--data-dir", data]).stdout(Stdio::null());
    let mut probe = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(probe.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    assert_ne!(code(), before, "a breakpoint is in the code while the probe is there");
    let doctor = |args: &[&str]| {
        let mut command = howdah(folder.path());
        let output = command.args(["probe", "doctor", "--data-dir", data]).args(args).output();
        text(&output.unwrap().stdout).to_owned()
    };
    let said = doctor(&["--clear"]);
    assert!(said.contains("tuplesort_performsort+0x0"), "what is in use stays: {said}");
    probe.kill().unwrap();
    probe.wait().unwrap();
    // The kernel lets go of a dead process's programs a moment after the process.
    let deadline = || Instant::now() + Duration::from_secs(60);
    let end = deadline();
    while code() != before && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(code(), before);

    // One that is killed while it attaches may leave its breakpoint: the kernel's write of the code stops at
    // the signal, and so does the one that takes it back.
    for _ in 0..5 {
        let mut probe = begin(folder.path(), &["sorts", "--data-dir", data]);
        while code() == before {
            assert!(probe.try_wait().unwrap().is_none(), "it attaches");
        }
        probe.kill().unwrap();
        probe.wait().unwrap();
        let end = deadline();
        let mut said = doctor(&["--clear"]);
        while code() != before && Instant::now() < end {
            said = doctor(&["--clear"]);
        }
        assert_eq!(code(), before, "{said}");
        assert!(!said.contains("tuplesort_performsort"), "{said}");
    }
}

#[test]
fn waits_and_sweep_are_told_as_they_are_sampled() {
    let Some(cluster) = cluster("probe waits") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let _idle = session(&cluster);
    let args = ["waits", &uri, "--all", "--duration", "1", "--format", "ndjson"];
    let output = begin(folder.path(), &args).wait_with_output().unwrap();
    let waits = rows(&output.stdout);
    let of = |backend: &str| {
        let is_it = |row: &&Value| row["kind"] == "end" && row["backend"] == backend;
        waits.iter().find(is_it).map(|row| row["event"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("checkpointer").as_deref(), Some("Activity:CheckpointerMain"), "{waits:?}");
    assert_eq!(of("client backend").as_deref(), Some("Client:ClientRead"));
    let args = ["sweep", &uri, "--duration", "1", "--interval", "0.2", "--format", "csv"];
    let output = begin(folder.path(), &args).wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert!(said.starts_with("source,kind,time,hand,buffers,"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("memory,end,"), "{said}");
}

/// Lines for a person come at once through a pipe, too.
#[test]
fn lines_do_not_wait_for_the_end() {
    let Some(cluster) = cluster("probe in a pipe") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let exact = Capabilities::own().may_trace().then_some("extend");
    for figure in ["sweep", "waits"].into_iter().chain(exact) {
        let mut probe = begin(folder.path(), &[figure, &uri, "--interval", "0.1"]);
        let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains(|letter: char| letter.is_alphanumeric()));
        assert!(probe.try_wait().unwrap().is_none(), "{figure} runs on");
        kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
        assert!(probe.wait().unwrap().success(), "{figure}");
    }
}

#[test]
fn what_is_no_server_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id().to_string();
    let said = |args: &[&str]| {
        let output = howdah(folder.path()).arg("probe").args(args).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let ours = said(&["waits", "--pid", &pid]);
    assert!(ours.contains("is not a PostgreSQL server") && ours.contains("hint:"), "{ours}");
    // Process ids end below 2²².
    let gone = said(&["extend", "--pid", "4194304"]);
    assert!(gone.contains("process 4194304 does not exist"), "{gone}");
    let none = said(&["sweep", "--data-dir", folder.path().to_str().unwrap()]);
    assert!(none.contains("no server runs on"), "{none}");
    let both = said(&["waits", "--pid", &pid, "--data-dir", "."]);
    assert!(both.contains("cannot be used with"), "{both}");
    let short = said(&["waits", "--interval", "0"]);
    assert!(short.contains("a time such as 500ms"), "{short}");
}
