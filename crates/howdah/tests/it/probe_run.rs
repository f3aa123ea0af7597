//! `howdah probe run` and `report`, with servers under load.

use std::{
    fs,
    io::{BufReader, Read as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_probe::{
    Capabilities,
    recorder::{FlightRecord, FlightRecording},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text, wait_for_line};

/// Maximum time for the recorder to react.
const TIMEOUT: Duration = Duration::from_secs(120);

fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// A running `howdah probe run`, and its stdout.
struct RecorderProcess {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl RecorderProcess {
    /// Starts a recorder, and waits until it records.
    fn start(folder: &Path, args: &[&str]) -> Self {
        let program = howdah(folder).get_program().to_owned();
        let mut command = Command::new(program);
        command.current_dir(folder).args(["probe", "run", "-o", "a.rec"]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, stdout };
        running.wait_for_line("checkpoints ");
        running
    }

    /// Reads stdout until a line contains `part`.
    fn wait_for_line(&mut self, part: &str) {
        wait_for_line(&mut self.stdout, &mut String::new(), part);
    }

    /// Sends SIGTERM; returns the rest of stdout, and stderr.
    fn terminate(mut self) -> (String, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut messages = String::new();
        self.stdout.read_to_string(&mut messages).unwrap();
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success());
        (messages, text(&output.stderr))
    }
}

fn report(folder: &Path, args: &[&str]) -> String {
    let output = howdah(folder).args(["probe", "report", "a.rec"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn document(folder: &Path) -> Value {
    serde_json::from_str(&report(folder, &["--format", "json"])).unwrap()
}

/// Runs `work` while several sessions insert wide rows into one table.
fn while_inserting(cluster: &Cluster, sessions: usize, work: impl FnOnce()) {
    session(cluster)
        .query("CREATE TABLE orders (pad text); ALTER TABLE orders ALTER pad SET STORAGE PLAIN")
        .unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..sessions {
            scope.spawn(|| {
                let mut client = session(cluster);
                let pads = "SELECT repeat('x', 6000) FROM generate_series(1, 20)";
                while !stop.load(Ordering::Relaxed) {
                    client.query(&format!("INSERT INTO orders {pads}")).unwrap();
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Several sessions write to one table, with a checkpoint in the middle. The length of the stall
/// depends on the disk, so only the consistency of JSON, SVG and summary is checked.
#[test]
fn checkpoint_under_load_is_recorded_and_summarized() {
    for major in [15, 17, 18] {
        let built = Cluster::builder().major(major).setting("shared_buffers", "64MB").start();
        let Some(cluster) = skip_without_postgres(&format!("probe run on {major}"), built) else {
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let uri = cluster.uri("postgres");
        let args = [&*uri, "--budget", "10000", "--trigger", "extend-p99=0.001ms"];
        let mut running = RecorderProcess::start(folder, &args);
        let may_trace = Capabilities::current().may_trace();
        while_inserting(&cluster, 6, || {
            if may_trace {
                running.wait_for_line("trigger extend-p99 fired: ");
                // Trace points are attached one after another; each commit flushes WAL.
                let is_flush = |row: &Value| row["operation"] == "flush";
                wait_until("exact calls", TIMEOUT, || {
                    document(folder)["exact"].as_array().unwrap().iter().any(is_flush)
                });
            }
            session(&cluster).query("CHECKPOINT").unwrap();
        });
        // Three more seconds; each second is a record.
        let recorded = |folder: &Path| document(folder)["recorded_seconds"].as_u64().unwrap();
        let enough = recorded(folder) + 3;
        wait_until("more recorded seconds", TIMEOUT, || recorded(folder) >= enough);
        let (messages, _) = running.terminate();
        assert!(messages.contains("interrupted") && messages.contains(" recorded, "), "{messages}");
        let document = document(folder);
        assert_eq!(
            (&document["format"], &document["version"]),
            (&"howdah-flight".into(), &1.into())
        );
        assert_eq!(document["end"], "interrupted");
        let phases = document["phases"].as_array().unwrap();
        for phase in ["checkpoint", "write", "sync"] {
            assert!(
                phases.iter().any(|row| row["phase"] == phase && row["is_open"] == false),
                "{phase}"
            );
        }
        let insert = "insert into orders select repeat(?, ?) from generate_series(?, ?)";
        let statements = document["database_time"]["statement"].as_array().unwrap();
        assert!(statements.iter().any(|row| row["name"] == insert), "{statements:?}");
        let counters = document["counters"].as_array().unwrap();
        assert!(counters.iter().any(|row| row["commits"].as_u64() > Some(0)), "{counters:?}");
        let seconds = document["seconds"].as_array().unwrap();
        let events = seconds.iter().flat_map(|second| second["waits"].as_array().unwrap());
        assert!(events.clone().any(|row| row["group"] == "database"), "{seconds:?}");
        assert!(events.clone().any(|row| row["group"] == "idle"));
        if may_trace {
            let relations =
                seconds.iter().flat_map(|second| second["relations"].as_array().unwrap());
            let named = relations.filter(|row| row["relation"] == "postgres.public.orders").count();
            assert!(named > 0, "{seconds:?}");
            assert_eq!(document["triggers"][0]["trigger"], "extend-p99");
            let exact = document["exact"].as_array().unwrap();
            let subjects = exact.iter().flat_map(|row| row["subjects"].as_array().unwrap());
            let orders = subjects.filter(|row| row["subject"] == "postgres.public.orders").count();
            assert!(orders > 0, "{exact:?}");
        }
        let text = report(folder, &["--html", "a.html", "--svg", "a.svg"]);
        let verdict = document["summary"].as_str().unwrap();
        assert!(text.starts_with(&format!("{verdict}.\n")), "{text}");
        let (page, picture) = (
            fs::read_to_string(folder.join("a.html")).unwrap(),
            fs::read_to_string(folder.join("a.svg")).unwrap(),
        );
        assert!(picture.starts_with("<svg xmlns=") && picture.contains("class=\"phase sync\""));
        assert!(page.contains(&picture) && !page.contains("<script") && !page.contains("src="));
        if may_trace {
            assert!(report(folder, &["--episode", "1"]).contains("trigger extend-p99 fired"));
        }
        assert!(text.contains("database time by statement"), "{text}");
        assert!(page.contains("Database time by statement"));
        let late = howdah(folder)
            .args(["probe", "report", "a.rec", "--from", "3000-01-01T00:00:00Z"])
            .output();
        assert!(failure_text(&late.unwrap()).contains("nothing was recorded in this time"));
        assert!(report(folder, &["--from", "2020-01-01T00:00:00Z"]).contains("PostgreSQL"));
        let none =
            howdah(folder).args(["probe", "report", "a.rec", "--episode", "7"]).output().unwrap();
        assert!(failure_text(&none).contains("has no episode 7"));
    }
}

/// Runs two sessions into a deadlock over two rows, which ends when one of them has waited for
/// `timeout`; returns their process ids.
fn deadlock(cluster: &Cluster, timeout: &str) -> [i32; 2] {
    let [mut one, mut other] = [(1, "buyer"), (2, "seller")].map(|(id, application)| {
        let mut client = session(cluster);
        client
            .query(&format!(
                "SET application_name = {application}; SET deadlock_timeout = '{timeout}'"
            ))
            .unwrap();
        client.query(&format!("BEGIN; UPDATE item SET price = 7 WHERE id = {id}")).unwrap();
        client
    });
    let pids = [&one, &other].map(|client| client.process_id().unwrap());
    let (ended, also_ended) = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let update = "UPDATE item SET price = price + 1 WHERE id = 2";
            let ended = one.query(update).map(drop);
            one.query("ROLLBACK").unwrap();
            ended
        });
        let mut observer = session(cluster);
        wait_until("a blocked session", TIMEOUT, || {
            let blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            observer.one_value(blocked).unwrap().unwrap() != "0"
        });
        let also_ended = other.query("DELETE FROM item WHERE id = 1").map(drop);
        other.query("ROLLBACK").unwrap();
        (waiting.join().unwrap(), also_ended)
    });
    let errors: Vec<_> = [ended, also_ended].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].sqlstate(), Some("40P01"), "{errors:?}");
    pids
}

#[test]
fn deadlock_is_recorded_with_its_sessions() {
    for major in [15, 18] {
        let built = Cluster::builder().major(major).start();
        let Some(cluster) = skip_without_postgres(&format!("deadlocks on {major}"), built) else {
            continue;
        };
        session(&cluster)
            .query("CREATE TABLE item (id int, price int); INSERT INTO item VALUES (1, 1), (2, 2)")
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let uri = cluster.uri("postgres");
        let running = RecorderProcess::start(folder, &[&*uri]);
        // The growth of counters is known from the second sample on.
        wait_until("two samples", TIMEOUT, || {
            document(folder)["counters"].as_array().unwrap().len() >= 2
        });
        // A busy machine may be too late for a circle, or for its confirmation.
        let deadline = Instant::now() + TIMEOUT;
        let mut pids = Vec::new();
        let count = |document: &Value| {
            let counters = document["counters"].as_array().unwrap().iter();
            counters.map(|row| row["deadlocks"].as_u64().unwrap()).sum::<u64>()
        };
        // If it is very late, the locks are gone when it reads them.
        let has_locks = |deadlock: &&Value| {
            let members = deadlock["members"].as_array().unwrap();
            members
                .iter()
                .all(|member| member["lock"].as_str().is_some_and(|lock| !lock.is_empty()))
        };
        while !document(folder)["deadlocks"].as_array().unwrap().iter().any(|it| has_locks(&it)) {
            assert!(Instant::now() < deadline, "no deadlock of {} is recorded", pids.len());
            pids.push(deadlock(&cluster, "2s"));
            wait_until("the deadlock to be counted", TIMEOUT, || {
                count(&document(folder)) == pids.len() as u64
            });
        }
        // This one is over before most samples.
        pids.push(deadlock(&cluster, "10ms"));
        wait_until("all to be counted", TIMEOUT, || count(&document(folder)) == pids.len() as u64);
        running.terminate();
        let document = document(folder);
        let seen = document["deadlocks"].as_array().unwrap();
        let first = seen.iter().find(has_locks).unwrap();
        let members = first["members"].as_array().unwrap();
        assert_eq!(members.len(), 2, "{first}");
        let is_of = |pids: &&[i32; 2]| members.iter().any(|member| member["pid"] == pids[0]);
        let total = pids.len() as u64;
        let pids = pids.iter().find(is_of).expect("a deadlock of these sessions");
        for (at, application, statement) in [
            (0, "buyer", "update item set price = price + ? where id = ?"),
            (1, "seller", "delete from item where id = ?"),
        ] {
            let member = members.iter().find(|member| member["pid"] == pids[at]).unwrap();
            assert_eq!(member["waits_for"], serde_json::json!([pids[1 - at]]), "{member}");
            assert_eq!(member["application"], application, "{member}");
            assert_eq!(member["statement"], statement, "{member}");
            assert_eq!(member["relation"], "postgres.public.item", "{member}");
            assert_eq!(
                (&member["lock"], &member["mode"]),
                (&"transactionid".into(), &"ShareLock".into()),
                "{member}"
            );
        }
        let unseen = document["unseen_deadlocks"].as_array().unwrap().iter();
        let unseen: u64 = unseen.map(|row| row["count"].as_u64().unwrap()).sum();
        assert_eq!(seen.len() as u64 + unseen, total, "{seen:?}");
        let findings = document["findings"].as_array().unwrap();
        let title = format!("{total} deadlocks");
        let finding = findings.iter().find(|finding| finding["text"] == *title).unwrap();
        assert!(finding["evidence"].as_str().unwrap().contains("postgres.public.item"));
        let text = report(folder, &["--html", "a.html"]);
        let page = fs::read_to_string(folder.join("a.html")).unwrap();
        let waits = format!("waits for pid {}: ShareLock on transactionid, a row of", pids[1]);
        for part in [&*waits, "`delete from item where id = ?`", "\ndeadlocks:\n"] {
            assert!(text.contains(part) && page.contains(part), "{part}: {text}");
        }
        assert_eq!(text.contains("which no sample saw"), unseen > 0, "{text}");
        // A circle is recorded about once a second, although more samples see it.
        let recording = FlightRecording::open(&folder.join("a.rec")).unwrap();
        let is_circle = |record: &&FlightRecord| matches!(record, FlightRecord::WaitCircle(_));
        let circles = recording.records.iter().filter(is_circle).count();
        let most = 10 * total as usize;
        assert!((1..=most).contains(&circles), "{circles} records of {total} deadlocks");
    }
}

fn failure_text(output: &std::process::Output) -> String {
    assert!(!output.status.success());
    text(&output.stderr)
}

/// After a kill, the recorded seconds are readable, and the next recorder appends to them.
#[test]
fn killed_recorder_loses_at_most_one_record() {
    let Some(cluster) = skip_without_postgres("killed recorder", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = cluster.data_dir().to_str().unwrap();
    let args = ["--data-dir", data, "--no-triggers"];
    let mut running = RecorderProcess::start(folder, &args);
    let busy = howdah(folder).args(["probe", "run", "-o", "a.rec"]).args(args).output().unwrap();
    assert!(failure_text(&busy).contains("is being written by another recorder"));
    let seconds = |least: usize| {
        howdah_lab::wait_for("more recorded seconds", TIMEOUT, || {
            let output =
                howdah(folder).args(["probe", "report", "a.rec", "--format", "json"]).output();
            let document =
                serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap_or_default();
            let seconds = document["seconds"].as_array().cloned().unwrap_or_default();
            (seconds.len() >= least).then_some((seconds, document))
        })
    };
    let (before, _) = seconds(2);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(report(folder, &[]).contains("end: not recorded"));
    let running = RecorderProcess::start(folder, &args);
    let (after, document) = seconds(before.len() + 2);
    assert_eq!(after[..before.len()], before, "nothing is lost");
    assert_eq!(document["servers"].as_array().unwrap().len(), 2);
    running.terminate();
    let other = howdah(folder)
        .args(["probe", "run", "-o", "a.rec", "--max-size", "2MB"])
        .args(args)
        .output();
    assert!(failure_text(&other.unwrap()).contains("was created for at most"));
}

#[test]
fn until_server_stops_ends_recording_with_server() {
    let Some(mut cluster) = skip_without_postgres("recorded stop", Cluster::builder().start())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir().to_str().unwrap().to_owned();
    let mut running = RecorderProcess::start(
        folder.path(),
        &["--data-dir", &data, "--no-triggers", "--until-server-stops"],
    );
    cluster.stop().unwrap();
    running.wait_for_line("has stopped: postmaster ");
    running.wait_for_line("the server ended");
    assert!(running.child.wait().unwrap().success());
    assert_eq!(document(folder.path())["end"], "the server ended");
}

/// A full disk is reported, and the recorder keeps running.
#[test]
fn full_disk_is_reported_by_recorder() {
    let Some(cluster) = skip_without_postgres("full disk", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "howdah-test"])
        .arg(folder)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED full disk: cannot mount a tmpfs");
        return;
    }
    // Unmounted when the test ends, also by a panic.
    let unmount = UnmountOnDrop(folder);
    let data = cluster.data_dir().to_str().unwrap();
    let mut running =
        RecorderProcess::start(folder, &["--data-dir", data, "--no-triggers", "--frequency", "10"]);
    // Fills the file system.
    let filled = fs::write(folder.join("filler"), vec![0; 1 << 20]);
    assert!(filled.is_err());
    running.wait_for_line("no space left on the disk");
    let (messages, _) = running.terminate();
    assert!(messages.contains(" recorded, "), "{messages}");
    drop(unmount);
}

struct UnmountOnDrop<'a>(&'a Path);

impl Drop for UnmountOnDrop<'_> {
    fn drop(&mut self) {
        // Lazily, because a process may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn invalid_recording_or_option_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("a.rec"), "plain text").unwrap();
    let messages =
        |args: &[&str]| failure_text(&howdah(folder).arg("probe").args(args).output().unwrap());
    let foreign = messages(&["report", "a.rec"]);
    assert!(
        foreign.contains("a.rec is not a probe recording") && foreign.contains("hint:"),
        "{foreign}"
    );
    assert!(messages(&["report", "none.rec"]).contains("cannot read none.rec"));
    for (args, words) in [
        (["run", "-o", "b.rec", "--trigger", "sweep"], "a number such as 50"),
        (["run", "-o", "b.rec", "--trigger", "p99=1s"], "unknown trigger \"p99\""),
        (["run", "-o", "b.rec", "--max-size", "10kB"], "a size from 1MB to 4GB"),
        (["run", "-o", "b.rec", "--duration", "soon"], "a time such as 500ms"),
        (["run", "-o", "b.rec", "--pid", "4194304"], "process 4194304 does not exist"),
    ] {
        let told = messages(&args);
        assert!(told.contains(words), "{told}");
    }
    assert!(!folder.join("b.rec").exists());
}
