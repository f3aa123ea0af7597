//! Prometheus metrics of the daemons, in addition to those of every dump and load.

use crate::metrics::WarmMetrics;
use howdah_stats::{Counter, Description, Gauge, MetricUnit, Registry};

/// The metrics that only the daemons export, in the order of the reference page. Those of dumps and
/// loads are [`crate::metrics::METRICS`].
pub const METRICS: &[Description] = &[SERVER_UP, RESTARTS, READ_AHEAD_BYTES];

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
