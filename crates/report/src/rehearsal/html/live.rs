//! The page of a running rehearsal: its plan, progress, finished runs, and charts that grow.
//!
//! The page itself is constant. Its script requests [`LiveSnapshot`]s, in which points of the
//! charts are incremental: a request names the first point that the page lacks.

use std::fmt::Write as _;

use serde::Serialize;

use super::{CHART_SCRIPT, CHART_STYLE, PAGE_STYLE, PanelUnit, UNITS_SCRIPT};
use crate::{
    chart::escaped,
    page::{HtmlPage, WebPage, embedded_json},
    rehearsal::RehearsalSide,
};

pub(super) const LIVE_STYLE: &str = include_str!("live.css");
pub(super) const LIVE_SCRIPT: &str = include_str!("live.js");

/// The state of a rehearsal, for the page that shows its progress.
#[derive(Clone, Debug, Serialize)]
pub struct LiveSnapshot {
    /// A number that increases with each change of the state.
    pub revision: u64,
    /// Whether the rehearsal is running, or how it ended.
    pub phase: LivePhase,
    /// The current step or the result, in words.
    pub headline: String,
    /// The steps of this invocation of `howdah rehearse`, in order. Steps of runs that an earlier
    /// invocation finished are left out.
    pub steps: Vec<LiveStep>,
    /// Time since the start of this invocation, in seconds.
    pub elapsed_s: f64,
    /// Estimated time left in seconds, without steps whose duration cannot be estimated.
    pub left_s: f64,
    /// Whether `left_s` includes all remaining steps.
    pub is_left_known: bool,
    /// The replay in progress.
    pub replay: Option<LiveReplay>,
    /// The runs: those that an earlier invocation finished, then those of this one.
    pub runs: Vec<LiveRun>,
    /// Notes for the user, in the order in which they were made.
    pub notes: Vec<String>,
    /// Time between points, in seconds.
    pub bucket_s: f64,
    /// Expected duration of a run in seconds, for the time axis.
    pub run_s: f64,
    /// Points from the requested one on.
    pub points: Vec<LivePoint>,
    /// Index of the point after those in `points`, which is the next one to request.
    pub points_end: usize,
    /// Whether the report can be requested.
    pub has_report: bool,
}

/// The phase of a rehearsal: running, or ended with a certain outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LivePhase {
    /// The rehearsal has not ended.
    Running,
    /// The rehearsal ended with a report: the change passed.
    Passed,
    /// The rehearsal ended with a report: a query is slower, or a condition is violated.
    Failed,
    /// The rehearsal ended with a report: the runs are not comparable.
    NotComparable,
    /// The rehearsal stopped without a report.
    Stopped,
}

/// A step of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct LiveStep {
    /// The step in words.
    pub text: String,
    /// Whether the step is finished, in progress or to come.
    pub state: LiveStepState,
    /// Estimated duration in seconds, if it can be known.
    pub estimate_s: Option<f64>,
    /// Duration of a finished step in seconds, or of the current one so far.
    pub elapsed_s: Option<f64>,
}

/// The state of a step or of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveStepState {
    /// The step or run is finished.
    Done,
    /// The step or run is in progress.
    Active,
    /// The step or run has not started.
    Waiting,
}

/// A replay in progress.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LiveReplay {
    /// Whether the outcomes are discarded, because this replay only warms caches.
    pub is_warm_up: bool,
    /// Number of events whose replay has ended.
    pub ended: u64,
    /// Number of events to replay; 0 if unknown.
    pub events: u64,
    /// Number of statements that failed so far.
    pub failed: u64,
    /// Number of open connections.
    pub connections: u64,
    /// How long after its due time the statement that ended last was sent, in microseconds.
    pub lag_us: f64,
}

/// One run, as a row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct LiveRun {
    /// Name of the run: `a1`, `b1`, …
    pub name: String,
    /// The side whose server is replayed against.
    pub side: RehearsalSide,
    /// Whether the run is finished, in progress or to come.
    pub state: LiveStepState,
    /// Duration in seconds.
    pub elapsed_s: Option<f64>,
    /// Number of statements that were executed, failed ones included.
    pub executions: Option<u64>,
    /// Number of statements that failed.
    pub failed: Option<u64>,
    /// Number of statements that were skipped; known at the end.
    pub skipped: Option<u64>,
    /// Median latency in microseconds; not known for runs of an earlier invocation.
    pub p50_us: Option<f64>,
    /// 95th percentile of latency in microseconds; known if the median is.
    pub p95_us: Option<f64>,
    /// 99th percentile of latency in microseconds; known if the median is.
    pub p99_us: Option<f64>,
    /// 99th percentile of the schedule error in microseconds; known at the end.
    pub schedule_error_p99_us: Option<u64>,
}

/// Figures of one bucket of a run: position of the run in [`LiveSnapshot::runs`], number of the
/// bucket from the start of the run, then one value for each chart of [`CHARTS`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LivePoint(pub usize, pub u64, pub [Option<f64>; CHARTS.len()]);

/// Titles and units of the charts, in the order of the values of a [`LivePoint`].
pub const CHARTS: [(&str, PanelUnit); 7] = [
    ("Throughput", PanelUnit::PerSecond),
    ("Failed statements", PanelUnit::PerSecond),
    ("Median latency", PanelUnit::Micros),
    ("95th percentile of latency", PanelUnit::Micros),
    ("99th percentile of latency", PanelUnit::Micros),
    ("Delay of the latest statement", PanelUnit::Micros),
    ("Connections", PanelUnit::Number),
];

/// Data for the page's script.
#[derive(Serialize)]
struct LiveScriptData {
    charts: Vec<ScriptChart>,
}

#[derive(Serialize)]
struct ScriptChart {
    title: &'static str,
    unit: &'static str,
}

/// Renders the page of a running rehearsal. `title` names the rehearsal, `folder` is its output
/// folder.
///
/// The script requests `state?after=REVISION&from=POINT`, and opens `report.html` at the end.
pub fn live_page(title: &str, folder: &str) -> WebPage {
    let charts = CHARTS.map(|(title, unit)| ScriptChart { title, unit: unit.as_str() });
    let data = embedded_json(&LiveScriptData { charts: charts.into() });
    HtmlPage {
        title,
        styles: &[CHART_STYLE, PAGE_STYLE, LIVE_STYLE],
        body: &body(title, folder),
        data: Some(&data),
        scripts: &[CHART_SCRIPT, UNITS_SCRIPT, LIVE_SCRIPT],
        is_live: true,
        ..HtmlPage::default()
    }
    .render_for_web()
}

fn body(title: &str, folder: &str) -> String {
    let (title, folder) = (escaped(title), escaped(folder));
    let mut html = format!(
        "<header class=\"top running\" id=\"top\"><div class=\"inner\">\n\
         <p class=\"subject\">{title} <span class=\"soft\">{folder}</span></p>\n\
         <h1><span class=\"sign\" id=\"sign\" aria-hidden=\"true\">…</span> \
         <span role=\"status\"><b id=\"phase\">Running:</b> <span id=\"headline\">waiting for the first \
         step</span></span></h1>\n\
         <noscript><p class=\"note\">This page needs scripts. The finished report does not.</p></noscript>\n\
         <p class=\"note\" id=\"lost\" hidden>The rehearsal does not respond: it has ended or was \
         stopped. <code>howdah report serve</code> shows finished reports.</p>\n\
         <p id=\"report\" hidden><a href=\"report.html\">Open the report</a></p>\n\
         <progress id=\"progress\" max=\"1\" value=\"0\" aria-label=\"Progress of the replay\"></progress>\n\
         <dl class=\"tiles\">\n"
    );
    for (id, name) in TILES {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(html, "<div><dt>{name}</dt><dd id=\"{id}\">–</dd></div>");
    }
    html.push_str(
        "</dl>\n</div></header>\n<main>\n\
         <section id=\"time\">\n<h2>Time lines</h2>\n\
         <p class=\"lead\">All runs share one clock: the time since the start of the run. Percentiles \
         are estimates from counts by latency; the report has exact ones.</p>\n<div class=\"charts\">\n",
    );
    for (index, (title, unit)) in CHARTS.into_iter().enumerate() {
        let unit = super::time_lines::unit_label(unit);
        let _ = writeln!(
            html,
            "<figure class=\"chart\" data-chart=\"{index}\"><figcaption><span class=\"title\">{title}</span>\
             <span class=\"soft unit\">{unit}</span><output class=\"values\"></output></figcaption>\
             <div class=\"plot\" role=\"img\" aria-label=\"{title} over time\"></div></figure>"
        );
    }
    html.push_str(
        "</div>\n</section>\n<section id=\"runs\">\n<h2>Runs</h2>\n\
         <div class=\"scroll\" role=\"region\" aria-label=\"Runs\" tabindex=\"0\">\
         <table class=\"figures\" id=\"run-table\">\n<thead><tr>",
    );
    for name in RUN_COLUMNS {
        let _ = write!(html, "<th scope=\"col\">{name}</th>");
    }
    html.push_str(
        "</tr></thead>\n<tbody></tbody></table></div>\n</section>\n\
         <section id=\"plan\">\n<h2>Plan</h2>\n<ol id=\"steps\" class=\"steps\"></ol>\n</section>\n\
         <section id=\"notes\" hidden>\n<h2>Notes</h2>\n<ul class=\"differences\"></ul>\n</section>\n\
         </main>\n",
    );
    html
}

/// Figures above the charts: identifiers of their elements, and names.
const TILES: [(&str, &str); 6] = [
    ("left", "time left"),
    ("elapsed", "elapsed"),
    ("runs-done", "runs finished"),
    ("events", "events of this replay"),
    ("connections", "connections"),
    ("failed", "failed statements"),
];

/// Headings of the columns of the table of runs. The script fills in the cells in this order.
const RUN_COLUMNS: [&str; 10] = [
    "run",
    "state",
    "duration",
    "statements sent",
    "failed",
    "not sent",
    "median",
    "p95",
    "p99",
    "schedule error, p99",
];
