//! The server's own metrics at this endpoint: one table for both formats.
//!
//! Packets, metrics and bad lines are ordinary counters and exposed with the received metrics.

use super::families::{FamilyTable, FamilyType};
use crate::{
    backends::{DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, LOST_VALUES, SPOOL_BYTES},
    flush::BackendFigures,
    ledger::SocketAccount,
};

/// Name, type, help text and values of a self metric.
pub(super) struct SelfMetricFamily {
    pub(super) name: String,
    pub(super) help: &'static str,
    pub(super) shape: FamilyType,
    /// Values, each with its label, if any.
    pub(super) samples: Vec<(Option<(&'static str, String)>, f64)>,
}

/// All self metrics, under the server's prefix.
pub(super) fn self_metric_families(families: &FamilyTable) -> Vec<SelfMetricFamily> {
    let self_metrics = &families.self_metrics;
    let prefix = super::names::metric(match &*self_metrics.prefix {
        "" => "statsd",
        prefix => prefix,
    });
    let (account, backends) = (&self_metrics.account, &self_metrics.backends);
    let mut rows = vec![
        SelfMetricFamily {
            name: "kernel_drops_total".to_owned(),
            help: "Packets that the kernel dropped because a socket's buffer was full.",
            shape: FamilyType::Counter,
            samples: by_socket(&account.sockets, |socket| socket.drops_total as f64),
        },
        SelfMetricFamily {
            name: "receive_buffer_bytes".to_owned(),
            help: "Effective receive buffer of a socket, without the kernel's doubling.",
            shape: FamilyType::Gauge,
            samples: by_socket(&account.sockets, |socket| socket.buffer_bytes as f64),
        },
        SelfMetricFamily {
            name: "backend_spool_bytes".to_owned(),
            help: "Bytes spooled for a backend's receiver.",
            shape: FamilyType::Gauge,
            samples: by_backend(backends, SPOOL_BYTES),
        },
        SelfMetricFamily {
            name: "backend_lost_values_total".to_owned(),
            help: "Values that a backend could neither deliver nor spool.",
            shape: FamilyType::Counter,
            samples: by_backend(backends, LOST_VALUES),
        },
        SelfMetricFamily {
            name: "backend_flushes_dropped_total".to_owned(),
            help: "Intervals dropped because a backend was busy.",
            shape: FamilyType::Counter,
            samples: by_backend(backends, FLUSHES_DROPPED),
        },
        SelfMetricFamily {
            name: "backend_dropped_metrics_total".to_owned(),
            help: "Metrics in the dropped intervals.",
            shape: FamilyType::Counter,
            samples: by_backend(backends, DROPPED_METRICS),
        },
        SelfMetricFamily {
            name: "backend_flushes_joined_total".to_owned(),
            help: "Intervals joined to another because a backend was busy.",
            shape: FamilyType::Counter,
            samples: by_backend(backends, FLUSHES_JOINED),
        },
    ];
    let plain = [
        (
            "backlog_drops_total",
            "Packets that the host dropped before they reached a socket.",
            FamilyType::Counter,
            account.backlog_drops_total as f64,
        ),
        (
            "events_total",
            "DogStatsD events, counted and dropped.",
            FamilyType::Counter,
            self_metrics.events_total as f64,
        ),
        (
            "service_checks_total",
            "DogStatsD service checks, counted and dropped.",
            FamilyType::Counter,
            self_metrics.checks_total as f64,
        ),
        (
            "timestamps_ignored_total",
            "DogStatsD timestamps, which are ignored.",
            FamilyType::Counter,
            self_metrics.timestamps_total as f64,
        ),
        (
            "prometheus_series",
            "Series at this endpoint.",
            FamilyType::Gauge,
            families.series_count() as f64,
        ),
        (
            "prometheus_dropped_values_total",
            "Values dropped because of the series limit or a mapping rule.",
            FamilyType::Counter,
            families.dropped as f64,
        ),
        (
            "prometheus_renamed_keys_total",
            "Keys renamed because another metric type uses their name.",
            FamilyType::Counter,
            families.renamed as f64,
        ),
        (
            "flush_num_stats",
            "Metrics in the last flush.",
            FamilyType::Gauge,
            self_metrics.num_stats as f64,
        ),
        (
            "flush_processing_seconds",
            "Time spent on the statistics of the last flush.",
            FamilyType::Gauge,
            self_metrics.processing_ms / 1000.0,
        ),
    ];
    // Already exposed above as counters.
    let exposed = ["kernel_drops", "backlog_drops", "events", "service_checks"];
    let extra = self_metrics.extra.iter().filter(|(name, _)| !exposed.contains(name));
    let extra = extra
        .map(|(name, value)| (*name, "A metric of the server itself.", FamilyType::Gauge, *value));
    rows.extend(plain.into_iter().chain(extra).map(|(name, help, shape, value)| {
        SelfMetricFamily { name: name.to_owned(), help, shape, samples: vec![(None, value)] }
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
    backends: &[BackendFigures],
    field: &str,
) -> Vec<(Option<(&'static str, String)>, f64)> {
    let value = |backend: &BackendFigures| {
        backend.values.iter().find(|(name, _)| *name == field).map(|(_, value)| *value)
    };
    let one =
        |backend: &BackendFigures| Some((Some(("backend", backend.name.clone())), value(backend)?));
    backends.iter().filter_map(one).collect()
}
