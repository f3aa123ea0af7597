//! Converts the command line of statsd_exporter, in a file or on ours, and its mapping file.
//!
//! Source: `main.go` of statsd_exporter 0.28. A file has the flags as a shell would read them:
//! separated by white space, with quotes, backslashes and comments.

use std::{net::SocketAddr, path::Path, time::Duration};

use howdah_settings::SettingsErrors;

use super::{
    Conversion, KeyAdvice, ParsedSettings, SettingsFormat, UnusedKey, ValueProblem, host_and_port,
    log_level,
};
use crate::settings::{
    ListenSettings, PrometheusSettings, RepeaterProtocol, RepeaterSettings, go_values,
};

/// Reads a file that has the flags of a command line.
pub(crate) fn read_flags(text: &str, file: &Path) -> Result<ParsedSettings, SettingsErrors> {
    let mut exporter = ExporterCommand::new(file);
    match shell_arguments(text) {
        Ok(words) => exporter.read_arguments(words),
        Err((line, why)) => exporter.out.error(line, "", why),
    }
    exporter.finish(SettingsFormat::StatsdExporter)
}

/// Reads a mapping file, as the default flags with this file as mapping would.
pub(crate) fn read_mapping(file: &Path) -> Result<ParsedSettings, SettingsErrors> {
    let mut exporter = ExporterCommand::new(file);
    exporter.prometheus.mapping = Some(file.to_owned());
    exporter.finish(SettingsFormat::ExporterMapping)
}

/// Whether a text is a command line of the exporter: its first word is a long flag, or its name.
pub(super) fn is_command_line(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    let word = first.split_whitespace().next().unwrap_or_default();
    let is_flag = word.strip_prefix("--").is_some_and(|flag| flag.starts_with(char::is_alphabetic));
    is_flag || is_program(word)
}

fn is_program(word: &str) -> bool {
    word.rsplit('/').next() == Some("statsd_exporter")
}

/// The flags that are converted.
const READ: [&str; 15] = [
    "web.listen-address",
    "web.telemetry-path",
    "statsd.listen-udp",
    "statsd.listen-tcp",
    "statsd.listen-unixgram",
    "statsd.unixsocket-mode",
    "statsd.mapping-config",
    "statsd.read-buffer",
    "statsd.relay.address",
    "statsd.parse-dogstatsd-tags",
    "statsd.parse-influxdb-tags",
    "statsd.parse-librato-tags",
    "statsd.parse-signalfx-tags",
    "log.level",
    "log.format",
];

const NOT_NEEDED: &str = "not needed: values are added up where packets are read";

/// Flags without an effect here.
const ADVICE: &KeyAdvice = &[
    ("web.enable-lifecycle", "not supported: send SIGHUP to reload, SIGTERM to stop"),
    ("web.config.file", "not supported: put a proxy for TLS and passwords before the endpoint"),
    ("web.systemd-socket", "not supported"),
    ("statsd.cache-size", "not needed: mapped names are cached with their metrics"),
    ("statsd.cache-type", "not needed: mapped names are cached with their metrics"),
    ("statsd.event-queue-size", NOT_NEEDED),
    ("statsd.event-flush-threshold", NOT_NEEDED),
    ("statsd.event-flush-interval", NOT_NEEDED),
    ("statsd.udp-packet-queue-size", NOT_NEEDED),
    ("statsd.relay.packet-length", "not needed: packets are forwarded unchanged"),
    ("debug.dump-fsm", "not supported"),
    ("check-config", "use --check instead"),
];

/// Flags that take no value. `--no-` before their names turns them off.
const SWITCHES: [&str; 8] = [
    "web.enable-lifecycle",
    "web.systemd-socket",
    "statsd.parse-dogstatsd-tags",
    "statsd.parse-influxdb-tags",
    "statsd.parse-librato-tags",
    "statsd.parse-signalfx-tags",
    "check-config",
    "version",
];

struct ExporterCommand<'f> {
    out: Conversion<'f>,
    udp: Option<SocketAddr>,
    tcp: Option<SocketAddr>,
    unixgram: Option<String>,
    socket_mode: u32,
    buffer_bytes: usize,
    prometheus: PrometheusSettings,
}

impl<'f> ExporterCommand<'f> {
    fn new(file: &'f Path) -> Self {
        let mut out = Conversion::new(file);
        // The exporter shows a value as soon as it has received it.
        out.settings.flush_interval = Duration::from_secs(1);
        // The exporter reads tags in these styles, too, unless a flag turns them off.
        (out.settings.tags.librato, out.settings.tags.signalfx) = (true, true);
        let everywhere = |port| Some(SocketAddr::from(([0, 0, 0, 0], port)));
        Self {
            out,
            udp: everywhere(9125),
            tcp: everywhere(9125),
            unixgram: None,
            socket_mode: 0o755,
            buffer_bytes: 0,
            prometheus: PrometheusSettings {
                listen: SocketAddr::from(([0, 0, 0, 0], 9102)),
                ..PrometheusSettings::default()
            },
        }
    }

    fn read_arguments(&mut self, words: Vec<(usize, String)>) {
        let mut words = words.into_iter().peekable();
        words.next_if(|(_, word)| is_program(word));
        while let Some((line, word)) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                self.out.error(line, "", format!("{word:?} is not a flag"));
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (flag.to_owned(), None),
            };
            let (name, value) = match name.strip_prefix("no-") {
                Some(name) => (name.to_owned(), Some("false".to_owned())),
                None => (name, value),
            };
            let value = match value {
                Some(value) => value,
                None if SWITCHES.contains(&name.as_str()) => "true".to_owned(),
                None => match words.next() {
                    Some((_, value)) => value,
                    None => {
                        self.out.error(line, &name, "lacks a value");
                        continue;
                    }
                },
            };
            if let Err(why) = self.read_flag(line, &name, &value) {
                self.out.error(line, &name, why);
            }
        }
    }

    fn read_flag(&mut self, line: usize, name: &str, value: &str) -> Result<(), ValueProblem> {
        match name {
            "web.listen-address" => {
                self.prometheus.listen = address(value)?.ok_or("must be an address")?;
            }
            "web.telemetry-path" if value == "/metrics" => {}
            "web.telemetry-path" => {
                self.out.warn(line, name, "not supported: the path is /metrics");
            }
            "statsd.listen-udp" => self.udp = address(value)?,
            "statsd.listen-tcp" => self.tcp = address(value)?,
            "statsd.listen-unixgram" => {
                self.unixgram = (!value.is_empty()).then(|| value.to_owned());
            }
            "statsd.unixsocket-mode" => {
                self.socket_mode = u32::from_str_radix(value, 8)
                    .map_err(|_| format!("{value:?} is not a mode"))?;
            }
            "statsd.mapping-config" => {
                self.prometheus.mapping = (!value.is_empty()).then(|| value.into());
            }
            "statsd.read-buffer" => {
                self.buffer_bytes =
                    value.parse().map_err(|_| format!("{value:?} is not a number of bytes"))?;
            }
            "statsd.relay.address" if value.is_empty() => {}
            "statsd.relay.address" => {
                let (host, port) = host_and_port(value, 8125)?;
                let protocol = RepeaterProtocol::Udp4;
                self.out.settings.backends.repeater.push(RepeaterSettings { host, port, protocol });
            }
            "statsd.parse-librato-tags" => self.out.settings.tags.librato = value == "true",
            "statsd.parse-signalfx-tags" => self.out.settings.tags.signalfx = value == "true",
            "statsd.parse-dogstatsd-tags" => self.out.settings.tags.dogstatsd = value == "true",
            "statsd.parse-influxdb-tags" => self.out.settings.tags.influx = value == "true",
            "log.level" => {
                self.out.settings.log.level = Some(log_level(value)?);
            }
            "log.format" if value == "logfmt" => {}
            "log.format" => self.out.warn(line, name, "use --log-format json instead"),
            _ => self.out.warn_unused(UnusedKey { line, section: "", key: name }, ADVICE, &READ),
        }
        Ok(())
    }

    fn finish(mut self, format: SettingsFormat) -> Result<ParsedSettings, SettingsErrors> {
        let listen = &mut self.out.settings.listen;
        listen.clear();
        listen.extend(self.udp.map(ListenSettings::udp));
        listen.extend(self.tcp.map(ListenSettings::tcp));
        let socket = self.unixgram.take();
        listen.extend(
            socket.map(|path| ListenSettings::unixgram(path.into(), Some(self.socket_mode))),
        );
        if self.buffer_bytes > 0 {
            super::set_buffer(listen, self.buffer_bytes);
        }
        self.out.settings.backends.prometheus = Some(self.prometheus);
        self.out.finish(format)
    }
}

/// Parses an address to listen on; `None` if it is empty, which turns a listener off.
fn address(text: &str) -> Result<Option<SocketAddr>, ValueProblem> {
    if text.is_empty() {
        return Ok(None);
    }
    let address = go_values::listen_address(text);
    address.map(Some).ok_or_else(|| format!("{text:?} is not an address: write IP:PORT"))
}

/// Splits a text into words with their lines, as a shell does: quotes and backslashes are removed,
/// `#` at the start of a word begins a comment.
fn shell_arguments(text: &str) -> Result<Vec<(usize, String)>, (usize, ValueProblem)> {
    let (mut words, mut word) = (Vec::new(), None::<(usize, String)>);
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => line += usize::from(chars.by_ref().any(|c| c == '\n')),
            '\\' if chars.peek() == Some(&'\n') => {
                chars.next();
                line += 1;
            }
            '\\' => {
                let escaped = chars.next();
                word.get_or_insert((line, String::new())).1.extend(escaped);
            }
            '\'' | '"' => {
                let (_, word) = word.get_or_insert((line, String::new()));
                let start = line;
                loop {
                    match chars.next() {
                        None => return Err((start, "a quote is not closed".to_owned())),
                        Some(end) if end == c => break,
                        Some(inner) => {
                            line += usize::from(inner == '\n');
                            word.push(inner);
                        }
                    }
                }
            }
            c if c.is_whitespace() => {
                words.extend(word.take());
                line += usize::from(c == '\n');
            }
            c => word.get_or_insert((line, String::new())).1.push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests;
