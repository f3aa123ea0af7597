//! The rows of a table of methods: each figure as a median with its range.

use std::time::Duration;

use howdah_warm::benchmark::{BenchmarkResults, MethodSummary, RunSpread, WarmingSummary};

use super::seconds;
use crate::text;

/// One figure of all methods.
pub(super) struct FigureRow {
    pub(super) label: &'static str,
    /// One cell per method.
    pub(super) cells: Vec<FigureCell>,
}

/// A figure of one method, over all runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FigureCell {
    /// The figure of the run in the middle.
    pub(super) median: String,
    /// Smallest and largest value, unless both are printed as the median.
    pub(super) range: Option<String>,
}

impl FigureCell {
    fn new<T: Copy>(spread: RunSpread<T>, print: impl Fn(T) -> String) -> Self {
        let RunSpread { min, median, max } = spread.map(print);
        let range = (min != max).then(|| format!("{min} – {max}"));
        Self { median, range }
    }

    fn text(text: impl Into<String>) -> Self {
        Self { median: text.into(), range: None }
    }
}

/// Returns the rows of a table with one column per summary. Rows without any figure are left out.
pub(super) fn figure_rows(results: &BenchmarkResults, methods: &[MethodSummary]) -> Vec<FigureRow> {
    let mut rows = Vec::new();
    let mut add = |label, cell: &dyn Fn(&MethodSummary) -> Option<FigureCell>| {
        let cells: Vec<_> = methods.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let or_dash = |cell: Option<FigureCell>| cell.unwrap_or_else(|| FigureCell::text("–"));
            rows.push(FigureRow { label, cells: cells.into_iter().map(or_dash).collect() });
        }
    };
    let warming = |it: &MethodSummary, cell: &dyn Fn(&WarmingSummary) -> Option<FigureCell>| {
        it.warming.as_ref().and_then(cell)
    };
    add("to 90 % of steady", &|it| Some(FigureCell::new(it.time_to_90, time_to_90)));
    add("reads lost until then", &|it| Some(FigureCell::new(it.lost, |lost| lost.to_string())));
    add("p99", &|it| Some(FigureCell::new(it.p99_us, micros)));
    add("longest read", &|it| Some(FigureCell::new(it.max_us, micros)));
    add("warming took", &|it| {
        warming(it, &|cost| Some(warming_time(cost, it.counted, results.duration)))
    });
    add("server CPU", &|it| warming(it, &|cost| Some(FigureCell::new(cost.server_cpu?, seconds))));
    add("own CPU", &|it| warming(it, &|cost| Some(FigureCell::new(cost.own_cpu, seconds))));
    add("read from disk", &|it| {
        warming(it, &|cost| Some(FigureCell::new(cost.read_bytes?, text::bytes)))
    });
    add("resident at the end", &|it| {
        warming(it, &|cost| Some(FigureCell::new(cost.resident_share?, percent_exact)))
    });
    add("of steady after a tenth", &|it| {
        warming(it, &|cost| Some(FigureCell::new(cost.share_after_a_tenth?, percent)))
    });
    add("steady reads per second", &|it| {
        Some(FigureCell::new(it.steady?, |rate| format!("{rate:.0}")))
    });
    add("wait for a processor", &|it| Some(FigureCell::new(it.wait_share?, percent)));
    add("measured", &|it| {
        Some(FigureCell::text(match it.disturbed {
            0 => it.measured.to_string(),
            disturbed => format!("{}, {disturbed} disturbed", it.measured),
        }))
    });
    rows
}

fn time_to_90(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), seconds)
}

/// Formats the time of warming, which is a lower bound in measurements that it did not finish in.
fn warming_time(cost: &WarmingSummary, counted: usize, duration: Duration) -> FigureCell {
    if cost.finished == counted {
        FigureCell::new(cost.wall, seconds)
    } else if cost.finished == 0 {
        FigureCell::text(format!("over {}", seconds(duration)))
    } else {
        let unfinished = counted - cost.finished;
        let range = format!("over {} in {unfinished} of {counted}", seconds(duration));
        FigureCell { median: seconds(cost.wall.median), range: Some(range) }
    }
}

fn micros(us: u64) -> String {
    seconds(Duration::from_micros(us))
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn percent_exact(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
