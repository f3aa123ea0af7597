//! The keys of etsy's server and of the Perl server, into our settings.
//!
//! Each key is one arm of [`Reader::key`]. A key that they know and that has no use here is a warning that
//! says why. One that neither server knows is a warning, too: they ignore it, so their files hold leftovers
//! and sections of backends from elsewhere.
//!
//! Sources: `exampleConfig.js` of statsd 0.9, `bin/localConfig.js` of Net::Statsd::Server.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use super::{
    Backends, Bin, Console, Graphite, GraphiteProtocol, HistogramRule, Listen, LogLevel, Proxy,
    ProxyNode, Repeater, RepeaterProtocol, Settings,
    file::{Form, Read, Remark, Wrong},
    literal::{self, Entry, Literal, Node, Surroundings},
};
use crate::js::Number;

/// Reads a whole file.
pub(super) fn read(text: &str, surroundings: Surroundings<'_>) -> Result<Read, Wrong> {
    let root = literal::parse(text, surroundings).map_err(|error| {
        Wrong(vec![Remark { line: error.line, key: String::new(), text: error.why }])
    })?;
    let Literal::Object(entries) = &root.value else {
        let text = "the settings must be one object { … }".to_owned();
        return Err(Wrong(vec![Remark { line: root.line, key: String::new(), text }]));
    };
    let mut reader = Reader::default();
    for entry in entries {
        reader.entry(entry);
    }
    reader.finish();
    if !reader.wrong.is_empty() {
        return Err(Wrong(reader.wrong));
    }
    let config_lines = config_lines(entries, &reader);
    Ok(Read {
        settings: reader.settings,
        form: Form::Literal,
        warnings: reader.warnings,
        config_lines,
    })
}

/// What is wrong with a value.
type Why = String;

/// Whether a key of a section is one that the section has.
type IsKnown = bool;

/// Where a server listens.
#[derive(Clone, Debug)]
struct Address {
    ip: IpAddr,
    port: u16,
}

impl Default for Address {
    fn default() -> Self {
        Self { ip: Ipv4Addr::UNSPECIFIED.into(), port: 8125 }
    }
}

/// The settings so far, with what decides only at the end.
#[derive(Default)]
struct Reader {
    settings: Settings,
    warnings: Vec<Remark>,
    wrong: Vec<Remark>,
    listen: Server,
    servers: Option<Vec<Listen>>,
    management: (Option<IpAddr>, Option<u16>),
    graphite: Graphite,
    console: Console,
    file: Option<PathBuf>,
    backends: Option<Vec<(usize, String)>>,
    repeaters: Vec<(String, u16)>,
    repeater_protocol: RepeaterProtocol,
    nodes: Vec<ProxyNode>,
    check_interval: Option<Duration>,
    log_syslog: bool,
    log_application: Option<String>,
    delete_idle: bool,
    /// Counters, timers, sets, gauges.
    delete: [Option<bool>; 4],
}

/// One element of `servers`, or the top level.
#[derive(Clone, Debug, Default)]
struct Server {
    tcp: bool,
    address: Address,
    socket: Option<PathBuf>,
    mode: Option<u32>,
}

impl Reader {
    fn entry(&mut self, entry: &Entry) {
        let remark = |text: String| Remark { line: entry.line, key: entry.key.clone(), text };
        if entry.value.value == Literal::Null {
            return;
        }
        match self.key(&entry.key, &entry.value) {
            Ok(None) => {}
            Ok(Some(warning)) => self.warnings.push(remark(warning)),
            Err(why) => self.wrong.push(remark(why)),
        }
    }

    /// Takes one key. `Some` is what is not done about it.
    fn key(&mut self, key: &str, value: &Node) -> Result<Option<String>, Why> {
        let settings = &mut self.settings;
        let rules = &mut settings.aggregation;
        match key {
            "port" | "address" | "host" | "server" | "socket" | "socket_mod" | "address_ipv6" => {
                self.listen.key(key, value)?;
            }
            "servers" => {
                let (servers, unknown) = servers(value)?;
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
            "graphite" => return self.object(key, value, Self::graphite),
            "flush_counts" => self.graphite.flush_counts = truthy(value),
            "flushInterval" => settings.flush_interval = milliseconds(value)?,
            "percentThreshold" => {
                rules.percentiles = match &value.value {
                    Literal::List(values) => values.iter().map(number).collect::<Result<_, _>>()?,
                    // There 0 is "not set".
                    _ => vec![number(value)?].into_iter().filter(|p| *p != 0.0).collect(),
                };
                if rules.percentiles.is_empty() && !matches!(value.value, Literal::List(_)) {
                    rules.percentiles = vec![90.0];
                }
            }
            "keyFlush" => return self.object(key, value, Self::key_flush),
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
            "console" => return self.object(key, value, Self::console),
            "file" => return self.object(key, value, Self::file),
            "repeater" => {
                self.repeaters =
                    list(value)?.iter().map(host_and_port).collect::<Result<_, _>>()?;
            }
            "repeaterProtocol" => {
                self.repeater_protocol = match text(value)?.as_str() {
                    "udp4" => RepeaterProtocol::Udp4,
                    "udp6" => RepeaterProtocol::Udp6,
                    "tcp" => RepeaterProtocol::Tcp,
                    other => return Err(format!("{other:?} is none of udp4, udp6, tcp")),
                }
            }
            "healthStatus" => settings.healthy = text(value)? != "down",
            "dumpMessages" => settings.dump_messages = truthy(value),
            "log" => return self.object(key, value, Self::log),
            "debug" if !truthy(value) => {}
            "debug" | "debugInterval" => {
                return Ok(Some("use --log-level debug instead".to_owned()));
            }
            "title" => return Ok(Some("the process keeps its name".to_owned())),
            "automaticConfigReload" if !truthy(value) => {}
            "automaticConfigReload" => {
                return Ok(Some("the file is read again at SIGHUP, not by itself".to_owned()));
            }
            "nodes" => {
                self.nodes = list(value)?.iter().map(node).collect::<Result<_, _>>()?;
                if self.nodes.is_empty() {
                    return Err("a proxy needs servers to send to".to_owned());
                }
            }
            "checkInterval" => self.check_interval = Some(milliseconds(value)?),
            "cacheSize" => {
                whole(number(value)?, u32::MAX.into()).ok_or("must be a whole number")?;
                return Ok(Some("not used: placing a key is cheap, nothing is cached".to_owned()));
            }
            "udp_version" => match text(value)?.as_str() {
                "udp4" => {}
                "udp6" => self.listen.address.ip = std::net::Ipv6Addr::UNSPECIFIED.into(),
                other => return Err(format!("{other:?} is neither udp4 nor udp6")),
            },
            "forkCount" if !truthy(value) => {}
            "forkCount" => {
                return Ok(Some("threads do it: set readers in a howdah.toml".to_owned()));
            }
            _ => return Ok(Some(unknown(key, &KEYS))),
        }
        Ok(None)
    }

    /// Takes the keys of a nested object.
    fn object(
        &mut self,
        path: &str,
        value: &Node,
        take: fn(&mut Self, &str, &Node) -> Result<IsKnown, Why>,
    ) -> Result<Option<String>, Why> {
        for entry in object(value)? {
            if entry.value.value == Literal::Null {
                continue;
            }
            let remark =
                |text| Remark { line: entry.line, key: format!("{path}.{}", entry.key), text };
            match take(self, &entry.key, &entry.value) {
                Ok(true) => {}
                Ok(false) => self.warnings.push(remark(unknown(&entry.key, &NESTED_KEYS))),
                Err(text) => self.wrong.push(remark(text)),
            }
        }
        Ok(None)
    }

    fn graphite(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
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

    fn key_flush(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
        let settings = &mut self.settings.key_flush;
        match key {
            "interval" => settings.interval = milliseconds(value)?,
            "percent" => settings.percent = number(value)?,
            "log" => settings.log = Some(text(value)?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn log(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
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

    fn console(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
        match key {
            "prettyprint" => self.console.pretty = truthy(value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn file(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
        match key {
            "name" => self.file = Some(text(value)?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What can be told only when all keys are known.
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
        // Who comes with etsy's file expects etsy's metrics and not one more.
        rules.extra_metrics = false;
        self.settings.listen = match self.servers.take() {
            Some(servers) => servers,
            None => vec![self.listen.clone().listen()],
        };
        let ip = self.management.0.unwrap_or_else(|| {
            self.warnings.push(Remark {
                line: 0,
                key: "mgmt_address".to_owned(),
                text: "not set: the management port listens at 127.0.0.1 only, and not everywhere"
                    .to_owned(),
            });
            Ipv4Addr::LOCALHOST.into()
        });
        self.settings.management = Some(SocketAddr::new(ip, self.management.1.unwrap_or(8126)));
        if !self.nodes.is_empty() {
            self.settings.proxy = Some(Proxy {
                nodes: std::mem::take(&mut self.nodes),
                check_interval: self.check_interval.unwrap_or(Duration::from_secs(10)),
            });
            // A proxy has nothing of its own to send.
            return;
        }
        let chosen = self.backends.take().unwrap_or_else(|| vec![(0, "graphite".to_owned())]);
        let (first, any) = (chosen.first().map_or(0, |(line, _)| *line), !chosen.is_empty());
        for (line, name) in chosen {
            self.backend(line, &name);
        }
        if any && self.settings.backends == Backends::default() && self.wrong.is_empty() {
            self.warnings.push(Remark {
                line: first,
                key: "backends".to_owned(),
                text: "none of them is here: values are shown at the management port only"
                    .to_owned(),
            });
        }
    }

    fn backend(&mut self, line: usize, name: &str) {
        let backends = &mut self.settings.backends;
        // `./backends/graphite`, and `Graphite` as the Perl server says it.
        let word = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        match word.trim_end_matches(".js") {
            "graphite" => backends.graphite.push(self.graphite.clone()),
            "console" => backends.console = Some(self.console.clone()),
            "repeater" => {
                let protocol = self.repeater_protocol;
                let repeaters = std::mem::take(&mut self.repeaters).into_iter();
                backends.repeater =
                    repeaters.map(|(host, port)| Repeater { host, port, protocol }).collect();
            }
            "file" => match self.file.take() {
                Some(path) => backends.file = Some(super::File { path, timestamps: false }),
                None => self.wrong.push(Remark {
                    line,
                    key: "backends".to_owned(),
                    text: "the file backend needs file: { name: … }".to_owned(),
                }),
            },
            _ => self.warnings.push(Remark {
                line,
                key: "backends".to_owned(),
                text: format!(
                    "{name:?} is not here and gets nothing: graphite, console, repeater and file \
                     are, and more in a howdah.toml"
                ),
            }),
        }
    }
}

impl Server {
    fn key(&mut self, key: &str, value: &Node) -> Result<IsKnown, Why> {
        match key {
            "port" => self.address.port = port(value)?,
            // `host` is in much-copied examples, where neither server reads it.
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
                    _ => {
                        whole(number(value)?, u32::MAX.into()).and_then(|mode| mode.try_into().ok())
                    }
                };
                self.mode = Some(mode.ok_or("must be a mode such as '0660'")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn listen(self) -> Listen {
        let address = SocketAddr::new(self.address.ip, self.address.port);
        match (self.tcp, self.socket) {
            (false, _) => Listen::udp(address),
            (true, None) => Listen::tcp(address),
            (true, Some(path)) => Listen::unix(path, self.mode),
        }
    }
}

fn servers(value: &Node) -> Result<(Vec<Listen>, Vec<Remark>), Why> {
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    for value in list(value)? {
        let mut server = Server::default();
        for Entry { key, line, value } in object(value)? {
            let wrong = |why| format!("{key} in line {line}: {why}");
            if !server.key(key, value).map_err(wrong)? {
                let (key, text) = (format!("servers.{key}"), unknown(key, &NESTED_KEYS));
                warnings.push(Remark { line: *line, key, text });
            }
        }
        all.push(server.listen());
    }
    Ok((all, warnings))
}

fn backends(value: &Node) -> Result<Vec<(usize, String)>, Why> {
    list(value)?.iter().map(|name| Ok((name.line, text(name)?))).collect()
}

fn histogram(value: &Node) -> Result<HistogramRule, Why> {
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

fn bin(value: &Node) -> Result<Bin, Why> {
    match &value.value {
        Literal::Text(text) if text == "inf" => Ok(Bin::Infinite),
        _ => number(value).map(Bin::Below),
    }
}

fn host_and_port(value: &Node) -> Result<(String, u16), Why> {
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

/// A server behind a proxy.
fn node(value: &Node) -> Result<ProxyNode, Why> {
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
        (Some(host), Some(port), Some(admin_port)) => Ok(ProxyNode { host, port, admin_port }),
        _ => Err("needs host, port and adminport".to_owned()),
    }
}

fn object(value: &Node) -> Result<&[Entry], Why> {
    match &value.value {
        Literal::Object(entries) => Ok(entries),
        _ => Err("must be an object { … }".to_owned()),
    }
}

fn list(value: &Node) -> Result<&[Node], Why> {
    match &value.value {
        Literal::List(values) => Ok(values),
        _ => Err("must be a list [ … ]".to_owned()),
    }
}

fn text(value: &Node) -> Result<String, Why> {
    match &value.value {
        Literal::Text(text) => Ok(text.clone()),
        _ => Err("must be a string".to_owned()),
    }
}

/// A number, or a string that is one.
fn number(value: &Node) -> Result<f64, Why> {
    match &value.value {
        Literal::Number(number) if number.is_finite() => Ok(*number),
        Literal::Number(number) => Err(format!("{} is not a finite number", Number(*number))),
        Literal::Text(text) => {
            crate::grammar::number(text.as_bytes()).map_err(|_| format!("{text:?} is no number"))
        }
        _ => Err("must be a number".to_owned()),
    }
}

/// A whole number from 0 to `max`.
fn whole(number: f64, max: u64) -> Option<u64> {
    (number.fract() == 0.0 && number >= 0.0 && number <= max as f64).then_some(number as u64)
}

fn port(value: &Node) -> Result<u16, Why> {
    let port = whole(number(value)?, u16::MAX.into()).and_then(|port| port.try_into().ok());
    port.ok_or_else(|| "must be a port from 0 to 65535".to_owned())
}

fn ip(value: &Node) -> Result<IpAddr, Why> {
    match text(value)?.as_str() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text.parse().map_err(|_| format!("{text:?} is no IP address")),
    }
}

fn milliseconds(value: &Node) -> Result<Duration, Why> {
    let ms = number(value)?;
    Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| "must be milliseconds from 0".to_owned())
}

/// Etsy's rule: a whole number above 1, else 1.
fn ttl(flushes: f64) -> u32 {
    whole(flushes, u32::MAX.into()).and_then(|ttl| ttl.try_into().ok()).unwrap_or(1).max(1)
}

fn truthy(value: &Node) -> bool {
    literal::is_true(&value.value)
}

/// Keys of both servers, to guess which one was meant.
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

/// The same of their sections.
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

/// What to say about a key that is not known.
fn unknown(key: &str, known: &[&str]) -> String {
    // No key is as long as that, and the comparison takes memory for each letter.
    let known = if key.len() <= 40 { known } else { &[] };
    let distance = |known: &str| distance(&key.to_lowercase(), &known.to_lowercase());
    let nearest = known.iter().map(|known| (distance(known), known)).min();
    match nearest {
        Some((distance, known)) if distance <= 2 && 3 * distance < known.len() => {
            format!("no such key: did you mean {known}?")
        }
        _ => "no such key; it is ignored".to_owned(),
    }
}

/// How many letters have to be put in, left out, changed or swapped with their neighbour to make one
/// word the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least =
                (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// `key: value`, and one level of `key > key: value`, as etsy's management port has it.
/// Syslog's levels, by the names that both servers take.
fn log_level(name: &str) -> Result<LogLevel, Why> {
    match name.strip_prefix("LOG_").unwrap_or(name) {
        "EMERG" | "ALERT" | "CRIT" | "ERR" | "ERROR" => Ok(LogLevel::Error),
        "WARNING" | "WARN" => Ok(LogLevel::Warn),
        "NOTICE" | "INFO" => Ok(LogLevel::Info),
        "DEBUG" => Ok(LogLevel::Debug),
        _ => Err(format!("{name:?} is no level: LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG are")),
    }
}

/// What `config` of etsy's server shows: the file's keys, and after them what the server itself sets.
fn config_lines(entries: &[Entry], reader: &Reader) -> Vec<String> {
    let mut lines = Vec::new();
    for Entry { key, value, .. } in entries {
        match &value.value {
            Literal::Null => {}
            Literal::List(values) => {
                let one = |(at, value)| format!("{key} > {at}: {}", coerced(value));
                lines.extend(values.iter().enumerate().map(one));
            }
            Literal::Object(entries) => {
                let one =
                    |entry: &Entry| format!("{key} > {}: {}", entry.key, coerced(&entry.value));
                lines.extend(entries.iter().map(one));
            }
            _ if key == "gaugesMaxTTL" => {
                lines.push(format!("{key}: {}", reader.settings.aggregation.gauge_ttl));
            }
            _ => lines.push(format!("{key}: {}", coerced(value))),
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

/// A value as JavaScript makes it a string.
fn coerced(value: &Node) -> String {
    match &value.value {
        Literal::Null => "null".to_owned(),
        Literal::Bool(value) => value.to_string(),
        Literal::Number(number) => Number(*number).to_string(),
        Literal::Text(text) => text.clone(),
        Literal::List(values) => values.iter().map(coerced).collect::<Vec<_>>().join(","),
        Literal::Object(_) => "[object Object]".to_owned(),
    }
}

#[cfg(test)]
#[path = "foreign/tests.rs"]
mod tests;
