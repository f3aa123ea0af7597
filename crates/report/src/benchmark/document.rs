//! Results for programs: a versioned JSON document, and the steps as CSV.

use std::{fmt::Write as _, time::Duration};

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkRun, MethodComparison, MethodMeasurement, MethodSummary, RunSpread,
    StepConditions, ThroughputStep, WarmingCost, WarmingSummary, WarmingVerdict,
};
use serde::Serialize;

/// Version of [`BenchmarkDocument`], in its `version` field.
pub const VERSION: u32 = 2;

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
    processors: Option<u32>,
    memory_bytes: Option<u64>,
    scale: u32,
    seconds: f64,
    step_seconds: f64,
    zipf: Option<f64>,
    cached_pages: u64,
    page_bytes: u32,
    steady_per_second: f64,
    steady_before_per_second: f64,
    steady_p99_us: u64,
    /// `faster`, `slower`, `no difference` or `not comparable`: Howdah, compared to autoprewarm if
    /// that was measured, otherwise to no warming.
    verdict: &'static str,
    /// Reasons why no methods can be compared.
    obstacles: Vec<String>,
    comparisons: Vec<ComparisonRow>,
    methods: Vec<MethodDocument>,
    runs: Vec<RunDocument>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ComparisonRow {
    method: &'static str,
    baseline: &'static str,
    verdict: &'static str,
    /// The reason for `not comparable`.
    reason: Option<String>,
    runs: usize,
    earlier_runs: usize,
    later_runs: usize,
}

/// Minimum, median and maximum over the runs.
#[derive(Debug, Serialize)]
struct SpreadDocument<T> {
    min: T,
    median: T,
    max: T,
}

#[derive(Debug, Serialize)]
struct MethodDocument {
    method: &'static str,
    measurements: usize,
    disturbed: usize,
    counted: usize,
    /// Number of counted measurements that reached 90 %.
    reached: usize,
    to_ninety_percent_seconds: SpreadDocument<Option<f64>>,
    lost_transactions: SpreadDocument<u64>,
    p99_us: SpreadDocument<u64>,
    max_us: SpreadDocument<u64>,
    steady_per_second: Option<SpreadDocument<f64>>,
    wait_share: Option<SpreadDocument<f64>>,
    warming: Option<WarmingSummaryDocument>,
    /// Transactions per second in each step.
    rates: Vec<SpreadDocument<f64>>,
}

#[derive(Debug, Serialize)]
struct WarmingSummaryDocument {
    wall_seconds: SpreadDocument<f64>,
    finished: usize,
    server_cpu_seconds: Option<SpreadDocument<f64>>,
    own_cpu_seconds: SpreadDocument<f64>,
    read_bytes: Option<SpreadDocument<u64>>,
    resident_share: Option<SpreadDocument<f64>>,
    /// Throughput after a tenth of the pages was loaded, as a share of the steady rate.
    share_after_a_tenth: Option<SpreadDocument<f64>>,
}

#[derive(Debug, Serialize)]
struct RunDocument {
    /// Number of the run, from 1.
    run: usize,
    /// The measurements, in the order in which they were made.
    measurements: Vec<MeasurementDocument>,
}

#[derive(Debug, Serialize)]
struct MeasurementDocument {
    /// Position in the run, from 1.
    order: usize,
    method: &'static str,
    /// The reason if the measurement is disturbed.
    disturbed: Option<String>,
    wait_share: Option<f64>,
    wait_share_when_warm: Option<f64>,
    others_share: Option<f64>,
    steal_share: Option<f64>,
    load_before: Option<f64>,
    to_ninety_percent_seconds: Option<f64>,
    steady_per_second: Option<f64>,
    lost_transactions: u64,
    transactions: u64,
    p99_us: u64,
    max_us: u64,
    share_after_a_tenth: Option<f64>,
    warming: Option<WarmingDocument>,
    steps: Vec<StepDocument>,
}

#[derive(Debug, Serialize)]
struct StepDocument {
    transactions: u64,
    p99_us: u64,
    client_wait_us: Option<u64>,
    backend_wait_us: Option<u64>,
    backend_faults: Option<u64>,
    cpu_pressure_us: Option<u64>,
    io_pressure_us: Option<u64>,
    steal_us: Option<u64>,
    load: Option<f64>,
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
    let verdict = results.verdict();
    let runs = results.runs.iter().zip(1..);
    BenchmarkDocument {
        format: "howdah-warm-benchmark",
        version: VERSION,
        server: results.server.clone(),
        processors: results.host.processors,
        memory_bytes: results.host.memory_bytes,
        scale: results.scale,
        seconds: results.duration.as_secs_f64(),
        step_seconds: results.step.as_secs_f64(),
        zipf: results.skew,
        cached_pages: results.pages.0,
        page_bytes: results.pages.1,
        steady_per_second: results.steady,
        steady_before_per_second: results.steady_before,
        steady_p99_us: results.steady_p99_us,
        verdict: verdict.overall().name(),
        obstacles: verdict.obstacles.iter().map(ToString::to_string).collect(),
        comparisons: verdict.comparisons.iter().map(ComparisonRow::new).collect(),
        methods: results.method_summaries().into_iter().map(MethodDocument::new).collect(),
        runs: runs.map(|(run, number)| RunDocument::new(number, run, results)).collect(),
        notes: results.notes.clone(),
    }
}

impl ComparisonRow {
    fn new(comparison: &MethodComparison) -> Self {
        let reason = match comparison.verdict {
            WarmingVerdict::NotComparable(reason) => Some(reason.to_string()),
            _ => None,
        };
        Self {
            method: comparison.method.name(),
            baseline: comparison.baseline.name(),
            verdict: comparison.verdict.name(),
            reason,
            runs: comparison.runs,
            earlier_runs: comparison.earlier,
            later_runs: comparison.later,
        }
    }
}

impl<T: Copy> From<RunSpread<T>> for SpreadDocument<T> {
    fn from(spread: RunSpread<T>) -> Self {
        Self { min: spread.min, median: spread.median, max: spread.max }
    }
}

fn in_seconds(spread: RunSpread<Duration>) -> SpreadDocument<f64> {
    spread.map(|time| time.as_secs_f64()).into()
}

impl MethodDocument {
    fn new(summary: MethodSummary) -> Self {
        let to_90 = summary.time_to_90.map(|time| time.map(|time| time.as_secs_f64()));
        Self {
            method: summary.method.name(),
            measurements: summary.measured,
            disturbed: summary.disturbed,
            counted: summary.counted,
            reached: summary.reached,
            to_ninety_percent_seconds: to_90.into(),
            lost_transactions: summary.lost.into(),
            p99_us: summary.p99_us.into(),
            max_us: summary.max_us.into(),
            steady_per_second: summary.steady.map(Into::into),
            wait_share: summary.wait_share.map(Into::into),
            warming: summary.warming.as_ref().map(WarmingSummaryDocument::new),
            rates: summary.rates.into_iter().map(Into::into).collect(),
        }
    }
}

impl WarmingSummaryDocument {
    fn new(warming: &WarmingSummary) -> Self {
        Self {
            wall_seconds: in_seconds(warming.wall),
            finished: warming.finished,
            server_cpu_seconds: warming.server_cpu.map(in_seconds),
            own_cpu_seconds: in_seconds(warming.own_cpu),
            read_bytes: warming.read_bytes.map(Into::into),
            resident_share: warming.resident_share.map(Into::into),
            share_after_a_tenth: warming.share_after_a_tenth.map(Into::into),
        }
    }
}

impl RunDocument {
    fn new(number: usize, run: &BenchmarkRun, results: &BenchmarkResults) -> Self {
        let measurements = run.measurements.iter().zip(1..);
        Self {
            run: number,
            measurements: measurements
                .map(|(measurement, order)| MeasurementDocument::new(order, measurement, results))
                .collect(),
        }
    }
}

impl MeasurementDocument {
    fn new(order: usize, measurement: &MethodMeasurement, results: &BenchmarkResults) -> Self {
        let interference = &measurement.interference;
        let to_90 = measurement.summary.time_to_90;
        Self {
            order,
            method: measurement.method.name(),
            disturbed: interference.disturbance().map(|disturbance| disturbance.to_string()),
            wait_share: interference.wait_share,
            wait_share_when_warm: interference.wait_share_when_warm,
            others_share: interference.others_share,
            steal_share: interference.steal_share,
            load_before: interference.load_before,
            to_ninety_percent_seconds: to_90.map(|time| time.as_secs_f64()),
            steady_per_second: measurement.steady,
            lost_transactions: measurement.summary.lost,
            transactions: measurement.summary.transactions,
            p99_us: measurement.p99_us,
            max_us: measurement.max_us,
            share_after_a_tenth: measurement.share_after_a_tenth(results.steady, results.step),
            warming: measurement.warming.as_ref().map(WarmingDocument::new),
            steps: measurement.steps.iter().map(StepDocument::new).collect(),
        }
    }
}

impl StepDocument {
    fn new(step: &ThroughputStep) -> Self {
        let micros = |time: Option<Duration>| {
            time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        let conditions = &step.conditions;
        Self {
            transactions: step.transactions,
            p99_us: step.p99_us,
            client_wait_us: micros(conditions.client_wait),
            backend_wait_us: micros(conditions.backend_wait),
            backend_faults: conditions.backend_faults,
            cpu_pressure_us: micros(conditions.cpu_pressure),
            io_pressure_us: micros(conditions.io_pressure),
            steal_us: micros(conditions.steal),
            load: conditions.load,
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

/// Returns CSV with a header and one line per step of each measurement: the run and the position in
/// it, both from 1, the method, the end of the step in seconds, reads per second, p99 in
/// microseconds, and the conditions on the host. Waits and pressure are shares of the step; steal
/// is in seconds, summed over the processors. Unknown values are empty.
pub fn steps_csv(results: &BenchmarkResults) -> String {
    let step_seconds = results.step.as_secs_f64();
    let mut text = String::from(
        "run,order,method,seconds,transactions_per_second,p99_us,client_wait_share,\
         backend_wait_share,backend_faults,cpu_pressure_share,io_pressure_share,steal_seconds,load\n",
    );
    for (run, number) in results.runs.iter().zip(1_u32..) {
        for (measurement, order) in run.measurements.iter().zip(1_u32..) {
            for (step, end) in measurement.steps.iter().zip(1_u32..) {
                let seconds = step_seconds * f64::from(end);
                let rate = step.transactions as f64 / step_seconds;
                let method = measurement.method.name();
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "{number},{order},{method},{seconds:.3},{rate:.1},{},{}",
                    step.p99_us,
                    conditions_csv(&step.conditions, step_seconds)
                );
            }
        }
    }
    text
}

fn conditions_csv(conditions: &StepConditions, step_seconds: f64) -> String {
    let share = |time: Option<Duration>| {
        time.map_or_else(String::new, |time| format!("{:.3}", time.as_secs_f64() / step_seconds))
    };
    let faults = conditions.backend_faults.map_or_else(String::new, |count| count.to_string());
    let steal = conditions.steal.map(|time| format!("{:.2}", time.as_secs_f64()));
    let load = conditions.load.map(|load| format!("{load:.2}"));
    [
        share(conditions.client_wait),
        share(conditions.backend_wait),
        faults,
        share(conditions.cpu_pressure),
        share(conditions.io_pressure),
        steal.unwrap_or_default(),
        load.unwrap_or_default(),
    ]
    .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::tests::{disturbed_results, results};

    #[test]
    fn csv_has_one_line_per_step_of_each_measurement() {
        let csv = steps_csv(&results());
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 3 * 3 * 16);
        assert_eq!(lines[1], "1,1,no warming,0.500,96.0,952,0.020,,250,,,,");
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns));
        assert!(lines.last().unwrap().starts_with("3,3,autoprewarm,8.000,"), "{csv}");
    }

    #[test]
    fn document_contains_all_results() {
        let document = serde_json::to_value(document(&results())).unwrap();
        assert_eq!(
            (&document["format"], &document["version"]),
            (&"howdah-warm-benchmark".into(), &2.into())
        );
        assert_eq!(document["verdict"], "faster");
        assert_eq!(document["comparisons"][0]["baseline"], "autoprewarm");
        assert_eq!(document["comparisons"][0]["earlier_runs"], 3);
        let methods = document["methods"].as_array().unwrap();
        assert!(methods[0]["to_ninety_percent_seconds"]["median"].is_null());
        assert_eq!(methods[2]["to_ninety_percent_seconds"]["median"], 0.5);
        assert_eq!(methods[2]["rates"].as_array().unwrap().len(), 16);
        let second = &document["runs"][1]["measurements"];
        assert_eq!((&second[0]["order"], &second[0]["method"]), (&1.into(), &"autoprewarm".into()));
        assert_eq!(second[1]["warming"]["resident_share"], 0.998);
        assert_eq!(second[1]["steps"][0]["client_wait_us"], 10_000);
    }

    #[test]
    fn document_of_disturbed_runs_has_no_verdict() {
        let document = serde_json::to_value(document(&disturbed_results())).unwrap();
        assert_eq!(document["verdict"], "not comparable");
        let obstacle = document["obstacles"][0].as_str().unwrap();
        assert!(obstacle.starts_with("3 of 9 measurements were disturbed"), "{obstacle}");
        for comparison in document["comparisons"].as_array().unwrap() {
            assert_eq!(comparison["verdict"], "not comparable");
        }
        let disturbed = &document["runs"][0]["measurements"][2]["disturbed"];
        assert_eq!(disturbed, "the client waited for a processor 37 % of the time");
        assert_eq!(document["methods"][2]["counted"], 1);
    }
}
