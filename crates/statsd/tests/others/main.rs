//! The same into this server and into those of others: what comes out has to be equal.
//!
//! Here, packets go to etsy's server from npm, and flushes are compared; in `management`, sessions with
//! the management ports of etsy's and of the Perl server.
//!
//! Where the two are to differ, the difference has a name in [`DIVERGENCES`], and a test of its own
//! shows that it is there. Needs node and npm; without them the tests say so and pass, unless
//! `HOWDAH_REQUIRE_NPM` is set.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::panic, reason = "tests")]

mod etsy;
mod generate;
mod management;
mod ours;

use std::collections::BTreeMap;

use self::generate::Lines;

/// What goes in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Packet(Vec<u8>),
    Flush,
}

/// What came out: one map per flush, `counters/a.b` to its value.
type Flushes = Vec<BTreeMap<String, f64>>;

/// Settings in etsy's form, read by both.
const CONFIGS: [&str; 4] = [
    "{}",
    "{ deleteIdleStats: true, gaugesMaxTTL: 3, percentThreshold: [50, 90, 99.9, -10] }",
    "{ percentThreshold: [58, -25, 5], histogram: [ { metric: 'k1', bins: [] },
       { metric: '', bins: [1, 2.5, 10, 'inf'] } ], deleteGauges: true, deleteCounters: true }",
    "{ keyNameSanitize: false, prefixStats: 'own', flushInterval: 7000,
       calculatedTimerMetrics: ['count', 'upper_percent', 'median', 'histogram', 'sum_99_percent'],
       percentThreshold: [99.5, 75] }",
];

#[test]
fn generated_streams_flush_the_same() {
    let Some(etsy) = etsy::install() else { return };
    for (seed, config) in (1..).zip(CONFIGS) {
        let mut lines = Lines::new(seed);
        let mut steps = Vec::new();
        for _ in 0..12 {
            steps.extend((0..400).map(|_| Step::Packet(lines.packet())));
            steps.push(Step::Flush);
        }
        // An interval in which nothing comes.
        steps.push(Step::Flush);
        let (theirs, ours) = (etsy.run(config, &steps).unwrap(), ours::run(config, &steps));
        assert_eq!(theirs.len(), 13);
        for (at, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            let told = differences(theirs, ours);
            assert!(told.is_empty(), "seed {seed}, flush {at}, {config}\n{}", told.join("\n"));
            assert!(at == 12 || theirs.len() > 100, "flush {at} told {} values", theirs.len());
        }
    }
}

/// Where we differ, why, and a packet that shows it; what etsy's server flushes for it or, when it
/// stops for good, nothing.
const DIVERGENCES: [(&str, &str); 18] = [
    ("h is a histogram, not a counter", "a:1|h"),
    ("d is a distribution, not a counter", "a:1|d"),
    ("packed values are all used", "a:1:2|ms"),
    ("a container id is no bad line", "a:1|c|c:ci-1"),
    ("a timestamp is no bad line", "a:1|c|T1656581400"),
    ("a rate counts behind tags too", "a:1|c|#t:1|@0.5"),
    ("an exponent belongs to a rate", "a:1|c|@2e-1"),
    ("a rate of nothing is a bad line", "a:1|c|@0"),
    ("an infinite value is a bad line", "a:Infinity|c"),
    ("a blank value is a bad line", "a: |c"),
    ("a negative timer is a bad line with white space, too", "a:-1| ms"),
    ("tags of Influx are tags", "a,t=1:1|c"),
    ("events and checks are no metrics", "_e{1,1}:a|b\n_sc|a|0"),
    ("a rate with a sign or a blank is a rate", "a:1|c|@+0.1"),
    ("no key is special", "constructor:1|ms"),
    ("an empty name is a bad line", ":1|c"),
    ("a value that would spoil a sum is a bad line", "a:1e300|c"),
    ("a rate that would spoil a sum is a bad line", "a:1|c|@1e-300"),
];

#[test]
fn every_divergence_is_there() {
    let Some(etsy) = etsy::install() else { return };
    for (name, packet) in DIVERGENCES {
        let steps = [Step::Packet(packet.as_bytes().to_vec()), Step::Flush];
        let ours = ours::run("{}", &steps);
        // Etsy's server stops at some of them: then anything we flush is a difference.
        if let Ok(theirs) = etsy.run("{}", &steps) {
            assert!(!differences(&theirs[0], &ours[0]).is_empty(), "{name}: no longer different");
        }
    }
    // The one that settings make, not packets.
    let config = "{ percentThreshold: -100 }";
    let steps = [Step::Packet(b"a:1|ms\na:2|ms".to_vec()), Step::Flush];
    let theirs = &etsy.run(config, &steps).unwrap()[0];
    assert!(theirs["timer_data/a/sum_top100"].is_nan());
    assert_eq!(ours::run(config, &steps)[0]["timer_data/a/sum_top100"], 3.0);
}

#[test]
fn one_packet_does_not_stop_us() {
    let packets = ["constructor:1|ms", "__proto__:1|c", "a:1|c|@+0.1", "a:|g", "a:1|ms|@1e-9"];
    let steps = packets.map(|packet| Step::Packet(packet.as_bytes().to_vec()));
    let flushed = &ours::run("{}", &[&steps[..], &[Step::Flush]].concat())[0];
    assert_eq!(flushed["timer_data/constructor/count"], 1.0);
    assert_eq!(flushed["counters/__proto__"], 1.0);
    assert_eq!(flushed["counters/a"], 10.0);
    assert_eq!(flushed["timer_data/a/count"], 999_999_999.999_999_9);
    assert_eq!(flushed["counters/statsd.bad_lines_seen"], 1.0);
}

/// Keys that one side lacks, and values further apart than 1e-9 of their size.
fn differences(theirs: &BTreeMap<String, f64>, ours: &BTreeMap<String, f64>) -> Vec<String> {
    let mut told = Vec::new();
    for (key, value) in theirs {
        match ours.get(key) {
            None => told.push(format!("{key} is {value} there and missing here")),
            Some(own) => {
                let near = (own - value).abs() <= 1e-9 * value.abs().max(1.0);
                if !(near || own.is_nan() && value.is_nan()) {
                    told.push(format!("{key} is {value} there and {own} here"));
                }
            }
        }
    }
    let extra = ours.keys().filter(|key| !theirs.contains_key(*key));
    told.extend(extra.map(|key| format!("{key} is here only")));
    told
}
