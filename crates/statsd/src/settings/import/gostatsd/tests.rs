use super::*;
use crate::settings::import::{errors, read_and_convert, renamed, warnings};

const FILE: &str = r#"
metrics-addr = ":8135"
max-readers = 4
conn-per-reader = true
flush-interval = "10s"
flush-aligned = true
backends = "graphite influxdb stdout statsdaemon datadog"
percent-threshold = "50 99.9 -10"
expiry-interval = "1m"
expiry-interval-set = "-1"
namespace = "shop"
log-raw-metric = true
default-tags = "region:eu"
filters = ["pods", "noise", "others", "missing"]
flush-intervall = "2s"

[graphite]
address = "graphite.example.org:2013"
mode = "basic"
global_prefix = "gsd."
prefix_timer = "times"
write_timeout = "10s"

[influxdb]
api-endpoint = "https://influx.example.org:8086/"
org = "ops & more"
bucket = "stats"
credentials = "s3cret"

[statsdaemon]
address = "aggregator:8125"
tcp_transport = true

[datadog]
api_key = "s3cret"

[filter.noise]
match-metrics = ["shop.debug.*", "regex:tmp[0-9]$"]
drop-metric = true

[filter.pods]
match-tags = ["kind:batch*", "once"]
drop-tags = ["pod:*", "x_*"]
drop-host = true

[filter.others]
match-metrics = ["!a"]
drop-metric = true

[disabled-sub-metrics]
stddev = true
sum-squares = true
sum-squares-pct = true
"#;

#[test]
fn keys_and_backends_are_converted() {
    let read = read_and_convert("gostatsd.toml", FILE);
    let settings = &read.settings;
    assert_eq!(read.format, SettingsFormat::Gostatsd);
    let listen = ListenSettings::Udp {
        address: "0.0.0.0:8135".parse().unwrap(),
        readers: 4,
        buffer_bytes: 32 << 20,
        allow: Vec::new(),
    };
    assert_eq!(settings.listen, [listen]);
    assert_eq!(settings.flush_interval, Duration::from_secs(10));
    assert!(settings.dump_messages);
    let rules = &settings.aggregation;
    assert_eq!(rules.percentiles, [50.0, 99.9, -10.0]);
    assert!(rules.delete_idle_sets && rules.delete_idle_gauges && !rules.delete_idle_counters);
    assert_eq!(rules.gauge_ttl, 6);
    assert!(!rules.calculated.iter().any(|name| name == "std" || name.starts_with("sum_squares")));
    for name in ["count_ps", "upper_percent", "upper_99_9", "mean_percent", "histogram"] {
        assert!(rules.calculated.iter().any(|known| known == name), "{name}");
    }
    let backends = &settings.backends;
    let graphite = GraphiteSettings {
        host: "graphite.example.org".into(),
        port: 2013,
        legacy_namespace: false,
        global_prefix: "gsd".into(),
        prefix_counter: "counters".into(),
        prefix_timer: "times".into(),
        prefix_gauge: "gauges".into(),
        prefix_set: "sets".into(),
        ..GraphiteSettings::default()
    };
    assert_eq!(backends.graphite, [graphite]);
    let url = "https://influx.example.org:8086/api/v2/write?org=ops%20%26%20more&bucket=stats";
    assert_eq!(backends.influx, [InfluxSettings::new(url.to_owned())]);
    let (host, protocol) = ("aggregator".to_owned(), RepeaterProtocol::Tcp);
    assert_eq!(backends.repeater, [RepeaterSettings { host, port: 8125, protocol }]);
    assert!(backends.console.is_some());
    assert_eq!(settings.static_tags, [("region".to_owned(), "eu".to_owned())].into());
}

#[test]
fn keys_without_equivalent_are_warnings_without_secrets() {
    let warnings = warnings(&read_and_convert("gostatsd.toml", FILE));
    let expected = [
        "gostatsd.toml:6: flush-aligned: not supported",
        "gostatsd.toml:9: expiry-interval: idle counters, sets and timers are sent as 0",
        "gostatsd.toml:14: filters: there is no section [filter.missing]",
        "gostatsd.toml:15: flush-intervall: unknown key, ignored (did you mean `flush-interval`?)",
        "gostatsd.toml:17: graphite.mode: tags are sent, not dropped",
        "gostatsd.toml:22: graphite.write_timeout: not needed",
        "gostatsd.toml:28: influxdb.credentials: write the token to a file",
        "gostatsd.toml:30: statsdaemon: packets are forwarded as they arrive",
        "gostatsd.toml:34: datadog: this backend is not supported",
        "gostatsd.toml:46: filter.others: not converted: \"!a\" is inverted",
    ];
    for text in expected {
        let is_there = warnings.iter().any(|warning| warning.starts_with(text));
        assert!(is_there, "{text} in {warnings:#?}");
    }
    assert!(!warnings.join("\n").contains("s3cret"), "{warnings:#?}");
}

#[test]
fn namespace_and_filters_become_rules() {
    let text = format!("{FILE}\n[filter.missing]\nexclude-metrics = ['shop.a']\ndrop-tags = 'b:*'");
    for (name, expected) in [
        ("a;b=1", Some("shop.a;b=1;region=eu")),
        ("c;b=1", Some("shop.c;region=eu")),
        ("debug.x", None),
        ("a.tmp7", None),
        ("a.tmp7.b", Some("shop.a.tmp7.b;region=eu")),
        ("x;pod=1;kind=batch7;x_y=2", Some("shop.x;kind=batch7;region=eu")),
        ("x;pod=1;once", Some("shop.x;once;region=eu")),
        ("x;pod=1;kind=web", Some("shop.x;pod=1;kind=web;region=eu")),
    ] {
        assert_eq!(renamed(&text, name).as_deref(), expected, "{name}");
    }
}

#[test]
fn yaml_and_json_are_read_as_toml() {
    let yaml = "metrics-addr: /run/gostatsd.sock\nbackends: [otlp]\notlp:\n  \
                metrics_endpoint: http://collector:4318/v1/metrics\n";
    let json = "{ \"metrics-addr\": \"/run/gostatsd.sock\", \"backends\": [\"otlp\"],\n \
                \"otlp\": { \"metrics_endpoint\": \"http://collector:4318/v1/metrics\" } }";
    for text in [yaml, json] {
        let settings = read_and_convert("gostatsd", text).settings;
        assert_eq!(settings.listen, [ListenSettings::unixgram("/run/gostatsd.sock".into(), None)]);
        let otlp = OtlpSettings::new("http://collector:4318/v1/metrics".to_owned());
        assert_eq!(settings.backends.otlp, [otlp]);
    }
}

#[test]
fn defaults_are_those_of_gostatsd() {
    let settings = read_and_convert("g.toml", "max-parsers = 2\n").settings;
    assert_eq!(settings.flush_interval, Duration::from_secs(1));
    assert_eq!(settings.backends.graphite[0].host, "localhost");
    assert!(!settings.backends.graphite[0].legacy_namespace);
    assert_eq!(settings.aggregation.gauge_ttl, 300);
    assert!(settings.aggregation.delete_idle_gauges);
}

#[test]
fn errors_name_line_and_key() {
    let text = "flush-interval = \"10\"\nmetrics-addr = \"x\"\nbackends = \"influxdb\"\n";
    assert_eq!(
        errors("g.toml", text),
        "g.toml:1: flush-interval: \"10\" is not a duration such as 1m20s\n\
         g.toml:2: metrics-addr: \"x\" is not an address: write IP:PORT\n\
         g.toml:3: influxdb: lacks api-endpoint"
    );
}
