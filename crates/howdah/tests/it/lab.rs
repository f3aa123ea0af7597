//! `howdah lab`: throw-away servers on the command line.

use std::{fs, io::BufRead as _, path::Path, process::Stdio};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use serde_json::Value;

use crate::{howdah, text};

/// `howdah lab` with its own state directory. The server's account must be able to enter `TMPDIR`.
fn lab(folder: &Path, words: &[&str]) -> assert_cmd::Command {
    let mut command = howdah(folder);
    command.env("HOWDAH_STATE_DIR", folder.join("state")).arg("lab").args(words);
    command
}

fn list_labs(folder: &Path) -> Vec<Value> {
    let done = lab(folder, &["list", "--format", "json"]).assert().success();
    let list: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    list["labs"].as_array().unwrap().clone()
}

fn query(uri: &str, sql: &str) -> Option<String> {
    let words = ConnParams { conninfo: Some(uri.to_owned()), ..ConnParams::default() };
    let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
    Client::connect(&target).unwrap().one_value(sql).unwrap()
}

/// Whether PostgreSQL is installed; if not, reports the test as skipped.
fn has_postgresql(test: &str) -> bool {
    howdah_lab::skip_without_postgres(test, howdah_lab::BinariesSearch::new().fetch(false).find())
        .is_some()
}

#[test]
fn stopped_lab_leaves_no_files() {
    if !has_postgresql("stopped_lab_leaves_no_files") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = ["start", "--name", "one", "--set", "work_mem=3MB"];
    let done = lab(folder.path(), &start).assert().success();
    let uri = text(&done.get_output().stdout).trim().to_owned();
    assert_eq!(query(&uri, "show work_mem").as_deref(), Some("3MB"));
    let labs = list_labs(folder.path());
    assert_eq!(labs.len(), 1);
    assert_eq!(labs[0]["name"], "one");
    assert_eq!(labs[0]["uri"], uri);
    assert!(uri.starts_with("postgresql:///postgres?host=/"), "{uri}");
    let dir = labs[0]["dir"].as_str().unwrap().to_owned();
    assert!(Path::new(&dir).exists());

    let again = lab(folder.path(), &start).assert().failure().code(1);
    let messages = text(&again.get_output().stderr);
    assert!(messages.contains("one"), "{messages}");

    lab(folder.path(), &["stop", "one"]).assert().success();
    assert!(list_labs(folder.path()).is_empty());
    assert!(!Path::new(&dir).exists(), "{dir} is left behind");
    let messages = lab(folder.path(), &["stop", "one"]).assert().failure().code(1);
    assert!(text(&messages.get_output().stderr).starts_with("howdah: "));
}

#[test]
fn lab_that_is_down_is_listed_and_restarted() {
    if !has_postgresql("lab_that_is_down_is_listed_and_restarted") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = ["start", "--name", "one", "--tcp", "--set", "work_mem=3MB"];
    let done = lab(folder.path(), &start).assert().success();
    let uri = text(&done.get_output().stdout).trim().to_owned();
    assert!(uri.starts_with("postgresql://postgres@127.0.0.1:"), "{uri}");
    assert!(uri.contains("/postgres?passfile=/"), "{uri}");
    assert_eq!(query(&uri, "show work_mem").as_deref(), Some("3MB"));

    let pid = i32::try_from(list_labs(folder.path())[0]["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::QUIT).unwrap();
    howdah_lab::wait_until("the lab to be down", std::time::Duration::from_secs(60), || {
        list_labs(folder.path())[0]["state"] == "down"
    });
    let down = list_labs(folder.path());
    assert!(down[0]["uri"].is_null() && down[0]["pid"].is_null(), "{down:?}");
    let standby = lab(folder.path(), &["start", "--standby-of", "one"]).assert().failure().code(1);
    let message = text(&standby.get_output().stderr);
    assert!(message.contains("hint: `howdah lab restart one` starts it again"), "{message}");

    let restart = ["restart", "one", "--set", "work_mem=5MB"];
    let done = lab(folder.path(), &restart).assert().success();
    assert_eq!(text(&done.get_output().stdout).trim(), uri);
    assert_eq!(query(&uri, "show work_mem").as_deref(), Some("5MB"));
    assert_eq!(list_labs(folder.path())[0]["state"], "running");
    lab(folder.path(), &["stop", "one"]).assert().success();
    assert!(list_labs(folder.path()).is_empty());
}

#[test]
fn lab_without_tcp_refuses_listen_addresses() {
    if !has_postgresql("lab_without_tcp_refuses_listen_addresses") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = ["start", "--set", "listen_addresses=*"];
    let done = lab(folder.path(), &start).assert().failure().code(1);
    let message = text(&done.get_output().stderr);
    assert!(message.contains("hint: start the lab with --tcp"), "{message}");
    assert!(list_labs(folder.path()).is_empty());
}

#[test]
fn foreground_lab_ends_with_ctrl_c() {
    if !has_postgresql("foreground_lab_ends_with_ctrl_c") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_howdah"))
        .env("HOWDAH_STATE_DIR", folder.path().join("state"))
        .args(["lab", "start", "--foreground", "--name", "front"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let uri = lines.next().unwrap().unwrap();
    assert_eq!(query(&uri, "select 1").as_deref(), Some("1"));
    let dir = list_labs(folder.path())[0]["dir"].as_str().unwrap().to_owned();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait().unwrap();
    assert!(!Path::new(&dir).exists(), "{dir} is left behind");
    assert!(list_labs(folder.path()).is_empty());
}

#[test]
fn failed_start_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let start = ["start", "--pg-bin", empty.to_str().unwrap()];
    let done = lab(folder.path(), &start).assert().failure().code(1);
    let messages = text(&done.get_output().stderr);
    assert!(messages.contains("empty") && !messages.contains("panicked"), "{messages}");
    lab(folder.path(), &["start", "--pg", "9"]).assert().failure().code(2);
    assert!(list_labs(folder.path()).is_empty());
}
