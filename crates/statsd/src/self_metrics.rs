//! The server's own metrics: the table, and their values at a flush.
//!
//! The table has the names and help texts of the Prometheus endpoint. Other backends and the
//! management port use short names in the style of etsy's server, without the prefix and `_total`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use howdah_stats::{Description, MetricUnit, Registry};

use crate::{
    MetricName,
    backends::{DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, LOST_VALUES, SPOOL_BYTES},
    ledger::LossAccount,
};

/// All metrics of the server, in the order of the reference page.
pub const METRICS: &[Description] = &[
    PACKETS_RECEIVED,
    METRICS_RECEIVED,
    BAD_LINES_SEEN,
    TIMESTAMP_LAG,
    EVENTS,
    SERVICE_CHECKS,
    MESSAGES_DROPPED,
    TIMESTAMPS_IGNORED,
    KERNEL_DROPS,
    RECEIVE_BUFFER_BYTES,
    BACKLOG_DROPS,
    DENIED,
    FAILED_HANDSHAKES,
    KEYS,
    OVERFLOW_KEYS,
    SKETCHED_TIMERS,
    CAPPED_SETS,
    RULE_DROPPED,
    PREFIX_OVERFLOW,
    FLUSH_LAG,
    FLUSH_NUM_STATS,
    FLUSH_PROCESSING,
    BACKEND_SPOOL_BYTES,
    BACKEND_LOST_VALUES,
    BACKEND_FLUSHES_JOINED,
    BACKEND_FLUSHES_DROPPED,
    BACKEND_DROPPED_METRICS,
    PROMETHEUS_SERIES,
    PROMETHEUS_DROPPED_VALUES,
    PROMETHEUS_RENAMED_KEYS,
];

/// The metrics of etsy's server. They are aggregated like received metrics, under the key
/// `prefix.name`, and are part of the snapshots.
const AGGREGATED: [Description; 4] =
    [PACKETS_RECEIVED, METRICS_RECEIVED, BAD_LINES_SEEN, TIMESTAMP_LAG];

pub(crate) const PACKETS_RECEIVED: Description =
    Description::counter("statsd_packets_received_total", "Packets received.");
pub(crate) const METRICS_RECEIVED: Description =
    Description::counter("statsd_metrics_received_total", "Lines in the received packets.");
pub(crate) const BAD_LINES_SEEN: Description = Description::counter(
    "statsd_bad_lines_seen_total",
    "Values and lines that could not be used; `bad` at the management port has the reasons.",
);
pub(crate) const TIMESTAMP_LAG: Description = Description::gauge(
    "statsd_timestamp_lag",
    "Seconds by which the last flush was later than one interval after the flush before it.",
);
pub(crate) const EVENTS: Description =
    Description::counter("statsd_events_total", "DogStatsD events received.");
pub(crate) const SERVICE_CHECKS: Description =
    Description::counter("statsd_service_checks_total", "DogStatsD service checks received.");
pub(crate) const MESSAGES_DROPPED: Description = Description::counter(
    "statsd_messages_dropped_total",
    "Events and service checks beyond the limit of an interval.",
);
pub(crate) const TIMESTAMPS_IGNORED: Description = Description::counter(
    "statsd_timestamps_ignored_total",
    "DogStatsD timestamps, which are ignored.",
);
const KERNEL_DROPS: Description = Description::counter(
    "statsd_kernel_drops_total",
    "Packets that the kernel dropped because a socket's buffer was full.",
)
.labels(&["socket"]);
const RECEIVE_BUFFER_BYTES: Description = Description::gauge(
    "statsd_receive_buffer_bytes",
    "Effective receive buffer of a socket, without the kernel's doubling.",
)
.unit(MetricUnit::Bytes)
.labels(&["socket"]);
const BACKLOG_DROPS: Description = Description::counter(
    "statsd_backlog_drops_total",
    "Packets that the host dropped before they reached a socket.",
);
pub(crate) const DENIED: Description = Description::counter(
    "statsd_denied_total",
    "Packets and connections of senders that the listener's list does not permit.",
)
.labels(&["socket"]);
pub(crate) const FAILED_HANDSHAKES: Description = Description::counter(
    "statsd_failed_handshakes_total",
    "Connections closed because their TLS handshake or token failed.",
)
.labels(&["socket"]);
const KEYS: Description =
    Description::gauge("statsd_keys", "Counters, timers, gauges and sets in the last interval.");
const OVERFLOW_KEYS: Description =
    Description::gauge("statsd_overflow_keys", "Keys beyond the limit in the last interval.");
const SKETCHED_TIMERS: Description = Description::gauge(
    "statsd_sketched_timers",
    "Timers with too many samples in the last interval to store each.",
);
const CAPPED_SETS: Description = Description::gauge(
    "statsd_capped_sets",
    "Sets with more members in the last interval than the limit allows.",
);
const RULE_DROPPED: Description =
    Description::counter("statsd_rule_dropped_total", "Samples that a rule dropped.")
        .labels(&["rule"]);
const PREFIX_OVERFLOW: Description = Description::counter(
    "statsd_prefix_overflow_total",
    "Samples of keys beyond the limit of their prefix, of up to 100 prefixes.",
)
.labels(&["prefix"]);
const FLUSH_LAG: Description =
    Description::gauge("statsd_flush_lag_seconds", "How late the last flush started.")
        .unit(MetricUnit::Seconds);
const FLUSH_NUM_STATS: Description =
    Description::gauge("statsd_flush_num_stats", "Metrics in the last flush.");
const FLUSH_PROCESSING: Description = Description::gauge(
    "statsd_flush_processing_seconds",
    "Time spent on the statistics of the last flush.",
)
.unit(MetricUnit::Seconds);
const BACKEND_SPOOL_BYTES: Description =
    Description::gauge("statsd_backend_spool_bytes", "Bytes spooled for a backend's receiver.")
        .unit(MetricUnit::Bytes)
        .labels(&["backend"]);
const BACKEND_LOST_VALUES: Description = Description::counter(
    "statsd_backend_lost_values_total",
    "Values that a backend could neither deliver nor spool.",
)
.labels(&["backend"]);
const BACKEND_FLUSHES_JOINED: Description = Description::counter(
    "statsd_backend_flushes_joined_total",
    "Intervals joined to another because a backend was busy.",
)
.labels(&["backend"]);
const BACKEND_FLUSHES_DROPPED: Description = Description::counter(
    "statsd_backend_flushes_dropped_total",
    "Intervals dropped because a backend was busy.",
)
.labels(&["backend"]);
const BACKEND_DROPPED_METRICS: Description = Description::counter(
    "statsd_backend_dropped_metrics_total",
    "Metrics in the dropped intervals.",
)
.labels(&["backend"]);
/// The metrics of each backend.
const OF_BACKENDS: [Description; 5] = [
    BACKEND_SPOOL_BYTES,
    BACKEND_LOST_VALUES,
    BACKEND_FLUSHES_JOINED,
    BACKEND_FLUSHES_DROPPED,
    BACKEND_DROPPED_METRICS,
];
pub(crate) const PROMETHEUS_SERIES: Description =
    Description::gauge("statsd_prometheus_series", "Series at this endpoint.");
pub(crate) const PROMETHEUS_DROPPED_VALUES: Description = Description::counter(
    "statsd_prometheus_dropped_values_total",
    "Values dropped because of the series limit, a mapping rule or a name conflict.",
);
pub(crate) const PROMETHEUS_RENAMED_KEYS: Description = Description::counter(
    "statsd_prometheus_renamed_keys_total",
    "Keys renamed because another metric type uses their name.",
);

/// The prefix of the names in the table, which is also the default of the setting.
const PREFIX: &str = "statsd";

/// The server's own metrics at a flush, without those that are aggregated like received metrics.
#[derive(Clone, Debug, Default)]
pub struct SelfMetrics {
    /// The configured prefix, by default `statsd`.
    pub prefix: Arc<str>,
    /// Duration of the calculation in whole milliseconds, as in etsy's server.
    pub processing_ms: f64,
    /// Number of counters, timers, gauges and sets.
    pub num_stats: u64,
    /// Values that etsy's server does not have. `None` if `extra-metrics` is off.
    pub extra: Option<ExtraMetrics>,
    /// DogStatsD events since the start.
    pub events_total: u64,
    /// DogStatsD service checks since the start.
    pub checks_total: u64,
    /// Events and service checks dropped because of the limit, since the start.
    pub messages_dropped_total: u64,
    /// DogStatsD timestamps since the start. They are counted and ignored.
    pub timestamps_total: u64,
    /// A set that exceeded the member limit in this interval, if any.
    pub capped_set: Option<MetricName>,
    /// Ids of the rules that drop metrics, each with the number of dropped samples since the rule
    /// became effective.
    pub rule_drops: Vec<(Arc<str>, u64)>,
    /// Prefixes of names that reached their limit of keys, each with the number of samples of keys
    /// beyond it since then.
    pub prefix_overflows: Vec<(Arc<str>, u64)>,
    /// Prefixes of names that reached their limit of keys for the first time in this interval, each
    /// with the limit.
    pub limited_prefixes: Vec<(Arc<str>, usize)>,
    /// The loss ledger at the time of the flush.
    pub account: LossAccount,
    /// Status values of the backends, the repeater and the proxy before they receive this interval.
    /// Empty without a running server.
    pub backends: Vec<BackendFigures>,
}

/// Values of an interval that etsy's server does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtraMetrics {
    /// Estimated number of keys beyond the limit.
    pub overflow_keys: u64,
    /// Timers with too many samples to store each.
    pub sketched_timers: u64,
    /// Sets with more members than the limit allows.
    pub capped_sets: u64,
    /// Delay between the scheduled and the actual start of the flush.
    pub flush_lag: Duration,
}

/// The status values of one backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendFigures {
    /// The backend's name; a second Graphite backend, for example, is named `graphite-2`.
    pub name: String,
    /// The values, such as `spool_bytes`, `lost_values` or `flush_time`.
    pub values: Vec<(&'static str, f64)>,
}

impl SelfMetrics {
    /// Returns the values that most backends send under the prefix, each with its short name:
    /// etsy's two values about the calculation, then [`extra_values`](Self::extra_values).
    pub fn values(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [("num_stats", self.num_stats as f64), ("processing_time", self.processing_ms)]
            .into_iter()
            .chain(self.extra_values())
    }

    /// Returns the values that etsy's server does not have, each with its short name. Empty if
    /// `extra-metrics` is off.
    pub fn extra_values(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let values = self.extra.as_ref().map(|extra| {
            [
                (short_name(&KERNEL_DROPS), self.account.drops_total() as f64),
                (short_name(&BACKLOG_DROPS), self.account.backlog_drops_total as f64),
                (short_name(&KEYS), self.num_stats as f64),
                (short_name(&OVERFLOW_KEYS), extra.overflow_keys as f64),
                (short_name(&SKETCHED_TIMERS), extra.sketched_timers as f64),
                (short_name(&CAPPED_SETS), extra.capped_sets as f64),
                (short_name(&EVENTS), self.events_total as f64),
                (short_name(&SERVICE_CHECKS), self.checks_total as f64),
                // Milliseconds are usual in statsd, seconds in Prometheus.
                ("flush_lag_ms", (extra.flush_lag.as_secs_f64() * 1000.0).round()),
            ]
        });
        // Only listeners with access rules have these.
        let refused = [
            (short_name(&DENIED), self.account.denied_total() as f64),
            (short_name(&FAILED_HANDSHAKES), self.account.failed_handshakes_total() as f64),
        ];
        let is_on = self.extra.is_some();
        let refused = refused.into_iter().filter(move |(_, count)| is_on && *count > 0.0);
        // Without rules and limits there is nothing to count.
        let sums = [(&RULE_DROPPED, &self.rule_drops), (&PREFIX_OVERFLOW, &self.prefix_overflows)];
        let sums = sums.into_iter().filter(move |(_, all)| is_on && !all.is_empty());
        let sums = sums.map(|(metric, all)| {
            let samples: u64 = all.iter().map(|(_, samples)| samples).sum();
            (short_name(metric), samples as f64)
        });
        values.into_iter().flatten().chain(refused).chain(sums)
    }

    /// Updates the metrics in `registry`.
    pub(crate) fn record(&self, registry: &Registry) {
        for (metric, total) in [
            (&EVENTS, self.events_total),
            (&SERVICE_CHECKS, self.checks_total),
            (&MESSAGES_DROPPED, self.messages_dropped_total),
            (&TIMESTAMPS_IGNORED, self.timestamps_total),
            (&BACKLOG_DROPS, self.account.backlog_drops_total),
        ] {
            registry.counter(metric).raise_to(total);
        }
        for socket in &self.account.sockets {
            let labels = [("socket", &*socket.name)];
            registry.counter_with(&KERNEL_DROPS, &labels).raise_to(socket.drops_total);
            registry.counter_with(&DENIED, &labels).raise_to(socket.denied_total);
            registry
                .counter_with(&FAILED_HANDSHAKES, &labels)
                .raise_to(socket.failed_handshakes_total);
            let bytes = socket.buffer_bytes as f64;
            registry.gauge_with(&RECEIVE_BUFFER_BYTES, &labels).set(bytes);
        }
        match &self.extra {
            Some(extra) => {
                registry.gauge(&KEYS).set(self.num_stats as f64);
                registry.gauge(&OVERFLOW_KEYS).set(extra.overflow_keys as f64);
                registry.gauge(&SKETCHED_TIMERS).set(extra.sketched_timers as f64);
                registry.gauge(&CAPPED_SETS).set(extra.capped_sets as f64);
                registry.gauge(&FLUSH_LAG).set(extra.flush_lag.as_secs_f64());
            }
            // The setting may be changed while the server runs.
            None => registry
                .remove(&[KEYS, OVERFLOW_KEYS, SKETCHED_TIMERS, CAPPED_SETS, FLUSH_LAG], &[]),
        }
        // A rule that was changed starts at 0.
        registry.remove(&[RULE_DROPPED, PREFIX_OVERFLOW], &[]);
        for (prefix, samples) in &self.prefix_overflows {
            registry.counter_with(&PREFIX_OVERFLOW, &[("prefix", prefix)]).raise_to(*samples);
        }
        for (rule, samples) in &self.rule_drops {
            registry.counter_with(&RULE_DROPPED, &[("rule", rule)]).raise_to(*samples);
        }
        registry.gauge(&FLUSH_NUM_STATS).set(self.num_stats as f64);
        registry.gauge(&FLUSH_PROCESSING).set(self.processing_ms / 1000.0);
        self.remove_stale_backends(registry);
        self.backends.iter().for_each(|backend| backend.record(registry));
    }

    /// Removes the metrics of backends that a reload has removed.
    fn remove_stale_backends(&self, registry: &Registry) {
        let mut stale = BTreeSet::new();
        registry.for_each_family(|family| {
            if !OF_BACKENDS.contains(family.description()) {
                return;
            }
            for (labels, _) in family.series() {
                let is_stale = |name: &&str| self.backends.iter().all(|one| one.name != *name);
                stale.extend(labels.map(|(_, name)| name).filter(is_stale).map(str::to_owned));
            }
        });
        for name in &stale {
            registry.remove(&OF_BACKENDS, &[("backend", name)]);
        }
    }
}

impl BackendFigures {
    /// Updates the metrics for the status values that this backend has.
    fn record(&self, registry: &Registry) {
        let labels = [("backend", &*self.name)];
        for (name, value) in &self.values {
            let total = match *name {
                SPOOL_BYTES => {
                    registry.gauge_with(&BACKEND_SPOOL_BYTES, &labels).set(*value);
                    continue;
                }
                LOST_VALUES => &BACKEND_LOST_VALUES,
                FLUSHES_JOINED => &BACKEND_FLUSHES_JOINED,
                FLUSHES_DROPPED => &BACKEND_FLUSHES_DROPPED,
                DROPPED_METRICS => &BACKEND_DROPPED_METRICS,
                _ => continue,
            };
            let counter = registry.counter_with(total, &labels);
            if counter.value() <= *value as u64 {
                counter.raise_to(*value as u64);
            } else {
                // Since a reload the name is that of another backend, so the counter restarts.
                registry.remove(&[*total], &labels);
                registry.counter_with(total, &labels).raise_to(*value as u64);
            }
        }
    }
}

/// Returns the name of a metric in etsy's style: without the prefix and `_total`.
pub(crate) fn short_name(metric: &Description) -> &'static str {
    let name = unprefixed(metric);
    name.strip_suffix("_total").unwrap_or(name)
}

/// Returns the key of an aggregated metric under the configured prefix.
pub(crate) fn key(prefix: &str, metric: &Description) -> MetricName {
    match prefix {
        "" => MetricName::new(short_name(metric)),
        prefix => MetricName::new(&format!("{prefix}.{}", short_name(metric))),
    }
}

/// Returns the aggregated metric whose key under `prefix` is `key`, if there is one.
pub(crate) fn find_aggregated(prefix: &str, key: &str) -> Option<&'static Description> {
    let name = match prefix {
        "" => key,
        prefix => key.strip_prefix(prefix)?.strip_prefix('.')?,
    };
    AGGREGATED.iter().find(|metric| short_name(metric) == name)
}

/// Returns the Prometheus name of a metric under `prefix`; if that is empty, the name in the table.
pub(crate) fn prometheus_name(prefix: &str, metric: &Description) -> String {
    match prefix {
        "" => metric.name().to_owned(),
        prefix => format!("{prefix}_{}", unprefixed(metric)),
    }
}

fn unprefixed(metric: &Description) -> &'static str {
    let name = metric.name();
    name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('_')).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::SocketAccount;

    #[test]
    fn recorded_metrics_are_in_the_table() {
        let values = [SPOOL_BYTES, LOST_VALUES, FLUSHES_JOINED, FLUSHES_DROPPED, DROPPED_METRICS];
        let own = SelfMetrics {
            extra: Some(ExtraMetrics::default()),
            rule_drops: vec![("debug".into(), 3)],
            prefix_overflows: vec![("checkout.".into(), 4)],
            account: LossAccount { sockets: vec![SocketAccount::default()], ..Default::default() },
            backends: vec![BackendFigures {
                name: "graphite".to_owned(),
                values: values.into_iter().chain(["flush_time"]).map(|name| (name, 2.0)).collect(),
            }],
            ..SelfMetrics::default()
        };
        let registry = Registry::new();
        own.record(&registry);
        let mut recorded = Vec::new();
        registry.for_each_family(|family| recorded.push(*family.description()));
        // The Prometheus backend adds the metrics of the endpoint.
        let elsewhere = |metric: &&Description| {
            AGGREGATED.contains(metric) || metric.name().starts_with("statsd_prometheus_")
        };
        let mut expected: Vec<_> =
            METRICS.iter().filter(|metric| !elsewhere(metric)).copied().collect();
        expected.sort_by_key(Description::name);
        assert_eq!(recorded, expected);
    }

    #[test]
    fn metrics_of_replaced_backends_restart_or_disappear() {
        let registry = Registry::new();
        let record = |backends: &[(&str, f64)]| {
            let figures = |(name, lost): &(&str, f64)| BackendFigures {
                name: (*name).to_owned(),
                values: vec![(LOST_VALUES, *lost), (SPOOL_BYTES, 5.0)],
            };
            let backends = backends.iter().map(figures).collect();
            SelfMetrics { backends, ..SelfMetrics::default() }.record(&registry);
            let text = registry.prometheus();
            let lines = text.lines().filter(|line| line.starts_with("statsd_backend_lost"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let line = |name: &str, value: u32| {
            format!("statsd_backend_lost_values_total{{backend=\"{name}\"}} {value}")
        };
        let both = record(&[("influx", 7.0), ("influx-2", 3.0)]);
        assert_eq!(both, [line("influx", 7), line("influx-2", 3)]);
        assert_eq!(record(&[("influx", 3.0)]), [line("influx", 3)]);
        assert!(!registry.prometheus().contains("influx-2"));
    }

    #[test]
    fn names_follow_the_prefix() {
        assert_eq!(short_name(&EVENTS), "events");
        assert_eq!(key("", &EVENTS).key(), "events");
        assert_eq!(key("own.stats", &EVENTS).key(), "own.stats.events");
        assert_eq!(prometheus_name("", &EVENTS), "statsd_events_total");
        assert_eq!(prometheus_name("own_stats", &EVENTS), "own_stats_events_total");
        let found = |prefix, key| find_aggregated(prefix, key).map(Description::name);
        assert_eq!(found("a.b", "a.b.bad_lines_seen"), Some("statsd_bad_lines_seen_total"));
        assert_eq!(found("", "bad_lines_seen"), Some("statsd_bad_lines_seen_total"));
        assert_eq!(found("a", "a.b.bad_lines_seen"), None);
        assert_eq!(found("statsd", "statsd.events"), None, "a client's metric");
    }
}
