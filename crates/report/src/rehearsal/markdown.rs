//! The report as Markdown, for pull requests and wikis. It contains no captured values.

use std::fmt::Write as _;

use howdah_compare::QueryComparison;

use super::{RecoveryTarget, RehearsalReport, text::warning_lines};
use crate::{headline, text};

/// Maximum number of queries in the table: GitHub and similar sites limit comments to some 60 kB.
const QUERIES_MAX: usize = 30;

/// Maximum number of listed differences between the servers.
const DIFFERENCES_MAX: usize = 50;

/// Maximum number of characters of a query's text.
const QUERY_WIDTH: usize = 120;

/// Renders the report as Markdown. Ends with a line break.
pub fn markdown(report: &RehearsalReport) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# Rehearsal: {}\n", escape(&report.summary()));
    for obstacle in &report.obstacles {
        let _ = writeln!(out, "- not comparable: {}", escape(&obstacle.to_string()));
    }
    for violation in &report.violations {
        let mut queries = report.comparison.queries.iter();
        let name = queries
            .find(|query| query.fingerprint == violation.fingerprint)
            .map_or_else(|| violation.fingerprint.to_string(), code);
        let _ = writeln!(out, "- violates `{}`: {name}", violation.condition);
    }
    changed_queries(&mut out, report);
    list(&mut out, "Notes", &warning_lines(report), usize::MAX);
    let differences: Vec<String> = report.differences.iter().map(ToString::to_string).collect();
    list(&mut out, "Differences of the servers", &differences, DIFFERENCES_MAX);
    let _ =
        writeln!(out, "\n## Runs\n\n| run | server | started | executions | failed | not sent |");
    let _ = writeln!(out, "|---|---|---|---:|---:|---:|");
    for run in &report.runs {
        let (started, executions) = (run.started, run.executions);
        let _ = writeln!(
            out,
            "| {} | {} | {started} | {executions} | {} | {} |",
            run.name, run.side, run.failed, run.skipped
        );
    }
    start(&mut out, report);
    let servers = [("base", &report.servers.base), ("change", &report.servers.change)];
    let _ = writeln!(out, "\n## Servers\n");
    for (side, server) in servers {
        let (version, target) = (escape(&server.version), escape(&server.target));
        let _ = writeln!(out, "- {side}: PostgreSQL {version}, {target}");
    }
    let _ = writeln!(out, "\nhowdah {}, {}", report.howdah, report.finished);
    out
}

fn changed_queries(out: &mut String, report: &RehearsalReport) {
    let changed: Vec<_> = report.changed().collect();
    if changed.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n| query | verdict | change | p50 base | p50 change | calls | reasons |\n\
         |---|---|---:|---:|---:|---:|---|"
    );
    for query in changed.iter().take(QUERIES_MAX) {
        let p50 = |side: Option<howdah_compare::Measures>| {
            side.map_or_else(String::new, |side| text::duration(side.p50_us as f64))
        };
        let change =
            query.change.map_or_else(String::new, |change| text::factor(change.factor.estimate));
        let mut reasons: Vec<String> = report.reasons_of(query).map(ToString::to_string).collect();
        reasons.extend(query.plan_change.clone());
        let calls = query.run.map_or(0, |side| side.calls);
        let _ = writeln!(
            out,
            "| {} | {} | {change} | {} | {} | {calls} | {} |",
            code(query),
            query.verdict,
            p50(query.base),
            p50(query.run),
            escape(&reasons.join("; ")),
        );
    }
    if changed.len() > QUERIES_MAX {
        let _ = writeln!(out, "\n… and {} more", changed.len() - QUERIES_MAX);
    }
}

/// Appends the positions from which the runs started, and instructions for restoring copies to the
/// start of the capture.
fn start(out: &mut String, report: &RehearsalReport) {
    list(out, "Start of the runs", &report.start.sentences(), usize::MAX);
    let target = report.start.target.as_ref();
    if let Some(lines) = target.map(RecoveryTarget::lines).filter(|lines| !lines.is_empty()) {
        let _ = writeln!(out, "\n```text\n{}\n```", lines.join("\n"));
    }
}

fn list(out: &mut String, title: &str, lines: &[String], lines_max: usize) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n## {title}\n");
    for line in lines.iter().take(lines_max) {
        let _ = writeln!(out, "- {}", escape(line));
    }
    if lines.len() > lines_max {
        let _ = writeln!(out, "- … and {} more", lines.len() - lines_max);
    }
}

/// Formats a query as inline code. Backticks are replaced and bars are escaped, because they would
/// end the code or the cell.
fn code(query: &QueryComparison) -> String {
    let text = headline::query_text(query, QUERY_WIDTH);
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

/// Escapes a text on one line so that no character has a meaning in Markdown or HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for char in text::one_line(text, usize::MAX).chars() {
        if matches!(char, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '&') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}
