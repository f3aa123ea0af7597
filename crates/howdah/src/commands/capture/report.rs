//! The `report` in a capture's manifest: what an import read and omitted, and its text form.
//!
//! It is printed at the end of the import and by `howdah capture info`.

use howdah_logs::{ImportProblem, ImportSummary};
use serde_json::{Value, json};

/// Returns the report of an import. `too_large` counts events that are too large for a capture.
pub(super) fn from_summary(summary: &ImportSummary, too_large: u64) -> Value {
    let problem = |problem: &ImportProblem| {
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

/// Returns the report of an import that failed.
pub(super) fn from_failure(error: &anyhow::Error) -> Value {
    json!({ "error": format!("{error:#}") })
}

/// The kind of the gap for open transactions in `completeness`.
const OPEN_TRANSACTIONS: &str = "open_transactions";

const OPEN_TRANSACTIONS_TEXT: &str = "transactions still open where the capture ends";

const OPEN_TRANSACTIONS_MEANING: &str =
    "a replay closes their sessions when it gets there, which rolls them back";

/// Sets the number of transactions still open at the end of a capture, replacing the number
/// inherited from the source capture.
pub(super) fn add_open_transactions(report: &mut Value, count: usize) {
    let mut gaps = list(&report["completeness"]).to_vec();
    gaps.retain(|gap| gap["kind"] != OPEN_TRANSACTIONS);
    if count > 0 {
        gaps.push(json!({
            "kind": OPEN_TRANSACTIONS,
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

/// Returns the line about open transactions, if any.
pub(super) fn open_transactions(count: usize) -> Option<String> {
    let line = || format!("{OPEN_TRANSACTIONS_TEXT}: {count}\n  {OPEN_TRANSACTIONS_MEANING}");
    (count > 0).then(line)
}

/// Removes excerpts of the log, because they may contain values.
pub(super) fn hide_values(report: &mut Value) {
    for problem in report["problems"].as_array_mut().into_iter().flatten() {
        for sample in problem["samples"].as_array_mut().into_iter().flatten() {
            sample["excerpt"] = "(redacted)".into();
        }
    }
}

/// Returns the report as lines of text. Missing parts are omitted.
pub(super) fn lines(report: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(error) = report["error"].as_str() {
        lines.push(format!("stopped: {error}"));
    }
    for problem in list(&report["problems"]) {
        lines.push(format!("{}: {}", text(&problem["text"]), problem["count"]));
        for sample in list(&problem["samples"]) {
            let (file, line) = (text(&sample["file"]), &sample["line"]);
            // Entries of an archive have no line number.
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
            lines.push(format!("  the server logs it with {remedy}"));
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
fn missing_parts_of_report_are_omitted() {
    assert_eq!(lines(&Value::Null), Vec::<String>::new());
    assert_eq!(lines(&json!({ "error": "disk failure" })), ["stopped: disk failure"]);
    let mut summary = ImportSummary::default();
    summary.facts.executions_with_cut_values = 2;
    let expected = [
        "events too large for a capture, left out: 1",
        "executions with parameters that the server cut: 2",
        "  they are skipped",
        "  the server logs it with log_parameter_max_length = -1, \
         log_parameter_max_length_on_error = -1",
    ];
    assert_eq!(lines(&from_summary(&summary, 1)), expected);
}

#[test]
fn count_of_open_transactions_replaces_the_inherited_one() {
    let mut report = json!({ "completeness": [{ "kind": "copy_rows", "count": 1 }] });
    add_open_transactions(&mut report, 3);
    add_open_transactions(&mut report, 2);
    assert_eq!(list(&report["completeness"]).len(), 2);
    assert_eq!(report["completeness"][1]["count"], 2);
    let lines = lines(&report);
    assert!(
        lines.contains(&"transactions still open where the capture ends: 2".to_owned()),
        "{lines:?}"
    );
    add_open_transactions(&mut report, 0);
    assert_eq!(list(&report["completeness"]).len(), 1);
    let mut none = json!({});
    add_open_transactions(&mut none, 0);
    assert_eq!(none, json!({}));
}
