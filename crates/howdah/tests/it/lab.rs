//! `howdah lab`: throw-away servers, from the command line.

use std::{fs, io::BufRead as _, path::Path, process::Stdio};

use howdah_connect::{Client, Environment, Target, Words};
use serde_json::Value;

use crate::{howdah, text};

/// `howdah lab` with a list of labs of its own. `TMPDIR` must be reachable for the server's account.
fn lab(folder: &Path, words: &[&str]) -> assert_cmd::Command {
    let mut command = howdah(folder);
    command.env("HOWDAH_STATE_DIR", folder.join("state")).arg("lab").args(words);
    command
}

fn listed(folder: &Path) -> Vec<Value> {
    let done = lab(folder, &["list", "--format", "json"]).assert().success();
    let list: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    list["labs"].as_array().unwrap().clone()
}

fn ask(uri: &str, sql: &str) -> Option<String> {
    let words = Words { conninfo: Some(uri.to_owned()), ..Words::default() };
    let target = Target::resolve(&words, &Environment::empty()).unwrap();
    Client::connect(&target).unwrap().one_value(sql).unwrap()
}

/// Whether there is a PostgreSQL on this machine; says so if not.
fn has_postgresql(test: &str) -> bool {
    howdah_lab::or_say_why_not(test, howdah_lab::Search::new().fetch(false).find()).is_some()
}

#[test]
fn a_lab_runs_until_it_is_stopped_and_leaves_nothing() {
    if !has_postgresql("a_lab_runs_until_it_is_stopped_and_leaves_nothing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = ["start", "--name", "one", "--set", "work_mem=3MB"];
    let done = lab(folder.path(), &start).assert().success();
    let uri = text(&done.get_output().stdout).trim().to_owned();
    assert_eq!(ask(&uri, "show work_mem").as_deref(), Some("3MB"));
    let labs = listed(folder.path());
    assert_eq!(labs.len(), 1);
    assert_eq!(labs[0]["name"], "one");
    assert_eq!(labs[0]["uri"], uri);
    assert!(uri.starts_with("postgresql:///postgres?host=/"), "{uri}");
    let dir = labs[0]["dir"].as_str().unwrap().to_owned();
    assert!(Path::new(&dir).exists());

    let again = lab(folder.path(), &start).assert().failure().code(1);
    let said = text(&again.get_output().stderr);
    assert!(said.contains("one"), "{said}");

    lab(folder.path(), &["stop", "one"]).assert().success();
    assert!(listed(folder.path()).is_empty());
    assert!(!Path::new(&dir).exists(), "{dir} is left behind");
    let said = lab(folder.path(), &["stop", "one"]).assert().failure().code(1);
    assert!(text(&said.get_output().stderr).starts_with("howdah: "));
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
    assert_eq!(ask(&uri, "show work_mem").as_deref(), Some("3MB"));

    let pid = i32::try_from(listed(folder.path())[0]["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::QUIT).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while listed(folder.path())[0]["state"] != "down" {
        assert!(std::time::Instant::now() < until, "the server does not end");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let down = listed(folder.path());
    assert!(down[0]["uri"].is_null() && down[0]["pid"].is_null(), "{down:?}");
    let standby = lab(folder.path(), &["start", "--standby-of", "one"]).assert().failure().code(1);
    let message = text(&standby.get_output().stderr);
    assert!(message.contains("hint: `howdah lab restart one` starts it again"), "{message}");

    let restart = ["restart", "one", "--set", "work_mem=5MB"];
    let done = lab(folder.path(), &restart).assert().success();
    assert_eq!(text(&done.get_output().stdout).trim(), uri);
    assert_eq!(ask(&uri, "show work_mem").as_deref(), Some("5MB"));
    assert_eq!(listed(folder.path())[0]["state"], "running");
    lab(folder.path(), &["stop", "one"]).assert().success();
    assert!(listed(folder.path()).is_empty());
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
    assert!(listed(folder.path()).is_empty());
}

#[test]
fn a_lab_in_the_foreground_ends_with_ctrl_c() {
    if !has_postgresql("a_lab_in_the_foreground_ends_with_ctrl_c") {
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
    assert_eq!(ask(&uri, "select 1").as_deref(), Some("1"));
    let dir = listed(folder.path())[0]["dir"].as_str().unwrap().to_owned();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait().unwrap();
    assert!(!Path::new(&dir).exists(), "{dir} is left behind");
    assert!(listed(folder.path()).is_empty());
}

#[test]
fn what_cannot_be_started_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let start = ["start", "--pg-bin", empty.to_str().unwrap()];
    let done = lab(folder.path(), &start).assert().failure().code(1);
    let said = text(&done.get_output().stderr);
    assert!(said.contains("empty") && !said.contains("panicked"), "{said}");
    lab(folder.path(), &["start", "--pg", "9"]).assert().failure().code(2);
    assert!(listed(folder.path()).is_empty());
}
