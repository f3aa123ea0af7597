//! The other sections of the page: the verdict above the queries and time lines; fidelity, servers
//! and method below them.

use std::fmt::Write as _;

use super::{
    Page, PageQueryVerdict, PageRun,
    queries::{badge, grouped},
};
use crate::{
    chart::{Axis, Svg, escaped},
    rehearsal::RehearsalVerdict,
    text,
};

/// Maximum number of reasons that are visible; further ones are collapsed.
const REASONS_MAX: usize = 5;

/// Returns the verdict as the heading of the page.
pub(super) const fn verdict_title(verdict: RehearsalVerdict) -> &'static str {
    match verdict {
        RehearsalVerdict::Passed => "Passed",
        RehearsalVerdict::Failed => "Failed",
        RehearsalVerdict::NotComparable => "Not comparable",
    }
}

/// Renders the verdict with its reasons, the numbers of queries, and links to the sections.
pub(super) fn top(html: &mut String, page: &Page) {
    let (class, sign) = match page.verdict {
        RehearsalVerdict::Passed => ("good", "✓"),
        RehearsalVerdict::Failed => ("bad", "✕"),
        RehearsalVerdict::NotComparable => ("warn", "?"),
    };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        html,
        "<header class=\"top {class}\"><div class=\"inner\">\n\
         <p class=\"subject\">{} <span class=\"soft\">{}</span></p>\n\
         <h1><span class=\"sign\" aria-hidden=\"true\">{sign}</span> \
         <span><b>{}:</b> {}</span></h1>",
        escaped(&page.title),
        escaped(&page.finished),
        verdict_title(page.verdict),
        escaped(&page.headline)
    );
    reasons(html, page);
    tiles(html, page);
    for note in &page.notes {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(note));
    }
    html.push_str(
        "<nav aria-label=\"Sections\"><a href=\"#queries\">Queries</a><a href=\"#time\">Time lines</a>\
         <a href=\"#fidelity\">Fidelity</a><a href=\"#servers\">Servers</a>\
         <a href=\"#method\">How it was run</a></nav>\n</div></header>\n",
    );
}

fn reasons(html: &mut String, page: &Page) {
    let (shown, folded) = page.reasons.split_at(page.reasons.len().min(REASONS_MAX));
    if shown.is_empty() {
        return;
    }
    let item = |html: &mut String, reason: &super::VerdictReason| {
        let _ = write!(
            html,
            "<li><span class=\"label\">{}</span> {}",
            escaped(&reason.label),
            escaped(&reason.text)
        );
        if let Some(query) = reason.query.and_then(|query| page.queries.get(query)) {
            let _ = write!(
                html,
                " <a href=\"#{}\"><code>{}</code></a>",
                escaped(&query.anchor()),
                escaped(&text::one_line(&query.name(), 110))
            );
        }
        html.push_str("</li>\n");
    };
    html.push_str("<ul class=\"reasons\">\n");
    shown.iter().for_each(|reason| item(html, reason));
    html.push_str("</ul>\n");
    if !folded.is_empty() {
        let _ = writeln!(
            html,
            "<details class=\"folded\"><summary>{} more</summary><ul class=\"reasons\">",
            folded.len()
        );
        folded.iter().for_each(|reason| item(html, reason));
        html.push_str("</ul></details>\n");
    }
}

/// Renders the numbers of queries by verdict, and the time lost or won over all of them.
fn tiles(html: &mut String, page: &Page) {
    html.push_str("<dl class=\"tiles\">\n");
    for verdict in PageQueryVerdict::ALL {
        let count = page.queries.iter().filter(|query| query.verdict == verdict).count();
        let is_always_shown = matches!(
            verdict,
            PageQueryVerdict::Slower | PageQueryVerdict::Faster | PageQueryVerdict::NoChange
        );
        if count > 0 || is_always_shown {
            let _ = writeln!(html, "<div><dt>{}</dt><dd>{count}</dd></div>", badge(verdict));
        }
    }
    let impact: f64 = page.queries.iter().map(|query| query.impact_us).sum();
    let base: f64 =
        page.queries.iter().filter_map(|query| query.base).map(|side| side.total_us).sum();
    let share = if base > 0.0 {
        let share = impact / base * 100.0;
        format!(
            " <span class=\"soft\">{}{:.1} %</span>",
            if share < 0.0 { "−" } else { "+" },
            share.abs()
        )
    } else {
        String::new()
    };
    let word = if impact < 0.0 { "time won" } else { "time lost" };
    let _ = writeln!(
        html,
        "<div class=\"wide\"><dt>{word} over all queries</dt><dd>{}{share}</dd></div>\n</dl>",
        text::duration(impact.abs())
    );
}

/// Renders the section on how faithfully the runs repeated the capture.
pub(super) fn fidelity(html: &mut String, page: &Page) {
    html.push_str("<section id=\"fidelity\">\n<h2>Fidelity</h2>\n");
    for sentence in &page.fidelity {
        let _ = writeln!(html, "<p class=\"lead\">{}</p>", escaped(sentence));
    }
    if page.runs.is_empty() {
        html.push_str("<p class=\"soft\">Nothing was run.</p>\n</section>\n");
        return;
    }
    type RunCell = fn(&PageRun) -> Option<String>;
    const COLUMNS: [(&str, RunCell); 8] = [
        ("statements sent", |run| Some(grouped(run.executions))),
        ("failed", |run| Some(grouped(run.failed))),
        ("not sent", |run| Some(grouped(run.skipped))),
        ("schedule error, p99", |run| {
            run.schedule_error_p99_us.map(|us| text::duration(us as f64))
        }),
        ("calibration, median", |run| run.calibration_p50_us.map(|us| text::duration(us as f64))),
        ("CPU busy", |run| run.cpu_busy.map(percent)),
        ("CPU stolen", |run| run.cpu_steal.map(percent)),
        ("waiting for disks", |run| run.io_wait.map(percent)),
    ];
    html.push_str(
        "<div class=\"scroll\" role=\"region\" aria-label=\"Fidelity by run\" tabindex=\"0\">\
         <table class=\"figures\">\n<thead><tr><th scope=\"col\">run</th>",
    );
    for (name, _) in COLUMNS {
        let _ = write!(html, "<th scope=\"col\">{name}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for run in &page.runs {
        let _ = write!(html, "<tr>{}", run_head(run));
        for (_, show) in COLUMNS {
            let _ = write!(html, "<td>{}</td>", show(run).unwrap_or_else(|| "–".to_owned()));
        }
        html.push_str("</tr>\n");
    }
    html.push_str(
        "</tbody></table></div>\n\
         <p class=\"note\">Schedule error: how late a statement was sent although its session was \
         free. A large one means that the machine that replayed was too slow, not the server. \
         Calibration: a fixed statement that reads no table; its duration shows whether the machines \
         stayed the same. CPU and disks are those of the machine that replayed.</p>\n</section>\n",
    );
}

fn run_head(run: &PageRun) -> String {
    let (name, side) = (escaped(&run.name), run.side);
    format!(
        "<th scope=\"row\"><span class=\"key {side}\"></span>{name} <span class=\"soft\">{side}</span></th>"
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Renders the differences between the servers, and their properties.
pub(super) fn servers(html: &mut String, page: &Page) {
    html.push_str("<section id=\"servers\">\n<h2>Servers</h2>\n<h3>Differences</h3>\n");
    if page.differences.is_empty() {
        html.push_str("<p class=\"soft\">No difference was found.</p>\n");
    } else {
        html.push_str("<ul class=\"differences\">\n");
        for difference in &page.differences {
            let table = match difference.table.as_str() {
                "" => "whole server".to_owned(),
                table => escaped(table),
            };
            let _ = writeln!(
                html,
                "<li><span class=\"label\">{table}</span> {}</li>",
                escaped(&difference.text)
            );
        }
        html.push_str("</ul>\n");
    }
    if !page.servers.is_empty() {
        html.push_str(
            "<h3>Facts</h3>\n\
             <div class=\"scroll\" role=\"region\" aria-label=\"Servers\" tabindex=\"0\"><table class=\"figures facts\">\n\
             <thead><tr><th scope=\"col\"></th><th scope=\"col\"><span class=\"key base\"></span>base</th>\
             <th scope=\"col\"><span class=\"key change\"></span>change</th></tr></thead>\n<tbody>\n",
        );
        for fact in &page.servers {
            let class = if fact.base == fact.change { "" } else { " class=\"differs\"" };
            let _ = writeln!(
                html,
                "<tr{class}><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
                escaped(&fact.name),
                escaped(&fact.base),
                escaped(&fact.change)
            );
        }
        html.push_str("</tbody></table></div>\n");
    }
    html.push_str("</section>\n");
}

/// Renders the method: the order of the runs, the recovery target, and the options.
pub(super) fn method(html: &mut String, page: &Page) {
    html.push_str("<section id=\"method\">\n<h2>How it was run</h2>\n");
    if !page.runs.is_empty() {
        let names: Vec<&str> = page.runs.iter().map(|run| run.name.as_str()).collect();
        let _ = writeln!(
            html,
            "<p class=\"lead\">{} from {} to {}, in this order: {}.</p>\n{}",
            escaped(&text::counted(page.runs.len() as u64, "run")),
            escaped(&page.started),
            escaped(&page.finished),
            escaped(&names.join(", ")),
            order(page)
        );
    }
    if !page.recovery.is_empty() {
        let _ = writeln!(
            html,
            "<pre class=\"plan\" role=\"region\" aria-label=\"Recovery target\" \
             tabindex=\"0\">{}</pre>",
            escaped(&page.recovery.join("\n"))
        );
    }
    html.push_str("<dl class=\"options\">\n");
    let howdah = ("howdah".to_owned(), page.howdah.clone());
    for (name, value) in [&howdah].into_iter().chain(&page.options) {
        let _ = writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    html.push_str("</dl>\n");
    let has_examples = page.queries.iter().any(|query| query.example.is_some());
    html.push_str(if has_examples {
        "<p class=\"note\">Statements are normalised, but the examples contain captured values, as \
         requested: consider who may read this page.</p>\n"
    } else {
        "<p class=\"note\">Statements are normalised: this page contains no captured values.</p>\n"
    });
    html.push_str("</section>\n");
}

/// Renders the runs on the time axis of the rehearsal.
fn order(page: &Page) -> String {
    const WIDTH: f64 = 400.0;
    const ROW: f64 = 20.0;
    let end = page.runs.iter().map(|run| run.started + run.elapsed).max().unwrap_or_default();
    let x = Axis::new((0.0, end.as_secs_f64()), (0.0, WIDTH));
    let mut svg = Svg::new();
    let height = ROW * 2.0;
    svg.push(format_args!(
        r#"<svg class="order" viewBox="0 0 {WIDTH} {height}" aria-hidden="true">"#
    ));
    for run in &page.runs {
        let (from, width) =
            (x.position(run.started.as_secs_f64()), x.length(run.elapsed.as_secs_f64()).max(2.0));
        let row = run.side as u8;
        let y = f64::from(row) * ROW + 1.0;
        svg.push(format_args!(
            r#"<rect class="{}" x="{from:.1}" y="{y}" width="{width:.1}" height="{}" rx="2"/><text x="{:.1}" y="{}">{}</text>"#,
            run.side,
            ROW - 2.0,
            from + 5.0,
            y + 13.0,
            escaped(&run.name)
        ));
    }
    svg.push(format_args!("</svg>"));
    svg.into_string()
}
