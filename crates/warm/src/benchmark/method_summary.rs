//! Summarizes the measurements of each method over all runs: medians with their ranges.

use std::{cmp::Ordering, time::Duration};

use crate::benchmark::{
    results::{BenchmarkResults, MethodMeasurement, WarmMethod, WarmingCost},
    spread::RunSpread,
};

/// The measurements of one method over all runs.
///
/// All spreads are those of the undisturbed measurements; of all, if every one was disturbed.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodSummary {
    /// The method by which the cache was warmed.
    pub method: WarmMethod,
    /// Number of measurements.
    pub measured: usize,
    /// Number of disturbed measurements.
    pub disturbed: usize,
    /// Number of measurements in the spreads.
    pub counted: usize,
    /// Number of counted measurements that reached 90 % of the steady rate.
    pub reached: usize,
    /// Time to 90 % of the steady rate; `None`, which counts as the largest time, if it was not
    /// reached.
    pub time_to_90: RunSpread<Option<Duration>>,
    /// Reads lost until then.
    pub lost: RunSpread<u64>,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: RunSpread<u64>,
    /// Maximum latency, in microseconds.
    pub max_us: RunSpread<u64>,
    /// Reads per second once the cache was warm, if known.
    pub steady: Option<RunSpread<f64>>,
    /// Share of the time for which the client or its backend waited for a processor, if known.
    pub wait_share: Option<RunSpread<f64>>,
    /// The cost of warming; `None` without warming.
    pub warming: Option<WarmingSummary>,
    /// Reads per second in each step.
    pub rates: Vec<RunSpread<f64>>,
}

/// The cost of warming by one method over all runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmingSummary {
    /// Time until warming finished or was stopped.
    pub wall: RunSpread<Duration>,
    /// Number of counted measurements in which warming finished.
    pub finished: usize,
    /// See [`WarmingCost::server_cpu`].
    pub server_cpu: Option<RunSpread<Duration>>,
    /// See [`WarmingCost::own_cpu`].
    pub own_cpu: RunSpread<Duration>,
    /// See [`WarmingCost::read_bytes`].
    pub read_bytes: Option<RunSpread<u64>>,
    /// See [`WarmingCost::resident_share`].
    pub resident_share: Option<RunSpread<f64>>,
    /// See [`MethodMeasurement::share_after_a_tenth`].
    pub share_after_a_tenth: Option<RunSpread<f64>>,
}

impl BenchmarkResults {
    /// Summarizes the methods that were measured, in the order of [`WarmMethod::ALL`].
    pub fn method_summaries(&self) -> Vec<MethodSummary> {
        self.methods().into_iter().filter_map(|method| self.method_summary(method)).collect()
    }

    /// Summarizes a method; `None` if it was not measured.
    pub fn method_summary(&self, method: WarmMethod) -> Option<MethodSummary> {
        let all: Vec<_> = self.measurements(method).collect();
        let is_undisturbed = |it: &&MethodMeasurement| it.interference.disturbance().is_none();
        let undisturbed: Vec<_> = all.iter().copied().filter(is_undisturbed).collect();
        let disturbed = all.len() - undisturbed.len();
        let counted = if undisturbed.is_empty() { &all } else { &undisturbed };
        let counts = |get: fn(&MethodMeasurement) -> u64| {
            RunSpread::ordered(counted.iter().map(|it| get(it)))
        };
        let shares = |get: &dyn Fn(&MethodMeasurement) -> Option<f64>| {
            RunSpread::new(counted.iter().filter_map(|it| get(it)), f64::total_cmp)
        };
        let times = counted.iter().map(|it| it.summary.time_to_90);
        Some(MethodSummary {
            method,
            measured: all.len(),
            disturbed,
            counted: counted.len(),
            reached: times.clone().flatten().count(),
            time_to_90: RunSpread::new(times, |a, b| compare_times(*a, *b))?,
            lost: counts(|it| it.summary.lost)?,
            p99_us: counts(|it| it.p99_us)?,
            max_us: counts(|it| it.max_us)?,
            steady: shares(&|it| it.steady),
            wait_share: shares(&|it| it.interference.wait_share),
            warming: self.warming_summary(counted),
            rates: self.rates(counted),
        })
    }

    fn warming_summary(&self, counted: &[&MethodMeasurement]) -> Option<WarmingSummary> {
        let costs: Vec<WarmingCost> = counted.iter().filter_map(|it| it.warming).collect();
        let shares =
            |values: Vec<Option<f64>>| RunSpread::new(values.into_iter().flatten(), f64::total_cmp);
        let tenths = counted.iter().map(|it| it.share_after_a_tenth(self.steady, self.step));
        Some(WarmingSummary {
            wall: RunSpread::ordered(costs.iter().map(|cost| cost.wall))?,
            finished: costs.iter().filter(|cost| cost.is_done).count(),
            server_cpu: RunSpread::ordered(costs.iter().filter_map(|cost| cost.server_cpu)),
            own_cpu: RunSpread::ordered(costs.iter().map(|cost| cost.own_cpu))?,
            read_bytes: RunSpread::ordered(costs.iter().filter_map(|cost| cost.read_bytes)),
            resident_share: shares(costs.iter().map(|cost| cost.resident_share).collect()),
            share_after_a_tenth: shares(tenths.collect()),
        })
    }

    fn rates(&self, counted: &[&MethodMeasurement]) -> Vec<RunSpread<f64>> {
        let step_seconds = self.step.as_secs_f64();
        let count = counted.iter().map(|it| it.steps.len()).max().unwrap_or(0);
        let rates_at = |at: usize| {
            let steps = counted.iter().filter_map(move |it| it.steps.get(at));
            steps.map(|step| step.transactions as f64 / step_seconds)
        };
        (0..count).filter_map(|at| RunSpread::new(rates_at(at), f64::total_cmp)).collect()
    }
}

/// Compares times to 90 %; a time that was not reached is the largest.
pub(crate) fn compare_times(a: Option<Duration>, b: Option<Duration>) -> Ordering {
    a.is_none().cmp(&b.is_none()).then(a.cmp(&b))
}
