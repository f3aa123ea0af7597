//! Results as one self-contained HTML page: headline, chart, table, and the method of measurement.

use std::{fmt::Write as _, time::Duration};

use howdah_warm::benchmark::{BenchmarkResults, BenchmarkRun, WarmMethod};

use super::{
    seconds,
    svg::{css_class, svg},
};
use crate::{chart::escaped, page::HtmlPage};

/// Renders the results of a benchmark as an HTML page.
pub fn page(results: &BenchmarkResults) -> String {
    let mut html = String::from("<main>\n");
    let headline = headline(results);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(html, "<h1>{}</h1>", escaped(&headline));
    let _ = writeln!(html, "<p class=\"about\">{}</p>", escaped(&about(results)));
    legend(&mut html, results);
    html.push_str(&svg(results));
    table(&mut html, results);
    html.push_str("<ul class=\"notes\">\n");
    for note in notes(results) {
        let _ = writeln!(html, "<li>{}</li>", escaped(&note));
    }
    html.push_str("</ul>\n</main>\n");
    HtmlPage {
        title: "Warm cache benchmark",
        styles: &[PAGE_STYLE],
        body: &html,
        ..HtmlPage::default()
    }
    .render()
}

/// Returns the main result in one sentence.
fn headline(results: &BenchmarkResults) -> String {
    let find = |method| results.runs.iter().find(|run| run.method == method);
    let time = |run: &BenchmarkRun| match run.summary.time_to_90 {
        Some(time) => format!("after {}", seconds(time)),
        None => format!("not within {}", seconds(results.duration)),
    };
    let times: Vec<_> = [WarmMethod::Howdah, WarmMethod::Autoprewarm, WarmMethod::NoWarming]
        .into_iter()
        .filter_map(|method| find(method).map(|run| format!("{} {}", method.name(), time(run))))
        .collect();
    format!("90 % of steady throughput: {}", times.join(", "))
}

fn about(results: &BenchmarkResults) -> String {
    let rows = results.row_count();
    let cached = (results.pages.0 * u64::from(results.pages.1)) >> 20;
    let skew = match results.skew {
        Some(skew) => format!("distributed by Zipf's law, exponent {skew}"),
        None => "uniformly distributed".to_owned(),
    };
    format!(
        "PostgreSQL {}, pgbench_accounts of {rows} rows, {cached} MiB in the cache before the \
         restart. One client reads single rows by key, {skew}, in steps of {}. Steady rate with a warm \
         cache: {:.0} per second.",
        results.server,
        seconds(results.step),
        results.steady
    )
}

fn legend(html: &mut String, results: &BenchmarkResults) {
    html.push_str("<p class=\"legend\">");
    for run in &results.runs {
        let (class, name) = (css_class(run.method), run.method.name());
        let _ = write!(html, "<span class=\"key {class}\"></span>{name} ");
    }
    html.push_str("<span class=\"dot\"></span>90 % of steady</p>\n");
}

const COLUMNS: [&str; 9] = [
    "",
    "to 90 %",
    "reads lost",
    "p99",
    "longest",
    "warming took",
    "server CPU",
    "own CPU",
    "read from disk",
];

fn table(html: &mut String, results: &BenchmarkResults) {
    html.push_str("<table>\n<tr>");
    for column in COLUMNS {
        let _ = write!(html, "<th>{column}</th>");
    }
    html.push_str("</tr>\n");
    for run in &results.runs {
        let _ = write!(html, "<tr><th><span class=\"key {}\"></span>", css_class(run.method));
        let _ = write!(html, "{}</th>", run.method.name());
        for cell in cells(run) {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
}

fn cells(run: &BenchmarkRun) -> [String; 8] {
    let none = || "–".to_owned();
    let micros = |us: u64| seconds(Duration::from_micros(us));
    let warming = run.warming.as_ref();
    let time = |time: Option<Duration>| time.map_or_else(none, seconds);
    [
        run.summary.time_to_90.map_or_else(|| "never".to_owned(), seconds),
        run.summary.lost.to_string(),
        micros(run.p99_us),
        micros(run.max_us),
        warming.map_or_else(none, |warming| {
            if warming.is_done {
                seconds(warming.wall)
            } else {
                format!("over {}", seconds(warming.wall))
            }
        }),
        time(warming.and_then(|warming| warming.server_cpu)),
        time(warming.map(|warming| warming.own_cpu)),
        warming
            .and_then(|warming| warming.read_bytes)
            .map_or_else(none, |bytes| format!("{} MiB", bytes >> 20)),
    ]
}

fn notes(results: &BenchmarkResults) -> Vec<String> {
    let mut notes = results.notes.clone();
    for run in &results.runs {
        if let Some(share) = run.warming.and_then(|warming| warming.resident_share) {
            let name = run.method.name();
            notes.push(format!("{name}: {:.1} % of the image was resident", share * 100.0));
        }
        if let Some(share) = run.share_after_a_tenth(results.steady, results.step) {
            let name = run.method.name();
            notes.push(format!(
                "{name}: {:.0} % of the steady rate in the step after a tenth of the pages was loaded",
                share * 100.0
            ));
        }
    }
    notes.push(
        "reads lost: reads that a warm server would have served until 90 % was reached, minus those served"
            .to_owned(),
    );
    notes
}

/// The styles of the page. Its grey, orange and blue also differ in lightness, for colour-blind
/// readers.
const PAGE_STYLE: &str = "
:root { --grid: var(--line); --nothing: #8a94a6; --autoprewarm: #e08a1e; --howdah: #1463c4; }
@media (prefers-color-scheme: dark) {
  :root { --nothing: #8f99aa; --autoprewarm: #f0a848; --howdah: #5aa2f5; }
}
main { max-width: 960px; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .4rem; }
.about { color: var(--soft); margin: 0 0 1rem; }
.legend { margin: 0; } .legend .key { margin-left: 1rem; } .legend .key:first-child { margin-left: 0; }
.key { display: inline-block; width: 1.1em; height: .25em; margin-right: .45em;
  vertical-align: middle; background: currentColor; }
.dot { display: inline-block; width: .6em; height: .6em; border-radius: 50%; margin: 0 .45em 0 1rem;
  background: var(--soft); }
.key.nothing { background: var(--nothing); } .key.autoprewarm { background: var(--autoprewarm); }
.key.howdah { background: var(--howdah); }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--grid); } .steady { stroke: var(--soft); stroke-dasharray: 6 4; }
.tick, .axis { fill: var(--soft); font-size: 12px; } .end { text-anchor: end; }
.mid { text-anchor: middle; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.line.nothing { stroke: var(--nothing); } .line.autoprewarm { stroke: var(--autoprewarm); }
.line.howdah { stroke: var(--howdah); }
.mark { stroke: var(--page); stroke-width: 2; } .mark.nothing { fill: var(--nothing); }
.mark.autoprewarm { fill: var(--autoprewarm); } .mark.howdah { fill: var(--howdah); }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; border-bottom: 1px solid var(--grid); text-align: right;
  white-space: nowrap; }
tr:first-child th { color: var(--soft); font-weight: normal; white-space: normal; }
th:first-child { text-align: left; }
.notes { color: var(--soft); font-size: .9rem; margin-top: 1rem; padding-left: 1.1rem; }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::tests::results;

    #[test]
    fn headline_lists_the_time_of_each_method() {
        assert_eq!(
            headline(&results()),
            "90 % of steady throughput: howdah after 500 ms, autoprewarm after 1.5 s, no warming not \
             within 4.0 s"
        );
    }

    #[test]
    fn page_is_self_contained() {
        let page = page(&results());
        assert!(!page.contains("http:") && !page.contains("https:"), "no external resources");
        assert!(page.contains("99.8 % of the image was resident"));
        assert_eq!(page.matches("<tr>").count(), 4);
        let main = page.split("<main>").nth(1).unwrap();
        insta::assert_snapshot!(main);
    }

    #[test]
    fn server_version_is_escaped() {
        let mut results = results();
        results.server = "17 <b>".to_owned();
        assert!(page(&results).contains("PostgreSQL 17 &lt;b&gt;"));
    }
}
