//! The report as one HTML page that works offline: the verdict first, then the queries, time lines
//! of all runs on one clock, fidelity, the servers, and the method.
//!
//! Everything except the time lines is in the HTML itself, so the page can be read without scripts,
//! printed, and searched. Scripts sort and filter the queries and draw the time lines. The caller
//! writes the file, which only its owner should be able to read.

mod data;
mod figures;
mod from_comparison;
mod from_report;
mod index;
mod live;
mod model;
mod queries;
mod sections;
mod time_lines;

use super::RehearsalReport;
use crate::page::HtmlPage;

pub use self::model::{
    CheckpointSpan, FactorInterval, LatencyHistogram, Page, PageDifference, PageQuery,
    PageQueryVerdict, PageRun, PanelUnit, PlanPair, QueryErrorCount, QueryMeasures, ServerFactRow,
    TimeLines, TimePanel, VerdictReason,
};
pub use self::{
    index::{IndexOutcome, IndexRow, RehearsalIndex, index_page, version_change},
    live::{
        CHARTS, LivePhase, LivePoint, LiveReplay, LiveRun, LiveSnapshot, LiveStep, LiveStepState,
        live_page,
    },
};

/// Third-party code: its version, licence and hashes are in `third_party/uplot/README.md`.
const CHART_SCRIPT: &str = include_str!("../../../../third_party/uplot/uPlot.iife.min.js");
const CHART_STYLE: &str = include_str!("../../../../third_party/uplot/uPlot.min.css");

const PAGE_STYLE: &str = include_str!("html/page.css");
/// The script that formats values. It must precede the page's own script, which uses it.
const UNITS_SCRIPT: &str = include_str!("html/units.js");
const PAGE_SCRIPT: &str = include_str!("html/page.js");

/// Renders the report as a page.
pub fn html(report: &RehearsalReport) -> String {
    Page::from_report(report).to_html()
}

impl Page {
    /// Renders the page as HTML.
    pub fn to_html(&self) -> String {
        let mut body = String::new();
        sections::top(&mut body, self);
        body.push_str("<main>\n");
        queries::section(&mut body, self);
        time_lines::section(&mut body, self);
        sections::fidelity(&mut body, self);
        sections::servers(&mut body, self);
        sections::method(&mut body, self);
        body.push_str("</main>\n");
        let title = format!("{}: {}", sections::verdict_title(self.verdict), self.title);
        HtmlPage {
            title: &title,
            styles: &[CHART_STYLE, PAGE_STYLE],
            body: &body,
            data: Some(&data::json(self)),
            scripts: &[CHART_SCRIPT, UNITS_SCRIPT, PAGE_SCRIPT],
            ..HtmlPage::default()
        }
        .render()
    }
}

#[cfg(test)]
mod tests;
