//! Converts the configuration of etsy's server and of the Perl server to our settings.
//!
//! [`EtsyConfigReader::read_key`] reads the keys at the top level. A key that those servers support
//! but that has no effect here causes a warning with the reason. A key unknown to both servers also
//! causes only a warning: they ignore unknown keys, so existing files contain leftovers and
//! sections of third-party backends.
//!
//! Sources: `exampleConfig.js` of statsd 0.9, `bin/localConfig.js` of Net::Statsd::Server.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use howdah_settings::{Diagnostic, SettingsErrors, nearest};

use super::{
    BackendSettings, Bin, ConsoleSettings, GraphiteProtocol, GraphiteSettings, HistogramRule,
    ListenSettings, ProxyNodeSettings, ProxySettings, RepeaterProtocol, RepeaterSettings,
    StatsdLogLevel, StatsdSettings,
    literal::{self, ExpressionContext, Literal, LiteralEntry, LiteralNode},
    parsed::{ParsedSettings, SettingsFormat},
};
use crate::js::JsNumber;

/// Parses the text of a complete file.
pub(super) fn read(
    text: &str,
    file: &Path,
    context: ExpressionContext<'_>,
) -> Result<ParsedSettings, SettingsErrors> {
    let wrong = |line, text| SettingsErrors(vec![Diagnostic::new(file, line, "", text)]);
    let root = literal::parse(text, context).map_err(|error| wrong(error.line, error.reason))?;
    let Literal::Object(entries) = &root.value else {
        return Err(wrong(root.line, "the settings must be one object { … }".to_owned()));
    };
    let mut reader = EtsyConfigReader { path: file.to_owned(), ..EtsyConfigReader::default() };
    // Etsy's server watches its file unless the file says otherwise.
    reader.settings.reload_on_change = true;
    for entry in entries {
        reader.read_entry(entry);
    }
    reader.finish();
    if !reader.errors.is_empty() {
        return Err(SettingsErrors(reader.errors));
    }
    let config_lines = config_lines(entries, &reader);
    Ok(ParsedSettings {
        settings: reader.settings,
        format: SettingsFormat::Literal,
        warnings: reader.warnings,
        config_lines,
    })
}

/// The reason why a value is invalid.
pub(super) type ValueProblem = String;

/// Whether a section supports a key.
type IsKnown = bool;

/// The address of a listener.
#[derive(Clone, Debug)]
struct ListenAddress {
    ip: IpAddr,
    port: u16,
}

impl Default for ListenAddress {
    fn default() -> Self {
        Self { ip: Ipv4Addr::UNSPECIFIED.into(), port: 8125 }
    }
}

/// The state of reading a file: the settings so far, and values that are resolved at the end.
#[derive(Default)]
struct EtsyConfigReader {
    path: PathBuf,
    settings: StatsdSettings,
    warnings: Vec<Diagnostic>,
    errors: Vec<Diagnostic>,
    listen: EtsyServer,
    servers: Option<Vec<ListenSettings>>,
    management: (Option<IpAddr>, Option<u16>),
    graphite: GraphiteSettings,
    console: ConsoleSettings,
    file: Option<PathBuf>,
    backends: Option<Vec<(usize, String)>>,
    repeaters: Vec<(String, u16)>,
    repeater_protocol: RepeaterProtocol,
    nodes: Vec<ProxyNodeSettings>,
    check_interval: Option<Duration>,
    log_syslog: bool,
    log_application: Option<String>,
    delete_idle: bool,
    /// Deletion of idle counters, timers, sets and gauges.
    delete: [Option<bool>; 4],
}

/// A listener: an element of `servers`, or the keys at the top level.
#[derive(Clone, Debug, Default)]
struct EtsyServer {
    tcp: bool,
    address: ListenAddress,
    socket: Option<PathBuf>,
    mode: Option<u32>,
}

impl EtsyConfigReader {
    fn read_entry(&mut self, entry: &LiteralEntry) {
        if entry.value.value == Literal::Null {
            return;
        }
        match self.read_key(&entry.key, &entry.value) {
            Ok(None) => {}
            Ok(Some(warning)) => self.warn(entry.line, &entry.key, warning),
            Err(why) => self.error(entry.line, &entry.key, why),
        }
    }

    fn warn(&mut self, line: usize, key: &str, text: impl Into<String>) {
        self.warnings.push(Diagnostic::new(&self.path, line, key, text));
    }

    fn error(&mut self, line: usize, key: &str, text: impl Into<String>) {
        self.errors.push(Diagnostic::new(&self.path, line, key, text));
    }

    /// Reads one key. Returns a warning if the key has no or only partial effect.
    fn read_key(&mut self, key: &str, value: &LiteralNode) -> Result<Option<String>, ValueProblem> {
        let settings = &mut self.settings;
        let rules = &mut settings.aggregation;
        match key {
            "port" | "address" | "host" | "server" | "socket" | "socket_mod" | "address_ipv6" => {
                self.listen.read_key(key, value)?;
            }
            "servers" => {
                let (servers, unknown) = servers(value, &self.path)?;
                self.servers = Some(servers);
                self.warnings.extend(unknown);
            }
            "mgmt_port" => self.management.1 = Some(port(value)?),
            "mgmt_address" => self.management.0 = Some(ip(value)?),
            "backends" => self.backends = Some(backends(value)?),
            "graphiteHost" => self.graphite.host = text(value)?,
            "graphitePort" => self.graphite.port = port(value)?,
            "graphitePicklePort" => self.graphite.pickle_port = port(value)?,
            "graphiteProtocol" => {
                self.graphite.protocol = match text(value)?.as_str() {
                    "text" => GraphiteProtocol::Text,
                    "pickle" => GraphiteProtocol::Pickle,
                    other => return Err(format!("{other:?} is neither text nor pickle")),
                }
            }
            "graphite" => return self.read_object(key, value, Self::graphite),
            "flush_counts" => self.graphite.flush_counts = truthy(value),
            "flushInterval" => settings.flush_interval = milliseconds(value)?,
            "percentThreshold" => {
                rules.percentiles = match &value.value {
                    Literal::List(values) => values.iter().map(number).collect::<Result<_, _>>()?,
                    // For etsy's server, 0 means that percentiles are not set.
                    _ => vec![number(value)?].into_iter().filter(|p| *p != 0.0).collect(),
                };
                if rules.percentiles.is_empty() && !matches!(value.value, Literal::List(_)) {
                    rules.percentiles = vec![90.0];
                }
            }
            "keyFlush" => return self.read_object(key, value, Self::key_flush),
            "deleteIdleStats" => self.delete_idle = truthy(value),
            "deleteCounters" => self.delete[0] = Some(truthy(value)),
            "deleteTimers" => self.delete[1] = Some(truthy(value)),
            "deleteSets" => self.delete[2] = Some(truthy(value)),
            "deleteGauges" => self.delete[3] = Some(truthy(value)),
            "gaugesMaxTTL" => rules.gauge_ttl = ttl(number(value)?),
            "prefixStats" => rules.prefix = text(value)?,
            "keyNameSanitize" => rules.sanitise = truthy(value),
            "calculatedTimerMetrics" => {
                rules.calculated = list(value)?.iter().map(text).collect::<Result<_, _>>()?;
            }
            "histogram" => {
                rules.histogram = list(value)?.iter().map(histogram).collect::<Result<_, _>>()?;
            }
            "console" => return self.read_object(key, value, Self::console),
            "file" => return self.read_object(key, value, Self::file),
            "repeater" => {
                self.repeaters =
                    list(value)?.iter().map(host_and_port).collect::<Result<_, _>>()?;
            }
            "repeaterProtocol" => {
                self.repeater_protocol = match text(value)?.as_str() {
                    "udp4" => RepeaterProtocol::Udp4,
                    "udp6" => RepeaterProtocol::Udp6,
                    "tcp" => RepeaterProtocol::Tcp,
                    other => return Err(format!("{other:?} is not udp4, udp6 or tcp")),
                }
            }
            "healthStatus" => settings.healthy = text(value)? != "down",
            "dumpMessages" => settings.dump_messages = truthy(value),
            "log" => return self.read_object(key, value, Self::log),
            "debug" if !truthy(value) => {}
            "debug" | "debugInterval" => {
                return Ok(Some("use --log-level debug instead".to_owned()));
            }
            "title" => {
                return Ok(Some("not supported: the process name is not changed".to_owned()));
            }
            "automaticConfigReload" => settings.reload_on_change = truthy(value),
            "nodes" => {
                self.nodes = list(value)?.iter().map(node).collect::<Result<_, _>>()?;
                if self.nodes.is_empty() {
                    return Err("a proxy needs at least one node".to_owned());
                }
            }
            "checkInterval" => self.check_interval = Some(milliseconds(value)?),
            "cacheSize" => {
                integer(number(value)?, u32::MAX.into()).ok_or("must be a whole number")?;
                return Ok(Some("not used: key placement is not cached".to_owned()));
            }
            "udp_version" => match text(value)?.as_str() {
                "udp4" => {}
                "udp6" => self.listen.address.ip = std::net::Ipv6Addr::UNSPECIFIED.into(),
                other => return Err(format!("{other:?} is neither udp4 nor udp6")),
            },
            "forkCount" if !truthy(value) => {}
            "forkCount" => {
                return Ok(Some("not supported: set readers in a howdah.toml instead".to_owned()));
            }
            _ => return Ok(Some(unknown(key, &KEYS))),
        }
        Ok(None)
    }

    /// Reads the keys of a nested object.
    fn read_object(
        &mut self,
        path: &str,
        value: &LiteralNode,
        take: fn(&mut Self, &str, &LiteralNode) -> Result<IsKnown, ValueProblem>,
    ) -> Result<Option<String>, ValueProblem> {
        for entry in object(value)? {
            if entry.value.value == Literal::Null {
                continue;
            }
            let key = format!("{path}.{}", entry.key);
            match take(self, &entry.key, &entry.value) {
                Ok(true) => {}
                Ok(false) => self.warn(entry.line, &key, unknown(&entry.key, &NESTED_KEYS)),
                Err(why) => self.error(entry.line, &key, why),
            }
        }
        Ok(None)
    }

    fn graphite(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        let graphite = &mut self.graphite;
        match key {
            "legacyNamespace" => graphite.legacy_namespace = truthy(value),
            "globalPrefix" => graphite.global_prefix = text(value)?,
            "prefixCounter" => graphite.prefix_counter = text(value)?,
            "prefixTimer" => graphite.prefix_timer = text(value)?,
            "prefixGauge" => graphite.prefix_gauge = text(value)?,
            "prefixSet" => graphite.prefix_set = text(value)?,
            "globalSuffix" => graphite.global_suffix = text(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn key_flush(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        let settings = &mut self.settings.key_flush;
        match key {
            "interval" => settings.interval = milliseconds(value)?,
            "percent" => settings.percent = number(value)?,
            "log" => settings.log = Some(text(value)?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn log(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        match key {
            "backend" => {
                self.log_syslog = match text(value)?.as_str() {
                    "stdout" => false,
                    "syslog" => true,
                    other => return Err(format!("{other:?} is neither stdout nor syslog")),
                }
            }
            "application" => self.log_application = Some(text(value)?),
            "level" => self.settings.log.level = Some(log_level(&text(value)?)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn console(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        match key {
            "prettyprint" => self.console.pretty = truthy(value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn file(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        match key {
            "name" => self.file = Some(text(value)?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Resolves settings that depend on several keys.
    fn finish(&mut self) {
        let rules = &mut self.settings.aggregation;
        let [counters, timers, sets, gauges] =
            self.delete.map(|own| own.unwrap_or(self.delete_idle));
        rules.delete_idle_counters = counters;
        rules.delete_idle_timers = timers;
        rules.delete_idle_sets = sets;
        rules.delete_idle_gauges = gauges;
        let application = self.log_application.take();
        self.settings.log.syslog =
            self.log_syslog.then(|| application.unwrap_or_else(|| "statsd".to_owned()));
        // With a file of etsy's server, users expect exactly etsy's metrics.
        rules.extra_metrics = false;
        self.settings.listen = match self.servers.take() {
            Some(servers) => servers,
            None => vec![self.listen.clone().into_listen()],
        };
        let ip = self.management.0.unwrap_or_else(|| {
            let text =
                "not set: the management port listens on 127.0.0.1 only, not on all addresses";
            self.warn(0, "mgmt_address", text);
            Ipv4Addr::LOCALHOST.into()
        });
        self.settings.management = Some(SocketAddr::new(ip, self.management.1.unwrap_or(8126)));
        if !self.nodes.is_empty() {
            self.settings.proxy = Some(ProxySettings {
                nodes: std::mem::take(&mut self.nodes),
                check_interval: self.check_interval.unwrap_or(Duration::from_secs(10)),
            });
            // A proxy has no backends.
            return;
        }
        let chosen = self.backends.take().unwrap_or_else(|| vec![(0, "graphite".to_owned())]);
        let (first, any) = (chosen.first().map_or(0, |(line, _)| *line), !chosen.is_empty());
        for (line, name) in chosen {
            self.backend(line, &name);
        }
        if any && self.settings.backends == BackendSettings::default() && self.errors.is_empty() {
            let text = "none of these backends is supported: values are available only at the management port";
            self.warn(first, "backends", text);
        }
    }

    fn backend(&mut self, line: usize, name: &str) {
        let backends = &mut self.settings.backends;
        // `./backends/graphite`, or `Graphite` in files of the Perl server.
        let file_name = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        match file_name.trim_end_matches(".js") {
            "graphite" => backends.graphite.push(self.graphite.clone()),
            "console" => backends.console = Some(self.console.clone()),
            "repeater" => {
                let protocol = self.repeater_protocol;
                let repeaters = std::mem::take(&mut self.repeaters).into_iter();
                backends.repeater = repeaters
                    .map(|(host, port)| RepeaterSettings { host, port, protocol })
                    .collect();
            }
            "file" => match self.file.take() {
                Some(path) => backends.file = Some(super::FileSettings { path, timestamps: false }),
                None => self.error(line, "backends", "the file backend needs file: { name: … }"),
            },
            _ => {
                let text = format!(
                    "{name:?} is not supported and ignored: use graphite, console, repeater or file, \
                     or more backends in a howdah.toml"
                );
                self.warn(line, "backends", text);
            }
        }
    }
}

impl EtsyServer {
    fn read_key(&mut self, key: &str, value: &LiteralNode) -> Result<IsKnown, ValueProblem> {
        match key {
            "port" => self.address.port = port(value)?,
            // `host` occurs in widely copied examples, although neither server reads it.
            "address" | "host" => self.address.ip = ip(value)?,
            "address_ipv6" if truthy(value) && self.address.ip.is_unspecified() => {
                self.address.ip = std::net::Ipv6Addr::UNSPECIFIED.into();
            }
            "address_ipv6" => {}
            "server" => {
                self.tcp = match text(value)?.rsplit('/').next().unwrap_or_default() {
                    "udp" => false,
                    "tcp" => true,
                    other => return Err(format!("{other:?} is neither udp nor tcp")),
                }
            }
            "socket" => self.socket = Some(text(value)?.into()),
            "socket_mod" => {
                let mode = match &value.value {
                    Literal::Text(digits) => u32::from_str_radix(digits, 8).ok(),
                    _ => integer(number(value)?, u32::MAX.into())
                        .and_then(|mode| mode.try_into().ok()),
                };
                self.mode = Some(mode.ok_or("must be a mode such as '0660'")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn into_listen(self) -> ListenSettings {
        let address = SocketAddr::new(self.address.ip, self.address.port);
        match (self.tcp, self.socket) {
            (false, _) => ListenSettings::udp(address),
            (true, None) => ListenSettings::tcp(address),
            (true, Some(path)) => ListenSettings::unix(path, self.mode),
        }
    }
}

/// Reads a list of listeners from `file`. Also returns warnings about unknown keys.
fn servers(
    value: &LiteralNode,
    file: &Path,
) -> Result<(Vec<ListenSettings>, Vec<Diagnostic>), ValueProblem> {
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    for value in list(value)? {
        let mut server = EtsyServer::default();
        for LiteralEntry { key, line, value } in object(value)? {
            let wrong = |why| format!("{key} in line {line}: {why}");
            if !server.read_key(key, value).map_err(wrong)? {
                let (path, text) = (format!("servers.{key}"), unknown(key, &NESTED_KEYS));
                warnings.push(Diagnostic::new(file, *line, &path, text));
            }
        }
        all.push(server.into_listen());
    }
    Ok((all, warnings))
}

fn backends(value: &LiteralNode) -> Result<Vec<(usize, String)>, ValueProblem> {
    list(value)?.iter().map(|name| Ok((name.line, text(name)?))).collect()
}

fn histogram(value: &LiteralNode) -> Result<HistogramRule, ValueProblem> {
    let mut rule = HistogramRule { metric: String::new(), bins: Vec::new() };
    for entry in object(value)? {
        match entry.key.as_str() {
            "metric" => rule.metric = text(&entry.value)?,
            "bins" => rule.bins = list(&entry.value)?.iter().map(bin).collect::<Result<_, _>>()?,
            other => return Err(format!("{other:?} is neither metric nor bins")),
        }
    }
    Ok(rule)
}

fn bin(value: &LiteralNode) -> Result<Bin, ValueProblem> {
    match &value.value {
        Literal::Text(text) if text == "inf" => Ok(Bin::Infinite),
        _ => number(value).map(Bin::Below),
    }
}

fn host_and_port(value: &LiteralNode) -> Result<(String, u16), ValueProblem> {
    let (mut host, mut at) = (None, None);
    for entry in object(value)? {
        match entry.key.as_str() {
            "host" => host = Some(text(&entry.value)?),
            "port" => at = Some(port(&entry.value)?),
            other => return Err(format!("{other:?} is neither host nor port")),
        }
    }
    host.zip(at).ok_or_else(|| "needs host and port".to_owned())
}

/// Reads a node of the proxy.
fn node(value: &LiteralNode) -> Result<ProxyNodeSettings, ValueProblem> {
    let (mut host, mut at, mut admin) = (None, None, None);
    for entry in object(value)? {
        match entry.key.as_str() {
            "host" => host = Some(text(&entry.value)?),
            "port" => at = Some(port(&entry.value)?),
            "adminport" => admin = Some(port(&entry.value)?),
            other => return Err(format!("{other:?} is not host, port or adminport")),
        }
    }
    match (host, at, admin) {
        (Some(host), Some(port), Some(admin_port)) => {
            Ok(ProxyNodeSettings { host, port, admin_port })
        }
        _ => Err("needs host, port and adminport".to_owned()),
    }
}

fn object(value: &LiteralNode) -> Result<&[LiteralEntry], ValueProblem> {
    match &value.value {
        Literal::Object(entries) => Ok(entries),
        _ => Err("must be an object { … }".to_owned()),
    }
}

fn list(value: &LiteralNode) -> Result<&[LiteralNode], ValueProblem> {
    match &value.value {
        Literal::List(values) => Ok(values),
        _ => Err("must be a list [ … ]".to_owned()),
    }
}

fn text(value: &LiteralNode) -> Result<String, ValueProblem> {
    match &value.value {
        Literal::Text(text) => Ok(text.clone()),
        _ => Err("must be a string".to_owned()),
    }
}

/// Converts a number, or a string that contains one, to a double.
pub(super) fn number(value: &LiteralNode) -> Result<f64, ValueProblem> {
    match &value.value {
        Literal::Number(number) if number.is_finite() => Ok(*number),
        Literal::Number(number) => Err(format!("{} is not a finite number", JsNumber(*number))),
        Literal::Text(text) => {
            crate::grammar::number(text.as_bytes()).map_err(|_| format!("{text:?} is not a number"))
        }
        _ => Err("must be a number".to_owned()),
    }
}

/// Converts a whole number from 0 to `max`; `None` for any other number.
fn integer(number: f64, max: u64) -> Option<u64> {
    (number.fract() == 0.0 && number >= 0.0 && number <= max as f64).then_some(number as u64)
}

fn port(value: &LiteralNode) -> Result<u16, ValueProblem> {
    let port = integer(number(value)?, u16::MAX.into()).and_then(|port| port.try_into().ok());
    port.ok_or_else(|| "must be a port from 0 to 65535".to_owned())
}

fn ip(value: &LiteralNode) -> Result<IpAddr, ValueProblem> {
    match text(value)?.as_str() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text.parse().map_err(|_| format!("{text:?} is not an IP address")),
    }
}

fn milliseconds(value: &LiteralNode) -> Result<Duration, ValueProblem> {
    let ms = number(value)?;
    Duration::try_from_secs_f64(ms / 1000.0)
        .map_err(|_| "must be a non-negative number of milliseconds".to_owned())
}

/// Applies etsy's rule for a time to live: an integer above 1, otherwise 1.
fn ttl(flushes: f64) -> u32 {
    integer(flushes, u32::MAX.into()).and_then(|ttl| ttl.try_into().ok()).unwrap_or(1).max(1)
}

fn truthy(value: &LiteralNode) -> bool {
    literal::is_true(&value.value)
}

/// Keys at the top level of either server's file, for suggestions.
const KEYS: [&str; 43] = [
    "port",
    "address",
    "address_ipv6",
    "server",
    "servers",
    "socket",
    "mgmt_port",
    "mgmt_address",
    "backends",
    "graphiteHost",
    "graphitePort",
    "graphitePicklePort",
    "graphiteProtocol",
    "graphite",
    "flushInterval",
    "percentThreshold",
    "flush_counts",
    "keyFlush",
    "deleteIdleStats",
    "deleteCounters",
    "deleteTimers",
    "deleteSets",
    "deleteGauges",
    "gaugesMaxTTL",
    "prefixStats",
    "keyNameSanitize",
    "calculatedTimerMetrics",
    "histogram",
    "console",
    "repeater",
    "repeaterProtocol",
    "nodes",
    "checkInterval",
    "cacheSize",
    "forkCount",
    "udp_version",
    "healthStatus",
    "dumpMessages",
    "debug",
    "title",
    "automaticConfigReload",
    "log",
    "file",
];

/// Keys within sections of either server's file, for suggestions.
const NESTED_KEYS: [&str; 19] = [
    "legacyNamespace",
    "globalPrefix",
    "prefixCounter",
    "prefixTimer",
    "prefixGauge",
    "prefixSet",
    "globalSuffix",
    "interval",
    "percent",
    "log",
    "backend",
    "application",
    "level",
    "prettyprint",
    "name",
    "port",
    "address",
    "server",
    "socket",
];

/// Returns the warning about an unknown key.
fn unknown(key: &str, known: &[&str]) -> String {
    let hint =
        nearest(key, known.iter().copied()).map(|known| format!(" (did you mean `{known}`?)"));
    format!("unknown key, ignored{}", hint.unwrap_or_default())
}

/// Parses a syslog level by the names that both servers accept.
fn log_level(name: &str) -> Result<StatsdLogLevel, ValueProblem> {
    match name.strip_prefix("LOG_").unwrap_or(name) {
        "EMERG" | "ALERT" | "CRIT" | "ERR" | "ERROR" => Ok(StatsdLogLevel::Error),
        "WARNING" | "WARN" => Ok(StatsdLogLevel::Warn),
        "NOTICE" | "INFO" => Ok(StatsdLogLevel::Info),
        "DEBUG" => Ok(StatsdLogLevel::Debug),
        _ => Err(format!(
            "{name:?} is not a log level: use LOG_ERR, LOG_WARNING, LOG_INFO or LOG_DEBUG"
        )),
    }
}

/// Returns the lines that etsy's `config` command displays: keys of the file, `key: value`, with
/// one level of nesting, `key > key: value`, followed by the server's defaults.
fn config_lines(entries: &[LiteralEntry], reader: &EtsyConfigReader) -> Vec<String> {
    let mut lines = Vec::new();
    for LiteralEntry { key, value, .. } in entries {
        match &value.value {
            Literal::Null => {}
            Literal::List(values) => {
                let one = |(at, value)| format!("{key} > {at}: {}", to_js_string(value));
                lines.extend(values.iter().enumerate().map(one));
            }
            Literal::Object(entries) => {
                let one = |entry: &LiteralEntry| {
                    format!("{key} > {}: {}", entry.key, to_js_string(&entry.value))
                };
                lines.extend(entries.iter().map(one));
            }
            _ if key == "gaugesMaxTTL" => {
                lines.push(format!("{key}: {}", reader.settings.aggregation.gauge_ttl));
            }
            _ => lines.push(format!("{key}: {}", to_js_string(value))),
        }
    }
    let interval_ms = reader.settings.flush_interval.as_millis().to_string();
    let delete = if reader.delete_idle { Some("true") } else { None };
    for (key, default) in [
        ("gaugesMaxTTL", Some("1")),
        ("deleteIdleStats", Some("false")),
        ("deleteCounters", delete),
        ("deleteTimers", delete),
        ("deleteSets", delete),
        ("deleteGauges", delete),
        ("flushInterval", Some(&*interval_ms)),
    ] {
        let missing = !entries.iter().any(|entry| entry.key == key);
        lines.extend(default.filter(|_| missing).map(|value| format!("{key}: {value}")));
    }
    lines
}

/// Converts a value to a string like JavaScript.
fn to_js_string(value: &LiteralNode) -> String {
    match &value.value {
        Literal::Null => "null".to_owned(),
        Literal::Bool(value) => value.to_string(),
        Literal::Number(number) => JsNumber(*number).to_string(),
        Literal::Text(text) => text.clone(),
        Literal::List(values) => values.iter().map(to_js_string).collect::<Vec<_>>().join(","),
        Literal::Object(_) => "[object Object]".to_owned(),
    }
}

#[cfg(test)]
#[path = "etsy_config/tests.rs"]
mod tests;
