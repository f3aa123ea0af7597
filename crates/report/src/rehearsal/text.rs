//! The report as text, for terminals and files.

use std::fmt::Write as _;

use super::{DataGrowth, RehearsalReport, RunSummary};
use crate::{TableStyle, headline, table, text};

/// Maximum width of a query's text in the list of reasons.
const QUERY_WIDTH: usize = 100;

/// Renders the report as text: the result, its reasons, the comparison query by query, then the
/// runs and the servers. Ends with a line break.
pub fn text(report: &RehearsalReport, style: &TableStyle) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "rehearsal: {}", text::one_line(&report.summary(), usize::MAX));
    for obstacle in &report.obstacles {
        let _ = writeln!(out, "not comparable: {obstacle}");
    }
    reasons(&mut out, report);
    for warning in warning_lines(report) {
        let _ = writeln!(out, "note: {}", text::one_line(&warning, usize::MAX));
    }
    let _ = writeln!(out, "\n{}", table(&report.comparison, &report.violations, style).trim_end());
    let _ = writeln!(out, "\nruns, in order:");
    for run in &report.runs {
        let _ = writeln!(out, "  {}", run_line(run));
    }
    let start = report.start.lines();
    if !start.is_empty() {
        let _ = writeln!(out, "\nstart of the runs:");
    }
    for line in start {
        let _ = writeln!(out, "  {line}");
    }
    if !report.differences.is_empty() {
        let _ = writeln!(out, "\ndifferences of the servers, base → change:");
    }
    for difference in &report.differences {
        let _ = writeln!(out, "  {}", text::one_line(&difference.to_string(), usize::MAX));
    }
    out
}

/// Appends, for each changed query, a line with the differences that may explain the change, and
/// one with an example if requested.
fn reasons(out: &mut String, report: &RehearsalReport) {
    for query in report.changed() {
        let reasons: Vec<String> = report.reasons_of(query).map(ToString::to_string).collect();
        if !reasons.is_empty() {
            let query_text = headline::query_text(query, QUERY_WIDTH);
            let reasons = text::one_line(&reasons.join("; "), usize::MAX);
            let _ = writeln!(out, "reason: {query_text}: {reasons}");
        }
        if let Some(example) = report.examples.get(&query.fingerprint) {
            let _ = writeln!(out, "example: {}", text::one_line(example, usize::MAX));
        }
    }
}

/// Formats a run: `a1  base    2026-11-20 12:43:19, 60.2 s, 12034 executions, 2 failed; this
/// machine 34 % busy`.
fn run_line(run: &RunSummary) -> String {
    let elapsed = run.finished.saturating_since(run.started).as_secs_f64();
    let started = run.started.to_string();
    let started = started.split_once('.').map_or(started.as_str(), |(whole, _)| whole);
    let mut line = format!(
        "{:<3} {:<6}  {}, {elapsed:.1} s, {}, {} failed",
        run.name,
        run.side,
        started.replace('T', " "),
        text::counted(run.executions, "execution"),
        run.failed,
    );
    if run.skipped > 0 {
        let _ = write!(line, ", {} not sent", run.skipped);
    }
    if let Some(machine) = run.machine {
        let _ = write!(line, "; this machine {:.0} % busy", machine.busy * 100.0);
        if machine.steal >= 0.01 {
            let _ = write!(line, ", {:.0} % stolen", machine.steal * 100.0);
        }
    }
    line
}

/// Returns the warnings, including those about the start, growth and order effects.
pub(super) fn warning_lines(report: &RehearsalReport) -> Vec<String> {
    let mut lines = report.start.warnings();
    lines.extend_from_slice(&report.warnings);
    // Smaller growth comes from free space maps and the server's own statistics.
    let has_grown =
        |growth: &&DataGrowth| growth.bytes_after > growth.bytes_before + growth.bytes_before / 100;
    for growth in report.growth.iter().filter(has_grown) {
        lines.push(format!(
            "the database on {} grew from {} to {} over its runs, because they were not reset",
            growth.side,
            text::bytes(growth.bytes_before),
            text::bytes(growth.bytes_after)
        ));
    }
    for effect in &report.order_effects {
        let factor = text::factor(effect.factor);
        lines.push(format!(
            "order of runs: the typical query took {factor} in the last run on {} what it took in \
             the first",
            effect.side
        ));
    }
    lines
}
