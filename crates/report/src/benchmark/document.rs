//! Results for programs: a versioned JSON document, and the steps as CSV.

use std::fmt::Write as _;

use howdah_warm::benchmark::{BenchmarkResults, BenchmarkRun, WarmingCost};
use serde::Serialize;

/// Version of [`BenchmarkDocument`], in its `version` field.
pub const VERSION: u32 = 1;

/// The results as a JSON document. Times are in seconds unless the field's name says otherwise;
/// unknown values are `null`.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct BenchmarkDocument {
    /// Always `howdah-warm-benchmark`.
    pub format: &'static str,
    /// See [`VERSION`].
    pub version: u32,
    server: String,
    scale: u32,
    seconds: f64,
    step_seconds: f64,
    zipf: Option<f64>,
    cached_pages: u64,
    page_bytes: u32,
    steady_per_second: f64,
    steady_p99_us: u64,
    runs: Vec<RunDocument>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RunDocument {
    method: &'static str,
    to_ninety_percent_seconds: Option<f64>,
    lost_transactions: u64,
    transactions: u64,
    p99_us: u64,
    max_us: u64,
    /// Throughput after a tenth of the pages was loaded, as a share of the steady rate.
    share_after_a_tenth: Option<f64>,
    warming: Option<WarmingDocument>,
    steps: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct WarmingDocument {
    wall_seconds: f64,
    done: bool,
    server_cpu_seconds: Option<f64>,
    own_cpu_seconds: f64,
    read_bytes: Option<u64>,
    resident_share: Option<f64>,
    tenth_at_seconds: Option<f64>,
}

/// Converts the results of a benchmark to a document.
pub fn document(results: &BenchmarkResults) -> BenchmarkDocument {
    BenchmarkDocument {
        format: "howdah-warm-benchmark",
        version: VERSION,
        server: results.server.clone(),
        scale: results.scale,
        seconds: results.duration.as_secs_f64(),
        step_seconds: results.step.as_secs_f64(),
        zipf: results.skew,
        cached_pages: results.pages.0,
        page_bytes: results.pages.1,
        steady_per_second: results.steady,
        steady_p99_us: results.steady_p99_us,
        runs: results.runs.iter().map(|run| RunDocument::new(run, results)).collect(),
        notes: results.notes.clone(),
    }
}

impl RunDocument {
    fn new(run: &BenchmarkRun, results: &BenchmarkResults) -> Self {
        Self {
            method: run.method.name(),
            to_ninety_percent_seconds: run.summary.time_to_90.map(|time| time.as_secs_f64()),
            lost_transactions: run.summary.lost,
            transactions: run.summary.transactions,
            p99_us: run.p99_us,
            max_us: run.max_us,
            share_after_a_tenth: run.share_after_a_tenth(results.steady, results.step),
            warming: run.warming.as_ref().map(WarmingDocument::new),
            steps: run.steps.iter().map(|step| step.transactions).collect(),
        }
    }
}

impl WarmingDocument {
    fn new(warming: &WarmingCost) -> Self {
        Self {
            wall_seconds: warming.wall.as_secs_f64(),
            done: warming.is_done,
            server_cpu_seconds: warming.server_cpu.map(|time| time.as_secs_f64()),
            own_cpu_seconds: warming.own_cpu.as_secs_f64(),
            read_bytes: warming.read_bytes,
            resident_share: warming.resident_share,
            tenth_at_seconds: warming.tenth_at.map(|time| time.as_secs_f64()),
        }
    }
}

/// Returns CSV with a header and one line per step of each method: the method, the end of the step
/// in seconds, reads per second, and p99 in microseconds.
pub fn steps_csv(results: &BenchmarkResults) -> String {
    let step_seconds = results.step.as_secs_f64();
    let mut text = String::from("method,seconds,transactions_per_second,p99_us\n");
    for run in &results.runs {
        for (step, number) in run.steps.iter().zip(1_u32..) {
            let seconds = step_seconds * f64::from(number);
            let rate = step.transactions as f64 / step_seconds;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{},{seconds:.3},{rate:.1},{}", run.method.name(), step.p99_us);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::tests::results;

    #[test]
    fn csv_has_one_line_per_step() {
        let csv = steps_csv(&results());
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 3 * 8);
        assert_eq!(lines[1], "no warming,0.500,100.0,950");
        assert_eq!(lines[24], "howdah,4.000,1808.0,96");
    }

    #[test]
    fn document_contains_all_results() {
        let document = serde_json::to_value(document(&results())).unwrap();
        assert_eq!(document["format"], "howdah-warm-benchmark");
        assert_eq!(document["runs"][0]["to_ninety_percent_seconds"], serde_json::Value::Null);
        assert_eq!(document["runs"][2]["to_ninety_percent_seconds"], 0.5);
        assert_eq!(document["runs"][2]["warming"]["resident_share"], 0.998);
        // A tenth was loaded during the first step, so the second is the first with its full
        // effect.
        let share = document["runs"][2]["share_after_a_tenth"].as_f64().unwrap();
        assert!((share - 850.0 / 900.0).abs() < 1e-9);
    }
}
