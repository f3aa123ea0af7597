//! `howdah probe` by SQL, where the server's processes cannot be inspected. Each row states the
//! limitation of its source.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

/// Maximum time for the server or the probe to react.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

fn start_probe(folder: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(howdah(folder).get_program());
    command.current_dir(folder).arg("probe").args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Runs a probe by SQL while `act` runs, until a row is `wanted`, and returns all rows.
fn rows_until(
    cluster: &Cluster,
    probe: &str,
    act: impl FnOnce(&mut Client),
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = [
        probe,
        &uri,
        "--source",
        "sql",
        "--interval",
        "0.2",
        "--duration",
        "60",
        "--format",
        "ndjson",
    ];
    let mut child = start_probe(folder.path(), &args);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut session = session(cluster);
    wait_for_probe_query(&mut session);
    act(&mut session);
    let mut seen: Vec<Value> = Vec::new();
    for line in lines.by_ref() {
        seen.push(serde_json::from_str(&line).unwrap());
        if seen.last().is_some_and(&wanted) {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            break;
        }
    }
    seen.extend(lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()));
    child.wait().unwrap();
    assert!(seen.iter().any(&wanted), "{probe} on {}: {seen:?}", cluster.major());
    for row in &seen {
        assert_eq!(row["source"], "sql", "{row}");
        assert!(
            row["limitation"].as_str().is_some_and(|limitation| limitation.len() > 10),
            "{row}"
        );
    }
    seen
}

/// Waits until the probe's session has run a query.
fn wait_for_probe_query(session: &mut Client) {
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%taken_us%' \
        AND pid <> pg_backend_pid() OR query LIKE '%wait_event%' AND pid <> pg_backend_pid()";
    wait_until("a query of the probe", TIMEOUT, || {
        session.one_value(asked).unwrap().as_deref() != Some("0")
    });
}

#[test]
fn counters_by_sql_state_their_limitation() {
    for major in [14, 15, 17, 18] {
        let built = Cluster::builder()
            .major(major)
            .setting("track_io_timing", "on")
            .setting("track_wal_io_timing", "on")
            .setting("fsync", "on")
            .setting("shared_buffers", "1MB")
            .start();
        let Some(cluster) = skip_without_postgres(&format!("probe by SQL on {major}"), built)
        else {
            continue;
        };
        let fill = |session: &mut Client| {
            let fill = "CREATE TABLE IF NOT EXISTS t (pad text); \
                INSERT INTO t SELECT repeat('x', 900) FROM generate_series(1, 3000)";
            session.query(fill).unwrap();
            session.query("SELECT count(*) FROM t").unwrap();
            session.query("CHECKPOINT").unwrap();
        };
        let has = |row: &Value, column: &str| row[column].as_f64() > Some(0.0);
        let told = rows_until(&cluster, "wal", fill, |row| {
            row["operation"] == "fsync" && has(row, "calls")
        });
        let synced = told.iter().find(|row| row["operation"] == "fsync" && has(row, "calls"));
        assert!(synced.is_some_and(|row| has(row, "total_ms")), "{told:?}");
        assert!(told.iter().all(|row| row["p99_ms"].is_null()));
        rows_until(&cluster, "io", fill, |row| row["operation"] == "write" && has(row, "calls"));
        let told = rows_until(&cluster, "sweep", fill, |row| has(row, "allocations"));
        assert!(told.iter().all(|row| row["passes"].is_null() && row["hand"].is_null()));
        let told = rows_until(&cluster, "checkpoints", fill, |row| row["phase"] == "checkpoint");
        let of = |phase: &str| told.iter().find(|row| row["phase"] == phase).unwrap();
        assert!(of("write")["duration_ms"].is_number() && of("sync")["duration_ms"].is_number());
        assert!(of("checkpoint")["start"].is_null() && has(of("checkpoint"), "buffers_written"));
    }
}

#[test]
fn lock_waits_are_sampled_by_sql() {
    for major in [15, 18] {
        let built = Cluster::builder().major(major).start();
        let Some(cluster) = skip_without_postgres(&format!("locks by SQL on {major}"), built)
        else {
            continue;
        };
        session(&cluster).query("CREATE TABLE locked (id int)").unwrap();
        let wait = |holder: &mut Client| {
            holder.query("BEGIN; LOCK TABLE locked").unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| session(&cluster).query("SELECT * FROM locked").unwrap());
                let waited = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                    AND waitstart < clock_timestamp() - interval '0.5 s'";
                wait_until("a lock wait of 0.5 s", TIMEOUT, || {
                    holder.one_value(waited).unwrap().as_deref() != Some("0")
                });
                holder.query("COMMIT").unwrap();
            });
        };
        let told = rows_until(&cluster, "locks", wait, |row| {
            row["kind"] == "interval" && row["calls"].as_u64() > Some(0)
        });
        let of = |kind: &str| told.iter().find(|row| row["kind"] == kind).unwrap();
        assert_eq!(of("subject")["subject"], "relation locked");
        let (waited, total) = (of("subject")["max_ms"].as_f64(), of("end")["total_ms"].as_f64());
        // Sampled every 0.2 s, so up to two intervals at the end are missing.
        assert!(waited > Some(200.0) && total > Some(200.0), "{told:?}");
        let told = rows_until(&cluster, "waits", wait, |row| row["event"] == "Lock:relation");
        let seen = told.iter().find(|row| row["event"] == "Lock:relation").unwrap();
        assert_eq!(
            (&seen["group"], &seen["backend"]),
            (&"database".into(), &"client backend".into())
        );
        rows_until(
            &cluster,
            "extend",
            |_| {},
            |row| row["kind"] == "interval" && row["waits"] == 0,
        );
        let (folder, uri) = (tempfile::tempdir().unwrap(), cluster.uri("postgres"));
        let args = ["lwlocks", &uri, "--source", "sql", "--duration", "0.5", "--format", "ndjson"];
        let output = start_probe(folder.path(), &args).wait_with_output().unwrap();
        let last = text(&output.stdout);
        let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
        assert_eq!((&last["kind"], &last["source"]), (&"end".into(), &"sql".into()));
    }
}

/// Copies the program to the folder and makes both accessible to all users.
fn copy_executable(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let (program, copy) = (howdah(folder).get_program().to_owned(), folder.join("howdah"));
    if fs::hard_link(&program, &copy).is_err() {
        fs::copy(&program, &copy).unwrap();
    }
    copy
}

/// Runs `howdah probe` as `UID:GID` with only these capabilities.
fn run_as(folder: &Path, account: &str, capabilities: &str, args: &[&str]) -> std::process::Output {
    let mut command = Command::new("setpriv");
    let (user, group) = account.split_once(':').unwrap();
    command.args(["--reuid", user, "--regid", group, "--clear-groups"]);
    command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities, "--bounding-set"]);
    command.arg(capabilities).arg(copy_executable(folder)).arg("probe").args(args);
    command.current_dir("/").env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    command.output().unwrap()
}

/// Without privileges the missing one is reported; with a URI the probe falls back to SQL.
#[test]
fn missing_privilege_is_reported_with_hint() {
    let test = "missing privileges";
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: only root can become another account");
        return;
    }
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let pid = cluster.pid().unwrap().to_string();
    let owner = fs::metadata(cluster.data_dir()).unwrap();
    let owner = format!("{}:{}", owner.uid(), owner.gid());
    let messages = |account: &str, capabilities: &str, args: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let output = run_as(folder.path(), account, capabilities, args);
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    // Another user may inspect neither the server's processes nor its memory.
    let (is_done, _, error) =
        messages("65534:65534", "-all", &["waits", "--pid", &pid, "--duration", "1"]);
    assert!(!is_done && error.contains("may not be inspected"), "{error}");
    assert!(
        error.contains("CAP_SYS_PTRACE") && error.contains("hint: run as the server's OS user")
    );
    // The server's own account may read its memory, but not attach eBPF programs.
    let (is_done, _, error) =
        messages(&owner, "-all", &["extend", "--pid", &pid, "--duration", "1"]);
    assert!(!is_done && error.contains("CAP_BPF and CAP_PERFMON (or root)"), "{error}");
    let (is_done, _, error) = messages(&owner, "-all,+cap_39", &["extend", "--pid", &pid]);
    assert!(!is_done && error.contains("needs CAP_PERFMON (or root)"), "{error}");
    let lwlocks = ["lwlocks", "--pid", &pid, "--duration", "0.5", "--format", "ndjson"];
    let (is_done, rows, error) = messages(&owner, "-all", &lwlocks);
    assert!(is_done && error.contains("using samples of memory"), "{error}");
    assert!(rows.contains(r#""source":"memory""#) && rows.contains("these are samples"), "{rows}");
    // With a URI, another user gets rows by SQL.
    let uri = cluster.uri("postgres");
    let waits = ["waits", &uri, "--all", "--duration", "1", "--format", "ndjson"];
    let (is_done, rows, error) = messages("65534:65534", "-all", &waits);
    assert!(
        is_done && error.contains("using SQL:") && error.contains("may not be inspected"),
        "{error}"
    );
    assert!(rows.contains(r#""source":"sql""#) && !rows.contains(r#""source":"memory""#), "{rows}");
}

#[test]
fn unsupported_source_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for (args, words) in [
        (
            ["waits", "--source", "bpf"],
            "this probe does not support --source bpf, only memory, sql",
        ),
        (["queries", "--source", "sql"], "this probe does not support --source sql, only bpf"),
        (
            ["extend", "--source", "memory"],
            "this probe does not support --source memory, only bpf, sql",
        ),
    ] {
        let output = howdah(folder.path()).arg("probe").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let by_pid = ["probe", "waits", "--source", "sql", "--pid", "1"];
    let output = howdah(folder.path()).args(by_pid).output().unwrap();
    assert!(text(&output.stderr).contains("--source sql requires a URI"));
}
