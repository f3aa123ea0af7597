//! What the endpoint tells of the server itself, beside the metrics that came in: one table, for both
//! formats.
//!
//! Packets, metrics and bad lines are ordinary counters and stand among the others.

use super::families::{Families, Shape};
use crate::{
    backends::{DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, LOST_VALUES, SPOOL_BYTES},
    flush::BackendAccount,
    ledger::SocketAccount,
};

/// One family.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) help: &'static str,
    pub(super) shape: Shape,
    /// Values, each with its label, if it has one.
    pub(super) samples: Vec<(Option<(&'static str, String)>, f64)>,
}

/// All families, under the server's prefix.
pub(super) fn rows(families: &Families) -> Vec<Row> {
    let own = &families.own;
    let prefix = super::names::metric(match &*own.prefix {
        "" => "statsd",
        prefix => prefix,
    });
    let (account, backends) = (&own.account, &own.backends);
    let mut rows = vec![
        Row {
            name: "kernel_drops_total".to_owned(),
            help: "Packets that the kernel dropped because a socket's buffer was full.",
            shape: Shape::Counter,
            samples: by_socket(&account.sockets, |socket| socket.drops_total as f64),
        },
        Row {
            name: "receive_buffer_bytes".to_owned(),
            help: "Receive buffer that a socket really has.",
            shape: Shape::Gauge,
            samples: by_socket(&account.sockets, |socket| socket.buffer_bytes as f64),
        },
        Row {
            name: "backend_spool_bytes".to_owned(),
            help: "What waits for a backend's receiver.",
            shape: Shape::Gauge,
            samples: by_backend(backends, SPOOL_BYTES),
        },
        Row {
            name: "backend_lost_values_total".to_owned(),
            help: "Values that a backend could not deliver, nor keep.",
            shape: Shape::Counter,
            samples: by_backend(backends, LOST_VALUES),
        },
        Row {
            name: "backend_flushes_dropped_total".to_owned(),
            help: "Intervals that a busy backend had no room for.",
            shape: Shape::Counter,
            samples: by_backend(backends, FLUSHES_DROPPED),
        },
        Row {
            name: "backend_dropped_metrics_total".to_owned(),
            help: "Metrics in those intervals.",
            shape: Shape::Counter,
            samples: by_backend(backends, DROPPED_METRICS),
        },
        Row {
            name: "backend_flushes_joined_total".to_owned(),
            help: "Intervals that were added to another because a backend was busy.",
            shape: Shape::Counter,
            samples: by_backend(backends, FLUSHES_JOINED),
        },
    ];
    let plain = [
        (
            "backlog_drops_total",
            "Packets that the host dropped before any socket.",
            Shape::Counter,
            account.backlog_drops_total as f64,
        ),
        (
            "events_total",
            "DogStatsD events, counted and dropped.",
            Shape::Counter,
            own.events_total as f64,
        ),
        (
            "service_checks_total",
            "DogStatsD service checks, counted and dropped.",
            Shape::Counter,
            own.checks_total as f64,
        ),
        (
            "timestamps_ignored_total",
            "DogStatsD timestamps, which are not used.",
            Shape::Counter,
            own.timestamps_total as f64,
        ),
        (
            "prometheus_series",
            "Series at this endpoint.",
            Shape::Gauge,
            families.series_count() as f64,
        ),
        (
            "prometheus_dropped_values_total",
            "Values without a place: too many series, or a mapping drops them.",
            Shape::Counter,
            families.dropped as f64,
        ),
        (
            "prometheus_renamed_keys_total",
            "Keys whose name another kind of metric had already.",
            Shape::Counter,
            families.renamed as f64,
        ),
        ("flush_num_stats", "Metrics in the last flush.", Shape::Gauge, own.num_stats as f64),
        (
            "flush_processing_seconds",
            "Time that the last flush's statistics took.",
            Shape::Gauge,
            own.processing_ms / 1000.0,
        ),
    ];
    // These are told above, as counters.
    let told = ["kernel_drops", "backlog_drops", "events", "service_checks"];
    let extra = own.extra.iter().filter(|(name, _)| !told.contains(name));
    let extra =
        extra.map(|(name, value)| (*name, "The server about itself.", Shape::Gauge, *value));
    rows.extend(plain.into_iter().chain(extra).map(|(name, help, shape, value)| Row {
        name: name.to_owned(),
        help,
        shape,
        samples: vec![(None, value)],
    }));
    rows.retain(|row| !row.samples.is_empty());
    for row in &mut rows {
        row.name = format!("{prefix}_{}", row.name);
    }
    rows
}

fn by_socket(
    sockets: &[SocketAccount],
    value: impl Fn(&SocketAccount) -> f64,
) -> Vec<(Option<(&'static str, String)>, f64)> {
    sockets.iter().map(|socket| (Some(("socket", socket.name.clone())), value(socket))).collect()
}

fn by_backend(
    backends: &[BackendAccount],
    word: &str,
) -> Vec<(Option<(&'static str, String)>, f64)> {
    let value = |backend: &BackendAccount| {
        backend.values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
    };
    let one =
        |backend: &BackendAccount| Some((Some(("backend", backend.name.clone())), value(backend)?));
    backends.iter().filter_map(one).collect()
}
