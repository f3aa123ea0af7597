//! What a person can set, with the defaults of etsy's server.
//!
//! The shape is the `[statsd]` section of `howdah.toml`, kebab-case. Other servers' files are read
//! into the same shape by `settings::foreign`. The parts belong to who acts on them:
//! [`crate::intake`] reads [`Listen`], [`crate::backends`] reads [`Backends`], the rest is the
//! aggregation's and the management port's.

mod backends;
mod file;
mod foreign;
mod listen;
mod literal;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer};

pub use self::{
    backends::{
        Backends, Console, CopyFormat, File, Graphite, GraphiteProtocol, Influx, Observer, Otlp,
        Partition, Postgres, Prometheus, Proxy, ProxyNode, Repeater, RepeaterProtocol, Temporality,
    },
    file::{Form, Read, Remark, Wrong},
    listen::Listen,
};

/// All of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Whose habits to follow where the servers differ.
    pub dialect: Dialect,
    /// Where samples come in. Default: UDP at 0.0.0.0:8125.
    pub listen: Vec<Listen>,
    /// Where the management port listens; none if empty. Default: 127.0.0.1:8126.
    pub management: Option<SocketAddr>,
    /// Serve `/healthz` over HTTP here. Default: nowhere.
    pub health: Option<SocketAddr>,
    /// How the server answers `health` at first: true is `up`.
    pub healthy: bool,
    /// Time between flushes, phase-locked to the start. Default: 10 s.
    #[serde(deserialize_with = "duration")]
    pub flush_interval: Duration,
    /// How long the last flush and the backends may take when the server is told to end.
    #[serde(deserialize_with = "duration")]
    pub shutdown_patience: Duration,
    /// What is calculated and kept.
    pub aggregation: Aggregation,
    /// Bounds on what senders can make us keep.
    pub limits: Limits,
    /// The log of the busiest keys.
    pub key_flush: KeyFlush,
    /// Log each metric line at level debug.
    pub dump_messages: bool,
    /// What the server logs about itself, and where.
    pub log: Log,
    /// Where values go. Without any, they are aggregated, and shown at the management port.
    pub backends: Backends,
    /// Route packets to other statsd servers by key, and do nothing else with them.
    pub proxy: Option<Proxy>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            listen: vec![Listen::default()],
            management: Some(SocketAddr::from(([127, 0, 0, 1], 8126))),
            health: None,
            healthy: true,
            flush_interval: Duration::from_secs(10),
            shutdown_patience: Duration::from_secs(10),
            aggregation: Aggregation::default(),
            limits: Limits::default(),
            key_flush: KeyFlush::default(),
            dump_messages: false,
            log: Log::default(),
            backends: Backends::default(),
            proxy: None,
        }
    }
}

/// The server's own log. Who calls the server acts on it, because a process has one log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Log {
    /// How much to log; the caller's own level if none.
    pub level: Option<LogLevel>,
    /// Log to syslog under this name, and not to standard error.
    pub syslog: Option<String>,
}

/// How much to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What was lost.
    Error,
    /// And what a person should look at.
    Warn,
    /// And what happens.
    Info,
    /// And why.
    Debug,
}

/// Whose habits to follow where the servers differ: gauge deltas, sampled timers, key characters, own
/// counters, management replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Etsy's server in JavaScript.
    #[default]
    Etsy,
    /// Net::Statsd::Server in Perl.
    Perl,
    /// Etsy's server, but gauges are absolute, as in DogStatsD: `g:-5|g` sets the gauge to -5.
    Dogstatsd,
}

/// What is calculated, named and kept.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Aggregation {
    /// Percentiles of timers; one below zero looks at the largest values. Default: 90.
    pub percentiles: Vec<f64>,
    /// Histograms of timers: the first whose `metric` is part of the key counts.
    pub histogram: Vec<HistogramRule>,
    /// Which calculated metrics of timers are sent; all if empty. `upper_percent` stands for those of
    /// every percentile.
    pub calculated: Vec<String>,
    /// Forget counters that were idle for an interval, instead of sending 0.
    pub delete_idle_counters: bool,
    /// Forget timers that were idle for an interval, instead of sending counts of 0.
    pub delete_idle_timers: bool,
    /// Forget sets that were idle for an interval, instead of sending 0.
    pub delete_idle_sets: bool,
    /// Forget gauges that were idle for `gauge-ttl` intervals, instead of repeating them.
    pub delete_idle_gauges: bool,
    /// Flushes that an idle gauge survives, at least 1.
    pub gauge_ttl: u32,
    /// Replace what Graphite cannot have in a key.
    pub sanitise: bool,
    /// Prefix of the server's own metrics.
    pub prefix: String,
    /// Send facts about the server beyond etsy's: drops, keys, flush lag.
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
            sanitise: true,
            prefix: "statsd".to_owned(),
            extra_metrics: true,
        }
    }
}

/// Bins for the timers whose key contains `metric`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HistogramRule {
    /// Part of the key; the empty one is in all.
    pub metric: String,
    /// Upper bounds, exclusive, ascending; `inf` for the rest. None: no histogram for these keys.
    pub bins: Vec<Bin>,
}

/// The upper bound of a bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bin {
    /// Values below this one.
    Below(f64),
    /// All that is left.
    Infinite,
}

/// Bounds on what senders can make us keep.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    /// Keys per kind of metric. Samples of more keys are added up under `<prefix>.overflow`.
    pub keys: usize,
    /// Bytes of a key with its tags.
    pub key_bytes: usize,
    /// Tags of a key.
    pub tags: usize,
    /// Samples of one timer and interval that are kept one by one; a timer that gets more becomes a
    /// sketch until the flush.
    pub exact_samples: usize,
    /// Samples of all timers and of one interval that are kept one by one.
    pub exact_samples_total: usize,
    /// Members of one set and interval; more are counted as one.
    pub set_members: usize,
    /// Bytes of one member that are kept. Of a longer one the front is, and a hash of all of it.
    pub member_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 1_000_000,
            key_bytes: 1024,
            tags: 64,
            exact_samples: 1_000_000,
            exact_samples_total: 16_000_000,
            set_members: 100_000,
            member_bytes: 256,
        }
    }
}

/// The log of the busiest keys.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct KeyFlush {
    /// How often; never if zero.
    #[serde(deserialize_with = "duration")]
    pub interval: Duration,
    /// The share of keys that is logged, busiest first.
    pub percent: f64,
    /// The file to append to; standard output if none.
    pub log: Option<PathBuf>,
}

impl Default for KeyFlush {
    fn default() -> Self {
        Self { interval: Duration::ZERO, percent: 100.0, log: None }
    }
}

/// Reads `"10s"`, `"250ms"`, `"1m"`, `"1h"`, or a bare number of milliseconds.
pub(crate) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Text<'t> {
        Whole(u64),
        Text(std::borrow::Cow<'t, str>),
    }
    match Text::deserialize(from)? {
        Text::Whole(ms) => Ok(Duration::from_millis(ms)),
        Text::Text(text) => parse_duration(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no duration: write 10s, 250ms, 1m or 1h"))
        }),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            Number(f64),
            Text(String),
        }
        match Text::deserialize(from)? {
            Text::Number(bound) if bound.is_finite() => Ok(Self::Below(bound)),
            Text::Number(_) => Ok(Self::Infinite),
            Text::Text(text) if text == "inf" => Ok(Self::Infinite),
            Text::Text(text) => Err(serde::de::Error::custom(format!(
                "{text:?} is no bin: write a number or \"inf\""
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_has_the_defaults() {
        assert_eq!(toml::from_str::<Settings>("").unwrap(), Settings::default());
    }

    #[test]
    fn the_example_reads_and_holds_the_defaults() {
        let text = include_str!("../../../../deploy/statsd.toml");
        let read = Settings::read(text, "host").unwrap();
        let backends = Backends { console: Some(Console::default()), ..Backends::default() };
        assert_eq!(read.settings, Settings { backends, ..Settings::default() });
    }

    #[test]
    fn durations_carry_a_unit_or_are_milliseconds() {
        let interval = |text: &str| toml::from_str::<Settings>(text).map(|all| all.flush_interval);
        assert_eq!(interval("flush-interval = \"1.5s\"").unwrap(), Duration::from_millis(1500));
        assert_eq!(interval("flush-interval = 250").unwrap(), Duration::from_millis(250));
        assert!(interval("flush-interval = \"10 parsecs\"").is_err());
        assert!(interval("flush-intervall = 250").is_err());
    }

    #[test]
    fn sections_and_lists_read() {
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
        let settings: Settings = toml::from_str(text).unwrap();
        assert_eq!(settings.aggregation.percentiles, [90.0, 99.9, -10.0]);
        assert_eq!(settings.aggregation.histogram[0].bins[2], Bin::Infinite);
        assert_eq!(settings.listen.len(), 2);
        assert_eq!(settings.backends.graphite[0].host, "graphite.local");
        assert!(settings.backends.console.is_some());
    }
}
