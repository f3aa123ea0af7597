//! Intervals as etsy's server would have flushed them.

use super::*;
use crate::{
    aggregate::SharedShard,
    backends::Needs,
    settings::{Aggregation, Dialect, Limits, Settings},
};

const START: SystemTime = SystemTime::UNIX_EPOCH;

struct Server {
    registry: Registry,
    shards: Vec<SharedShard>,
    seconds: u64,
}

impl Server {
    fn new(settings: &Settings) -> Self {
        let needs = Needs { distributions: true };
        let mut registry = Registry::new(settings, needs, START);
        let shards = vec![registry.shard(), registry.shard()];
        Self { registry, shards, seconds: 1_000_000 }
    }

    fn with(aggregation: Aggregation) -> Self {
        Self::new(&Settings { aggregation, ..Settings::default() })
    }

    fn send(&self, packet: &str) {
        self.shards[0].lock().apply_packet(packet.as_bytes());
    }

    fn flush(&mut self) -> Snapshot {
        self.seconds += 10;
        let now = START + Duration::from_secs(self.seconds);
        self.registry.flush(FlushTime { now, lag: Duration::ZERO }, Account::default())
    }
}

fn counters(snapshot: &Snapshot) -> Vec<(&str, f64)> {
    snapshot.counters.iter().map(|counter| (counter.name.key(), counter.value)).collect()
}

fn counter(snapshot: &Snapshot, key: &str) -> Option<Counter> {
    snapshot.counters.iter().find(|counter| counter.name.key() == key).cloned()
}

fn gauges(snapshot: &Snapshot) -> Vec<(&str, f64)> {
    let gauges = snapshot.gauges.iter().map(|gauge| (gauge.name.key(), gauge.value));
    gauges.filter(|(key, _)| !key.contains("timestamp_lag")).collect()
}

#[test]
fn idle_metrics_stay_unless_told_otherwise() {
    let mut server = Server::with(Aggregation::default());
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
    assert_eq!(counter(&first, "c").unwrap().rate, 0.2);
    let second = server.flush();
    assert_eq!(counter(&second, "c").unwrap().value, 0.0);
    assert_eq!(counter(&second, "c").unwrap().total, 2.0);
    let fields: Vec<(&str, f64)> =
        second.timers[0].fields.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(fields, [("count", 0.0), ("count_ps", 0.0)]);
    assert_eq!(second.timers[0].count_total, 1.0);
    assert_eq!(second.sets[0].count, 0);
    assert_eq!(gauges(&second), [("g", 5.0)]);
    assert_eq!(second.own.num_stats, 4 + 1 + 2 + 1);
}

#[test]
fn deleted_idle_metrics_are_gone_and_come_back() {
    let mut server = Server::with(Aggregation {
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
        "a counter that goes on goes on counting"
    );
    assert_eq!(counter(&second, "my_bad_lines_seen").unwrap().value, 0.0);
    assert_eq!((second.timers.len(), second.sets.len()), (0, 0));
    assert_eq!(gauges(&second), [("g", 5.0)]);
    let third = server.flush();
    assert_eq!(counter(&third, "c"), None);
    assert_eq!(gauges(&third), []);
    server.send("c:7|c\ng:-1|g");
    let fourth = server.flush();
    assert_eq!(counter(&fourth, "c").unwrap().total, 7.0, "one that was away begins again");
    assert_eq!(gauges(&fourth), [("g", -1.0)]);
    assert!(fourth.gauges.iter().any(|gauge| gauge.name.key() == "statsd.timestamp_lag"));
}

#[test]
fn gauges_change_and_persist() {
    let mut server = Server::with(Aggregation::default());
    server.send("a:333|g\na:-10|g\nb:-5|g");
    assert_eq!(gauges(&server.flush()), [("a", 323.0), ("b", -5.0)]);
    server.send("a:+4|g");
    server.shards[1].lock().apply_packet(b"b:1|g");
    server.send("b:+1|g");
    assert_eq!(gauges(&server.flush()), [("a", 327.0), ("b", 2.0)]);
}

#[test]
fn shards_are_one() {
    let mut server = Server::with(Aggregation::default());
    for shard in &server.shards {
        shard.lock().apply_packet(b"c:1|c|@0.5\nt:1:3|ms|@0.1\ns:a|s\ns:b|s");
    }
    server.shards[1].lock().apply_packet(b"s:c|s");
    let snapshot = server.flush();
    assert_eq!(counter(&snapshot, "c").unwrap().value, 4.0);
    let timer = &snapshot.timers[0];
    let Samples::Exact(samples) = &timer.samples else { panic!("{timer:?}") };
    assert_eq!(**samples, [1.0, 1.0, 3.0, 3.0]);
    assert_eq!(timer.summary.as_ref().unwrap().count, 40.0);
    let cumulative = timer.cumulative.as_ref().unwrap();
    assert_eq!(cumulative.count(), 40.0);
    assert_eq!(cumulative.range(), Some((0.001, 0.003)));
    assert_eq!(snapshot.sets[0].count, 3);
}

#[test]
fn sketches_of_shards_merge_with_exact_samples() {
    let limits = Limits { exact_samples: 5, ..Limits::default() };
    let mut server = Server::new(&Settings { limits, ..Settings::default() });
    server.send("t:1:2:3|ms");
    server.shards[1].lock().apply_packet(b"t:4:5:6|ms");
    let snapshot = server.flush();
    let summary = snapshot.timers[0].summary.clone().unwrap();
    assert!(matches!(snapshot.timers[0].samples, Samples::Sketched(_)));
    assert_eq!((summary.samples, summary.sum, summary.lower, summary.upper), (6, 21.0, 1.0, 6.0));
    assert!(snapshot.own.extra.contains(&("sketched_timers", 1.0)));
    server.send("t:1|ms");
    let next = server.flush();
    assert!(matches!(next.timers[0].samples, Samples::Exact(_)), "an interval decides for itself");
}

#[test]
fn raw_keys_that_sanitise_to_one_are_one() {
    let mut server = Server::with(Aggregation::default());
    server.send("a b:1|c\na_b:2|c\na  b:4|c");
    assert_eq!(counter(&server.flush(), "a_b").unwrap().value, 7.0);
}

#[test]
fn forgotten_keys_give_their_memory_back_and_no_sample_gets_lost() {
    let mut server =
        Server::with(Aggregation { delete_idle_counters: true, ..Aggregation::default() });
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
    assert!(server.registry.counters.dead() < 9000, "{}", server.registry.counters.dead());
}

#[test]
fn the_perl_dialect_has_its_own_counters() {
    let mut server = Server::new(&Settings { dialect: Dialect::Perl, ..Settings::default() });
    server.flush();
    let snapshot = server.flush();
    let keys: Vec<&str> = snapshot.counters.iter().map(|counter| counter.name.key()).collect();
    assert_eq!(keys, ["statsd.bad_lines_seen", "statsd.packets_received"]);
    assert_eq!(snapshot.gauges, []);
}

#[test]
fn the_busiest_keys_come_first() {
    let mut server = Server::with(Aggregation::default());
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
    assert_eq!(server.registry.key_flush(100.0).len(), 0, "it begins again");
}

#[test]
fn the_lag_is_told_from_the_second_flush_on() {
    let mut server = Server::with(Aggregation::default());
    assert_eq!(server.flush().gauges, []);
    server.seconds += 3;
    let gauge = server.flush().gauges[0].clone();
    assert_eq!((gauge.name.key(), gauge.value), ("statsd.timestamp_lag", 3.0));
}
