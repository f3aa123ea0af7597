//! Sends the same input to this server and to reference servers, and compares the output.
//!
//! This file compares flushes with etsy's server from npm; `management` compares sessions at the
//! management ports of etsy's and of the Perl server, `exporter` scrapes of statsd_exporter,
//! `gostatsd` the lines that gostatsd sends to Graphite, and `dogstatsd` what a backend receives
//! with a model of DogStatsD's documented protocol, because Datadog's server needs an account.
//!
//! Intended differences are listed in [`DIVERGENCES`], and a test checks that each exists. Requires
//! node and npm; without them the tests print a message and pass, unless `HOWDAH_REQUIRE_NPM` is
//! set.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::panic, reason = "tests")]

mod dogstatsd;
mod etsy;
mod exporter;
mod generate;
mod gostatsd;
mod howdah;
mod management;
#[path = "../receivers/support.rs"]
#[allow(dead_code, reason = "the receivers' tests use the rest")]
mod support;

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use self::generate::PacketGenerator;

/// One step of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InputStep {
    Packet(Vec<u8>),
    Flush,
}

/// The output: one map per flush, from names such as `counters/a.b` to values.
type Flushes = Vec<BTreeMap<String, f64>>;

/// Settings in etsy's format, read by both servers.
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
fn generated_packets_flush_equal_values() {
    let Some(etsy) = etsy::install() else { return };
    for (seed, config) in (fresh_seed()..).zip(CONFIGS) {
        let mut lines = PacketGenerator::new(seed);
        let mut steps = Vec::new();
        for _ in 0..12 {
            steps.extend((0..400).map(|_| InputStep::Packet(lines.packet())));
            steps.push(InputStep::Flush);
        }
        // An interval without packets.
        steps.push(InputStep::Flush);
        let (theirs, ours) = (etsy.run(config, &steps).unwrap(), howdah::run(config, &steps));
        assert_eq!(theirs.len(), 13);
        for (at, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            let differences = differences(theirs, ours);
            assert!(
                differences.is_empty(),
                "seed {seed}, flush {at}, {config}\n{}",
                differences.join("\n")
            );
            assert!(at == 12 || theirs.len() > 100, "flush {at} has only {} values", theirs.len());
        }
    }
}

/// Intended differences, each with a packet that demonstrates it. Etsy's server exits on some of
/// them.
const DIVERGENCES: [(&str, &str); 18] = [
    ("h is a histogram, not a counter", "a:1|h"),
    ("d is a distribution, not a counter", "a:1|d"),
    ("packed values are all used", "a:1:2|ms"),
    ("a container id is not a bad line", "a:1|c|c:ci-1"),
    ("a timestamp is not a bad line", "a:1|c|T1656581400"),
    ("a rate after tags is applied", "a:1|c|#t:1|@0.5"),
    ("a rate may have an exponent", "a:1|c|@2e-1"),
    ("a rate of zero is a bad line", "a:1|c|@0"),
    ("an infinite value is a bad line", "a:Infinity|c"),
    ("a blank value is a bad line", "a: |c"),
    ("a negative timer is also a bad line with white space", "a:-1| ms"),
    ("InfluxDB tags in names are parsed", "a,t=1:1|c"),
    ("events and checks are not metrics", "_e{1,1}:a|b\n_sc|a|0"),
    ("a rate may have a sign or a space", "a:1|c|@+0.1"),
    ("no key is special", "constructor:1|ms"),
    ("an empty name is a bad line", ":1|c"),
    ("an excessive value is a bad line", "a:1e300|c"),
    ("an excessive rate is a bad line", "a:1|c|@1e-300"),
];

#[test]
fn listed_divergences_exist() {
    let Some(etsy) = etsy::install() else { return };
    for (name, packet) in DIVERGENCES {
        let steps = [InputStep::Packet(packet.as_bytes().to_vec()), InputStep::Flush];
        let ours = howdah::run("{}", &steps);
        // If etsy's server exits, any flush of ours is a difference.
        if let Ok(theirs) = etsy.run("{}", &steps) {
            assert!(
                !differences(&theirs[0], &ours[0]).is_empty(),
                "{name}: the servers no longer differ"
            );
        }
    }
    // A difference that depends on settings, not on packets.
    let config = "{ percentThreshold: -100 }";
    let steps = [InputStep::Packet(b"a:1|ms\na:2|ms".to_vec()), InputStep::Flush];
    let theirs = &etsy.run(config, &steps).unwrap()[0];
    assert!(theirs["timer_data/a/sum_top100"].is_nan());
    assert_eq!(howdah::run(config, &steps)[0]["timer_data/a/sum_top100"], 3.0);
}

#[test]
fn hostile_packet_does_not_stop_server() {
    let packets = ["constructor:1|ms", "__proto__:1|c", "a:1|c|@+0.1", "a:|g", "a:1|ms|@1e-9"];
    let steps = packets.map(|packet| InputStep::Packet(packet.as_bytes().to_vec()));
    let flushed = &howdah::run("{}", &[&steps[..], &[InputStep::Flush]].concat())[0];
    assert_eq!(flushed["timer_data/constructor/count"], 1.0);
    assert_eq!(flushed["counters/__proto__"], 1.0);
    assert_eq!(flushed["counters/a"], 10.0);
    assert_eq!(flushed["timer_data/a/count"], 999_999_999.999_999_9);
    assert_eq!(flushed["counters/statsd.bad_lines_seen"], 1.0);
}

/// Returns the seed in `HOWDAH_TEST_SEED` or else a new one, and prints it.
fn fresh_seed() -> u64 {
    let set = std::env::var("HOWDAH_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let nanoseconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = set.unwrap_or_else(|| u64::from(nanoseconds()));
    eprintln!("HOWDAH_TEST_SEED={seed}");
    seed
}

/// Keys that exist on one side only, and values that differ by more than a relative 1e-9.
fn differences(theirs: &BTreeMap<String, f64>, ours: &BTreeMap<String, f64>) -> Vec<String> {
    let mut differences = Vec::new();
    for (key, value) in theirs {
        match ours.get(key) {
            None => differences.push(format!("{key} is {value} there and missing here")),
            Some(own) => {
                let near = (own - value).abs() <= 1e-9 * value.abs().max(1.0);
                if !(near || own.is_nan() && value.is_nan()) {
                    differences.push(format!("{key} is {value} there and {own} here"));
                }
            }
        }
    }
    let extra = ours.keys().filter(|key| !theirs.contains_key(*key));
    differences.extend(extra.map(|key| format!("{key} exists only here")));
    differences
}
