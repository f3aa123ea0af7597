//! Tests that do not need a browser. The others are in `tests/page`.

use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::*;
use crate::rehearsal::{RehearsalSide, RehearsalVerdict};

/// Text that acts as markup in any part of a page that does not escape it.
const MARKUP: &str = "\"><i x='</script>&";

/// Returns a page in which every text is markup.
fn markup() -> Page {
    let text = || MARKUP.to_owned();
    let measures = Some(QueryMeasures { calls: 3, p50_us: 5.0, ..QueryMeasures::default() });
    let run = PageRun {
        name: text(),
        side: RehearsalSide::Base,
        started: Duration::ZERO,
        elapsed: Duration::from_secs(9),
        executions: 3,
        failed: 0,
        skipped: 0,
        schedule_error_p99_us: None,
        calibration_p50_us: None,
        cpu_busy: None,
        cpu_steal: None,
        io_wait: None,
    };
    let query = PageQuery {
        fingerprint: text(),
        text: text(),
        verdict: PageQueryVerdict::Slower,
        is_tail_only: false,
        base: measures,
        change: measures,
        runs: vec![measures],
        factor: None,
        mean_factor: None,
        detectable: None,
        impact_us: 0.0,
        latencies: None,
        errors: vec![QueryErrorCount { sqlstate: text(), message: text(), base: 0, change: 1 }],
        plan_change: Some(text()),
        plans: Some(PlanPair { base: text(), change: text() }),
        plan_failure: Some(text()),
        causes: vec![text()],
        example: Some(text()),
    };
    let panel = TimePanel {
        group: text(),
        title: text(),
        unit: PanelUnit::Number,
        values: vec![vec![Some(1.0)]],
    };
    let reasons = [Some(0), None, None, None, None, None].map(|query| VerdictReason {
        label: text(),
        text: text(),
        query,
    });
    Page {
        title: text(),
        headline: text(),
        reasons: reasons.to_vec(),
        notes: vec![text()],
        runs: vec![run],
        queries: vec![query],
        time_lines: TimeLines {
            bucket_s: 1.0,
            panels: vec![panel],
            checkpoints: Vec::new(),
            notes: vec![text()],
        },
        fidelity: vec![text()],
        recovery: vec![text()],
        servers: vec![ServerFactRow { name: text(), base: text(), change: text() }],
        differences: vec![PageDifference { table: text(), text: text() }],
        options: vec![(text(), text())],
        howdah: text(),
        started: text(),
        finished: text(),
        ..empty()
    }
}

#[test]
fn every_text_is_escaped() {
    let html = markup().to_html();
    assert!(!html.contains("<i x=") && !html.contains("\"><i"));
    assert_eq!(html.matches("</script>").count(), 4);
    // Each occurrence is text; one more is in the data of the script, twice escaped.
    assert!(html.matches("&quot;&gt;&lt;i x='&lt;/script&gt;&amp;").count() > 35);
    assert_eq!(html.matches("\\\"\\u003e\\u003ci x='\\u003c/script\\u003e\\u0026").count(), 3);
}

/// Returns a page without any content.
fn empty() -> Page {
    Page {
        title: "Rehearsal of <shop>".to_owned(),
        verdict: RehearsalVerdict::NotComparable,
        headline: "no query was executed often enough".to_owned(),
        reasons: Vec::new(),
        notes: Vec::new(),
        confidence: 0.95,
        change_min: 1.1,
        runs: Vec::new(),
        queries: Vec::new(),
        time_lines: TimeLines::default(),
        fidelity: Vec::new(),
        recovery: Vec::new(),
        servers: Vec::new(),
        differences: Vec::new(),
        options: Vec::new(),
        howdah: "0.1.0".to_owned(),
        started: "2026-11-20 12:43:19 UTC".to_owned(),
        finished: "2026-11-20 12:57:02 UTC".to_owned(),
    }
}

#[test]
fn empty_page_says_what_is_missing() {
    let html = empty().to_html();
    for text in [
        "<b>Not comparable:</b> no query was executed often enough",
        "No query was executed.",
        "Nothing was measured over time.",
        "Nothing was run.",
        "No difference was found.",
        "<title>Not comparable: Rehearsal of &lt;shop&gt;</title>",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn third_party_files_match_their_hashes() {
    const README: &str = include_str!("../../../../../third_party/uplot/README.md");
    const LICENSE: &str = include_str!("../../../../../third_party/uplot/LICENSE");
    for (name, text) in
        [("uPlot.iife.min.js", CHART_SCRIPT), ("uPlot.min.css", CHART_STYLE), ("LICENSE", LICENSE)]
    {
        let hash = digest(&SHA256, text.as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let row = README.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
        assert!(row.ends_with(&format!("| `{hash}` |")), "{name}: {hash}, in the README: {row}");
    }
    assert!(CHART_SCRIPT.contains("(v1.6.32)") && README.starts_with("# uPlot 1.6.32\n"));
}

/// HTML parsers end an element at its end tag and normalise line ends, which would change the text
/// whose hash is in the policy.
#[test]
fn embedded_files_are_unchanged_by_html_parsers() {
    let shared = [CHART_SCRIPT, CHART_STYLE, UNITS_SCRIPT, PAGE_SCRIPT, PAGE_STYLE];
    let others = [live::LIVE_SCRIPT, live::LIVE_STYLE, index::INDEX_STYLE];
    for text in shared.into_iter().chain(others) {
        assert!(!text.contains("</s") && !text.contains("<!--") && !text.contains('\r'));
    }
}

#[test]
fn page_has_no_inline_handlers_and_links_to_nothing() {
    let html = empty().to_html();
    let own: String = html.split("<script>").next().unwrap().to_owned();
    for text in ["src=", "url(", "@import", " onclick", "style=\"", "<link", "<img", "<iframe"] {
        assert!(!own.contains(text), "{text}");
    }
}
