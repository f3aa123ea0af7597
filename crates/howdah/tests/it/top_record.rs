//! `howdah top --record` and `--replay`: whatever happens to the program and to the disk.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use howdah_lab::{Cluster, or_say_why_not};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text, tmux::Tmux, top_screen::session};

/// Records until it is killed.
fn record_until_killed(folder: &Path, uri: &str, file: &str, said: &str, cluster: &Cluster) {
    let mut client = session(cluster);
    client.query(&format!("BEGIN; SELECT '{said}'")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_howdah"))
        .args(["top", uri, "--interval", "100ms", "--record", file, "--format", "ndjson"])
        .args(["--view", "databases"])
        .current_dir(folder)
        .env("HOME", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Each sample that is written was recorded before.
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.take(8).filter(Result::is_ok).count(), 8);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_recording_over_two_kills_is_replayed_on_the_screen_and_as_rows() {
    let test = "a_recording_over_two_kills";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    record_until_killed(folder.path(), &uri, "shop.top", "first run", &cluster);
    // What a kill in the middle of a write leaves.
    let path = folder.path().join("shop.top");
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length - 5).unwrap();
    record_until_killed(folder.path(), &uri, "shop.top", "second run", &cluster);

    let output = howdah(folder.path())
        .args(["top", "--replay", "shop.top", "--format", "ndjson"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("are no frames"), "{}", text(&output.stderr));
    let samples: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(samples.len() >= 15, "{}", samples.len());
    let has = |sample: &Value, session: &str| sample.to_string().contains(session);
    assert!(has(&samples[0], "first run") && !has(&samples[0], "second run"));
    assert!(has(&samples[samples.len() - 1], "second run"));
    let rows = howdah(folder.path())
        .args(["top", "--replay", "shop.top", "--view", "databases", "--count", "3"])
        .args(["--format", "csv"])
        .output()
        .unwrap();
    let rows = text(&rows.stdout);
    assert!(rows.lines().filter(|line| line.contains(",postgres,")).count() == 3, "{rows}");

    let args = ["top", "--replay", "shop.top"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 30), &[], &args) else { return };
    let screen = tmux.until_has("first run");
    assert!(screen.contains("RECORDING shop.top") && screen.contains("stopped"), "{screen}");
    tmux.press(&["}"]);
    tmux.until_has("second run");
    tmux.press(&["t"]);
    tmux.type_in("1h");
    tmux.press(&["Enter"]);
    tmux.until_has("first run");
    tmux.press(&["+", "+", "+", "p"]);
    tmux.until_has("second run");
    tmux.press(&["x"]);
    assert!(!tmux.screen().contains("Are these the ones?"));
    // A screen that was read in turn.
    tmux.press(&["4"]);
    tmux.until_has("template1");
    tmux.press(&["q"]);
    tmux.until_has("ended 0");
}

/// The samples of a recording, and what was said of it.
fn replayed(folder: &Path, file: &str) -> (Vec<Value>, String) {
    let args = ["top", "--replay", file, "--format", "ndjson", "--idle"];
    let output = howdah(folder).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let samples = text(&output.stdout);
    let samples = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (samples, text(&output.stderr))
}

/// A program that records and writes a sample a line.
fn recording(
    folder: &Path,
    command: &mut Command,
) -> (Child, impl Iterator<Item = String> + use<>) {
    let child = command.current_dir(folder).env("HOME", folder).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map(Result::unwrap))
}

#[test]
fn what_was_shown_before_a_signal_is_in_the_recording_and_nothing_is_torn() {
    let test = "what_was_shown_before_a_signal";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut shown = 0;
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_howdah"));
        command.args(["top", &uri, "--interval", "100ms", "--record", "shop.top", "--idle"]);
        let (mut child, mut lines) = recording(folder.path(), command.args(["--format", "ndjson"]));
        shown += lines.by_ref().take(5).count();
        kill_process(Pid::from_child(&child), signal).unwrap();
        shown += lines.count();
        child.wait().unwrap();
        let (samples, said) = replayed(folder.path(), "shop.top");
        assert!(samples.len() >= shown, "{} of {shown}", samples.len());
        assert_eq!(said, "", "no byte is anything but a frame");
    }
}

#[test]
fn a_disk_that_is_full_stops_the_recording_and_nothing_else() {
    let test = "a_disk_that_is_full_stops";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    // A file that may not be larger than 4 kB, as a disk has no more: the last write of it is a part of one.
    let program = env!("CARGO_BIN_EXE_howdah");
    let script = format!("trap '' XFSZ; ulimit -f 4; exec '{program}' \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "top", "top", &uri, "--interval", "100ms", "--idle"]);
    command.args(["--record", "shop.top", "--format", "ndjson", "--count", "60"]);
    let (mut child, lines) = recording(folder.path(), &mut command);
    assert_eq!(lines.count(), 60, "each sample is shown");
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("cannot record to shop.top"), "{said}");
    assert_eq!(fs::metadata(folder.path().join("shop.top")).unwrap().len(), 4 << 10);
    let (samples, said) = replayed(folder.path(), "shop.top");
    assert!((1..60).contains(&samples.len()), "{}", samples.len());
    assert!(said.contains("are no frames"), "{said}");

    // When there is room again, it goes on behind that.
    let args = ["top", &uri, "--interval", "100ms", "--record", "shop.top", "--count", "3"];
    let output = howdah(folder.path()).args(args).args(["--format", "ndjson"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(replayed(folder.path(), "shop.top").0.len(), samples.len() + 3);
}
