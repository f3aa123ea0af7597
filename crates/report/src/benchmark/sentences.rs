//! The verdict of a benchmark, and remarks on its measurements, as sentences.

use std::time::Duration;

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkVerdict, IndecisionReason, MethodComparison, RunSpread, WarmMethod,
    WarmingVerdict,
};

use super::{rows::percent, seconds};
use crate::text;

/// Returns the main result in one sentence.
pub(super) fn headline(results: &BenchmarkResults, verdict: &BenchmarkVerdict) -> String {
    if let Some(obstacle) = verdict.obstacles.first() {
        return format!("Not comparable: {obstacle}");
    }
    let howdah = verdict.comparisons.iter().filter(|it| it.method == WarmMethod::Howdah);
    let undecided = howdah.clone().find(|it| !it.verdict.is_decided());
    match undecided.or_else(|| howdah.clone().next()) {
        Some(comparison) => comparison_sentence(results, comparison),
        None => "Not comparable: no method was measured".to_owned(),
    }
}

/// Returns the result of one comparison in a sentence.
pub(super) fn comparison_sentence(
    results: &BenchmarkResults,
    comparison: &MethodComparison,
) -> String {
    let (method, baseline) = (subject(comparison.method), object(comparison.baseline));
    let time = |method| {
        let summary = results.method_summary(method)?;
        Some(time_phrase(summary.time_to_90, results.duration))
    };
    let ours = time(comparison.method).unwrap_or_default();
    let theirs = time(comparison.baseline).unwrap_or_default();
    match comparison.verdict {
        WarmingVerdict::Faster => format!(
            "{method} warms the cache faster than {baseline}: 90 % of steady throughput {ours}, \
             instead of {theirs}"
        ),
        WarmingVerdict::Slower => format!(
            "{method} warms the cache slower than {baseline}: 90 % of steady throughput {ours}, \
             instead of {theirs}"
        ),
        WarmingVerdict::NoDifference => format!(
            "No difference between {} and {baseline}: 90 % of steady throughput {ours}, and {theirs}",
            object(comparison.method)
        ),
        WarmingVerdict::NotComparable(IndecisionReason::Obstacle) => {
            format!("Not comparable: {} and {baseline}", object(comparison.method))
        }
        WarmingVerdict::NotComparable(reason) => format!(
            "Not comparable: {} and {baseline}, 90 % of steady throughput {ours}, and {theirs}; {reason}",
            object(comparison.method)
        ),
    }
}

/// Returns in how many runs the method was earlier, if the runs disagree.
pub(super) fn disagreement(comparison: &MethodComparison) -> Option<String> {
    let MethodComparison { runs, earlier, later, .. } = *comparison;
    (earlier > 0 && later > 0).then(|| {
        format!(
            "The runs disagree: {} was earlier than {} in {earlier}, and later in {later} of {}",
            comparison.method.name(),
            comparison.baseline.name(),
            text::counted(runs as u64, "run"),
        )
    })
}

fn subject(method: WarmMethod) -> &'static str {
    match method {
        WarmMethod::NoWarming => "No warming",
        WarmMethod::Autoprewarm => "Autoprewarm",
        WarmMethod::Howdah => "Howdah",
    }
}

fn object(method: WarmMethod) -> &'static str {
    match method {
        WarmMethod::NoWarming => "the client's reads alone",
        WarmMethod::Howdah => "Howdah",
        method => method.name(),
    }
}

/// Formats a time to 90 %: `after 2.0 s (1.5 s to 2.5 s)`.
fn time_phrase(spread: RunSpread<Option<Duration>>, duration: Duration) -> String {
    let print = |time: Option<Duration>| match time {
        Some(time) => seconds(time),
        None => format!("not within {}", seconds(duration)),
    };
    let RunSpread { min, median, max } = spread.map(print);
    let median = if spread.median.is_some() { format!("after {median}") } else { median };
    if min == max { median } else { format!("{median} ({min} to {max})") }
}

/// Returns remarks that a reader needs to judge the measurements.
pub(super) fn remarks(results: &BenchmarkResults, verdict: &BenchmarkVerdict) -> Vec<String> {
    let mut remarks: Vec<_> = verdict.comparisons.iter().filter_map(disagreement).collect();
    for summary in results.method_summaries() {
        let (name, reached, counted) = (summary.method.name(), summary.reached, summary.counted);
        if reached > 0 && reached < counted {
            remarks.push(format!("{name} reached 90 % in {reached} of {counted} runs"));
        }
    }
    for (run, number) in results.runs.iter().zip(1..) {
        for measurement in &run.measurements {
            if let Some(disturbance) = measurement.interference.disturbance() {
                let name = measurement.method.name();
                remarks.push(format!("disturbed: run {number}, {name}: {disturbance}"));
            }
        }
    }
    remarks
}

/// Describes the host and its load during the benchmark.
pub(super) fn host_line(results: &BenchmarkResults) -> String {
    let mut parts = Vec::new();
    if let Some(processors) = results.host.processors {
        parts.push(text::counted(processors.into(), "processor"));
    }
    if let Some(bytes) = results.host.memory_bytes {
        parts.push(format!("{} of memory", text::bytes(bytes)));
    }
    let spread = |get: &dyn Fn(&howdah_warm::benchmark::Interference) -> Option<f64>| {
        let all = results.all_measurements().filter_map(|it| get(&it.interference));
        RunSpread::new(all, f64::total_cmp)
    };
    if let Some(RunSpread { min, max, .. }) = spread(&|it| it.load_before) {
        parts.push(format!("load average {min:.1} to {max:.1} before the restarts"));
    }
    if let Some(others) = spread(&|it| it.others_share) {
        parts.push(format!("other programs used up to {} of the processors", percent(others.max)));
    }
    if let Some(steal) = spread(&|it| it.steal_share) {
        parts.push(format!("other guests (steal) up to {}", percent(steal.max)));
    }
    if let Some(wait) = spread(&|it| it.wait_share_when_warm) {
        let percent = percent(wait.max);
        parts.push(format!(
            "the client waited for a processor up to {percent} while nothing was warmed"
        ));
    }
    if parts.is_empty() { "unknown".to_owned() } else { parts.join("; ") }
}

/// Returns the order of the methods in each run: `no warming, autoprewarm, howdah`.
pub(super) fn orders(results: &BenchmarkResults) -> Vec<String> {
    let order = |run: &howdah_warm::benchmark::BenchmarkRun| {
        let names: Vec<_> = run.measurements.iter().map(|it| it.method.name()).collect();
        names.join(", ")
    };
    results.runs.iter().map(order).collect()
}
