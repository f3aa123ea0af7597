//! `howdah compare` on synthetic runs.

use std::path::Path;

use assert_cmd::Command;
use howdah_dataset::{Disposition, ReplayOutcome, RunSettings, RunWriter, StatementInfo};
use howdah_traffic::{Kind, SqlState, Timestamp};
use serde_json::Value;

use crate::{howdah, text};

const QUERIES: [(u64, &str); 3] = [
    (1, "select * from orders where customer = ?"),
    (2, "update customer set seen = now() where id = ?"),
    (3, "commit"),
];

pub(crate) fn settings() -> RunSettings {
    RunSettings {
        capture: "monday".to_owned(),
        target: "postgresql://app@db/shop".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.10".to_owned(),
        started: Timestamp::from_micros(1_795_178_599_577_000),
        overwrite: false,
        part: None,
    }
}

/// Writes a run with 200 executions per query, with these median times.
fn write_run(folder: &Path, name: &str, median_us: [u64; 3], errors: usize) {
    let mut writer = RunWriter::create(&folder.join(name), settings()).unwrap();
    for (fingerprint, query) in QUERIES {
        let statement = StatementInfo {
            fingerprint,
            query: query.to_owned(),
            example_sql: query.into(),
            example_parameters: None,
            user: "app".into(),
            database: "shop".into(),
        };
        writer.statement(&statement).unwrap();
    }
    for number in 0..200 {
        for ((fingerprint, _), median_us) in QUERIES.into_iter().zip(median_us) {
            let at = i64::try_from(number).unwrap() * 10_000;
            let failed = fingerprint == 2 && number < errors;
            let error = Disposition::Failed {
                sqlstate: SqlState::new(b"40001"),
                message: "could not serialize access".into(),
            };
            let outcome = ReplayOutcome {
                time: Timestamp::from_micros(at),
                session: "656a1b2c.4d2".into(),
                user: "app".into(),
                database: "shop".into(),
                kind: Kind::Execute,
                fingerprint: Some(fingerprint),
                due_us: at,
                sent_us: Some(at),
                // From 80 % to 120 % of the median, in mixed order.
                service_us: Some(median_us * (80 + number as u64 * 37 % 41) / 100),
                schedule_error_us: Some(3),
                dependency_lag_us: None,
                input_late_us: None,
                rows: Some(1),
                disposition: if failed { error } else { Disposition::Done },
                captured_us: None,
                order_wait_us: None,
                captured_rows: None,
                check: None,
            };
            writer.write(&outcome).unwrap();
        }
    }
    writer.finish(Value::Null, true).unwrap();
}

/// Writes a run that was stopped before its first statement.
fn write_empty_run(folder: &Path) {
    let writer = RunWriter::create(&folder.join("empty"), settings()).unwrap();
    writer.finish(Value::Null, false).unwrap();
}

/// A folder with the runs `base`, `same` and the slower `new`.
fn write_runs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), "base", [205, 3_000, 90], 0);
    write_run(folder.path(), "same", [210, 2_900, 95], 0);
    write_run(folder.path(), "new", [2_910, 3_050, 85], 4);
    folder
}

fn compare(folder: &Path, words: &[&str]) -> Command {
    let mut command = howdah(folder);
    command.arg("compare").args(words);
    command
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let output = compare(folder, words).args(["--format", "json"]).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

#[test]
fn slower_query_is_shown_in_table() {
    let folder = write_runs();
    let output = compare(folder.path(), &["base", "new"]).assert().success();
    insta::assert_snapshot!(text(&output.get_output().stdout));
    assert_eq!(text(&output.get_output().stderr), "");
}

#[test]
fn unchanged_runs_have_verdict_no_change() {
    let folder = write_runs();
    let output = compare(folder.path(), &["base", "same"]).assert().success();
    let shown = text(&output.get_output().stdout);
    assert!(shown.contains("\nverdict: no change in 3 queries\n"), "{shown}");
    assert!(!shown.contains("slower"), "{shown}");
}

#[test]
fn json_document_has_stable_keys() {
    let folder = write_runs();
    let document = json(folder.path(), &["base", "new"]);
    assert_eq!(document["format"], "howdah-comparison");
    assert_eq!(document["version"], 1);
    assert_eq!(document["verdict"], "slower");
    assert_eq!(document["base"]["calls"], 600);
    assert_eq!(document["run"]["errors"], 4);
    let worst = &document["queries"][0];
    assert_eq!(worst["query"], QUERIES[0].1);
    assert_eq!(worst["verdict"], "slower");
    let ratio = worst["change"]["ratio"].as_f64().unwrap();
    assert!((14.0..14.4).contains(&ratio), "{ratio}");
    for side in ["base", "run"] {
        for name in [
            "calls", "errors", "mean_us", "p50_us", "p90_us", "p95_us", "p99_us", "max_us",
            "total_us",
        ] {
            assert!(worst[side][name].is_number(), "{side} {name}");
        }
    }
    let errors = document["queries"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|query| query["errors"].as_array().unwrap());
    assert_eq!(
        errors.map(|error| error["sqlstate"].as_str().unwrap()).collect::<Vec<_>>(),
        ["40001"]
    );
    let limited = json(folder.path(), &["base", "new", "--limit", "1"]);
    assert_eq!(limited["queries"].as_array().unwrap().len(), 1);
    assert_eq!(limited["queries_total"], 3);
}

#[test]
fn violated_threshold_exits_3_and_names_query() {
    let folder = write_runs();
    let crossed =
        compare(folder.path(), &["base", "new", "--fail-on", "p95>1.5x"]).assert().code(3);
    let shown = text(&crossed.get_output().stdout);
    assert!(
        shown.contains("fail-on p95>1.5x: select * from orders where customer = ? "),
        "{shown}"
    );
    let several = ["base", "new", "--fail-on", "p95>100x", "--fail-on", "errors>1x"];
    let crossed = compare(folder.path(), &several).assert().code(3);
    let shown = text(&crossed.get_output().stdout);
    assert!(shown.contains("fail-on errors>1x: update customer"), "{shown}");
    assert!(!shown.contains("fail-on p95"), "{shown}");
    compare(folder.path(), &["base", "new", "--fail-on", "p95>100x"]).assert().success();
    compare(folder.path(), &["base", "same", "--fail-on", "p95>1.5x"]).assert().success();
    compare(folder.path(), &["new", "base", "--fail-on", "errors>1x"]).assert().success();
}

#[test]
fn control_run_measures_noise() {
    let folder = write_runs();
    let document = json(folder.path(), &["base", "new", "--control", "same"]);
    assert_eq!(document["verdict"], "slower");
    assert!(document["control"]["noise"].as_f64().unwrap() < 1.1);
    // With a control that differs as much as the run, the difference may be noise.
    let words = ["base", "new", "--control", "new", "--format", "json"];
    let output = compare(folder.path(), &words).assert().code(4);
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["verdict"], "not comparable");
    assert_eq!(document["caveats"][0]["kind"], "runs_vary");
}

#[test]
fn min_change_is_configurable() {
    let folder = write_runs();
    let document = json(folder.path(), &["base", "new", "--min-change", "20x"]);
    assert_eq!(document["verdict"], "no change");
    assert_eq!(document["settings"]["change_min"], 20.0);
}

#[test]
fn invalid_comparison_is_refused() {
    let folder = write_runs();
    for words in [
        &["base"][..],
        &["base", "new", "--fail-on", "p42>1x"],
        &["base", "new", "--fail-on", "p95>3"],
        &["base", "new", "--min-change", "0.9x"],
        &["base", "new", "--explain-base", "postgresql://db"],
    ] {
        compare(folder.path(), words).assert().code(2);
    }
    let alone =
        compare(folder.path(), &["base", "new", "--explain-run", "host=a"]).assert().code(2);
    let messages = text(&alone.get_output().stderr);
    assert!(
        messages.contains("hint: plans of two servers are compared: add --explain-base"),
        "{messages}"
    );
    write_empty_run(folder.path());
    for words in [["empty", "new"], ["base", "empty"]] {
        let refused = compare(folder.path(), &words).assert().code(1);
        let messages = text(&refused.get_output().stderr);
        assert!(
            messages.starts_with("howdah: the run empty has no executions to compare\nhint: "),
            "{messages}"
        );
    }
    let missing = compare(folder.path(), &["base", "nothing"]).assert().code(1);
    let messages = text(&missing.get_output().stderr);
    assert!(messages.starts_with("howdah: cannot read the run nothing: "), "{messages}");
    assert!(messages.contains("\nhint: `howdah replay"), "{messages}");
    let refused =
        ["base", "new", "--explain-base", "host=/nowhere", "--explain-run", "host=/nowhere"];
    let refused = compare(folder.path(), &refused).assert().code(1);
    let messages = text(&refused.get_output().stderr);
    assert!(messages.contains("cannot get plans: cannot connect to "), "{messages}");
}
