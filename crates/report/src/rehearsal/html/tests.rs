//! Tests of what does not need a browser. The others are in `tests/page`.

use ring::digest::{SHA256, digest};

use super::*;
use crate::rehearsal::RehearsalVerdict;

/// A page without any content.
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
    for (name, text) in [
        ("uPlot.iife.min.js", CHART_SCRIPT),
        ("uPlot.min.css", CHART_STYLE),
        ("LICENSE", LICENSE),
    ] {
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
    for text in [CHART_SCRIPT, CHART_STYLE, PAGE_SCRIPT, PAGE_STYLE] {
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
