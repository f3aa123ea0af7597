//! The data for the page's scripts: values of time lines, and keys for sorting and filtering.

use serde::Serialize;

use super::{Page, PageQuery};
use crate::page::embedded_json;

#[derive(Serialize)]
struct ScriptData<'a> {
    bucket_s: f64,
    runs: Vec<ScriptRun<'a>>,
    panels: Vec<ScriptPanel<'a>>,
    checkpoints: Vec<ScriptCheckpoint>,
    /// The queries, in the order of the page.
    queries: Vec<ScriptQuery<'a>>,
}

#[derive(Serialize)]
struct ScriptRun<'a> {
    name: &'a str,
    side: &'static str,
}

#[derive(Serialize)]
struct ScriptPanel<'a> {
    title: &'a str,
    unit: &'static str,
    values: Vec<Vec<Option<f64>>>,
}

#[derive(Serialize)]
struct ScriptCheckpoint {
    run: usize,
    from: f64,
    sync: Option<f64>,
    to: f64,
}

/// Sort keys of a query, and the text to search. Missing values come last.
#[derive(Serialize)]
struct ScriptQuery<'a> {
    verdict: &'static str,
    /// Position of the query's verdict in the order of verdicts.
    rank: u8,
    text: &'a str,
    calls: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    factor: Option<f64>,
    errors: u64,
    impact: f64,
}

/// Serializes the data as JSON for a `script` element.
pub(super) fn json(page: &Page) -> String {
    let panels = page.time_lines.panels.iter().map(|panel| ScriptPanel {
        title: &panel.title,
        unit: panel.unit.as_str(),
        values: panel.values.iter().map(|values| values.iter().map(rounded).collect()).collect(),
    });
    let checkpoints = page.time_lines.checkpoints.iter().map(|span| ScriptCheckpoint {
        run: span.run,
        from: span.from_s,
        sync: span.sync_s,
        to: span.to_s,
    });
    let runs = page.runs.iter();
    embedded_json(&ScriptData {
        bucket_s: page.time_lines.bucket_s,
        runs: runs.map(|run| ScriptRun { name: &run.name, side: run.side.as_str() }).collect(),
        panels: panels.collect(),
        checkpoints: checkpoints.collect(),
        queries: page.queries.iter().map(query).collect(),
    })
}

fn query(query: &PageQuery) -> ScriptQuery<'_> {
    let side = query.change.or(query.base);
    ScriptQuery {
        verdict: query.verdict.as_str(),
        rank: query.verdict as u8,
        text: if query.text.is_empty() { &query.fingerprint } else { &query.text },
        calls: side.map_or(0, |side| side.calls),
        p50: side.map(|side| side.p50_us),
        p99: side.map(|side| side.p99_us),
        factor: query.verdict_factor().map(|factor| factor.estimate),
        errors: side.map_or(0, |side| side.errors),
        impact: query.impact_us,
    }
}

/// Rounds a value to five significant digits, which is more than a chart shows. Values that are not
/// finite become `None`, because JSON cannot represent them.
fn rounded(value: &Option<f64>) -> Option<f64> {
    let value = value.filter(|value| value.is_finite())?;
    if value == 0.0 {
        return Some(0.0);
    }
    let scale = 10_f64.powi(4 - value.abs().log10().floor() as i32);
    let scaled = (value * scale).round() / scale;
    Some(if scaled.is_finite() { scaled } else { value })
}

#[test]
fn values_are_rounded_to_five_digits() {
    let cases =
        [(812.333_333_3, 812.33), (0.000_123_456_78, 0.000_123_46), (0.0, 0.0), (-7.0, -7.0)];
    for (value, expected) in cases {
        let rounded = rounded(&Some(value)).unwrap();
        assert!((rounded - expected).abs() <= expected.abs() * 1e-12, "{rounded} {expected}");
    }
    assert_eq!([rounded(&None), rounded(&Some(f64::NAN))], [None, None]);
    assert_eq!(rounded(&Some(f64::MIN_POSITIVE)), Some(f64::MIN_POSITIVE));
}
