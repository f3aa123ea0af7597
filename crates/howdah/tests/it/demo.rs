//! `howdah demo`: a captured workload, a rehearsal, and the query that got slower.

use std::{
    fs::{self, Permissions},
    io::{BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
    time::Duration,
};

use howdah_dataset::Capture;
use howdah_lab::{BinariesSearch, skip_without_postgres, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::{howdah, text, wait_for_line};

/// The index that the demo drops.
const INDEX: &str = "orders_customer_id_created_at_idx";

/// How long an interrupted demo may take to stop its servers.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder for everything that a demo creates in the temporary directory. `None` if the test is
/// skipped.
fn scratch(test: &str) -> Option<TempDir> {
    skip_without_postgres(test, BinariesSearch::new().fetch(false).find())?;
    let folder = tempfile::tempdir().unwrap();
    // The servers of root run as another account, which must be able to enter.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn demo_finds_query_without_index_and_leaves_only_its_report() {
    let Some(scratch) = scratch("the demo") else { return };
    let done = howdah(scratch.path())
        .args(["demo", "--duration", "5s"])
        .env("TMPDIR", scratch.path())
        .assert();
    let output = done.get_output();
    let (found, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{found}{messages}");
    assert!(found.starts_with("rehearsal failed: "), "{found}");
    let slower = found.lines().find(|line| line.starts_with("slower: select id, created_at"));
    let slower = slower.unwrap_or_else(|| panic!("{found}"));
    assert!(slower.contains("became Seq Scan on orders"), "{slower}");
    let reason = format!("index {INDEX} on orders is missing");
    assert!(found.contains(&format!("\nreason: {reason}\n")), "{found}");

    let page = Path::new(found.lines().next_back().unwrap());
    assert_eq!(page.file_name().unwrap(), "report.html");
    assert!(fs::read_to_string(page).unwrap().contains(&reason));
    let folder = page.parent().unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("howdah-demo-"), "{name}");
    assert_eq!(names(scratch.path()), [name], "servers and pooler leave nothing behind");
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);

    let report: Value =
        serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["verdict"], "failed");
    let runs = report["runs"].as_array().unwrap();
    let order: Vec<_> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(order, ["a1", "b1", "b2", "a2", "a3", "b3"]);
    assert!(runs.iter().all(|run| run["failed"] == 0 && run["skipped"] == 0), "{runs:?}");
    assert_eq!(report["queries"][0]["verdict"], "slower", "{}", report["queries"][0]);
    for name in ["report.txt", "report.md", "report.xml"] {
        assert!(folder.join(name).is_file(), "{name} is missing");
    }
    let capture = Capture::open(&folder.join("capture")).unwrap();
    assert!(capture.manifest().finished);
    let is_shop =
        |event: &howdah_traffic::Event| (&*event.user, &*event.database) == ("shop", "shop");
    assert!(capture.events().all(|event| is_shop(&event.unwrap())), "other clients were captured");
}

#[test]
fn interrupted_demo_leaves_nothing() {
    for step in ["2/4  PostgreSQL", "replay a1"] {
        let Some(scratch) = scratch("interrupt the demo") else { return };
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["demo", "--duration", "5s"])
            .current_dir(scratch.path())
            .env("HOME", scratch.path())
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        wait_for_line(&mut lines, &mut String::new(), step);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let status =
            wait_for("the interrupted demo to end", STOP_TIMEOUT, || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(1));
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("howdah: interrupted\n"), "{rest}");
        assert!(!rest.contains("hint:") && rest.matches("howdah:").count() == 1, "{rest}");
        let mut found = String::new();
        child.stdout.take().unwrap().read_to_string(&mut found).unwrap();
        assert_eq!(found, "");
        assert_eq!(names(scratch.path()), [""; 0], "interrupted at {step}");
    }
}

#[test]
fn demo_does_not_replace_results_of_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("out/capture")).unwrap();
    let refused = howdah(folder.path()).args(["demo", "--out", "out"]).assert().code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("out/capture was not written by howdah demo"), "{message}");
    assert!(message.contains("hint: name another folder with -o"), "{message}");
}
