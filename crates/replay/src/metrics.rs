//! Prometheus metrics of a running replay: their descriptions and handles.

use std::time::Duration;

use howdah_stats::{Counter, Description, Gauge, Histogram, MetricUnit, Registry};
use howdah_traffic::Kind;

/// All metrics of a replay, in the order of the reference page.
pub const METRICS: &[Description] = &[
    EVENTS_READ,
    EVENTS_EXCLUDED,
    LOG_BYTES,
    LOG_PROBLEMS,
    PROGRESS,
    EVENTS,
    ERRORS,
    SKIPPED,
    DROPPED,
    ROWS_DIFFERENT,
    RESULTS_DIFFERENT,
    STATEMENTS_IN_FLIGHT,
    CONNECTIONS_ACTIVE,
    CONNECTIONS_ESTABLISHED,
    CONNECTIONS_LOST,
    POSITION,
    ENDED_POSITION,
    LAG,
    BACKLOG_BYTES,
    LATENCY,
    SCHEDULE_ERROR,
    DEPENDENCY_LAG,
    ORDER_WAIT,
    INPUT_LATE,
];

const EVENTS_READ: Description =
    Description::counter("howdah_replay_events_read_total", "Events read from the capture.");
const EVENTS_EXCLUDED: Description = Description::counter(
    "howdah_replay_events_excluded_total",
    "Events that were left out by options such as --since and --user.",
);
const LOG_BYTES: Description = Description::counter(
    "howdah_replay_log_bytes_read_total",
    "Bytes read from logs, before they were unpacked.",
);
const LOG_PROBLEMS: Description = Description::counter(
    "howdah_replay_log_problems_total",
    "Records of logs that could not be read, known at the end of the logs.",
);
const PROGRESS: Description = Description::gauge(
    "howdah_replay_progress_ratio",
    "The part of the capture's events that have ended, or of the logs' bytes that were read; 0 if unknown.",
);
const EVENTS: Description =
    Description::counter("howdah_replay_events_total", "Events that ended, by kind and outcome.")
        .labels(&["kind", "end"]);
const ERRORS: Description = Description::counter(
    "howdah_replay_errors_total",
    "Failed executions and logins, by SQLSTATE.",
)
.labels(&["sqlstate"]);
const SKIPPED: Description =
    Description::counter("howdah_replay_skipped_total", "Events that were skipped, by reason.")
        .labels(&["reason"]);
const DROPPED: Description = Description::counter(
    "howdah_replay_dropped_total",
    "Events that were dropped, by the policy or limit for which they were.",
)
.labels(&["reason"]);
const ROWS_DIFFERENT: Description = Description::counter(
    "howdah_replay_rows_different_total",
    "Executions that returned or changed another number of rows than captured.",
);
const RESULTS_DIFFERENT: Description = Description::counter(
    "howdah_replay_results_different_total",
    "Executions that returned other rows than captured.",
);
const STATEMENTS_IN_FLIGHT: Description =
    Description::gauge("howdah_replay_statements_in_flight", "Statements sent but not completed.");
const CONNECTIONS_ACTIVE: Description =
    Description::gauge("howdah_replay_connections_active", "Connections open to the target.");
const CONNECTIONS_ESTABLISHED: Description = Description::counter(
    "howdah_replay_connections_established_total",
    "Connections that logged in to the target.",
);
const CONNECTIONS_LOST: Description = Description::counter(
    "howdah_replay_connections_lost_total",
    "Connections that the target closed or refused.",
);
const POSITION: Description = Description::gauge(
    "howdah_replay_position_timestamp_seconds",
    "Captured time of the newest event sent, since 1970.",
)
.unit(MetricUnit::Seconds);
const ENDED_POSITION: Description = Description::gauge(
    "howdah_replay_ended_position_timestamp_seconds",
    "Captured time of the newest event that ended, since 1970.",
)
.unit(MetricUnit::Seconds);
const LAG: Description = Description::gauge(
    "howdah_replay_lag_seconds",
    "How late the newest execution was sent, for whatever reason.",
)
.unit(MetricUnit::Seconds);
const BACKLOG_BYTES: Description = Description::gauge(
    "howdah_replay_backlog_bytes",
    "Memory held by events that wait for their due time or their session.",
)
.unit(MetricUnit::Bytes);
const LATENCY: Description = Description::histogram(
    "howdah_replay_latency_seconds",
    "Time from sending an execution to the end of its reply.",
)
.bounds_us(LATENCY_BOUNDS_US);
const SCHEDULE_ERROR: Description = Description::histogram(
    "howdah_replay_schedule_error_seconds",
    "How late executions were sent although their session was free.",
);
const DEPENDENCY_LAG: Description = Description::histogram(
    "howdah_replay_dependency_lag_seconds",
    "How long executions were due while their session's previous statement was still running.",
);
const ORDER_WAIT: Description = Description::histogram(
    "howdah_replay_order_wait_seconds",
    "How long executions were held back for the captured order of commits, if they were.",
);
const INPUT_LATE: Description = Description::histogram(
    "howdah_replay_input_delay_seconds",
    "How long after their due time executions arrived from their source.",
);

/// Upper bounds of the latency buckets: five per decade from 10 µs to about one minute. Percentiles
/// are interpolated between them.
const LATENCY_BOUNDS_US: &[u64] = &[
    10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1_000, 1_600, 2_500, 4_000, 6_300, 10_000, 16_000,
    25_000, 40_000, 63_000, 100_000, 160_000, 250_000, 400_000, 630_000, 1_000_000, 1_600_000,
    2_500_000, 4_000_000, 6_300_000, 10_000_000, 16_000_000, 25_000_000, 40_000_000, 63_000_000,
];

/// Handles to the metrics of one replay, shared by its workers.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) events_read: Counter,
    pub(crate) rows_different: Counter,
    pub(crate) results_different: Counter,
    pub(crate) statements_in_flight: Gauge,
    pub(crate) connections_active: Gauge,
    pub(crate) connections_established: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) position: Gauge,
    pub(crate) ended_position: Gauge,
    pub(crate) lag: Gauge,
    pub(crate) backlog_bytes: Gauge,
    pub(crate) latency: Histogram,
    pub(crate) schedule_error: Histogram,
    pub(crate) dependency_lag: Histogram,
    pub(crate) order_wait: Histogram,
    pub(crate) input_late: Histogram,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            registry: registry.clone(),
            events_read: registry.counter(&EVENTS_READ),
            rows_different: registry.counter(&ROWS_DIFFERENT),
            results_different: registry.counter(&RESULTS_DIFFERENT),
            statements_in_flight: registry.gauge(&STATEMENTS_IN_FLIGHT),
            connections_active: registry.gauge(&CONNECTIONS_ACTIVE),
            connections_established: registry.counter(&CONNECTIONS_ESTABLISHED),
            connections_lost: registry.counter(&CONNECTIONS_LOST),
            position: registry.gauge(&POSITION),
            ended_position: registry.gauge(&ENDED_POSITION),
            lag: registry.gauge(&LAG),
            backlog_bytes: registry.gauge(&BACKLOG_BYTES),
            latency: registry.histogram(&LATENCY),
            schedule_error: registry.histogram(&SCHEDULE_ERROR),
            dependency_lag: registry.histogram(&DEPENDENCY_LAG),
            order_wait: registry.histogram(&ORDER_WAIT),
            input_late: registry.histogram(&INPUT_LATE),
        }
    }

    pub(crate) fn ended(&self, kind: &str, end: &str) -> Counter {
        self.registry.counter_with(&EVENTS, &[("kind", kind), ("end", end)])
    }

    pub(crate) fn error(&self, sqlstate: &str) -> Counter {
        self.registry.counter_with(&ERRORS, &[("sqlstate", sqlstate)])
    }

    pub(crate) fn skipped(&self, reason: &str) -> Counter {
        self.registry.counter_with(&SKIPPED, &[("reason", reason)])
    }

    pub(crate) fn dropped(&self, reason: &str) -> Counter {
        self.registry.counter_with(&DROPPED, &[("reason", reason)])
    }
}

/// The position in the input of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InputPosition {
    /// Events left out by filters.
    pub excluded: u64,
    /// Bytes read from logs.
    pub log_bytes: u64,
    /// Records of logs that could not be read.
    pub log_problems: u64,
    /// The part of the input that was replayed or read, from 0 to 1.
    pub share: f64,
}

/// Records the position in the input of a replay in its metrics.
#[derive(Debug)]
pub struct InputMetrics {
    excluded: Counter,
    log_bytes: Counter,
    log_problems: Counter,
    progress: Gauge,
    last: InputPosition,
}

impl InputMetrics {
    /// Creates the metrics for the replay that records its metrics in `registry`.
    pub fn new(registry: &Registry) -> Self {
        Self {
            excluded: registry.counter(&EVENTS_EXCLUDED),
            log_bytes: registry.counter(&LOG_BYTES),
            log_problems: registry.counter(&LOG_PROBLEMS),
            progress: registry.gauge(&PROGRESS),
            last: InputPosition::default(),
        }
    }

    /// Records the position reached.
    pub fn record(&mut self, now: InputPosition) {
        let last = std::mem::replace(&mut self.last, now);
        self.excluded.add(now.excluded.saturating_sub(last.excluded));
        self.log_bytes.add(now.log_bytes.saturating_sub(last.log_bytes));
        self.log_problems.add(now.log_problems.saturating_sub(last.log_problems));
        self.progress.set(now.share);
    }
}

/// Reads the progress of a running replay from its metrics.
#[derive(Clone, Debug)]
pub struct ProgressReader {
    metrics: Metrics,
}

/// The progress of a replay at one moment, as read by a [`ProgressReader`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReplayProgress {
    /// Events that were executed, failed, skipped or dropped.
    pub ended: u64,
    /// Executions that failed.
    pub failed: u64,
    /// Connections open to the target.
    pub connections: u64,
    /// Time between the due time and the sending of the execution that ended last.
    pub lag: Duration,
    /// Executions that were sent and then succeeded or failed, by latency.
    pub latencies: LatencyCounts,
}

/// Numbers of executions by latency, in the buckets of the metric
/// `howdah_replay_latency_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyCounts([u64; LATENCY_BOUNDS_US.len() + 1]);

impl Default for LatencyCounts {
    fn default() -> Self {
        Self([0; LATENCY_BOUNDS_US.len() + 1])
    }
}

impl LatencyCounts {
    fn from_histogram(histogram: &Histogram) -> Self {
        let mut counts = Self::default();
        counts.0.iter_mut().zip(histogram.bucket_counts()).for_each(|(to, from)| *to = from);
        counts
    }

    /// Counts one execution.
    pub fn record_us(&mut self, us: u64) {
        self.0[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
    }

    /// Returns the number of executions.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the counts of the executions since `earlier`, which are earlier counts of the same
    /// replay.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = *self;
        for (count, before) in counts.0.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        counts
    }

    /// Returns the percentile of `share`, which is from 0 to 1, in microseconds; `None` without
    /// executions. Latencies within a bucket are taken as evenly spread on a logarithmic scale.
    /// Latencies above the largest bound count as equal to it.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let rank = share * self.count() as f64;
        let mut below = 0.0;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= rank {
                let Some(high) = LATENCY_BOUNDS_US.get(bucket) else { break };
                let high = *high as f64;
                let low = bucket.checked_sub(1).and_then(|before| LATENCY_BOUNDS_US.get(before));
                let low = low.map_or(high / 2.0, |low| *low as f64);
                let part = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(low * (high / low).powf(part));
            }
            below += count;
        }
        let largest = LATENCY_BOUNDS_US.last().map(|bound| *bound as f64);
        largest.filter(|_| self.count() > 0)
    }
}

impl ProgressReader {
    /// Creates a reader for the replay that records its metrics in `registry`.
    pub fn new(registry: &Registry) -> Self {
        Self { metrics: Metrics::new(registry) }
    }

    /// Returns the progress so far.
    pub fn read(&self) -> ReplayProgress {
        let ended = |kind: &Kind, end| self.metrics.ended(kind.as_str(), end).value();
        let executions = Kind::ALL.iter().filter(|kind| kind.is_execution());
        ReplayProgress {
            ended: Kind::ALL
                .iter()
                .map(|kind| {
                    ["done", "failed", "skipped", "dropped"]
                        .map(|end| ended(kind, end))
                        .iter()
                        .sum::<u64>()
                })
                .sum(),
            failed: executions.map(|kind| ended(kind, "failed")).sum(),
            connections: self.metrics.connections_active.value() as u64,
            lag: Duration::try_from_secs_f64(self.metrics.lag.value()).unwrap_or_default(),
            latencies: LatencyCounts::from_histogram(&self.metrics.latency),
        }
    }
}

#[test]
fn percentiles_are_interpolated_between_bounds() {
    let mut counts = LatencyCounts::default();
    assert_eq!(counts.quantile_us(0.5), None);
    for us in 1..=10_000 {
        counts.record_us(us);
    }
    for (share, expected) in [(0.1, 1_000.0), (0.5, 5_000.0), (0.95, 9_500.0), (1.0, 10_000.0)] {
        let found = counts.quantile_us(share).unwrap();
        assert!((found / expected - 1.0_f64).abs() < 0.05, "{share}: {found}, not {expected}");
    }
    let earlier = counts;
    counts.record_us(u64::MAX);
    let later = counts.since(&earlier);
    assert_eq!((later.count(), later.quantile_us(0.5)), (1, Some(63_000_000.0)));
}

#[test]
fn progress_has_latencies_of_registry() {
    let registry = Registry::new();
    registry.histogram(&LATENCY).observe_us(300);
    let progress = ProgressReader::new(&registry).read();
    assert_eq!(progress.latencies.count(), 1);
    let median = progress.latencies.quantile_us(0.5).unwrap();
    assert!((250.0..400.0).contains(&median), "{median}");
}
