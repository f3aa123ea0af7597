//! Prometheus metrics: their descriptions, and how a sample updates them.
//!
//! Counters of the server are accumulated from zero at startup, so that a statistics reset, a
//! restart or a failover never makes them decrease. Gauges of unreadable values are `NaN`.

use std::collections::BTreeMap;

use howdah_collect::{BackendActivity, BackendState, BackendType, Overview};
use howdah_stats::{Counter, Description, Gauge, MetricUnit, Registry};

use crate::{
    ServerHealth, ServerSnapshot,
    rules::{Alert, RuleSubject, UncheckedRule},
};

/// All metrics of `howdah top`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    SERVER_UP,
    IN_RECOVERY,
    SCRAPE_DURATION,
    SESSIONS,
    CONNECTIONS_MAX,
    BLOCKED,
    LONGEST_QUERY,
    LONGEST_TRANSACTION,
    WAITING,
    TRANSACTIONS,
    BLOCKS,
    ROWS_CHANGED,
    TEMP_BYTES,
    DEADLOCKS,
    WAL_BYTES,
    LAG_BYTES,
    LAG_SECONDS,
    XID_AGE,
    ALERTS,
];

const fn gauge(name: &'static str, help: &'static str) -> Description {
    Description::gauge(name, help).labels(&["server"])
}

const fn counter(name: &'static str, help: &'static str) -> Description {
    Description::counter(name, help).labels(&["server"])
}

const SERVER_UP: Description =
    gauge("howdah_top_server_up", "Whether the server is reachable, 0 or 1.");
const IN_RECOVERY: Description =
    gauge("howdah_top_in_recovery", "Whether the server is in recovery, 0 or 1.");
const SCRAPE_DURATION: Description =
    gauge("howdah_top_scrape_duration_seconds", "How long the last sample took.")
        .unit(MetricUnit::Seconds);
const SESSIONS: Description =
    Description::gauge("howdah_top_sessions", "Client sessions by state.")
        .labels(&["server", "state"]);
const CONNECTIONS_MAX: Description =
    gauge("howdah_top_connections_max", "The server's max_connections.");
const BLOCKED: Description = gauge("howdah_top_blocked_sessions", "Sessions waiting for a lock.");
const LONGEST_QUERY: Description =
    gauge("howdah_top_longest_query_seconds", "Run time of the longest-running statement.")
        .unit(MetricUnit::Seconds);
const LONGEST_TRANSACTION: Description =
    gauge("howdah_top_longest_transaction_seconds", "Age of the oldest transaction.")
        .unit(MetricUnit::Seconds);
const WAITING: Description = Description::gauge(
    "howdah_top_active_sessions",
    "Active sessions by wait event class; none is running.",
)
.labels(&["server", "wait"]);
const TRANSACTIONS: Description = Description::counter(
    "howdah_top_transactions_total",
    "Transactions in all databases by outcome.",
)
.labels(&["server", "end"]);
const BLOCKS: Description = Description::counter(
    "howdah_top_blocks_total",
    "Pages requested, by where they were found: cache or system.",
)
.labels(&["server", "found"]);
const ROWS_CHANGED: Description =
    counter("howdah_top_rows_changed_total", "Rows inserted, updated and deleted.");
const TEMP_BYTES: Description =
    counter("howdah_top_temp_bytes_total", "Bytes written to temporary files.")
        .unit(MetricUnit::Bytes);
const DEADLOCKS: Description = counter("howdah_top_deadlocks_total", "Deadlocks.");
const WAL_BYTES: Description =
    counter("howdah_top_wal_bytes_total", "Bytes of WAL written, or received by a standby.")
        .unit(MetricUnit::Bytes);
const LAG_BYTES: Description = gauge(
    "howdah_top_lag_bytes",
    "WAL not replayed by the standby, or by the slowest standby of a primary.",
)
.unit(MetricUnit::Bytes);
const LAG_SECONDS: Description = gauge(
    "howdah_top_lag_seconds",
    "Replay lag of the standby, or of the slowest standby of a primary.",
)
.unit(MetricUnit::Seconds);
const XID_AGE: Description =
    gauge("howdah_top_xid_age", "Age of the oldest unfrozen transaction id.");
const ALERTS: Description = Description::gauge("howdah_top_alerts", "Firing alerts by subject.")
    .labels(&["server", "subject"]);

/// Session states as label values.
const STATES: [&str; 5] = ["active", "idle", "idle_in_transaction", "failed", "unknown"];

/// The wait event classes that are exported (manual, "Wait Event Types"); `none` means running.
const WAITS: [&str; 10] = [
    "none",
    "Activity",
    "BufferPin",
    "Client",
    "Extension",
    "IO",
    "IPC",
    "Lock",
    "LWLock",
    "Timeout",
];

/// Prometheus metrics of one server, with the state for accumulating counters.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    gauges: BTreeMap<&'static str, Gauge>,
    sessions: [Gauge; STATES.len()],
    waits: [Gauge; WAITS.len()],
    alerts: [Gauge; RuleSubject::ALL.len()],
    sums: Vec<(Counter, CounterSource)>,
    /// The last sample, from which the growth of counters is computed.
    last: Option<Overview>,
}

/// A function that reads a counter from an overview; `None` if the counter is unreadable.
type CounterSource = fn(&Overview) -> Option<i64>;

impl ServerMetrics {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let named = |description: &Description| {
            (description.name(), registry.gauge_with(description, &[("server", server)]))
        };
        let with = |description: &Description, name, value| {
            registry.gauge_with(description, &[("server", server), (name, value)])
        };
        let counted =
            |description: &Description, label: Option<(&'static str, &str)>, sum: CounterSource| {
                let labels: Vec<_> = [("server", server)].into_iter().chain(label).collect();
                (registry.counter_with(description, &labels), sum)
            };
        let single = [
            SERVER_UP,
            IN_RECOVERY,
            SCRAPE_DURATION,
            CONNECTIONS_MAX,
            BLOCKED,
            LONGEST_QUERY,
            LONGEST_TRANSACTION,
            LAG_BYTES,
            LAG_SECONDS,
            XID_AGE,
        ];
        let mut metrics = Self {
            gauges: single.iter().map(named).collect(),
            sessions: STATES.map(|state| with(&SESSIONS, "state", state)),
            waits: WAITS.map(|wait| with(&WAITING, "wait", wait)),
            alerts: RuleSubject::ALL.map(|subject| with(&ALERTS, "subject", subject.name())),
            sums: vec![
                counted(&TRANSACTIONS, Some(("end", "commit")), |o| Some(o.commits)),
                counted(&TRANSACTIONS, Some(("end", "rollback")), |o| Some(o.rollbacks)),
                counted(&BLOCKS, Some(("found", "cache")), |o| Some(o.blocks_hit)),
                counted(&BLOCKS, Some(("found", "system")), |o| Some(o.blocks_read)),
                counted(&ROWS_CHANGED, None, |o| Some(o.rows_changed)),
                counted(&TEMP_BYTES, None, |o| Some(o.temp_bytes)),
                counted(&DEADLOCKS, None, |o| Some(o.deadlocks)),
                counted(&WAL_BYTES, None, |o| o.wal_bytes),
            ],
            last: None,
        };
        metrics.mark_unreachable();
        metrics
    }

    /// Updates all metrics from the server's state.
    pub(crate) fn update<'a>(
        &mut self,
        health: &ServerHealth,
        alerts: impl Iterator<Item = &'a Alert>,
        unchecked: &[UncheckedRule],
    ) {
        match health {
            ServerHealth::Connecting => {}
            ServerHealth::Unreachable { .. } => self.mark_unreachable(),
            ServerHealth::Read(snapshot) => self.set_snapshot(snapshot),
        }
        let mut counts = [0.0; RuleSubject::ALL.len()];
        for alert in alerts {
            counts[alert.subject as usize] += 1.0;
        }
        // An unchecked rule may be firing, so zero would be wrong.
        for unchecked in unchecked {
            let count = &mut counts[unchecked.subject as usize];
            *count = if *count > 0.0 { *count } else { f64::NAN };
        }
        self.alerts.iter().zip(counts).for_each(|(gauge, count)| gauge.set(count));
    }

    fn set(&self, description: &Description, value: Option<f64>) {
        if let Some(gauge) = self.gauges.get(description.name()) {
            gauge.set(value.unwrap_or(f64::NAN));
        }
    }

    /// Marks the server as down, and all gauges except those of alerts as unknown.
    fn mark_unreachable(&mut self) {
        let all = self.gauges.values().chain(&self.sessions).chain(&self.waits);
        all.for_each(|gauge| gauge.set(f64::NAN));
        self.set(&SERVER_UP, Some(0.0));
    }

    fn set_snapshot(&mut self, snapshot: &ServerSnapshot) {
        let now = &snapshot.overview;
        self.set(&SERVER_UP, Some(1.0));
        self.set(&IN_RECOVERY, Some(f64::from(now.is_standby)));
        self.set(&SCRAPE_DURATION, Some(snapshot.duration.as_secs_f64()));
        self.set(&CONNECTIONS_MAX, Some(real(snapshot.server.max_connections)));
        let bytes = now.replay_lag_bytes.max(now.followers_lag_bytes);
        self.set(&LAG_BYTES, bytes.map(real));
        let seconds = [now.replay_lag_seconds, now.followers_lag_seconds];
        self.set(&LAG_SECONDS, seconds.into_iter().flatten().max_by(f64::total_cmp));
        self.set(&XID_AGE, now.frozen_age.map(real));
        self.set_sessions(snapshot);
        if let Some(before) = &self.last {
            for (counter, sum) in &self.sums {
                let growth = sum(now).zip(sum(before)).map_or(0, |(now, before)| now - before);
                counter.add(u64::try_from(growth).unwrap_or(0));
            }
        }
        self.last = Some(now.clone());
    }

    fn set_sessions(&self, snapshot: &ServerSnapshot) {
        let now_us = snapshot.activity.taken_us;
        let mut states = [0.0; STATES.len()];
        let mut waits = [0.0; WAITS.len()];
        let (mut blocked, mut query, mut transaction) = (0.0, 0.0_f64, 0.0_f64);
        let is_hidden = snapshot.activity.backends.iter().any(BackendActivity::is_hidden_client);
        for backend in &snapshot.activity.backends {
            if let Some(state) = state_index(backend) {
                states[state] += 1.0;
            }
            if !backend.blockers.is_empty() {
                blocked += 1.0;
            }
            let works =
                matches!(backend.state, Some(BackendState::Active | BackendState::FastPath))
                    && backend.kind != Some(BackendType::WalSender);
            if works {
                let class = backend.wait.as_ref().map_or("none", |wait| &wait.class);
                if let Some(at) = WAITS.iter().position(|known| *known == class) {
                    waits[at] += 1.0;
                }
                query = query.max(backend.duration(now_us).unwrap_or(0.0));
            }
            transaction = transaction.max(backend.transaction_age(now_us).unwrap_or(0.0));
        }
        self.sessions.iter().zip(states).for_each(|(gauge, count)| gauge.set(count));
        self.waits.iter().zip(waits).for_each(|(gauge, count)| gauge.set(count));
        self.set(&BLOCKED, Some(blocked));
        // The longest query may be that of a hidden session, and a count of zero is unknown if
        // sessions are hidden.
        self.set(&LONGEST_QUERY, Some(query).filter(|_| !is_hidden));
        self.set(&LONGEST_TRANSACTION, Some(transaction).filter(|_| !is_hidden));
        if is_hidden {
            let known = self.sessions.iter().zip(states).chain(self.waits.iter().zip(waits));
            known.filter(|(_, count)| *count == 0.0).for_each(|(gauge, _)| gauge.set(f64::NAN));
        }
    }
}

/// Returns the index into [`STATES`] of a client's session; `None` for other processes.
fn state_index(backend: &BackendActivity) -> Option<usize> {
    match (&backend.kind, backend.state) {
        (Some(BackendType::Client), Some(BackendState::Active | BackendState::FastPath)) => Some(0),
        (Some(BackendType::Client), Some(BackendState::Idle)) => Some(1),
        (Some(BackendType::Client), Some(BackendState::IdleInTransaction)) => Some(2),
        (Some(BackendType::Client), Some(BackendState::IdleInFailedTransaction)) => Some(3),
        (Some(BackendType::Client), _) => Some(4),
        // A hidden session with a database belongs to a client or a background worker.
        (None, _) if backend.database.is_some() => Some(4),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus values are floats")]
fn real(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use howdah_collect::BackendWait;

    use super::*;
    use crate::sampler::tests::snapshot;

    fn backend(pid: i32, state: BackendState, wait: Option<&str>) -> BackendActivity {
        BackendActivity {
            pid,
            kind: Some(BackendType::Client),
            state: Some(state),
            query_started_us: Some(0),
            wait: wait.map(|class| BackendWait { class: class.into(), event: "x".into() }),
            is_readable: true,
            ..BackendActivity::default()
        }
    }

    #[test]
    fn gauges_follow_latest_sample_and_counters_never_decrease() {
        let registry = Registry::new();
        let mut metrics = ServerMetrics::new(&registry, "db1");
        let shows = |line: &str| registry.prometheus().lines().any(|shown| shown == line);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 0"));
        let mut read = |commits: i64, backends| {
            let mut snapshot = snapshot(5_000_000, backends);
            snapshot.overview.commits = commits;
            metrics.update(&ServerHealth::Read(Arc::new(snapshot)), std::iter::empty(), &[]);
        };
        let backends = vec![
            backend(1, BackendState::Active, Some("IO")),
            backend(2, BackendState::Active, None),
            backend(3, BackendState::IdleInTransaction, Some("Client")),
            BackendActivity { pid: 4, database: Some("shop".into()), ..BackendActivity::default() },
        ];
        read(100, backends);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 1"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"active\"} 2"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"unknown\"} 1"));
        assert!(shows("howdah_top_active_sessions{server=\"db1\",wait=\"IO\"} 1"));
        // One session is hidden, and may be doing any of these.
        assert!(shows("howdah_top_longest_query_seconds{server=\"db1\"} NaN"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"idle\"} NaN"));
        assert!(shows("howdah_top_lag_bytes{server=\"db1\"} NaN"), "none is not zero");
        assert!(shows("howdah_top_transactions_total{server=\"db1\",end=\"commit\"} 0"));
        read(130, vec![backend(1, BackendState::Active, None)]);
        assert!(shows("howdah_top_longest_query_seconds{server=\"db1\"} 5"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"idle\"} 0"));
        read(5, Vec::new());
        read(7, Vec::new());
        assert!(shows("howdah_top_transactions_total{server=\"db1\",end=\"commit\"} 32"));
        let unreachable = ServerHealth::Unreachable {
            reason: String::new(),
            since: std::time::Instant::now(),
            retry_at: std::time::Instant::now(),
            last: None,
        };
        metrics.update(&unreachable, std::iter::empty(), &[]);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 0"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"active\"} NaN"));
    }
}
