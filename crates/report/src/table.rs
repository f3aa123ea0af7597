//! Renders a comparison for a terminal.

use std::fmt::Write as _;

use howdah_compare::{
    ChangedPart, Comparison, Measures, QueryComparison, QueryVerdict, Side, Violation,
};

use crate::{headline, text};

/// Options that fit a comparison to a terminal.
#[derive(Clone, Copy, Debug)]
pub struct TableStyle {
    /// Whether verdicts are coloured with ANSI escapes.
    pub is_colored: bool,
    /// Width of the terminal in columns. Queries are truncated to fit; below 86, measures are
    /// wrapped.
    pub width: usize,
    /// Maximum number of queries, the worst first; all if `None`.
    pub queries_max: Option<usize>,
}

impl Default for TableStyle {
    /// Returns a style without colour, 120 columns wide, with all queries.
    fn default() -> Self {
        Self { is_colored: false, width: 120, queries_max: None }
    }
}

/// Renders the comparison as text: both sides, the verdict, the headlines, the violated conditions,
/// then a few lines for each query.
///
/// Ends with a line break.
pub fn table(comparison: &Comparison, violations: &[Violation], style: &TableStyle) -> String {
    let mut out = String::new();
    side(&mut out, "base", &comparison.base, style);
    side(&mut out, "run", &comparison.run, style);
    if let Some(control) = &comparison.control {
        let name = text::one_line(&control.info.name, style.width / 2);
        let noise = text::factor(control.noise);
        let _ = writeln!(out, "control  {name}: the typical query differs by {noise} from base");
    }
    let _ = writeln!(out);
    let line = format!("verdict: {}", headline::verdict_line(comparison));
    let _ = writeln!(out, "{}", paint(&line, color_of_overall(comparison), style));
    for line in headline::headlines(comparison) {
        let _ = writeln!(out, "{}", colored_headline(&line, style));
    }
    for violation in violations {
        let _ =
            writeln!(out, "{}", colored_headline(&violation_line(comparison, violation), style));
    }
    if !comparison.queries.is_empty() && style.width >= WIDE_COLUMNS_MIN {
        let _ = writeln!(out, "\n{}", HEADER.trim_end());
    }
    let shown = style.queries_max.unwrap_or(usize::MAX).min(comparison.queries.len());
    // Queries without a verdict come last, even if they differ a lot.
    let too_few = |query: &&QueryComparison| query.verdict == QueryVerdict::TooFew;
    let (without_verdict, with_verdict): (Vec<_>, Vec<_>) =
        comparison.queries.iter().partition(too_few);
    for query in with_verdict.iter().take(shown) {
        rows(&mut out, query, style);
    }
    let without_verdict = &without_verdict[..shown.saturating_sub(with_verdict.len())];
    if !without_verdict.is_empty() {
        let _ = writeln!(out, "\nnot executed often enough to say:");
    }
    for query in without_verdict {
        rows(&mut out, query, style);
    }
    if shown < comparison.queries.len() {
        let _ =
            writeln!(out, "… and {} more (--limit 0 shows all)", comparison.queries.len() - shown);
    }
    out
}

/// Formats a violated condition: `fail-on p95>1.5x: select … 1.20 ms → 3.40 ms`.
pub(crate) fn violation_line(comparison: &Comparison, violation: &Violation) -> String {
    const QUERY_WIDTH: usize = 100;
    let mut queries = comparison.queries.iter();
    let query = queries.find(|query| query.fingerprint == violation.fingerprint);
    let name = match query {
        Some(query) => headline::query_text(query, QUERY_WIDTH),
        None => violation.fingerprint.to_string(),
    };
    let values = match (violation.base, violation.condition.metric().is_time()) {
        (Some(base), true) => text::durations(base, violation.run),
        (None, true) => text::duration(violation.run),
        (base, false) => format!("{} → {}", base.unwrap_or(0.0), violation.run),
    };
    format!("fail-on {}: {name} {values}", violation.condition)
}

/// Minimum width for measures in one line.
const WIDE_COLUMNS_MIN: usize = 86;

const HEADER: &str =
    "           calls  errors     mean      p50      p90      p95      p99      max    total";

fn side(out: &mut String, label: &str, side: &Side, style: &TableStyle) {
    let info = &side.info;
    let name = text::one_line(&info.name, style.width / 2);
    let _ = write!(out, "{label:<8} {name}: ");
    if !info.server_version.is_empty() {
        let _ = write!(out, "PostgreSQL {}, ", text::one_line(&info.server_version, 40));
    }
    let calls = text::counted(side.calls, "execution");
    let errors = text::counted(side.errors, "error");
    let total = text::duration(side.total_us as f64);
    let _ = write!(out, "{calls}, {errors}, {total} in all");
    for (count, what) in [(side.skipped, "skipped"), (side.unattributed, "of no known query")] {
        if count > 0 {
            let _ = write!(out, ", {count} {what}");
        }
    }
    out.push('\n');
}

fn rows(out: &mut String, query: &QueryComparison, style: &TableStyle) {
    let mut title = format!("{:<13}", verdict_label(query.verdict));
    if let Some(amount) = amount(query) {
        let _ = write!(title, "{amount}  ");
    }
    let room = style.width.saturating_sub(title.chars().count()).max(20);
    let name = headline::query_text(query, room);
    let _ = writeln!(out, "{}{name}", paint(&title, color_of(query.verdict), style));
    for (label, side) in [("base", query.base), ("run", query.run)] {
        match side {
            Some(side) if style.width >= WIDE_COLUMNS_MIN => measures(out, label, &side),
            Some(side) => narrow_measures(out, label, &side, style.width),
            None => {}
        }
    }
    for change in &query.errors {
        let code = headline::sqlstate(change);
        let message = headline::message(change, style.width.saturating_sub(30).max(20));
        let _ = writeln!(out, "  {code}: {} → {}{message}", change.base, change.run);
    }
    if let (true, Some(base), Some(run)) = (query.rows_differ(), query.base, query.run) {
        let rows = |side: Measures| side.rows_mean.unwrap_or(0.0);
        let _ = writeln!(out, "  rows per execution: {:.2} → {:.2}", rows(base), rows(run));
    }
    if query.types_deduced {
        let _ = writeln!(out, "  parameter types deduced from values");
    }
    if let Some(plan_change) = &query.plan_change {
        let _ = writeln!(out, "  because {}", text::one_line(plan_change, usize::MAX));
    }
}

fn verdict_label(verdict: QueryVerdict) -> String {
    match verdict.part() {
        Some(ChangedPart::Tail) => format!("{verdict} tail"),
        _ => verdict.to_string(),
    }
}

/// Formats the change of a query: `14.2× (13.1–15.0)  +3.90 s`.
fn amount(query: &QueryComparison) -> Option<String> {
    let interval = match query.verdict.part() {
        Some(ChangedPart::Tail) => query.mean_change?,
        _ => query.change?.factor,
    };
    let factor = text::factor(interval.estimate);
    let difference = text::difference(query.impact_us);
    Some(format!("{factor} ({})  {difference}", headline::range(interval)))
}

fn measures(out: &mut String, label: &str, side: &Measures) {
    let _ = write!(out, "  {label:<5}{:>9} {:>7}", side.calls, side.errors);
    if side.timed > 0 {
        let times =
            [side.p50_us, side.p90_us, side.p95_us, side.p99_us, side.max_us, side.total_us];
        let _ = write!(out, "{:>9}", text::duration(side.mean_us));
        for time in times {
            let _ = write!(out, "{:>9}", text::duration(time as f64));
        }
    }
    out.push('\n');
}

/// Writes measures for narrow terminals: each number with its name, as many per line as fit.
fn narrow_measures(out: &mut String, label: &str, side: &Measures, width: usize) {
    const INDENT: usize = 7;
    let mut fields = vec![format!("calls {}", side.calls), format!("errors {}", side.errors)];
    if side.timed > 0 {
        let times = [
            ("mean", side.mean_us),
            ("p50", side.p50_us as f64),
            ("p90", side.p90_us as f64),
            ("p95", side.p95_us as f64),
            ("p99", side.p99_us as f64),
            ("max", side.max_us as f64),
            ("total", side.total_us as f64),
        ];
        fields.extend(times.map(|(name, micros)| format!("{name} {}", text::duration(micros))));
    }
    let mut line = format!("  {label:<5}");
    for field in fields {
        if line.chars().count() > INDENT && line.chars().count() + field.chars().count() > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(INDENT);
        }
        line.push_str(&field);
        line.push_str("  ");
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

fn color_of(verdict: QueryVerdict) -> Option<&'static str> {
    match verdict {
        QueryVerdict::Slower(_) => Some(RED),
        QueryVerdict::Faster(_) => Some(GREEN),
        QueryVerdict::OnlyInBase | QueryVerdict::OnlyInRun => Some(YELLOW),
        _ => None,
    }
}

fn color_of_overall(comparison: &Comparison) -> Option<&'static str> {
    let slower = comparison.slower().next().map(|query| query.verdict);
    slower.or_else(|| comparison.faster().next().map(|query| query.verdict)).and_then(color_of)
}

/// Colours the part of a headline before the first colon.
fn colored_headline(line: &str, style: &TableStyle) -> String {
    let Some((field, rest)) = line.split_once(':') else { return line.to_owned() };
    let color = match field {
        "slower" | "errors" => RED,
        "faster" | "no more errors" => GREEN,
        "note" => YELLOW,
        _ => RED,
    };
    format!("{}:{rest}", paint(field, Some(color), style))
}

fn paint(text: &str, color: Option<&str>, style: &TableStyle) -> String {
    match color {
        Some(color) if style.is_colored => format!("\x1b[{color}m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
