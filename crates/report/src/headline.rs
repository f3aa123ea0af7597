//! Headlines of a comparison: which queries got slower or faster, and which fail.

use howdah_compare::{
    Caveat, Change, ChangedPart, Comparison, ErrorChange, Interval, Measures, Overall,
    QueryComparison, QueryVerdict,
};

use crate::text;

/// Maximum number of characters of a query in a headline.
const QUERY_WIDTH: usize = 100;

/// Maximum number of characters of an error message in a headline.
const MESSAGE_WIDTH: usize = 80;

/// Returns the verdict in one line, such as `no change in 12 queries; 2 not executed often enough
/// to say`.
pub fn verdict_line(comparison: &Comparison) -> String {
    let count = |test: fn(&QueryComparison) -> bool| {
        comparison.queries.iter().filter(|query| test(query)).count() as u64
    };
    let judged = count(|query| query.change.is_some());
    let slower = count(|query| query.verdict.is_slower());
    let faster = count(|query| query.verdict.is_faster());
    let undecided = count(|query| query.verdict == QueryVerdict::Undecided);
    let of_judged = format!("of {}", count_queries(judged));
    let mut line = match comparison.verdict {
        Overall::NoChange => format!("no change in {}", count_queries(judged - undecided)),
        Overall::Slower => format!("{slower} {of_judged} slower"),
        Overall::Faster => format!("{faster} {of_judged} faster"),
        Overall::Mixed => format!("{slower} {of_judged} slower, {faster} faster"),
        Overall::NotComparable => {
            format!(
                "not comparable: {undecided} {of_judged} may have changed, the runs differ too much to say"
            )
        }
        _ => "too few executions to say".to_owned(),
    };
    let others = comparison.queries.len() as u64 - judged;
    if undecided > 0 && comparison.verdict != Overall::NotComparable {
        line.push_str(&format!("; {undecided} undecided"));
        if let (Overall::NoChange, Some(share)) = (comparison.verdict, comparison.undecided_share) {
            line.push_str(&format!(", which added at most {:.1} % of the time", share * 100.0));
        }
    }
    if judged > 0 && others > 0 {
        line.push_str(&format!("; {others} not executed often enough to say"));
    }
    line
}

fn count_queries(count: u64) -> String {
    format!("{count} {}", if count == 1 { "query" } else { "queries" })
}

/// Returns one line for each query that got slower, the worst first; then for each that got faster,
/// the best first; then for new and vanished errors; then for caveats.
///
/// ```text
/// slower: select … where customer = ? 14.2× (p50 0.20 ms → 2.91 ms, 95 % CI 13.1–15.0), because
/// Index Scan using orders_customer_idx on orders became Seq Scan on orders
/// ```
pub fn headlines(comparison: &Comparison) -> Vec<String> {
    let confidence = comparison.settings.confidence;
    let mut faster: Vec<_> = comparison.faster().collect();
    faster.reverse();
    let changed = comparison.slower().chain(faster);
    let mut lines: Vec<String> =
        changed.filter_map(|query| change_line(query, confidence)).collect();
    let errors = comparison
        .queries
        .iter()
        .flat_map(|query| query.errors.iter().filter_map(move |change| error_line(query, change)));
    lines.extend(errors);
    let caveats = comparison.caveats.iter();
    lines.extend(caveats.map(|caveat| format!("note: {}", caveat_text(caveat, comparison))));
    lines
}

fn change_line(query: &QueryComparison, confidence: f64) -> Option<String> {
    let (base, run) = (query.base?, query.run?);
    let amount = match query.verdict.part()? {
        ChangedPart::Typical => typical(query.change?, &base, &run, confidence),
        ChangedPart::Tail => tail(query.mean_change?, &base, &run),
    };
    let because = query.plan_change.as_ref().map(|because| format!(", because {because}"));
    Some(format!(
        "{}: {} {amount}{}",
        query.verdict,
        query_text(query, QUERY_WIDTH),
        text::one_line(&because.unwrap_or_default(), usize::MAX),
    ))
}

fn typical(change: Change, base: &Measures, run: &Measures, confidence: f64) -> String {
    format!(
        "{} (p50 {}, {} % CI {})",
        text::factor(change.factor.estimate),
        text::durations(base.p50_us as f64, run.p50_us as f64),
        (confidence * 100.0).round(),
        range(change.factor),
    )
}

/// Describes a change of the mean, at the confidence level of [`QueryComparison::mean_change`].
fn tail(mean: Interval, base: &Measures, run: &Measures) -> String {
    format!(
        "{} in the mean, by its slow executions (mean {}, p99 {}, 99 % CI {})",
        text::factor(mean.estimate),
        text::durations(base.mean_us, run.mean_us),
        text::durations(base.p99_us as f64, run.p99_us as f64),
        range(mean),
    )
}

pub(crate) fn range(interval: Interval) -> String {
    format!("{}–{}", text::factor_digits(interval.low), text::factor_digits(interval.high))
}

/// Describes new and vanished errors; changed numbers of errors appear only in the table.
fn error_line(query: &QueryComparison, change: &ErrorChange) -> Option<String> {
    let (what, count) = match change {
        change if change.is_new() => ("errors", change.run),
        change if change.is_gone() => ("no more errors", change.base),
        _ => return None,
    };
    Some(format!(
        "{what}: {} {count} × {}{}",
        query_text(query, QUERY_WIDTH),
        sqlstate(change),
        message(change, MESSAGE_WIDTH),
    ))
}

/// Formats an error message: ` (duplicate key value …)`; empty if the message was removed because
/// it may contain values.
pub(crate) fn message(change: &ErrorChange, width: usize) -> String {
    match text::one_line(&change.message, width) {
        message if message.is_empty() => message,
        message => format!(" ({message})"),
    }
}

pub(crate) fn sqlstate(change: &ErrorChange) -> String {
    change.sqlstate.map_or_else(|| "no SQLSTATE".to_owned(), |code| code.to_string())
}

/// Returns the query in one line of at most `width` characters, or its fingerprint if its text is
/// not known.
pub fn query_text(query: &QueryComparison, width: usize) -> String {
    match query.text.query.as_str() {
        "" => format!("query {}", query.fingerprint),
        known => text::one_line(known, width),
    }
}

pub(crate) fn caveat_text(caveat: &Caveat, comparison: &Comparison) -> String {
    match caveat {
        Caveat::DifferentCaptures => "the runs replayed different captures".to_owned(),
        Caveat::DifferentRates => "the runs were replayed at different paces".to_owned(),
        Caveat::Incomplete { name, missing_workers } if !missing_workers.is_empty() => {
            let numbers: Vec<_> = missing_workers.iter().map(u32::to_string).collect();
            let workers = if numbers.len() == 1 { "worker" } else { "workers" };
            format!("{name} is incomplete: it lacks the part of {workers} {}", numbers.join(", "))
        }
        Caveat::Incomplete { name, .. } => format!("{name} is incomplete: its replay ended early"),
        Caveat::EverythingMoved => {
            let moved = "most queries changed by about the same factor, which may be the machine";
            match &comparison.control {
                // A control run ran at another time like any other run, so it proves nothing.
                Some(control) => format!(
                    "{moved}: the control run differs from the base by {} but shows only what the \
                     machine did while it ran; replay base and run again in turns",
                    text::factor(control.noise)
                ),
                None => format!(
                    "{moved}: replay base and run again in turns, and pass one more run of the base \
                     as --control"
                ),
            }
        }
        Caveat::MachineChanged => {
            let factor = text::factor(comparison.machine.unwrap_or(1.0));
            format!(
                "the machine was not the same: a statement that reads no table took {factor} the \
                 time; replay both sides again in turns, on a machine that does nothing else"
            )
        }
        Caveat::RunsVary { queries } => {
            let queries = count_queries(*queries as u64);
            match (comparison.base_runs.len(), comparison.run_runs.len()) {
                (1, 1) => format!(
                    "{queries} undecided: the difference may be the machine's; replay each side \
                     three times, in turns, and pass all runs"
                ),
                (base, run) => format!(
                    "{queries} undecided: the {base} base runs and {run} changed runs differ too much \
                     among themselves; more runs on each side, or an idle machine, would decide"
                ),
            }
        }
        Caveat::TypesDeduced { queries } => {
            let queries = count_queries(*queries as u64);
            format!(
                "parameter types of {queries} were deduced from values, since logs do not contain them"
            )
        }
        _ => "the runs are hard to compare".to_owned(),
    }
}
