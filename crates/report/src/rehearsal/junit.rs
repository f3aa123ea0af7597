//! The report as JUnit XML, which CI systems show as test results. It contains no captured values.

use std::fmt::Write as _;

use howdah_compare::QueryVerdict;

use super::{RehearsalReport, RehearsalVerdict};
use crate::{headline, text};

/// Maximum number of characters of a query's text in the name of its test.
const QUERY_WIDTH: usize = 120;

/// Renders the report as JUnit XML: one test for each query, which fails if the query is slower or
/// violates a condition, and one test that fails if the runs are not comparable. Ends with a line
/// break.
pub fn junit(report: &RehearsalReport) -> String {
    let mut tests = String::new();
    let (mut count, mut failures, mut skipped) = (1, 0, 0);
    if report.verdict == RehearsalVerdict::NotComparable {
        failures += 1;
        test(&mut tests, "the runs are comparable", Some(("failure", &report.summary(), "")));
    } else {
        test(&mut tests, "the runs are comparable", None);
    }
    for query in &report.comparison.queries {
        count += 1;
        // Truncated texts may be equal although their fingerprints differ.
        let name = headline::query_text(query, QUERY_WIDTH);
        let name = format!("{name} [{}]", query.fingerprint);
        let violated: Vec<String> = report
            .violations
            .iter()
            .filter(|violation| violation.fingerprint == query.fingerprint)
            .map(|violation| format!("violates {}", violation.condition))
            .collect();
        if query.verdict.is_slower() || !violated.is_empty() {
            failures += 1;
            let mut lines = violated;
            lines.extend(report.reasons_of(query).map(ToString::to_string));
            lines.extend(query.plan_change.clone());
            let factor = query.change.map_or_else(String::new, |change| {
                format!(" {}", text::factor(change.factor.estimate))
            });
            let message = format!("{}{factor}", query.verdict);
            test(&mut tests, &name, Some(("failure", &message, &lines.join("\n"))));
        } else if query.verdict == QueryVerdict::TooFew {
            skipped += 1;
            test(&mut tests, &name, Some(("skipped", "not executed often enough", "")));
        } else {
            test(&mut tests, &name, None);
        }
    }
    let time = report.finished.saturating_since(report.started).as_secs_f64();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"howdah rehearsal\" tests=\"{count}\" failures=\"{failures}\" \
         skipped=\"{skipped}\" errors=\"0\" time=\"{time:.3}\" timestamp=\"{}\">\n{tests}\
         </testsuite>\n",
        report.started
    )
}

/// Writes one test, with an element that states why it failed or was skipped.
fn test(out: &mut String, name: &str, result: Option<(&str, &str, &str)>) {
    let name = escape(name);
    // Writing to a string cannot fail.
    let _ = match result {
        None => writeln!(out, "  <testcase classname=\"howdah.rehearsal\" name=\"{name}\"/>"),
        Some((element, message, lines)) => writeln!(
            out,
            "  <testcase classname=\"howdah.rehearsal\" name=\"{name}\">\n    \
             <{element} message=\"{}\">{}</{element}>\n  </testcase>",
            escape(message),
            escape(lines)
        ),
    };
}

/// Escapes text for an attribute or an element. Characters that XML 1.0 cannot contain become
/// spaces.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            char if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(' ');
            }
            char => escaped.push(char),
        }
    }
    escaped
}
