//! Converts the report of a rehearsal to the content of the page.

use std::collections::BTreeSet;

use howdah_compare::QueryComparison;
use howdah_traffic::Timestamp;

use super::{
    Page, PageDifference, PageQuery, PageRun, QueryMeasures, ServerFactRow, VerdictReason,
    version_change,
};
use crate::{
    headline,
    rehearsal::{
        RecoveryTarget, RehearsalReport, RehearsalSide, RehearsalVerdict, RunSummary, ServerFacts,
        text::warning_lines,
    },
    text, verdict_line,
};

impl Page {
    /// Converts a report to a page.
    pub fn from_report(report: &RehearsalReport) -> Self {
        let database = &report.servers.base.database;
        let servers = &report.servers;
        let versions = version_change(&servers.base.version, &servers.change.version);
        let settings = &report.comparison.settings;
        Self {
            title: format!("Rehearsal of {database}: {versions}"),
            verdict: report.verdict,
            headline: verdict_headline(report),
            reasons: reasons(report),
            notes: warning_lines(report),
            confidence: settings.confidence,
            change_min: settings.change_min.get(),
            runs: report.runs.iter().map(|run| page_run(report, run)).collect(),
            queries: report
                .comparison
                .queries
                .iter()
                .map(|query| page_query(report, query))
                .collect(),
            time_lines: report.time_lines.clone(),
            fidelity: fidelity(report),
            recovery: report.start.target.as_ref().map(RecoveryTarget::lines).unwrap_or_default(),
            servers: server_rows(&report.servers.base, &report.servers.change),
            differences: report
                .differences
                .iter()
                .map(|difference| PageDifference {
                    table: difference.table().map(ToString::to_string).unwrap_or_default(),
                    text: difference.to_string(),
                })
                .collect(),
            options: report.options.clone().into_iter().collect(),
            howdah: report.howdah.clone(),
            started: time(report.started),
            finished: time(report.finished),
        }
    }
}

fn verdict_headline(report: &RehearsalReport) -> String {
    match (report.verdict, report.obstacles.first()) {
        (RehearsalVerdict::NotComparable, Some(obstacle)) => obstacle.to_string(),
        _ => verdict_line(&report.comparison),
    }
}

/// Returns the obstacles, violated conditions, changed queries and new errors, in this order.
fn reasons(report: &RehearsalReport) -> Vec<VerdictReason> {
    let queries = &report.comparison.queries;
    let position = |query: &QueryComparison| {
        queries.iter().position(|other| other.fingerprint == query.fingerprint)
    };
    let reason =
        |label: &str, text: String, query| VerdictReason { label: label.to_owned(), text, query };
    let obstacles = report.obstacles.iter();
    let mut reasons: Vec<_> =
        obstacles.map(|obstacle| reason("not comparable", obstacle.to_string(), None)).collect();
    reasons.extend(report.violations.iter().map(|violation| {
        let query = queries.iter().position(|query| query.fingerprint == violation.fingerprint);
        reason("violated", format!("{}:", violation.condition), query)
    }));
    reasons.extend(report.changed().map(|query| {
        let factor = PageQuery::from_comparison(query).verdict_factor();
        let amount = factor.map_or_else(String::new, |factor| text::factor(factor.estimate));
        let medians = query.base.zip(query.run).map_or_else(String::new, |(base, change)| {
            let medians = text::durations(base.p50_us as f64, change.p50_us as f64);
            format!(" (median {medians})")
        });
        let causes: Vec<String> = report.reasons_of(query).map(ToString::to_string).collect();
        let because = if causes.is_empty() {
            String::new()
        } else {
            format!(", perhaps because {}", causes.join("; "))
        };
        reason(query.verdict.as_str(), format!("{amount}{medians}{because}:"), position(query))
    }));
    for query in queries {
        for error in query.errors.iter().filter(|error| error.is_new()) {
            let text = format!("{} × {}:", error.run, headline::sqlstate(error));
            reasons.push(reason("new errors", text, position(query)));
        }
    }
    reasons
}

fn page_run(report: &RehearsalReport, run: &RunSummary) -> PageRun {
    PageRun {
        name: run.name.clone(),
        side: run.side,
        started: run.started.saturating_since(report.started),
        elapsed: run.finished.saturating_since(run.started),
        executions: run.executions,
        failed: run.failed,
        skipped: run.skipped,
        schedule_error_p99_us: run.schedule_error_p99_us,
        calibration_p50_us: run.machine.and_then(|machine| machine.calibration_p50_us),
        cpu_busy: run.machine.map(|machine| machine.busy),
        cpu_steal: run.machine.map(|machine| machine.steal),
        io_wait: run.machine.map(|machine| machine.io_wait),
    }
}

/// Describes the state from which the runs started, and how faithfully each run repeated the
/// capture, in one line each.
fn fidelity(report: &RehearsalReport) -> Vec<String> {
    let line = |run: &RunSummary| {
        let lateness = run.schedule_error_p99_us.map_or_else(String::new, |us| {
            let late = text::duration(us as f64);
            format!("; 99 % were sent at most {late} late although their session was free")
        });
        format!(
            "{}: {} sent, {} failed, {} not sent{lateness}.",
            run.name,
            text::counted(run.executions, "statement"),
            run.failed,
            run.skipped,
        )
    };
    let start = report.start.sentences().into_iter().map(|sentence| {
        let mut chars = sentence.chars();
        let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
        format!("{first}{}.", chars.as_str())
    });
    start.chain(report.runs.iter().map(line)).collect()
}

fn page_query(report: &RehearsalReport, query: &QueryComparison) -> PageQuery {
    PageQuery {
        plan_failure: report.plan_failures.get(&query.fingerprint).cloned(),
        causes: report.reasons_of(query).map(ToString::to_string).collect(),
        example: report.examples.get(&query.fingerprint).cloned(),
        runs: runs_of(report, query),
        ..PageQuery::from_comparison(query)
    }
}

/// Returns the measures of the query in each run, in the order of the runs on the page.
fn runs_of(report: &RehearsalReport, query: &QueryComparison) -> Vec<Option<QueryMeasures>> {
    let (mut base, mut change) = (query.base_runs.iter(), query.run_runs.iter());
    let measures = |run: &RunSummary| {
        let side = match run.side {
            RehearsalSide::Base => base.next(),
            RehearsalSide::Change => change.next(),
        };
        side.copied().flatten().map(QueryMeasures::from)
    };
    report.runs.iter().map(measures).collect()
}

fn server_rows(base: &ServerFacts, change: &ServerFacts) -> Vec<ServerFactRow> {
    let row = |name: &str, get: &dyn Fn(&ServerFacts) -> String| ServerFactRow {
        name: name.to_owned(),
        base: get(base),
        change: get(change),
    };
    let unknown = || "unknown".to_owned();
    let mut rows = vec![
        row("PostgreSQL", &|server| server.version.clone()),
        row("address", &|server| server.target.clone()),
        row("database", &|server| server.database.clone()),
        row("size of the database", &|server| text::bytes(server.database_bytes)),
        row("system identifier", &|server| {
            server.system_identifier.clone().unwrap_or_else(unknown)
        }),
        row("timeline", &|server| {
            server.timeline.map_or_else(unknown, |timeline| timeline.to_string())
        }),
    ];
    let names: BTreeSet<&String> = base.settings.keys().chain(change.settings.keys()).collect();
    rows.extend(names.into_iter().map(|name| {
        row(name, &|server| {
            server
                .settings
                .get(name)
                .map_or_else(|| "default".to_owned(), |setting| setting.value.clone())
        })
    }));
    let names: BTreeSet<&String> = base.extensions.keys().chain(change.extensions.keys()).collect();
    rows.extend(names.into_iter().map(|name| {
        row(&format!("extension {name}"), &|server| {
            server.extensions.get(name).cloned().unwrap_or_else(|| "not installed".to_owned())
        })
    }));
    rows
}

/// Formats a time: `2026-11-20 12:43:19 UTC`.
pub(super) fn time(time: Timestamp) -> String {
    let time = time.to_string();
    let seconds = time.split(['.', 'Z']).next().unwrap_or(&time);
    format!("{} UTC", seconds.replace('T', " "))
}
