//! Prometheus metrics of the daemons, in addition to those of every dump and load.

use std::collections::BTreeMap;

use howdah_stats::{Counter, Description, Gauge, MetricUnit, Registry};

use crate::{
    heat::{HeatReport, HeatShare},
    metrics::WarmMetrics,
};

/// The metrics that only the daemons export, in the order of the reference page. Those of dumps and
/// loads are [`crate::metrics::METRICS`].
pub const METRICS: &[Description] = &[
    SERVER_UP,
    RESTARTS,
    READ_AHEAD_BYTES,
    SERVER_WARM,
    HEAT_RATIO,
    DATABASE_HEAT_RATIO,
    FOLLOWED_SERVERS,
    DISCOVERED_SERVERS,
    HELD_OUT,
    HOLD_OUTS,
];

const SERVER_UP: Description =
    Description::gauge("howdah_warm_server_up", "Whether the server is reachable, 0 or 1.")
        .labels(&["server"]);
const RESTARTS: Description = Description::counter(
    "howdah_warm_restarts_total",
    "Restarts of the server that emptied its cache.",
)
.labels(&["server"]);
const READ_AHEAD_BYTES: Description = Description::counter(
    "howdah_warm_read_ahead_bytes_total",
    "Bytes of data files read ahead before the server accepted connections.",
)
.unit(MetricUnit::Bytes)
.labels(&["server"]);

const SERVER_WARM: Description = Description::gauge(
    "howdah_warm_server_warm",
    "Whether the server is warm, as `/warm` reports, 0 or 1.",
)
.labels(&["server"]);
const HEAT_RATIO: Description = Description::gauge(
    "howdah_warm_heat_ratio",
    "Share of the image's heat in the cache, when last measured.",
)
.unit(MetricUnit::Ratio)
.labels(&["server"]);
const DATABASE_HEAT_RATIO: Description = Description::gauge(
    "howdah_warm_database_heat_ratio",
    "The same for the hottest databases, and for those with a floor.",
)
.unit(MetricUnit::Ratio)
.labels(&["server", "database"]);
const FOLLOWED_SERVERS: Description = Description::gauge(
    "howdah_warm_followed_servers",
    "Servers of `follow`, also unreachable ones.",
);
const DISCOVERED_SERVERS: Description = Description::counter(
    "howdah_warm_discovered_servers_total",
    "Servers that `follow` discovered (`joined`) and dropped again (`left`).",
)
.labels(&["event"]);
const HELD_OUT: Description = Description::gauge(
    "howdah_warm_held_out",
    "Whether `follow` has banned the server in a pooler, 0 or 1.",
)
.labels(&["server"]);
const HOLD_OUTS: Description = Description::counter(
    "howdah_warm_hold_outs_total",
    "Bans in poolers that have ended, by reason.",
)
.labels(&["server", "end"]);

/// Maximum number of databases without a floor of their own in [`DATABASE_HEAT_RATIO`].
const EXPORTED_DATABASES_MAX: usize = 20;

/// The metrics of a server's readiness.
#[derive(Clone, Debug)]
pub(crate) struct ReadinessMetrics {
    registry: Registry,
    server: String,
    is_warm: Gauge,
}

impl ReadinessMetrics {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let is_warm = registry.gauge_with(&SERVER_WARM, &[("server", server)]);
        Self { registry: registry.clone(), server: server.to_owned(), is_warm }
    }

    /// Exports the state, and the shares if they were measured. `floors` are those of databases.
    pub(crate) fn publish(
        &self,
        is_warm: bool,
        report: Option<&HeatReport>,
        floors: &BTreeMap<String, f64>,
    ) {
        self.is_warm.set(if is_warm { 1.0 } else { 0.0 });
        let labels = [("server", &*self.server)];
        self.registry.remove(&[DATABASE_HEAT_RATIO], &labels);
        let Some(report) = report else { return };
        if let Some(ratio) = report.total.heat_ratio() {
            self.registry.gauge_with(&HEAT_RATIO, &labels).set(ratio);
        }
        let mut databases: Vec<(&String, &HeatShare)> = report.databases.iter().collect();
        databases.sort_by_key(|(name, share)| {
            (!floors.contains_key(*name), std::cmp::Reverse(share.heat))
        });
        databases.truncate(EXPORTED_DATABASES_MAX + floors.len());
        for (name, share) in databases {
            if let Some(ratio) = share.heat_ratio() {
                let labels = [("server", &*self.server), ("database", &**name)];
                self.registry.gauge_with(&DATABASE_HEAT_RATIO, &labels).set(ratio);
            }
        }
    }
}

/// The metrics of `follow` that concern all of its servers.
#[derive(Clone, Debug)]
pub(crate) struct FollowMetrics {
    registry: Registry,
    servers: Gauge,
}

impl FollowMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self { registry: registry.clone(), servers: registry.gauge(&FOLLOWED_SERVERS) }
    }

    pub(crate) fn set_servers(&self, count: usize) {
        self.servers.set(count as f64);
    }

    pub(crate) fn record_joined(&self) {
        self.registry.counter_with(&DISCOVERED_SERVERS, &[("event", "joined")]).add(1);
    }

    /// Records that a discovered server was dropped, and removes its metrics.
    pub(crate) fn record_left(&self, server: &str) {
        self.registry.counter_with(&DISCOVERED_SERVERS, &[("event", "left")]).add(1);
        for metrics in [METRICS, crate::metrics::METRICS] {
            let of_server: Vec<Description> = metrics
                .iter()
                .filter(|metric| metric.label_names().contains(&"server"))
                .copied()
                .collect();
            self.registry.remove(&of_server, &[("server", server)]);
        }
    }

    pub(crate) fn set_banned(&self, server: &str, is_banned: bool) {
        let gauge = self.registry.gauge_with(&HELD_OUT, &[("server", server)]);
        gauge.set(if is_banned { 1.0 } else { 0.0 });
    }

    pub(crate) fn record_ban_end(&self, server: &str, end: &str) {
        self.registry.counter_with(&HOLD_OUTS, &[("server", server), ("end", end)]).add(1);
    }
}

/// The metrics of one server.
#[derive(Debug)]
pub(crate) struct DaemonMetrics {
    pub(crate) up: Gauge,
    pub(crate) restarts: Counter,
    pub(crate) read_ahead_bytes: Counter,
    /// The metrics of dumps and loads.
    pub(crate) warm: WarmMetrics,
}

impl DaemonMetrics {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let labels = [("server", server)];
        Self {
            up: registry.gauge_with(&SERVER_UP, &labels),
            restarts: registry.counter_with(&RESTARTS, &labels),
            read_ahead_bytes: registry.counter_with(&READ_AHEAD_BYTES, &labels),
            warm: WarmMetrics::new(registry, server),
        }
    }
}
