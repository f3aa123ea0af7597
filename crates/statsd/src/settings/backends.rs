//! Backend settings. A backend is enabled by its section.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// The settings of all backends: `[statsd.backends]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct BackendSettings {
    /// `[[statsd.backends.graphite]]`: sends text lines or pickles to Carbon.
    pub graphite: Vec<GraphiteSettings>,
    /// `[statsd.backends.console]`: prints to standard output, or to standard error in the Perl
    /// dialect.
    pub console: Option<ConsoleSettings>,
    /// `[statsd.backends.file]`: appends values to a file.
    pub file: Option<FileSettings>,
    /// `[[statsd.backends.repeater]]`: forwards raw packets to other servers.
    pub repeater: Vec<RepeaterSettings>,
    /// `[statsd.backends.prometheus]`: an endpoint for scrapes.
    pub prometheus: Option<PrometheusSettings>,
    /// `[[statsd.backends.remote-write]]`: sends the same values by Prometheus' remote write.
    pub remote_write: Vec<RemoteWriteSettings>,
    /// `[[statsd.backends.influx]]`: sends line protocol over HTTP.
    pub influx: Vec<InfluxSettings>,
    /// `[[statsd.backends.otlp]]`: sends OpenTelemetry's protocol over HTTP.
    pub otlp: Vec<OtlpSettings>,
    /// `[[statsd.backends.kafka]]`: sends a message for each metric to Kafka.
    pub kafka: Vec<KafkaSettings>,
    /// `[[statsd.backends.postgres]]`: copies values into a partitioned table.
    pub postgres: Vec<PostgresSettings>,
    /// `[[statsd.backends.exec]]`: passes values to a program.
    pub exec: Vec<ExecSettings>,
    /// `[[statsd.backends.webhook]]`: posts events and service checks over HTTP.
    pub webhook: Vec<WebhookSettings>,
    /// `[[statsd.backends.forward]]`: sends mergeable aggregates to another server.
    pub forward: Vec<ForwardSettings>,
}

/// The settings of the forward backend, which sends mergeable aggregates to another server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ForwardSettings {
    /// The address of the parent's listener of type `forward`: `host:port`.
    pub to: HostAndPort,
    /// Name of this server at the parent. Default: the host's name.
    #[serde(default)]
    pub sender: Option<String>,
    /// Use TLS, and verify the parent's certificate and name.
    #[serde(default)]
    pub tls: bool,
    /// File with root certificates. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// File with the certificate chain of this server, if the parent demands one.
    pub tls_certificate: Option<PathBuf>,
    /// File with the certificate's private key.
    pub tls_key: Option<PathBuf>,
    /// File that contains the token that the parent demands.
    pub token_file: Option<PathBuf>,
    /// Maximum bytes spooled until the parent has acknowledged them.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl ForwardSettings {
    /// Creates settings for a parent, with defaults for the rest.
    pub fn new(to: HostAndPort) -> Self {
        Self {
            to,
            sender: None,
            tls: false,
            ca_file: None,
            tls_certificate: None,
            tls_key: None,
            token_file: None,
            spool_bytes: spool(),
        }
    }

    /// Returns the rule that the settings violate, if any.
    pub(super) fn violation(&self) -> Option<&'static str> {
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            Some("tls-certificate and tls-key must be set together")
        } else if self.tls_certificate.is_some() && !self.tls {
            Some("tls-certificate has no effect without tls = true")
        } else if self.ca_file.is_some() && !self.tls {
            Some("ca-file has no effect without tls = true")
        } else {
            None
        }
    }
}

/// A host name or address with a port: `host:port`, `[::1]:8128`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostAndPort {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl TryFrom<String> for HostAndPort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let split = text.rsplit_once(':').and_then(|(host, port)| {
            let host =
                host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).or_else(|| {
                    // An address with colons needs brackets.
                    (!host.contains(':')).then_some(host)
                })?;
            let port = port.parse().ok().filter(|port| *port != 0)?;
            (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
        });
        split.ok_or_else(|| format!("{text:?} is not host:port, such as stats.example.org:8128"))
    }
}

impl From<HostAndPort> for String {
    fn from(HostAndPort { host, port }: HostAndPort) -> Self {
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// The settings of the Graphite backend, which sends text lines or pickles to Carbon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct GraphiteSettings {
    /// Host name or address. If empty, values are discarded.
    pub host: String,
    /// Port of the text protocol.
    pub port: u16,
    /// Port of the pickle protocol.
    pub pickle_port: u16,
    /// The protocol to use.
    pub protocol: GraphiteProtocol,
    /// Use the legacy prefixes `stats.`, `stats_counts.`, `stats.timers.`, `stats.gauges.`,
    /// `stats.sets.` instead of the ones below.
    pub legacy_namespace: bool,
    /// First level of all names; omitted if empty. This and the prefixes below apply only without
    /// the legacy namespace.
    pub global_prefix: String,
    /// Second level of counters; omitted if empty.
    pub prefix_counter: String,
    /// Second level of timers; omitted if empty.
    pub prefix_timer: String,
    /// Second level of gauges; omitted if empty.
    pub prefix_gauge: String,
    /// Second level of sets; omitted if empty.
    pub prefix_set: String,
    /// Last level of all names; omitted if empty.
    pub global_suffix: String,
    /// Send counts of counters in addition to their rates.
    pub flush_counts: bool,
    /// Use one persistent connection instead of one per flush.
    pub persistent: bool,
    /// Maximum bytes spooled while the receiver is unreachable. With 0, values are dropped
    /// immediately, as etsy's server does.
    pub spool_bytes: usize,
}

impl Default for GraphiteSettings {
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

/// The protocol for Carbon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphiteProtocol {
    /// One line per value.
    #[default]
    Text,
    /// Length-prefixed pickles.
    Pickle,
}

/// The settings of the console backend, which prints each interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ConsoleSettings {
    /// Print five levels deep and in colour.
    pub pretty: bool,
}

/// The settings of the file backend, which appends one line per value to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileSettings {
    /// Path of the file to append to.
    pub path: PathBuf,
    /// Start each line with the flush's timestamp in seconds.
    #[serde(default)]
    pub timestamps: bool,
}

/// The settings of the repeater for one receiver, to which it forwards every packet unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RepeaterSettings {
    /// Host name or address.
    pub host: String,
    /// UDP or TCP port of the receiver.
    pub port: u16,
    /// The protocol to use.
    #[serde(default)]
    pub protocol: RepeaterProtocol,
}

/// The protocol by which the repeater sends packets to its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepeaterProtocol {
    /// Datagrams over IPv4.
    #[default]
    Udp4,
    /// Datagrams over IPv6.
    Udp6,
    /// A TCP connection; each packet ends with a newline.
    Tcp,
}

/// The settings of the Prometheus backend, an endpoint for scrapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct PrometheusSettings {
    /// Address that serves `/metrics`; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The metric type of timers, histograms and distributions, unless the mapping file overrides
    /// it.
    pub timers: ObserverType,
    /// Quantiles of summaries, each from 0 to 1.
    pub quantiles: Vec<f64>,
    /// Time window of the quantiles of summaries.
    #[serde(with = "howdah_settings::milliseconds")]
    pub quantile_age: Duration,
    /// Upper bounds of the classic buckets of histograms, ascending, in seconds for timers in
    /// milliseconds.
    pub buckets: Vec<f64>,
    /// Native histograms: maximum growth factor from one bucket bound to the next.
    pub native_bucket_factor: f64,
    /// Native histograms: maximum buckets per series; beyond it, adjacent buckets are merged.
    pub native_buckets_max: usize,
    /// A mapping file in statsd_exporter's format.
    pub mapping: Option<PathBuf>,
    /// The names of metrics without a matching rule in the mapping file.
    pub names: PrometheusNames,
    /// Series idle for this long are removed; never if zero.
    #[serde(with = "howdah_settings::milliseconds")]
    pub ttl: Duration,
    /// Maximum number of keys; values of further ones are dropped and counted.
    pub series_max: usize,
}

impl Default for PrometheusSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9102)),
            timers: ObserverType::default(),
            quantiles: vec![0.5, 0.9, 0.99],
            quantile_age: Duration::from_secs(600),
            buckets: vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            native_bucket_factor: 1.1,
            native_buckets_max: 160,
            mapping: None,
            names: PrometheusNames::default(),
            ttl: Duration::ZERO,
            series_max: 1_000_000,
        }
    }
}

/// The settings of the remote-write backend, which sends what a scrape would have.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RemoteWriteSettings {
    /// The endpoint: `http://host:9090/api/v1/write`.
    pub url: String,
    /// Labels added to each series, unless it has a label with the same name.
    pub labels: BTreeMap<String, String>,
    /// See [`PrometheusSettings::timers`].
    pub timers: ObserverType,
    /// See [`PrometheusSettings::quantiles`].
    pub quantiles: Vec<f64>,
    /// See [`PrometheusSettings::quantile_age`].
    #[serde(with = "howdah_settings::milliseconds")]
    pub quantile_age: Duration,
    /// See [`PrometheusSettings::buckets`].
    pub buckets: Vec<f64>,
    /// A mapping file in statsd_exporter's format.
    pub mapping: Option<PathBuf>,
    /// See [`PrometheusSettings::names`].
    pub names: PrometheusNames,
    /// Series idle for this long are removed; never if zero.
    #[serde(with = "howdah_settings::milliseconds")]
    pub ttl: Duration,
    /// Maximum number of keys; values of further ones are dropped and counted.
    pub series_max: usize,
    /// File that contains a bearer token, if the server requires one.
    pub token_file: Option<PathBuf>,
    /// File with root certificates for https. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum bytes spooled while the receiver is unreachable.
    pub spool_bytes: usize,
}

impl RemoteWriteSettings {
    /// Returns the settings of an endpoint with the same values.
    pub(crate) fn values(&self) -> PrometheusSettings {
        PrometheusSettings {
            timers: self.timers,
            quantiles: self.quantiles.clone(),
            quantile_age: self.quantile_age,
            buckets: self.buckets.clone(),
            mapping: self.mapping.clone(),
            names: self.names,
            ttl: self.ttl,
            series_max: self.series_max,
            ..PrometheusSettings::default()
        }
    }
}

impl Default for RemoteWriteSettings {
    fn default() -> Self {
        let values = PrometheusSettings::default();
        Self {
            url: String::new(),
            labels: BTreeMap::new(),
            timers: values.timers,
            quantiles: values.quantiles,
            quantile_age: values.quantile_age,
            buckets: values.buckets,
            mapping: values.mapping,
            names: values.names,
            ttl: values.ttl,
            series_max: values.series_max,
            token_file: None,
            ca_file: None,
            spool_bytes: spool(),
        }
    }
}

/// Omits the URL's query, which may contain a password.
impl fmt::Debug for RemoteWriteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.split('?').next().unwrap_or_default();
        f.debug_struct("RemoteWriteSettings")
            .field("url", &url)
            .field("labels", &self.labels)
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

/// The names of metrics that no mapping rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrometheusNames {
    /// By Prometheus' conventions: counters end in `_total`, timers in `_seconds`.
    #[default]
    Conventional,
    /// As statsd_exporter's: without these suffixes.
    Exporter,
}

/// The Prometheus metric type of timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObserverType {
    /// Quantiles, sum and count.
    #[default]
    Summary,
    /// Classic buckets, and native ones if the scraper requests them.
    Histogram,
}

/// The settings of the InfluxDB backend, which sends line protocol over HTTP.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InfluxSettings {
    /// The write endpoint with its parameters: `http://host:8086/api/v2/write?org=o&bucket=b`,
    /// `http://host:8086/write?db=d`.
    pub url: String,
    /// File that contains the token, if the server requires one.
    pub token_file: Option<PathBuf>,
    /// File with root certificates for https. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum bytes spooled while the receiver is unreachable.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl InfluxSettings {
    /// Creates settings for a write endpoint, with defaults for the rest.
    pub fn new(url: String) -> Self {
        Self { url, token_file: None, ca_file: None, spool_bytes: spool() }
    }
}

/// Omits the URL's query, which may contain a password.
impl fmt::Debug for InfluxSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.split('?').next().unwrap_or_default();
        f.debug_struct("InfluxSettings")
            .field("url", &url)
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

/// The settings of the OTLP backend, which sends OpenTelemetry's protocol over HTTP with protobuf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OtlpSettings {
    /// The endpoint: `http://host:4318/v1/metrics`.
    pub url: String,
    /// Whether to send cumulative values or those of each interval.
    #[serde(default)]
    pub temporality: Temporality,
    /// Resource attributes. `service.name` defaults to `statsd`.
    #[serde(default)]
    pub resource: BTreeMap<String, String>,
    /// File that contains a bearer token, if the server requires one.
    pub token_file: Option<PathBuf>,
    /// File with root certificates for https. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum bytes spooled while the receiver is unreachable.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl OtlpSettings {
    /// Creates settings for an endpoint, with defaults for the rest.
    pub fn new(url: String) -> Self {
        Self {
            url,
            temporality: Temporality::default(),
            resource: BTreeMap::new(),
            token_file: None,
            ca_file: None,
            spool_bytes: spool(),
        }
    }
}

/// The values that OTLP sums and histograms include.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// All values since the key was first received.
    #[default]
    Cumulative,
    /// The values of one interval.
    Delta,
}

/// The settings of the PostgreSQL backend, which copies values into a partitioned table.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PostgresSettings {
    /// Connection URI or keyword/value string. Prefer a password file for the password.
    pub connection: String,
    /// The table, created if missing; may be `schema.table`.
    #[serde(default = "table")]
    pub table: String,
    /// Time range of a partition.
    #[serde(default)]
    pub partition: Partition,
    /// Partitions older than this are dropped; never if zero.
    #[serde(default, with = "howdah_settings::milliseconds")]
    pub retention: Duration,
    /// Format in which rows are copied.
    #[serde(default)]
    pub format: PostgresCopyFormat,
    /// The table of DogStatsD events; off if empty. Default: `statsd_events` in the schema of
    /// `table`.
    #[serde(default)]
    pub events_table: Option<String>,
    /// The table of DogStatsD service checks; off if empty. Default: `statsd_service_checks` in the
    /// schema of `table`.
    #[serde(default)]
    pub checks_table: Option<String>,
    /// Maximum bytes spooled while the server is unreachable.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl PostgresSettings {
    /// Creates settings for a connection string, with defaults for the rest.
    pub fn new(connection: String) -> Self {
        Self {
            connection,
            table: table(),
            partition: Partition::default(),
            retention: Duration::ZERO,
            format: PostgresCopyFormat::default(),
            events_table: None,
            checks_table: None,
            spool_bytes: spool(),
        }
    }
}

/// Omits the connection string, which may contain a password.
impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSettings")
            .field("table", &self.table)
            .field("partition", &self.partition)
            .field("retention", &self.retention)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// The settings of the webhook backend, which posts events and service checks as JSON.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WebhookSettings {
    /// The endpoint.
    pub url: String,
    /// File that contains a bearer token, if the server requires one.
    pub token_file: Option<PathBuf>,
    /// File with root certificates for https. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum bytes spooled while the receiver is unreachable.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

/// Omits the URL, which is often a secret as a whole.
impl fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSettings")
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

/// The time range of a partition, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partition {
    /// One hour, from full hour to full hour.
    Hour,
    /// One day, from midnight to midnight.
    #[default]
    Day,
    /// A calendar month.
    Month,
}

/// The format in which rows are copied with COPY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PostgresCopyFormat {
    /// PostgreSQL's binary format, which is cheaper for the server.
    #[default]
    Binary,
    /// Text, which intermediaries can read.
    Text,
}

fn table() -> String {
    "statsd_samples".to_owned()
}

fn spool() -> usize {
    16 << 20
}

/// The settings of the exec backend, which starts a program for each flush.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExecSettings {
    /// The program and its arguments. No shell is involved.
    pub command: Vec<String>,
    /// Format of the program's input.
    #[serde(default)]
    pub format: ExecFormat,
    /// Maximum time for one run; then the program and its children are ended.
    #[serde(default = "program_timeout", with = "howdah_settings::milliseconds")]
    pub timeout: Duration,
    /// Maximum bytes spooled while the program fails. With 0, values are dropped immediately.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl ExecSettings {
    /// Returns the program's name, without its folder.
    pub fn program(&self) -> &str {
        let path = self.command.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Returns the rule that the settings violate, if any.
    pub(super) fn violation(&self) -> Option<&'static str> {
        if self.program().is_empty() {
            Some("command must name a program: [\"/usr/local/bin/sink\", \"--option\"]")
        } else if self.timeout.as_millis() == 0 {
            Some("timeout must be at least a millisecond")
        } else {
            None
        }
    }
}

/// Omits the arguments, which may contain passwords.
impl fmt::Debug for ExecSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSettings")
            .field("program", &self.program())
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The format of a program's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecFormat {
    /// `key|value|timestamp`, as statsite's `stream_cmd`.
    #[default]
    Lines,
    /// One JSON object per metric and line.
    Json,
}

fn program_timeout() -> Duration {
    Duration::from_secs(10)
}

/// The settings of the Kafka backend, which sends a message for each metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KafkaSettings {
    /// Brokers to connect to first: `host:port`. The others are learned from them.
    pub brokers: Vec<String>,
    /// The topic, which must exist.
    pub topic: String,
    /// Format of messages.
    #[serde(default)]
    pub format: KafkaFormat,
    /// Use TLS, and verify the brokers' certificates and names.
    #[serde(default)]
    pub tls: bool,
    /// File with root certificates. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// User to authenticate as by SASL. Default: none.
    pub user: Option<String>,
    /// File that contains the user's password.
    pub password_file: Option<PathBuf>,
    /// How the user is authenticated.
    #[serde(default)]
    pub mechanism: SaslMechanism,
    /// Maximum bytes of messages sent to a partition at once.
    #[serde(default = "kafka_batch")]
    pub batch_bytes: usize,
    /// Maximum bytes spooled while Kafka is unreachable.
    #[serde(default = "spool")]
    pub spool_bytes: usize,
}

impl KafkaSettings {
    /// Returns the rule that the settings violate, if any.
    pub(super) fn violation(&self) -> Option<&'static str> {
        let is_broker = |broker: &String| {
            let parts = broker.rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if self.brokers.is_empty() || !self.brokers.iter().all(is_broker) {
            Some("brokers must be a list of host:port: [\"kafka1.example.org:9092\"]")
        } else if self.topic.is_empty() {
            Some("topic must name a topic")
        } else if self.user.is_some() != self.password_file.is_some() {
            Some("user and password-file must be set together")
        } else if self.ca_file.is_some() && !self.tls {
            Some("ca-file has no effect without tls = true")
        } else if !(1024..=64 << 20).contains(&self.batch_bytes) {
            Some("batch-bytes must be between 1024 and 67108864")
        } else {
            None
        }
    }
}

/// The format of messages to Kafka.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KafkaFormat {
    /// One JSON object per metric.
    #[default]
    Json,
    /// One line of InfluxDB's line protocol per metric.
    Influx,
}

/// A mechanism by which a user is authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SaslMechanism {
    /// The password is sent: use it with TLS only.
    Plain,
    /// The password is not sent; its hash is by SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// The password is not sent; its hash is by SHA-512.
    #[default]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

fn kafka_batch() -> usize {
    // Brokers accept 1 MiB by default.
    512 << 10
}

/// The error for settings with a `kafka` section in a program without the feature.
pub(crate) const KAFKA_MISSING: &str =
    "this program was built without Kafka: build it with `cargo build --features kafka`";

impl BackendSettings {
    /// Returns the key of a section whose backend this program was built without, and why it is
    /// missing.
    pub fn missing(&self) -> Option<(&'static str, &'static str)> {
        let is_missing = cfg!(not(feature = "kafka")) && !self.kafka.is_empty();
        is_missing.then_some(("backends.kafka", KAFKA_MISSING))
    }
}

/// The settings of the proxy, which distributes keys over other statsd servers by consistent
/// hashing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProxySettings {
    /// The servers over which the proxy distributes keys.
    pub nodes: Vec<ProxyNodeSettings>,
    /// Time between health checks.
    #[serde(default = "check_interval", with = "howdah_settings::milliseconds")]
    pub check_interval: Duration,
}

fn check_interval() -> Duration {
    Duration::from_secs(10)
}

/// A statsd server to which the proxy distributes keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProxyNodeSettings {
    /// Host name or address.
    pub host: String,
    /// Port that receives samples.
    pub port: u16,
    /// Management port, used for health checks.
    pub admin_port: u16,
}
