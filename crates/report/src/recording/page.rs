//! A recording as a self-contained HTML page: headline, story with pictures, findings, chart, and
//! details as text. On narrow screens, pictures and tables scroll in their full size.

use std::fmt::Write as _;

use howdah_probe::analysis::{
    RecordingWindow, TimeDimension, TimeShare, database_time_by, story, summarize, units::percent,
};

use super::{
    svg::{CHART_STYLE, figure, svg},
    text::details,
};
use crate::{chart::escaped, page::HtmlPage};

/// Renders a recording as an HTML page.
pub fn page(window: &RecordingWindow) -> String {
    let summary = summarize(window);
    let mut html = String::from("<main>\n");
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(html, "<h1>{}</h1>", escaped(&summary.headline));
    write_story(&mut html, window);
    html.push_str("<ul>\n");
    for finding in &summary.findings {
        let (text, evidence) = (escaped(&finding.text), escaped(&finding.evidence));
        let _ = write!(html, "<li>{text}<br><span class=\"soft\">{evidence}</span>");
        for culprit in &finding.culprits {
            let _ = write!(html, "<br><span class=\"culprit\">{}</span>", escaped(&culprit.line()));
        }
        html.push_str("</li>\n");
    }
    for remark in &summary.remarks {
        let _ = writeln!(html, "<li class=\"soft\">{}</li>", escaped(remark));
    }
    html.push_str("</ul>\n");
    let _ = writeln!(
        html,
        "<div class=\"picture\" tabindex=\"0\" role=\"region\" aria-label=\"Picture\">{}</div>",
        svg(window)
    );
    write_database_time(&mut html, window);
    let _ = writeln!(html, "<pre>{}</pre>", escaped(&details(window)));
    html.push_str("</main>\n");
    HtmlPage {
        title: "PostgreSQL recording report",
        styles: &[PAGE_STYLE],
        inner_styles: &[CHART_STYLE],
        body: &html,
        ..HtmlPage::default()
    }
    .render()
}

/// Writes the paragraphs of the story, each with its picture if it has something to tell.
fn write_story(html: &mut String, window: &RecordingWindow) {
    for paragraph in story(window) {
        let text = escaped(&paragraph.text);
        if paragraph.has_news {
            let _ = writeln!(
                html,
                "<div class=\"story\"><p>{text}</p><div class=\"picture\">{}</div></div>",
                figure(window, paragraph.topic)
            );
        } else {
            let _ = writeln!(html, "<p class=\"soft\">{text}</p>");
        }
    }
}

/// Writes a table of database time for each dimension that has values.
fn write_database_time(html: &mut String, window: &RecordingWindow) {
    for (dimension, shares) in database_time_by(window) {
        if shares.is_empty() {
            continue;
        }
        let _ = writeln!(
            html,
            "<details{}><summary>Database time by {}, from one sample a second</summary><div class=\"table\"><table>\n\
             <tr><th>share</th><th>seconds</th><th>most in</th><th>{}</th></tr>",
            if dimension == TimeDimension::Statement { " open" } else { "" },
            dimension.as_str(),
            dimension.as_str()
        );
        for TimeShare { name, seconds, share, main_event } in &shares {
            let name = name.as_deref().unwrap_or("(unknown)");
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{seconds:.1}</td><td>{}</td><td>{}</td></tr>",
                percent(*share, 1.0),
                escaped(main_event),
                escaped(name)
            );
        }
        html.push_str("</table></div></details>\n");
    }
}

const PAGE_STYLE: &str = "
h1 { font-size: 1.3rem; margin: 0 0 .5rem; overflow-wrap: anywhere; } ul { margin: 0 0 1rem; padding-left: 1.2rem; }
main p { margin: 0 0 .5rem; } li { overflow-wrap: anywhere; }
.story { display: grid; grid-template-columns: minmax(0, 1fr) 480px; gap: 1rem; margin: 0 0 .8rem; align-items: start; }
.picture, .table { overflow-x: auto; } .picture svg { height: auto; display: block; } main svg .page { fill: none; }
@media (min-width: 1001px) { .picture svg { width: 100%; } }
@media (max-width: 1000px) { .story { grid-template-columns: minmax(0, 1fr); gap: .3rem; } td:last-child { min-width: 16rem; } }
details { margin: 0 0 .6rem; } summary { cursor: pointer; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .1rem .9rem .1rem 0; font-size: .85rem; vertical-align: top; }
td:nth-child(-n+2) { text-align: right; } .culprit { font-size: .9rem; }
pre { font-size: 12.5px; overflow-x: auto; line-height: 1.45; }
";

#[cfg(test)]
mod tests {
    use howdah_probe::recorder::{FlightRecord, RecordingStarted, ThresholdCrossed, TriggerKind};

    use super::*;
    use crate::recording::{tests::stall, text};

    #[test]
    fn page_is_self_contained() {
        let mut recording = stall();
        recording.records.push(FlightRecord::ThresholdCrossed(ThresholdCrossed {
            at_us: 1_414_072_748_000_000,
            kind: TriggerKind::ExtendP99,
            value_milli: 400_000,
            threshold_milli: 100_000,
            suppressed: 0,
        }));
        let page = page(&RecordingWindow::from_recording(&recording));
        for from_outside in ["src=", "href", "url(", "@import", "<script"] {
            assert!(!page.contains(from_outside), "{from_outside}");
        }
        for lane in ["checkpoints", "waits to extend relations", "sessions running or waiting"] {
            assert!(page.contains(lane), "{lane}");
        }
        assert!(page.contains("class=\"shade sync\"") && page.contains("class=\"flag\""));
        assert!(page.contains("extension: 8 waits, p50 400 ms, p99 400 ms, longest 400 ms"));
        assert!(page.contains("prefers-color-scheme: dark"));
        let open = page.matches("<rect").count();
        assert_eq!(page.matches("class=\"hover\"").count(), 60, "{open} rectangles");
        for text in ["NaN", "inf\"", "-0.0"] {
            assert!(!page.contains(text), "{text}");
        }
    }

    #[test]
    fn text_report_matches_snapshot() {
        insta::assert_snapshot!(text(&RecordingWindow::from_recording(&stall())));
    }

    #[test]
    fn empty_recording_renders() {
        let page = page(&RecordingWindow::default());
        assert!(page.contains("Nothing stands out") && page.contains("none while it was recorded"));
    }

    #[test]
    fn untraced_seconds_are_shaded() {
        let mut recording = stall();
        for record in &mut recording.records {
            if let FlightRecord::Second(second) = record
                && second.at_us >= 1_414_072_756_000_000
            {
                second.extension = None;
            }
        }
        let page = page(&RecordingWindow::from_recording(&recording));
        // In the picture, and in the figure of the story.
        assert_eq!(page.matches("class=\"untraced\"").count(), 2);
        assert!(page.contains("not traced"));
    }

    #[test]
    fn repeated_server_record_is_printed_once() {
        let started = FlightRecord::Started(RecordingStarted {
            at_us: 1_414_072_716_000_000,
            major: 15,
            postmaster: 4711,
            data_dir: "/data".to_owned(),
            rate: 100,
            sources: Vec::new(),
            triggers: Vec::new(),
        });
        let mut recording = stall();
        recording.records.insert(20, started.clone());
        recording.records.insert(40, started);
        let text = text(&RecordingWindow::from_recording(&recording));
        assert_eq!(text.matches("PostgreSQL 15, process 4711, /data").count(), 1, "{text}");
    }

    #[test]
    fn relation_names_are_escaped() {
        let mut recording = stall();
        let FlightRecord::NamedRelation(named) = &mut recording.records[0] else { panic!() };
        named.name = "<script>".to_owned();
        let page = page(&RecordingWindow::from_recording(&recording));
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }
}
