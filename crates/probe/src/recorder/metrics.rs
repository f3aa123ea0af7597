//! The figures of a recording as metrics, for Prometheus and other systems that collect them.
//!
//! Samples are counters, so that a scrape at any interval misses none: the average number of
//! sessions that wait for an event is the increase of its samples divided by that of the rounds.

use std::fmt;

use howdah_stats::{Description, MetricUnit, Registry};

use super::{
    record::{ExtensionTotals, FlightRecord, LostCounts, NoteKind, PhaseEnded, RecordedSecond},
    session_records::{HostPressure, RecordedCounters, RecordedSessions},
};

/// All metrics of `howdah probe run`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    SERVER_UP,
    SECONDS,
    ROUNDS,
    WAIT_SAMPLES,
    EXTENSION_SECONDS,
    EXTENSION_WAIT,
    EXTENSION_HOLD,
    BUFFERS_EXAMINED,
    BUFFER_ALLOCATIONS,
    PHASE_DURATION,
    CHECKPOINT_BUFFERS,
    CALL_DURATION,
    TRIGGERS,
    LOST,
    PRESSURE,
    SESSION_SAMPLES,
    BLOCKED,
    TRANSACTIONS,
    DEADLOCKS,
    TEMP_BYTES,
    CHECKPOINTS,
    REPLAY_LAG_BYTES,
    REPLAY_LAG,
];

const SERVER_UP: Description =
    Description::gauge("howdah_probe_server_up", "Whether the server can be sampled, 0 or 1.");
const SECONDS: Description =
    Description::counter("howdah_probe_recorded_seconds_total", "Seconds recorded.")
        .unit(MetricUnit::Seconds);
const ROUNDS: Description =
    Description::counter("howdah_probe_sampling_rounds_total", "Samples taken of all processes.");
const WAIT_SAMPLES: Description = Description::counter(
    "howdah_probe_wait_samples_total",
    "Processes found in a wait event, by kind of process; CPU* is none.",
)
.labels(&["process", "event"]);
const EXTENSION_SECONDS: Description = Description::counter(
    "howdah_probe_extension_traced_seconds_total",
    "Seconds in which extension locks were traced.",
)
.unit(MetricUnit::Seconds);
const EXTENSION_WAIT: Description = Description::histogram(
    "howdah_probe_extension_wait_seconds",
    "Waits for relation extension locks.",
)
.bounds_us(SHORT_BOUNDS_US);
const EXTENSION_HOLD: Description = Description::histogram(
    "howdah_probe_extension_hold_seconds",
    "Times from the acquisition of a relation extension lock to its release.",
)
.bounds_us(SHORT_BOUNDS_US);
const BUFFERS_EXAMINED: Description = Description::counter(
    "howdah_probe_buffers_examined_total",
    "Buffers examined by the clock sweep.",
);
const BUFFER_ALLOCATIONS: Description =
    Description::counter("howdah_probe_buffer_allocations_total", "Buffers allocated.");
const PHASE_DURATION: Description = Description::histogram(
    "howdah_probe_checkpoint_phase_seconds",
    "Durations of checkpoints and their phases.",
)
.labels(&["phase"])
.bounds_us(LONG_BOUNDS_US);
const CHECKPOINT_BUFFERS: Description = Description::counter(
    "howdah_probe_checkpoint_buffers_written_total",
    "Buffers written by checkpoints.",
);
const CALL_DURATION: Description = Description::histogram(
    "howdah_probe_call_seconds",
    "Calls of the server's functions, in the seconds after a trigger.",
)
.labels(&["metric", "operation"])
.bounds_us(SHORT_BOUNDS_US);
const TRIGGERS: Description =
    Description::counter("howdah_probe_triggers_total", "Triggers that fired.")
        .labels(&["trigger"]);
const LOST: Description =
    Description::counter("howdah_probe_lost_total", "What could not be recorded, by kind.")
        .labels(&["kind"]);
const PRESSURE: Description = Description::gauge(
    "howdah_probe_pressure_ratio",
    "Share of the last ten seconds in which a process of the host waited for a resource.",
)
.labels(&["resource"])
.unit(MetricUnit::Ratio);
const SESSION_SAMPLES: Description = Description::counter(
    "howdah_probe_session_samples_total",
    "Sessions seen active, once a second, by their wait event; empty is none. Needs a URI.",
)
.labels(&["database", "user", "event"]);
const BLOCKED: Description =
    Description::gauge("howdah_probe_blocked_sessions", "Sessions that others block. Needs a URI.");
const TRANSACTIONS: Description = Description::counter(
    "howdah_probe_transactions_total",
    "Transactions in all databases by outcome. Needs a URI.",
)
.labels(&["end"]);
const DEADLOCKS: Description =
    Description::counter("howdah_probe_deadlocks_total", "Deadlocks. Needs a URI.");
const TEMP_BYTES: Description = Description::counter(
    "howdah_probe_temp_bytes_total",
    "Bytes written to temporary files. Needs a URI.",
)
.unit(MetricUnit::Bytes);
const CHECKPOINTS: Description = Description::counter(
    "howdah_probe_checkpoints_total",
    "Checkpoints started, by time or on request. Needs a URI.",
)
.labels(&["cause"]);
const REPLAY_LAG_BYTES: Description = Description::gauge(
    "howdah_probe_replay_lag_bytes",
    "WAL that the slowest standby or subscriber has not replayed. Needs a URI.",
)
.unit(MetricUnit::Bytes);
const REPLAY_LAG: Description = Description::gauge(
    "howdah_probe_replay_lag_seconds",
    "Replay lag of the slowest standby. Needs a URI.",
)
.unit(MetricUnit::Seconds);

/// Bounds for calls and locks within the server, from a microsecond to ten seconds.
const SHORT_BOUNDS_US: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];
/// Bounds for checkpoints, from a millisecond to an hour.
const LONG_BOUNDS_US: &[u64] = &[
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
    1_800_000_000,
    3_600_000_000,
];

/// Updates the metrics with each record.
pub(super) struct RecorderMetrics {
    registry: Registry,
    /// Whether sessions were recorded since the last record of counters: none are not recorded.
    has_sessions: bool,
}

impl fmt::Debug for RecorderMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderMetrics").finish_non_exhaustive()
    }
}

impl RecorderMetrics {
    pub(super) fn new(registry: Registry) -> Self {
        registry.gauge(&SERVER_UP).set(1.0);
        // Series that are there from the start, so that their first increase is seen.
        for metric in [&BUFFERS_EXAMINED, &BUFFER_ALLOCATIONS, &CHECKPOINT_BUFFERS] {
            registry.counter(metric);
        }
        registry.gauge(&BLOCKED).set(f64::NAN);
        Self { registry, has_sessions: false }
    }

    pub(super) fn observe(&mut self, record: &FlightRecord) {
        let registry = &self.registry;
        match record {
            FlightRecord::Second(second) => self.observe_second(second),
            FlightRecord::PhaseEnded(ended) => self.observe_phase(ended),
            FlightRecord::ThresholdCrossed(crossed) => {
                let labels = [("trigger", crossed.kind.name())];
                registry.counter_with(&TRIGGERS, &labels).add(1);
            }
            FlightRecord::TracedCalls(traced) => {
                let labels = [("metric", &*traced.metric), ("operation", &*traced.operation)];
                let calls = registry.histogram_with(&CALL_DURATION, &labels);
                calls.add_buckets(&traced.calls.counts(SHORT_BOUNDS_US), traced.calls.total_us());
            }
            FlightRecord::Note(note) => match note.kind {
                NoteKind::ServerEnded => {
                    registry.gauge(&SERVER_UP).set(0.0);
                    for metric in [&BLOCKED, &REPLAY_LAG_BYTES, &REPLAY_LAG] {
                        registry.gauge(metric).set(f64::NAN);
                    }
                }
                NoteKind::ServerBack => registry.gauge(&SERVER_UP).set(1.0),
                NoteKind::Probes | NoteKind::File => {}
            },
            FlightRecord::Pressure(pressure) => self.observe_pressure(pressure),
            FlightRecord::Sessions(sessions) => {
                self.has_sessions = true;
                self.observe_sessions(sessions);
            }
            FlightRecord::Counters(counters) => {
                if !std::mem::take(&mut self.has_sessions) {
                    registry.gauge(&BLOCKED).set(0.0);
                }
                self.observe_counters(counters);
            }
            _ => {}
        }
    }

    fn observe_second(&self, second: &RecordedSecond) {
        let registry = &self.registry;
        registry.counter(&SECONDS).add(1);
        registry.counter(&ROUNDS).add(second.waits.rounds.into());
        for row in &second.waits.rows {
            let labels = [("process", &*row.kind), ("event", &*row.event)];
            registry.counter_with(&WAIT_SAMPLES, &labels).add(row.samples);
        }
        if let Some(ExtensionTotals { waits, holds, .. }) = &second.extension {
            registry.counter(&EXTENSION_SECONDS).add(1);
            for (metric, durations) in [(&EXTENSION_WAIT, waits), (&EXTENSION_HOLD, holds)] {
                let buckets = durations.counts(SHORT_BOUNDS_US);
                registry.histogram(metric).add_buckets(&buckets, durations.total_us());
            }
        }
        if let Some(sweep) = &second.sweep {
            registry.counter(&BUFFERS_EXAMINED).add(sweep.examined);
            registry.counter(&BUFFER_ALLOCATIONS).add(sweep.allocations);
        }
        let LostCounts {
            missed_samples,
            locks,
            no_start,
            skipped,
            phases,
            calls,
            uncounted_samples,
            records,
        } = second.lost;
        for (kind, count) in [
            ("samples", missed_samples + uncounted_samples),
            ("extension locks", locks + no_start + skipped),
            ("checkpoint phases", phases),
            ("calls", calls),
            ("records", records),
        ] {
            registry.counter_with(&LOST, &[("kind", kind)]).add(count);
        }
    }

    fn observe_phase(&self, ended: &PhaseEnded) {
        let labels = [("phase", ended.phase.as_str())];
        let durations = self.registry.histogram_with(&PHASE_DURATION, &labels);
        durations.observe_us(ended.duration_us);
        if let Some(buffers) = ended.buffers.filter(|_| ended.depth == 0) {
            self.registry.counter(&CHECKPOINT_BUFFERS).add(buffers);
        }
    }

    fn observe_pressure(&self, pressure: &HostPressure) {
        let HostPressure { cpu, io, memory, .. } = *pressure;
        for (resource, share) in [("cpu", cpu), ("io", io), ("memory", memory)] {
            if let Some(share) = share {
                let labels = [("resource", resource)];
                self.registry.gauge_with(&PRESSURE, &labels).set(f64::from(share) / 1e4);
            }
        }
    }

    fn observe_sessions(&self, sessions: &RecordedSessions) {
        let name = |index: u32| {
            usize::try_from(index)
                .ok()
                .and_then(|index| sessions.names.get(index))
                .map_or("", |name| name)
        };
        let mut blocked = 0;
        for row in &sessions.rows {
            blocked += u32::from(!row.blockers.is_empty());
            if name(row.state) == "active" {
                let labels = [
                    ("database", name(row.database)),
                    ("user", name(row.user)),
                    ("event", name(row.wait)),
                ];
                self.registry.counter_with(&SESSION_SAMPLES, &labels).add(1);
            }
        }
        self.registry.gauge(&BLOCKED).set(f64::from(blocked));
    }

    fn observe_counters(&self, counters: &RecordedCounters) {
        let registry = &self.registry;
        for (end, count) in [("commit", counters.commits), ("rollback", counters.rollbacks)] {
            registry.counter_with(&TRANSACTIONS, &[("end", end)]).add(count);
        }
        registry.counter(&DEADLOCKS).add(counters.deadlocks);
        registry.counter(&TEMP_BYTES).add(counters.temp_bytes);
        for (cause, count) in
            [("time", counters.timed_checkpoints), ("request", counters.requested_checkpoints)]
        {
            registry.counter_with(&CHECKPOINTS, &[("cause", cause)]).add(count);
        }
        let lag =
            |value: Option<u64>, unit: f64| value.map_or(f64::NAN, |value| value as f64 / unit);
        registry.gauge(&REPLAY_LAG_BYTES).set(lag(counters.replay_lag_bytes, 1.0));
        registry.gauge(&REPLAY_LAG).set(lag(counters.replay_lag_ms, 1e3));
    }
}
