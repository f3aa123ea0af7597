//! `howdah probe run` and `report` by their commands, on servers that do something.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::Capabilities;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

fn session(cluster: &Cluster) -> Client {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Client::connect(&Target::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// A recorder that runs, and what it says.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Begins; it is there when this returns.
    fn begin(folder: &Path, args: &[&str]) -> Self {
        let program = howdah(folder).get_program().to_owned();
        let mut command = Command::new(program);
        command.current_dir(folder).args(["probe", "run", "-o", "a.rec"]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut running = Self { child, lines };
        running.until("checkpoints ");
        running
    }

    /// Reads to a line that has these words in it.
    fn until(&mut self, words: &str) -> String {
        let found = self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("it ended before it said {words:?}"))
    }

    /// SIGTERM; what it says then, and on stderr.
    fn end(self) -> (String, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let said: Vec<_> = self.lines.map(Result::unwrap).collect();
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success());
        (said.join("\n"), text(&output.stderr))
    }
}

/// Asks until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120), "waited two minutes for {what}");
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

/// Sessions insert wide rows into one table while `work` goes on.
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

/// A write-only load, several sessions on one table, and a checkpoint in the middle. How long the stall is
/// depends on the disk; that the figures, the picture and the verdict are of one run does not.
#[test]
fn a_forced_checkpoint_under_inserts_is_recorded_and_judged() {
    for major in [15, 17, 18] {
        let built = Cluster::builder().major(major).setting("shared_buffers", "64MB").start();
        let Some(cluster) = or_say_why_not(&format!("probe run on {major}"), built) else {
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let uri = cluster.uri("postgres");
        let args = [&*uri, "--budget", "10000", "--trigger", "extend-p99=0.001ms"];
        let mut running = Running::begin(folder, &args);
        let may_trace = Capabilities::own().may_trace();
        while_inserting(&cluster, 6, || {
            if may_trace {
                running.until("trigger extend-p99 fired: ");
                // They are attached one after another; each commit flushes.
                let is_flush = |row: &Value| row["operation"] == "flush";
                until("exact calls", || {
                    document(folder)["exact"].as_array().unwrap().iter().any(is_flush)
                });
            }
            session(&cluster).query("CHECKPOINT").unwrap();
        });
        // Some seconds more, each of which is a record.
        let recorded = |folder: &Path| document(folder)["recorded_seconds"].as_u64().unwrap();
        let enough = recorded(folder) + 3;
        until("more seconds", || recorded(folder) >= enough);
        let (said, _) = running.end();
        assert!(said.contains("interrupted") && said.contains(" recorded, "), "{said}");
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
        }
        let text = report(folder, &["--html", "a.html", "--svg", "a.svg"]);
        let verdict = document["verdict"].as_str().unwrap();
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
        let none =
            howdah(folder).args(["probe", "report", "a.rec", "--episode", "7"]).output().unwrap();
        assert!(text_of_failure(&none).contains("there is no number 7"));
    }
}

fn text_of_failure(output: &std::process::Output) -> String {
    assert!(!output.status.success());
    text(&output.stderr)
}

/// What was recorded is there after a kill, and the next recorder goes on behind it.
#[test]
fn a_killed_recorder_loses_a_record_at_most() {
    let Some(cluster) = or_say_why_not("killed recorder", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = cluster.data_dir().to_str().unwrap();
    let args = ["--data-dir", data, "--no-triggers"];
    let mut running = Running::begin(folder, &args);
    let busy = howdah(folder).args(["probe", "run", "-o", "a.rec"]).args(args).output().unwrap();
    assert!(text_of_failure(&busy).contains("is being written by another recorder"));
    let seconds = |least: usize| loop {
        let output = howdah(folder).args(["probe", "report", "a.rec", "--format", "json"]).output();
        let document = serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap_or_default();
        let seconds = document["seconds"].as_array().cloned().unwrap_or_default();
        if seconds.len() >= least {
            return (seconds, document);
        }
    };
    let (before, _) = seconds(2);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(report(folder, &[]).contains("the end: its end was not seen"));
    let running = Running::begin(folder, &args);
    let (after, document) = seconds(before.len() + 2);
    assert_eq!(after[..before.len()], before, "nothing is lost");
    assert_eq!(document["servers"].as_array().unwrap().len(), 2);
    running.end();
    let other = howdah(folder)
        .args(["probe", "run", "-o", "a.rec", "--max-size", "2MB"])
        .args(args)
        .output();
    assert!(text_of_failure(&other.unwrap()).contains("was made for at most"));
}

#[test]
fn a_server_that_stops_ends_a_recording_that_is_told_to() {
    let Some(mut cluster) = or_say_why_not("recorded stop", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = cluster.data_dir().to_str().unwrap().to_owned();
    let mut running = Running::begin(
        folder.path(),
        &["--data-dir", &data, "--no-triggers", "--until-server-stops"],
    );
    cluster.stop().unwrap();
    running.until("waiting for it");
    running.until("the server ended");
    assert!(running.child.wait().unwrap().success());
    assert_eq!(document(folder.path())["end"], "the server ended");
}

/// A full disk is said, and nobody stops looking.
#[test]
fn a_full_disk_is_said() {
    let Some(cluster) = or_say_why_not("full disk", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "howdah-test"])
        .arg(folder)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped a full disk: nothing may be mounted here");
        return;
    }
    // It goes when the test ends, however it ends; who still has a file open keeps it until then.
    let unmount = Unmount(folder);
    let data = cluster.data_dir().to_str().unwrap();
    let mut running =
        Running::begin(folder, &["--data-dir", data, "--no-triggers", "--frequency", "10"]);
    // As much of it as there is room for.
    let filled = fs::write(folder.join("filler"), vec![0; 1 << 20]);
    assert!(filled.is_err());
    running.until("there is no room on the disk");
    let (said, _) = running.end();
    assert!(said.contains(" recorded, "), "{said}");
    drop(unmount);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        // Lazily: nothing depends on when.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn what_is_no_recording_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("a.rec"), "a letter").unwrap();
    let said =
        |args: &[&str]| text_of_failure(&howdah(folder).arg("probe").args(args).output().unwrap());
    let foreign = said(&["report", "a.rec"]);
    assert!(
        foreign.contains("a.rec is no recording of probes") && foreign.contains("hint:"),
        "{foreign}"
    );
    assert!(said(&["report", "none.rec"]).contains("cannot read none.rec"));
    for (args, words) in [
        (["run", "-o", "b.rec", "--trigger", "sweep"], "a number such as 50"),
        (["run", "-o", "b.rec", "--trigger", "p99=1s"], "there is no trigger \"p99\""),
        (["run", "-o", "b.rec", "--max-size", "10kB"], "a size from 1MB to 4GB"),
        (["run", "-o", "b.rec", "--duration", "soon"], "a time such as 500ms"),
        (["run", "-o", "b.rec", "--pid", "4194304"], "process 4194304 does not exist"),
    ] {
        let told = said(&args);
        assert!(told.contains(words), "{told}");
    }
    assert!(!folder.join("b.rec").exists());
}
