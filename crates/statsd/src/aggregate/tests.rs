//! Shards as used by readers and the flush.

use proptest::prelude::*;

use super::*;
use crate::{
    grammar::RejectReason,
    settings::{ExtraTypes, SetOverflow, StatsdDialect, StatsdLimits},
};

fn shard(limits: StatsdLimits) -> SampleShard {
    SampleShard::new(&StatsdSettings { limits, ..StatsdSettings::default() })
}

/// Returns all used counters of an interval, by raw name.
fn sums(interval: &mut ShardInterval, names: &mut Vec<String>) -> Vec<(String, f64)> {
    for name in interval.names.iter().filter(|name| name.kind == MetricType::Counter) {
        names.push(String::from_utf8_lossy(name.name).into_owned());
    }
    let mut sums = Vec::new();
    interval.counters.drain(|cell, counter| sums.push((names[cell].clone(), counter.sum)));
    sums
}

#[test]
fn known_key_is_named_only_in_first_interval() {
    let (mut shard, mut names) = (shard(StatsdLimits::default()), Vec::new());
    shard.apply_packet(b"a:1|c\na:2|c|@0.5\nb:1|c");
    let mut first = shard.swap(ShardInterval::default());
    assert_eq!((first.packets, first.lines, first.samples, first.names.len()), (1, 3, 3, 2));
    assert_eq!(sums(&mut first, &mut names), [("a".into(), 5.0), ("b".into(), 1.0)]);
    first.clear();
    shard.apply_packet(b"b:7|c");
    let mut second = shard.swap(first);
    assert!(second.names.is_empty());
    assert_eq!(sums(&mut second, &mut names), [("b".into(), 7.0)]);
    second.clear();
    let third = shard.swap(second);
    assert_eq!(third.counters.touched(), 0);
}

#[test]
fn one_name_can_have_every_type() {
    let mut shard = shard(StatsdLimits::default());
    shard.apply_packet(b"a:1|c\na:1|ms\na:1|g\na:1|s\na:1|c|#t:1");
    let interval = shard.swap(ShardInterval::default());
    assert_eq!(interval.keys, 2);
    assert_eq!(interval.names.len(), 5);
}

#[test]
fn excess_keys_share_overflow_key() {
    let (mut shard, mut names) =
        (shard(StatsdLimits { keys: 2, ..StatsdLimits::default() }), Vec::new());
    for key in 0..1000 {
        shard.apply_packet(format!("k{key}:1|c").as_bytes());
    }
    let mut interval = shard.swap(ShardInterval::default());
    assert_eq!((interval.keys, interval.overflow_samples), (2, 998));
    assert!((950..=1050).contains(&interval.overflow_keys), "{}", interval.overflow_keys);
    let sums = sums(&mut interval, &mut names);
    assert_eq!(sums[2], ("statsd.overflow".into(), 998.0));
}

#[test]
fn container_is_part_of_key_where_rules_say_so() {
    let packet = b"a:1|c\na:2|c|c:x\na:4|c|#t:1\na:8|c|#t:1|c:x\na:16|c|c:x\na:32|c|#t:1";
    let key =
        |name: NewName<'_>| String::from_utf8_lossy(&[name.name, name.tags].concat()).into_owned();
    for (dialect, keys) in [
        (StatsdDialect::Etsy, &["a", "at:1"][..]),
        (StatsdDialect::Dogstatsd, &["a", "a|x", "at:1", "at:1|x"]),
    ] {
        let mut shard = SampleShard::new(&StatsdSettings { dialect, ..StatsdSettings::default() });
        shard.apply_packet(packet);
        let mut interval = shard.swap(ShardInterval::default());
        let names: Vec<String> = interval.names.iter().map(key).collect();
        assert_eq!(names, keys);
        let mut sums = Vec::new();
        interval.counters.drain(|_, counter| sums.push(counter.sum));
        let expected: &[f64] =
            if keys.len() == 2 { &[19.0, 44.0] } else { &[1.0, 18.0, 36.0, 8.0] };
        assert_eq!(sums, expected);
        // Known keys are found again, also after the table has grown.
        for number in 0..1000 {
            shard.apply_packet(format!("k{number}:1|c|#t|c:{number}").as_bytes());
        }
        shard.swap(ShardInterval::default());
        shard.apply_packet(packet);
        assert!(shard.swap(ShardInterval::default()).names.is_empty());
    }
}

#[test]
fn running_total_counts_its_increase() {
    let types = ExtraTypes { absolute_counter: true, ..ExtraTypes::default() };
    let mut shard = SampleShard::new(&StatsdSettings { types, ..StatsdSettings::default() });
    let mut names = Vec::new();
    shard.apply_packet(b"t:100|C\nt:130|C\nt:130|C\nu:7|C\nt:5|C|#a:b");
    let mut interval = shard.swap_and_reset(ShardInterval::default());
    let expected = [("t".into(), 30.0), ("u".into(), 0.0), ("t".into(), 0.0)];
    assert_eq!(sums(&mut interval, &mut names), expected);
    // The sender of `t` restarts; totals survive a reset of the keys.
    shard.apply_packet(b"t:150|C\nt:4|C\nt:6|C\nt:8|C|#a:b\n:1|C\nu:-3|C");
    let mut interval = shard.swap(ShardInterval::default());
    let expected = [("t".into(), 26.0), ("t".into(), 3.0), ("u".into(), 0.0)];
    assert_eq!(sums(&mut interval, &mut Vec::new()), expected);
    assert_eq!(interval.rejects.count(RejectReason::NoName), 1);
}

#[test]
fn oversized_keys_and_excess_tags_are_bad_lines() {
    let mut shard = shard(StatsdLimits { key_bytes: 8, tags: 2, ..StatsdLimits::default() });
    shard.apply_packet(b"123456789:1|c\n12345678:1|c\na:1|c|#a,b,c\na:1|c|#a,b");
    let interval = shard.swap(ShardInterval::default());
    assert_eq!(interval.rejects.count(RejectReason::KeyTooLong), 1);
    assert_eq!(interval.rejects.count(RejectReason::TooManyTags), 1);
    assert_eq!(interval.names.len(), 2);
}

#[test]
fn timer_with_excess_samples_becomes_sketch() {
    let mut shard = shard(StatsdLimits { exact_samples: 3, ..StatsdLimits::default() });
    shard.apply_packet(b"t:1:2:3:4|ms|@0.5");
    let mut interval = shard.swap(ShardInterval::default());
    interval.timers.drain(|_, timer| {
        assert_eq!((timer.samples.len(), timer.hits), (0, 4));
        assert_eq!(timer.weights.totals(4), WeightTotals { count: 8.0, excess: 10.0 });
        let sketched = timer.sketched.as_ref().unwrap();
        assert_eq!((sketched.samples, sketched.sum, sketched.sum_squares), (4, 10.0, 30.0));
        assert_eq!(sketched.range, Some((1.0, 4.0)));
        assert_eq!(sketched.sketch.range(), Some((0.001, 0.004)));
    });
}

fn set_limits(set_overflow: SetOverflow) -> StatsdLimits {
    StatsdLimits { set_members: 2, set_overflow, ..StatsdLimits::default() }
}

#[test]
fn set_with_excess_members_becomes_estimate() {
    let mut shard = shard(set_limits(SetOverflow::Estimate));
    shard.apply_packet(b"s:a|s\ns:b|s\nt:a|s\nt:b|s");
    (0..1000).for_each(|n| shard.apply_packet(format!("s:{n}|s").as_bytes()));
    let mut interval = shard.swap(ShardInterval::default());
    let mut counts = Vec::new();
    interval.sets.drain(|_, set| {
        let estimate = set.estimate.as_ref().map(|estimate| estimate.count());
        counts.push((set.members.len(), estimate, set.refused));
    });
    let [(0, Some(estimate), 0), (2, None, 0)] = counts[..] else { panic!("{counts:?}") };
    assert!((estimate / 1002.0 - 1.0).abs() < 0.025, "{estimate}");
}

#[test]
fn set_members_are_bounded() {
    let mut shard = shard(StatsdLimits { member_bytes: 3, ..set_limits(SetOverflow::Refuse) });
    shard.apply_packet(b"s:aaaa|s\ns:aaaa|s\ns:b|s\ns:c|s");
    let mut interval = shard.swap(ShardInterval::default());
    interval.sets.drain(|_, set| assert_eq!((set.members.len(), set.refused), (2, 1)));
}

#[test]
fn long_members_sharing_prefix_remain_distinct() {
    let mut shard = shard(StatsdLimits { member_bytes: 40, ..StatsdLimits::default() });
    let prefix = "x".repeat(300);
    shard.apply_packet(format!("s:{prefix}1|s\ns:{prefix}2|s\ns:{prefix}2|s").as_bytes());
    let mut interval = shard.swap(ShardInterval::default());
    interval.sets.drain(|_, set| {
        assert_eq!(set.members.len(), 2);
        assert!(set.members.iter().all(|member| member.len() == 40 && member.starts_with(b"xxx")));
    });
}

#[test]
fn empty_names_are_refused() {
    let mut shard = shard(StatsdLimits::default());
    shard.apply_packet(b":1|c\n:1|c|#a:b\n;a=b:1|c\n:2|ms");
    let interval = shard.swap(ShardInterval::default());
    assert_eq!((interval.rejects.count(RejectReason::NoName), interval.names.len()), (4, 0));
    assert_eq!(interval.rejects.recent[0].line, ":");
}

#[test]
fn recent_rejects_are_bounded_and_readable() {
    let mut shard = shard(StatsdLimits::default());
    for _ in 0..100 {
        shard.apply_packet(b"no\xfft\x07");
    }
    let interval = shard.swap(ShardInterval::default());
    assert_eq!(interval.rejects.total(), 100);
    assert_eq!(interval.rejects.recent.len(), 16);
    assert_eq!(interval.rejects.recent[0].line, "no\u{fffd}t\\u{7}");
}

#[test]
fn shard_reset_restarts_cell_numbering() {
    let (mut shard, mut names) = (shard(StatsdLimits::default()), Vec::new());
    shard.apply_packet(b"a:1|c");
    let _ = shard.swap_and_reset(ShardInterval::default());
    shard.apply_packet(b"b:2|c");
    assert_eq!(sums(&mut shard.swap(ShardInterval::default()), &mut names), [("b".into(), 2.0)]);
}

#[test]
fn listed_keys_are_in_cell_order() {
    let mut shard = shard(StatsdLimits { keys: 3, ..StatsdLimits::default() });
    shard.apply_packet(b"b:1|g\na:1|c|#t:1\na:1|g\nb:1|c\nc:1|c\nd:1|c\nd:1|g");
    let (interval, names) = shard.swap_and_list(ShardInterval::default());
    let list = |names: &NewNames, kind: MetricType| -> Vec<String> {
        let of_kind = names.iter().filter(|name| name.kind == kind);
        of_kind.map(|name| format!("{}#{}", text(name.name), text(name.tags))).collect()
    };
    for kind in MetricType::ALL {
        assert_eq!(list(&names, kind), list(&interval.names, kind));
    }
    assert_eq!(list(&names, MetricType::Counter), ["a#t:1", "b#", "c#", "statsd.overflow#"]);
    shard.apply_packet(b"x:1|s");
    assert_eq!(list(&shard.swap(interval).names, MetricType::Set), ["x#"]);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

proptest! {
    /// However the operations on a gauge are distributed over readers, the merged value equals that
    /// of one reader that received them all in batch order.
    #[test]
    fn merged_gauges_apply_operations_in_arrival_order(
        batches in proptest::collection::vec((0_usize..3, proptest::collection::vec((any::<bool>(), -9_i32..9), 1..4)), 1..40)
    ) {
        let mut alone = GaugeCell::default();
        let mut readers = [GaugeCell::default(), GaugeCell::default(), GaugeCell::default()];
        for (stamp, (reader, operations)) in (0..).zip(batches) {
            for (plain, number) in operations {
                for cell in [&mut alone, &mut readers[reader]] {
                    if plain { cell.set(stamp, f64::from(number)) } else { cell.change(stamp, f64::from(number)) }
                }
            }
        }
        let mut merged = GaugeCell::default();
        readers.iter().for_each(|reader| merged.merge(reader));
        prop_assert_eq!(merged.value(Some(5.0)), alone.value(Some(5.0)));
    }
}
