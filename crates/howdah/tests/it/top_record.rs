//! `howdah top --record` and `--replay`, with kills, signals and a full disk.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use howdah_lab::{Cluster, skip_without_postgres};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text, tmux::Tmux, top_screen::session};

/// Records eight samples, then kills the recorder.
fn record_until_killed(folder: &Path, uri: &str, file: &str, messages: &str, cluster: &Cluster) {
    let mut client = session(cluster);
    client.query(&format!("BEGIN; SELECT '{messages}'")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_howdah"))
        .args(["top", uri, "--interval", "100ms", "--record", file, "--format", "ndjson"])
        .args(["--view", "databases"])
        .current_dir(folder)
        .env("HOME", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A sample is recorded before it is printed.
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.take(8).filter(Result::is_ok).count(), 8);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn recording_survives_two_kills_and_replays() {
    let test = "recording_survives_two_kills_and_replays";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    record_until_killed(folder.path(), &uri, "shop.top", "first run", &cluster);
    // Truncates the file, as a kill during a write does.
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
    assert!(text(&output.stderr).contains("bytes are not valid"), "{}", text(&output.stderr));
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
    let screen = tmux.wait_for_text("first run");
    assert!(screen.contains("RECORDING shop.top") && screen.contains("stopped"), "{screen}");
    tmux.press(&["}"]);
    tmux.wait_for_text("second run");
    tmux.press(&["t"]);
    tmux.type_text("1h");
    tmux.press(&["Enter"]);
    tmux.wait_for_text("first run");
    tmux.press(&["+", "+", "+", "p"]);
    tmux.wait_for_text("second run");
    tmux.press(&["x"]);
    assert!(!tmux.screen().contains("Send these signals?"));
    // A view that is sampled less often.
    tmux.press(&["4"]);
    tmux.wait_for_text("template1");
    tmux.press(&["q"]);
    tmux.wait_for_text("ended 0");
}

/// Replays a recording; returns its samples and stderr.
fn replay_recording(folder: &Path, file: &str) -> (Vec<Value>, String) {
    let args = ["top", "--replay", file, "--format", "ndjson", "--idle"];
    let output = howdah(folder).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let samples = text(&output.stdout);
    let samples = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (samples, text(&output.stderr))
}

/// Starts a recorder that prints one sample per line; returns it and its lines.
fn start_recording(
    folder: &Path,
    command: &mut Command,
) -> (Child, impl Iterator<Item = String> + use<>) {
    let child = command.current_dir(folder).env("HOME", folder).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map(Result::unwrap))
}

#[test]
fn signal_leaves_complete_recording() {
    let test = "signal_leaves_complete_recording";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut shown = 0;
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_howdah"));
        command.args(["top", &uri, "--interval", "100ms", "--record", "shop.top", "--idle"]);
        let (mut child, mut lines) =
            start_recording(folder.path(), command.args(["--format", "ndjson"]));
        shown += lines.by_ref().take(5).count();
        kill_process(Pid::from_child(&child), signal).unwrap();
        shown += lines.count();
        child.wait().unwrap();
        let (samples, messages) = replay_recording(folder.path(), "shop.top");
        assert!(samples.len() >= shown, "{} of {shown}", samples.len());
        assert_eq!(messages, "", "the file contains only complete frames");
    }
}

#[test]
fn full_disk_stops_only_the_recording() {
    let test = "full_disk_stops_only_the_recording";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    // The file may not exceed 4 kB, like on a full disk: the last write is partial.
    let program = env!("CARGO_BIN_EXE_howdah");
    let script = format!("trap '' XFSZ; ulimit -f 4; exec '{program}' \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "top", "top", &uri, "--interval", "100ms", "--idle"]);
    command.args(["--record", "shop.top", "--format", "ndjson", "--count", "60"]);
    let (mut child, lines) = start_recording(folder.path(), &mut command);
    assert_eq!(lines.count(), 60, "all samples are printed");
    let messages = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success(), "{messages}");
    assert!(messages.contains("cannot record to shop.top"), "{messages}");
    let file = folder.path().join("shop.top");
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 << 10);
    let (mut samples, mut messages) = replay_recording(folder.path(), "shop.top");
    if messages.is_empty() {
        // The limit fell on the end of a frame. Cut the file, so that its last frame is partial.
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len((4 << 10) - 1).unwrap();
        (samples, messages) = replay_recording(folder.path(), "shop.top");
    }
    assert!((1..60).contains(&samples.len()), "{}", samples.len());
    assert!(messages.contains("bytes are not valid"), "{messages}");

    // With free space again, recording continues after the partial frame.
    let args = ["top", &uri, "--interval", "100ms", "--record", "shop.top", "--count", "3"];
    let output = howdah(folder.path()).args(args).args(["--format", "ndjson"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(replay_recording(folder.path(), "shop.top").0.len(), samples.len() + 3);
}
