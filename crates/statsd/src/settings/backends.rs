//! Where values go. A backend is on when its section is there.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;

/// `[statsd.backends]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Backends {
    /// `[[statsd.backends.graphite]]`.
    pub graphite: Vec<Graphite>,
    /// `[statsd.backends.console]`: to standard output.
    pub console: Option<Console>,
    /// `[statsd.backends.file]`.
    pub file: Option<File>,
    /// `[[statsd.backends.repeater]]`: raw packets to other servers.
    pub repeater: Vec<Repeater>,
    /// `[statsd.backends.prometheus]`: an endpoint to be scraped.
    pub prometheus: Option<Prometheus>,
    /// `[[statsd.backends.influx]]`.
    pub influx: Vec<Influx>,
    /// `[[statsd.backends.otlp]]`.
    pub otlp: Vec<Otlp>,
    /// `[[statsd.backends.postgres]]`.
    pub postgres: Vec<Postgres>,
}

/// Carbon, by text lines or pickles.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Graphite {
    /// Host name or address; values are discarded if empty.
    pub host: String,
    /// Port of the text protocol.
    pub port: u16,
    /// Port of the pickle protocol.
    pub pickle_port: u16,
    /// Which protocol.
    pub protocol: GraphiteProtocol,
    /// `stats.`, `stats_counts.`, `stats.timers.`, `stats.gauges.`, `stats.sets.` as in old days;
    /// else the prefixes below.
    pub legacy_namespace: bool,
    /// First level of all names; left out if empty. Only without the legacy namespace.
    pub global_prefix: String,
    /// Second level of counters; left out if empty.
    pub prefix_counter: String,
    /// Second level of timers; left out if empty.
    pub prefix_timer: String,
    /// Second level of gauges; left out if empty.
    pub prefix_gauge: String,
    /// Second level of sets; left out if empty.
    pub prefix_set: String,
    /// Last level of all names; left out if empty.
    pub global_suffix: String,
    /// Send counts of counters beside their rates.
    pub flush_counts: bool,
    /// Keep one connection, instead of one per flush.
    pub persistent: bool,
    /// Bytes kept for a receiver that is away. 0 drops at once, as etsy's server does.
    pub spool_bytes: usize,
}

impl Default for Graphite {
    fn default() -> Self {
        Self {
            host: String::new(),
            port: 2003,
            pickle_port: 2004,
            protocol: GraphiteProtocol::Text,
            legacy_namespace: true,
            global_prefix: "stats".to_owned(),
            prefix_counter: "counters".to_owned(),
            prefix_timer: "timers".to_owned(),
            prefix_gauge: "gauges".to_owned(),
            prefix_set: "sets".to_owned(),
            global_suffix: String::new(),
            flush_counts: true,
            persistent: false,
            spool_bytes: 16 << 20,
        }
    }
}

/// How to speak to Carbon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphiteProtocol {
    /// One line per value.
    #[default]
    Text,
    /// Length-prefixed pickles.
    Pickle,
}

/// All of an interval, printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Console {
    /// Over several lines.
    pub pretty: bool,
}

/// One line per value, appended to a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct File {
    /// Where.
    pub path: PathBuf,
    /// Begin each line with the flush's second.
    #[serde(default)]
    pub timestamps: bool,
}

/// Every packet as it came, to another server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Repeater {
    /// Host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How to send.
    #[serde(default)]
    pub protocol: RepeaterProtocol,
}

/// How to repeat packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepeaterProtocol {
    /// Datagrams over IPv4.
    #[default]
    Udp4,
    /// Datagrams over IPv6.
    Udp6,
    /// A connection; each packet ends with a newline.
    Tcp,
}

/// An endpoint for Prometheus.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Prometheus {
    /// Where `/metrics` is served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What timers, histograms and distributions become, unless the mapping file says otherwise.
    pub timers: Observer,
    /// Quantiles of summaries, each from 0 to 1.
    pub quantiles: Vec<f64>,
    /// How far back the quantiles of summaries look.
    #[serde(deserialize_with = "super::duration")]
    pub quantile_age: Duration,
    /// Upper bounds of the classic buckets of histograms, ascending, in seconds for timers in
    /// milliseconds.
    pub buckets: Vec<f64>,
    /// Native histograms: how much a bucket's bound is larger than the one before, at most.
    pub native_bucket_factor: f64,
    /// Native histograms: most buckets of one series; beyond, neighbours are merged.
    pub native_buckets_max: usize,
    /// A mapping file as statsd_exporter reads it.
    pub mapping: Option<PathBuf>,
    /// Series that were idle for so long are forgotten; never if zero.
    #[serde(deserialize_with = "super::duration")]
    pub ttl: Duration,
    /// Most series; more are dropped and counted.
    pub series_max: usize,
}

impl Default for Prometheus {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9102)),
            timers: Observer::default(),
            quantiles: vec![0.5, 0.9, 0.99],
            quantile_age: Duration::from_secs(600),
            buckets: vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            native_bucket_factor: 1.1,
            native_buckets_max: 160,
            mapping: None,
            ttl: Duration::ZERO,
            series_max: 1_000_000,
        }
    }
}

/// What a timer becomes for Prometheus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Observer {
    /// Quantiles, sum and count.
    #[default]
    Summary,
    /// Buckets: classic ones, and native ones for a Prometheus that asks for them.
    Histogram,
}

/// InfluxDB's line protocol over HTTP.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Influx {
    /// The write endpoint with its parameters: `http://host:8086/api/v2/write?org=o&bucket=b`,
    /// `http://host:8086/write?db=d`.
    pub url: String,
    /// A file that holds the token; none for servers without.
    pub token_file: Option<PathBuf>,
    /// A file of root certificates for https; the system's if none.
    pub ca_file: Option<PathBuf>,
    /// Bytes kept for a receiver that is away.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

/// Without the URL's query, which may hold a password.
impl fmt::Debug for Influx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.split('?').next().unwrap_or_default();
        f.debug_struct("Influx")
            .field("url", &url)
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

/// OpenTelemetry's protocol over HTTP, protobuf.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Otlp {
    /// The endpoint: `http://host:4318/v1/metrics`.
    pub url: String,
    /// Sums since the start, or those of each interval.
    #[serde(default)]
    pub temporality: Temporality,
    /// Attributes of the resource. Without `service.name` it is `statsd`.
    #[serde(default)]
    pub resource: BTreeMap<String, String>,
    /// A file that holds a bearer token; none for servers without.
    pub token_file: Option<PathBuf>,
    /// A file of root certificates for https; the system's if none.
    pub ca_file: Option<PathBuf>,
    /// Bytes kept for a receiver that is away.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

/// What OTLP's sums and histograms count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// From when the key was first seen.
    #[default]
    Cumulative,
    /// From the flush before.
    Delta,
}

/// A partitioned table in PostgreSQL, filled by COPY.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Postgres {
    /// A connection URI or keyword string; the password better in a password file.
    pub connection: String,
    /// The table, created if missing; `schema.table` is fine.
    #[serde(default = "table")]
    pub table: String,
    /// What one partition holds.
    #[serde(default)]
    pub partition: Partition,
    /// Partitions older than this are dropped; kept for ever if zero.
    #[serde(default, deserialize_with = "super::duration")]
    pub retention: Duration,
    /// How COPY carries values.
    #[serde(default)]
    pub format: CopyFormat,
    /// Bytes kept for a server that is away.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

/// Without the connection string, which may hold a password.
impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("table", &self.table)
            .field("partition", &self.partition)
            .field("retention", &self.retention)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// What one partition holds, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partition {
    /// An hour.
    Hour,
    /// A day.
    #[default]
    Day,
    /// A calendar month.
    Month,
}

/// How COPY carries values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyFormat {
    /// PostgreSQL's binary format: cheaper for the server.
    #[default]
    Binary,
    /// Text, which anything between us and the server can read.
    Text,
}

fn table() -> String {
    "statsd_samples".to_owned()
}

fn spool() -> usize {
    16 << 20
}

/// Consistent hashing over other statsd servers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Proxy {
    /// The servers.
    pub nodes: Vec<ProxyNode>,
    /// Time between health checks.
    #[serde(default = "check_interval", deserialize_with = "super::duration")]
    pub check_interval: Duration,
}

fn check_interval() -> Duration {
    Duration::from_secs(10)
}

/// One server behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProxyNode {
    /// Host name or address.
    pub host: String,
    /// Where it takes samples.
    pub port: u16,
    /// Its management port, asked for `health`.
    pub admin_port: u16,
}
