//! Converts Telegraf's `telegraf.conf`: its statsd inputs, and the outputs that exist here.
//!
//! Source: the sample configurations of Telegraf 1.30.

mod filters;

use std::{net::SocketAddr, path::Path, time::Duration};

use howdah_settings::{SettingsErrors, duration_from_seconds};

use self::filters::FILTERS;
use super::{
    Conversion, KeyAdvice, ParsedSettings, SettingsFormat, UnusedKey, ValueProblem, boolean,
    entries, find, go_duration, host_and_port, influx_url, is_set, number, text, text_list, tree,
    whole,
};
use crate::settings::{
    ConsoleSettings, GraphiteSettings, InfluxSettings, ListenSettings, PostgresSettings,
    PrometheusSettings, StatsdLogLevel, go_values,
    literal::{ExpressionContext, Literal, LiteralEntry, LiteralNode},
};

/// Reads a `telegraf.conf`. The context has the machine's name, and the environment variables for
/// `${NAME}` and `$NAME` in texts.
pub(crate) fn read(
    text: &str,
    file: &Path,
    context: ExpressionContext<'_>,
) -> Result<ParsedSettings, SettingsErrors> {
    let mut tree = tree::from_toml(text, file)?;
    substitute(&mut tree, context.variable);
    let host = Some(context.host.to_owned());
    let mut telegraf = TelegrafFile { out: Conversion::new(file), interval: None, host };
    for section in entries(&tree).unwrap_or_default() {
        let outcome = telegraf.read_section(section);
        telegraf.out.record(section, &section.key, outcome);
    }
    telegraf.finish(&tree)
}

/// The sections at the top level by which a file is recognized.
pub(super) const SECTIONS: [&str; 6] =
    ["agent", "inputs", "outputs", "processors", "aggregators", "global_tags"];

/// The keys of a statsd input that are converted.
const INPUT: [&str; 22] = [
    "protocol",
    "service_address",
    "max_tcp_connections",
    "read_buffer_size",
    "delete_gauges",
    "delete_counters",
    "delete_sets",
    "delete_timings",
    "percentiles",
    "max_ttl",
    "sanitize_name_method",
    "interval",
    "alias",
    "metric_separator",
    "datadog_extensions",
    "datadog_distributions",
    "parse_data_dog_tags",
    "allowed_pending_messages",
    "number_workers_threads",
    "percentile_limit",
    "precision",
    "tags",
];

const NO_FILTERS: &str =
    "not converted: `[[statsd.rules]]` drop and rename metrics for all backends";
const NO_FIELDS: &str = "not supported: `calculated` selects the statistics of timers";

/// Keys of a statsd input without an effect here.
const INPUT_ADVICE: &KeyAdvice = &[
    ("templates", "not converted: `[[statsd.rules]]` turn parts of names into tags"),
    ("convert_names", "not supported: names are sent as received"),
    ("tcp_keep_alive", "not supported: idle connections stay open"),
    ("tcp_keep_alive_period", "not supported: idle connections stay open"),
    ("enable_aggregation_temporality", "set `temporality` of an otlp backend instead"),
    ("float_counters", "counters have fractions"),
    ("float_timings", "timers have fractions"),
    ("float_sets", "not supported"),
    ("datadog_keep_container_tag", "not supported: the container's id is read and not used"),
    ("fieldpass", NO_FIELDS),
    ("fielddrop", NO_FIELDS),
    ("fieldinclude", NO_FIELDS),
    ("fieldexclude", NO_FIELDS),
    ("metricpass", NO_FILTERS),
];

const NOT_NEEDED: &str = "not needed: a slow receiver delays nothing else";
const NO_TLS: &str = "not supported: there are no client certificates, and those of servers are \
                      always checked";

/// Keys of outputs without an effect here.
const OUTPUT_ADVICE: &KeyAdvice = &[
    ("timeout", NOT_NEEDED),
    ("write_consistency", "not sent"),
    ("skip_database_creation", "the database must exist"),
    ("user_agent", "not supported"),
    ("content_encoding", "not supported"),
    ("http_headers", "not supported"),
    ("http_proxy", "not supported"),
    ("insecure_skip_verify", NO_TLS),
    ("tls_cert", NO_TLS),
    ("tls_key", NO_TLS),
    ("ssl_cert", NO_TLS),
    ("ssl_key", NO_TLS),
    ("influx_uint_support", "not needed: values are floating-point numbers"),
    ("token", "write the token to a file, and name it by `token-file`"),
    ("template", "names are prefix, name and statistic"),
    ("templates", "names are prefix, name and statistic"),
    ("graphite_tag_support", "tags are always sent"),
    ("graphite_separator", "names are sent as received"),
    ("basic_username", "not supported: put a proxy with passwords before the endpoint"),
    ("basic_password", "not supported: put a proxy with passwords before the endpoint"),
    ("ip_range", "not supported: bind `listen` to an internal address"),
    ("metric_version", "not needed"),
    ("string_as_label", "not needed: there are no texts"),
    ("collectors_exclude", "not needed"),
    ("export_timestamp", "not supported"),
    ("namepass", NO_FILTERS),
    ("namedrop", NO_FILTERS),
    ("tagpass", NO_FILTERS),
    ("tagdrop", NO_FILTERS),
    ("taginclude", NO_FILTERS),
    ("tagexclude", NO_FILTERS),
];

struct TelegrafFile<'f> {
    out: Conversion<'f>,
    /// The agent's interval.
    interval: Option<Duration>,
    /// The value of the tag `host` of all metrics, unless the file turns it off.
    host: Option<String>,
}

impl TelegrafFile<'_> {
    fn read_section(&mut self, section: &LiteralEntry) -> Result<(), ValueProblem> {
        let LiteralEntry { key, line, value } = section;
        match key.as_str() {
            "agent" => self.read_agent(entries(value)?)?,
            "global_tags" => self.add_tags(value, key)?,
            // These are read at the end, when the agent's interval is known.
            "inputs" | "outputs" => {}
            "processors" | "aggregators" => self.out.warn(*line, key, NO_FILTERS),
            "secretstores" => {
                let text = "not supported: write passwords into URLs, tokens into files";
                self.out.warn(*line, key, text);
            }
            _ => {
                let unused = UnusedKey { line: *line, section: "", key };
                self.out.warn_unused(unused, &[], &SECTIONS);
            }
        }
        Ok(())
    }

    fn read_agent(&mut self, keys: &[LiteralEntry]) -> Result<(), ValueProblem> {
        if let Some(interval) = find(keys, "interval") {
            self.interval = Some(duration(&interval.value)?);
        }
        let is_on = |name: &str| find(keys, name).map_or(Ok(false), |it| boolean(&it.value));
        if is_on("debug")? {
            self.out.settings.log.level = Some(StatsdLogLevel::Debug);
        } else if is_on("quiet")? {
            self.out.settings.log.level = Some(StatsdLogLevel::Error);
        }
        if let Some(entry) = find(keys, "logfile") {
            let text = "logs go to standard error or syslog: redirect standard error";
            self.out.warn(entry.line, "agent.logfile", text);
        }
        if let Some(entry) = find(keys, "hostname") {
            let name = text(&entry.value)?;
            self.host = Some(name).filter(|name| !name.is_empty()).or(self.host.take());
        }
        if is_on("omit_hostname")? {
            self.host = None;
        }
        Ok(())
    }

    /// Adds the tags of a section to all metrics.
    fn add_tags(&mut self, section: &LiteralNode, path: &str) -> Result<(), ValueProblem> {
        for LiteralEntry { key, line, value } in entries(section)? {
            self.out.add_static_tag(*line, path, key, &text(value)?);
        }
        Ok(())
    }

    fn finish(mut self, tree: &LiteralNode) -> Result<ParsedSettings, SettingsErrors> {
        if let Some(host) = self.host.take() {
            self.out.settings.static_tags.entry("host".to_owned()).or_insert(host);
        }
        let all = entries(tree).unwrap_or_default();
        let plugins = |kind: &str| {
            let section = find(all, kind).and_then(|section| entries(&section.value).ok());
            section.unwrap_or_default()
        };
        let (mut inputs, mut others) = (0, Vec::new());
        for plugin in plugins("inputs") {
            if plugin.key == "statsd" {
                for input in sections(&plugin.value) {
                    self.read_input(input, inputs == 0);
                    inputs += 1;
                }
            } else {
                others.push((plugin.line, plugin.key.as_str()));
            }
        }
        if let [(line, _), ..] = others[..] {
            let names = others.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
            self.out.warn(line, "inputs", format!("only statsd inputs are converted, not {names}"));
        }
        filters::filter_static_tags(&mut self.out.settings);
        if inputs == 0 {
            self.out.error(0, "inputs.statsd", "there is no [[inputs.statsd]] section");
        }
        let mut has_output = false;
        for plugin in plugins("outputs") {
            for output in sections(&plugin.value) {
                has_output = true;
                let path = format!("outputs.{}", plugin.key);
                let keys = entries(output).unwrap_or_default();
                if let Err(why) = self.read_output(output.line, &plugin.key, keys) {
                    self.out.error(output.line, &path, why);
                }
            }
        }
        if !has_output {
            self.out.warn(0, "outputs", "there is no output: values are only aggregated");
        }
        self.out.finish(SettingsFormat::Telegraf)
    }

    /// Reads a statsd input. The rules of the first apply to all.
    fn read_input(&mut self, input: &LiteralNode, is_first: bool) {
        let keys = entries(input).unwrap_or_default();
        if is_first {
            self.out.settings.listen.clear();
            if let Err((line, key, why)) = self.read_rules(keys) {
                self.out.error(line, &format!("inputs.statsd.{key}"), why);
            }
            if let Some(tags) = find(keys, "tags")
                && let Err(why) = self.add_tags(&tags.value, "inputs.statsd.tags")
            {
                self.out.error(tags.line, "inputs.statsd.tags", why);
            }
            let templates = find(keys, "templates").filter(|_| filters::selects(keys));
            match filters::input_rules(keys) {
                // Templates make other names and tags than those that were sent.
                Ok(_) if templates.is_some() => {
                    let text = "filters are not converted, because templates make their names";
                    self.out.warn(input.line, "inputs.statsd", text);
                }
                Ok(rules) => self.out.settings.rules = rules,
                Err((line, key, why)) => {
                    self.out.error(line, &format!("inputs.statsd.{key}"), why);
                }
            }
        } else {
            let text = "only its listener is used: the other keys of the first statsd input apply";
            self.out.warn(input.line, "inputs.statsd", text);
        }
        match listener(keys) {
            Ok(listener) => self.out.settings.listen.push(listener),
            Err(why) => self.out.error(input.line, "inputs.statsd", why),
        }
        for LiteralEntry { key, line, value } in keys {
            let is_read = INPUT.iter().chain(&FILTERS).any(|known| known == key);
            if is_set(value) && !is_read {
                let unused = UnusedKey { line: *line, section: "inputs.statsd", key };
                self.out.warn_unused(unused, INPUT_ADVICE, &INPUT);
            }
        }
    }

    /// Reads the rules of aggregation of a statsd input.
    fn read_rules<'k>(&mut self, keys: &'k [LiteralEntry]) -> Result<(), (usize, &'k str, String)> {
        let settings = &mut self.out.settings;
        settings.flush_interval = self.interval.unwrap_or(settings.flush_interval);
        let rules = &mut settings.aggregation;
        rules.delete_idle_counters = true;
        rules.delete_idle_gauges = true;
        rules.delete_idle_sets = true;
        rules.delete_idle_timers = true;
        rules.percentiles = Vec::new();
        // Names are sent as received, unless the file asks for etsy's rules.
        rules.sanitise = false;
        let mut gauge_age = None;
        for LiteralEntry { key, line, value } in keys.iter().filter(|entry| is_set(&entry.value)) {
            let outcome = match key.as_str() {
                "interval" => duration(value).map(|it| settings.flush_interval = it),
                "delete_counters" => boolean(value).map(|it| rules.delete_idle_counters = it),
                "delete_gauges" => boolean(value).map(|it| rules.delete_idle_gauges = it),
                "delete_sets" => boolean(value).map(|it| rules.delete_idle_sets = it),
                "delete_timings" => boolean(value).map(|it| rules.delete_idle_timers = it),
                "max_ttl" => duration(value).map(|it| gauge_age = Some((*line, it))),
                "percentiles" => numbers(value).map(|it| rules.percentiles = it),
                "sanitize_name_method" => text(value).map(|it| rules.sanitise = it == "upstream"),
                _ => Ok(()),
            };
            outcome.map_err(|why| (*line, key.as_str(), why))?;
        }
        if let Some((line, age)) = gauge_age.filter(|(_, age)| !age.is_zero()) {
            if !rules.delete_idle_gauges {
                let flushes = age.as_secs_f64() / settings.flush_interval.as_secs_f64();
                rules.delete_idle_gauges = true;
                // The cast saturates.
                rules.gauge_ttl = (flushes.ceil() as u32).max(1);
            }
            let text = "applies to gauges; for Prometheus, set `ttl` of the backend";
            self.out.warn(line, "inputs.statsd.max_ttl", text);
        }
        Ok(())
    }

    fn read_output(
        &mut self,
        line: usize,
        name: &str,
        keys: &[LiteralEntry],
    ) -> Result<(), ValueProblem> {
        let path = format!("outputs.{name}");
        let read: &[&str] = match name {
            "influxdb" => self.read_influx(line, keys, false)?,
            "influxdb_v2" => self.read_influx(line, keys, true)?,
            "prometheus_client" => self.read_prometheus(line, keys)?,
            "graphite" => self.read_graphite(line, keys)?,
            "postgresql" => self.read_postgres(line, keys)?,
            "file" => {
                let files =
                    find(keys, "files").map_or(Ok(Vec::new()), |it| text_list(&it.value))?;
                if files.is_empty() || files.iter().any(|file| file == "stdout") {
                    self.out.settings.backends.console = Some(ConsoleSettings::default());
                }
                if files.iter().any(|file| file != "stdout") {
                    let text = "files in Telegraf's formats are not written: add a file backend";
                    self.out.warn(line, &path, text);
                }
                return Ok(());
            }
            "discard" => return Ok(()),
            "opentelemetry" => {
                let text = "gRPC is not supported: add an otlp backend with the receiver's HTTP \
                            endpoint, http://HOST:4318/v1/metrics";
                self.out.warn(line, &path, text);
                return Ok(());
            }
            _ => {
                let text = "this output is not supported: add another backend to the output of \
                            `howdah statsd import`";
                self.out.warn(line, &path, text);
                return Ok(());
            }
        };
        for LiteralEntry { key, line, value } in keys {
            if is_set(value) && !read.contains(&key.as_str()) {
                let unused = UnusedKey { line: *line, section: &path, key };
                self.out.warn_unused(unused, OUTPUT_ADVICE, read);
            }
        }
        Ok(())
    }

    fn read_influx(
        &mut self,
        line: usize,
        keys: &[LiteralEntry],
        is_second: bool,
    ) -> Result<&'static [&'static str], ValueProblem> {
        let value = |name: &str| find(keys, name).map(|entry| text(&entry.value)).transpose();
        let mut urls = find(keys, "urls").map_or(Ok(Vec::new()), |it| text_list(&it.value))?;
        if let Some(url) = value("url")? {
            urls.push(url);
        }
        let url = urls.first().map_or("http://127.0.0.1:8086", String::as_str);
        if urls.len() > 1 {
            let text = "only the first URL is used: the backend spools while it is unreachable";
            self.out.warn(line, "outputs.influxdb.urls", text);
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err("only http and https URLs are supported".to_owned());
        }
        let (path, parameters) = if is_second {
            ("/api/v2/write", vec![("org", value("organization")?), ("bucket", value("bucket")?)])
        } else {
            let database = value("database")?.unwrap_or_else(|| "telegraf".to_owned());
            let (policy, user) = (value("retention_policy")?, value("username")?);
            let query =
                [("db", Some(database)), ("rp", policy), ("u", user), ("p", value("password")?)];
            ("/write", query.into())
        };
        let mut influx = InfluxSettings::new(influx_url(url, path, &parameters));
        influx.ca_file = value("tls_ca")?.or(value("ssl_ca")?).map(Into::into);
        self.out.settings.backends.influx.push(influx);
        Ok(&[
            "urls",
            "url",
            "organization",
            "bucket",
            "database",
            "retention_policy",
            "username",
            "password",
            "tls_ca",
            "ssl_ca",
            "alias",
        ])
    }

    fn read_prometheus(
        &mut self,
        line: usize,
        keys: &[LiteralEntry],
    ) -> Result<&'static [&'static str], ValueProblem> {
        let backends = &mut self.out.settings.backends;
        let mut prometheus = PrometheusSettings {
            listen: SocketAddr::from(([0, 0, 0, 0], 9273)),
            ttl: Duration::from_secs(60),
            ..PrometheusSettings::default()
        };
        if let Some(entry) = find(keys, "listen") {
            let address = text(&entry.value)?;
            let parsed = go_values::listen_address(&address);
            prometheus.listen =
                parsed.ok_or_else(|| format!("{address:?} is not an address: write IP:PORT"))?;
        }
        if let Some(entry) = find(keys, "expiration_interval") {
            prometheus.ttl = duration(&entry.value)?;
        }
        if backends.prometheus.replace(prometheus).is_some() {
            let text = "only one endpoint is possible: the last one is used";
            self.out.warn(line, "outputs.prometheus_client", text);
        }
        if let Some(entry) = find(keys, "path")
            && text(&entry.value)? != "/metrics"
        {
            let text = "not supported: the path is /metrics";
            self.out.warn(entry.line, "outputs.prometheus_client.path", text);
        }
        Ok(&["listen", "expiration_interval", "path", "alias"])
    }

    fn read_graphite(
        &mut self,
        line: usize,
        keys: &[LiteralEntry],
    ) -> Result<&'static [&'static str], ValueProblem> {
        let servers = find(keys, "servers").map_or(Ok(Vec::new()), |it| text_list(&it.value))?;
        let server = servers.first().map_or("localhost:2003", String::as_str);
        if servers.len() > 1 {
            let text = "only the first server is used: the backend spools while it is unreachable";
            self.out.warn(line, "outputs.graphite.servers", text);
        }
        let (host, port) = host_and_port(server, 2003)?;
        let prefix = find(keys, "prefix").map_or(Ok(String::new()), |it| text(&it.value))?;
        self.out.settings.backends.graphite.push(GraphiteSettings {
            host,
            port,
            legacy_namespace: false,
            global_prefix: prefix.trim_matches('.').to_owned(),
            prefix_counter: String::new(),
            prefix_timer: String::new(),
            prefix_gauge: String::new(),
            prefix_set: String::new(),
            ..GraphiteSettings::default()
        });
        Ok(&["servers", "prefix", "alias"])
    }

    fn read_postgres(
        &mut self,
        line: usize,
        keys: &[LiteralEntry],
    ) -> Result<&'static [&'static str], ValueProblem> {
        let connection = find(keys, "connection").ok_or("lacks connection")?;
        let connection = PostgresSettings::new(text(&connection.value)?);
        self.out.settings.backends.postgres.push(connection);
        let text = "values go to the table statsd_samples, not to a table for each measurement";
        self.out.warn(line, "outputs.postgresql", text);
        Ok(&["connection", "alias"])
    }
}

/// Returns the sections of a plugin: the items of an array, or the one table.
fn sections(node: &LiteralNode) -> &[LiteralNode] {
    match &node.value {
        Literal::List(items) => items,
        _ => std::slice::from_ref(node),
    }
}

fn listener(keys: &[LiteralEntry]) -> Result<ListenSettings, ValueProblem> {
    let value = |name: &str| find(keys, name).map(|entry| text(&entry.value)).transpose();
    let protocol = value("protocol")?.unwrap_or_else(|| "udp".to_owned());
    let address = value("service_address")?.unwrap_or_else(|| ":8125".to_owned());
    let address = address.split_once("://").map_or(address.as_str(), |(_, address)| address);
    let parsed = go_values::listen_address(address);
    let is_everywhere = address.starts_with(':');
    let mut parsed =
        parsed.ok_or_else(|| format!("{address:?} is not an address: write IP:PORT"))?;
    if is_everywhere && protocol.ends_with('6') {
        parsed.set_ip(std::net::Ipv6Addr::UNSPECIFIED.into());
    }
    let mut listener = match protocol.as_str() {
        "udp" | "udp4" | "udp6" => ListenSettings::udp(parsed),
        "tcp" | "tcp4" | "tcp6" => ListenSettings::tcp(parsed),
        _ => return Err(format!("protocol {protocol:?} is neither udp nor tcp")),
    };
    if let (Some(entry), ListenSettings::Tcp { connections, .. }) =
        (find(keys, "max_tcp_connections"), &mut listener)
    {
        *connections = whole(&entry.value)?;
    }
    if let (Some(entry), ListenSettings::Udp { buffer_bytes, .. }) =
        (find(keys, "read_buffer_size"), &mut listener)
    {
        *buffer_bytes = whole(&entry.value)?;
    }
    Ok(listener)
}

fn numbers(node: &LiteralNode) -> Result<Vec<f64>, ValueProblem> {
    match &node.value {
        Literal::List(items) => items.iter().map(number).collect(),
        _ => Err("must be a list of numbers".to_owned()),
    }
}

/// Reads a duration; a number is in seconds.
fn duration(node: &LiteralNode) -> Result<Duration, ValueProblem> {
    let duration = match &node.value {
        Literal::Number(seconds) => duration_from_seconds(*seconds),
        _ => go_duration(&text(node)?),
    };
    duration.ok_or_else(|| "must be a duration such as 1m20s".to_owned())
}

/// Replaces `${NAME}`, `${NAME:-default}` and `$NAME` in texts. A variable that is not set stays as
/// it is.
fn substitute(node: &mut LiteralNode, variable: &dyn Fn(&str) -> Option<String>) {
    match &mut node.value {
        Literal::Text(text) if text.contains('$') => *text = substituted(text, variable),
        Literal::List(items) => items.iter_mut().for_each(|item| substitute(item, variable)),
        Literal::Object(entries) => {
            entries.iter_mut().for_each(|entry| substitute(&mut entry.value, variable));
        }
        _ => {}
    }
}

fn substituted(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, default, then) = match braced {
            Some((inner, then)) => match inner.split_once(":-") {
                Some((name, default)) => (name, Some(default), then),
                None => (inner, None, then),
            },
            None => {
                let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
                (&after[..end], None, &after[end..])
            }
        };
        let value = variable(name).or_else(|| default.map(str::to_owned));
        match value.filter(|_| !name.is_empty() && name.chars().all(is_word)) {
            Some(value) => {
                out.push_str(&value);
                rest = then;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests;
