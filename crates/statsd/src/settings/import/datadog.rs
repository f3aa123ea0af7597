//! Converts the Datadog agent's `datadog.yaml`: its keys for DogStatsD.
//!
//! Sources: `config_template.yaml` and the defaults of the agent's version 7.

mod mapper;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use howdah_settings::{SettingsErrors, nearest};

use self::mapper::AgentNameRules;
use super::{
    Conversion, KeyAdvice, ParsedSettings, SettingsFormat, UnusedKey, ValueProblem, boolean,
    entries, find, is_set, log_level, percent, percent_names, set_buffer, text, text_list, tree,
    whole,
};
use crate::settings::{
    ListenSettings, RepeaterProtocol, RepeaterSettings, StatsdDialect,
    literal::{LiteralEntry, LiteralNode},
};

/// Reads a `datadog.yaml`.
pub(crate) fn read(text: &str, file: &Path) -> Result<ParsedSettings, SettingsErrors> {
    let tree = tree::from_yaml(text, file)?;
    let mut datadog = DatadogFile::new(file);
    match entries(&tree) {
        Ok(all) => all.iter().for_each(|entry| datadog.read_entry(entry)),
        Err(why) => datadog.out.error(tree.line, "", why),
    }
    datadog.finish(&tree)
}

/// Whether a key at the top level of a file shows that it is the agent's.
pub(super) fn is_known_key(key: &str) -> bool {
    let is_distinct = ["use_dogstatsd", "api_key", "dd_url", "apm_config", "process_config"];
    is_distinct.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// The starts of DogStatsD's keys.
const PREFIXES: [&str; 3] = ["dogstatsd_", "statsd_", "histogram_"];

/// The keys that are converted.
const READ: [&str; 24] = [
    "use_dogstatsd",
    "bind_host",
    "dogstatsd_port",
    "dogstatsd_non_local_traffic",
    "dogstatsd_socket",
    "dogstatsd_so_rcvbuf",
    "dogstatsd_mapper_profiles",
    "histogram_aggregates",
    "histogram_percentiles",
    "statsd_forward_host",
    "statsd_forward_port",
    "statsd_metric_blocklist",
    "statsd_metric_blocklist_match_prefix",
    "metric_filterlist",
    "metric_filterlist_match_prefix",
    "statsd_metric_namespace",
    "statsd_metric_namespace_blacklist",
    "statsd_metric_namespace_blocklist",
    "dogstatsd_tags",
    "tags",
    "extra_tags",
    "env",
    "log_level",
    "log_to_syslog",
];

const NOT_NEEDED: &str = "not needed: packets of any size are read in batches";
const NO_ORIGIN: &str =
    "not converted: `origin` of [statsd.dogstatsd] adds the sender's container as a tag";
const USE_TOP: &str = "use `top` and `bad` at the management port (`management`) instead";

/// The warning that the file has no backend.
const NO_BACKEND: &str = "nothing is sent to Datadog, and the file has no other backend: add one \
                          to the output of `howdah statsd import`";

/// Keys of DogStatsD without an effect here.
const ADVICE: &KeyAdvice = &[
    ("dogstatsd_buffer_size", NOT_NEEDED),
    ("dogstatsd_queue_size", NOT_NEEDED),
    ("dogstatsd_packet_buffer_size", NOT_NEEDED),
    ("dogstatsd_packet_buffer_flush_timeout", NOT_NEEDED),
    ("dogstatsd_workers_count", "set `readers` of a listener instead"),
    ("dogstatsd_pipeline_count", "set `readers` of a listener instead"),
    ("dogstatsd_pipeline_autoadjust", "set `readers` of a listener instead"),
    ("dogstatsd_string_interner_size", "not needed: set `limits.keys` to limit memory"),
    ("dogstatsd_mapper_cache_size", "not needed: mapped names are cached with their metrics"),
    (
        "dogstatsd_stream_socket",
        "not supported: its packets start with their length; use dogstatsd_socket, or a listener \
         of type unix for lines",
    ),
    ("dogstatsd_pipe_name", "not supported: use UDP, TCP or a unix socket"),
    ("dogstatsd_origin_detection", NO_ORIGIN),
    ("dogstatsd_origin_detection_client", NO_ORIGIN),
    ("dogstatsd_origin_optout_enabled", NO_ORIGIN),
    ("dogstatsd_entity_id_precedence", NO_ORIGIN),
    ("dogstatsd_tag_cardinality", NO_ORIGIN),
    ("dogstatsd_stats_enable", USE_TOP),
    ("dogstatsd_stats_port", USE_TOP),
    ("dogstatsd_stats_buffer", USE_TOP),
    ("dogstatsd_metrics_stats_enable", USE_TOP),
    ("dogstatsd_disable_verbose_logs", USE_TOP),
    ("dogstatsd_logging_enabled", "use `dump-messages` instead"),
    ("dogstatsd_log_file", "use `dump-messages` instead"),
    ("dogstatsd_eol_required", "not needed: every line of a packet is read"),
    ("dogstatsd_capture_path", "not supported: record packets with tcpdump"),
    ("dogstatsd_capture_depth", "not supported: record packets with tcpdump"),
    (
        "dogstatsd_expiry_seconds",
        "not supported: idle counters are sent as 0; use `delete-idle-counters`, or `ttl` of a \
         prometheus backend",
    ),
    (
        "dogstatsd_context_expiry_seconds",
        "not supported: use `delete-idle-counters`, or `ttl` of a prometheus backend",
    ),
    (
        "dogstatsd_no_aggregation_pipeline",
        "values with a timestamp are sent with it: `timestamps` of [statsd.dogstatsd] switches this",
    ),
    ("histogram_copy_to_distribution", "not supported: both have the same statistics here"),
    ("histogram_copy_to_distribution_prefix", "not supported: both have the same statistics here"),
    ("log_file", "logs go to standard error or syslog: redirect standard error"),
];

/// Keys of the agent's other parts that resemble those of DogStatsD.
const AGENT: [&str; 15] = [
    "api_key",
    "app_key",
    "site",
    "dd_url",
    "hostname",
    "additional_endpoints",
    "apm_config",
    "logs_enabled",
    "logs_config",
    "process_config",
    "network_config",
    "proxy",
    "inventories_configuration_enabled",
    "cmd_port",
    "confd_path",
];

/// Maximum number of ignored keys that one warning lists.
const LISTED_MAX: usize = 10;

struct DatadogFile<'f> {
    out: Conversion<'f>,
    port: u16,
    bind_host: IpAddr,
    is_non_local: bool,
    socket: Option<PathBuf>,
    buffer_bytes: usize,
    aggregates: Option<Vec<&'static str>>,
    rules: AgentNameRules,
    /// Ignored keys of the agent's other parts, with their lines.
    others: Vec<(usize, String)>,
}

impl<'f> DatadogFile<'f> {
    fn new(file: &'f Path) -> Self {
        let mut out = Conversion::new(file);
        out.settings.dialect = StatsdDialect::Dogstatsd;
        // The agent adds the container only with a setting.
        out.settings.dogstatsd.origin = Some(false);
        let rules = &mut out.settings.aggregation;
        // The agent's default. It repeats only counters, as 0, when nothing arrives.
        rules.percentiles = vec![95.0];
        rules.delete_idle_timers = true;
        rules.delete_idle_sets = true;
        rules.delete_idle_gauges = true;
        Self {
            out,
            port: 8125,
            bind_host: Ipv4Addr::LOCALHOST.into(),
            is_non_local: false,
            socket: None,
            buffer_bytes: 0,
            aggregates: None,
            rules: AgentNameRules::default(),
            others: Vec::new(),
        }
    }

    fn read_entry(&mut self, entry: &LiteralEntry) {
        if is_set(&entry.value) {
            let outcome = self.read_key(entry);
            self.out.record(entry, &entry.key, outcome);
        }
    }

    fn read_key(&mut self, entry: &LiteralEntry) -> Result<(), ValueProblem> {
        let LiteralEntry { key, line, value } = entry;
        match key.as_str() {
            "use_dogstatsd" if boolean(value)? => {}
            "use_dogstatsd" => {
                self.out.warn(*line, key, "the agent's DogStatsD is off; this one is on");
            }
            "bind_host" => self.bind_host = ip(value)?,
            "dogstatsd_port" => self.port = whole(value)?,
            "dogstatsd_non_local_traffic" => self.is_non_local = boolean(value)?,
            "dogstatsd_socket" => {
                let path = text(value)?;
                self.socket = Some(path.strip_prefix("unix://").unwrap_or(&path).into());
            }
            "dogstatsd_so_rcvbuf" => self.buffer_bytes = whole(value)?,
            "dogstatsd_mapper_profiles" => {
                for (line, why) in self.rules.add_profiles(value)? {
                    self.out.warn(line, key, why);
                }
            }
            "statsd_metric_blocklist" | "metric_filterlist" => {
                self.rules.blocked(key).names = text_list(value)?;
            }
            "statsd_metric_blocklist_match_prefix" | "metric_filterlist_match_prefix" => {
                self.rules.blocked(key).are_prefixes = boolean(value)?;
            }
            "statsd_metric_namespace" => self.rules.set_namespace(&text(value)?),
            "statsd_metric_namespace_blacklist" | "statsd_metric_namespace_blocklist" => {
                self.rules.exclude(text_list(value)?);
            }
            "dogstatsd_tags" | "tags" | "extra_tags" => {
                self.out.add_static_tags(*line, key, &text_list(value)?);
            }
            "env" => self.out.add_static_tag(*line, key, "env", &text(value)?),
            "histogram_aggregates" => {
                let names = text_list(value)?;
                let names = names.iter().map(|name| aggregate(name)).collect::<Result<_, _>>()?;
                self.aggregates = Some(names);
            }
            "histogram_percentiles" => {
                let percentiles = text_list(value)?.into_iter().map(|text| percent(&text));
                self.out.settings.aggregation.percentiles =
                    percentiles.collect::<Result<_, _>>()?;
            }
            // One warning at the end says that nothing is sent to Datadog.
            "api_key" | "app_key" | "site" | "dd_url" => {}
            // Both keys of the receiver are read at the end.
            "statsd_forward_host" | "statsd_forward_port" => {}
            "log_level" => self.out.settings.log.level = Some(log_level(&text(value)?)?),
            "log_to_syslog" => {
                self.out.settings.log.syslog = boolean(value)?.then(|| "statsd".to_owned());
            }
            _ => self.unused(*line, key),
        }
        Ok(())
    }

    /// Warns about a key without effect, at once if it is about DogStatsD.
    fn unused(&mut self, line: usize, key: &str) {
        let is_ours = PREFIXES.iter().any(|prefix| key.starts_with(prefix))
            || ADVICE.iter().any(|(name, _)| *name == key)
            || !AGENT.contains(&key) && nearest(key, READ.into_iter()).is_some();
        if is_ours {
            self.out.warn_unused(UnusedKey { line, section: "", key }, ADVICE, &READ);
        } else {
            self.others.push((line, key.to_owned()));
        }
    }

    fn finish(mut self, tree: &LiteralNode) -> Result<ParsedSettings, SettingsErrors> {
        let all = entries(tree).unwrap_or_default();
        self.set_listeners();
        if let Err((line, why)) = self.set_repeater(all) {
            self.out.error(line, "statsd_forward_host", why);
        }
        if let Some(aggregates) = self.aggregates.take() {
            let rules = &mut self.out.settings.aggregation;
            let percentiles = percent_names("upper", &rules.percentiles);
            let aggregates = aggregates.into_iter().map(str::to_owned);
            rules.calculated = aggregates.chain(percentiles).collect();
        }
        if let [(line, _), ..] = self.others[..] {
            let names = self.others.iter().take(LISTED_MAX).map(|(_, key)| key.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let more = match self.others.len().saturating_sub(LISTED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let text = format!("keys of the agent's other parts are ignored: {names}{more}");
            self.out.warn(line, "", text);
        }
        let key_line = find(all, "api_key").map_or(0, |entry| entry.line);
        self.out.warn(key_line, "", NO_BACKEND);
        self.out.settings.rules = self.rules.to_rules();
        self.out.finish(SettingsFormat::Datadog)
    }

    fn set_listeners(&mut self) {
        let ip = if self.is_non_local { Ipv4Addr::UNSPECIFIED.into() } else { self.bind_host };
        let listen = &mut self.out.settings.listen;
        listen.clear();
        if self.port > 0 {
            listen.push(ListenSettings::udp(SocketAddr::new(ip, self.port)));
        }
        // The agent lets every user write to the socket.
        listen.extend(self.socket.take().map(|path| ListenSettings::unixgram(path, Some(0o722))));
        if self.buffer_bytes > 0 {
            set_buffer(listen, self.buffer_bytes);
        }
    }

    fn set_repeater(&mut self, all: &[LiteralEntry]) -> Result<(), (usize, ValueProblem)> {
        let Some(host) = find(all, "statsd_forward_host") else { return Ok(()) };
        let port = find(all, "statsd_forward_port")
            .ok_or_else(|| (host.line, "needs statsd_forward_port, too".to_owned()))?;
        let receiver = RepeaterSettings {
            host: text(&host.value).map_err(|why| (host.line, why))?,
            port: whole(&port.value).map_err(|why| (port.line, why))?,
            protocol: RepeaterProtocol::Udp4,
        };
        self.out.settings.backends.repeater.push(receiver);
        Ok(())
    }
}

fn ip(node: &LiteralNode) -> Result<IpAddr, ValueProblem> {
    match text(node)?.as_str() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text.parse().map_err(|_| format!("{text:?} is not an IP address")),
    }
}

/// Returns the name here of a statistic of histograms.
fn aggregate(name: &str) -> Result<&'static str, ValueProblem> {
    match name {
        "max" => Ok("upper"),
        "min" => Ok("lower"),
        "median" => Ok("median"),
        "avg" => Ok("mean"),
        "count" => Ok("count"),
        "sum" => Ok("sum"),
        _ => Err(format!("{name:?} is not max, min, median, avg, count or sum")),
    }
}

#[cfg(test)]
mod tests;
