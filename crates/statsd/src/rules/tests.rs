//! Rules applied to single keys.

use super::*;
use crate::settings::StatsdSettings;

/// Compiles `[[rules]]` and `[static-tags]`, which must be valid.
fn rules(text: &str) -> MetricRules {
    let settings: StatsdSettings = toml::from_str(text).unwrap();
    let (rules, problems) = MetricRules::compile(&settings.rules, &settings.static_tags);
    assert_eq!(problems, []);
    rules
}

/// Applies rules to `name;tag=value`; returns the key and the numbers of the rules.
fn applied(rules: &MetricRules, key: &str, kind: MetricType) -> (Option<String>, Vec<u16>) {
    let sent = MetricName::new(key);
    let result = rules.apply(&sent, kind);
    let text = result.key.map(|key| key.as_sent().key().to_owned());
    assert_eq!(result.changed, text.as_deref() != Some(key), "{key}");
    (text, result.matched)
}

fn counter(rules: &MetricRules, key: &str) -> Option<String> {
    applied(rules, key, MetricType::Counter).0
}

fn key(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn globs_match_parts_and_capture() {
    let rules = rules(
        r#"
        [[rules]]
        name = "debug.**"
        action = "drop"
        [[rules]]
        name = "web*.*.time"
        rename = "http.$2.${1}x$0"
        [[rules]]
        name = "a*b*c"
        rename = "$1-$2"
        "#,
    );
    assert_eq!(counter(&rules, "debug.a"), None);
    assert_eq!(counter(&rules, "debug.a.b.c;t=1"), None);
    assert_eq!(counter(&rules, "debug"), key("debug"));
    assert_eq!(counter(&rules, "debugger.a"), key("debugger.a"));
    assert_eq!(counter(&rules, "web01.login.time"), key("http.login.01xweb01.login.time"));
    assert_eq!(counter(&rules, "web.a.b.time"), key("web.a.b.time"));
    assert_eq!(counter(&rules, "web.login.times"), key("web.login.times"));
    assert_eq!(counter(&rules, "aXbYbZc"), key("X-YbZ"));
    assert_eq!(counter(&rules, "abc"), key("-"));
    assert_eq!(counter(&rules, "aXbYcd"), key("aXbYcd"));
    assert_eq!(counter(&rules, "abb.c"), key("abb.c"), "a wildcard does not match dots");
}

#[test]
fn regexes_types_and_tags_are_conditions() {
    let rules = rules(
        r#"
        [[rules]]
        name-regex = '^api\.(v\d+)\.(?:x\.)?(.*)$'
        rename = "api.$2"
        add-tags = { version = "$1" }
        [[rules]]
        type = "timer"
        tags = { env = "dev*", canary = "*" }
        action = "drop"
        "#,
    );
    assert_eq!(counter(&rules, "api.v2.x.hits;a=b"), key("api.hits;a=b;version=v2"));
    let tagged = "t;env=dev-3;canary";
    assert_eq!(applied(&rules, tagged, MetricType::Timer), (None, vec![1]));
    assert_eq!(counter(&rules, tagged), key(tagged));
    let other = applied(&rules, "t;env=prod;canary", MetricType::Timer);
    assert_eq!(other, (key("t;env=prod;canary"), vec![]));
    assert_eq!(applied(&rules, "t;env=dev", MetricType::Timer).0, key("t;env=dev"));
}

#[test]
fn tags_are_dropped_retained_and_set() {
    let rules = rules(
        r#"
        [[rules]]
        name = "a.*"
        drop-tags = ["host", "pod*"]
        [[rules]]
        name = "b.*"
        keep-tags = ["env", "z*"]
        add-tags = { env = "x", new = "$1" }
        [[rules]]
        name = "c.*"
        keep-tags = []
        "#,
    );
    assert_eq!(counter(&rules, "a.b;host=1;pod_id=2;env=e;pod"), key("a.b;env=e"));
    assert_eq!(counter(&rules, "b.n;host=1;env=e;zone=z;env=f"), key("b.n;env=x;zone=z;new=n"));
    assert_eq!(counter(&rules, "c.b;host=1;env=e"), key("c.b"));
    assert_eq!(counter(&rules, "d.b;host=1;host=2"), key("d.b;host=1;host=2"));
}

#[test]
fn each_rule_sees_the_result_of_earlier_ones_until_one_allows() {
    let rules = rules(
        r#"
        [[rules]]
        name = "old.*"
        rename = "new.$1"
        [[rules]]
        name = "new.important"
        action = "allow"
        add-tags = { tier = "1" }
        [[rules]]
        name = "new.*"
        action = "drop"
        [static-tags]
        env = "prod"
        tier = "3"
        "#,
    );
    let important = applied(&rules, "old.important", MetricType::Gauge);
    assert_eq!(important, (key("new.important;tier=1;env=prod"), vec![0, 1]));
    assert_eq!(applied(&rules, "old.x", MetricType::Gauge), (None, vec![0, 2]));
    // A tag that was sent takes precedence over a static one.
    assert_eq!(counter(&rules, "x;env=dev"), key("x;env=dev;tier=3"));
    assert_eq!(counter(&rules, "x;tier;env=dev"), key("x;tier;env=dev"));
}

#[test]
fn reserved_characters_stay_distinct() {
    let rules = rules("rules = [{ name = '*', add-tags = { 'k;=' = 'a;b=c;$1' } }]");
    let sent = MetricName::new("n");
    let result = rules.apply(&sent, MetricType::Set).key.unwrap();
    let tags = result.as_sent();
    let tags: Vec<_> = tags.tags().collect();
    assert_eq!(tags, [("k;=".into(), "a;b=c;n".into())]);
    // As in etsy's server, only the first semicolon of a tag is replaced.
    assert_eq!(result.graphite_text(), "n;k_==a;b=c;n");
}

#[test]
fn problems_name_rule_and_key() {
    for (text, key, part) in [
        ("name = 'a'", "", "does nothing"),
        ("name = ''\naction = 'drop'", "name", "must not be empty"),
        ("name = 'a.**.b'\naction = 'drop'", "name", "last part"),
        ("name = 'a;b'\naction = 'drop'", "name", "must not contain tags"),
        ("name-regex = '('\naction = 'drop'", "name-regex", "not a valid regular expression"),
        ("name = 'a'\nname-regex = 'a'\naction = 'drop'", "name-regex", "exclude each other"),
        ("name = 'a.*'\nrename = 'b.$2'", "rename", "$2 has nothing to refer to"),
        ("rename = 'b;c'", "rename", "must not be empty or contain ;"),
        ("add-tags = { '' = 'x' }", "add-tags", "must have a key"),
        ("add-tags = { a = '$1' }", "add-tags", "captures 0 texts"),
        ("action = 'drop'\ndrop-tags = ['x']", "action", "cannot change them"),
        ("id = 'a b'\naction = 'drop'", "id", "spaces"),
        ("id = 'rule-1'\naction = 'drop'", "id", "another rule"),
    ] {
        let text = format!("[[rules]]\naction = 'allow'\n[[rules]]\n{text}");
        let settings: StatsdSettings = toml::from_str(&text).unwrap();
        let (rules, problems) = MetricRules::compile(&settings.rules, &settings.static_tags);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((problem.rule, problem.key), (Some(1), key), "{text}");
        assert!(problem.text.contains(part), "{}", problem.text);
        assert_eq!(rules.iter().count(), 1);
    }
}
