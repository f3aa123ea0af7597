//! `howdah probe` with real servers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_probe::Capabilities;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::{howdah, text};

/// Maximum time for the server or the probe to react.
const TIMEOUT: Duration = Duration::from_secs(60);

fn start_cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().start())
}

fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// Starts a probe that writes to a pipe.
fn start_probe(folder: &Path, args: &[&str]) -> Child {
    let program = howdah(folder).get_program().to_owned();
    let mut command = Command::new(program);
    command.current_dir(folder).arg("probe").args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn parse_rows(output: &[u8]) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn doctor_lists_server_and_source_of_each_probe() {
    let Some(cluster) = start_cluster("probe doctor") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(["probe", "doctor", &cluster.uri("postgres")]).output();
    let messages = text(&output.unwrap().stdout);
    assert!(
        messages.contains(&format!("PostgreSQL {}, postmaster", cluster.major())),
        "{messages}"
    );
    assert!(messages.contains("build id"), "{messages}");
    for figure in ["checkpoints", "extend", "sweep", "waits", "locks", "spins", "io"] {
        let row = messages.lines().find(|line| line.starts_with(figure)).unwrap_or_default();
        let source = row.split_whitespace().nth(1);
        let is_known = matches!(source, Some("bpf" | "memory"))
            || source == Some("none") && !Capabilities::current().may_trace();
        assert!(is_known, "{messages}");
    }
}

#[test]
fn checkpoint_is_traced_until_its_end() {
    let Some(cluster) = start_cluster("probe checkpoints") else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir().to_str().unwrap();
    for source in ["memory", "best"] {
        let mut probe = start_probe(
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
        // A checkpoint that started before the probe is not reported, so more are requested.
        while probe.try_wait().unwrap().is_none() {
            session.query("CHECKPOINT").unwrap();
        }
        let output = probe.wait_with_output().unwrap();
        assert!(output.status.success());
        let rows = parse_rows(&output.stdout);
        let last = rows.last().unwrap();
        assert_eq!(last["phase"], "checkpoint");
        assert!(last["buffers_written"].is_u64() && last["start"].as_str() < last["end"].as_str());
        assert!(rows.iter().any(|row| row["phase"] == "sync" && row["depth"].as_u64() > Some(0)));
        assert!(source != "memory" || rows.iter().all(|row| row["source"] == "memory"));
    }
}

#[test]
fn extension_locks_have_relation_names_and_summary() {
    if !Capabilities::current().may_trace() {
        return;
    }
    let Some(cluster) = start_cluster("probe extend") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut session = session(&cluster);
    session.query("CREATE TABLE grown (pad text)").unwrap();
    let uri = cluster.uri("postgres");
    let args = ["extend", &uri, "--threshold", "0", "--interval", "0.1", "--format", "ndjson"];
    let mut probe = start_probe(folder.path(), &args);
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    // The probe is attached when the first interval is printed.
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

/// A lock wait is reported with its blocker, by eBPF and by SQL.
#[test]
fn lock_wait_names_its_blocker() {
    let Some(cluster) = start_cluster("probe locks") else { return };
    let folder = tempfile::tempdir().unwrap();
    session(&cluster).query("CREATE TABLE locked (id int)").unwrap();
    let uri = cluster.uri("postgres");
    let sources = [("bpf", Capabilities::current().may_trace()), ("sql", true)];
    for (source, _) in sources.into_iter().filter(|(_, may)| *may) {
        let mut holder = session(&cluster);
        let args =
            ["locks", &uri, "--source", source, "--threshold", "300ms", "--format", "ndjson"];
        let mut probe = start_probe(folder.path(), &args);
        let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
        let mut seen: Vec<Value> = Vec::new();
        // The first waits may end before the probe is attached, so they are repeated.
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
                        wait_until("a lock wait of 0.8 s", TIMEOUT, || {
                            holder.one_value(waited).unwrap().as_deref() != Some("0")
                        });
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
        let blocker = seen.iter().find(|row| row["kind"] == "blocker").unwrap();
        assert_eq!(blocker["blocked_by"], holder);
        assert!(blocker["total_ms"].as_f64() > Some(300.0), "{blocker}");
    }
}

/// Lightweight lock waits are grouped by tranche, and long ones have a stack.
#[test]
fn lwlocks_have_tranche_and_stack() {
    if !Capabilities::current().may_trace() {
        eprintln!("SKIPPED: needs CAP_BPF and CAP_PERFMON");
        return;
    }
    let Some(cluster) = start_cluster("probe lwlocks") else { return };
    let folder = tempfile::tempdir().unwrap();
    session(&cluster).query("CREATE TABLE t (id int)").unwrap();
    let uri = cluster.uri("postgres");
    let args =
        ["lwlocks", &uri, "--threshold", "0", "--stacks", "--budget", "100", "--format", "ndjson"];
    let mut probe = start_probe(folder.path(), &args);
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

/// A probe that exceeds its overhead budget detaches and reports it.
#[test]
fn exceeded_budget_ends_probe() {
    if !Capabilities::current().may_trace() {
        return;
    }
    let Some(cluster) = start_cluster("probe budget") else { return };
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
    let messages = text(&output.stderr);
    assert!(output.status.success() && messages.contains("detached: tracing cost"), "{messages}");
    assert!(text(&output.stdout).contains("execute"), "{:?}", text(&output.stdout));
}

/// However a probe ends, no breakpoint is left in the server's code.
#[test]
fn killed_probe_leaves_server_code_unchanged() {
    if !Capabilities::current().may_trace() {
        return;
    }
    let Some(cluster) = start_cluster("killed probe") else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    // Other tests attach to the same binary, but none of them traces sorts.
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
    assert_ne!(code(), before, "no breakpoint while the probe is attached");
    let doctor = |args: &[&str]| {
        let mut command = howdah(folder.path());
        let output = command.args(["probe", "doctor", "--data-dir", data]).args(args).output();
        text(&output.unwrap().stdout).to_owned()
    };
    let messages = doctor(&["--clear"]);
    assert_ne!(code(), before, "what is in use stays: {messages}");
    probe.kill().unwrap();
    probe.wait().unwrap();
    // The kernel removes a dead process's eBPF programs with a short delay.
    wait_until("the kernel to remove the breakpoint", TIMEOUT, || code() == before);

    // A probe killed while it attaches may leave its breakpoint: the signal interrupts the kernel's
    // write to the code, and the write that reverts it.
    for _ in 0..5 {
        let mut probe = start_probe(folder.path(), &["sorts", "--data-dir", data]);
        wait_until("the probe to attach", TIMEOUT, || {
            assert!(probe.try_wait().unwrap().is_none(), "the probe exited");
            code() != before
        });
        probe.kill().unwrap();
        probe.wait().unwrap();
        let mut messages = String::new();
        wait_until("`doctor --clear` to remove the breakpoint", TIMEOUT, || {
            messages = doctor(&["--clear"]);
            code() == before
        });
        assert!(!messages.contains("tuplesort_performsort"), "{messages}");
    }
}

#[test]
fn waits_and_sweep_are_sampled() {
    let Some(cluster) = start_cluster("probe waits") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let _idle = session(&cluster);
    let args = ["waits", &uri, "--all", "--duration", "1", "--format", "ndjson"];
    let output = start_probe(folder.path(), &args).wait_with_output().unwrap();
    let waits = parse_rows(&output.stdout);
    let of = |backend: &str| {
        let is_it = |row: &&Value| row["kind"] == "end" && row["backend"] == backend;
        waits.iter().find(is_it).map(|row| row["event"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("checkpointer").as_deref(), Some("Activity:CheckpointerMain"), "{waits:?}");
    assert_eq!(of("client backend").as_deref(), Some("Client:ClientRead"));
    let args = ["sweep", &uri, "--duration", "1", "--interval", "0.2", "--format", "csv"];
    let output = start_probe(folder.path(), &args).wait_with_output().unwrap();
    let messages = text(&output.stdout);
    assert!(messages.starts_with("source,kind,time,hand,buffers,"), "{messages}");
    assert!(messages.lines().last().unwrap().starts_with("memory,end,"), "{messages}");
}

/// Text output is flushed line by line, also into a pipe.
#[test]
fn lines_are_flushed_through_a_pipe() {
    let Some(cluster) = start_cluster("probe in a pipe") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let exact = Capabilities::current().may_trace().then_some("extend");
    for figure in ["sweep", "waits"].into_iter().chain(exact) {
        let mut probe = start_probe(folder.path(), &[figure, &uri, "--interval", "0.1"]);
        let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains(|c: char| c.is_alphanumeric()));
        assert!(probe.try_wait().unwrap().is_none(), "{figure} runs on");
        kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
        assert!(probe.wait().unwrap().success(), "{figure}");
    }
}

#[test]
fn invalid_target_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id().to_string();
    let messages = |args: &[&str]| {
        let output = howdah(folder.path()).arg("probe").args(args).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let ours = messages(&["waits", "--pid", &pid]);
    assert!(ours.contains("is not a PostgreSQL server") && ours.contains("hint:"), "{ours}");
    // Process ids end below 2²².
    let gone = messages(&["extend", "--pid", "4194304"]);
    assert!(gone.contains("process 4194304 does not exist"), "{gone}");
    let none = messages(&["sweep", "--data-dir", folder.path().to_str().unwrap()]);
    assert!(none.contains("no server runs on"), "{none}");
    let both = messages(&["waits", "--pid", &pid, "--data-dir", "."]);
    assert!(both.contains("cannot be used with"), "{both}");
    let short = messages(&["waits", "--interval", "0"]);
    assert!(short.contains("a time such as 500ms"), "{short}");
}

/// Waits are separated by the identity of sessions, from memory and by SQL; lines of standard input
/// set marks.
#[test]
fn waits_are_grouped_by_session_between_marks() {
    let Some(cluster) = start_cluster("probe waits --by") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let separator = if uri.contains('?') { '&' } else { '?' };
    let words = ConnParams::from_conninfo(format!("{uri}{separator}application_name=report"));
    let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
    let mut client = Client::connect(&target).unwrap();
    let _sleep = thread::spawn(move || drop(client.query("SELECT pg_sleep(600)")));
    for source in ["memory", "sql"] {
        let args = ["waits", &uri, "--source", source, "--by", "statement,user,application"];
        let mut command = Command::new(howdah(folder.path()).get_program());
        command.current_dir(folder.path()).arg("probe").args(args);
        command.args(["--mark", "--format", "ndjson", "--interval", "0.2"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut probe = command.spawn().unwrap();
        let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
        let mut row = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        let mut until = |kind: &str| loop {
            let row = row();
            if row["kind"] == kind && row["application"] == "report" {
                break row;
            }
        };
        until("interval");
        let mut input = probe.stdin.take().unwrap();
        input.write_all(b"deployed\n").unwrap();
        let first = until("mark");
        // Samples between the marks.
        until("interval");
        input.write_all(b"settled\n").unwrap();
        let second = until("mark");
        kill_process(Pid::from_child(&probe), Signal::TERM).unwrap();
        let all = until("end");
        assert!(probe.wait().unwrap().success());
        assert_eq!((&first["mark"], &second["mark"]), (&"deployed".into(), &"settled".into()));
        for row in [&first, &all] {
            assert_eq!((&row["user"], &row["database"]), (&"postgres".into(), &Value::Null));
            assert_eq!(row["query"], "select pg_sleep(?)");
            assert_eq!(
                (&row["event"], &row["source"]),
                (&"Timeout:PgSleep".into(), &source.into())
            );
        }
        assert!(all["samples"].as_u64() >= first["samples"].as_u64(), "{first} {all}");
    }
    let output = start_probe(folder.path(), &["waits", &uri, "--by", "user", "--duration", "1"])
        .wait_with_output()
        .unwrap();
    let table = text(&output.stdout);
    let row = table.split("by user:").nth(1).unwrap_or_default();
    assert!(row.contains("postgres  Timeout:PgSleep 100 %"), "{table}");
}

#[test]
fn waits_by_user_need_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["probe", "waits", "--pid", "1", "--by", "user"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{messages}");
    assert!(messages.contains("--by user needs a connection"), "{messages}");
}

/// The graph names the row, its relation and the blocker.
#[test]
fn lock_graph_shows_row_and_blocker() {
    let Some(cluster) = start_cluster("probe lock-graph") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let graph = |format: &str| {
        let args = ["probe", "lock-graph", &uri, "--format", format];
        let output = howdah(folder.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(graph("tree"), "no session waits for a lock\n");
    let mut holder = session(&cluster);
    holder.query("CREATE TABLE item AS SELECT 1 AS id").unwrap();
    holder.query("BEGIN").and_then(|_| holder.query("UPDATE item SET id = 2")).unwrap();
    let mut waiter = session(&cluster);
    let [holder_pid, waiter_pid] = [&holder, &waiter].map(|client| client.process_id().unwrap());
    let waiting = thread::spawn(move || drop(waiter.query("UPDATE item SET id = 3")));
    wait_until("a waiting session", TIMEOUT, || graph("tree") != "no session waits for a lock\n");
    let tree = graph("tree");
    let lines: Vec<_> = tree.lines().collect();
    assert!(lines[0].starts_with(&format!("process {holder_pid}  ")), "{tree}");
    assert!(lines[0].contains("idle in transaction"), "{tree}");
    assert!(lines[1].starts_with(&format!("└─ process {waiter_pid}  ")), "{tree}");
    assert!(lines[1].contains("for ShareLock on row (0,1) of postgres.public.item, "), "{tree}");
    assert!(graph("dot").contains(&format!("p{waiter_pid} -> p{holder_pid}")), "{tree}");
    let rows = parse_rows(graph("ndjson").as_bytes());
    assert_eq!(
        (&rows[1]["relation"], &rows[1]["tuple"]),
        (&"postgres.public.item".into(), &1.into())
    );
    assert_eq!(rows[1]["blocked_by"], holder_pid.to_string());
    holder.query("ROLLBACK").unwrap();
    waiting.join().unwrap();
}

/// A busy session is in the flame graph, the folded stacks and the rows.
#[test]
fn profile_writes_flame_graph_and_stacks() {
    if !Capabilities::current().may_trace() {
        return;
    }
    let Some(cluster) = start_cluster("probe profile") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut busy = session(&cluster);
    let busy_pid = busy.process_id().unwrap().to_string();
    let work = thread::spawn(move || {
        drop(busy.query("SELECT count(*) FROM generate_series(1, 1000000000) g WHERE g % 3 = 0"));
    });
    let args = ["profile", &uri, "--duration", "2", "--output", "cpu.svg", "--folded", "cpu.txt"];
    let mut probe = start_probe(folder.path(), &[&args[..], &["--format", "ndjson"]].concat());
    let rows = parse_rows(&{
        let mut output = Vec::new();
        probe.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        output
    });
    assert!(probe.wait().unwrap().success());
    assert_eq!(
        (&rows[0]["backend"], &rows[0]["source"]),
        (&"client backend".into(), &"perf".into())
    );
    let folded = std::fs::read_to_string(folder.path().join("cpu.txt")).unwrap();
    assert!(folded.lines().all(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok()));
    let svg = std::fs::read_to_string(folder.path().join("cpu.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("<title>client backend: "), "{svg}");
    let other = ["profile", &uri, "--process", "1", "--duration", "1"];
    let output = start_probe(folder.path(), &other).wait_with_output().unwrap();
    assert!(!output.status.success());
    let cancel = format!("SELECT pg_terminate_backend({busy_pid})");
    session(&cluster).query(&cancel).unwrap();
    work.join().unwrap();
}

/// A session for which this process has no descriptor left is counted, and ends nothing.
#[test]
fn profile_goes_on_without_a_process_that_cannot_be_recorded() {
    if !Capabilities::current().may_trace() {
        return;
    }
    // Workers of autovacuum are processes, too.
    let built = Cluster::builder().setting("autovacuum", "off").start();
    let Some(cluster) = skip_without_postgres("profile at its limit", built) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(howdah(folder.path()).get_program());
    command.args(["probe", "profile", &cluster.uri("postgres"), "--format", "ndjson"]);
    let mut probe = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(probe.stderr.take().unwrap());
    crate::wait_for_line(&mut messages, &mut String::new(), "attached to the server");
    let pid = Pid::from_child(&probe);
    let limits = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(Some(pid), Resource::Nofile, limits).unwrap();
    let mut late = session(&cluster);
    // Processes are listed ten times a second.
    late.query("SELECT pg_sleep(1)").unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut rest = String::new();
    messages.read_to_string(&mut rest).unwrap();
    assert!(probe.wait().unwrap().success(), "{rest}");
    assert!(rest.contains(" not recorded, at least not from "), "{rest}");
}
