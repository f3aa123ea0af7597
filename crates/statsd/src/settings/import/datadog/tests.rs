use super::*;
use crate::{
    backends::map_counter_name,
    settings::{
        BackendSettings, PrometheusSettings, StatsdLogLevel,
        import::{errors, read_and_convert, warnings},
    },
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
}

#[test]
fn keys_without_equivalent_are_warnings_without_secrets() {
    let read = read_and_convert("datadog.yaml", FILE);
    let warnings = warnings(&read);
    let expected = [
        "datadog.yaml:3: nothing is sent to Datadog, and the file has no other backend",
        "datadog.yaml:5: keys of the agent's other parts are ignored: hostname, env, apm_config",
        "datadog.yaml:7: tags: not added to metrics",
        "datadog.yaml:17: dogstatsd_buffer_size: not needed",
        "datadog.yaml:18: dogstatsd_tags: not added to metrics",
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
fn rules_for_names_become_a_mapping_file() {
    let mapping = read_and_convert("datadog.yaml", FILE).mapping.expect("rules");
    let settings = PrometheusSettings::default();
    let map = |name: &str| map_counter_name(&mapping, &settings, name).expect(&mapping);
    let mapped = |text: &str| Some(text.to_owned());
    assert_eq!(
        map("jobs.mail.duration.weekly"),
        mapped("jobs_duration{job_type=\"mail\",job_name=\"weekly\"}")
    );
    assert_eq!(map("jobs.v12.count"), mapped("jobs_count{version=\"12\"}"));
    assert_eq!(map("jobs.mail.failed"), mapped("jobs_failed{}"));
    assert_eq!(map("jobs.v1.2.count"), mapped("jobs.v1.2.count"));
    assert_eq!(map("debug.noise"), None);
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
