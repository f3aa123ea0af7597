//! Real-world configuration files.

use super::*;
use crate::settings::{Aggregation, LogSettings, StatsdLogLevel};

fn read(text: &str) -> Result<ParsedSettings, String> {
    StatsdSettings::read(text, Path::new("f"), "db1.example.org")
        .map_err(|errors| errors.to_string())
}

#[test]
fn etsy_and_perl_files_yield_equal_settings() {
    let etsy = r#"
{ graphitePort: 2003
, graphiteHost: "graphite.localdomain"
, host: "0.0.0.0"
, port: 8125
, backends: [ "./backends/graphite", "./backends/console" ]
, mgmt_address: "0.0.0.0"
, mgmt_port: 8126
}"#;
    let perl = r#"
{ "graphitePort": 2003,
  "graphiteHost": "graphite.localdomain",
  "host" : "0.0.0.0",
  "port": 8125,
  "mgmt_address" : "0.0.0.0",
  "mgmt_port": 8126,
  "backends": [ "Graphite", "Console" ],
  "log" : {
    "backend" : "stdout",
    "level" : "LOG_WARN",
  }
}"#;
    let (etsy, mut perl) = (read(etsy).unwrap(), read(perl).unwrap());
    assert_eq!(perl.settings.log.level.take(), Some(StatsdLogLevel::Warn));
    assert_eq!(etsy.settings, perl.settings);
    assert_eq!(etsy.format, SettingsFormat::Literal);
    assert_eq!(etsy.warnings, []);
    assert_eq!(perl.warnings, []);
    assert_eq!(etsy.settings.backends.graphite[0].host, "graphite.localdomain");
    assert!(etsy.settings.backends.console.is_some());
    assert_eq!(etsy.config_lines[4], "backends > 0: ./backends/graphite");
    assert_eq!(etsy.settings.listen, StatsdSettings::default().listen);
}

#[test]
fn etsy_example_keys_are_read() {
    let config = r#"
{
  port: 8125, mgmt_port: 8127, address: '127.0.0.1', address_ipv6: false, server: './servers/udp',
  mgmt_address: "127.0.0.1", title: 'statsd', healthStatus: 'down', dumpMessages: true,
  flushInterval: 1000, percentThreshold: [50, 99.9, -10], flush_counts: false,
  keyFlush: { interval: 5000, percent: 20, log: '/var/log/keys' },
  deleteIdleStats: true, deleteGauges: false, gaugesMaxTTL: 3,
  prefixStats: 'me', keyNameSanitize: false, automaticConfigReload: false, debug: false,
  calculatedTimerMetrics: ['count', 'upper_percent'],
  console: { prettyprint: true },
  graphiteHost: 'g', graphitePort: 1, graphitePicklePort: 2, graphiteProtocol: 'pickle',
  graphite: { legacyNamespace: false, globalPrefix: 'p', prefixCounter: 'c', prefixTimer: 't',
    prefixGauge: 'g', prefixSet: 's', globalSuffix: require('os').hostname().split('.')[0] },
  repeater: [ { host: '10.10.10.10', port: 8125 }, { host: 'observer', port: 8125 } ],
  repeaterProtocol: 'tcp',
  histogram: [ { metric: 'foo', bins: [] }, { metric: '', bins: [ 0.5, 5, 'inf' ] } ],
  backends: [ './backends/graphite', './backends/repeater' ]
}"#;
    let ParsedSettings { settings, warnings, .. } = read(config).unwrap();
    assert_eq!(warnings.iter().map(|warning| &*warning.key).collect::<Vec<_>>(), ["title"]);
    assert_eq!(settings.flush_interval, Duration::from_secs(1));
    assert_eq!(settings.management, Some("127.0.0.1:8127".parse().unwrap()));
    assert_eq!(settings.listen, [ListenSettings::udp("127.0.0.1:8125".parse().unwrap())]);
    assert!(!settings.healthy && settings.dump_messages);
    let expected = Aggregation {
        percentiles: vec![50.0, 99.9, -10.0],
        histogram: vec![
            HistogramRule { metric: "foo".to_owned(), bins: vec![] },
            HistogramRule {
                metric: String::new(),
                bins: vec![Bin::Below(0.5), Bin::Below(5.0), Bin::Infinite],
            },
        ],
        calculated: vec!["count".to_owned(), "upper_percent".to_owned()],
        delete_idle_counters: true,
        delete_idle_timers: true,
        delete_idle_sets: true,
        delete_idle_gauges: false,
        gauge_ttl: 3,
        ttl: Duration::ZERO,
        sanitise: false,
        prefix: "me".to_owned(),
        extra_metrics: false,
    };
    assert_eq!(settings.aggregation, expected);
    let graphite = &settings.backends.graphite[0];
    assert_eq!(graphite.global_suffix, "db1");
    assert_eq!((graphite.flush_counts, graphite.protocol), (false, GraphiteProtocol::Pickle));
    assert_eq!(settings.backends.repeater.len(), 2);
    assert_eq!(settings.backends.repeater[1].protocol, RepeaterProtocol::Tcp);
    assert_eq!(settings.backends.console, None, "not among the backends");
    assert_eq!(settings.key_flush.log.as_deref(), Some("/var/log/keys".as_ref()));
}

#[test]
fn server_list_is_read() {
    let config = "{ servers: [ { server: './servers/tcp', address: '::1', port: 9 },
        { server: './servers/tcp', socket: '/run/s', socket_mod: '0660' }, { port: 10 } ] }";
    let expected = [
        ListenSettings::tcp("[::1]:9".parse().unwrap()),
        ListenSettings::unix("/run/s".into(), Some(0o660)),
        ListenSettings::udp("0.0.0.0:10".parse().unwrap()),
    ];
    assert_eq!(read(config).unwrap().settings.listen, expected);
}

#[test]
fn nodes_key_configures_proxy() {
    let config = "{ nodes: [ { host: '127.0.0.1', port: 8127, adminport: 8128 },
        { host: 'two', port: 8129, adminport: 8130 } ], server: './servers/udp', host: '0.0.0.0',
        port: 8125, udp_version: 'udp4', mgmt_port: 8126,
        mgmt_address: '127.0.0.1', forkCount: 'auto', checkInterval: 1000 }";
    let read = read(config).unwrap();
    let proxy = read.settings.proxy.unwrap();
    assert_eq!((proxy.nodes[1].host.as_str(), proxy.nodes[1].admin_port), ("two", 8130));
    assert_eq!(proxy.check_interval, Duration::from_secs(1));
    assert!(read.settings.backends.graphite.is_empty());
    assert_eq!(read.warnings.len(), 1, "forkCount has no effect");
    assert_eq!(read.settings.listen, [ListenSettings::udp("0.0.0.0:8125".parse().unwrap())]);
}

#[test]
fn all_errors_are_reported_with_line_and_key() {
    let config = "{\n prot: 1,\n port: 70000,\n graphite: {\n  prefixSet: 1 },\n nodes: [] }";
    assert_eq!(
        read(config).unwrap_err(),
        "f:3: port: must be a port from 0 to 65535\n\
         f:5: graphite.prefixSet: must be a string\n\
         f:6: nodes: a proxy needs at least one node"
    );
}

#[test]
fn unknown_keys_and_backends_are_warnings() {
    let config = "{\n prot: 1,\n flushinterval: 2,\n batch: 200,\n graphite: {\n  globalPrefx: 1 },\n \
                  influxdb: { host: 'x' },\n mgmt_address: '127.0.0.1',\n \
                  servers: [{ port: 1, adress: 'y' }],\n \
                  backends: ['./backends/graphite', 'statsd-influxdb-backend'] }";
    let warned = read(config).unwrap();
    let messages: Vec<String> = warned.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "f:2: prot: unknown key, ignored (did you mean `port`?)",
            "f:3: flushinterval: unknown key, ignored (did you mean `flushInterval`?)",
            "f:4: batch: unknown key, ignored",
            "f:6: graphite.globalPrefx: unknown key, ignored (did you mean `globalPrefix`?)",
            "f:7: influxdb: unknown key, ignored",
            "f:9: servers.adress: unknown key, ignored (did you mean `address`?)",
            "f:10: backends: \"statsd-influxdb-backend\" is not supported and ignored: use \
             graphite, console, repeater or file, or more backends in a howdah.toml",
        ]
    );
    assert_eq!(warned.settings.backends.graphite.len(), 1);
    let none = read("{ mgmt_address: '::1', backends: ['mongo'] }").unwrap();
    assert_eq!(none.warnings.len(), 2);
    assert!(
        none.warnings[1].text.starts_with("none of these backends is supported"),
        "{:?}",
        none.warnings
    );
}

#[test]
fn expressions_are_evaluated() {
    let config =
        "{ port: process.env.STATSD_PORT || 8125, graphiteHost: process.env.GRAPHITE || 'y',
                    flushInterval: 1000 * 10 }";
    let variable = |name: &str| (name == "STATSD_PORT").then(|| "8130".to_owned());
    let settings =
        StatsdSettings::read_with(config, Path::new("f"), "host", &variable).unwrap().settings;
    assert_eq!(settings.listen, [ListenSettings::udp("0.0.0.0:8130".parse().unwrap())]);
    assert_eq!(settings.backends.graphite[0].host, "y");
    assert_eq!(settings.flush_interval, Duration::from_secs(10));
}

#[test]
fn file_is_watched_unless_it_says_otherwise() {
    let watched = |text: &str| read(text).unwrap().settings.reload_on_change;
    assert!(watched("{ port: 1 }"));
    assert!(watched("{ automaticConfigReload: true }"));
    assert!(!watched("{ automaticConfigReload: false }"));
    assert!(!watched("[statsd]"));
}

#[test]
fn howdah_toml_errors_name_line_and_key() {
    let toml = "[replay]\nrate = 2\n[statsd]\nflush-interval = '1s'\nflush-intervall = 1\n";
    let error = read(toml).unwrap_err();
    assert!(
        error.starts_with("f:5: flush-intervall: unknown key (did you mean `flush-interval`?)"),
        "{error}"
    );
    let settings = read("[statsd]\nflush-interval = '1s'").unwrap();
    assert_eq!(settings.format, SettingsFormat::Howdah);
    assert_eq!(settings.config_lines, ["flush-interval: 1s"]);
    assert!(read("[replay]\nrate = 2").unwrap_err().contains("no [statsd] section"));
    assert_eq!(
        read("[statsd.limits]\nkey-bytes = 100000").unwrap_err(),
        "f:2: limits.key-bytes: must be between 1 and 65535"
    );
}

#[test]
fn log_section_sets_level_and_syslog() {
    let log = |section: &str| read(&format!("{{ log: {section} }}")).map(|read| read.settings.log);
    let to_syslog = log("{ backend: 'syslog', level: 'LOG_NOTICE', application: 'stats' }");
    let expected =
        LogSettings { level: Some(StatsdLogLevel::Info), syslog: Some("stats".to_owned()) };
    assert_eq!(to_syslog.unwrap(), expected);
    assert_eq!(log("{ backend: 'syslog' }").unwrap().syslog.as_deref(), Some("statsd"));
    assert_eq!(log("{ backend: 'stdout', application: 'stats' }").unwrap(), LogSettings::default());
    let error = log("{ level: 'LOUD', backend: 'paper', colour: 1 }").unwrap_err();
    for key in ["log.level: ", "log.backend: "] {
        assert!(error.contains(key), "{error}");
    }
}
