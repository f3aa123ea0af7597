//! [`Comparison`]: the result of comparing the runs of two setups.

use howdah_sql::Fingerprint;
use howdah_traffic::SqlState;

use crate::{
    CompareSettings, LatencyBins, Overall, QueryText, QueryVerdict, RunInfo, samples::Query,
};

/// The result of comparing the runs of one setup with those of another, query by query.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// The settings that define a change.
    pub settings: CompareSettings,
    /// The totals of all runs of the base's setup, without the control.
    pub base: Side,
    /// The totals of all assessed runs.
    pub run: Side,
    /// The second run of the base's setup that measured the noise, if there was one.
    pub control: Option<Control>,
    /// Each run of the base's setup, without the control; `base` is their sum.
    pub base_runs: Vec<Side>,
    /// Each assessed run; `run` is their sum.
    pub run_runs: Vec<Side>,
    /// The verdict on the workload.
    pub verdict: Overall,
    /// Every query of either side, the largest [`QueryComparison::impact_us`] first.
    pub queries: Vec<QueryComparison>,
    /// Reasons why the runs are hard to compare.
    pub caveats: Vec<Caveat>,
    /// The median factor by which the queries changed: about 1 if only a few changed. `None` if no
    /// query had enough executions.
    pub drift: Option<f64>,
    /// The factor by which the calibration statement was slower in the assessed runs than in those
    /// of the base; `None` if it was not measured in all of them.
    pub machine: Option<f64>,
    /// How much time the undecided queries may have added, as a fraction of the base's total time;
    /// `None` if a query is undecided and fewer than four runs were compared.
    pub undecided_share: Option<f64>,
}

/// The totals of one run, or of all runs of one setup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The description of the first run; it is complete only if all runs are.
    pub info: RunInfo,
    /// Executions that succeeded or failed.
    pub calls: u64,
    /// Executions that failed.
    pub errors: u64,
    /// Executions that were skipped: not sent, or not finished when the replay ended or was
    /// interrupted.
    pub skipped: u64,
    /// Total time of the successful executions, in microseconds.
    pub total_us: u64,
    /// Executions that belong to no query of the comparison.
    pub unattributed: u64,
}

/// A second run of the base's setup, which shows how much two runs differ without a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// The run's description.
    pub info: RunInfo,
    /// The factor by which the time of the typical query differed between the two runs, in either
    /// direction: at least 1.
    pub noise: f64,
}

/// The comparison of one query between the two sides.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueryComparison {
    /// Identifies the query.
    pub fingerprint: Fingerprint,
    /// Normalized text of the query, and the role and database of an example, as far as the runs
    /// have them.
    pub text: QueryText,
    /// How the query changed, or why that is not known.
    pub verdict: QueryVerdict,
    /// Measures over all runs of the base's setup, if one of them contains the query.
    pub base: Option<Measures>,
    /// Measures over all assessed runs, if one of them contains the query.
    pub run: Option<Measures>,
    /// Measures in each run of the base's setup; `None` for runs without the query.
    pub base_runs: Vec<Option<Measures>>,
    /// Measures in each assessed run; `None` for runs without the query.
    pub run_runs: Vec<Option<Measures>>,
    /// Change of typical executions, if there were enough of them on both sides.
    pub change: Option<Change>,
    /// Change of the mean, with its interval at 99 %; `None` if it is too small, rests on too few
    /// executions or, with four or more runs, is not certain. Not computed for two runs if their
    /// typical executions already differ enough for a verdict.
    pub mean_change: Option<Interval>,
    /// Factor by which the query's time differed between the base and the control run; `None`
    /// without a control run, or if there were too few executions.
    pub noise: Option<f64>,
    /// The smallest factor of change that the runs could have shown; `None` if fewer than four runs
    /// were compared, or if there were too few executions.
    pub detectable: Option<f64>,
    /// The largest factor of change that the runs do not exclude: the upper end of the interval,
    /// widened by the shift of the machine. `None` whenever `detectable` is.
    pub largest: Option<f64>,
    /// Distribution of the executions over latencies; `None` if a side does not contain the query,
    /// or no execution has a known time.
    pub latencies: Option<LatencyBins>,
    /// Time that the change costs (or saves, if negative) over all executions of the base, in µs.
    /// If only one side has executions with a known time, this is the total time there, negative if
    /// that is the base.
    pub impact_us: f64,
    /// Failures by error code, for codes whose count per run differs.
    pub errors: Vec<ErrorChange>,
    /// The change of the query's plan, if plans were requested and differ.
    pub plan_change: Option<String>,
    /// The plans on both servers, if they were requested and are available.
    pub plans: Option<Plans>,
    /// Whether the replay deduced the types of the query's parameters because the capture has none.
    pub types_deduced: bool,
}

/// The measures of one query in one run, or over all runs of a side. Times are in microseconds and
/// cover only successful executions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measures {
    /// Executions that succeeded or failed.
    pub calls: u64,
    /// Executions that failed.
    pub errors: u64,
    /// Executions that were skipped: not sent, or not finished when the replay ended or was
    /// interrupted.
    pub skipped: u64,
    /// Executions with a known time, from which the times below are computed.
    pub timed: u64,
    /// Mean time.
    pub mean_us: f64,
    /// Median time.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Maximum time.
    pub max_us: u64,
    /// Sum of all times.
    pub total_us: u64,
    /// Mean number of rows per execution, over those for which the server reported it.
    pub rows_mean: Option<f64>,
}

/// The plans of one execution of a query on both servers, as outlines without constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plans {
    /// The plan on the server of the base.
    pub base: String,
    /// The plan on the server of the assessed run.
    pub run: String,
}

/// Change of typical executions, with its confidence interval and p-values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The factor, estimated on logarithms, with its interval at [`CompareSettings::confidence`]:
    /// the Hodges–Lehmann estimate for two runs, the difference of the mean levels for several.
    pub factor: Interval,
    /// p-value against no change at all: of the Mann–Whitney statistic for two runs, with the
    /// variance taken over blocks of time; of a t-test with the variance between runs for several.
    pub p: f64,
    /// p-value against a change that does not matter (for two runs, less than half of
    /// [`CompareSettings::change_min`] in logarithms), adjusted for the number of queries by
    /// Benjamini and Hochberg. The verdict is based on this value.
    pub q: f64,
}

/// An estimate and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The most likely factor; 1 means no change.
    pub estimate: f64,
    /// Lower end of the confidence interval.
    pub low: f64,
    /// Upper end of the confidence interval.
    pub high: f64,
}

/// Failures of one query with one error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorChange {
    /// The error code, if a server reported one.
    pub sqlstate: Option<SqlState>,
    /// The message of one of these failures.
    pub message: String,
    /// Failures in all base runs.
    pub base: u64,
    /// Failures in all assessed runs.
    pub run: u64,
}

impl ErrorChange {
    /// Whether only the assessed runs had such failures.
    pub fn is_new(&self) -> bool {
        self.base == 0
    }

    /// Whether only the base runs had such failures.
    pub fn is_gone(&self) -> bool {
        self.run == 0
    }
}

/// A reason why runs are hard to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caveat {
    /// The runs replayed different captures.
    DifferentCaptures,
    /// The runs were replayed at different paces.
    DifferentRates,
    /// A run does not cover its whole capture, because the replay was stopped or failed.
    Incomplete {
        /// Name of the run.
        name: String,
        /// The workers whose parts of the run do not exist.
        missing_workers: Vec<u32>,
    },
    /// Nearly all classified queries changed by about [`Comparison::drift`]: perhaps because of the
    /// machine, not the change.
    EverythingMoved,
    /// The speed of the machine differed between the sides: the time of the calibration statement,
    /// which reads no table, changed by [`Comparison::machine`].
    MachineChanged,
    /// Some queries are undecided, because the runs or the machine differ too much.
    RunsVary {
        /// Number of undecided queries.
        queries: usize,
    },
    /// The replay deduced the parameter types of some queries: their plans may differ from those in
    /// production.
    TypesDeduced {
        /// Number of queries with deduced types.
        queries: usize,
    },
}

impl Measures {
    pub(crate) fn from_query(query: &Query) -> Self {
        let [p50_us, p90_us, p95_us, p99_us] = query.percentiles_us([0.5, 0.9, 0.95, 0.99]);
        Self {
            calls: query.calls(),
            errors: query.failed,
            skipped: query.skipped,
            timed: query.timed(),
            mean_us: query.mean_us(),
            p50_us,
            p90_us,
            p95_us,
            p99_us,
            max_us: query.max_us(),
            total_us: query.total_us(),
            rows_mean: query.rows_mean(),
        }
    }
}

impl QueryComparison {
    /// Whether the executions returned or changed different numbers of rows, on average.
    pub fn rows_differ(&self) -> bool {
        let rows = |side: Option<Measures>| side.and_then(|side| side.rows_mean);
        match (rows(self.base), rows(self.run)) {
            // Sums of whole numbers, divided: equal means are equal up to rounding.
            (Some(base), Some(run)) => (base - run).abs() > 1e-9 * base.abs().max(1.0),
            _ => false,
        }
    }
}

impl Comparison {
    /// Returns the queries that got slower, the largest loss first.
    pub fn slower(&self) -> impl Iterator<Item = &QueryComparison> {
        self.queries.iter().filter(|query| query.verdict.is_slower())
    }

    /// Returns the queries that got faster, the largest gain last.
    pub fn faster(&self) -> impl Iterator<Item = &QueryComparison> {
        self.queries.iter().filter(|query| query.verdict.is_faster())
    }
}
