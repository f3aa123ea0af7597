//! The queries: a table that can be sorted and filtered, with the details of each query below its
//! row.

use std::fmt::Write as _;

use super::{
    FactorInterval, Page, PageQuery, PageQueryVerdict, QueryErrorCount, QueryMeasures, figures,
    figures::FactorAxis,
};
use crate::{chart::escaped, rehearsal::RehearsalSide, text};

/// Maximum number of queries with details, which take some 10 kB each.
const DETAILS_MAX: usize = 400;

/// Number of slower queries whose details are open from the start.
const OPEN_MAX: usize = 2;

/// The columns: the key by which the script sorts, and the heading.
const COLUMNS: [(&str, &str); 8] = [
    ("rank", "Verdict"),
    ("text", "Query"),
    ("calls", "Calls"),
    ("p50", "Median"),
    ("p99", "p99"),
    ("factor", "Change"),
    ("errors", "Errors"),
    ("impact", "Time lost"),
];

impl PageQuery {
    /// Returns the factor on which the verdict is based.
    pub(super) fn verdict_factor(&self) -> Option<FactorInterval> {
        if self.is_tail_only { self.mean_factor.or(self.factor) } else { self.factor }
    }

    /// Returns the query's anchor within the page.
    pub(super) fn anchor(&self) -> String {
        format!("query-{}", self.fingerprint)
    }

    /// Returns the query's text, or a placeholder name if the text is not known.
    pub(super) fn name(&self) -> String {
        match self.text.as_str() {
            "" => format!("query {}", self.fingerprint),
            known => known.to_owned(),
        }
    }

    fn rows_differ(&self) -> bool {
        let rows = |side: Option<QueryMeasures>| side.and_then(|side| side.rows_mean);
        match (rows(self.base), rows(self.change)) {
            (Some(base), Some(change)) => (base - change).abs() > 1e-9 * base.abs().max(1.0),
            _ => false,
        }
    }
}

/// Renders the section of queries, with a form for filtering and sorting them.
pub(super) fn section(html: &mut String, page: &Page) {
    html.push_str("<section id=\"queries\">\n<h2>Queries</h2>\n");
    if page.queries.is_empty() {
        html.push_str("<p class=\"soft\">No query was executed.</p>\n</section>\n");
        return;
    }
    let confidence = (page.confidence * 100.0).round();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        html,
        "<p class=\"lead\"><span class=\"key base\"></span>base, the server in its present state, above; \
         <span class=\"key change\"></span>change, the server with the change, below. \
         The change is a factor with its {confidence} % confidence interval; factors within the grey \
         band, {} or less, do not count as a change. Time lost is what the change costs over all \
         executions; it is negative where time was won.</p>",
        text::factor(page.change_min)
    );
    controls(html, page);
    let axis = FactorAxis::new(page);
    html.push_str("<table class=\"queries\" id=\"query-table\" role=\"table\">\n");
    html.push_str("<thead role=\"rowgroup\"><tr role=\"row\">");
    for (key, name) in COLUMNS {
        let scale = if key == "factor" { axis.scale() } else { String::new() };
        let sort = if key == "impact" { " aria-sort=\"descending\"" } else { "" };
        let _ = write!(
            html,
            "<th scope=\"col\" role=\"columnheader\" class=\"{key}\" data-key=\"{key}\"{sort}><span>{name}</span>{scale}</th>"
        );
    }
    html.push_str("</tr></thead>\n");
    let mut open_max = OPEN_MAX;
    for (index, query) in page.queries.iter().enumerate() {
        let is_slower = query.verdict == PageQueryVerdict::Slower;
        let is_open = is_slower && open_max > 0;
        open_max -= usize::from(is_open);
        row(html, query, &axis, index);
        if index < DETAILS_MAX {
            details(html, page, query, is_open);
        }
        html.push_str("</tbody>\n");
    }
    html.push_str("</table>\n<p class=\"note\" id=\"no-query\" hidden>No query matches.</p>\n");
    if page.queries.len() > DETAILS_MAX {
        let _ = writeln!(
            html,
            "<p class=\"note\">Only the first {DETAILS_MAX} queries have details.</p>"
        );
    }
    html.push_str("</section>\n");
}

/// Renders the form for filtering and sorting, which the style hides if scripts are off.
fn controls(html: &mut String, page: &Page) {
    html.push_str(
        "<form class=\"toolbar\" id=\"query-filter\">\n\
         <label class=\"search\"><span>Filter</span>\
         <input type=\"search\" name=\"text\" autocomplete=\"off\" spellcheck=\"false\" placeholder=\"words of the query\"></label>\n\
         <fieldset><legend>Verdicts</legend>",
    );
    for verdict in PageQueryVerdict::ALL {
        let count = page.queries.iter().filter(|query| query.verdict == verdict).count();
        if count > 0 {
            let word = verdict.as_str();
            let _ = write!(
                html,
                "<label><input type=\"checkbox\" name=\"verdict\" value=\"{word}\" checked>{word} \
                 <span class=\"soft\">{count}</span></label>"
            );
        }
    }
    html.push_str(
        "</fieldset>\n\
         <label class=\"sort\"><span>Sort by</span><select name=\"sort\">",
    );
    for (key, name) in COLUMNS {
        let selected = if key == "impact" { " selected" } else { "" };
        let _ = write!(html, "<option value=\"{key}\"{selected}>{}</option>", name.to_lowercase());
    }
    let _ = writeln!(
        html,
        "</select></label>\n\
         <output id=\"query-count\" role=\"status\">{} queries</output>\n</form>",
        page.queries.len()
    );
}

fn row(html: &mut String, query: &PageQuery, axis: &FactorAxis, index: usize) {
    let verdict = query.verdict;
    let anchor = escaped(&query.anchor());
    let _ = write!(
        html,
        "<tbody role=\"rowgroup\" id=\"{anchor}\" data-index=\"{index}\">\n<tr role=\"row\" class=\"query\">\
         <td role=\"cell\" class=\"rank\">{}</td>\
         <td role=\"cell\" class=\"text\"><code>{}</code>{}</td>",
        badge(verdict),
        escaped(&text::one_line(&query.name(), 400)),
        tags(query)
    );
    pair(html, "calls", "Calls", query, |side| grouped(side.calls));
    // Both values use the unit of the longer one, so that their digits line up.
    let longer = |get: fn(&QueryMeasures) -> f64| {
        [query.base, query.change].iter().flatten().map(get).fold(0.0, f64::max)
    };
    let (p50, p99) = (longer(|side| side.p50_us), longer(|side| side.p99_us));
    let latency = |us: f64, longer: f64, side: &QueryMeasures| {
        // Only successful executions have latencies.
        if side.errors < side.calls {
            text::duration_in_unit_of(us, longer)
        } else {
            "–".to_owned()
        }
    };
    pair(html, "p50", "Median", query, |side| latency(side.p50_us, p50, side));
    pair(html, "p99", "p99", query, |side| latency(side.p99_us, p99, side));
    let change = query.verdict_factor().map_or_else(
        || "<span class=\"soft\">–</span>".to_owned(),
        |factor| {
            let part =
                if query.is_tail_only { " <span class=\"soft\">of the mean</span>" } else { "" };
            format!(
                "{}<span class=\"amount\">{}{part}</span> <span class=\"interval\">{}</span>",
                axis.bar(factor, verdict),
                text::factor(factor.estimate),
                range(factor)
            )
        },
    );
    let _ = write!(html, "<td role=\"cell\" class=\"factor\" data-label=\"Change\">{change}</td>");
    pair(html, "errors", "Errors", query, |side| grouped(side.errors));
    let class = match verdict {
        PageQueryVerdict::Slower => "slower",
        PageQueryVerdict::Faster => "faster",
        _ => "soft",
    };
    let _ = writeln!(
        html,
        "<td role=\"cell\" class=\"impact {class}\" data-label=\"Time lost\">{}</td></tr>",
        impact(query)
    );
}

/// Renders the time that a change costs; a dash for a query that one side lacks.
fn impact(query: &PageQuery) -> String {
    match (query.base, query.change) {
        (Some(_), Some(_)) if query.impact_us.abs() < 0.5 => "0".to_owned(),
        (Some(_), Some(_)) => text::difference(query.impact_us).replace('-', "−"),
        _ => "–".to_owned(),
    }
}

/// Renders a cell with the value of the base above that of the change.
fn pair(
    html: &mut String,
    class: &str,
    label: &str,
    query: &PageQuery,
    show: impl Fn(&QueryMeasures) -> String,
) {
    let side = |side: &Option<QueryMeasures>| side.as_ref().map_or_else(|| "–".to_owned(), &show);
    let _ = write!(
        html,
        "<td role=\"cell\" class=\"pair {class}\" data-label=\"{label}\">\
         <span class=\"base\"><span class=\"hear\">base </span>{}</span>\
         <span class=\"change\"><span class=\"hear\">change </span>{}</span></td>",
        side(&query.base),
        side(&query.change)
    );
}

/// Renders the verdict on a query. Verdicts differ in sign as well as in colour.
pub(super) fn badge(verdict: PageQueryVerdict) -> String {
    let (class, sign) = match verdict {
        PageQueryVerdict::Slower => ("bad", "▲"),
        PageQueryVerdict::Faster => ("good", "▼"),
        PageQueryVerdict::Undecided => ("warn", "?"),
        PageQueryVerdict::NoChange => ("plain", "="),
        _ => ("plain", "○"),
    };
    let word = verdict.as_str();
    format!("<span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {word}</span>")
}

/// Renders remarkable facts about a query as labels in the table.
fn tags(query: &PageQuery) -> String {
    let mut tags = Vec::new();
    let new_errors: Vec<&str> = query
        .errors
        .iter()
        .filter(|error| error.base == 0 && error.change > 0)
        .map(sqlstate)
        .collect();
    if !new_errors.is_empty() {
        tags.push(format!("new errors: {}", new_errors.join(", ")));
    }
    if query.plan_change.is_some() {
        tags.push("plan changed".to_owned());
    }
    if query.rows_differ() {
        tags.push("rows differ".to_owned());
    }
    if query.is_tail_only {
        tags.push("slow executions only".to_owned());
    }
    let tag = |tag: &String| format!("<span class=\"tag\">{}</span>", escaped(tag));
    if tags.is_empty() {
        return String::new();
    }
    format!("<span class=\"tags\">{}</span>", tags.iter().map(tag).collect::<String>())
}

fn details(html: &mut String, page: &Page, query: &PageQuery, is_open: bool) {
    let open = if is_open { " open" } else { "" };
    let is_changed = matches!(query.verdict, PageQueryVerdict::Slower | PageQueryVerdict::Faster);
    let changed = if is_changed { " data-changed" } else { "" };
    let columns = COLUMNS.len();
    let _ = writeln!(
        html,
        "<tr role=\"row\" class=\"more\"><td role=\"cell\" colspan=\"{columns}\"><details{open}{changed}>\
         <summary>{}</summary>\n<div class=\"details\">",
        details_summary(query)
    );
    for cause in &query.causes {
        let _ = writeln!(html, "<p class=\"cause\"><b>Possible cause:</b> {}</p>", escaped(cause));
    }
    let _ = writeln!(html, "<pre class=\"sql\"><code>{}</code></pre>", escaped(&query.name()));
    if let Some(example) = &query.example {
        let _ = writeln!(
            html,
            "<h4>One captured execution, with its values</h4>\n<pre class=\"sql\"><code>{}</code></pre>",
            escaped(example)
        );
    }
    html.push_str("<div class=\"columns\">\n");
    let histogram =
        query.latencies.as_ref().and_then(|latencies| figures::histogram(latencies, query));
    if let Some(histogram) = histogram {
        let _ = writeln!(
            html,
            "<figure><figcaption><h4>Latency</h4> <span class=\"soft\">share of executions, logarithmic \
             scale</span></figcaption>{histogram}</figure>"
        );
    }
    percentiles(html, page, query);
    html.push_str("</div>\n");
    explain(html, query);
    errors(html, &query.errors);
    plans(html, query);
    runs(html, page, query);
    html.push_str("</div></details></td></tr>\n");
}

/// Renders the line that opens the details and lists what they contain.
fn details_summary(query: &PageQuery) -> String {
    let mut words = vec!["latencies"];
    if query.plans.is_some() || query.plan_change.is_some() {
        words.push("plans");
    }
    if !query.errors.is_empty() {
        words.push("errors");
    }
    words.push("runs");
    if query.example.is_some() {
        words.push("example");
    }
    format!("Details <span class=\"soft\">{}</span>", words.join(", "))
}

/// Renders the latencies and rows of both sides, with the range over the runs if a side has
/// several. Renders nothing for a query that one side lacks.
fn percentiles(html: &mut String, page: &Page, query: &PageQuery) {
    type MeasureGetter = fn(&QueryMeasures) -> f64;
    const ROWS: [(&str, MeasureGetter); 7] = [
        ("mean", |side| side.mean_us),
        ("median", |side| side.p50_us),
        ("p90", |side| side.p90_us),
        ("p95", |side| side.p95_us),
        ("p99", |side| side.p99_us),
        ("longest", |side| side.max_us),
        ("total", |side| side.total_us),
    ];
    let (Some(base), Some(change)) = (query.base, query.change) else { return };
    let has_ranges = RehearsalSide::ALL.iter().any(|side| of_side(page, query, *side).count() > 1);
    html.push_str(
        "<div class=\"scroll\" role=\"region\" aria-label=\"Percentiles\" tabindex=\"0\"><table class=\"figures\">\n\
         <thead><tr><th scope=\"col\"></th><th scope=\"col\">base</th><th scope=\"col\">change</th>\
         <th scope=\"col\">factor</th>",
    );
    if has_ranges {
        html.push_str("<th scope=\"col\">base, by run</th><th scope=\"col\">change, by run</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (name, get) in ROWS {
        let (base, change) = (get(&base), get(&change));
        let longer = base.max(change);
        let factor = if base > 0.0 { text::factor(change / base) } else { "–".to_owned() };
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td>{factor}</td>",
            text::duration_in_unit_of(base, longer),
            text::duration_in_unit_of(change, longer)
        );
        if has_ranges {
            for side in RehearsalSide::ALL {
                let values = of_side(page, query, side).map(|measures| get(&measures));
                let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
                    (low.min(value), high.max(value))
                });
                let shown = if low.is_finite() {
                    text::duration_range(low, high, longer)
                } else {
                    "–".to_owned()
                };
                let _ = write!(html, "<td class=\"soft\">{shown}</td>");
            }
        }
        html.push_str("</tr>\n");
    }
    rows_per_execution(html, &base, &change, has_ranges);
    html.push_str("</tbody></table></div>\n");
}

fn rows_per_execution(
    html: &mut String,
    base: &QueryMeasures,
    change: &QueryMeasures,
    has_ranges: bool,
) {
    let rows = |side: &QueryMeasures| {
        side.rows_mean.map_or_else(|| "–".to_owned(), |rows| format!("{rows:.2}"))
    };
    let rest = if has_ranges { "<td></td><td></td><td></td>" } else { "<td></td>" };
    let _ = writeln!(
        html,
        "<tr><th scope=\"row\">rows</th><td>{}</td><td>{}</td>{rest}</tr>",
        rows(base),
        rows(change)
    );
}

fn of_side<'a>(
    page: &'a Page,
    query: &'a PageQuery,
    side: RehearsalSide,
) -> impl Iterator<Item = QueryMeasures> + 'a {
    let runs = page.runs.iter().zip(&query.runs).filter(move |(run, _)| run.side == side);
    runs.filter_map(|(_, measures)| *measures)
}

/// Explains a verdict that is not a change, such as "undecided".
fn explain(html: &mut String, query: &PageQuery) {
    let detectable = query.detectable.map(text::factor);
    let sentence = match (query.verdict, detectable) {
        (PageQueryVerdict::Undecided, Some(detectable)) => format!(
            "Undecided: the runs of one server differ so much that only a change by {detectable} or \
             more would have shown."
        ),
        (PageQueryVerdict::Undecided, None) => {
            "Undecided: neither a change nor its absence is certain.".to_owned()
        }
        (PageQueryVerdict::NoChange, Some(detectable)) => {
            format!("A change by {detectable} or more would have shown.")
        }
        (PageQueryVerdict::TooFew, _) => {
            "It was not executed often enough to tell whether it changed.".to_owned()
        }
        (PageQueryVerdict::OnlyInBase, _) => "It was executed on the base only.".to_owned(),
        (PageQueryVerdict::OnlyInChange, _) => "It was executed with the change only.".to_owned(),
        _ => return,
    };
    let _ = writeln!(html, "<p class=\"soft\">{sentence}</p>");
}

fn errors(html: &mut String, errors: &[QueryErrorCount]) {
    if errors.is_empty() {
        return;
    }
    // Messages may contain values, so they are often omitted.
    let has_messages = errors.iter().any(|error| !error.message.is_empty());
    html.push_str(
        "<h4>Errors</h4>\n\
         <div class=\"scroll\" role=\"region\" aria-label=\"Errors\" tabindex=\"0\"><table class=\"figures\">\n\
         <thead><tr><th scope=\"col\">SQLSTATE</th><th scope=\"col\">base</th><th scope=\"col\">change</th>",
    );
    if has_messages {
        html.push_str("<th scope=\"col\" class=\"words\">message</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for error in errors {
        let (base, change) = (grouped(error.base), grouped(error.change));
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}</th><td>{base}</td><td>{change}</td>",
            escaped(sqlstate(error))
        );
        if has_messages {
            let message = escaped(&text::one_line(&error.message, 300));
            let _ = write!(html, "<td class=\"words\">{message}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

fn sqlstate(error: &QueryErrorCount) -> &str {
    if error.sqlstate.is_empty() { "no SQLSTATE" } else { &error.sqlstate }
}

fn plans(html: &mut String, query: &PageQuery) {
    if query.plan_change.is_none() && query.plans.is_none() && query.plan_failure.is_none() {
        return;
    }
    html.push_str("<h4>Plans</h4>\n");
    if let Some(change) = &query.plan_change {
        let _ = writeln!(html, "<p>{}</p>", escaped(change));
    }
    if let Some(failure) = &query.plan_failure {
        let _ =
            writeln!(html, "<p class=\"soft\">Plans were not compared: {}</p>", escaped(failure));
    }
    if let Some(plans) = &query.plans {
        html.push_str("<div class=\"columns\">\n");
        for (side, plan) in [("base", &plans.base), ("change", &plans.change)] {
            let _ = writeln!(
                html,
                "<figure><figcaption><span class=\"key {side}\"></span>{side}</figcaption>\
                 <pre class=\"plan\" role=\"region\" aria-label=\"Plan, {side}\" tabindex=\"0\">{}</pre></figure>",
                escaped(plan)
            );
        }
        html.push_str("</div>\n");
    }
}

fn runs(html: &mut String, page: &Page, query: &PageQuery) {
    if query.runs.iter().flatten().next().is_none() {
        return;
    }
    html.push_str(
        "<h4>Run by run</h4>\n\
         <div class=\"scroll\" role=\"region\" aria-label=\"Run by run\" tabindex=\"0\"><table class=\"figures\">\n\
         <thead><tr><th scope=\"col\">run</th><th scope=\"col\">calls</th><th scope=\"col\">errors</th>\
         <th scope=\"col\">mean</th><th scope=\"col\">median</th><th scope=\"col\">p90</th>\
         <th scope=\"col\">p95</th><th scope=\"col\">p99</th><th scope=\"col\">longest</th>\
         <th scope=\"col\">total</th><th scope=\"col\">rows</th></tr></thead>\n<tbody>\n",
    );
    for (run, measures) in page.runs.iter().zip(&query.runs) {
        let (name, side) = (escaped(&run.name), run.side);
        let _ = write!(
            html,
            "<tr><th scope=\"row\"><span class=\"key {side}\"></span>{name} <span class=\"soft\">{side}</span></th>"
        );
        let Some(measures) = measures else {
            html.push_str("<td colspan=\"10\" class=\"soft\">not executed</td></tr>\n");
            continue;
        };
        let _ = write!(
            html,
            "<td>{}</td><td>{}</td>",
            grouped(measures.calls),
            grouped(measures.errors)
        );
        for us in [
            measures.mean_us,
            measures.p50_us,
            measures.p90_us,
            measures.p95_us,
            measures.p99_us,
            measures.max_us,
            measures.total_us,
        ] {
            let _ = write!(html, "<td>{}</td>", text::duration(us));
        }
        let rows = measures.rows_mean.map_or_else(|| "–".to_owned(), |rows| format!("{rows:.2}"));
        let _ = writeln!(html, "<td>{rows}</td></tr>");
    }
    html.push_str("</tbody></table></div>\n");
}

/// Formats the ends of an interval: `13.1 to 15.0`.
pub(super) fn range(factor: FactorInterval) -> String {
    format!("{} to {}", text::factor_digits(factor.low), text::factor_digits(factor.high))
}

/// Formats a number in groups, with narrow no-break spaces: `12 034 551`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

#[test]
fn digits_are_grouped_by_three() {
    let cases =
        [(0, "0"), (999, "999"), (1000, "1\u{202f}000"), (12_034_551, "12\u{202f}034\u{202f}551")];
    for (number, shown) in cases {
        assert_eq!(grouped(number), shown);
    }
}
