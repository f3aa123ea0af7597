//! The time lines: elements in which scripts draw the charts, and a table of averages and peaks for
//! readers without scripts or with a screen reader.

use std::fmt::Write as _;

use super::{Page, PanelUnit, TimePanel};
use crate::{chart::escaped, rehearsal::RehearsalSide, text};

/// Renders the section, or a remark if nothing was measured.
pub(super) fn section(html: &mut String, page: &Page) {
    let time_lines = &page.time_lines;
    html.push_str("<section id=\"time\">\n<h2>Time lines</h2>\n");
    if time_lines.panels.is_empty() && time_lines.checkpoints.is_empty() {
        html.push_str("<p class=\"soft\">Nothing was measured over time.</p>\n");
    } else {
        html.push_str(
            "<p class=\"lead\">All runs share one clock: the time since the start of the run, at \
             which each run is due to send the same statements.</p>\n\
             <noscript><p class=\"note\">The charts are drawn by a script in this page. Their \
             averages and peaks are in the table below.</p></noscript>\n",
        );
        toolbar(html, page);
        charts(html, page);
        averages(html, page);
    }
    for note in &time_lines.notes {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(note));
    }
    html.push_str("</section>\n");
}

fn toolbar(html: &mut String, page: &Page) {
    html.push_str(
        "<div class=\"toolbar\" id=\"time-tools\">\n<fieldset class=\"runs\"><legend>Runs</legend>",
    );
    for (index, run) in page.runs.iter().enumerate() {
        // Runs of one side have different dash patterns, in the same order as in the script.
        let others = page.runs[..index].iter().filter(|other| other.side == run.side).count();
        let dash = ["", " second", " third"][others % 3];
        let _ = write!(
            html,
            "<label><input type=\"checkbox\" checked data-run=\"{index}\"><span class=\"key {}{dash}\"></span>{}</label>",
            run.side,
            escaped(&run.name)
        );
    }
    html.push_str(
        "</fieldset>\n\
         <div class=\"zoom\" role=\"group\" aria-label=\"Zoom\">\
         <button type=\"button\" data-zoom=\"in\" aria-label=\"Zoom in\">+</button>\
         <button type=\"button\" data-zoom=\"out\" aria-label=\"Zoom out\">−</button>\
         <button type=\"button\" data-zoom=\"left\" aria-label=\"Earlier\">←</button>\
         <button type=\"button\" data-zoom=\"right\" aria-label=\"Later\">→</button>\
         <button type=\"button\" data-zoom=\"all\">Show all</button></div>\n\
         <label class=\"time\"><span>Time</span><input type=\"range\" id=\"time-slider\" min=\"0\" step=\"1\"></label>\n\
         <output id=\"time-now\" for=\"time-slider\"></output>\n</div>\n\
         <p class=\"hint\">Drag across a chart to zoom in, double-click to show all.</p>\n",
    );
}

fn charts(html: &mut String, page: &Page) {
    html.push_str("<div class=\"charts\">\n");
    if !page.time_lines.checkpoints.is_empty() {
        html.push_str(
            "<h3>Checkpoints</h3>\n<figure class=\"chart\" data-checkpoints>\
             <figcaption><span class=\"soft unit\">by run: write, then sync (darker)</span></figcaption>\
             <div class=\"plot lanes\"></div></figure>\n",
        );
    }
    let mut group = "";
    for (index, panel) in page.time_lines.panels.iter().enumerate() {
        if panel.group != group {
            group = &panel.group;
            let _ = writeln!(html, "<h3>{}</h3>", escaped(group));
        }
        let _ = writeln!(
            html,
            "<figure class=\"chart\" data-panel=\"{index}\"><figcaption><span class=\"title\">{}</span>\
             <span class=\"soft unit\">{}</span><output class=\"values\"></output></figcaption>\
             <div class=\"plot\" role=\"img\" aria-label=\"{}\"></div></figure>",
            escaped(&panel.title),
            unit_label(panel.unit),
            escaped(&label(page, panel)),
        );
    }
    html.push_str("</div>\n");
}

pub(super) fn unit_label(unit: PanelUnit) -> &'static str {
    match unit {
        PanelUnit::PerSecond => "per second",
        PanelUnit::Share => "%",
        // The values already include their units.
        PanelUnit::Micros | PanelUnit::BytesPerSecond | PanelUnit::Number => "",
    }
}

/// Describes a chart for screen readers.
fn label(page: &Page, panel: &TimePanel) -> String {
    let mut label = format!("{} over time", panel.title);
    for side in RehearsalSide::ALL {
        if let Some(summary) = PanelSummary::new(page, panel, side) {
            let mean = value(panel.unit, summary.mean);
            let _ = write!(label, "; {side}: {mean} on average");
        }
    }
    label
}

fn averages(html: &mut String, page: &Page) {
    if page.time_lines.panels.is_empty() {
        return;
    }
    html.push_str(
        "<h3>Averages and peaks</h3>\n\
         <div class=\"scroll\" role=\"region\" aria-label=\"Averages and peaks\" tabindex=\"0\">\
         <table class=\"figures\">\n<thead><tr>\
         <th scope=\"col\"></th><th scope=\"col\">base, average</th><th scope=\"col\">change, average</th>\
         <th scope=\"col\">base, peak</th><th scope=\"col\">change, peak</th></tr></thead>\n<tbody>\n",
    );
    for panel in &page.time_lines.panels {
        let sides = RehearsalSide::ALL.map(|side| PanelSummary::new(page, panel, side));
        let cell = |get: fn(&PanelSummary) -> f64, side: usize| {
            let shown = sides[side].as_ref().map(|summary| value(panel.unit, get(summary)));
            format!("<td>{}</td>", shown.unwrap_or_else(|| "–".to_owned()))
        };
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}</th>{}{}{}{}</tr>",
            escaped(&panel.title),
            cell(|summary| summary.mean, 0),
            cell(|summary| summary.mean, 1),
            cell(|summary| summary.peak, 0),
            cell(|summary| summary.peak, 1),
        );
    }
    html.push_str("</tbody></table></div>\n");
}

/// A summary of the values in one side's runs.
struct PanelSummary {
    mean: f64,
    peak: f64,
}

impl PanelSummary {
    /// Summarizes the values of a side's runs; `None` if they have none.
    fn new(page: &Page, panel: &TimePanel, side: RehearsalSide) -> Option<Self> {
        let runs = page.runs.iter().zip(&panel.values).filter(|(run, _)| run.side == side);
        let values = runs.flat_map(|(_, values)| values.iter().flatten().copied());
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let peak = values.iter().copied().reduce(f64::max)?;
        Some(Self { mean: values.iter().sum::<f64>() / values.len() as f64, peak })
    }
}

fn value(unit: PanelUnit, value: f64) -> String {
    match unit {
        PanelUnit::Micros => text::duration(value),
        PanelUnit::Share => format!("{:.1} %", value * 100.0),
        PanelUnit::BytesPerSecond => format!("{}/s", text::bytes(value.max(0.0) as u64)),
        PanelUnit::PerSecond => format!("{}/s", number(value)),
        PanelUnit::Number => number(value),
    }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
