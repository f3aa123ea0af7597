//! [`Comparison`]: the result of comparing two runs.

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
    /// The base run.
    pub base: Side,
    /// The assessed run.
    pub run: Side,
    /// The result of a second run of the base's setup, if there was one.
    pub control: Option<Control>,
    /// Each run of the base's setup; `base` is their sum.
    pub base_runs: Vec<Side>,
    /// Each assessed run; `run` is their sum.
    pub run_runs: Vec<Side>,
    /// The verdict on the workload.
    pub verdict: Overall,
    /// Every query of either run, the largest increase of total time first.
    pub queries: Vec<QueryComparison>,
    /// Reasons why the two runs are hard to compare.
    pub caveats: Vec<Caveat>,
    /// The factor by which the typical query changed: 1 if only single queries changed. `None` if
    /// no query had enough executions.
    pub drift: Option<f64>,
    /// The factor by which the calibration statement was slower in the assessed runs than in those
    /// of the base; `None` if it was not measured in all of them.
    pub machine: Option<f64>,
    /// The share of the base's total time that the undecided queries may have added; `None` if not
    /// known.
    pub undecided_share: Option<f64>,
}

/// The totals of one run, or of all runs of one setup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The run's description.
    pub info: RunInfo,
    /// Executions sent to the server.
    pub calls: u64,
    /// Executions that failed.
    pub errors: u64,
    /// Executions that were captured but never sent.
    pub skipped: u64,
    /// Total time of the successful executions.
    pub total_us: u64,
    /// Executions that belong to no query of the comparison.
    pub unattributed: u64,
}

/// A second run of the base's setup, which measures the differences without a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// The run's description.
    pub info: RunInfo,
    /// The factor by which the typical query differed from the base run, in either direction.
    pub noise: f64,
}

/// One query in both runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueryComparison {
    /// Identifies the query.
    pub fingerprint: Fingerprint,
    /// Normalized text of the query, and the role and database of an example, as far as the runs
    /// have them.
    pub text: QueryText,
    /// How the query changed, if it did.
    pub verdict: QueryVerdict,
    /// Measures in the base run, if the query was part of it.
    pub base: Option<Measures>,
    /// Measures in the assessed run, if the query was part of it.
    pub run: Option<Measures>,
    /// Measures in each run of the base's setup.
    pub base_runs: Vec<Option<Measures>>,
    /// Measures in each assessed run.
    pub run_runs: Vec<Option<Measures>>,
    /// Change of typical executions, if there were enough of them.
    pub change: Option<Change>,
    /// Change of the mean, with its interval at 99 %; `None` if the mean changed too little for a
    /// verdict on the tail, or if the verdict did not depend on it.
    pub mean_change: Option<Interval>,
    /// Factor by which the query differed between base and control, if there is a control.
    pub noise: Option<f64>,
    /// The smallest factor that these runs would have shown to be a change; `None` unless each side
    /// has several runs.
    pub detectable: Option<f64>,
    /// The largest factor that these runs do not exclude: the upper end of the interval, widened by
    /// the shift of the machine; `None` unless each side has several runs.
    pub largest: Option<f64>,
    /// Distribution of the executions over latencies, if both sides have any.
    pub latencies: Option<LatencyBins>,
    /// Time that the change costs (or saves, if negative) over all executions of the base run, in
    /// µs. If only one side executed the query, this is the total time there, negative if that is
    /// the base.
    pub impact_us: f64,
    /// Failures by error code, for codes whose count per run differs.
    pub errors: Vec<ErrorChange>,
    /// The change of the query's plan, if plans were requested and differ.
    pub plan_change: Option<String>,
    /// The plans on both servers, if they were requested.
    pub plans: Option<Plans>,
    /// Whether the replay deduced the types of the query's parameters because the capture has none.
    pub types_deduced: bool,
}

/// The measures of one query in one run. Times are in microseconds and cover only successful
/// executions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measures {
    /// Executions sent to the server.
    pub calls: u64,
    /// Executions that failed.
    pub errors: u64,
    /// Executions that were captured but never sent.
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
    /// Rows per execution, where the server reported them.
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
    /// Whether only the assessed run had such failures.
    pub fn is_new(&self) -> bool {
        self.base == 0
    }

    /// Whether only the base run had such failures.
    pub fn is_gone(&self) -> bool {
        self.run == 0
    }
}

/// A reason why two runs are hard to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caveat {
    /// The runs replayed different captures.
    DifferentCaptures,
    /// The runs were replayed at different paces.
    DifferentRates,
    /// A run was stopped before the end of its capture.
    Incomplete {
        /// Name of the run.
        name: String,
    },
    /// Nearly all classified queries changed by about [`Comparison::drift`]: perhaps because of the
    /// machine, not the change.
    EverythingMoved,
    /// The machine was not the same: the calibration statement, which reads no table, changed by
    /// [`Comparison::machine`].
    MachineChanged,
    /// Runs of one setup differ so much among themselves that some queries are undecided.
    RunsVary {
        /// Number of undecided queries.
        queries: usize,
    },
    /// Parameter types of some queries were deduced in one or both of the runs: their plans may
    /// differ from those in production.
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
