//! The examples of statsd_exporter's manual, and files that are wrong.

use super::*;

fn mapping(text: &str) -> Mapping {
    Mapping::parse(text, &settings::Prometheus::default()).unwrap()
}

fn mapped(mapping: &Mapping, name: &str, kind: Kind) -> Option<(String, String)> {
    match mapping.look_up(name, kind) {
        Lookup::Mapped(mapped) => {
            let labels = mapped.labels.iter().map(|(name, value)| format!("{name}={value}"));
            Some((mapped.name.clone(), labels.collect::<Vec<_>>().join(",")))
        }
        Lookup::Drop => Some(("(drop)".to_owned(), String::new())),
        Lookup::NoRule => None,
    }
}

fn is(name: &str, labels: &str) -> Option<(String, String)> {
    Some((name.to_owned(), labels.to_owned()))
}

#[test]
fn globs_capture_what_lies_between_points() {
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
    let counter = |name| mapped(&rules, name, Kind::Counter);
    assert_eq!(
        counter("test.dispatcher.Foo.send.success"),
        is(
            "dispatcher_events_total",
            "processor=Foo,action=send,outcome=success,job=test_dispatcher"
        )
    );
    assert_eq!(
        counter("foo_product.signup.facebook.failure"),
        is("signup_facebook_total", "outcome=failure,job=foo_product_server")
    );
    assert_eq!(counter("test.web-server.foo.bar"), None);
    assert_eq!(counter("test.dispatcher.a.b"), None);
}

#[test]
fn order_decides_or_else_what_is_most_specific() {
    let rules = "
- { match: 'a.*.c', name: star }
- { match: 'a.b.*', name: exact }
- { match: '*.b.c', name: last }
";
    let ordered = mapping(&format!("mappings:{rules}"));
    assert_eq!(mapped(&ordered, "a.b.c", Kind::Gauge), is("star", ""));
    let specific = format!("defaults: {{ glob_disable_ordering: true }}\nmappings:{rules}");
    assert_eq!(mapped(&mapping(&specific), "a.b.c", Kind::Gauge), is("exact", ""));
}

#[test]
fn regular_expressions_come_after_globs_and_drop_what_they_say() {
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
    let counter = |name| mapped(&rules, name, Kind::Counter);
    assert_eq!(counter("test.a.b.counter"), is("b_total", "provider=a,all=test.a.b.counter"));
    assert_eq!(counter("test.x.y.counter"), is("glob", ""));
    assert_eq!(counter("else"), is("(drop)", ""));
}

#[test]
fn options_of_a_rule_stand_above_the_defaults() {
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
    assert_eq!(rules.look_up("a", Kind::Counter), Lookup::NoRule);
    let Lookup::Mapped(a) = rules.look_up("a", Kind::Observer) else { panic!() };
    assert_eq!((a.scale, a.ttl, a.honor_labels), (0.001, Some(Duration::ZERO), true));
    assert_eq!(a.help.as_deref(), Some("About a"));
    assert_eq!(
        (a.observing.observer, &a.observing.quantiles[..]),
        (Observer::Summary, &[0.99][..])
    );
    assert_eq!(a.observing.quantile_age, Duration::from_secs(30));
    let Lookup::Mapped(b) = rules.look_up("b", Kind::Observer) else { panic!() };
    assert_eq!(
        (b.observing.observer, &b.observing.buckets[..]),
        (Observer::Histogram, &[1.0, 2.0][..])
    );
    assert_eq!(b.ttl, Some(Duration::from_secs(80)));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, line, said) in [
        ("mappings:\n- match: a\n", 2, "a mapping needs name"),
        ("mappings:\n- name: a\n", 2, "a mapping needs match"),
        ("mappings:\n- match: a\n  nmae: b\n", 3, "unknown key \"nmae\""),
        ("mappings: 5", 1, "mappings has to be a list"),
        ("mappings:\n- match: '('\n  match_type: regex\n  name: a\n", 2, "\"(\" is no regular"),
        ("mappings:\n- match: a\n  name: a\n  ttl: soon\n", 4, "ttl has to be a duration"),
        ("defaults:\n  histogram_options:\n    buckets: [2, 1]\n", 3, "buckets has to be a list"),
        ("mapings: []", 1, "unknown key \"mapings\""),
    ] {
        let (at, problem) = Mapping::parse(text, &settings::Prometheus::default()).unwrap_err();
        assert!(problem.to_string().starts_with(said), "{problem}");
        assert_eq!(at, line, "{text}");
    }
}

#[test]
fn templates_keep_what_is_no_reference() {
    let capture = |at| (at == 1).then_some("one");
    assert_eq!(expand("$1-${1}x$2.$$ ${a} $", &capture), "one-onex.$$ ${a} $");
}
