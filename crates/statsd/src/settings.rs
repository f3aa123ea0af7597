//! The server's settings, with the defaults of etsy's server.
//!
//! The structure is the `[statsd]` section of `howdah.toml`, in kebab-case. Files of other servers
//! are converted to it by `settings::etsy_config` and `settings::import`. [`crate::receiver`] uses
//! [`ListenSettings`], [`crate::backends`] uses [`BackendSettings`], and the other modules use the
//! rest.

mod backends;
mod etsy_config;
mod file;
pub(crate) mod go_values;
mod import;
mod input;
mod limits;
mod listen;
mod literal;
mod management_address;
mod parsed;
mod rules;
mod sender_network;
mod to_toml;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(not(feature = "kafka"))]
pub(crate) use self::backends::KAFKA_MISSING;
pub use self::{
    backends::{
        BackendSettings, ConsoleSettings, ExecFormat, ExecSettings, FileSettings, ForwardSettings,
        GraphiteProtocol, GraphiteSettings, HostAndPort, InfluxSettings, KafkaFormat,
        KafkaSettings, ObserverType, OtlpSettings, Partition, PostgresCopyFormat, PostgresSettings,
        PrometheusNames, PrometheusSettings, ProxyNodeSettings, ProxySettings, RemoteWriteSettings,
        RepeaterProtocol, RepeaterSettings, SaslMechanism, Temporality, WebhookSettings,
    },
    input::{DogstatsdSettings, ExtraTypes, TagStyles},
    limits::{ExcessAction, PrefixLimit},
    listen::ListenSettings,
    parsed::{ParsedSettings, SettingsFormat},
    rules::{RuleAction, RuleSettings},
    sender_network::{SenderNetwork, SenderNetworkError},
};
pub use howdah_settings::{Diagnostic, SettingsErrors};

/// All settings of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct StatsdSettings {
    /// The server to emulate where statsd servers differ.
    pub dialect: StatsdDialect,
    /// The forms of tags that are read.
    pub tags: TagStyles,
    /// Types of other servers, which are counters in etsy's.
    pub types: ExtraTypes,
    /// The fields of DogStatsD that have an effect.
    pub dogstatsd: DogstatsdSettings,
    /// Listeners for samples. Default: UDP on 0.0.0.0:8125.
    pub listen: Vec<ListenSettings>,
    /// Address of the management port; `None`, written `"off"`, turns it off. Default:
    /// 127.0.0.1:8126.
    #[serde(with = "management_address")]
    pub management: Option<SocketAddr>,
    /// Address that serves `/healthz` over HTTP. Default: off.
    pub health: Option<SocketAddr>,
    /// Path of the socket on which `howdah statsd --takeover` takes over from this server. Default:
    /// none.
    pub takeover: Option<PathBuf>,
    /// Reply to `health` until that command changes it: true is `up`.
    pub healthy: bool,
    /// Time between flushes, phase-locked to the server's start. Default: 10 s.
    #[serde(with = "howdah_settings::milliseconds")]
    pub flush_interval: Duration,
    /// Maximum time for draining, the last flush and the backends at shutdown. Default: 10 s.
    #[serde(with = "howdah_settings::milliseconds")]
    pub shutdown_timeout: Duration,
    /// Rules for calculation and retention.
    pub aggregation: Aggregation,
    /// Rules that drop, rename and retag metrics before any backend gets them, in order.
    pub rules: Vec<RuleSettings>,
    /// Tags of all received metrics that do not have a tag with the same key.
    pub static_tags: BTreeMap<String, String>,
    /// Limits on the memory that senders can occupy.
    pub limits: StatsdLimits,
    /// The settings of the log of the busiest keys.
    pub key_flush: KeyFlush,
    /// Log each received metric line.
    pub dump_messages: bool,
    /// Reload the settings file when it changes. The caller watches the file.
    pub reload_on_change: bool,
    /// Level and destination of the server's log.
    pub log: LogSettings,
    /// Backends. Without any, values are only aggregated and available at the management port.
    pub backends: BackendSettings,
    /// If set, the server only routes packets to other statsd servers by key.
    pub proxy: Option<ProxySettings>,
}

impl Default for StatsdSettings {
    fn default() -> Self {
        Self {
            dialect: StatsdDialect::default(),
            tags: TagStyles::default(),
            types: ExtraTypes::default(),
            dogstatsd: DogstatsdSettings::default(),
            listen: vec![ListenSettings::default()],
            management: Some(SocketAddr::from(([127, 0, 0, 1], 8126))),
            health: None,
            takeover: None,
            healthy: true,
            flush_interval: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(10),
            aggregation: Aggregation::default(),
            rules: Vec::new(),
            static_tags: BTreeMap::new(),
            limits: StatsdLimits::default(),
            key_flush: KeyFlush::default(),
            dump_messages: false,
            reload_on_change: false,
            log: LogSettings::default(),
            backends: BackendSettings::default(),
            proxy: None,
        }
    }
}

/// The settings of the server's log. The caller applies them, because a process has only one log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct LogSettings {
    /// Log level. Default: the caller's level.
    pub level: Option<StatsdLogLevel>,
    /// Log to syslog under this name instead of to standard error.
    pub syslog: Option<String>,
}

/// The minimum severity of logged events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatsdLogLevel {
    /// Logs losses and failures.
    Error,
    /// Also logs conditions that need attention.
    Warn,
    /// Also logs normal events.
    Info,
    /// Also logs details for debugging.
    Debug,
}

/// The server to emulate where statsd servers differ: gauge deltas, sampled timers, characters in
/// keys, self metrics, management replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatsdDialect {
    /// Etsy's server in JavaScript.
    #[default]
    Etsy,
    /// Net::Statsd::Server in Perl.
    Perl,
    /// Etsy's server with absolute gauges, as in DogStatsD: `g:-5|g` sets the gauge to -5.
    Dogstatsd,
}

/// Rules for calculation, naming and retention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Aggregation {
    /// Percentiles of timers; negative ones select the largest values. Default: 90.
    pub percentiles: Vec<f64>,
    /// Histograms of timers: the first rule whose `metric` is part of the key applies.
    pub histogram: Vec<HistogramRule>,
    /// Calculated metrics of timers that are sent; all if empty. `upper_percent` selects `upper` of
    /// every percentile that is a whole number.
    pub calculated: Vec<String>,
    /// Delete counters that were idle for an interval, instead of sending 0.
    pub delete_idle_counters: bool,
    /// Delete timers that were idle for an interval, instead of sending counts of 0.
    pub delete_idle_timers: bool,
    /// Delete sets that were idle for an interval, instead of sending 0.
    pub delete_idle_sets: bool,
    /// Delete gauges after `gauge-ttl` flushes since they were last received, instead of repeating
    /// them.
    pub delete_idle_gauges: bool,
    /// Number of flushes that send a gauge after it was last received, at least 1.
    pub gauge_ttl: u32,
    /// Delete metrics of all types that were not received for this long, at the next flush; never
    /// if zero.
    #[serde(with = "howdah_settings::milliseconds")]
    pub ttl: Duration,
    /// Replace or remove characters in keys that are invalid in Graphite.
    pub sanitise: bool,
    /// Prefix of the server's own metrics.
    pub prefix: String,
    /// Send self metrics that etsy's server does not have, such as drops, keys and flush lag.
    pub extra_metrics: bool,
}

impl Default for Aggregation {
    fn default() -> Self {
        Self {
            percentiles: vec![90.0],
            histogram: Vec::new(),
            calculated: Vec::new(),
            delete_idle_counters: false,
            delete_idle_timers: false,
            delete_idle_sets: false,
            delete_idle_gauges: false,
            gauge_ttl: 1,
            ttl: Duration::ZERO,
            sanitise: true,
            prefix: "statsd".to_owned(),
            extra_metrics: true,
        }
    }
}

/// A rule that sets the histogram bins of timers whose key contains `metric`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HistogramRule {
    /// Text that the key must contain; the empty string matches all keys.
    pub metric: String,
    /// Upper bounds, exclusive, ascending; `inf` for the rest. Empty: no histogram for these keys.
    pub bins: Vec<Bin>,
}

/// The upper bound of a bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bin {
    /// Values below this bound.
    Below(f64),
    /// All remaining values.
    Infinite,
}

/// Limits on the memory that senders can occupy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct StatsdLimits {
    /// Maximum number of keys per metric type and reader thread. Samples of further keys are
    /// aggregated under `<prefix>.overflow`.
    pub keys: usize,
    /// Maximum number of keys for each first part of a name to which no element of `prefix`
    /// applies; no limit if zero.
    pub keys_per_prefix: usize,
    /// Limits for prefixes of names.
    pub prefix: Vec<PrefixLimit>,
    /// Maximum length of a key with its tags, in bytes.
    pub key_bytes: usize,
    /// Maximum number of tags of a key.
    pub tags: usize,
    /// Maximum number of samples stored exactly per timer and interval; a timer with more becomes a
    /// sketch until the flush.
    pub exact_samples: usize,
    /// Maximum number of samples, over all timers, stored exactly per interval and reader thread.
    pub exact_samples_total: usize,
    /// Maximum number of members stored per set and interval.
    pub set_members: usize,
    /// The effect of further members.
    pub set_overflow: SetOverflow,
    /// Maximum bytes of events and service checks stored per interval and reader thread, if a
    /// backend uses them; further ones are dropped and counted.
    pub message_bytes: usize,
    /// Maximum length of a set member in bytes. A longer member is stored as a prefix and a hash of
    /// the whole member.
    pub member_bytes: usize,
}

impl Default for StatsdLimits {
    fn default() -> Self {
        Self {
            keys: 1_000_000,
            keys_per_prefix: 0,
            prefix: Vec::new(),
            key_bytes: 1024,
            tags: 64,
            exact_samples: 1_000_000,
            exact_samples_total: 16_000_000,
            set_members: 100_000,
            set_overflow: SetOverflow::default(),
            member_bytes: 256,
            message_bytes: 16 << 20,
        }
    }
}

/// The effect of members beyond [`StatsdLimits::set_members`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetOverflow {
    /// The set becomes an estimate until the flush: its members are counted within about 1 %, but
    /// not stored.
    #[default]
    Estimate,
    /// Further members are rejected and counted.
    Refuse,
}

/// The settings of the log of the busiest keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct KeyFlush {
    /// Time between writes; off if zero.
    #[serde(with = "howdah_settings::milliseconds")]
    pub interval: Duration,
    /// Percentage of keys to log, busiest first.
    pub percent: f64,
    /// File to append to. Default: standard output.
    pub log: Option<PathBuf>,
}

impl Default for KeyFlush {
    fn default() -> Self {
        Self { interval: Duration::ZERO, percent: 100.0, log: None }
    }
}

impl Serialize for Bin {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Below(bound) => to.serialize_f64(*bound),
            Self::Infinite => to.serialize_str("inf"),
        }
    }
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Serialize, Deserialize)]
        #[serde(untagged)]
        enum BinText {
            Number(f64),
            Text(String),
        }
        match BinText::deserialize(from)? {
            BinText::Number(bound) if bound.is_finite() => Ok(Self::Below(bound)),
            BinText::Number(_) => Ok(Self::Infinite),
            BinText::Text(text) if text == "inf" => Ok(Self::Infinite),
            BinText::Text(text) => Err(serde::de::Error::custom(format!(
                "{text:?} is not a bin: write a number or \"inf\""
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn empty_section_has_defaults() {
        assert_eq!(toml::from_str::<StatsdSettings>("").unwrap(), StatsdSettings::default());
    }

    #[test]
    fn example_file_matches_defaults() {
        let text = include_str!("../../../deploy/statsd.toml");
        let read = StatsdSettings::read(text, Path::new("h.toml"), "host").unwrap();
        let backends = BackendSettings {
            console: Some(ConsoleSettings::default()),
            ..BackendSettings::default()
        };
        assert_eq!(read.settings, StatsdSettings { backends, ..StatsdSettings::default() });
    }

    #[test]
    fn number_without_unit_is_in_milliseconds() {
        let settings: StatsdSettings = toml::from_str("flush-interval = 250").unwrap();
        assert_eq!(settings.flush_interval, Duration::from_millis(250));
    }

    #[test]
    fn sections_and_lists_are_read() {
        let text = r#"
            dialect = "perl"
            [[listen]]
            type = "udp"
            address = "[::1]:0"
            buffer-bytes = 33554432
            [[listen]]
            type = "unixgram"
            path = "/run/statsd.sock"
            [aggregation]
            percentiles = [90, 99.9, -10]
            histogram = [{ metric = "", bins = [10, 100.5, "inf"] }]
            [[backends.graphite]]
            host = "graphite.local"
            [backends.console]
        "#;
        let settings: StatsdSettings = toml::from_str(text).unwrap();
        assert_eq!(settings.aggregation.percentiles, [90.0, 99.9, -10.0]);
        assert_eq!(settings.aggregation.histogram[0].bins[2], Bin::Infinite);
        assert_eq!(settings.listen.len(), 2);
        assert_eq!(settings.backends.graphite[0].host, "graphite.local");
        assert!(settings.backends.console.is_some());
    }
}
