//! Packets of statsd clients, with arbitrary bytes.

use std::mem::discriminant;

use howdah_statsd::{
    aggregate::{SampleShard, ShardInterval},
    grammar::{
        BadLine, LineRules, RejectReason, SampleSink, SampleValue, StatsdCheck, StatsdEvent,
        StatsdSample, WEIGHT_MAX, packet,
    },
    settings::{ExtraTypes, StatsdDialect, StatsdLimits, StatsdSettings},
};

use super::Shape;

/// Types, fields, numbers, and packets that crashed other servers.
pub const WORDS: &[&[u8]] = &[
    b"a:1|c",
    b":",
    b"|",
    b"\n",
    b"|c",
    b"|g",
    b"|ms",
    b"|h",
    b"|d",
    b"|s",
    b"|kv",
    b"|C",
    b"|@0.1",
    b"|@+0.1",
    b"|@1e-9",
    b"|@0",
    b"|#env:prod,canary",
    b"|c:0123456789abcdef",
    b"|T1656581400",
    b"|e:it",
    b"|card:low",
    b"_e{5,4}:title|text",
    b"_sc|name|0",
    b"|d:1656581400",
    b"|h:host",
    b"|k:key",
    b"|p:low",
    b"|t:error",
    b"|m:message",
    b"constructor:1|ms",
    b"__proto__",
    b"-5",
    b"+5",
    b"1e308",
    b"0x10",
    b"Infinity",
    b"nan",
    b"123456789012345678901234567890",
    b"0.000000000000000001",
];

/// Checks, in all dialects, that a packet parses like its lines one by one, that values are finite,
/// and that a shard with few keys counts the same samples as the grammar.
pub fn run(input: &[u8]) -> Shape {
    Shape::each(
        [StatsdDialect::Etsy, StatsdDialect::Perl, StatsdDialect::Dogstatsd].into_iter().flat_map(
            |dialect| {
                let whole = SampleTrace::by(input, dialect);
                let mut lines = SampleTrace::default();
                for line in input.split(|byte| *byte == b'\n') {
                    let before = (lines.outcomes.len(), lines.lines);
                    packet(line, rules(dialect), &mut lines);
                    assert_eq!(lines.lines - before.1, u64::from(!line.is_empty()));
                    assert_eq!(
                        lines.outcomes.len() > before.0,
                        !line.is_empty(),
                        "a line says something"
                    );
                }
                assert_eq!(whole, lines);
                aggregate(input, dialect, &whole);
                whole.outcomes.into_iter().map(|outcome| outcome.shape)
            },
        ),
    )
}

/// Returns settings in which everything that the dialect does not exclude is on.
fn settings(dialect: StatsdDialect) -> StatsdSettings {
    let types = ExtraTypes { kv: true, absolute_counter: true };
    StatsdSettings { dialect, types, ..StatsdSettings::default() }
}

fn rules(dialect: StatsdDialect) -> LineRules {
    LineRules::new(&settings(dialect))
}

/// Aggregates the packet twice, with a flush in between.
fn aggregate(input: &[u8], dialect: StatsdDialect, trace: &SampleTrace) {
    let limits = StatsdLimits {
        keys: 3,
        key_bytes: 64,
        tags: 2,
        exact_samples: 2,
        set_members: 2,
        ..StatsdLimits::default()
    };
    let mut shard = SampleShard::new(&StatsdSettings { limits, ..settings(dialect) });
    shard.store_messages();
    let mut spare = ShardInterval::default();
    for round in 0..2 {
        shard.apply_packet(input);
        let interval = shard.swap(spare);
        let bad = trace.outcomes.iter().filter(|outcome| outcome.bad).count() as u64;
        let heard = trace.outcomes.len() as u64;
        let used = interval.samples + interval.events + interval.checks;
        // The grammar accepts samples that a shard rejects because of its limits.
        let refused = interval.rejects.count(RejectReason::KeyTooLong)
            + interval.rejects.count(RejectReason::TooManyTags)
            + interval.rejects.count(RejectReason::TooManyTimestamps)
            + interval.rejects.count(RejectReason::NoName);
        assert_eq!(interval.rejects.total() - refused, bad, "round {round}");
        assert_eq!(used + bad, heard, "round {round}");
        assert_eq!((interval.packets, interval.lines), (1, trace.lines));
        assert!(interval.keys <= 4 * 3, "{} keys", interval.keys);
        assert!(round == 0 || interval.names.is_empty(), "known keys are not trace again");
        spare = interval;
        spare.clear();
    }
}

/// The grammar's results, in order.
#[derive(Debug, Default, PartialEq)]
struct SampleTrace {
    lines: u64,
    outcomes: Vec<Outcome>,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    bad: bool,
    /// All fields, for comparison.
    text: String,
    /// Without values, for the fuzzer's shape.
    shape: String,
}

impl SampleTrace {
    fn by(input: &[u8], dialect: StatsdDialect) -> Self {
        let mut trace = Self::default();
        packet(input, rules(dialect), &mut trace);
        trace
    }

    fn push(&mut self, bad: bool, text: String, shape: String) {
        self.outcomes.push(Outcome { bad, text, shape });
    }
}

impl SampleSink for SampleTrace {
    fn line(&mut self) {
        self.lines += 1;
    }

    fn sample(&mut self, sample: &StatsdSample<'_>) {
        let number = match sample.value {
            SampleValue::Count(value) | SampleValue::Timing(value, _) => value,
            SampleValue::Set(value) | SampleValue::Change(value) => value,
            SampleValue::Member(_) => 0.0,
        };
        assert!(number.is_finite() && sample.rate > 0.0 && 1.0 / sample.rate <= WEIGHT_MAX);
        let plain = sample.tags.is_empty() && sample.rate == 1.0;
        let shape = format!("{:?} {plain}", discriminant(&sample.value));
        self.push(false, format!("{sample:?}"), shape);
    }

    fn timed_sample(&mut self, sample: &StatsdSample<'_>, time: Option<i64>) {
        self.sample(sample);
        if let Some(outcome) = self.outcomes.last_mut() {
            outcome.text += &format!(" {time:?}");
        }
    }

    fn running_total(&mut self, sample: &StatsdSample<'_>) {
        self.sample(sample);
        if let Some(outcome) = self.outcomes.last_mut() {
            outcome.text += " in total";
        }
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.push(true, format!("{bad:?}"), format!("{:?}", bad.reason));
    }

    fn event(&mut self, event: &StatsdEvent<'_>) {
        assert!(!event.title.is_empty() && event.line.starts_with(b"_e{"));
        self.push(false, format!("{event:?}"), "event".to_owned());
    }

    fn check(&mut self, check: &StatsdCheck<'_>) {
        assert!(!check.name.is_empty() && check.line.starts_with(b"_sc|"));
        self.push(false, format!("{check:?}"), format!("check {:?}", check.status));
    }
}
