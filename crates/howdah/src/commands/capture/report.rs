//! The `report` of a capture's manifest: what an import read and left out, and how to say it.
//!
//! It is said when the import ends, and again whenever somebody asks about the capture.

use howdah_logs::{Problem, Summary};
use serde_json::{Value, json};

/// What an import has to report. `too_large` counts events that no capture can hold.
pub(super) fn of(summary: &Summary, too_large: u64) -> Value {
    let problem = |problem: &Problem| {
        json!({
            "reason": problem.reason,
            "text": problem.reason.as_str(),
            "count": problem.count,
            "samples": problem.samples,
        })
    };
    let mut facts = json!(summary.facts);
    facts["too_large"] = too_large.into();
    json!({
        "bytes": summary.bytes,
        "records": summary.records,
        "rejected": summary.rejected() + too_large,
        "prefix": summary.prefix,
        "problems": summary.problems.iter().map(problem).collect::<Vec<_>>(),
        "facts": facts,
        "completeness": summary.completeness(),
    })
}

/// What an import has to report that failed on the way.
pub(super) fn of_failure(error: &anyhow::Error) -> Value {
    json!({ "error": format!("{error:#}") })
}

/// The key of transactions cut open among the entries of `completeness`.
const OPEN_TRANSACTIONS: &str = "open_transactions";

const OPEN_TRANSACTIONS_TEXT: &str = "transactions still open where the capture ends";

const OPEN_TRANSACTIONS_MEANING: &str =
    "a replay closes their sessions when it gets there, which rolls them back";

/// Sets how many transactions a capture ends in the middle of, in place of what the capture it was
/// made from had.
pub(super) fn add_open_transactions(report: &mut Value, count: usize) {
    let mut gaps = list(&report["completeness"]).to_vec();
    gaps.retain(|gap| gap["lack"] != OPEN_TRANSACTIONS);
    if count > 0 {
        gaps.push(json!({
            "lack": OPEN_TRANSACTIONS,
            "count": count,
            "text": OPEN_TRANSACTIONS_TEXT,
            "meaning": OPEN_TRANSACTIONS_MEANING,
            "remedy": null,
        }));
    }
    if !gaps.is_empty() || !report["completeness"].is_null() {
        report["completeness"] = gaps.into();
    }
}

/// The line about transactions cut open, if there are any.
pub(super) fn open_transactions(count: usize) -> Option<String> {
    let line = || format!("{OPEN_TRANSACTIONS_TEXT}: {count}\n  {OPEN_TRANSACTIONS_MEANING}");
    (count > 0).then(line)
}

/// Takes away what quotes the log: a log is full of values.
pub(super) fn hide_values(report: &mut Value) {
    for problem in report["problems"].as_array_mut().into_iter().flatten() {
        for sample in problem["samples"].as_array_mut().into_iter().flatten() {
            sample["excerpt"] = "(redacted)".into();
        }
    }
}

/// What a person should know of a report, in lines. Whatever it lacks is not said.
pub(super) fn lines(report: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = report["error"].as_str() {
        lines.push(format!("stopped: {error}"));
    }
    for problem in list(&report["problems"]) {
        lines.push(format!("{}: {}", text(&problem["text"]), problem["count"]));
        for sample in list(&problem["samples"]) {
            let (file, line) = (text(&sample["file"]), &sample["line"]);
            // Of an archive there is no line.
            let line = line.as_u64().filter(|line| *line > 0).map(|line| format!(":{line}"));
            let line = line.unwrap_or_default();
            lines.push(format!("  {file}{line}: {}", text(&sample["excerpt"])));
        }
    }
    if let Some(count) = report["facts"]["too_large"].as_u64().filter(|count| *count > 0) {
        lines.push(format!("events too large for a capture, left out: {count}"));
    }
    for gap in list(&report["completeness"]) {
        lines.push(format!("{}: {}", text(&gap["text"]), gap["count"]));
        lines.push(format!("  {}", text(&gap["meaning"])));
        if let Some(remedy) = gap["remedy"].as_str() {
            lines.push(format!("  the server's log would hold it with {remedy}"));
        }
        if let Some(advice) = gap["advice"].as_str() {
            lines.push(format!("  {advice}"));
        }
    }
    for left in list(&report["left_out"]) {
        lines.push(format!("left out, {}: {}", text(&left["text"]), left["count"]));
    }
    lines
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn a_report_is_said_as_far_as_it_goes() {
    assert_eq!(lines(&Value::Null), Vec::<String>::new());
    assert_eq!(lines(&json!({ "error": "the disk broke" })), ["stopped: the disk broke"]);
    let mut summary = Summary::default();
    summary.facts.executions_with_cut_values = 2;
    let expected = [
        "events too large for a capture, left out: 1",
        "executions with parameters that the server cut: 2",
        "  they are skipped",
        "  the server's log would hold it with log_parameter_max_length = -1, \
         log_parameter_max_length_on_error = -1",
    ];
    assert_eq!(lines(&of(&summary, 1)), expected);
}

#[test]
fn count_of_open_transactions_replaces_the_inherited_one() {
    let mut report = json!({ "completeness": [{ "lack": "copy_rows", "count": 1 }] });
    add_open_transactions(&mut report, 3);
    add_open_transactions(&mut report, 2);
    assert_eq!(list(&report["completeness"]).len(), 2);
    assert_eq!(report["completeness"][1]["count"], 2);
    let told = lines(&report);
    assert!(
        told.contains(&"transactions still open where the capture ends: 2".to_owned()),
        "{told:?}"
    );
    add_open_transactions(&mut report, 0);
    assert_eq!(list(&report["completeness"]).len(), 1);
    let mut none = json!({});
    add_open_transactions(&mut none, 0);
    assert_eq!(none, json!({}));
}
