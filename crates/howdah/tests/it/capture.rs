//! `howdah capture`: import of logs, `cat` and `info`.

use std::{fs, path::Path, process::Stdio};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::{howdah, text};

const LOG: &str = "\
2026-11-20 12:43:20.100 UTC [7] app@shop LOG:  connection authorized: user=app database=shop application_name=psql
2026-11-20 12:43:20.200 UTC [7] app@shop LOG:  duration: 1.500 ms  statement: select 'café'
Segmentation fault in some extension
2026-11-20 12:43:21.000 UTC [8] app@shop LOG:  duration: 800.000 ms  statement: select pg_sleep(0.8)
2026-11-20 12:43:21.100 UTC [7] app@shop LOG:  duration: 0.250 ms  execute s1: select $1::text, $2
2026-11-20 12:43:21.100 UTC [7] app@shop DETAIL:  parameters: $1 = 'it''s', $2 = NULL
2026-11-20 12:43:21.200 UTC [7] app@shop ERROR:  column \"x\" does not exist at character 8
2026-11-20 12:43:21.200 UTC [7] app@shop STATEMENT:  select x
2026-11-20 12:43:21.300 UTC [7] app@shop LOG:  disconnection: session time: 0:00:01.200 user=app database=shop host=[local]
";

/// A folder with the log above and its capture, and the report of `capture import`.
fn imported() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.log"), LOG).unwrap();
    let done = import(folder.path()).arg("server.log").assert().success();
    assert!(done.get_output().stdout.is_empty(), "import prints nothing on stdout");
    let messages = text(&done.get_output().stderr);
    (folder, messages)
}

fn import(folder: &Path) -> Command {
    let mut command = howdah(folder);
    command.args(["capture", "import", "-o", "monday"]);
    command
}

/// The events printed by `capture cat`.
fn events(folder: &Path) -> Vec<Value> {
    let cat = ["capture", "cat", "monday", "--format", "ndjson"];
    let done = howdah(folder).args(cat).assert().success();
    let lines = text(&done.get_output().stdout);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn import_reports_detected_format_and_skipped_lines() {
    let (_folder, messages) = imported();
    assert!(
        messages.contains(
            "in stderr format, log_line_prefix '%m [%p] %q%u@%d ' (guessed: matches all "
        ),
        "{messages}"
    );
    assert!(messages.contains("  simple "), "{messages}");
    assert!(messages.contains("lines that are not log records: 1"), "{messages}");
    assert!(messages.contains("server.log:3: Segmentation fault in some extension"), "{messages}");
}

#[test]
fn cat_prints_events_ordered_by_start_time() {
    let (folder, _) = imported();
    let events = events(folder.path());
    let sql: Vec<_> = events.iter().filter_map(|event| event["sql"].as_str()).collect();
    // The second statement in the log started before the first.
    let expected = ["select 'café'", "select pg_sleep(0.8)", "select $1::text, $2", "select x"];
    assert_eq!(sql, expected);
    let times: Vec<_> = events.iter().map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");

    let execute = events.iter().find(|event| event["kind"] == "execute").unwrap();
    assert_eq!(execute["time"], "2026-11-20T12:43:21.099750Z");
    assert_eq!(execute["user"], "app");
    assert_eq!(execute["database"], "shop");
    assert_eq!(execute["statement"], "s1");
    assert_eq!(execute["parameters"], json!(["it's", null]));
    assert_eq!(execute["duration_us"], 250);
    assert_eq!(execute["source"], "duration");
    let failed = events.iter().find(|event| event["sql"] == "select x").unwrap();
    assert_eq!(failed["source"], "error");
    assert_eq!(failed["error"], "column \"x\" does not exist");
}

#[test]
fn ndjson_rows_have_all_keys_in_fixed_order() {
    let (folder, _) = imported();
    let cat = ["capture", "cat", "monday", "--format", "ndjson"];
    let done = howdah(folder.path()).args(cat).assert().success();
    let keys = [
        "time",
        "session",
        "kind",
        "user",
        "database",
        "application",
        "sql",
        "parameters",
        "parameters_truncated",
        "duration_us",
        "sqlstate",
        "error",
        "statement",
        "portal",
        "copy_direction",
        "function",
        "source",
        "vxid",
        "query_id",
        "pipeline",
        "rows",
        "rows_max",
        "types",
        "formats",
        "result_formats",
        "settings",
        "copy_bytes",
        "copy_data",
        "copy_end",
        "arguments",
        "messages",
    ];
    for line in text(&done.get_output().stdout).lines() {
        let places: Vec<_> = keys.iter().map(|key| line.find(&format!("\"{key}\":"))).collect();
        assert!(places.iter().all(Option::is_some), "{line}");
        assert!(places.is_sorted(), "{line}");
    }
}

#[test]
fn cat_prints_a_table_by_default() {
    let (folder, _) = imported();
    let done = howdah(folder.path()).args(["capture", "cat", "monday"]).assert().success();
    let table = text(&done.get_output().stdout);
    let line = table.lines().find(|line| line.contains("execute")).unwrap();
    for cell in ["2026-11-20T12:43:21.099750Z", "app@shop", " 0.250 ", "$1=it's  $2=NULL"] {
        assert!(line.contains(cell), "{cell} in {line}");
    }
}

#[test]
fn info_reports_source_of_capture() {
    let (folder, _) = imported();
    let done = howdah(folder.path()).args(["capture", "info", "monday"]).assert().success();
    let table = text(&done.get_output().stdout);
    assert!(table.contains("server.log; stderr; prefix %m [%p] %q%u@%d "), "{table}");
    assert!(table.contains("lines that are not log records: 1"), "{table}");
    assert!(table.contains("server.log:3: Segmentation"), "{table}");

    let info = ["capture", "info", "monday", "--format", "json"];
    let done = howdah(folder.path()).args(info).assert().success();
    let info: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(info["format"], "howdah-capture");
    assert_eq!((&info["version"], &info["finished"]), (&json!(5), &json!(true)));
    assert_eq!(info["kinds"]["simple"], 3);
    assert_eq!(info["events"], events(folder.path()).len());
    assert_eq!(info["report"]["problems"][0]["samples"][0]["line"], 3);
    assert!(info["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn capture_is_replaced_only_with_force_and_valid_log() {
    let (folder, _) = imported();
    let refused = import(folder.path()).arg("server.log").assert().code(1);
    let messages = text(&refused.get_output().stderr);
    assert!(messages.contains("monday already contains a capture"), "{messages}");
    assert!(messages.contains("hint: use --force to replace it"), "{messages}");

    fs::write(folder.path().join("poem.txt"), "Tyger Tyger, burning bright\n").unwrap();
    import(folder.path()).args(["--force", "poem.txt"]).assert().code(1);
    assert!(!events(folder.path()).is_empty(), "unreadable input replaces nothing");

    let first: String = LOG.lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("server.log"), first).unwrap();
    import(folder.path()).args(["--force", "server.log"]).assert().success();
    let executions = |event: &&Value| event["kind"] == "simple";
    assert_eq!(events(folder.path()).iter().filter(executions).count(), 1);
}

#[test]
fn log_is_imported_from_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    import(folder.path()).arg("-").write_stdin(LOG).assert().success();
    assert_eq!(events(folder.path()).iter().filter(|event| event["kind"] == "simple").count(), 3);
}

#[test]
fn unreadable_log_is_reported_and_leaves_no_capture() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("empty.log"), "").unwrap();
    fs::write(folder.path().join("junk.log"), [0x1f, 0x8b, 8, 0, 0, 1, 2, 3]).unwrap();
    fs::write(folder.path().join("server.log"), LOG).unwrap();
    fs::create_dir(folder.path().join("logs")).unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["missing.log"], 1, "missing.log"),
        (&["logs"], 1, "logs contains no files"),
        (&["empty.log"], 1, "empty.log is empty"),
        (&["junk.log"], 1, "junk.log"),
        (&["server.log", "--prefix", "%m|%u|%d|"], 1, "server.log:1"),
        (&["server.log", "--prefix", "%u@%d "], 2, "has no time"),
        (&["server.log", "--timezone", "Middle/Earth"], 2, "Middle/Earth"),
    ];
    for (words, code, expected) in cases {
        let refused = import(folder.path()).args(words).assert().code(code);
        let messages = text(&refused.get_output().stderr);
        assert!(messages.contains(expected), "{words:?}: {messages}");
        assert!(!folder.path().join("monday").exists(), "{words:?}");
    }
}

#[test]
fn events_before_a_read_error_are_kept() {
    // A file that can be opened but not read.
    let broken = "/proc/self/mem";
    if !Path::new(broken).exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.log"), LOG).unwrap();
    let failed = import(folder.path()).args(["server.log", broken]).assert().code(1);
    let messages = text(&failed.get_output().stderr);
    assert!(
        messages.contains(broken) && messages.contains("events before the error are in monday"),
        "{messages}"
    );
    let sql = |event: &&Value| event["sql"].is_string();
    assert_eq!(events(folder.path()).iter().filter(sql).count(), 4);
    let done = howdah(folder.path()).args(["capture", "info", "monday"]).assert().success();
    let table = text(&done.get_output().stdout);
    assert!(table.contains("INCOMPLETE") && table.contains(broken), "{table}");
}

#[test]
fn missing_capture_is_reported_with_hint() {
    let folder = tempfile::tempdir().unwrap();
    for words in [["capture", "info", "monday"], ["capture", "cat", "monday"]] {
        let refused = howdah(folder.path()).args(words).assert().code(1);
        let messages = text(&refused.get_output().stderr);
        assert!(messages.contains("monday does not exist"), "{messages}");
        assert!(messages.contains("hint: `howdah capture import LOG -o monday`"), "{messages}");
    }
}

#[test]
fn closed_pipe_ends_cat_successfully() {
    let (folder, _) = imported();
    for format in ["table", "ndjson"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["capture", "cat", "monday", "--format", format])
            .current_dir(folder.path())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{format}");
        assert_eq!(text(&output.stderr), "", "{format}");
    }
}

/// The shell limits the size of files, like a full disk for one process.
#[test]
fn full_disk_is_reported_by_import() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = String::from(LOG);
    let mut noise = 1_u64;
    for _ in 0..400 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let words: String =
            (0..40).map(|n| format!("{:x}", noise.rotate_left(n * 3) ^ 77)).collect();
        log.push_str(&format!(
            "2026-11-20 12:43:22.000 UTC [7] app@shop LOG:  duration: 1.5 ms  statement: select '{words}'\n"
        ));
    }
    fs::write(folder.path().join("server.log"), log).unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 8; exec "$0" "$@""#])
        .arg(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["capture", "import", "server.log", "-o", "monday"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let messages = text(&output.stderr);
    assert!(messages.contains("no room to write monday/events-000001.parquet"), "{messages}");
    let info = ["capture", "info", "monday", "--format", "json"];
    let done = howdah(folder.path()).args(info).assert().success();
    let info: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!((&info["finished"], &info["events"]), (&json!(false), &json!(0)));
}

#[test]
fn events_survive_interrupted_import_from_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_howdah"))
        .current_dir(folder.path())
        .args(["capture", "import", "-o", "monday", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, LOG.as_bytes()).unwrap();
    // The capture is created with the first event, while the pipe is still open.
    howdah_lab::wait_until("the capture", std::time::Duration::from_secs(60), || {
        folder.path().join("monday/capture.json").exists()
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap();
    let messages = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{messages}");
    let error = "howdah: interrupted before the end of the input\nhint: the ";
    assert!(messages.contains(error), "{messages}");
    drop(stdin);
    let kinds: Vec<_> = events(folder.path()).iter().map(|event| event["kind"].clone()).collect();
    assert!(kinds.contains(&json!("disconnect")), "{kinds:?}");
}

#[test]
fn empty_time_range_is_reported_with_range_of_log() {
    let (folder, _) = imported();
    let range = "2026-11-20T12:43:20.1";
    for words in [
        &["capture", "import", "server.log", "--discard", "--from", "2027-01-01"][..],
        &["capture", "split", "monday", "-o", "parts", "--sessions", "2", "--until", "2026-01-01"],
    ] {
        let done = howdah(folder.path()).args(words).output().unwrap();
        let report = text(&done.stderr);
        assert!(report.contains(range) && report.contains("2026-11-20T12:43:21.3"), "{report}");
    }
    let row = "2026-11-20 12:43:20.100 UTC [7] LOG:  checkpoint starting: time\n";
    fs::write(folder.path().join("idle.log"), row).unwrap();
    let done = howdah(folder.path()).args(["capture", "import", "idle.log", "--discard"]).output();
    let report = text(&done.unwrap().stderr);
    assert!(report.contains("no statements and no sessions"), "{report}");
}

#[test]
fn report_lists_settings_given_at_login() {
    let (_folder, report) = imported();
    assert!(report.contains("settings at login"), "{report}");
    assert!(report.contains("--set app@shop:search_path=s2"), "{report}");
}
