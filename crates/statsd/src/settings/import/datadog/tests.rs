use super::*;
use crate::settings::{
    BackendSettings, StatsdLogLevel,
    import::{errors, read_and_convert, renamed, warnings},
};

const FILE: &str = r#"
## Basic settings of the agent
api_key: 0123456789abcdef0123456789abcdef
site: datadoghq.eu
hostname: web1.example.org
tags:
  - team:infra
env: production
apm_config:
  enabled: true

use_dogstatsd: true
dogstatsd_port: 8135
bind_host: 127.0.0.2
dogstatsd_socket: "unix:///var/run/datadog/dsd.socket"
dogstatsd_so_rcvbuf: 1048576
dogstatsd_buffer_size: 8192
dogstatsd_tags: ["cluster:eu1"]
dogstatsd_metric_stats_enable: true
dogstatsd_mapper_profiles:
  - name: jobs
    prefix: "jobs."
    mappings:
      - match: "jobs.*.duration.*"
        name: "jobs.duration"
        tags:
          job_type: "$1"
          job-name: "$2"
      - match: "jobs.v*.count"
        name: "jobs.count"
        tags: { version: "$1" }
      - match: 'jobs\.(\w+)\.(ok|failed)'
        match_type: regex
        name: "jobs.$2"
      - match: "other.*"
        name: "other"
statsd_metric_blocklist: [debug.noise]
histogram_aggregates: ["max", "median", "avg", "count"]
histogram_percentiles: ["0.95", "0.999"]
statsd_forward_host: 10.0.0.7
statsd_forward_port: 8125
log_level: warning
"#;

#[test]
fn keys_of_dogstatsd_are_converted() {
    let read = read_and_convert("datadog.yaml", FILE);
    let settings = &read.settings;
    assert_eq!(read.format, SettingsFormat::Datadog);
    assert_eq!(settings.dialect, StatsdDialect::Dogstatsd);
    assert_eq!(settings.management, None);
    let mut listen = [
        ListenSettings::udp("127.0.0.2:8135".parse().unwrap()),
        ListenSettings::unixgram("/var/run/datadog/dsd.socket".into(), Some(0o722)),
    ];
    set_buffer(&mut listen, 1_048_576);
    assert_eq!(settings.listen, listen);
    let rules = &settings.aggregation;
    assert_eq!(rules.percentiles, [95.0, 99.9]);
    assert_eq!(
        rules.calculated,
        ["upper", "median", "mean", "count", "upper_percent", "upper_99_9"]
    );
    assert!(rules.delete_idle_gauges && rules.delete_idle_timers && rules.delete_idle_sets);
    assert!(!rules.delete_idle_counters);
    let repeater =
        RepeaterSettings { host: "10.0.0.7".into(), port: 8125, protocol: RepeaterProtocol::Udp4 };
    let backends = BackendSettings { repeater: vec![repeater], ..BackendSettings::default() };
    assert_eq!(settings.backends, backends);
    assert_eq!(settings.log.level, Some(StatsdLogLevel::Warn));
    let tags = [("cluster", "eu1"), ("env", "production"), ("team", "infra")];
    let tags = tags.map(|(tag, value)| (tag.to_owned(), value.to_owned()));
    assert_eq!(settings.static_tags, tags.into());
}

#[test]
fn keys_without_equivalent_are_warnings_without_secrets() {
    let read = read_and_convert("datadog.yaml", FILE);
    let warnings = warnings(&read);
    let expected = [
        "datadog.yaml:3: nothing is sent to Datadog, and the file has no other backend",
        "datadog.yaml:5: keys of the agent's other parts are ignored: hostname, apm_config",
        "datadog.yaml:17: dogstatsd_buffer_size: not needed",
        "datadog.yaml:19: dogstatsd_metric_stats_enable: unknown key, ignored (did you mean \
         `dogstatsd_metrics_stats_enable`?)",
    ];
    for text in expected {
        let is_there = warnings.iter().any(|warning| warning.starts_with(text));
        assert!(is_there, "{text} in {warnings:#?}");
    }
    let all = warnings.join("\n") + &read.config_lines.join("\n");
    assert!(!all.contains("0123456789abcdef"), "{all}");
    assert!(all.contains("its names do not start with the profile's prefix \"jobs.\""), "{all}");
}

#[test]
fn rules_for_names_are_converted() {
    let expected = [
        ("jobs.mail.duration.weekly", Some("jobs.duration;job-name=weekly;job_type=mail")),
        ("jobs.v12.count", Some("jobs.count;version=12")),
        ("jobs.mail.failed", Some("jobs.failed")),
        ("xjobs.mail.failed", Some("xjobs.mail.failed")),
        ("jobs.v1.2.count", Some("jobs.v1.2.count")),
        ("debug.noise", None),
        ("debug.noise2", Some("debug.noise2")),
        ("other.x", Some("other.x")),
    ];
    for (name, renames) in expected {
        let expected = renames.map(|name| format!("{name};cluster=eu1;env=production;team=infra"));
        assert_eq!(renamed(FILE, name), expected, "{name}");
    }
}

#[test]
fn wildcards_match_as_in_the_agent() {
    let file = "dogstatsd_mapper_profiles:\n- prefix: job\n  mappings:\n\
                \x20 - {match: 'job_*_*.time', name: job, tags: {a: $1, b: $2}}\n\
                \x20 - {match: 'job.(a)|job.(b)', match_type: regex, name: x}\n\
                \x20 - {match: 'job.(?P<n>.*)', match_type: regex, name: 'y.$n'}\n";
    assert_eq!(renamed(file, "job_a_b_c.time").as_deref(), Some("job;a=a_b;b=c"));
    let read = read_and_convert("datadog.yaml", file);
    assert_eq!(read.settings.rules.len(), 1);
    let all = warnings(&read).join("\n");
    assert!(
        all.contains(
            "datadog.yaml:5: dogstatsd_mapper_profiles: rule not converted: it has alternatives"
        ),
        "{all}"
    );
    assert!(all.contains("\"y.$n\" refers to a group by name"), "{all}");
}

#[test]
fn namespace_is_added_before_names_are_blocked() {
    let file = "statsd_metric_namespace: shop\nstatsd_metric_blocklist: [shop.debug, jvm.x, raw]\n\
                statsd_metric_blocklist_match_prefix: true\ndogstatsd_mapper_profiles:\n\
                - prefix: '*'\n  mappings:\n\
                \x20 - {match: 'web.*', name: web, tags: {host: $1}}\n\
                \x20 - {match: 'noise.*', name: debug.all}\n";
    let expected = [
        ("a.b", Some("shop.a.b")),
        ("web.7", Some("shop.web;host=7")),
        ("noise.7", None),
        ("debug", None),
        ("debug.x", None),
        ("jvm.x.y", None),
        ("jvm.heap", Some("jvm.heap")),
        ("raw", Some("shop.raw")),
    ];
    for (name, renames) in expected {
        assert_eq!(renamed(file, name).as_deref(), renames, "{name}");
    }
    let file = "statsd_metric_namespace: shop\nstatsd_metric_blocklist: [shop.kaf, jv]\n\
                statsd_metric_blocklist_match_prefix: true\nmetric_filterlist: [shop.a]\n";
    let expected = [
        ("kafx", None),
        ("kafka.x", Some("kafka.x")),
        ("jvm.heap", None),
        ("jv", Some("shop.jv")),
        ("a", None),
        ("a.b", Some("shop.a.b")),
    ];
    for (name, renames) in expected {
        assert_eq!(renamed(file, name).as_deref(), renames, "{name}");
    }
    let file = "statsd_metric_namespace: 'shop.'\nstatsd_metric_namespace_blacklist: [api]\n\
                statsd_metric_blocklist: [sh]\nstatsd_metric_blocklist_match_prefix: true\n";
    assert_eq!(renamed(file, "a"), None);
    assert_eq!(renamed(file, "api.x").as_deref(), Some("api.x"));
    let file = "statsd_metric_namespace: 'shop.'\nstatsd_metric_namespace_blacklist: [api]\n";
    assert_eq!(renamed(file, "api.x").as_deref(), Some("api.x"));
    assert_eq!(renamed(file, "jvm.x").as_deref(), Some("shop.jvm.x"));
}

#[test]
fn defaults_are_those_of_the_agent() {
    let settings = read_and_convert("datadog.yaml", "").settings;
    assert_eq!(settings.listen, [ListenSettings::udp("127.0.0.1:8125".parse().unwrap())]);
    assert_eq!(settings.aggregation.percentiles, [95.0]);
    let text = "dogstatsd_non_local_traffic: yes\nbind_host: 10.1.1.1";
    let settings = read_and_convert("d.yaml", text).settings;
    assert_eq!(settings.listen, [ListenSettings::udp("0.0.0.0:8125".parse().unwrap())]);
}

#[test]
fn errors_name_line_and_key() {
    let text = "dogstatsd_port: 70000\nhistogram_percentiles: [95]\nbind_host: web1\n\
                statsd_forward_host: x\nhistogram_aggregates: [p95]\n";
    assert_eq!(
        errors("datadog.yaml", text),
        "datadog.yaml:1: dogstatsd_port: 70000 is not a valid number here\n\
         datadog.yaml:2: histogram_percentiles: \"95\" is not between 0 and 1\n\
         datadog.yaml:3: bind_host: \"web1\" is not an IP address\n\
         datadog.yaml:4: statsd_forward_host: needs statsd_forward_port, too\n\
         datadog.yaml:5: histogram_aggregates: \"p95\" is not max, min, median, avg, count or sum"
    );
    let alias = errors("datadog.yaml", "tags: &a [b]\ndogstatsd_tags: *a");
    assert!(alias.contains("datadog.yaml:2: aliases are not supported"), "{alias}");
    assert!(errors("datadog.yaml", "dogstatsd_port: 0").contains("at least one listener"));
}
