//! The report for programs: a versioned JSON document.
//!
//! Within a version, fields are never renamed or removed; new ones may be added.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    BothSides, RehearsalReport, RunSummary, ServerFacts, start::StartRow, text::warning_lines,
};
use crate::{ComparisonDocument, document as comparison_document};

/// Version of [`RehearsalDocument`], in its `version` field.
pub const REHEARSAL_VERSION: u32 = 1;

/// A report as a document. Any serde format can serialise it, but only its JSON form is stable.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct RehearsalDocument<'a> {
    /// Always `howdah-rehearsal-report`.
    pub format: &'static str,
    /// See [`REHEARSAL_VERSION`].
    pub version: u32,
    /// Version of Howdah that ran the rehearsal.
    pub howdah: &'a str,
    /// `passed`, `failed` or `not comparable`.
    pub verdict: &'static str,
    /// The result in one line, for people.
    pub summary: String,
    started: String,
    finished: String,
    options: &'a BTreeMap<String, String>,
    obstacles: Vec<ObstacleRow>,
    warnings: Vec<String>,
    runs: &'a [RunSummary],
    order_effects: Vec<OrderEffectRow>,
    growth: Vec<GrowthRow>,
    start: StartRow,
    servers: &'a BothSides<ServerFacts>,
    differences: Vec<DifferenceRow>,
    queries: Vec<ChangedQueryRow<'a>>,
    comparison: ComparisonDocument,
}

#[derive(Debug, Serialize)]
struct ObstacleRow {
    kind: &'static str,
    text: String,
}

#[derive(Debug, Serialize)]
struct OrderEffectRow {
    side: &'static str,
    factor: f64,
}

#[derive(Debug, Serialize)]
struct GrowthRow {
    side: &'static str,
    bytes_before: u64,
    bytes_after: u64,
}

#[derive(Debug, Serialize)]
struct DifferenceRow {
    kind: &'static str,
    /// The table that differs; `null` if the difference concerns the whole server.
    table: Option<String>,
    text: String,
}

/// A changed query, with possible reasons for its change. Its figures are in `comparison`.
#[derive(Debug, Serialize)]
struct ChangedQueryRow<'a> {
    fingerprint: String,
    verdict: &'static str,
    /// Positions of the reasons in `differences`.
    reasons: Vec<usize>,
    plan_change: Option<&'a str>,
    /// The reason why the query's plans could not be compared.
    plan_failure: Option<&'a str>,
    /// One captured execution with its values, if requested.
    example: Option<&'a str>,
}

/// Converts a whole report, for `--format json` and `report.json`.
pub fn document(report: &RehearsalReport) -> RehearsalDocument<'_> {
    let obstacle = |obstacle: &super::Obstacle| ObstacleRow {
        kind: obstacle.kind(),
        text: obstacle.to_string(),
    };
    let difference = |difference: &super::ServerDifference| DifferenceRow {
        kind: difference.kind(),
        table: difference.table().map(ToString::to_string),
        text: difference.to_string(),
    };
    RehearsalDocument {
        format: "howdah-rehearsal-report",
        version: REHEARSAL_VERSION,
        howdah: &report.howdah,
        verdict: report.verdict.as_str(),
        summary: report.summary(),
        started: report.started.to_string(),
        finished: report.finished.to_string(),
        options: &report.options,
        obstacles: report.obstacles.iter().map(obstacle).collect(),
        warnings: warning_lines(report),
        runs: &report.runs,
        order_effects: report
            .order_effects
            .iter()
            .map(|effect| OrderEffectRow { side: effect.side.as_str(), factor: effect.factor })
            .collect(),
        growth: report
            .growth
            .iter()
            .map(|growth| GrowthRow {
                side: growth.side.as_str(),
                bytes_before: growth.bytes_before,
                bytes_after: growth.bytes_after,
            })
            .collect(),
        start: StartRow::from(&report.start),
        servers: &report.servers,
        differences: report.differences.iter().map(difference).collect(),
        queries: report
            .changed()
            .map(|query| ChangedQueryRow {
                fingerprint: query.fingerprint.to_string(),
                verdict: query.verdict.as_str(),
                reasons: report.reasons.get(&query.fingerprint).cloned().unwrap_or_default(),
                plan_change: query.plan_change.as_deref(),
                plan_failure: report.plan_failures.get(&query.fingerprint).map(String::as_str),
                example: report.examples.get(&query.fingerprint).map(String::as_str),
            })
            .collect(),
        comparison: comparison_document(&report.comparison, &report.violations, None),
    }
}
