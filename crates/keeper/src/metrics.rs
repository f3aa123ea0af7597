//! What keepers show to Prometheus beside what every load and dump shows: the table and the handles.

use howdah_stats::{Counter, Description, Gauge, Registry, Unit};
use howdah_warm::metrics;

/// The metrics that only keepers have, in the order of the reference page. The others are
/// [`howdah_warm::metrics::METRICS`].
pub const METRICS: &[Description] = &[SERVER_UP, RESTARTS, READ_AHEAD_BYTES];

const SERVER_UP: Description =
    Description::gauge("howdah_warm_server_up", "Whether the server answers, 0 or 1.")
        .labels(&["server"]);
const RESTARTS: Description = Description::counter(
    "howdah_warm_restarts_total",
    "Times that the server came back with an empty cache.",
)
.labels(&["server"]);
const READ_AHEAD_BYTES: Description = Description::counter(
    "howdah_warm_read_ahead_bytes_total",
    "Bytes that the operating system was asked to read before the server let anybody in.",
)
.unit(Unit::Bytes)
.labels(&["server"]);

/// The handles of one server.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) up: Gauge,
    pub(crate) restarts: Counter,
    pub(crate) read_ahead_bytes: Counter,
    /// Images and loads.
    pub(crate) work: metrics::Numbers,
}

impl Numbers {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let labels = [("server", server)];
        Self {
            up: registry.gauge_with(&SERVER_UP, &labels),
            restarts: registry.counter_with(&RESTARTS, &labels),
            read_ahead_bytes: registry.counter_with(&READ_AHEAD_BYTES, &labels),
            work: metrics::Numbers::new(registry, server),
        }
    }
}
