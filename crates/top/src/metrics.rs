//! What servers do, for Prometheus: the table of metrics, and how a reading fills it.
//!
//! Sums of the server are counted on from zero when the watching begins, so that a reset of its statistics, a
//! restart or a failover is no step back. What cannot be read, or no more, is not a number: `NaN`.

use std::collections::BTreeMap;

use howdah_collect::{Backend, Kind, Overview, State};
use howdah_stats::{Counter, Description, Gauge, Registry, Unit};

use crate::{
    Snapshot, Standing,
    rules::{Alert, Subject, Unchecked},
};

/// Every metric of `howdah top`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    SERVER_UP,
    STANDBY,
    READING_SECONDS,
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
    FROZEN_AGE,
    ALERTS,
];

const fn gauge(name: &'static str, help: &'static str) -> Description {
    Description::gauge(name, help).labels(&["server"])
}

const fn counter(name: &'static str, help: &'static str) -> Description {
    Description::counter(name, help).labels(&["server"])
}

const SERVER_UP: Description = gauge("howdah_top_server_up", "Whether the server answers, 0 or 1.");
const STANDBY: Description =
    gauge("howdah_top_in_recovery", "Whether it follows a primary, 0 or 1.");
const READING_SECONDS: Description =
    gauge("howdah_top_scrape_duration_seconds", "How long the newest reading took.")
        .unit(Unit::Seconds);
const SESSIONS: Description =
    Description::gauge("howdah_top_sessions", "Sessions of clients, by what they do.")
        .labels(&["server", "state"]);
const CONNECTIONS_MAX: Description =
    gauge("howdah_top_connections_max", "The server's max_connections.");
const BLOCKED: Description =
    gauge("howdah_top_blocked_sessions", "Sessions that wait for a lock of another.");
const LONGEST_QUERY: Description =
    gauge("howdah_top_longest_query_seconds", "How long the oldest running statement has run.")
        .unit(Unit::Seconds);
const LONGEST_TRANSACTION: Description =
    gauge("howdah_top_longest_transaction_seconds", "How long the oldest transaction has lasted.")
        .unit(Unit::Seconds);
const WAITING: Description = Description::gauge(
    "howdah_top_active_sessions",
    "Active sessions, by the class of what they wait for; none is running.",
)
.labels(&["server", "wait"]);
const TRANSACTIONS: Description = Description::counter(
    "howdah_top_transactions_total",
    "Transactions in all databases, by how they ended.",
)
.labels(&["server", "end"]);
const BLOCKS: Description = Description::counter(
    "howdah_top_blocks_total",
    "Pages asked for, by where they were found: cache or system.",
)
.labels(&["server", "found"]);
const ROWS_CHANGED: Description =
    counter("howdah_top_rows_changed_total", "Rows inserted, updated and deleted.");
const TEMP_BYTES: Description =
    counter("howdah_top_temp_bytes_total", "Bytes written to temporary files.").unit(Unit::Bytes);
const DEADLOCKS: Description = counter("howdah_top_deadlocks_total", "Deadlocks.");
const WAL_BYTES: Description =
    counter("howdah_top_wal_bytes_total", "Bytes of log written, or received by a standby.")
        .unit(Unit::Bytes);
const LAG_BYTES: Description = gauge(
    "howdah_top_lag_bytes",
    "Log that a standby, or the slowest one of a primary, has not replayed.",
)
.unit(Unit::Bytes);
const LAG_SECONDS: Description = gauge(
    "howdah_top_lag_seconds",
    "How long a standby, or the slowest one of a primary, is behind.",
)
.unit(Unit::Seconds);
const FROZEN_AGE: Description =
    gauge("howdah_top_xid_age", "Age of the oldest transaction that is not frozen.");
const ALERTS: Description =
    Description::gauge("howdah_top_alerts", "Alerts that hold, by what they are about.")
        .labels(&["server", "subject"]);

/// The words of states, as labels.
const STATES: [&str; 5] = ["active", "idle", "idle_in_transaction", "failed", "unknown"];

/// The classes of waits (manual, "Wait Event Types"), `none` for running.
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

/// Shows the figures of one server.
#[derive(Debug)]
pub(crate) struct Figures {
    gauges: BTreeMap<&'static str, Gauge>,
    sessions: [Gauge; STATES.len()],
    waits: [Gauge; WAITS.len()],
    alerts: [Gauge; Subject::ALL.len()],
    sums: Vec<(Counter, Sum)>,
    /// The sums of the last reading.
    last: Option<Overview>,
}

/// Takes a sum out of an overview.
type Sum = fn(&Overview) -> Option<i64>;

impl Figures {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let named = |description: &Description| {
            (description.name(), registry.gauge_with(description, &[("server", server)]))
        };
        let with = |description: &Description, name, value| {
            registry.gauge_with(description, &[("server", server), (name, value)])
        };
        let counted = |description: &Description, label: Option<(&'static str, &str)>, sum: Sum| {
            let labels: Vec<_> = [("server", server)].into_iter().chain(label).collect();
            (registry.counter_with(description, &labels), sum)
        };
        let single = [
            SERVER_UP,
            STANDBY,
            READING_SECONDS,
            CONNECTIONS_MAX,
            BLOCKED,
            LONGEST_QUERY,
            LONGEST_TRANSACTION,
            LAG_BYTES,
            LAG_SECONDS,
            FROZEN_AGE,
        ];
        let mut figures = Self {
            gauges: single.iter().map(named).collect(),
            sessions: STATES.map(|state| with(&SESSIONS, "state", state)),
            waits: WAITS.map(|wait| with(&WAITING, "wait", wait)),
            alerts: Subject::ALL.map(|subject| with(&ALERTS, "subject", subject.name())),
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
        figures.hide();
        figures
    }

    /// Shows how it stands.
    pub(crate) fn show<'a>(
        &mut self,
        standing: &Standing,
        alerts: impl Iterator<Item = &'a Alert>,
        unchecked: &[Unchecked],
    ) {
        match standing {
            Standing::Connecting => {}
            Standing::Away { .. } => self.hide(),
            Standing::Read(snapshot) => self.read(snapshot),
        }
        let mut counts = [0.0; Subject::ALL.len()];
        for alert in alerts {
            counts[alert.subject as usize] += 1.0;
        }
        // None is known to hold, and some may.
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

    /// Nothing is known but that the server is away.
    fn hide(&mut self) {
        let all = self.gauges.values().chain(&self.sessions).chain(&self.waits);
        all.for_each(|gauge| gauge.set(f64::NAN));
        self.set(&SERVER_UP, Some(0.0));
    }

    fn read(&mut self, snapshot: &Snapshot) {
        let now = &snapshot.overview;
        self.set(&SERVER_UP, Some(1.0));
        self.set(&STANDBY, Some(f64::from(now.is_standby)));
        self.set(&READING_SECONDS, Some(snapshot.cost.as_secs_f64()));
        self.set(&CONNECTIONS_MAX, Some(real(snapshot.identity.connections_max)));
        let bytes = now.replay_lag_bytes.max(now.followers_lag_bytes);
        self.set(&LAG_BYTES, bytes.map(real));
        let seconds = [now.replay_lag_seconds, now.followers_lag_seconds];
        self.set(&LAG_SECONDS, seconds.into_iter().flatten().max_by(f64::total_cmp));
        self.set(&FROZEN_AGE, now.frozen_age.map(real));
        self.read_sessions(snapshot);
        if let Some(before) = &self.last {
            for (counter, sum) in &self.sums {
                let growth = sum(now).zip(sum(before)).map_or(0, |(now, before)| now - before);
                counter.add(u64::try_from(growth).unwrap_or(0));
            }
        }
        self.last = Some(now.clone());
    }

    fn read_sessions(&self, snapshot: &Snapshot) {
        let now_us = snapshot.activity.taken_us;
        let mut states = [0.0; STATES.len()];
        let mut waits = [0.0; WAITS.len()];
        let (mut blocked, mut query, mut transaction) = (0.0, 0.0_f64, 0.0_f64);
        let is_hidden = snapshot.activity.backends.iter().any(Backend::is_hidden_client);
        for backend in &snapshot.activity.backends {
            if let Some(state) = state_of(backend) {
                states[state] += 1.0;
            }
            if !backend.blockers.is_empty() {
                blocked += 1.0;
            }
            let works = matches!(backend.state, Some(State::Active | State::FastPath))
                && backend.kind != Some(Kind::WalSender);
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
        // A hidden session may be the longest; and where none of a kind is visible, some may be hidden.
        self.set(&LONGEST_QUERY, Some(query).filter(|_| !is_hidden));
        self.set(&LONGEST_TRANSACTION, Some(transaction).filter(|_| !is_hidden));
        if is_hidden {
            let known = self.sessions.iter().zip(states).chain(self.waits.iter().zip(waits));
            known.filter(|(_, count)| *count == 0.0).for_each(|(gauge, _)| gauge.set(f64::NAN));
        }
    }
}

/// The place in [`STATES`] of a client's session; `None` for what is none.
fn state_of(backend: &Backend) -> Option<usize> {
    match (&backend.kind, backend.state) {
        (Some(Kind::Client), Some(State::Active | State::FastPath)) => Some(0),
        (Some(Kind::Client), Some(State::Idle)) => Some(1),
        (Some(Kind::Client), Some(State::IdleInTransaction)) => Some(2),
        (Some(Kind::Client), Some(State::IdleInFailedTransaction)) => Some(3),
        (Some(Kind::Client), _) => Some(4),
        // The role may not look; that it has a database says that it is somebody's.
        (None, _) if backend.database.is_some() => Some(4),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "what Prometheus has are floats")]
fn real(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use howdah_collect::Wait;

    use super::*;
    use crate::sampler::tests::snapshot;

    fn backend(pid: i32, state: State, wait: Option<&str>) -> Backend {
        Backend {
            pid,
            kind: Some(Kind::Client),
            state: Some(state),
            query_started_us: Some(0),
            wait: wait.map(|class| Wait { class: class.into(), event: "x".into() }),
            is_readable: true,
            ..Backend::default()
        }
    }

    #[test]
    fn figures_are_those_of_the_newest_reading_and_sums_never_go_back() {
        let registry = Registry::new();
        let mut figures = Figures::new(&registry, "db1");
        let shows = |line: &str| registry.prometheus().lines().any(|shown| shown == line);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 0"));
        let mut read = |commits: i64, backends| {
            let mut snapshot = snapshot(5_000_000, backends);
            snapshot.overview.commits = commits;
            figures.show(&Standing::Read(Arc::new(snapshot)), std::iter::empty(), &[]);
        };
        let backends = vec![
            backend(1, State::Active, Some("IO")),
            backend(2, State::Active, None),
            backend(3, State::IdleInTransaction, Some("Client")),
            Backend { pid: 4, database: Some("shop".into()), ..Backend::default() },
        ];
        read(100, backends);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 1"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"active\"} 2"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"unknown\"} 1"));
        assert!(shows("howdah_top_active_sessions{server=\"db1\",wait=\"IO\"} 1"));
        // One session is hidden: what it does may be any of these.
        assert!(shows("howdah_top_longest_query_seconds{server=\"db1\"} NaN"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"idle\"} NaN"));
        assert!(shows("howdah_top_lag_bytes{server=\"db1\"} NaN"), "none is not zero");
        assert!(shows("howdah_top_transactions_total{server=\"db1\",end=\"commit\"} 0"));
        read(130, vec![backend(1, State::Active, None)]);
        assert!(shows("howdah_top_longest_query_seconds{server=\"db1\"} 5"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"idle\"} 0"));
        read(5, Vec::new());
        read(7, Vec::new());
        assert!(shows("howdah_top_transactions_total{server=\"db1\",end=\"commit\"} 32"));
        let away = Standing::Away {
            reason: String::new(),
            since: std::time::Instant::now(),
            retry: std::time::Instant::now(),
            last: None,
        };
        figures.show(&away, std::iter::empty(), &[]);
        assert!(shows("howdah_top_server_up{server=\"db1\"} 0"));
        assert!(shows("howdah_top_sessions{server=\"db1\",state=\"active\"} NaN"));
    }
}
