//! The results of a benchmark: the measurements of each run, and the steady rate to which they are
//! compared.

use std::time::Duration;

use crate::benchmark::{
    data,
    host::HostInfo,
    interference::Interference,
    read_client::ThroughputStep,
    spread::RunSpread,
    summary::{ThroughputSummary, steady_rate},
};

/// A method of warming the cache after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmMethod {
    /// Only the client's reads fill the cache.
    NoWarming,
    /// Contrib's autoprewarm loads its file after the restart.
    Autoprewarm,
    /// Howdah loads an image after the restart.
    Howdah,
}

impl WarmMethod {
    /// All methods, in the order of the first run.
    pub const ALL: [Self; 3] = [Self::NoWarming, Self::Autoprewarm, Self::Howdah];

    /// Returns the method's name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoWarming => "no warming",
            Self::Autoprewarm => "autoprewarm",
            Self::Howdah => "howdah",
        }
    }
}

/// The results of a benchmark: throughput with and without warming, and the settings of the
/// measurement.
#[derive(Clone, Debug)]
pub struct BenchmarkResults {
    /// The setting `server_version`.
    pub server: String,
    /// The host on which the benchmark ran.
    pub host: HostInfo,
    /// Copied from [`super::Benchmark`].
    pub scale: u32,
    /// Copied from [`super::Benchmark`].
    pub step: Duration,
    /// Copied from [`super::Benchmark`].
    pub duration: Duration,
    /// Copied from [`super::Benchmark`].
    pub skew: Option<f64>,
    /// Number of pages in the warm cache, and bytes per page.
    pub pages: (u64, u32),
    /// Reads per second with a warm cache before the restarts.
    pub steady_before: f64,
    /// 99th percentile of the latency before the restarts, in microseconds.
    pub steady_p99_us: u64,
    /// Reads per second with a warm cache: the median of the steady rates of all measurements and
    /// of the rate before the restarts. Set by [`Self::summarize`].
    pub steady: f64,
    /// The runs, in order. Each has one measurement per method that was not skipped.
    pub runs: Vec<BenchmarkRun>,
    /// Reasons for skipped methods, and what was done to the operating system's cache.
    pub notes: Vec<String>,
}

/// One run: each method was measured once.
#[derive(Clone, Debug, Default)]
pub struct BenchmarkRun {
    /// The measurements, in the order in which they were made.
    pub measurements: Vec<MethodMeasurement>,
}

/// One measurement of one method: throughput, latency and cost.
#[derive(Clone, Debug)]
pub struct MethodMeasurement {
    /// The method by which the cache was warmed.
    pub method: WarmMethod,
    /// The client's throughput in each step; the first step begins once the client is connected.
    pub steps: Vec<ThroughputStep>,
    /// 99th percentile of the latency over the whole measurement, in microseconds.
    pub p99_us: u64,
    /// Maximum latency, in microseconds.
    pub max_us: u64,
    /// The cost of warming; `None` without warming.
    pub warming: Option<WarmingCost>,
    /// Other work of the host meanwhile, and the waits that it may have caused.
    pub interference: Interference,
    /// Reads per second once the cache was warm: the median over the second half of the steps;
    /// `None` without warming, or if warming did not finish early enough. Set by
    /// [`BenchmarkResults::summarize`].
    pub steady: Option<f64>,
    /// When throughput recovered in `steps`, and the reads lost by then. Set by
    /// [`BenchmarkResults::summarize`].
    pub summary: ThroughputSummary,
}

/// Time and resources that were used for warming.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmingCost {
    /// Time from the start of the measurement until warming finished or was stopped.
    pub wall: Duration,
    /// Whether warming finished during the measurement.
    pub is_done: bool,
    /// CPU time of the server's processes, without the backends of the client and of the session
    /// that observes autoprewarm; `None` if the processes are not accessible.
    pub server_cpu: Option<Duration>,
    /// CPU time of the benchmark's own threads except the client's.
    pub own_cpu: Duration,
    /// Bytes read from disk by the same processes as in `server_cpu`. Processes whose
    /// `/proc/PID/io` cannot be read count as 0.
    pub read_bytes: Option<u64>,
    /// Share of the image that is resident at the end, 0 to 1, if it was measured.
    pub resident_share: Option<f64>,
    /// Time from the start of the measurement until a tenth of the planned pages was loaded or
    /// skipped; `None` for autoprewarm, or if that was not reached.
    pub tenth_at: Option<Duration>,
}

/// Largest difference between steady rates, as a share of their median, at which measurements are
/// comparable. A measurement whose own steady rate differs less from the median is compared to its
/// own rate, so that a host that became slower does not look like a cold cache.
pub const STEADY_MARGIN: f64 = 0.15;

impl BenchmarkResults {
    /// Returns the number of rows in the table that the client read.
    pub fn row_count(&self) -> u64 {
        u64::from(self.scale) * data::ROWS_PER_SCALE
    }

    /// Returns the methods that were measured, in the order of [`WarmMethod::ALL`].
    pub fn methods(&self) -> Vec<WarmMethod> {
        let is_measured = |method: &WarmMethod| self.measurements(*method).next().is_some();
        WarmMethod::ALL.into_iter().filter(is_measured).collect()
    }

    /// Returns the measurements of a method, one per run.
    pub fn measurements(&self, method: WarmMethod) -> impl Iterator<Item = &MethodMeasurement> {
        self.all_measurements().filter(move |measurement| measurement.method == method)
    }

    /// Returns all measurements, in the order in which they were made.
    pub fn all_measurements(&self) -> impl Iterator<Item = &MethodMeasurement> {
        self.runs.iter().flat_map(|run| &run.measurements)
    }

    /// Computes the steady rates, and the summaries of all measurements.
    pub fn summarize(&mut self) {
        let step = self.step;
        for measurement in self.runs.iter_mut().flat_map(|run| &mut run.measurements) {
            let warming = measurement.warming.filter(|warming| warming.is_done);
            measurement.steady =
                warming.and_then(|warming| steady_rate(&measurement.steps, step, warming.wall));
        }
        // Disturbed measurements count only if there are no others.
        let rates = |is_wanted: fn(&MethodMeasurement) -> bool| {
            let wanted = self.all_measurements().filter(|it| is_wanted(it));
            wanted.filter_map(|measurement| measurement.steady).collect::<Vec<_>>()
        };
        let mut steady = rates(|measurement| measurement.interference.disturbance().is_none());
        if steady.is_empty() {
            steady = rates(|_| true);
        }
        steady.push(self.steady_before);
        let median = RunSpread::new(steady, f64::total_cmp).map_or(0.0, |spread| spread.median);
        self.steady = median;
        for measurement in self.runs.iter_mut().flat_map(|run| &mut run.measurements) {
            let is_near = |rate: &f64| (rate - median).abs() <= STEADY_MARGIN * median;
            let rate = measurement.steady.filter(is_near).unwrap_or(median);
            measurement.summary = ThroughputSummary::from_steps(&measurement.steps, step, rate);
        }
    }
}

impl MethodMeasurement {
    /// Returns the rate in the first whole step after `tenth_at`, as a share of `steady`; `None` if
    /// that time is unknown or the steps end before.
    pub fn share_after_a_tenth(&self, steady: f64, step: Duration) -> Option<f64> {
        let at = self.warming?.tenth_at?;
        let step_seconds = step.as_secs_f64();
        let after = self.steps.get((at.as_secs_f64() / step_seconds) as usize + 1)?;
        Some(after.transactions as f64 / step_seconds / steady)
    }
}
