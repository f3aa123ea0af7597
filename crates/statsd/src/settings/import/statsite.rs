//! Converts the INI file of statsite.
//!
//! Source: `src/config.c` and `sinks/graphite.py` of statsite. Its names of sections and keys
//! ignore case.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use howdah_settings::{SettingsErrors, duration_from_seconds};

use super::{
    Conversion, KeyAdvice, ParsedSettings, SettingsFormat, UnusedKey, ValueProblem, boolean,
    entries, find, is_set, log_level, number, percent, percent_names, set_buffer, text, text_list,
    tree, whole,
};
use crate::settings::{
    Bin, ConsoleSettings, GraphiteSettings, HistogramRule, ListenSettings, literal::LiteralEntry,
};

/// Reads a file of statsite.
pub(crate) fn read(text: &str, file: &Path) -> Result<ParsedSettings, SettingsErrors> {
    let tree = tree::from_ini(text, file)?;
    let mut statsite = StatsiteFile::new(file);
    for section in entries(&tree).unwrap_or_default() {
        statsite.read_section(section);
    }
    statsite.finish()
}

/// Whether a text has statsite's section.
pub(super) fn is_statsite(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.any(|line| line.eq_ignore_ascii_case("[statsite]"))
}

/// The keys that are converted.
const READ: [&str; 21] = [
    "port",
    "tcp_port",
    "udp_port",
    "udp_rcvbuf",
    "bind_address",
    "flush_interval",
    "quantiles",
    "timers_include",
    "stream_cmd",
    "use_type_prefix",
    "global_prefix",
    "counts_prefix",
    "gauges_prefix",
    "timers_prefix",
    "sets_prefix",
    "log_level",
    "daemonize",
    "parse_stdin",
    "binary_stream",
    "timer_eps",
    "set_eps",
];

/// Keys without an effect here.
const ADVICE: &KeyAdvice = &[
    ("aligned_flush", "not supported: flushes are aligned to the start of the server"),
    ("pid_file", "not supported: a service manager such as systemd knows the process"),
    ("log_facility", "not supported: set `log.syslog` to log to syslog"),
    ("input_counter", "the counter `metrics_received` counts lines"),
    ("extended_counters", "counters have a sum (`count`) and a rate"),
    ("extended_counters_include", "counters have a sum (`count`) and a rate"),
    ("prefix_binary_stream", "not supported"),
    ("kv_prefix", "not supported: values of type kv have the prefix of gauges"),
];

/// Statistics of timers: the name in `timers_include`, and the name here.
const STATISTICS: [(&str, &str); 9] = [
    ("mean", "mean"),
    ("lower", "lower"),
    ("upper", "upper"),
    ("count", "count"),
    ("stdev", "std"),
    ("sum", "sum"),
    ("sum_sq", "sum_squares"),
    ("median", "median"),
    ("sample_rate", "count_ps"),
];

/// Maximum number of bins of a histogram, as in statsite.
const BINS_MAX: f64 = 1024.0;

/// The prefixes of types, with their defaults.
struct TypePrefixes {
    are_used: bool,
    global: String,
    counts: String,
    gauges: String,
    timers: String,
    sets: String,
}

struct StatsiteFile<'f> {
    out: Conversion<'f>,
    ip: IpAddr,
    tcp_port: u16,
    udp_port: u16,
    buffer_bytes: usize,
    prefixes: TypePrefixes,
    /// The command that gets the values, with its line.
    command: (usize, String),
    timers_include: Option<Vec<String>>,
}

impl<'f> StatsiteFile<'f> {
    fn new(file: &'f Path) -> Self {
        let mut out = Conversion::new(file);
        out.settings.types.kv = true;
        let rules = &mut out.settings.aggregation;
        rules.percentiles = vec![50.0, 95.0, 99.0];
        // It begins each interval without any metrics.
        rules.delete_idle_counters = true;
        rules.delete_idle_timers = true;
        rules.delete_idle_sets = true;
        rules.delete_idle_gauges = true;
        Self {
            out,
            ip: Ipv4Addr::UNSPECIFIED.into(),
            tcp_port: 8125,
            udp_port: 8125,
            buffer_bytes: 0,
            prefixes: TypePrefixes {
                are_used: true,
                global: String::new(),
                counts: "counts.".to_owned(),
                gauges: "gauges.".to_owned(),
                timers: "timers.".to_owned(),
                sets: "sets.".to_owned(),
            },
            command: (0, "cat".to_owned()),
            timers_include: None,
        }
    }

    fn read_section(&mut self, section: &LiteralEntry) {
        let keys = entries(&section.value).unwrap_or_default();
        let name = section.key.to_ascii_lowercase();
        if name.starts_with("histogram") {
            match histogram(keys) {
                Ok(rule) => self.out.settings.aggregation.histogram.push(rule),
                Err(why) => self.out.error(section.line, &section.key, why),
            }
        } else if name == "statsite" {
            for entry in keys.iter().filter(|entry| is_set(&entry.value)) {
                let outcome = self.read_key(entry);
                self.out.record(entry, &entry.key, outcome);
            }
        } else if !keys.is_empty() {
            self.out.warn(section.line, &section.key, "unknown section, ignored");
        }
    }

    fn read_key(&mut self, entry: &LiteralEntry) -> Result<(), ValueProblem> {
        let LiteralEntry { key, line, value } = entry;
        let settings = &mut self.out.settings;
        match key.to_ascii_lowercase().as_str() {
            "port" | "tcp_port" => self.tcp_port = whole(value)?,
            "udp_port" => self.udp_port = whole(value)?,
            "udp_rcvbuf" => self.buffer_bytes = whole(value)?,
            "bind_address" => {
                let address = text(value)?;
                let why = || format!("{address:?} is not an IP address");
                self.ip = address.parse().map_err(|_| why())?;
            }
            "flush_interval" => {
                let interval = duration_from_seconds(number(value)?);
                settings.flush_interval = interval.ok_or("must be a number of seconds")?;
            }
            "quantiles" => {
                let percentiles = text_list(value)?.into_iter().map(|quantile| percent(&quantile));
                settings.aggregation.percentiles = percentiles.collect::<Result<_, _>>()?;
            }
            "timers_include" => self.timers_include = Some(text_list(value)?),
            "stream_cmd" => self.command = (*line, text(value)?),
            "use_type_prefix" => self.prefixes.are_used = boolean(value)?,
            "global_prefix" => self.prefixes.global = text(value)?,
            "counts_prefix" => self.prefixes.counts = text(value)?,
            "gauges_prefix" => self.prefixes.gauges = text(value)?,
            "timers_prefix" => self.prefixes.timers = text(value)?,
            "sets_prefix" => self.prefixes.sets = text(value)?,
            "log_level" => settings.log.level = Some(log_level(&text(value)?)?),
            // Percentiles and sets are exact here.
            "timer_eps" | "set_eps" => {}
            "daemonize" if !boolean(value)? => {}
            "daemonize" => {
                let text = "not supported: let a service manager such as systemd run the server";
                self.out.warn(*line, key, text);
            }
            "parse_stdin" if !boolean(value)? => {}
            "parse_stdin" => {
                let text = "not supported: send lines to the TCP port, for example by `nc`";
                self.out.warn(*line, key, text);
            }
            "binary_stream" if !boolean(value)? => {}
            "binary_stream" => self.out.warn(*line, key, "not supported: there is only text"),
            _ => {
                let unused = UnusedKey { line: *line, section: "", key };
                self.out.warn_unused(unused, ADVICE, &READ);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ParsedSettings, SettingsErrors> {
        let listen = &mut self.out.settings.listen;
        listen.clear();
        if self.udp_port > 0 {
            listen.push(ListenSettings::udp(SocketAddr::new(self.ip, self.udp_port)));
        }
        if self.tcp_port > 0 {
            listen.push(ListenSettings::tcp(SocketAddr::new(self.ip, self.tcp_port)));
        }
        if self.buffer_bytes > 0 {
            set_buffer(listen, self.buffer_bytes);
        }
        self.set_backend();
        self.set_calculated();
        // The longest prefix applies there, the first rule here.
        let histogram = &mut self.out.settings.aggregation.histogram;
        histogram.sort_by_key(|rule| std::cmp::Reverse(rule.metric.len()));
        self.out.finish(SettingsFormat::Statsite)
    }

    /// Sets the backend that does what the command of `stream_cmd` does.
    fn set_backend(&mut self) {
        let (line, command) = &self.command;
        let words: Vec<&str> = command.split_whitespace().collect();
        let script = words.iter().position(|word| word.ends_with("graphite.py"));
        let backends = &mut self.out.settings.backends;
        match (&words[..], script) {
            (["cat"], _) => backends.console = Some(ConsoleSettings::default()),
            (words, Some(at)) => match graphite(&words[at + 1..], &self.prefixes) {
                Ok(graphite) => backends.graphite.push(graphite),
                Err(why) => self.out.error(*line, "stream_cmd", why),
            },
            _ => {
                let text = "not supported, except for `cat` and `graphite.py HOST PORT PREFIX`: \
                            add a backend to the output of `howdah statsd import`";
                self.out.warn(*line, "stream_cmd", text);
            }
        }
    }

    fn set_calculated(&mut self) {
        let Some(names) = self.timers_include.take() else { return };
        let rules = &mut self.out.settings.aggregation;
        for name in names {
            let known = STATISTICS.iter().find(|(known, _)| known.eq_ignore_ascii_case(&name));
            rules.calculated.extend(known.map(|(_, name)| (*name).to_owned()));
        }
        let percentiles = percent_names("upper", &rules.percentiles);
        rules.calculated.extend(percentiles);
        rules.calculated.push("histogram".to_owned());
    }
}

/// Converts the arguments of `graphite.py`: host, port and prefix.
fn graphite(words: &[&str], prefixes: &TypePrefixes) -> Result<GraphiteSettings, ValueProblem> {
    let prefix = words.get(2).unwrap_or(&"statsite").trim_matches(['"', '\'']);
    let port = match words.get(1) {
        Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
        None => 2003,
    };
    let of_type = |prefix: &str| {
        let of_type = if prefixes.are_used { prefix } else { "" };
        format!("{}{of_type}", prefixes.global).trim_matches('.').to_owned()
    };
    Ok(GraphiteSettings {
        host: words.first().map_or("localhost", |host| *host).to_owned(),
        port,
        legacy_namespace: false,
        global_prefix: prefix.trim_matches('.').to_owned(),
        prefix_counter: of_type(&prefixes.counts),
        prefix_timer: of_type(&prefixes.timers),
        prefix_gauge: of_type(&prefixes.gauges),
        prefix_set: of_type(&prefixes.sets),
        ..GraphiteSettings::default()
    })
}

/// Reads a section of a histogram.
fn histogram(keys: &[LiteralEntry]) -> Result<HistogramRule, ValueProblem> {
    let required = |name: &str| find(keys, name).ok_or_else(|| format!("lacks {name}"));
    let bound = |name: &str| number(&required(name)?.value);
    let metric = text(&required("prefix")?.value)?;
    let (min, max, width) = (bound("min")?, bound("max")?, bound("width")?);
    if !(min < max && width > 0.0) {
        return Err("min must be less than max, and width above 0".to_owned());
    }
    let count = ((max - min) / width).ceil();
    if count > BINS_MAX {
        return Err(format!("has more than {BINS_MAX} bins: choose a greater width"));
    }
    // The bound of each bin is calculated from the first, so that errors do not add up.
    let bounds = (0..count as u32).map(|bin| Bin::Below(min + f64::from(bin) * width));
    let bins = bounds.chain([Bin::Below(max), Bin::Infinite]).collect();
    Ok(HistogramRule { metric, bins })
}

#[cfg(test)]
mod tests;
