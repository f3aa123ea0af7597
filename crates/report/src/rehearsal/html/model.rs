//! [`Page`]: the content of the page, as plain data.

use std::time::Duration;

use crate::rehearsal::{RehearsalSide, RehearsalVerdict};

/// Everything on the page of a rehearsal. Nothing in it is HTML: all texts are escaped when they
/// are rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Names the database and the change: `Rehearsal of shop: PostgreSQL 15.4 to 17.2`.
    pub title: String,
    /// The answer.
    pub verdict: RehearsalVerdict,
    /// The answer in words, without its verdict: `1 of 14 queries is slower`.
    pub headline: String,
    /// Reasons for the answer, the most important first.
    pub reasons: Vec<VerdictReason>,
    /// Limitations of the answer, one sentence each.
    pub notes: Vec<String>,
    /// Confidence of the intervals of [`PageQuery::change`], 0 to 1.
    pub confidence: f64,
    /// The smallest factor that counts as a change, above 1.
    pub change_min: f64,
    /// The replays, in the order in which they ran. Lists of values by run have this order.
    pub runs: Vec<PageRun>,
    /// The queries, the largest loss first.
    pub queries: Vec<PageQuery>,
    /// Figures over the time of the runs.
    pub time_lines: TimeLines,
    /// How faithfully the runs repeated the capture, one sentence each.
    pub fidelity: Vec<String>,
    /// Version, address, size and settings of both servers, one per row.
    pub servers: Vec<ServerFactRow>,
    /// Differences between the servers in version, settings, tables and indexes.
    pub differences: Vec<PageDifference>,
    /// Options of the rehearsal by name, without passwords.
    pub options: Vec<(String, String)>,
    /// Version of the howdah that rehearsed.
    pub howdah: String,
    /// When the rehearsal started, as text with its time zone.
    pub started: String,
    /// When it had compared the runs.
    pub finished: String,
}

/// A reason for the verdict, perhaps with a link to a query.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictReason {
    /// The kind of reason, in one or two words: `slower`, `new errors`, `not comparable`.
    pub label: String,
    /// The reason, in a sentence or less.
    pub text: String,
    /// Position in [`Page::queries`] of the query that it concerns.
    pub query: Option<usize>,
}

/// One replay.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRun {
    /// `a1`, `b1`, …
    pub name: String,
    /// The server that it ran against.
    pub side: RehearsalSide,
    /// When it started, counted from the start of the rehearsal.
    pub started: Duration,
    /// How long it took.
    pub elapsed: Duration,
    /// Statements sent.
    pub executions: u64,
    /// Those that failed.
    pub failed: u64,
    /// Events that were never sent.
    pub skipped: u64,
    /// 99th percentile of the schedule error, in microseconds.
    pub schedule_error_p99_us: Option<u64>,
    /// Median duration of the calibration statement, in microseconds.
    pub calibration_p50_us: Option<u64>,
    /// Share of processor time in use on the machine that replayed, 0 to 1.
    pub cpu_busy: Option<f64>,
    /// Share of its processor time that its hypervisor gave to others, 0 to 1.
    pub cpu_steal: Option<f64>,
    /// Share of its processor time that was idle because of a disk, 0 to 1.
    pub io_wait: Option<f64>,
}

/// One query on both servers.
#[derive(Clone, Debug, PartialEq)]
pub struct PageQuery {
    /// Identifies the query; part of its address within the page.
    pub fingerprint: String,
    /// Its normalised text; empty if not known.
    pub text: String,
    /// Whether it got slower or faster.
    pub verdict: PageQueryVerdict,
    /// Whether only its slow executions changed, not the typical ones.
    pub is_tail_only: bool,
    /// All runs on the base.
    pub base: Option<QueryMeasures>,
    /// All runs with the change.
    pub change: Option<QueryMeasures>,
    /// Each run, in the order of [`Page::runs`].
    pub runs: Vec<Option<QueryMeasures>>,
    /// By what factor typical executions changed.
    pub factor: Option<FactorInterval>,
    /// By what factor the mean changed, where only slow executions did.
    pub mean_factor: Option<FactorInterval>,
    /// The smallest factor that these runs would have shown to be a change.
    pub detectable: Option<f64>,
    /// Time that the change costs, or saves if negative, over the executions of the base, in
    /// microseconds.
    pub impact_us: f64,
    /// How executions are distributed over latencies.
    pub latencies: Option<LatencyHistogram>,
    /// Failures by error code.
    pub errors: Vec<QueryErrorCount>,
    /// The difference between its plans, in words.
    pub plan_change: Option<String>,
    /// Its plans on both servers, if EXPLAIN was run on both.
    pub plans: Option<PlanPair>,
    /// Why its plans could not be compared.
    pub plan_failure: Option<String>,
    /// Differences between the servers that may explain its change, one sentence each.
    pub causes: Vec<String>,
    /// One captured execution with its values; set only if values were requested.
    pub example: Option<String>,
}

/// The verdict on a query, in the order in which verdicts are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageQueryVerdict {
    /// It got slower.
    Slower,
    /// It got faster.
    Faster,
    /// Neither a change nor its absence is certain.
    Undecided,
    /// It did not change.
    NoChange,
    /// It was not executed often enough.
    TooFew,
    /// It was executed on the base only.
    OnlyInBase,
    /// It was executed with the change only.
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

    /// The words on the page.
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

/// The measures of one query, in microseconds and of successful executions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueryMeasures {
    /// Executions sent to the server.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Mean of the latencies of all timed executions.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Sum of all.
    pub total_us: f64,
    /// Rows per execution, where the server reported them.
    pub rows_mean: Option<f64>,
}

/// A factor and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactorInterval {
    /// The most likely factor: the run with the change over the base.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Executions by latency, in bins that both sides share.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyHistogram {
    /// Edges of the bins in microseconds, ascending and above 0: one more than bins.
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
    /// The message of one failure; empty unless values were requested, because it may contain some.
    pub message: String,
    /// Failures in all runs on the base.
    pub base: u64,
    /// Failures in all runs with the change.
    pub change: u64,
}

/// The plans of a query as EXPLAIN prints them, without values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPair {
    /// Text of EXPLAIN on the base, indented by lines.
    pub base: String,
    /// Text of EXPLAIN on the server with the change.
    pub change: String,
}

/// Figures over the time of the runs. All runs share one clock: time since the start of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeLines {
    /// Length of a bucket in seconds.
    pub bucket_s: f64,
    /// The charts, from top to bottom. Neighbours with the same group share a heading.
    pub panels: Vec<TimePanel>,
    /// Checkpoints while the runs lasted.
    pub checkpoints: Vec<CheckpointSpan>,
    /// Measurements that are missing and why, one sentence each.
    pub notes: Vec<String>,
}

/// One chart.
#[derive(Clone, Debug, PartialEq)]
pub struct TimePanel {
    /// The heading above this chart and its neighbours: `Workload`.
    pub group: String,
    /// `Throughput`.
    pub title: String,
    /// Unit of the values, which determines the axis.
    pub unit: PanelUnit,
    /// Values per bucket, one list for each run, in the order of [`Page::runs`]. Empty for a run
    /// that was not measured.
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
    /// The word in the page's data.
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
    /// Its start, in seconds since the start of the run.
    pub from_s: f64,
    /// When it had written its buffers and began to sync files, if known.
    pub sync_s: Option<f64>,
    /// Its end.
    pub to_s: f64,
}

/// One fact of both servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFactRow {
    /// Its name: `PostgreSQL`, `size of the database`.
    pub name: String,
    /// The value on the base; the row is highlighted if the other one differs.
    pub base: String,
    /// The value on the server with the change.
    pub change: String,
}

/// A difference between the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageDifference {
    /// The table that it concerns; empty if it concerns the whole server.
    pub table: String,
    /// The difference: `index orders_customer_idx on orders is missing`.
    pub text: String,
}
