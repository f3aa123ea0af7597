use std::time::Duration;

use super::*;
use crate::settings::{
    StatsdLogLevel,
    import::{errors, read_and_convert, warnings},
};

const FILE: &str = r#"
; statsite of the shop
[statsite]
tcp_port = 8126
udp_port = 8125
udp_rcvbuf = 4194304
bind_address = 10.0.0.1
log_level = INFO
log_facility = local0
flush_interval = 5 ; seconds
timer_eps = 0.01
set_eps = 0.02
quantiles = 0.5,0.9,0.999
timers_include = MEAN,UPPER,rate
stream_cmd = python /usr/libexec/statsite/sinks/graphite.py graphite.example.org 2013 shop
use_type_prefix = 1
global_prefix = web.
counts_prefix = c.
pid_file = /var/run/statsite.pid
daemonize = 1
flush_intervall = 3

[histogram_api]
prefix = api
min = 0
max = 100
width = 40

[histogram_slow]
prefix = api.slow
min = 0
max = 1
width = 0.5
"#;

#[test]
fn keys_histograms_and_graphite_sink_are_converted() {
    let read = read_and_convert("statsite.conf", FILE);
    let settings = &read.settings;
    assert_eq!(read.format, SettingsFormat::Statsite);
    let mut listen = [
        ListenSettings::udp("10.0.0.1:8125".parse().unwrap()),
        ListenSettings::tcp("10.0.0.1:8126".parse().unwrap()),
    ];
    set_buffer(&mut listen, 4_194_304);
    assert_eq!(settings.listen, listen);
    assert_eq!(settings.flush_interval, Duration::from_secs(5));
    assert_eq!(settings.log.level, Some(StatsdLogLevel::Info));
    let rules = &settings.aggregation;
    assert_eq!(rules.percentiles, [50.0, 90.0, 99.9]);
    assert!(rules.delete_idle_gauges && rules.delete_idle_counters);
    assert_eq!(rules.calculated, ["mean", "upper", "upper_percent", "upper_99_9", "histogram"]);
    let rule = |metric: &str, bounds: &[f64]| HistogramRule {
        metric: metric.to_owned(),
        bins: bounds.iter().copied().map(Bin::Below).chain([Bin::Infinite]).collect(),
    };
    let expected = [rule("api.slow", &[0.0, 0.5, 1.0]), rule("api", &[0.0, 40.0, 80.0, 100.0])];
    assert_eq!(rules.histogram, expected, "the longest prefix is first");
    let graphite = GraphiteSettings {
        host: "graphite.example.org".into(),
        port: 2013,
        legacy_namespace: false,
        global_prefix: "shop".into(),
        prefix_counter: "web.c".into(),
        prefix_timer: "web.timers".into(),
        prefix_gauge: "web.gauges".into(),
        prefix_set: "web.sets".into(),
        ..GraphiteSettings::default()
    };
    assert_eq!(settings.backends.graphite, [graphite]);
    assert_eq!(
        warnings(&read),
        [
            "statsite.conf:9: log_facility: not supported: set `log.syslog` to log to syslog",
            "statsite.conf:19: pid_file: not supported: a service manager such as systemd knows \
             the process",
            "statsite.conf:20: daemonize: not supported: let a service manager such as systemd \
             run the server",
            "statsite.conf:21: flush_intervall: unknown key, ignored (did you mean \
             `flush_interval`?)",
        ]
    );
}

#[test]
fn defaults_are_those_of_statsite() {
    let settings = read_and_convert("s", "[statsite]\nport = 0\n").settings;
    assert_eq!(settings.listen, [ListenSettings::udp("0.0.0.0:8125".parse().unwrap())]);
    assert!(settings.backends.console.is_some(), "its command is cat");
    assert_eq!(settings.aggregation.percentiles, [50.0, 95.0, 99.0]);
    let read = read_and_convert("s", "[Statsite]\nSTREAM_CMD = /usr/bin/sink --fast\n");
    assert!(warnings(&read)[0].starts_with("s:2: stream_cmd: not supported, except"));
}

#[test]
fn errors_name_line_and_key() {
    let text = "[statsite]\nport = x\nudp_port = 70000\nquantiles = 95\nstream_cmd = graphite.py h p\n\
                [histogram1]\nprefix = a\nmin = 1\nmax = 1\nwidth = 1\n\
                [histogram2]\nprefix = a\nmin = 0\nmax = 1e9\nwidth = 1\n";
    assert_eq!(
        errors("s.ini", text),
        "s.ini:2: port: \"x\" is not a number\n\
         s.ini:3: udp_port: 70000 is not a valid number here\n\
         s.ini:4: quantiles: \"95\" is not between 0 and 1\n\
         s.ini:5: stream_cmd: \"p\" is not a port\n\
         s.ini:6: histogram1: min must be less than max, and width above 0\n\
         s.ini:11: histogram2: has more than 1024 bins: choose a greater width"
    );
    assert_eq!(
        errors("s.ini", "[statsite]\nnonsense\n"),
        "s.ini:2: must be [section], key = value or a comment"
    );
}
