//! A recording as one HTML page that stands alone: verdict, picture, and the text below it.

use std::fmt::Write as _;

use howdah_chart::escaped;

use crate::{picture::picture, text::facts, timeline::Timeline, verdict::verdict};

/// The page.
#[must_use]
pub fn page(timeline: &Timeline) -> String {
    let verdict = verdict(timeline);
    let mut html = String::from(HEAD);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(html, "<h1>{}</h1>", escaped(&verdict.headline));
    html.push_str("<ul>\n");
    for finding in &verdict.findings {
        let (text, evidence) = (escaped(&finding.text), escaped(&finding.evidence));
        let _ = writeln!(html, "<li>{text}<br><span class=\"soft\">{evidence}</span></li>");
    }
    for remark in &verdict.remarks {
        let _ = writeln!(html, "<li class=\"soft\">{}</li>", escaped(remark));
    }
    html.push_str("</ul>\n");
    html.push_str(&picture(timeline));
    let _ = writeln!(html, "<pre>{}</pre>", escaped(&facts(timeline)));
    html.push_str("</main>\n</html>\n");
    html
}

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>A server's flight recording</title>
<style>
:root { color-scheme: light dark; --text: #1c2330; --faint: #647084; --ground: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e8ecf3; --faint: #97a3b6; --ground: #161a21; } }
body { background: var(--ground); color: var(--text); margin: 0; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .5rem; } ul { margin: 0 0 1rem; padding-left: 1.2rem; }
.soft { color: var(--faint); } main svg { width: 100%; height: auto; display: block; }
pre { font-size: 12.5px; overflow-x: auto; line-height: 1.45; }
</style>
<main>
"#;

#[cfg(test)]
mod tests {
    use howdah_probe::recorder::{Record, Started, ThresholdCrossed, TriggerKind};

    use super::*;
    use crate::{text::text, verdict::tests::stall};

    #[test]
    fn the_page_stands_alone() {
        let mut recording = stall();
        recording.records.push(Record::Fired(ThresholdCrossed {
            at_us: 1_414_072_748_000_000,
            kind: TriggerKind::ExtendP99,
            value_milli: 400_000,
            threshold_milli: 100_000,
            held_back: 0,
        }));
        let page = page(&Timeline::of(&recording));
        for from_outside in ["src=", "href", "url(", "@import", "<script"] {
            assert!(!page.contains(from_outside), "{from_outside}");
        }
        for lane in ["checkpoints", "waits to extend relations", "sessions that work or wait"] {
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
    fn the_text_is_for_reading() {
        insta::assert_snapshot!(text(&Timeline::of(&stall())));
    }

    #[test]
    fn nothing_is_a_picture_too() {
        let page = page(&Timeline::default());
        assert!(page.contains("Nothing stands out") && page.contains("none while it was recorded"));
    }

    #[test]
    fn where_nobody_looked_is_not_where_nothing_was() {
        let mut recording = stall();
        for record in &mut recording.records {
            if let Record::Second(second) = record
                && second.at_us >= 1_414_072_756_000_000
            {
                second.extension = None;
            }
        }
        let page = page(&Timeline::of(&recording));
        assert_eq!(page.matches("class=\"untraced\"").count(), 1);
        assert!(page.contains("not traced"));
    }

    #[test]
    fn a_server_that_is_repeated_is_one() {
        let started = Record::Started(Started {
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
        let text = text(&Timeline::of(&recording));
        assert_eq!(text.matches("PostgreSQL 15, process 4711, /data").count(), 1, "{text}");
    }

    #[test]
    fn names_are_no_markup() {
        let mut recording = stall();
        let Record::Named(named) = &mut recording.records[0] else { panic!() };
        named.name = "<script>".to_owned();
        let page = page(&Timeline::of(&recording));
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }
}
