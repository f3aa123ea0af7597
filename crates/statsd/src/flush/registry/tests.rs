//! Rules for received metrics, from the shard to the snapshot.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use regex_lite::Regex;

use super::*;
use crate::{
    aggregate::MetricType,
    flush::TimerSamples,
    settings::{RuleAction, RuleSettings},
};

const START: SystemTime = SystemTime::UNIX_EPOCH;

/// A registry with two shards and rules.
struct RuledRegistry {
    registry: KeyRegistry,
    shards: [SharedShard; 2],
    settings: StatsdSettings,
    seconds: u64,
}

impl RuledRegistry {
    fn new(settings: &str) -> Self {
        Self::with(toml::from_str(settings).unwrap())
    }

    fn with(settings: StatsdSettings) -> Self {
        let needs = SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::default() };
        let mut registry = KeyRegistry::new(&settings, needs, START);
        let shards = [registry.shard(), registry.shard()];
        Self { registry, shards, settings, seconds: 1_000_000 }
    }

    fn send(&self, shard: usize, packet: &str) {
        self.shards[shard].lock().apply_packet(packet.as_bytes());
    }

    fn now(&self) -> SystemTime {
        START + Duration::from_secs(self.seconds)
    }

    fn flush(&mut self) -> FlushSnapshot {
        self.seconds += 10;
        let time = FlushTime { now: self.now(), lag: Duration::ZERO };
        self.registry.flush(time, LossAccount::default())
    }

    fn reload(&mut self, rules: &str) {
        self.settings = toml::from_str(rules).unwrap();
        self.registry.reload(&self.settings, self.now());
    }

    /// Returns the dropped and changed samples, the keys and the examples of each rule.
    fn tallies(&self) -> Vec<(String, u64, u64, u64, String)> {
        let tallies = self.registry.key_rules.tallies().into_iter();
        let row = tallies.map(|tally| {
            let examples: Vec<_> = tally.examples.into_iter().collect();
            (tally.id.to_string(), tally.dropped, tally.changed, tally.keys, examples.join(" "))
        });
        row.collect()
    }
}

/// Returns the received counters, by key.
fn counters(snapshot: &FlushSnapshot) -> Vec<(String, f64, f64)> {
    let received = snapshot.counters.iter().filter(|it| !it.name.key().starts_with("statsd."));
    received.map(|it| (it.name.key().to_owned(), it.value, it.total)).collect()
}

fn counter(key: &str, value: f64, total: f64) -> (String, f64, f64) {
    (key.to_owned(), value, total)
}

fn gauges(snapshot: &FlushSnapshot) -> Vec<(&str, f64)> {
    let gauges = snapshot.gauges.iter().map(|gauge| (gauge.name.key(), gauge.value));
    gauges.filter(|(key, _)| !key.contains("timestamp_lag")).collect()
}

const DROP_PODS: &str = "
    [[rules]]
    drop-tags = ['pod']
    [[rules]]
    id = 'debug'
    name = 'debug.**'
    action = 'drop'
";

#[test]
fn keys_that_become_equal_are_merged() {
    let mut server = RuledRegistry::new(DROP_PODS);
    server.send(0, "c:1|c|#pod:a\nc:2|c|#pod:b\nt:5|ms|#pod:a\nt:3|ms|@0.5|#pod:b\ns:x|s|#pod:a");
    server.send(1, "c:4|c|#pod:c\nc:8|c\nt:1|ms|#pod:a\ns:x|s|#pod:b\ns:y|s|#pod:c\nc:1|c|#env:e");
    // All in one packet: the last value wins, also if its key was used before.
    server.send(0, "g:1|g|#pod:a\ng:2|g|#pod:b\ng:+1|g|#pod:c\ng:7|g|#pod:a\ng:+1|g|#pod:b");
    server.send(1, "h:1|g|#pod:a");
    server.send(0, "h:2|g|#pod:b");
    let snapshot = server.flush();
    assert_eq!(counters(&snapshot), [counter("c", 15.0, 15.0), counter("c;env=e", 1.0, 1.0)]);
    assert_eq!(snapshot.variants.counters.len(), 0, "{:?}", snapshot.variants.counters);
    let timer = &snapshot.timers[0];
    let TimerSamples::Exact(samples) = &timer.samples else { panic!("{timer:?}") };
    assert_eq!((&**samples, timer.count_total), (&[1.0, 3.0, 5.0][..], 4.0));
    assert_eq!(snapshot.sets.iter().map(|set| set.count).collect::<Vec<_>>(), [2]);
    assert_eq!(gauges(&snapshot), [("g", 8.0), ("h", 2.0)]);
    let lines = snapshot.counters.iter().find(|it| it.name.key() == "statsd.metrics_received");
    assert_eq!(lines.map(|it| it.value), Some(18.0));
}

#[test]
fn spellings_are_merged_after_rules() {
    let mut server = RuledRegistry::new(DROP_PODS);
    server.send(0, "a b:1|c|#pod:1\na_b:2|c|#pod:1\na b:4|c|#pod:2\na_b:8|c|#pod:3,z:/");
    let snapshot = server.flush();
    assert_eq!(counters(&snapshot), [counter("a_b", 7.0, 7.0), counter("a_b;z=-", 8.0, 8.0)]);
    let mut sent: Vec<(String, f64)> = snapshot
        .counters_as_sent()
        .filter(|it| it.name.key().starts_with('a'))
        .map(|it| (it.name.key().to_owned(), it.value))
        .collect();
    sent.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("a b", 5.0), ("a_b", 2.0), ("a_b;z=/", 8.0)];
    assert_eq!(sent, expected.map(|(key, value)| (key.to_owned(), value)));
}

#[test]
fn dropped_keys_are_counted_and_take_no_entries() {
    let mut server = RuledRegistry::new(DROP_PODS);
    for round in 0..3 {
        server
            .send(0, "debug.a:1|c\ndebug.b:1:2|ms|#pod:1\ndebug.c:1|g\ndebug.d:1|s\nx:1|c|#pod:2");
        server.send(1, "debug.a:1|c|#pod:\u{7}");
        let snapshot = server.flush();
        assert_eq!(counters(&snapshot), [counter("x", 1.0, f64::from(round + 1))]);
        assert_eq!(snapshot.timers.len() + snapshot.sets.len() + gauges(&snapshot).len(), 0);
    }
    let entries = server.registry.counters.entry_count() + server.registry.timers.entry_count();
    assert_eq!(entries, 4, "x and etsy's counters");
    let pods = "debug.b|#pod:1 x|#pod:2 debug.a|#pod:\\u{7}";
    let debug = "debug.a debug.b|#pod:1 debug.c debug.d debug.a|#pod:\\u{7}";
    assert_eq!(
        server.tallies(),
        [
            ("rule-1".to_owned(), 0, 12, 3, pods.to_owned()),
            ("debug".to_owned(), 18, 0, 5, debug.to_owned()),
        ]
    );
}

#[test]
fn idle_cells_of_altered_keys_are_freed() {
    let limits = "[limits]\nkeys = 20000\n";
    let mut server = RuledRegistry::new(&format!("{limits}{DROP_PODS}"));
    let mut sum = 0.0;
    for round in 0..12 {
        for key in 0..3000 {
            server.send(0, &format!("debug.{round}.{key}:1|c\nc:1|c|#pod:{round}-{key}"));
        }
        sum += counters(&server.flush())[0].1;
    }
    assert_eq!(sum, 36_000.0);
    assert_eq!(server.registry.totals().overflow_samples, 0);
    assert_eq!(server.tallies()[1].1, 36_000);
    assert!(server.tallies()[1].3 < 20_000);
}

#[test]
fn reload_applies_new_rules_to_known_keys() {
    let mut server = RuledRegistry::new("");
    server.send(0, "a:1|c\nb:1|c\nold:5|g\nstays:7|g\na/a:1|c");
    server.flush();
    server.send(0, "a:2|c\nb:2|c\na/a:2|c");
    let rules = "
        [[rules]]
        id = 'a'
        name = 'a'
        action = 'drop'
        [[rules]]
        name = 'old'
        rename = 'new'
        [static-tags]
        env = 'e'
    ";
    server.reload(rules);
    server.send(0, "a:4|c\nb:4|c\nold:+1|g\na/a:4|c");
    // Samples from before the reload are sent under the old names.
    let snapshot = server.flush();
    assert_eq!(
        counters(&snapshot),
        [
            counter("a", 2.0, 3.0),
            counter("a-a", 2.0, 3.0),
            counter("a-a;env=e", 4.0, 4.0),
            counter("b", 2.0, 3.0),
            counter("b;env=e", 4.0, 4.0),
        ]
    );
    assert_eq!(gauges(&snapshot), [("new;env=e", 1.0), ("old", 5.0), ("stays", 7.0)]);
    // The old names are gone, also of a gauge that is idle.
    let snapshot = server.flush();
    let expected = [counter("a-a;env=e", 0.0, 4.0), counter("b;env=e", 0.0, 4.0)];
    assert_eq!(counters(&snapshot), expected);
    assert_eq!(gauges(&snapshot), [("new;env=e", 1.0)]);
    assert_eq!(snapshot.counters_as_sent().count(), 5);
    // Etsy's own counters are there, and unchanged rules continue their counts.
    assert_eq!(snapshot.counters.len(), 5);
    server.reload(&format!("{rules}\nb = 'c'"));
    server.send(1, "a:1|c");
    server.flush();
    let tallies = server.tallies();
    assert_eq!((tallies[0].1, tallies[0].3), (2, 2));
    server.reload("");
    server.send(0, "a:1|c\nold:3|g");
    server.flush();
    let snapshot = server.flush();
    assert_eq!(counters(&snapshot), [counter("a", 0.0, 1.0)]);
    assert_eq!(gauges(&snapshot), [("old", 3.0)]);
}

#[test]
fn keys_beyond_limits_of_prefixes_overflow_or_are_dropped() {
    let mut server = RuledRegistry::new(
        "
        [limits]
        keys-per-prefix = 3
        [[limits.prefix]]
        prefix = 'shop.'
        keys = 2
        [[limits.prefix]]
        prefix = 'shop.debug.'
        keys = 1
        excess = 'drop'
        [[rules]]
        drop-tags = ['pod']
        ",
    );
    server.send(0, "shop.a:1|c|#pod:1\nshop.a:1|c|#pod:2\nshop.b:1|g\nshop.c:1|c\nshop.d:2|c");
    server.send(1, "shop.a:1|c\nshop.d:4|c\nshop.e:5|ms\nshop.debug.x:1|c\nshop.debug.y:1:1|c");
    server.send(0, "x.1:1|c\nx.2:1|c\nx.3:1|c\nx.4:1|c\nx.4:1|c|#t:1\ny:1|c\ny:2|c|#t:1");
    let snapshot = server.flush();
    assert_eq!(
        counters(&snapshot),
        [
            counter("shop.a", 3.0, 3.0),
            counter("shop.debug.x", 1.0, 1.0),
            counter("shop.overflow", 7.0, 7.0),
            counter("x.1", 1.0, 1.0),
            counter("x.2", 1.0, 1.0),
            counter("x.3", 1.0, 1.0),
            counter("x.overflow", 2.0, 2.0),
            counter("y", 1.0, 1.0),
            counter("y;t=1", 2.0, 2.0),
        ]
    );
    assert_eq!(gauges(&snapshot), [("shop.b", 1.0)]);
    assert_eq!(snapshot.timers[0].name.key(), "shop.overflow");
    let tallies = server.registry.key_rules.prefix_tallies();
    let rows: Vec<_> = tallies
        .iter()
        .map(|it| (&*it.prefix, it.limit, it.cut_samples, it.cut_keys, it.examples.len()))
        .collect();
    assert_eq!(rows, [("shop.", 2, 4, 4, 4), ("shop.debug.", 1, 2, 1, 1), ("x", 3, 2, 2, 2)]);
    let reached = &snapshot.self_metrics.limited_prefixes;
    let reached: Vec<_> = reached.iter().map(|(prefix, limit)| (&**prefix, *limit)).collect();
    assert_eq!(reached, [("shop.", 2), ("x", 3), ("shop.debug.", 1)]);
    assert_eq!(server.flush().self_metrics.limited_prefixes, []);
}

#[test]
fn removed_keys_make_room_for_others() {
    let mut server = RuledRegistry::new(
        "
        aggregation.delete-idle-counters = true
        [[limits.prefix]]
        prefix = 'a.'
        keys = 4
        ",
    );
    server.send(0, "a.1:1|c\na.2:1|c\na.3:1|c\na.4:1|c\na.5:1|c\na.6:1|c");
    assert_eq!(counters(&server.flush()).len(), 5);
    for _ in 0..3 {
        server.send(0, "a.5:1|c\na.6:1|c");
        server.flush();
    }
    server.send(0, "a.5:1|c\na.6:1|c");
    let expected = [counter("a.5", 1.0, 2.0), counter("a.6", 1.0, 2.0)];
    assert_eq!(counters(&server.flush()), expected);
    // New rules rename all keys; those that go do not count.
    server.settings.static_tags = [("e".to_owned(), "1".to_owned())].into();
    server.send(0, "a.7:1|c\na.8:1|c");
    server.registry.reload(&server.settings, server.now());
    server.send(0, "a.5:1|c\na.6:1|c\na.7:1|c\na.8:1|c");
    let found = counters(&server.flush());
    let tagged = found.iter().filter(|(key, ..)| key.ends_with(";e=1"));
    assert_eq!(tagged.count(), 4, "{found:?}");
}

/// A sample for the model.
#[derive(Clone, Debug)]
struct ModelSample {
    kind: MetricType,
    name: String,
    tags: Vec<(&'static str, &'static str)>,
    value: u8,
    is_change: bool,
}

#[derive(Clone, Debug)]
enum ModelStep {
    Send(usize, Vec<ModelSample>),
    Flush,
    Reload(Vec<RuleSettings>),
}

/// The model: rules are applied to every sample by itself, and the results collected in maps.
#[derive(Default)]
struct RuleModel {
    rules: Vec<RuleSettings>,
    counters: BTreeMap<String, f64>,
    timers: BTreeMap<String, Vec<f64>>,
    gauges: BTreeMap<String, f64>,
    sets: BTreeMap<String, BTreeSet<String>>,
    known: Vec<ModelSample>,
    orphans: BTreeSet<String>,
    dropped: u64,
}

impl ModelSample {
    fn line(&self) -> String {
        let (value, kind) = match (self.kind, self.is_change) {
            (MetricType::Counter, _) => (self.value.to_string(), "c"),
            (MetricType::Timer, _) => (self.value.to_string(), "ms"),
            (MetricType::Gauge, false) => (self.value.to_string(), "g"),
            (MetricType::Gauge, true) => (format!("+{}", self.value), "g"),
            (MetricType::Set, _) => (self.value.to_string(), "s"),
        };
        let tag = |(key, value): &(&str, &str)| match *value {
            "" => (*key).to_owned(),
            value => format!("{key}:{value}"),
        };
        let tags: Vec<_> = self.tags.iter().map(tag).collect();
        let hash = if tags.is_empty() { "" } else { "|#" };
        format!("{}:{value}|{kind}{hash}{}", self.name, tags.join(","))
    }

    /// Returns the key as sent after the rules, `None` if one drops the sample.
    fn key(&self, rules: &[RuleSettings]) -> Option<String> {
        let mut name = self.name.clone();
        let tags = self.tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut tags: Vec<(String, String)> = tags.collect();
        for rule in rules {
            let regex = match (&rule.name, &rule.name_regex) {
                (Some(glob), _) => glob_regex(glob),
                (_, Some(regex)) => Regex::new(regex).unwrap(),
                _ => Regex::new("^.*$").unwrap(),
            };
            let Some(captures) = regex.captures(&name) else { continue };
            let has_tag = |(key, value): (&String, &String)| {
                tags.iter().any(|(tag, text)| tag == key && wildcard_regex(value).is_match(text))
            };
            if rule.kind.is_some_and(|kind| kind != self.kind) || !rule.tags.iter().all(has_tag) {
                continue;
            }
            if rule.action == Some(RuleAction::Drop) {
                return None;
            }
            let replaced = |template: &str| {
                (0..4).fold(template.to_owned(), |text, at| {
                    let capture = captures.get(at).map_or("", |capture| capture.as_str());
                    text.replace(&format!("${at}"), capture)
                })
            };
            let is_any = |all: &[String], tag: &str| {
                all.iter().any(|pattern| wildcard_regex(pattern).is_match(tag))
            };
            tags.retain(|(tag, _)| !is_any(&rule.drop_tags, tag));
            if let Some(retained) = &rule.keep_tags {
                tags.retain(|(tag, _)| is_any(retained, tag));
            }
            for (tag, value) in &rule.add_tags {
                let value = replaced(value);
                match tags.iter_mut().find(|(key, _)| key == tag) {
                    Some((_, old)) => *old = value,
                    None => tags.push((tag.clone(), value)),
                }
            }
            let renamed = rule.rename.as_ref().map(|name| replaced(name));
            name = renamed.filter(|name| !name.is_empty()).unwrap_or(name);
            if rule.action == Some(RuleAction::Allow) {
                break;
            }
        }
        let tag = |(tag, value): &(String, String)| match value.as_str() {
            "" => format!(";{tag}"),
            value => format!(";{tag}={value}"),
        };
        Some(name + &tags.iter().map(tag).collect::<String>())
    }
}

fn wildcard_regex(pattern: &str) -> Regex {
    Regex::new(&format!("^{}$", regex_lite::escape(pattern).replace("\\*", ".*"))).unwrap()
}

fn glob_regex(glob: &str) -> Regex {
    let escaped = regex_lite::escape(glob).replace("\\*\\*", "(.+)");
    Regex::new(&format!("^{}$", escaped.replace("\\*", "([^.]*?)"))).unwrap()
}

fn sanitised(key: &str) -> String {
    key.replace(' ', "_").replace('/', "-")
}

impl RuleModel {
    fn send(&mut self, sample: &ModelSample) {
        self.known.push(sample.clone());
        let Some(key) = sample.key(&self.rules) else {
            self.dropped += 1;
            return;
        };
        let value = f64::from(sample.value);
        // The tables of keys as sent and of sanitised keys, in one map each.
        for key in [format!("sent {key}"), sanitised(&key)] {
            match sample.kind {
                MetricType::Counter => *self.counters.entry(key).or_default() += value,
                MetricType::Timer => self.timers.entry(key).or_default().push(value),
                MetricType::Gauge if sample.is_change => {
                    *self.gauges.entry(key).or_default() += value;
                }
                MetricType::Gauge => {
                    self.gauges.insert(key, value);
                }
                MetricType::Set => {
                    self.sets.entry(key).or_default().insert(sample.value.to_string());
                }
            }
        }
    }

    /// The gauges of the keys that are known.
    fn known_gauges(&self) -> BTreeSet<String> {
        let gauges = self.known.iter().filter(|sample| sample.kind == MetricType::Gauge);
        let keys = gauges.filter_map(|sample| sample.key(&self.rules));
        keys.flat_map(|key| [format!("sent {key}"), sanitised(&key)]).collect()
    }

    fn reload(&mut self, rules: &[RuleSettings]) {
        if self.rules != rules {
            let old = self.known_gauges();
            self.orphans.extend(old);
        }
        self.rules = rules.to_vec();
    }

    fn flush(&mut self) {
        self.counters.clear();
        self.timers.clear();
        self.sets.clear();
        let used = self.known_gauges();
        for key in mem::take(&mut self.orphans).difference(&used) {
            self.gauges.remove(key);
        }
    }
}

/// Returns the values of a snapshot in the form of the model, without idle metrics.
fn as_model(snapshot: &FlushSnapshot) -> RuleModel {
    fn both<'m, M: 'm>(
        key: impl Fn(&M) -> &MetricName,
        sanitised: impl Iterator<Item = &'m M>,
        sent: impl Iterator<Item = &'m M>,
    ) -> Vec<(String, &'m M)> {
        let is_own = |metric: &&M| !key(metric).key().starts_with("statsd.");
        let sanitised = sanitised.filter(is_own).map(|it| (key(it).key().to_owned(), it));
        let sanitised: Vec<_> = sanitised.collect();
        let sent = sent.filter(is_own).map(|it| (format!("sent {}", key(it).key()), it));
        sanitised.into_iter().chain(sent).collect()
    }
    let mut model = RuleModel::default();
    let counters = both(|it| &it.name, snapshot.counters.iter(), snapshot.counters_as_sent());
    for (key, counter) in counters.into_iter().filter(|(_, counter)| counter.value > 0.0) {
        model.counters.insert(key, counter.value);
    }
    let timers = both(|it| &it.name, snapshot.timers.iter(), snapshot.timers_as_sent());
    for (key, timer) in timers.into_iter().filter(|(_, timer)| timer.summary.is_some()) {
        let TimerSamples::Exact(samples) = &timer.samples else { continue };
        model.timers.insert(key, samples.to_vec());
    }
    for (key, gauge) in both(|it| &it.name, snapshot.gauges.iter(), snapshot.gauges_as_sent()) {
        model.gauges.insert(key, gauge.value);
    }
    let sets = both(|it| &it.name, snapshot.sets.iter(), snapshot.sets_as_sent());
    for (key, set) in sets.into_iter().filter(|(_, set)| set.count > 0) {
        model.sets.insert(key, set.members.iter().map(ToString::to_string).collect());
    }
    model
}

fn name() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "web1", "web 1", "web_1", "debug"]);
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("."))
}

fn kind() -> impl Strategy<Value = MetricType> {
    prop::sample::select(MetricType::ALL.to_vec())
}

fn sample() -> impl Strategy<Value = ModelSample> {
    let tags = prop::sample::subsequence(
        vec![("env", "prod"), ("env2", "dev/1"), ("pod", "x"), ("host", ""), ("pod2", "y")],
        0..4,
    );
    (kind(), name(), tags, 1..5_u8, any::<bool>()).prop_map(
        |(kind, name, tags, value, is_change)| ModelSample { kind, name, tags, value, is_change },
    )
}

fn rule() -> impl Strategy<Value = RuleSettings> {
    let texts = |texts: &[&str]| {
        prop::sample::select(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    };
    // With the number of texts that the pattern captures.
    let pattern = prop::sample::select(vec![
        (Some("a.**"), None, 1),
        (Some("*.b"), None, 1),
        (Some("web*.*"), None, 2),
        (Some("*e*.*.debug"), None, 3),
        (Some("debug"), None, 0),
        (None, Some(r"^(a|b)\.(.*)$"), 2),
        (None, Some("web.1"), 0),
        (None, None, 0),
    ]);
    let tag_patterns = || texts(&["env", "pod*", "*2", "host", "*"]);
    let tags = prop::collection::btree_map(
        texts(&["env", "env2", "pod"]),
        texts(&["*", "pro*", "*/*", "x"]),
        0..2,
    );
    let templates = texts(&["new", "n.$1", "$1", "a.$2.$1", "web 1.$0", "x_$3"]);
    let changes = (
        prop::option::of(templates.clone()),
        prop::collection::vec(tag_patterns(), 0..3),
        prop::option::weighted(0.2, prop::collection::vec(tag_patterns(), 0..3)),
        prop::collection::btree_map(texts(&["env", "new", "pod"]), templates, 0..2),
    );
    let action = prop::option::weighted(
        0.3,
        prop::sample::select(vec![RuleAction::Allow, RuleAction::Drop]),
    );
    (pattern, prop::option::weighted(0.2, kind()), tags, action, changes).prop_map(
        |(
            (glob, regex, captures),
            kind,
            tags,
            action,
            (rename, drop_tags, keep_tags, add_tags),
        )| {
            let fits = |template: &String| {
                crate::template::last_capture(template).is_none_or(|last| last <= captures)
            };
            let is_drop = action == Some(RuleAction::Drop);
            let (drop_tags, keep_tags) =
                if is_drop { (Vec::new(), None) } else { (drop_tags, keep_tags) };
            let add_tags: BTreeMap<_, _> =
                add_tags.into_iter().filter(|(_, value)| fits(value) && !is_drop).collect();
            let rename = rename.filter(|name| fits(name) && !is_drop);
            let is_idle = rename.is_none()
                && drop_tags.is_empty()
                && keep_tags.is_none()
                && add_tags.is_empty();
            RuleSettings {
                id: None,
                name: glob.map(str::to_owned),
                name_regex: regex.map(str::to_owned),
                kind,
                tags,
                action: if is_idle { action.or(Some(RuleAction::Allow)) } else { action },
                rename,
                drop_tags,
                keep_tags,
                add_tags,
            }
        },
    )
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        6 => (0..2_usize, prop::collection::vec(sample(), 1..8))
            .prop_map(|(shard, samples)| ModelStep::Send(shard, samples)),
        2 => Just(ModelStep::Flush),
        1 => prop::collection::vec(rule(), 0..5).prop_map(ModelStep::Reload),
    ]
}

proptest! {
    /// The registry, which applies rules once per key, has the same values as the model, which
    /// applies them to every sample.
    #[test]
    fn rules_have_the_same_effect_as_on_single_samples(
        rules in prop::collection::vec(rule(), 0..6),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut server = RuledRegistry::with(StatsdSettings {
            rules: rules.clone(),
            ..StatsdSettings::default()
        });
        let mut model = RuleModel { rules, ..RuleModel::default() };
        for step in steps.into_iter().chain([ModelStep::Flush]) {
            match step {
                ModelStep::Send(shard, samples) => {
                    let lines: Vec<_> = samples.iter().map(ModelSample::line).collect();
                    server.send(shard, &lines.join("\n"));
                    samples.iter().for_each(|sample| model.send(sample));
                }
                ModelStep::Flush => {
                    let found = as_model(&server.flush());
                    model.timers.values_mut().for_each(|samples| samples.sort_by(f64::total_cmp));
                    prop_assert_eq!(&found.counters, &model.counters);
                    prop_assert_eq!(&found.timers, &model.timers);
                    prop_assert_eq!(&found.gauges, &model.gauges);
                    prop_assert_eq!(&found.sets, &model.sets);
                    model.flush();
                }
                ModelStep::Reload(rules) => {
                    let new = StatsdSettings { rules: rules.clone(), ..server.settings.clone() };
                    let (_, problems) =
                        crate::rules::MetricRules::compile(&new.rules, &new.static_tags);
                    prop_assert_eq!(problems, []);
                    server.registry.reload(&new, server.now());
                    model.reload(&rules);
                }
            }
        }
    }
}

#[test]
fn rules_apply_to_values_with_timestamps() {
    let mut registry = RuledRegistry::new(
        "dialect = 'dogstatsd'
         static-tags = { env = 'prod' }
         [[rules]]
         id = 'debug'
         name = 'debug.**'
         action = 'drop'
         [[rules]]
         name = 'web*.hits'
         rename = 'hits'",
    );
    for shard in [0, 1] {
        registry
            .send(shard, "web1.hits:2|c|T1000000\nweb2.hits:3|c|T1000000\ndebug.x:1|g|T1000000");
    }
    let timed = registry.flush().timed;
    let timed: Vec<_> =
        timed.iter().map(|metric| (metric.sent.key(), metric.time, metric.value)).collect();
    assert_eq!(timed, [("hits;env=prod", 1_000_000, 10.0)]);
    let tallies = registry.tallies();
    let counts = tallies.iter().map(|(_, dropped, changed, keys, _)| (*dropped, *changed, *keys));
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 0, 0), (0, 4, 0)], "{tallies:?}");
}

#[test]
fn reload_with_a_new_backend_removes_only_what_rules_change() {
    let mut registry = RuledRegistry::with(StatsdSettings::default());
    registry.registry.needs.names_as_sent = false;
    registry.send(0, "gone:1|g");
    registry.flush();
    registry.registry.gauges.retain(|gauge| gauge.name.key() != "gone");
    registry.send(0, "idle:7|g\ndebug:8|g\nx/y:9|g");
    registry.flush();
    registry.reload("rules = [{ name = 'debug', action = 'drop' }]");
    let needs = SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::default() };
    let now = registry.now();
    add_requirements(&mut registry.registry, needs, now);
    registry.send(0, "x/y:10|g");
    // Values that were aggregated by the old rules are sent once more.
    registry.flush();
    for _ in 0..2 {
        let snapshot = registry.flush();
        let gauges = snapshot.gauges.iter().map(|gauge| (gauge.name.key(), gauge.value));
        let gauges: Vec<_> = gauges.filter(|(name, _)| !name.starts_with("statsd.")).collect();
        assert_eq!(gauges, [("idle", 7.0), ("x-y", 10.0)]);
    }
    let snapshot = registry.flush();
    assert!(snapshot.gauges_as_sent().any(|gauge| gauge.name.key() == "x/y"));
}

#[test]
fn reload_admits_no_keys_beyond_limits() {
    let limits = "limits = { prefix = [{ prefix = 'a.', keys = 2 }] }";
    let mut registry = RuledRegistry::new(limits);
    let all = "a.1:1|c\na.2:1|c\na.3:1|c\na.4:1|c\nb.1:1|c\nb.2:1|c";
    registry.send(0, all);
    let keys = |snapshot: &FlushSnapshot| {
        let names = snapshot.counters.iter().map(|counter| counter.name.key().to_owned());
        names.filter(|name| !name.starts_with("statsd.")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&registry.flush()), "a.1 a.2 a.overflow b.1 b.2");
    for rules in ["rules = [{ name = 'x', action = 'drop' }]", "rules = []"] {
        registry.reload(&format!("{rules}\n{limits}"));
        registry.send(0, all);
        registry.send(1, "a.5:1|c");
        assert_eq!(keys(&registry.flush()), "a.1 a.2 a.overflow b.1 b.2", "{rules}");
    }
    // Keys that a rule drops make room.
    registry.reload(&format!("rules = [{{ name = 'a.1', action = 'drop' }}]\n{limits}"));
    registry.send(0, all);
    assert_eq!(keys(&registry.flush()), "a.1 a.2 a.3 a.overflow b.1 b.2", "for the last time");
    registry.send(0, all);
    assert_eq!(keys(&registry.flush()), "a.2 a.3 a.overflow b.1 b.2");
}

#[test]
fn reload_reaches_idle_metrics_without_a_cell() {
    let mut registry = RuledRegistry::with(StatsdSettings::default());
    registry.send(0, "idle:7|g\ndebug.x:8|g");
    registry.flush();
    registry.registry.reset_shards = true;
    registry.registry.collect(registry.now());
    registry.reload("rules = [{ name = 'debug.*', action = 'drop' }]");
    registry.flush();
    let snapshot = registry.flush();
    let gauges = snapshot.gauges.iter().map(|gauge| gauge.name.key());
    let gauges: Vec<_> = gauges.filter(|name| !name.starts_with("statsd.")).collect();
    assert_eq!(gauges, ["idle"]);
}

#[test]
fn tags_of_rules_are_sorted_as_in_dogstatsd() {
    let mut registry =
        RuledRegistry::new("dialect = 'dogstatsd'\nstatic-tags = { env = 'prod', m = 'a.b' }");
    registry.send(0, "hits:1|c|#env:prod,zone:a\nhits:2|c|#zone:a|c:ci-7\nhits:4|c|#zone:a");
    let snapshot = registry.flush();
    let counters = snapshot.counters.iter().filter(|counter| counter.name.base() == "hits");
    let counters: Vec<_> = counters.map(|counter| (counter.name.key(), counter.value)).collect();
    let expected =
        [("hits;env=prod;m=a.b;zone=a", 5.0), ("hits;env=prod;m=a.b;zone=a;container_id=7", 2.0)];
    assert_eq!(counters, expected);
}
