//! Results as one self-contained HTML page: verdict, chart, table, and the method of measurement.

use std::fmt::Write as _;

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkVerdict, OTHERS_SHARE_MAX, STEADY_MARGIN, STEAL_SHARE_MAX,
    WAIT_SHARE_MAX, WarmingVerdict,
};

use super::{
    rows::{figure_rows, percent},
    seconds,
    sentences::{comparison_sentence, headline, host_line, orders, remarks},
    svg::{ChartSize, css_class, svg},
};
use crate::{chart::escaped, page::HtmlPage, text};

/// Renders the results of a benchmark as an HTML page.
pub fn page(results: &BenchmarkResults) -> String {
    let verdict = results.verdict();
    let mut html = String::from("<main>\n");
    write_verdict(&mut html, results, &verdict);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(html, "<p class=\"about\">{}</p>", html_text(&about(results)));
    write_chart(&mut html, results);
    html.push_str("<h2>Figures</h2>\n");
    write_table(&mut html, results);
    html.push_str("<h2>Measured on</h2>\n");
    write_host(&mut html, results);
    html.push_str("<h2>How to read this</h2>\n");
    write_list(&mut html, "notes", &notes());
    html.push_str("</main>\n");
    HtmlPage {
        title: "Warm cache benchmark",
        styles: &[PAGE_STYLE],
        body: &html,
        ..HtmlPage::default()
    }
    .render()
}

const PAGE_STYLE: &str = include_str!("page.css");

fn write_verdict(html: &mut String, results: &BenchmarkResults, verdict: &BenchmarkVerdict) {
    let overall = verdict.overall();
    let class = match overall {
        WarmingVerdict::Faster => "good",
        WarmingVerdict::Slower => "bad",
        WarmingVerdict::NoDifference => "even",
        WarmingVerdict::NotComparable(_) => "warn",
    };
    let headline = headline(results, verdict);
    let _ = writeln!(html, "<span class=\"badge {class}\">{}</span>", overall.name());
    let _ = writeln!(html, "<h1>{}</h1>", html_text(&headline));
    let others = verdict.comparisons.iter().filter(|_| verdict.obstacles.is_empty());
    let others = others.map(|it| comparison_sentence(results, it));
    let others: Vec<_> = others.filter(|sentence| *sentence != headline).collect();
    write_list(html, "sentences", &others);
    let more =
        verdict.obstacles.iter().skip(1).map(|obstacle| format!("not comparable: {obstacle}"));
    let more: Vec<_> = more.chain(remarks(results, verdict)).collect();
    if !more.is_empty() {
        html.push_str("<div class=\"notice\">\n");
        write_list(html, "remarks", &more);
        html.push_str("</div>\n");
    }
}

fn write_list(html: &mut String, class: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(html, "<ul class=\"{class}\">");
    for item in items {
        let _ = writeln!(html, "<li>{}</li>", html_text(item));
    }
    html.push_str("</ul>\n");
}

fn about(results: &BenchmarkResults) -> String {
    let rows = results.row_count();
    let cached = text::bytes(results.pages.0 * u64::from(results.pages.1));
    let skew = match results.skew {
        Some(skew) => format!("distributed by Zipf's law, exponent {skew}"),
        None => "uniformly distributed".to_owned(),
    };
    format!(
        "PostgreSQL {}, restarted with cold caches; pgbench_accounts of {rows} rows, {cached} in the \
         cache before. One client reads single rows by key, {skew}, for {} after each restart. {} of \
         each method.",
        results.server,
        seconds(results.duration),
        text::counted(results.runs.len() as u64, "measurement"),
    )
}

fn write_chart(html: &mut String, results: &BenchmarkResults) {
    html.push_str("<figure>\n<p class=\"legend\">");
    for method in results.methods() {
        let (class, name) = (css_class(method), method.name());
        let _ = write!(html, "<span><span class=\"key {class}\"></span>{name}</span>");
    }
    html.push_str("<span><span class=\"dot\"></span>90 % of steady</span></p>\n");
    for size in [ChartSize::Wide, ChartSize::Narrow] {
        html.push_str(&svg(results, size));
    }
    let step = seconds(results.step);
    let _ = writeln!(
        html,
        "<figcaption>Reads per second in steps of {step}. Lines: median of the runs. Bands: from the \
         slowest to the fastest run. Steady: {:.0} reads per second with a warm cache.</figcaption>\
         \n</figure>",
        results.steady
    );
}

fn write_table(html: &mut String, results: &BenchmarkResults) {
    let methods = results.method_summaries();
    html.push_str("<table>\n<thead><tr><td></td>");
    for summary in &methods {
        let (class, name) = (css_class(summary.method), summary.method.name());
        let _ = write!(html, "<th scope=\"col\"><span class=\"key {class}\"></span>{name}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in figure_rows(results, &methods) {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", row.label);
        for cell in row.cells {
            let _ = write!(html, "<td>{}", html_text(&cell.median));
            if let Some(range) = cell.range {
                let _ = write!(html, "<small>{}</small>", html_text(&range));
            }
            html.push_str("</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n");
}

fn write_host(html: &mut String, results: &BenchmarkResults) {
    let mut items = vec![("Host".to_owned(), host_line(results))];
    for (order, number) in orders(results).into_iter().zip(1..) {
        items.push((format!("Order in run {number}"), order));
    }
    let notes = results.notes.join("; ");
    items.push(("Caches".to_owned(), notes));
    items.push((
        "Steady".to_owned(),
        format!(
            "{:.0} reads per second, p99 {}; {:.0} before the restarts",
            results.steady,
            seconds(std::time::Duration::from_micros(results.steady_p99_us)),
            results.steady_before
        ),
    ));
    html.push_str("<dl>\n");
    for (name, text) in items {
        let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", html_text(&name), html_text(&text));
    }
    html.push_str("</dl>\n");
}

/// Escapes text for HTML, and joins numbers with their units, so that no line ends between them.
fn html_text(text: &str) -> String {
    const UNITS: [&str; 6] = ["s", "ms", "µs", "%", "MiB", "GiB"];
    let mut joined = String::with_capacity(text.len());
    for word in text.split(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        let is_number = joined.ends_with(|c: char| c.is_ascii_digit());
        if !joined.is_empty() {
            joined.push(if is_unit && is_number { '\u{a0}' } else { ' ' });
        }
        joined.push_str(word);
    }
    escaped(&joined)
}

/// Returns the rules by which the figures were computed.
fn notes() -> Vec<String> {
    vec![
        "To 90 % of steady: the start of the first step with 90 % of the steady rate from which the \
         median of five steps has it, too. Single fast steps do not count, and single slow ones do not \
         delay it."
            .to_owned(),
        format!(
            "Steady: the median of the rate before the restarts and of the second halves of the warmed \
             measurements. A measurement whose own steady rate is within {} of it is compared to its \
             own. If those rates differ by more, the host changed, and nothing is comparable.",
            percent(STEADY_MARGIN)
        ),
        "Faster and slower: the times of all runs are separate, and the medians differ by more than \
         two steps and a fifth. No difference: the medians differ by at most a step or a tenth. \
         Anything between is not comparable."
            .to_owned(),
        format!(
            "Disturbed: the client or its backend waited for a processor more than {} of the time while \
             nothing was warmed, or at any time while other programs used more than {} of the processors, \
             or a hypervisor gave more than {} to other guests. Waits that warming causes are part of \
             its cost. Disturbed measurements are left out of medians and bands, unless all of a \
             method are.",
            percent(WAIT_SHARE_MAX),
            percent(OTHERS_SHARE_MAX),
            percent(STEAL_SHARE_MAX)
        ),
        "Time counts from the client's connection. Autoprewarm starts with the server, a moment \
         earlier; Howdah's load starts with the client."
            .to_owned(),
        "Every measurement starts with a new session, which takes a page fault for each 4 kB of the \
         cache that it touches for the first time. That slows the first reads with every method; \
         steps.csv lists the faults."
            .to_owned(),
        "Reads lost: reads that a warm server would have served until 90 % was reached, minus those \
         served. Server CPU: without the client's session."
            .to_owned(),
        "On a machine with few processors, warming competes with the client for them, and more \
         connections that load do not help. On a large one with slow disks, they do: measure on the \
         machine, and with the size of cache, that you want to know about."
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::tests::{disturbed_results, results};

    #[test]
    fn headline_says_which_method_is_faster() {
        let results = results();
        assert_eq!(
            headline(&results, &results.verdict()),
            "Howdah warms the cache faster than autoprewarm: 90 % of steady throughput after 500 ms, \
             instead of after 2.5 s"
        );
    }

    #[test]
    fn page_is_self_contained() {
        let page = page(&results());
        assert!(!page.contains("http:") && !page.contains("https:"), "no external resources");
        assert!(page.contains("99.8\u{a0}%"));
        assert_eq!(page.matches("<svg").count(), 2);
        let main = page.split("<main>").nth(1).unwrap();
        insta::assert_snapshot!(main);
    }

    #[test]
    fn disturbed_measurements_are_listed_and_have_no_verdict() {
        let page = page(&disturbed_results());
        assert!(page.contains("<span class=\"badge warn\">not comparable</span>"), "{page}");
        let headline = "<h1>Not comparable: 3 of 9 measurements were disturbed, such as: the client \
             waited for a processor 37\u{a0}% of the time; measure on an idle machine</h1>";
        assert!(page.contains(headline), "{page}");
        assert_eq!(page.matches("<li>disturbed: run ").count(), 3);
    }

    #[test]
    fn numbers_and_units_are_joined() {
        assert_eq!(
            html_text("after 1.8 s (2 ms), s < 3"),
            "after 1.8\u{a0}s (2\u{a0}ms), s &lt; 3"
        );
    }

    #[test]
    fn server_version_is_escaped() {
        let mut results = results();
        results.server = "17 <b>".to_owned();
        assert!(page(&results).contains("PostgreSQL 17 &lt;b&gt;"));
    }
}
