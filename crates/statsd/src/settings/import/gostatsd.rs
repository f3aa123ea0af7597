//! Converts the settings of gostatsd, in TOML, YAML or JSON.
//!
//! Source: the README, BACKENDS.md and the backends of gostatsd 41. Its keys ignore case.

mod filters;

use std::{path::Path, time::Duration};

use howdah_settings::SettingsErrors;

use super::{
    Conversion, KeyAdvice, ParsedSettings, SettingsFormat, UnusedKey, ValueProblem, boolean,
    entries, find, go_duration, host_and_port, influx_url, is_set, percent_names, text, text_list,
    whole,
};
use crate::settings::{
    ConsoleSettings, GraphiteSettings, InfluxSettings, ListenSettings, OtlpSettings,
    RepeaterProtocol, RepeaterSettings, RuleSettings, StatsdDialect, StatsdLogLevel, go_values,
    literal::{LiteralEntry, LiteralNode},
};

/// Converts a file that was read into a tree.
pub(crate) fn read(tree: &LiteralNode, file: &Path) -> Result<ParsedSettings, SettingsErrors> {
    let mut gostatsd = GostatsdFile::new(file);
    match entries(tree) {
        Ok(all) => {
            all.iter().for_each(|entry| gostatsd.read_entry(entry));
            gostatsd.read_filters(all);
            gostatsd.read_backends(all);
        }
        Err(why) => gostatsd.out.error(tree.line, "", why),
    }
    gostatsd.finish()
}

/// Whether a key at the top level of a file shows that it is gostatsd's.
pub(super) fn is_known_key(key: &str) -> bool {
    key == "backends" || is_json_key(key)
}

/// Whether a key shows that a JSON file is gostatsd's, and not of etsy's or the Perl server.
pub(super) fn is_json_key(key: &str) -> bool {
    let is_read = || READ.iter().chain(SECTIONS).any(|name| *name == key);
    key.contains('-') && (is_read() || ADVICE.iter().any(|(name, _)| *name == key))
}

/// The keys that are converted.
const READ: &[&str] = &[
    "metrics-addr",
    "max-readers",
    "conn-per-reader",
    "flush-interval",
    "backends",
    "percent-threshold",
    "expiry-interval",
    "expiry-interval-counter",
    "expiry-interval-gauge",
    "expiry-interval-set",
    "expiry-interval-timer",
    "namespace",
    "default-tags",
    "filters",
    "internal-namespace",
    "log-raw-metric",
    "verbose",
    "server-mode",
];

/// Sections that are read with their backends, or that are not converted because their backends
/// or servers are not.
const SECTIONS: &[&str] = &[
    "disabled-sub-metrics",
    "graphite",
    "influxdb",
    "otlp",
    "statsdaemon",
    "stdout",
    "null",
    "datadog",
    "newrelic",
    "cloudwatch",
    "promremotewriter",
    "transport",
];

const BATCHES: &str = "not needed: packets are received in batches, and parsed by their reader";
const NO_TAGS: &str = "not added to the server's own metrics";

/// The advice for the expiry of metrics other than gauges.
const EXPIRY: &str = "idle counters, sets and timers are sent as 0 until the server stops, or not \
                      at all (`delete-idle-…`); for Prometheus, set `ttl`";

/// Keys without an effect here.
const ADVICE: &KeyAdvice = &[
    ("flush-aligned", "not supported: flushes are aligned to the start of the server"),
    ("flush-offset", "not supported: flushes are aligned to the start of the server"),
    ("receive-batch-size", BATCHES),
    ("receive-buffer-size", BATCHES),
    ("max-parsers", BATCHES),
    ("max-workers", BATCHES),
    ("max-queue-size", BATCHES),
    ("max-concurrent-events", "not needed: `message-bytes` of [statsd.limits] limits events"),
    ("estimated-tags", "not needed"),
    ("internal-tags", NO_TAGS),
    ("hostname", "no host tag is added to metrics: set `static-tags`"),
    ("ignore-host", "no host tag is added to metrics"),
    ("cloud-provider", "not supported: metrics get no tags of the cloud"),
    ("max-cloud-requests", "not supported: metrics get no tags of the cloud"),
    ("burst-cloud-requests", "not supported: metrics get no tags of the cloud"),
    ("cloud-cache-values", "not supported: metrics get no tags of the cloud"),
    ("bad-lines-per-minute", "use `bad` at the management port (`management`) instead"),
    ("statser-type", "set `extra-metrics` and `prefix` instead"),
    ("heartbeat-enabled", "use the counter of packets, `packets_received`, instead"),
    ("timer-histogram-limit", "not supported: `histogram` sets bins of timers"),
    ("disable-internal-events", "not needed: there are no internal events"),
    ("http-servers", "not supported: `health` serves /healthz, a prometheus backend /metrics"),
    ("http", "not supported: `health` serves /healthz, a prometheus backend /metrics"),
    ("http-transport", "not supported: use a repeater, which forwards packets"),
    ("profile", "not supported"),
    ("json", "use --log-format json instead"),
    ("lambda-extension-manual-flush", "not supported"),
    ("lambda-extension-telemetry-address", "not supported"),
];

/// Statistics of timers: the key that disables each, and its name here.
const STATISTICS: [(&str, &str); 9] = [
    ("count", "count"),
    ("count-per-second", "count_ps"),
    ("mean", "mean"),
    ("median", "median"),
    ("lower", "lower"),
    ("upper", "upper"),
    ("stddev", "std"),
    ("sum", "sum"),
    ("sum-squares", "sum_squares"),
];

/// The same for statistics of percentiles.
const PERCENTILE_STATISTICS: [(&str, &str); 6] = [
    ("count-pct", "count"),
    ("mean-pct", "mean"),
    ("sum-pct", "sum"),
    ("sum-squares-pct", "sum_squares"),
    ("lower-pct", "lower"),
    ("upper-pct", "upper"),
];

/// How long a metric is sent after it was last received.
#[derive(Clone, Copy, Debug)]
enum IdleExpiry {
    AtOnce,
    After(Duration),
    Never,
}

struct GostatsdFile<'f> {
    out: Conversion<'f>,
    readers: Option<usize>,
    has_socket_per_reader: bool,
    disabled: Vec<String>,
    /// Expiry of all types, then of counters, gauges, sets and timers, each with its line.
    expiry: [Option<(usize, IdleExpiry)>; 5],
}

impl<'f> GostatsdFile<'f> {
    fn new(file: &'f Path) -> Self {
        let mut out = Conversion::new(file);
        out.settings.dialect = StatsdDialect::Dogstatsd;
        out.settings.dogstatsd.origin = Some(false);
        out.settings.flush_interval = Duration::from_secs(1);
        Self {
            out,
            readers: None,
            has_socket_per_reader: false,
            disabled: Vec::new(),
            expiry: [None; 5],
        }
    }

    fn read_entry(&mut self, entry: &LiteralEntry) {
        if is_set(&entry.value) {
            let outcome = self.read_key(&entry.key.to_ascii_lowercase(), entry);
            self.out.record(entry, &entry.key, outcome);
        }
    }

    fn read_key(&mut self, key: &str, entry: &LiteralEntry) -> Result<(), ValueProblem> {
        let LiteralEntry { line, value, .. } = entry;
        let settings = &mut self.out.settings;
        match key {
            "metrics-addr" => {
                let address = text(value)?;
                settings.listen = vec![if address.starts_with('/') {
                    ListenSettings::unixgram(address.into(), None)
                } else {
                    let parsed = go_values::listen_address(&address);
                    let why = || format!("{address:?} is not an address: write IP:PORT");
                    ListenSettings::udp(parsed.ok_or_else(why)?)
                }];
            }
            "max-readers" => self.readers = Some(whole(value)?),
            "conn-per-reader" => self.has_socket_per_reader = boolean(value)?,
            "flush-interval" => settings.flush_interval = duration(value)?,
            "percent-threshold" => {
                let number = |word: &String| word.parse().map_err(|_| not_a_number(word));
                settings.aggregation.percentiles =
                    text_list(value)?.iter().map(number).collect::<Result<_, _>>()?;
            }
            "expiry-interval" => self.expiry[0] = Some((*line, expiry(value)?)),
            "expiry-interval-counter" => self.expiry[1] = Some((*line, expiry(value)?)),
            "expiry-interval-gauge" => self.expiry[2] = Some((*line, expiry(value)?)),
            "expiry-interval-set" => self.expiry[3] = Some((*line, expiry(value)?)),
            "expiry-interval-timer" => self.expiry[4] = Some((*line, expiry(value)?)),
            "namespace" => {
                let namespace = text(value)?;
                let namespace = namespace.trim_matches('.');
                if !namespace.is_empty() {
                    let rename = Some(format!("{namespace}.${{0}}"));
                    // Filters see names with the namespace.
                    settings.rules.insert(0, RuleSettings { rename, ..RuleSettings::default() });
                }
            }
            "default-tags" => self.out.add_static_tags(*line, key, &text_list(value)?),
            "internal-namespace" => settings.aggregation.prefix = text(value)?,
            "log-raw-metric" => settings.dump_messages = boolean(value)?,
            "verbose" => {
                settings.log.level = boolean(value)?.then_some(StatsdLogLevel::Debug);
            }
            "server-mode" if text(value)? == "standalone" => {}
            "server-mode" => {
                let advice = "aggregates are not forwarded: use a repeater, which forwards packets";
                self.out.warn(*line, key, advice);
            }
            "disabled-sub-metrics" => {
                for entry in entries(value)? {
                    if boolean(&entry.value)? {
                        self.disabled.push(entry.key.to_ascii_lowercase());
                    }
                }
            }
            // These are read with their backends.
            "backends" | "filters" | "filter" => {}
            _ if SECTIONS.contains(&key) || key.starts_with("transport.") => {}
            // Viper reads `[http.name]` as a section of this name.
            _ if key.starts_with("http.") || key.starts_with("filter.") => {}
            _ => {
                let unused = UnusedKey { line: *line, section: "", key: &entry.key };
                self.out.warn_unused(unused, ADVICE, READ);
            }
        }
        Ok(())
    }

    /// Reads the list of filters, and the section of each.
    fn read_filters(&mut self, all: &[LiteralEntry]) {
        let Some(list) = find(all, "filters") else { return };
        let names = match text_list(&list.value) {
            Ok(names) => names,
            Err(why) => return self.out.error(list.line, "filters", why),
        };
        let sections = find(all, "filter").and_then(|it| entries(&it.value).ok());
        let sections = sections.unwrap_or_default();
        let mut found = Vec::new();
        for name in &names {
            // Viper reads `[filter.name]` also as a section of this name.
            let section = find(sections, name).or_else(|| find(all, &format!("filter.{name}")));
            let Some(section) = section else {
                let text = format!("there is no section [filter.{name}]");
                self.out.warn(list.line, "filters", text);
                continue;
            };
            found.push((name, section.line, entries(&section.value).unwrap_or_default()));
        }
        // Conditions refer to all tags, also to those that other filters drop.
        found.sort_by_key(|(_, _, keys)| !filters::drops_metrics(keys));
        for (at, (name, line, keys)) in found.iter().enumerate() {
            match filters::filter_rules(keys, at + 1 == found.len()) {
                Ok(rules) => self.out.settings.rules.extend(rules),
                Err(why) => {
                    let path = format!("filter.{name}");
                    self.out.warn(*line, &path, format!("not converted: {why}"));
                }
            }
        }
    }

    /// Reads the list of backends, and the section of each.
    fn read_backends(&mut self, all: &[LiteralEntry]) {
        let (line, names) = match find(all, "backends") {
            Some(entry) => match text_list(&entry.value) {
                Ok(names) => (entry.line, names),
                Err(why) => return self.out.error(entry.line, "backends", why),
            },
            None => (0, vec!["graphite".to_owned()]),
        };
        for name in &names {
            let section = find(all, name);
            let keys = section.and_then(|section| entries(&section.value).ok()).unwrap_or_default();
            let line = section.map_or(line, |section| section.line);
            if let Err(why) = self.read_backend(line, name, keys) {
                self.out.error(line, name, why);
            }
        }
    }

    fn read_backend(
        &mut self,
        line: usize,
        name: &str,
        keys: &[LiteralEntry],
    ) -> Result<(), ValueProblem> {
        match name {
            "graphite" => self.read_graphite(line, keys)?,
            "influxdb" => self.read_influx(keys)?,
            "otlp" => self.read_otlp(keys)?,
            "statsdaemon" => self.read_repeater(line, keys)?,
            "stdout" => self.out.settings.backends.console = Some(ConsoleSettings::default()),
            "null" => {}
            "promremotewriter" => {
                let advice = "not converted: add [[statsd.backends.remote-write]]";
                self.out.warn(line, name, advice);
            }
            _ => {
                let advice = "this backend is not supported: add another, such as otlp or \
                              prometheus, to the output of `howdah statsd import`";
                self.out.warn(line, name, advice);
            }
        }
        Ok(())
    }

    fn read_graphite(&mut self, line: usize, keys: &[LiteralEntry]) -> Result<(), ValueProblem> {
        let value = |names: &[&str], default: &str| {
            let entry = names.iter().find_map(|name| find(keys, name));
            entry.map_or(Ok(default.to_owned()), |entry| text(&entry.value))
        };
        let (host, port) = host_and_port(&value(&["address"], "localhost:2003")?, 2003)?;
        let mode = value(&["mode"], "tags")?;
        if !matches!(mode.as_str(), "tags" | "basic" | "legacy") {
            return Err(format!("mode {mode:?} is not tags, basic or legacy"));
        }
        if mode != "tags" {
            self.out.warn(line, "graphite.mode", "tags are sent, not dropped");
        }
        let prefix = |names: &[&str], default: &str| {
            Ok::<_, ValueProblem>(value(names, default)?.trim_matches('.').to_owned())
        };
        let graphite = GraphiteSettings {
            host,
            port,
            legacy_namespace: mode == "legacy",
            global_prefix: prefix(&["global_prefix"], "stats")?,
            prefix_counter: prefix(&["prefix_counter"], "counters")?,
            prefix_timer: prefix(&["prefix_timer"], "timers")?,
            prefix_gauge: prefix(&["prefix_gauge"], "gauges")?,
            prefix_set: prefix(&["prefix_sets", "prefix_set"], "sets")?,
            global_suffix: prefix(&["global_suffix"], "")?,
            ..GraphiteSettings::default()
        };
        self.out.settings.backends.graphite.push(graphite);
        self.warn_others(
            "graphite",
            keys,
            &[
                "address",
                "mode",
                "global_prefix",
                "prefix_counter",
                "prefix_timer",
                "prefix_gauge",
                "prefix_sets",
                "prefix_set",
                "global_suffix",
            ],
            &[
                ("dial_timeout", "not needed: a slow receiver delays nothing else"),
                ("write_timeout", "not needed: a slow receiver delays nothing else"),
            ],
        );
        Ok(())
    }

    fn read_influx(&mut self, keys: &[LiteralEntry]) -> Result<(), ValueProblem> {
        let value = |name: &str| find(keys, name).map(|entry| text(&entry.value)).transpose();
        let endpoint = value("api-endpoint")?.ok_or("lacks api-endpoint")?;
        let is_first = value("api-version")?.is_some_and(|version| version == "1");
        let parameters = if is_first {
            let database = value("database")?.ok_or("lacks database")?;
            vec![("db", Some(database)), ("rp", value("retention-policy")?)]
        } else {
            let (org, bucket) = (value("org")?, value("bucket")?);
            let (org, bucket) = (org.ok_or("lacks org")?, bucket.ok_or("lacks bucket")?);
            vec![("org", Some(org)), ("bucket", Some(bucket))]
        };
        let path = if is_first { "/write" } else { "/api/v2/write" };
        let url = influx_url(&endpoint, path, &parameters);
        self.out.settings.backends.influx.push(InfluxSettings::new(url));
        self.warn_others(
            "influxdb",
            keys,
            &["api-endpoint", "api-version", "database", "retention-policy", "org", "bucket"],
            &[
                ("credentials", "write the token to a file, and name it by `token-file`"),
                ("consistency", "not sent"),
                ("compress-payload", "not supported"),
                ("max-requests", "not needed: requests are sent one after the other"),
                ("max-request-elapsed-time", "set `spool-bytes` instead"),
                ("metrics-per-batch", "not needed"),
                ("transport", "set `ca-file` for https instead"),
            ],
        );
        Ok(())
    }

    fn read_otlp(&mut self, keys: &[LiteralEntry]) -> Result<(), ValueProblem> {
        let endpoint = find(keys, "metrics_endpoint").or_else(|| find(keys, "endpoint"));
        let endpoint = text(&endpoint.ok_or("lacks metrics_endpoint")?.value)?;
        let url = if endpoint.contains("://") { endpoint } else { format!("http://{endpoint}") };
        self.out.settings.backends.otlp.push(OtlpSettings::new(url));
        self.warn_others(
            "otlp",
            keys,
            &["metrics_endpoint", "endpoint"],
            &[
                ("logs_endpoint", "not supported: events are counted, and their text is dropped"),
                ("resource_keys", "set `resource` instead"),
                ("conversion", "timers are exponential histograms"),
                ("disabled_timer_aggregations", "timers are exponential histograms"),
                ("max_requests", "not needed: requests are sent one after the other"),
                ("max_retries", "set `spool-bytes` instead"),
                ("metrics_per_batch", "not needed"),
                ("compress_payload", "not supported"),
                ("transport", "set `ca-file` for https instead"),
                ("user_agent", "not supported"),
            ],
        );
        Ok(())
    }

    fn read_repeater(&mut self, line: usize, keys: &[LiteralEntry]) -> Result<(), ValueProblem> {
        let address = find(keys, "address").ok_or("lacks address")?;
        let (host, port) = host_and_port(&text(&address.value)?, 8125)?;
        let is_tcp = match find(keys, "tcp_transport") {
            Some(entry) => boolean(&entry.value)?,
            None => false,
        };
        let protocol = if is_tcp { RepeaterProtocol::Tcp } else { RepeaterProtocol::Udp4 };
        self.out.settings.backends.repeater.push(RepeaterSettings { host, port, protocol });
        let text = "packets are forwarded as they arrive, not aggregates";
        self.out.warn(line, "statsdaemon", text);
        let tls = "not supported: forwarded packets are not encrypted";
        self.warn_others(
            "statsdaemon",
            keys,
            &["address", "tcp_transport"],
            &[
                ("dial_timeout", "not needed: a slow receiver delays nothing else"),
                ("write_timeout", "not needed: a slow receiver delays nothing else"),
                ("disable_tags", "not supported: packets are forwarded unchanged"),
                ("tls_transport", tls),
                ("tls_ca_path", tls),
                ("tls_cert_path", tls),
                ("tls_key_path", tls),
            ],
        );
        Ok(())
    }

    /// Warns about the keys of a section that are not read.
    fn warn_others(
        &mut self,
        section: &str,
        keys: &[LiteralEntry],
        read: &[&str],
        advice: &KeyAdvice,
    ) {
        for LiteralEntry { key, line, value } in keys {
            let is_read = read.iter().any(|name| name.eq_ignore_ascii_case(key));
            if is_set(value) && !is_read {
                self.out.warn_unused(UnusedKey { line: *line, section, key }, advice, read);
            }
        }
    }

    fn finish(mut self) -> Result<ParsedSettings, SettingsErrors> {
        if let (true, Some(count), [ListenSettings::Udp { readers, .. }]) =
            (self.has_socket_per_reader, self.readers, &mut self.out.settings.listen[..])
        {
            *readers = count.clamp(1, 64);
        }
        self.set_expiry();
        if !self.disabled.is_empty() {
            let rules = &mut self.out.settings.aggregation;
            let is_on = |(key, _): &&(&str, &str)| !self.disabled.iter().any(|name| name == key);
            let plain = STATISTICS.iter().filter(is_on).map(|(_, name)| (*name).to_owned());
            let percentiles = &rules.percentiles;
            let of_percentiles = PERCENTILE_STATISTICS.iter().filter(is_on);
            let of_percentiles =
                of_percentiles.flat_map(|(_, name)| percent_names(name, percentiles));
            let calculated = plain.chain(of_percentiles).chain(["histogram".to_owned()]);
            rules.calculated = calculated.collect();
        }
        self.out.finish(SettingsFormat::Gostatsd)
    }

    /// Sets what happens to idle metrics. Gauges can be repeated for a number of intervals, other
    /// types for ever or not at all.
    fn set_expiry(&mut self) {
        let default = IdleExpiry::After(Duration::from_secs(300));
        let all = self.expiry[0].map_or(default, |(_, expiry)| expiry);
        let of = |at: usize| self.expiry[at].map_or(all, |(_, expiry)| expiry);
        let rules = &mut self.out.settings.aggregation;
        rules.delete_idle_counters = matches!(of(1), IdleExpiry::AtOnce);
        rules.delete_idle_sets = matches!(of(3), IdleExpiry::AtOnce);
        rules.delete_idle_timers = matches!(of(4), IdleExpiry::AtOnce);
        rules.delete_idle_gauges = !matches!(of(2), IdleExpiry::Never);
        if let IdleExpiry::After(time) = of(2) {
            let flushes = time.as_secs_f64() / self.out.settings.flush_interval.as_secs_f64();
            // The cast saturates.
            rules.gauge_ttl = (flushes.ceil() as u32).max(1);
        }
        for at in [0, 1, 3, 4] {
            if let Some((line, IdleExpiry::After(_))) = self.expiry[at] {
                let suffix = ["", "-counter", "-gauge", "-set", "-timer"][at];
                let key = format!("expiry-interval{suffix}");
                self.out.warn(line, &key, EXPIRY);
            }
        }
    }
}

fn not_a_number(word: &str) -> ValueProblem {
    format!("{word:?} is not a number")
}

fn duration(node: &LiteralNode) -> Result<Duration, ValueProblem> {
    let text = text(node)?;
    go_duration(&text).ok_or_else(|| format!("{text:?} is not a duration such as 1m20s"))
}

fn expiry(node: &LiteralNode) -> Result<IdleExpiry, ValueProblem> {
    if text(node)?.starts_with('-') {
        return Ok(IdleExpiry::AtOnce);
    }
    let time = duration(node)?;
    Ok(if time.is_zero() { IdleExpiry::Never } else { IdleExpiry::After(time) })
}

#[cfg(test)]
mod tests;
