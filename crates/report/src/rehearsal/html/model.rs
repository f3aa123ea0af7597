//! [`Page`]: the content of the page, as plain data.

use std::time::Duration;

use crate::rehearsal::{RehearsalSide, RehearsalVerdict};

/// Everything on the page of a rehearsal. All texts are plain text, and are escaped when they are
/// rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// A title with the database and the change: `Rehearsal of shop: PostgreSQL 15.4 to 17.2`.
    pub title: String,
    /// The verdict: passed, failed or not comparable.
    pub verdict: RehearsalVerdict,
    /// The result in words, without the verdict: `1 of 14 queries slower`.
    pub headline: String,
    /// Reasons for the verdict, the most important first.
    pub reasons: Vec<VerdictReason>,
    /// Limitations of the verdict, one sentence each.
    pub notes: Vec<String>,
    /// Confidence level of the intervals of [`PageQuery::factor`], 0 to 1.
    pub confidence: f64,
    /// The smallest factor that counts as a change, above 1.
    pub change_min: f64,
    /// The replays, in the order in which they ran. Lists of values by run use this order.
    pub runs: Vec<PageRun>,
    /// The queries, the largest loss first.
    pub queries: Vec<PageQuery>,
    /// Figures over the time of the runs.
    pub time_lines: TimeLines,
    /// The state from which the runs started, and how faithfully each run repeated the capture, in
    /// one line each.
    pub fidelity: Vec<String>,
    /// Instructions for restoring copies to the start of the capture, as lines of text; empty if
    /// the start is unknown.
    pub recovery: Vec<String>,
    /// Properties and settings of both servers, one per row.
    pub servers: Vec<ServerFactRow>,
    /// Differences between the servers, in the order of the report.
    pub differences: Vec<PageDifference>,
    /// Options of the rehearsal by name, without passwords.
    pub options: Vec<(String, String)>,
    /// Version of Howdah that ran the rehearsal.
    pub howdah: String,
    /// Time at which the rehearsal started, as text with its time zone.
    pub started: String,
    /// Time at which the comparison of the runs was finished, as text with its time zone.
    pub finished: String,
}

/// A reason for the verdict, perhaps with a link to a query.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictReason {
    /// The kind of reason, in one or two words: `slower`, `new errors`, `not comparable`.
    pub label: String,
    /// The reason, in a sentence or less.
    pub text: String,
    /// Position in [`Page::queries`] of the query that the reason concerns.
    pub query: Option<usize>,
}

/// One replay.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRun {
    /// Name of the run: `a1`, `b1`, …
    pub name: String,
    /// The side whose server was replayed against.
    pub side: RehearsalSide,
    /// Time from the start of the rehearsal to that of the run.
    pub started: Duration,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Number of statements that succeeded or failed.
    pub executions: u64,
    /// Number of statements that failed.
    pub failed: u64,
    /// Number of statements that were skipped: not sent, or not finished when the replay ended.
    pub skipped: u64,
    /// 99th percentile of the schedule error, in microseconds.
    pub schedule_error_p99_us: Option<u64>,
    /// Median duration of the calibration statement, in microseconds.
    pub calibration_p50_us: Option<u64>,
    /// Share of processor time in use on the machine that replayed, 0 to 1.
    pub cpu_busy: Option<f64>,
    /// Share of processor time that the hypervisor gave to other guests, 0 to 1.
    pub cpu_steal: Option<f64>,
    /// Share of processor time that was idle while a task waited for a disk, 0 to 1.
    pub io_wait: Option<f64>,
}

/// One query on both servers.
#[derive(Clone, Debug, PartialEq)]
pub struct PageQuery {
    /// The fingerprint, which is also part of the query's anchor in the page.
    pub fingerprint: String,
    /// The normalised text; empty if not known.
    pub text: String,
    /// Whether the query got slower or faster, or why this is unknown.
    pub verdict: PageQueryVerdict,
    /// Whether the mean changed without a certain change of the typical executions: usually, only
    /// slow executions changed.
    pub is_tail_only: bool,
    /// Measures over all runs on the base.
    pub base: Option<QueryMeasures>,
    /// Measures over all runs with the change.
    pub change: Option<QueryMeasures>,
    /// Measures in each run, in the order of [`Page::runs`].
    pub runs: Vec<Option<QueryMeasures>>,
    /// Factor by which typical executions changed.
    pub factor: Option<FactorInterval>,
    /// Factor by which the mean changed; `None` if it was not computed, for example because that
    /// change is small.
    pub mean_factor: Option<FactorInterval>,
    /// The smallest factor that the runs would have shown to be a change.
    pub detectable: Option<f64>,
    /// Time that the change costs, or saves if negative, over the executions of the base, in
    /// microseconds.
    pub impact_us: f64,
    /// Distribution of the executions over latencies.
    pub latencies: Option<LatencyHistogram>,
    /// Failures by error code.
    pub errors: Vec<QueryErrorCount>,
    /// The difference between the plans, in words.
    pub plan_change: Option<String>,
    /// The plans on both servers, if EXPLAIN was run on both.
    pub plans: Option<PlanPair>,
    /// The reason why the plans could not be compared.
    pub plan_failure: Option<String>,
    /// Differences between the servers that may explain the change, each as a phrase: `setting
    /// work_mem: 4MB → 8MB`.
    pub causes: Vec<String>,
    /// One captured execution with its values; set only if values were requested.
    pub example: Option<String>,
}

/// The verdict on a query. Variants are in sort order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageQueryVerdict {
    /// The query got slower.
    Slower,
    /// The query got faster.
    Faster,
    /// Neither a change nor its absence is certain.
    Undecided,
    /// The query did not change.
    NoChange,
    /// The query was not executed often enough.
    TooFew,
    /// The query was executed on the base only.
    OnlyInBase,
    /// The query was executed with the change only.
    OnlyInChange,
}

impl PageQueryVerdict {
    pub(super) const ALL: [Self; 7] = [
        Self::Slower,
        Self::Faster,
        Self::Undecided,
        Self::NoChange,
        Self::TooFew,
        Self::OnlyInBase,
        Self::OnlyInChange,
    ];

    /// Returns the words for the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Undecided => "undecided",
            Self::NoChange => "no change",
            Self::TooFew => "too few",
            Self::OnlyInBase => "only in base",
            Self::OnlyInChange => "only in change",
        }
    }
}

/// The measures of one query. Times are those of successful executions, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueryMeasures {
    /// Executions that succeeded or failed.
    pub calls: u64,
    /// Executions that failed.
    pub errors: u64,
    /// Mean time.
    pub mean_us: f64,
    /// Median time.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Maximum time.
    pub max_us: f64,
    /// Sum of all times.
    pub total_us: f64,
    /// Rows per execution, where the server reported them.
    pub rows_mean: Option<f64>,
}

/// A factor and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactorInterval {
    /// The most likely factor: time with the change divided by time on the base.
    pub estimate: f64,
    /// Lower end of the confidence interval.
    pub low: f64,
    /// Upper end of the confidence interval.
    pub high: f64,
}

/// Numbers of executions by latency, in bins that both sides share.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyHistogram {
    /// Edges of the bins in microseconds, ascending and above 0; one more than there are bins.
    pub edges_us: Vec<f64>,
    /// Executions on the base, bin by bin.
    pub base: Vec<u64>,
    /// Executions with the change, bin by bin.
    pub change: Vec<u64>,
}

/// Failures of a query with one error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryErrorCount {
    /// The SQLSTATE; empty if the server reported none.
    pub sqlstate: String,
    /// The message of one failure; empty unless values were requested, because it may contain
    /// values.
    pub message: String,
    /// Failures in all runs on the base.
    pub base: u64,
    /// Failures in all runs with the change.
    pub change: u64,
}

/// The plans of a query in the form of EXPLAIN, with `?` in place of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPair {
    /// Text of EXPLAIN on the base, with line breaks and indentation.
    pub base: String,
    /// Text of EXPLAIN on the server with the change.
    pub change: String,
}

/// Charts of figures over the time of the runs. All runs share a clock: the time since the start of
/// the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeLines {
    /// Length of a bucket in seconds.
    pub bucket_s: f64,
    /// The charts, from top to bottom. Neighbours with the same group share a heading.
    pub panels: Vec<TimePanel>,
    /// Checkpoints that occurred during the runs.
    pub checkpoints: Vec<CheckpointSpan>,
    /// Measurements that are missing, and why, one sentence each.
    pub notes: Vec<String>,
}

/// One chart over time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimePanel {
    /// The heading that this chart and its neighbours share, such as `Workload`.
    pub group: String,
    /// Title of the chart, such as `Throughput`.
    pub title: String,
    /// Unit of the values, which determines the axis.
    pub unit: PanelUnit,
    /// Values per bucket, one list for each run, in the order of [`Page::runs`]. The list of a run
    /// without measurements is empty.
    pub values: Vec<Vec<Option<f64>>>,
}

/// The unit of a chart's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelUnit {
    /// Events per second.
    PerSecond,
    /// A duration in microseconds.
    Micros,
    /// A share from 0 to 1, drawn as per cent.
    Share,
    /// Bytes per second, drawn in KiB, MiB or GiB.
    BytesPerSecond,
    /// A plain number, such as sessions on average.
    Number,
}

impl PanelUnit {
    /// Returns the name of the unit in the page's data.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "per_second",
            Self::Micros => "micros",
            Self::Share => "share",
            Self::BytesPerSecond => "bytes_per_second",
            Self::Number => "number",
        }
    }
}

/// A checkpoint during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointSpan {
    /// Position of the run in [`Page::runs`].
    pub run: usize,
    /// Start of the checkpoint, in seconds since the start of the run.
    pub from_s: f64,
    /// Time at which the checkpoint began to sync files, in seconds since the start of the run, if
    /// known.
    pub sync_s: Option<f64>,
    /// End of the checkpoint, in seconds since the start of the run.
    pub to_s: f64,
}

/// One property of both servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFactRow {
    /// Name of the property: `PostgreSQL`, `size of the database`.
    pub name: String,
    /// The value on the base. The row is highlighted if the two values differ.
    pub base: String,
    /// The value on the server with the change.
    pub change: String,
}

/// A difference between the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageDifference {
    /// The table that differs; empty if the difference concerns the whole server.
    pub table: String,
    /// The difference in words: `index orders_customer_idx on orders is missing`.
    pub text: String,
}
