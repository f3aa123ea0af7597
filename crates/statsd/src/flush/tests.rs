//! Intervals flushed as by etsy's server.

use super::*;
use crate::{
    aggregate::SharedShard,
    backends::SnapshotRequirements,
    grammar::{AlertType, CheckStatus, EventPriority, RejectReason},
    hyperloglog::HyperLogLog,
    ledger::LossAccount,
    settings::{Aggregation, ExtraTypes, SetOverflow, StatsdDialect, StatsdLimits, StatsdSettings},
};

const START: SystemTime = SystemTime::UNIX_EPOCH;

struct TestRegistry {
    registry: KeyRegistry,
    shards: Vec<SharedShard>,
    seconds: u64,
}

impl TestRegistry {
    fn new(settings: &StatsdSettings) -> Self {
        let needs = SnapshotRequirements {
            distributions: true,
            names_as_sent: true,
            messages: true,
            ..SnapshotRequirements::default()
        };
        let mut registry = KeyRegistry::new(settings, needs, START);
        let shards = vec![registry.shard(), registry.shard()];
        Self { registry, shards, seconds: 1_000_000 }
    }

    fn with(aggregation: Aggregation) -> Self {
        Self::new(&StatsdSettings { aggregation, ..StatsdSettings::default() })
    }

    fn send(&self, packet: &str) {
        self.shards[0].lock().apply_packet(packet.as_bytes());
    }

    fn flush(&mut self) -> FlushSnapshot {
        self.seconds += 10;
        let now = START + Duration::from_secs(self.seconds);
        self.registry.flush(FlushTime { now, lag: Duration::ZERO }, LossAccount::default())
    }
}

fn counters(snapshot: &FlushSnapshot) -> Vec<(&str, f64)> {
    snapshot.counters.iter().map(|counter| (counter.name.key(), counter.value)).collect()
}

fn counter(snapshot: &FlushSnapshot, key: &str) -> Option<CounterMetric> {
    snapshot.counters.iter().find(|counter| counter.name.key() == key).cloned()
}

fn gauges(snapshot: &FlushSnapshot) -> Vec<(&str, f64)> {
    let gauges = snapshot.gauges.iter().map(|gauge| (gauge.name.key(), gauge.value));
    gauges.filter(|(key, _)| !key.contains("timestamp_lag")).collect()
}

#[track_caller]
fn assert_extra(own: &SelfMetrics, name: &str, value: f64) {
    assert_eq!(own.extra_values().find(|(found, _)| *found == name), Some((name, value)));
}

#[test]
fn idle_metrics_are_retained_by_default() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("c:2|c\nt:3|ms\ns:x|s\ng:5|g");
    let first = server.flush();
    assert_eq!(
        counters(&first),
        [
            ("c", 2.0),
            ("statsd.bad_lines_seen", 0.0),
            ("statsd.metrics_received", 4.0),
            ("statsd.packets_received", 1.0)
        ]
    );
    assert_eq!(first.rate(&counter(&first, "c").unwrap()), 0.2);
    let second = server.flush();
    assert_eq!(counter(&second, "c").unwrap().value, 0.0);
    assert_eq!(counter(&second, "c").unwrap().total, 2.0);
    let fields: Vec<(&str, f64)> =
        second.timers[0].fields.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(fields, [("count", 0.0), ("count_ps", 0.0)]);
    assert_eq!(second.timers[0].count_total, 1.0);
    assert_eq!(second.sets[0].count, 0);
    assert_eq!(gauges(&second), [("g", 5.0)]);
    assert_eq!(second.self_metrics.num_stats, 4 + 1 + 2 + 1);
}

#[test]
fn deleted_idle_metrics_reappear_when_sent() {
    let mut server = TestRegistry::with(Aggregation {
        delete_idle_counters: true,
        delete_idle_timers: true,
        delete_idle_sets: true,
        delete_idle_gauges: true,
        gauge_ttl: 2,
        ..Aggregation::default()
    });
    server.send("c:2|c\nmy_bad_lines_seen:1|c\nt:3|ms\ns:x|s\ng:5|g");
    server.flush();
    server.send("c:1|c");
    let second = server.flush();
    assert_eq!(
        counter(&second, "c").unwrap().total,
        3.0,
        "a counter received in every interval continues its total"
    );
    assert_eq!(counter(&second, "my_bad_lines_seen").unwrap().value, 0.0);
    assert_eq!((second.timers.len(), second.sets.len()), (0, 0));
    assert_eq!(gauges(&second), [("g", 5.0)]);
    let third = server.flush();
    assert_eq!(counter(&third, "c"), None);
    assert_eq!(gauges(&third), []);
    server.send("c:7|c\ng:-1|g");
    let fourth = server.flush();
    assert_eq!(
        counter(&fourth, "c").unwrap().total,
        7.0,
        "a counter deleted earlier restarts its total"
    );
    assert_eq!(gauges(&fourth), [("g", -1.0)]);
    assert!(fourth.gauges.iter().any(|gauge| gauge.name.key() == "statsd.timestamp_lag"));
}

#[test]
fn sums_weigh_each_sample_by_its_own_rate() {
    for exact_samples in [100, 1] {
        let limits = StatsdLimits { exact_samples, ..StatsdLimits::default() };
        let mut server = TestRegistry::new(&StatsdSettings { limits, ..StatsdSettings::default() });
        server.send("t:4000|ms\nt:1000|ms|@0.5\nt:3000|ms|@0.25");
        server.shards[1].lock().apply_packet(b"t:2000|ms|@0.5\nt:2000|ms");
        // Unsampled after an interval with rates.
        for (packet, sum, total) in [("", 24.0, 24.0), ("t:7000|ms", 7.0, 31.0)] {
            server.send(packet);
            let timer = server.flush().timers[0].clone();
            let summary = timer.summary.unwrap();
            assert_eq!(summary.weighted_sum, 1000.0 * sum, "{exact_samples}");
            let cumulative = timer.cumulative.unwrap();
            assert!((cumulative.sum() - total).abs() < 1e-9, "{}", cumulative.sum());
            assert_eq!(cumulative.count(), if total == sum { 10.0 } else { 11.0 });
        }
    }
}

#[test]
fn gauges_change_and_persist() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a:333|g\na:-10|g\nb:-5|g");
    assert_eq!(gauges(&server.flush()), [("a", 323.0), ("b", -5.0)]);
    server.send("a:+4|g");
    server.shards[1].lock().apply_packet(b"b:1|g");
    server.send("b:+1|g");
    assert_eq!(gauges(&server.flush()), [("a", 327.0), ("b", 2.0)]);
}

#[test]
fn shards_are_merged() {
    let mut server = TestRegistry::with(Aggregation::default());
    for shard in &server.shards {
        shard.lock().apply_packet(b"c:1|c|@0.5\nt:1:3|ms|@0.1\ns:a|s\ns:b|s");
    }
    server.shards[1].lock().apply_packet(b"s:c|s");
    let snapshot = server.flush();
    assert_eq!(counter(&snapshot, "c").unwrap().value, 4.0);
    let timer = &snapshot.timers[0];
    let TimerSamples::Exact(samples) = &timer.samples else { panic!("{timer:?}") };
    assert_eq!(**samples, [1.0, 1.0, 3.0, 3.0]);
    assert_eq!(timer.summary.as_ref().unwrap().count, 40.0);
    let cumulative = timer.cumulative.as_ref().unwrap();
    assert_eq!(cumulative.count(), 40.0);
    assert_eq!(cumulative.range(), Some((0.001, 0.003)));
    assert_eq!(snapshot.sets[0].count, 3);
}

#[test]
fn shard_sketches_merge_with_exact_samples() {
    let limits = StatsdLimits { exact_samples: 5, ..StatsdLimits::default() };
    let mut server = TestRegistry::new(&StatsdSettings { limits, ..StatsdSettings::default() });
    server.send("t:1:2:3|ms");
    server.shards[1].lock().apply_packet(b"t:4:5:6|ms");
    let snapshot = server.flush();
    let summary = snapshot.timers[0].summary.clone().unwrap();
    assert!(matches!(snapshot.timers[0].samples, TimerSamples::Sketched(_)));
    assert_eq!((summary.samples, summary.sum, summary.lower, summary.upper), (6, 21.0, 1.0, 6.0));
    assert_extra(&snapshot.self_metrics, "sketched_timers", 1.0);
    server.send("t:1|ms");
    let next = server.flush();
    assert!(
        matches!(next.timers[0].samples, TimerSamples::Exact(_)),
        "each interval is exact or sketched independently"
    );
}

#[test]
fn keys_with_equal_sanitised_form_are_merged() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a b:1|c\na_b:2|c\na  b:4|c");
    assert_eq!(counter(&server.flush(), "a_b").unwrap().value, 7.0);
}

#[test]
fn latest_value_of_gauge_wins_among_spellings_in_one_packet() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a b:1|g\na_b:2|g\na  b:+1|g\na b:7|g\na_b:+1|g\nc/d:1|g\nc-d:2|g");
    assert_eq!(gauges(&server.flush()), [("a_b", 8.0), ("c-d", 2.0)]);
}

fn as_sent<'s>(counters: impl Iterator<Item = &'s CounterMetric>) -> Vec<(String, f64, f64)> {
    let mut rows: Vec<_> = counters
        .filter(|counter| !counter.name.key().starts_with("statsd."))
        .map(|counter| (counter.name.key().to_owned(), counter.value, counter.total))
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

#[test]
fn spellings_are_merged_sanitised_and_separate_as_sent() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a-b:1|c\nt.x:1|ms\ng-h:5|g\ns-s:ann|s");
    server.flush();
    server.send("a-b:2|c\na/b:4|c\nt.x:2|ms\nt.x(:3|ms\ng/h:+1|g\ns-s:bob|s\ns/s:eve|s");
    server.send("req:1|c|#lang:\u{65e5}\nreq:1|c|#lang:\u{4e2d}");
    let snapshot = server.flush();
    assert_eq!(counter(&snapshot, "a-b").unwrap().total, 7.0);
    assert_eq!(
        as_sent(snapshot.counters_as_sent()),
        [
            ("a-b".to_owned(), 2.0, 3.0),
            ("a/b".to_owned(), 4.0, 4.0),
            ("req;lang=\u{4e2d}".to_owned(), 1.0, 1.0),
            ("req;lang=\u{65e5}".to_owned(), 1.0, 1.0),
        ]
    );
    assert_eq!(gauges(&snapshot), [("g-h", 6.0)]);
    let mut gauges: Vec<(&str, f64)> = snapshot
        .gauges_as_sent()
        .map(|gauge| (gauge.name.key(), gauge.value))
        .filter(|(key, _)| key.starts_with('g'))
        .collect();
    gauges.sort_by_key(|(key, _)| *key);
    assert_eq!(gauges, [("g-h", 5.0), ("g/h", 1.0)]);
    let mut timers: Vec<(&str, f64)> =
        snapshot.timers_as_sent().map(|timer| (timer.name.key(), timer.sum_total)).collect();
    timers.sort_by_key(|(key, _)| *key);
    assert_eq!(timers, [("t.x", 3.0), ("t.x(", 3.0)]);
    assert_eq!(snapshot.timers[0].sum_total, 6.0);
    assert_eq!(snapshot.sets[0].count, 2);
    assert_eq!(snapshot.sets_as_sent().count(), 2);
    // The rarer order: another spelling first, then the key's own.
    server.send("n/m:1|c");
    server.send("n-m:2|c");
    let snapshot = server.flush();
    let sent = as_sent(snapshot.counters_as_sent().filter(|c| c.name.key().starts_with('n')));
    assert_eq!(sent, [("n-m".to_owned(), 2.0, 2.0), ("n/m".to_owned(), 1.0, 1.0)]);
    assert_eq!(counter(&snapshot, "n-m").unwrap().value, 3.0);
}

#[test]
fn spellings_survive_compaction_and_are_deleted_with_key() {
    let mut server =
        TestRegistry::with(Aggregation { delete_idle_counters: true, ..Aggregation::default() });
    for round in 0..6 {
        for key in 0..3000 {
            server.send(&format!("k{round}/{key}:1|c"));
        }
        server.send("a-b:1|c\na/b:2|c");
        let snapshot = server.flush();
        let sent = as_sent(snapshot.counters_as_sent().filter(|c| c.name.key().starts_with('a')));
        let total = f64::from(round + 1);
        assert_eq!(
            sent,
            [("a-b".to_owned(), 1.0, total), ("a/b".to_owned(), 2.0, 2.0 * total)],
            "round {round}"
        );
    }
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a-b:1|c\na/b:2|c");
    server.registry.collect(START);
    server.registry.counters.delete(&["a-b".to_owned()], true);
    server.registry.delete_variants(crate::aggregate::MetricType::Counter);
    assert_eq!(as_sent(server.flush().counters_as_sent()), []);
}

#[test]
fn joined_interval_combines_both() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("c:1|c\nonly.first:4|c\nt:1:3|ms\ng:1|g\ns:ann|s\na-b:1|c\nidle:1|ms");
    let first = server.flush();
    server.send("c:2|c\nt:2|ms|@0.5\ng:7|g\ns:ann|s\ns:bob|s\na/b:8|c\nnew:1|c");
    let second = server.flush();
    let joined = first.joined(&second);
    assert_eq!(joined.interval, Duration::from_secs(20));
    let value = |key: &str| counter(&joined, key).map(|c| (c.value, joined.rate(&c), c.total));
    assert_eq!(value("c"), Some((3.0, 0.15, 3.0)));
    assert_eq!(value("only.first"), Some((4.0, 0.2, 4.0)));
    assert_eq!(value("new"), Some((1.0, 0.05, 1.0)));
    assert_eq!(value("statsd.packets_received"), Some((2.0, 0.1, 2.0)));
    assert_eq!(value("a-b"), Some((9.0, 0.45, 9.0)));
    let sent = as_sent(joined.counters_as_sent().filter(|c| c.name.key().starts_with('a')));
    assert_eq!(sent, [("a-b".to_owned(), 1.0, 1.0), ("a/b".to_owned(), 8.0, 8.0)]);
    let timer = joined.timers.iter().find(|timer| timer.name.key() == "t").unwrap();
    let summary = timer.summary.clone().unwrap();
    assert_eq!((summary.samples, summary.count, summary.sum, summary.upper), (3, 4.0, 6.0, 3.0));
    assert_eq!(summary.weighted_sum, 8.0);
    assert!(timer.fields.contains(&("count_ps".into(), 0.2)), "{:?}", timer.fields);
    assert_eq!(gauges(&joined), [("g", 7.0)]);
    assert_eq!(
        joined.sets[0].members.iter().map(|member| &**member).collect::<Vec<_>>(),
        ["ann", "bob"]
    );
}

#[test]
fn joined_interval_respects_limits() {
    let limits = StatsdLimits {
        exact_samples: 3,
        set_members: 3,
        set_overflow: SetOverflow::Refuse,
        ..StatsdLimits::default()
    };
    let mut server = TestRegistry::new(&StatsdSettings { limits, ..StatsdSettings::default() });
    server.send("t:1:2|ms\ns:a|s\ns:b|s");
    let mut joined = server.flush();
    for round in 0..5 {
        server.send(&format!("t:3:4|ms\ns:c{round}|s\ns:d{round}|s"));
        joined = joined.joined(&server.flush());
    }
    let summary = joined.timers[0].summary.clone().unwrap();
    assert!(matches!(joined.timers[0].samples, TimerSamples::Sketched(_)));
    assert_eq!((summary.samples, summary.sum, summary.lower, summary.upper), (12, 38.0, 1.0, 4.0));
    assert_eq!(joined.sets[0].count, 3);
}

#[test]
fn capped_sets_are_counted_and_named() {
    let limits = StatsdLimits {
        set_members: 2,
        set_overflow: SetOverflow::Refuse,
        ..StatsdLimits::default()
    };
    let mut server = TestRegistry::new(&StatsdSettings { limits, ..StatsdSettings::default() });
    server.send("s:a|s\ns:b|s\ns:c|s\ns:d|s");
    server.shards[1].lock().apply_packet(b"s:a|s\ns:e|s\nfine:a|s");
    let snapshot = server.flush();
    assert_eq!(snapshot.sets.iter().map(|set| set.count).collect::<Vec<_>>(), [1, 2]);
    assert_extra(&snapshot.self_metrics, "capped_sets", 1.0);
    assert_eq!(snapshot.self_metrics.capped_set, Some(MetricName::new("s")));
    let rejects = &server.registry.totals().rejects;
    assert_eq!(rejects.count(RejectReason::SetFull), 3);
    assert!(server.registry.recent().any(|(_, recent)| recent.line == "s"));
    assert_extra(&server.flush().self_metrics, "capped_sets", 0.0);
}

#[test]
fn excess_members_are_estimated_over_shards_and_intervals() {
    let limits = StatsdLimits { set_members: 1000, ..StatsdLimits::default() };
    let mut server = TestRegistry::new(&StatsdSettings { limits, ..StatsdSettings::default() });
    let send = |server: &TestRegistry, shard: usize, members: std::ops::Range<u32>| {
        for member in members {
            server.shards[shard].lock().apply_packet(format!("s:{member}|s").as_bytes());
        }
    };
    let within = |snapshot: &FlushSnapshot, exact: f64| {
        let set = &snapshot.sets[0];
        let error = set.count as f64 / exact - 1.0;
        assert!(error.abs() <= 3.0 * HyperLogLog::RELATIVE_ERROR, "{exact}: {}", set.count);
        assert!(set.members.is_empty() && set.estimate.is_some());
    };
    // Each shard is within the limit, but their union is not; and one of two is not.
    send(&server, 0, 0..800);
    send(&server, 1, 400..1200);
    let first = server.flush();
    within(&first, 1200.0);
    assert_extra(&first.self_metrics, "capped_sets", 1.0);
    assert_eq!(server.registry.totals().rejects.total(), 0);
    send(&server, 0, 1000..4000);
    send(&server, 1, 3990..4000);
    let second = server.flush();
    within(&second, 3000.0);
    within(&first.joined(&second), 4000.0);
    send(&server, 0, 0..900);
    let third = server.flush();
    assert_eq!((third.sets[0].count, third.sets[0].members.len()), (900, 900));
    within(&second.joined(&third), 3900.0);
    send(&server, 0, 900..1800);
    within(&third.joined(&server.flush()), 1800.0);
}

#[test]
fn self_metrics_count_events_checks_and_timestamps() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("_e{1,1}:a|b\n_sc|db|0\n_sc|db|1\ng:1|g|T1656581400\nc:1|c|#a:b|T1656581400");
    let own = server.flush().self_metrics;
    assert_eq!((own.events_total, own.checks_total, own.timestamps_total), (1, 2, 2));
    assert_extra(&own, "events", 1.0);
    assert_extra(&own, "service_checks", 2.0);
}

fn timed_server(limits: StatsdLimits) -> TestRegistry {
    let dialect = StatsdDialect::Dogstatsd;
    TestRegistry::new(&StatsdSettings { dialect, limits, ..StatsdSettings::default() })
}

fn timed(metrics: impl Iterator<Item = TimedMetric>) -> Vec<(String, i64, f64)> {
    metrics.map(|metric| (metric.sent.key().to_owned(), metric.time, metric.value)).collect()
}

#[test]
fn values_with_timestamps_are_aggregated_by_timestamp() {
    let mut server = timed_server(StatsdLimits::default());
    let now = i64::try_from(server.seconds).unwrap();
    server.send(&format!("c:1|c|@0.5|T{now}\nc:4|c|T{now}\nc:8|c|T{}\nc:16|c", now - 60));
    server.send(&format!("g:1|g|T{now}\ng:2|g|T{now}\nc:1|ms|T{now}"));
    server.shards[1].lock().apply_packet(format!("c:32|c|T{now}\ng:3|g|T{now}").as_bytes());
    server.send(&format!("a/b:1|c|T{now}\na-b:2|c|T{now}"));
    let snapshot = server.flush();
    assert_eq!(
        timed(snapshot.timed.iter().cloned()),
        [
            ("a-b".to_owned(), now, 2.0),
            ("a/b".to_owned(), now, 1.0),
            ("c".to_owned(), now - 60, 8.0),
            ("c".to_owned(), now, 38.0),
            ("g".to_owned(), now, 3.0),
        ]
    );
    assert_eq!(timed(snapshot.timed_by_key())[0], ("a-b".to_owned(), now, 3.0));
    assert_eq!(counter(&snapshot, "c").unwrap().value, 16.0);
    assert_eq!(gauges(&snapshot), []);
    assert_eq!(snapshot.self_metrics.timestamps_total, 1, "that of the timer");
    server.send(&format!("c:1|c|T{now}\ng:7|g|T{now}"));
    let next = server.flush();
    let joined = snapshot.joined(&next);
    assert_eq!(next.timed.len(), 2);
    assert_eq!(
        timed(joined.timed.iter().cloned())[3..],
        [("c".to_owned(), now, 39.0), ("g".to_owned(), now, 7.0)]
    );
}

#[test]
fn values_with_unusable_timestamps_are_bad_lines() {
    let mut server = timed_server(StatsdLimits { keys: 3, ..StatsdLimits::default() });
    let now = i64::try_from(server.seconds).unwrap() + 10;
    let (old, ahead) = (now - 86_401, now + 601);
    server.send(&format!("a:1|c|T{old}\na:1|c|T{old}\na:1|c|T{ahead}\na:1|g|T{}", now - 86_400));
    for time in 1..=3 {
        let packet = format!("b:1|c|T{}", now - time);
        server.shards[1].lock().apply_packet(packet.as_bytes());
    }
    server.send(&format!("a:1|c|T{now}"));
    server.send(":1|c|T5");
    let snapshot = server.flush();
    assert_eq!(snapshot.timed.len(), 3);
    let rejects = &server.registry.totals().rejects;
    let count = |reason| rejects.count(reason);
    assert_eq!(count(RejectReason::BadTimestamp), 3);
    assert_eq!(count(RejectReason::TooManyTimestamps), 2, "in a shard and in the registry");
    assert_eq!(count(RejectReason::NoName), 1);
    let losses = snapshot.joined(&snapshot).dropped_by_joins;
    assert_eq!(losses, JoinLosses::default(), "they are the same keys");
}

#[test]
fn key_values_are_sent_once_with_time_of_flush() {
    let types = ExtraTypes { kv: true, ..ExtraTypes::default() };
    let mut server = TestRegistry::new(&StatsdSettings { types, ..StatsdSettings::default() });
    server.send("k:1|kv");
    server.registry.collect(START);
    server.send("k:2|kv\nl:3|kv");
    let snapshot = server.flush();
    let time = snapshot.timestamp;
    assert_eq!(
        timed(snapshot.timed.iter().cloned()),
        [("k".to_owned(), time, 2.0), ("l".to_owned(), time, 3.0)]
    );
    assert_eq!(server.flush().timed, []);
}

#[test]
fn messages_are_stored_once_backend_requires_them() {
    let settings = StatsdSettings::default();
    let registry = KeyRegistry::new(&settings, SnapshotRequirements::MINIMAL, START);
    let mut server = TestRegistry { registry, shards: Vec::new(), seconds: 1_000_000 };
    server.shards.push(server.registry.shard());
    server.send("_sc|db|0");
    let needs = SnapshotRequirements { messages: true, ..SnapshotRequirements::MINIMAL };
    add_requirements(&mut server.registry, needs, START);
    server.send("_sc|db|2");
    let snapshot = server.flush();
    assert_eq!((snapshot.messages.len(), snapshot.self_metrics.checks_total), (1, 2));
}

#[test]
fn messages_are_parsed_and_bounded() {
    let limits = StatsdLimits { message_bytes: 300, ..StatsdLimits::default() };
    let mut server = timed_server(limits);
    server.send("_e{2,4}:hi|a\\nb|t:error|#env:prod,x|c:ci-7\n_sc|db|1|d:5|h:web|m:a m\\: b");
    server.shards[1].lock().apply_packet(b"_sc|third|0");
    server.send(&format!("_sc|{}|0", "x".repeat(200)));
    let snapshot = server.flush();
    let [event, check, third] = &snapshot.messages[..] else { panic!("{:?}", snapshot.messages) };
    assert_eq!(event.time, event.received_seconds().round() as i64);
    let tag = |key: &str, value: &str| (key.into(), value.into());
    assert_eq!(*event.tags, [tag("env", "prod"), tag("x", ""), tag("container_id", "7")]);
    assert_eq!(
        event.content,
        MessageContent::Event {
            title: "hi".into(),
            text: "a\nb".into(),
            aggregation_key: "".into(),
            priority: EventPriority::Normal,
            source_type: "".into(),
            alert_type: AlertType::Error,
        }
    );
    assert_eq!((check.time, &*check.host), (5, "web"));
    let content = |name: &str, status, message: &str| MessageContent::Check {
        name: name.into(),
        status,
        message: message.into(),
    };
    assert_eq!(check.content, content("db", CheckStatus::Warning, "a m: b"));
    assert_eq!(third.content, content("third", CheckStatus::Ok, ""));
    let own = &snapshot.self_metrics;
    assert_eq!((own.events_total, own.checks_total, own.messages_dropped_total), (1, 3, 1));
    // A joined interval is limited, too: the earliest messages are dropped.
    server.send("_sc|late|0");
    let later = server.flush();
    let joined = snapshot.joined(&later);
    assert_eq!(joined.messages.last(), later.messages.last());
    assert_eq!(joined.messages.len() as u64 + joined.dropped_by_joins.messages, 4);
    assert!(joined.dropped_by_joins.messages > 0);
    assert_eq!(server.flush().messages.len(), 0);
}

#[test]
fn removed_keys_free_memory_without_losing_samples() {
    let mut server =
        TestRegistry::with(Aggregation { delete_idle_counters: true, ..Aggregation::default() });
    let mut sum = 0.0;
    for round in 0..6 {
        for key in 0..3000 {
            server.send(&format!("k{round}.{key}:1|c"));
        }
        server.send("stays:1|c");
        let snapshot = server.flush();
        let keys = snapshot.counters.iter().filter(|counter| counter.name.key().starts_with('k'));
        sum += keys.map(|counter| counter.value).sum::<f64>();
        assert_eq!(counter(&snapshot, "stays").unwrap().value, 1.0);
    }
    assert_eq!(sum, 18_000.0);
    assert!(
        server.registry.counters.dead_count() < 9000,
        "{}",
        server.registry.counters.dead_count()
    );
}

#[test]
fn metrics_not_received_for_ttl_are_deleted() {
    let ttl = Duration::from_secs(25);
    let mut server = TestRegistry::with(Aggregation { ttl, ..Aggregation::default() });
    let own = server.flush().self_metrics.num_stats;
    server.send("c:1|c\nt:1|ms\ng:1|g\ns:a|s\nc/d:1|c\nstays:1|c");
    let numbers: Vec<u64> = (0..5)
        .map(|_| {
            let number = server.flush().self_metrics.num_stats - own;
            server.send("stays:1|c");
            number
        })
        .collect();
    // Idle for 10, 20 and 30 seconds, and one more gauge than before: the timestamp lag.
    assert_eq!(numbers, [7, 7, 7, 7, 2]);
    server.send("c:5|c");
    assert_eq!(counter(&server.flush(), "c").unwrap().total, 5.0);
}

#[test]
fn idle_counters_are_omitted_unless_required() {
    let needs = SnapshotRequirements::MINIMAL;
    let mut server = TestRegistry::with(Aggregation::default());
    server.registry = KeyRegistry::new(&StatsdSettings::default(), needs, START);
    server.shards = vec![server.registry.shard()];
    server.send("c:0|c\nd:1|c");
    let keys = |snapshot: &FlushSnapshot| {
        let keys = counters(snapshot).into_iter().map(|(key, _)| key.to_owned());
        keys.filter(|key| !key.starts_with("statsd.")).collect::<Vec<_>>()
    };
    assert_eq!(keys(&server.flush()), ["c", "d"]);
    assert_eq!(keys(&server.flush()), [""; 0]);
    server.send("d:1|c\nt:1|ms");
    let third = server.flush();
    assert_eq!(keys(&third), ["d"]);
    assert_eq!(counter(&third, "d").unwrap().total, 2.0);
    assert_eq!((third.self_metrics.num_stats, third.timers[0].fields.len()), (2 + 1 + 3 + 1, 0));
}

#[test]
fn perl_dialect_has_fewer_self_metrics() {
    let mut server = TestRegistry::new(&StatsdSettings {
        dialect: StatsdDialect::Perl,
        ..StatsdSettings::default()
    });
    server.flush();
    let snapshot = server.flush();
    let keys: Vec<&str> = snapshot.counters.iter().map(|counter| counter.name.key()).collect();
    assert_eq!(keys, ["statsd.bad_lines_seen", "statsd.packets_received"]);
    assert_eq!(snapshot.gauges, []);
}

#[test]
fn top_lists_busiest_keys_first() {
    let mut server = TestRegistry::with(Aggregation::default());
    server.send("a:1|c\nb:1|ms\nb:1|ms\nb:1|ms\nc:1|g\nc:1|g");
    server.registry.collect(START);
    let top: Vec<(String, u64)> = server
        .registry
        .top(2)
        .into_iter()
        .map(|(_, name, hits)| (name.key().to_owned(), hits))
        .collect();
    assert_eq!(top, [("b".to_owned(), 3), ("c".to_owned(), 2)]);
    assert_eq!(server.registry.key_flush(50.0).len(), 2, "half of three keys, rounded up");
    assert_eq!(server.registry.key_flush(100.0).len(), 0, "counting starts over");
}

#[test]
fn timestamp_lag_appears_at_second_flush() {
    let mut server = TestRegistry::with(Aggregation::default());
    assert_eq!(server.flush().gauges, []);
    server.seconds += 3;
    let gauge = server.flush().gauges[0].clone();
    assert_eq!((gauge.name.key(), gauge.value), ("statsd.timestamp_lag", 3.0));
}
