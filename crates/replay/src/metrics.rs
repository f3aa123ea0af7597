//! Prometheus metrics of a running replay: their descriptions and handles.

use std::time::Duration;

use howdah_stats::{Counter, Description, Gauge, Histogram, MetricUnit, Registry};
use howdah_traffic::Kind;

/// All metrics of a replay, in the order of the reference page.
pub const METRICS: &[Description] = &[
    EVENTS_READ,
    EVENTS,
    ERRORS,
    SKIPPED,
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
    INPUT_LATE,
];

const EVENTS_READ: Description =
    Description::counter("howdah_replay_events_read_total", "Events read from the capture.");
const EVENTS: Description =
    Description::counter("howdah_replay_events_total", "Events that ended, by kind and outcome.")
        .labels(&["kind", "end"]);
const ERRORS: Description =
    Description::counter("howdah_replay_errors_total", "Failed executions, by SQLSTATE.")
        .labels(&["sqlstate"]);
const SKIPPED: Description =
    Description::counter("howdah_replay_skipped_total", "Events that were not sent, by reason.")
        .labels(&["reason"]);
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
);
const SCHEDULE_ERROR: Description = Description::histogram(
    "howdah_replay_schedule_error_seconds",
    "How late executions were sent although their session was free.",
);
const DEPENDENCY_LAG: Description = Description::histogram(
    "howdah_replay_dependency_lag_seconds",
    "How long executions were due while their session's previous statement was still running.",
);
const INPUT_LATE: Description = Description::histogram(
    "howdah_replay_input_delay_seconds",
    "How long after their due time executions arrived from their source.",
);

/// Handles to the metrics of one replay, shared by its workers.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) events_read: Counter,
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
    pub(crate) input_late: Histogram,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            registry: registry.clone(),
            events_read: registry.counter(&EVENTS_READ),
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
}

/// Reads the progress of a running replay from its metrics.
#[derive(Clone, Debug)]
pub struct ProgressReader {
    metrics: Metrics,
}

/// A snapshot taken by [`ProgressReader`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReplayProgress {
    /// Events that were executed, failed or skipped.
    pub ended: u64,
    /// Executions that failed.
    pub failed: u64,
    /// Connections open to the target.
    pub connections: u64,
    /// How late the most recent execution was sent.
    pub lag: Duration,
}

impl ProgressReader {
    /// Reads the replay that records its metrics in `registry`.
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
                .map(|kind| ended(kind, "done") + ended(kind, "failed") + ended(kind, "skipped"))
                .sum(),
            failed: executions.map(|kind| ended(kind, "failed")).sum(),
            connections: self.metrics.connections_active.value() as u64,
            lag: Duration::try_from_secs_f64(self.metrics.lag.value()).unwrap_or_default(),
        }
    }
}
