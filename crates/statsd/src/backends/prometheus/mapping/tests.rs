//! The examples of statsd_exporter's manual, and invalid files.

use super::*;

fn mapping(text: &str) -> NameMapping {
    NameMapping::parse(text, &settings::PrometheusSettings::default()).unwrap()
}

fn mapped(mapping: &NameMapping, name: &str, kind: MatchMetricType) -> Option<(String, String)> {
    match mapping.map_name(name, kind) {
        MappingResult::Mapped(mapped) => {
            let labels = mapped.labels.iter().map(|(name, value)| format!("{name}={value}"));
            Some((mapped.name.clone(), labels.collect::<Vec<_>>().join(",")))
        }
        MappingResult::Drop => Some(("(drop)".to_owned(), String::new())),
        MappingResult::NoRule => None,
    }
}

fn expected(name: &str, labels: &str) -> Option<(String, String)> {
    Some((name.to_owned(), labels.to_owned()))
}

#[test]
fn globs_capture_name_parts() {
    let rules = mapping(
        r#"
mappings:
- match: "test.dispatcher.*.*.*"
  name: "dispatcher_events_total"
  labels:
    processor: "$1"
    action: "$2"
    outcome: "$3"
    job: "test_dispatcher"
- match: "*.signup.*.*"
  name: "signup_${2}_total"
  labels:
    outcome: "$3"
    job: "${1}_server"
"#,
    );
    let counter = |name| mapped(&rules, name, MatchMetricType::Counter);
    assert_eq!(
        counter("test.dispatcher.Foo.send.success"),
        expected(
            "dispatcher_events_total",
            "processor=Foo,action=send,outcome=success,job=test_dispatcher"
        )
    );
    assert_eq!(
        counter("foo_product.signup.facebook.failure"),
        expected("signup_facebook_total", "outcome=failure,job=foo_product_server")
    );
    assert_eq!(counter("test.web-server.foo.bar"), None);
    assert_eq!(counter("test.dispatcher.a.b"), None);
}

#[test]
fn first_or_most_specific_glob_wins() {
    let rules = "
- { match: 'a.*.c', name: star }
- { match: 'a.b.*', name: exact }
- { match: '*.b.c', name: last }
";
    let ordered = mapping(&format!("mappings:{rules}"));
    assert_eq!(mapped(&ordered, "a.b.c", MatchMetricType::Gauge), expected("star", ""));
    let specific = format!("defaults: {{ glob_disable_ordering: true }}\nmappings:{rules}");
    assert_eq!(mapped(&mapping(&specific), "a.b.c", MatchMetricType::Gauge), expected("exact", ""));
}

#[test]
fn regexes_apply_after_globs_and_can_drop() {
    let rules = mapping(
        r#"
mappings:
- match: "test\\.(\\w+)\\.(\\w+)\\.counter"
  match_type: regex
  name: "${2}_total"
  labels: { provider: "$1", all: "$0" }
- match: "."
  match_type: regex
  action: drop
  name: "dropped"
- match: test.x.y.counter
  name: glob
"#,
    );
    let counter = |name| mapped(&rules, name, MatchMetricType::Counter);
    assert_eq!(counter("test.a.b.counter"), expected("b_total", "provider=a,all=test.a.b.counter"));
    assert_eq!(counter("test.x.y.counter"), expected("glob", ""));
    assert_eq!(counter("else"), expected("(drop)", ""));
}

#[test]
fn rule_options_override_defaults() {
    let rules = mapping(
        r"
defaults:
  observer_type: histogram
  ttl: 1m20s
  histogram_options: { buckets: [1, 2] }
mappings:
- match: a
  name: a
  match_metric_type: observer
  scale: 1e-3
  ttl: 0
  help: About a
  honor_labels: true
  observer_type: summary
  summary_options:
    quantiles: [{ quantile: 0.99, error: 0.001 }]
    max_age: 30s
    age_buckets: 3
- { match: b, name: b }
",
    );
    assert_eq!(rules.map_name("a", MatchMetricType::Counter), MappingResult::NoRule);
    let MappingResult::Mapped(a) = rules.map_name("a", MatchMetricType::Observer) else { panic!() };
    assert_eq!((a.scale, a.ttl, a.honor_labels), (0.001, Some(Duration::ZERO), true));
    assert_eq!(a.help.as_deref(), Some("About a"));
    assert_eq!(
        (a.observing.observer, &a.observing.quantiles[..]),
        (ObserverType::Summary, &[0.99][..])
    );
    assert_eq!(a.observing.quantile_age, Duration::from_secs(30));
    let MappingResult::Mapped(b) = rules.map_name("b", MatchMetricType::Observer) else { panic!() };
    assert_eq!(
        (b.observing.observer, &b.observing.buckets[..]),
        (ObserverType::Histogram, &[1.0, 2.0][..])
    );
    assert_eq!(b.ttl, Some(Duration::from_secs(80)));
}

#[test]
fn errors_name_their_line() {
    for (text, line, message) in [
        ("mappings:\n- match: a\n", 2, "the mapping lacks the required key \"name\""),
        ("mappings:\n- name: a\n", 2, "the mapping lacks the required key \"match\""),
        ("mappings:\n- match: a\n  nmae: b\n", 3, "unknown key \"nmae\""),
        ("mappings: 5", 1, "mappings must be a list"),
        (
            "mappings:\n- match: '('\n  match_type: regex\n  name: a\n",
            2,
            "\"(\" is not a valid regular",
        ),
        ("mappings:\n- match: a\n  name: a\n  ttl: soon\n", 4, "ttl must be a duration"),
        ("defaults:\n  histogram_options:\n    buckets: [2, 1]\n", 3, "buckets must be a list"),
        ("mapings: []", 1, "unknown key \"mapings\""),
    ] {
        let (at, problem) =
            NameMapping::parse(text, &settings::PrometheusSettings::default()).unwrap_err();
        assert!(problem.to_string().starts_with(message), "{problem}");
        assert_eq!(at, line, "{text}");
    }
}

#[test]
fn templates_preserve_other_dollar_signs() {
    let capture = |at| (at == 1).then_some("one");
    assert_eq!(expand("$1-${1}x$2.$$ ${a} $", &capture), "one-onex.$$ ${a} $");
}
