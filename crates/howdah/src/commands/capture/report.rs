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
    })
}

/// What an import has to report that failed on the way.
pub(super) fn of_failure(error: &anyhow::Error) -> Value {
    json!({ "error": format!("{error:#}") })
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
            lines.push(format!("  {file}:{line}: {}", text(&sample["excerpt"])));
        }
    }
    for (key, note) in FACTS {
        match &report["facts"][key] {
            Value::Number(count) if count.as_u64() != Some(0) => {
                lines.push(format!("{note}: {count}"));
            }
            Value::Bool(true) => lines.push((*note).to_owned()),
            _ => {}
        }
    }
    lines
}

/// Facts about a log that cost something later.
const FACTS: &[(&str, &str)] = &[
    ("too_large", "events too large for a capture, left out"),
    ("truncated_values", "values cut by log_parameter_max_length, not fit for replay"),
    ("errors_without_statement", "errors without their statement (log_min_error_statement)"),
    ("lost_lines", "lines that the server wrote and the log does not hold"),
    ("joined_midway", "sessions that were open before the log began"),
    ("joined_in_transaction", "of these, in the middle of a transaction"),
    ("sessions_merged", "the line prefix tells no session: those of one user are taken as one"),
];

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
    summary.facts.truncated_values = 2;
    summary.facts.sessions_merged = true;
    let expected = [
        "events too large for a capture, left out: 1",
        "values cut by log_parameter_max_length, not fit for replay: 2",
        "the line prefix tells no session: those of one user are taken as one",
    ];
    assert_eq!(lines(&of(&summary, 1)), expected);
}

#[test]
fn every_fact_is_one_that_imports_report() {
    let report = of(&Summary::default(), 0);
    for (key, _) in FACTS {
        assert!(!report["facts"][key].is_null(), "{key}");
    }
}
