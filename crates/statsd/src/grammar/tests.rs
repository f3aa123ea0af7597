//! What every shape of line gives, and what is refused and why.

use proptest::prelude::*;

use super::*;
use crate::settings::Dialect;

/// Everything a packet says, one line of text each.
#[derive(Default)]
struct Told {
    lines: usize,
    told: Vec<String>,
}

impl Sink for Told {
    fn line(&mut self) {
        self.lines += 1;
    }

    fn sample(&mut self, sample: &Sample<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let value = match sample.value {
            Value::Count(number) => format!("count {number}"),
            Value::Timing(number, unit) => format!("{unit:?} {number}"),
            Value::Set(number) => format!("set {number}"),
            Value::Change(number) => format!("change {number}"),
            Value::Member(member) => format!("member {}", text(member)),
        };
        let mut line = format!("{} {value}", text(sample.name));
        if !sample.tags.is_empty() {
            line += &format!(" tags {}", text(sample.tags));
        }
        if sample.rate != 1.0 {
            line += &format!(" rate {}", sample.rate);
        }
        self.told.push(line);
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.told.push(bad.reason.as_str().to_owned());
    }

    fn event(&mut self) {
        self.told.push("event".to_owned());
    }

    fn check(&mut self) {
        self.told.push("check".to_owned());
    }
}

fn told_in(dialect: Dialect, bytes: &[u8]) -> Vec<String> {
    let mut told = Told::default();
    packet(bytes, dialect, &mut told);
    told.told
}

fn told(text: &str) -> Vec<String> {
    told_in(Dialect::Etsy, text.as_bytes())
}

#[test]
fn the_types() {
    assert_eq!(told("a.b:1|c"), ["a.b count 1"]);
    assert_eq!(told("a:3.5|ms"), ["a Milliseconds 3.5"]);
    assert_eq!(told("a:-3|h"), ["a Plain -3"]);
    assert_eq!(told("a:7|d"), ["a Plain 7"]);
    assert_eq!(told("a:7|g"), ["a set 7"]);
    assert_eq!(told("a:-7|g"), ["a change -7"]);
    assert_eq!(told("a:+7|g"), ["a change 7"]);
    assert_eq!(told("a:bob|s"), ["a member bob"]);
    assert_eq!(told("a:|s"), ["a member 0"]);
    assert_eq!(told("a:1|"), ["a count 1"]);
    assert_eq!(told("a:1|whatever"), ["a count 1"]);
    assert_eq!(told("a:2|ms\r"), ["a Milliseconds 2"]);
}

#[test]
fn rates() {
    assert_eq!(told("a:1|c|@0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(told("a:1|ms|@0.5"), ["a Milliseconds 1 rate 0.5"]);
    assert_eq!(told("a:1|c|@2e-1"), ["a count 1 rate 0.2"]);
    for bad in ["@", "@0", "@-1", "@x", "@Infinity", "@1e-320", ""] {
        assert_eq!(told(&format!("a:1|c|{bad}")), ["bad_rate"], "{bad:?}");
    }
    assert_eq!(told("a:1|c|0.1"), ["unknown_field"]);
    // What stops other servers for good, or for minutes, is one line here.
    assert_eq!(told("a:1|c|@+0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(told("a:1|c|@ 0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(told("a:1|ms|@1e-9"), ["a Milliseconds 1 rate 0.000000001"]);
    assert_eq!(told("constructor:1|ms"), ["constructor Milliseconds 1"]);
    assert_eq!(told("__proto__:1|c"), ["__proto__ count 1"]);
    assert_eq!(told("a:|g"), ["not_a_number"]);
}

#[test]
fn several_values() {
    assert_eq!(told("a:1|c:2|ms"), ["a count 1", "a Milliseconds 2"]);
    assert_eq!(told("a:1|c|@0.5:2|ms"), ["a count 1 rate 0.5", "a Milliseconds 2"]);
    assert_eq!(
        told("a:1:2:3|c|@0.5"),
        ["a count 1 rate 0.5", "a count 2 rate 0.5", "a count 3 rate 0.5"]
    );
    assert_eq!(told("a:1:x|c"), ["a count 1", "not_a_number"]);
    assert_eq!(told("a:1|c:2"), ["a count 1", "no_type"]);
    assert_eq!(told("a:1|c\n\nb:2|c\n"), ["a count 1", "b count 2"]);
}

#[test]
fn tags_and_fields_of_dogstatsd() {
    assert_eq!(told("a:1|c|#env:prod,canary"), ["a count 1 tags env:prod,canary"]);
    assert_eq!(told("a:1|c|@0.5|#t:1"), ["a count 1 tags t:1 rate 0.5"]);
    assert_eq!(told("a:1|c|#t:1|@0.5"), ["a count 1 tags t:1 rate 0.5"]);
    assert_eq!(told("a:1|c|c:ci-83c|T1656581400"), ["a count 1"]);
    assert_eq!(
        told("a:1|c|#t:1|c:in-5|e:it-false,cn-x|card:low|T5|new:er"),
        ["a count 1 tags t:1"]
    );
    assert_eq!(told("a:1|g|T5:2|g"), ["a set 1", "a set 2"]);
    assert_eq!(told("a:1|c|c:one:2|c"), ["a count 1"]);
    assert_eq!(told("a:1|c|c:one|@0.5:2|c"), ["a count 1 rate 0.5", "a count 2"]);
    assert_eq!(told("a:1|c|#"), ["a count 1"]);
    assert_eq!(told("a|#b:1|c"), ["no_type"]);
}

#[test]
fn events_and_checks_are_counted() {
    assert_eq!(told("_e{5,4}:title|text|p:low"), ["event"]);
    assert_eq!(told("_e{5,0}:title|"), ["event"]);
    assert_eq!(told("_sc|db.up|0|m:fine"), ["check"]);
    for bad in
        ["_e{5,9}:title|text", "_e{", "_e{a,b}:t|x", "_e{0,1}:|x", "_e{99999999999999999999,1}:a|b"]
    {
        assert_eq!(told(bad), ["bad_event"], "{bad}");
    }
    assert_eq!(told("_sc||0"), ["bad_check"]);
    assert_eq!(told("_sc|db|9"), ["bad_check"]);
}

#[test]
fn every_reject() {
    let cases = [
        ("foo", "no_type"),
        ("foo:1", "no_type"),
        ("foo:", "no_type"),
        ("foo:x|c", "not_a_number"),
        ("foo:|c", "not_a_number"),
        ("foo:1_0|c", "not_a_number"),
        ("foo:nan|g", "not_a_number"),
        ("foo:Infinity|g", "not_finite"),
        ("foo:-1|ms", "negative_timer"),
    ];
    for (line, reason) in cases {
        assert_eq!(told(line), [reason], "{line}");
    }
}

#[test]
fn values_that_would_spoil_a_sum_are_refused() {
    assert_eq!(told("a:1|c|@1e-300"), ["bad_rate"]);
    assert_eq!(told("a:1|c|@1e-9"), ["a count 1 rate 0.000000001"]);
    assert_eq!(told("a:1|c|#t:1|@1e-10"), ["bad_rate"]);
    for bad in ["1.7e308|c", "-1e19|c", "1e19|ms", "1e300|d", "+1e300|g", "1e12|c|@1e-7"] {
        assert_eq!(told(&format!("a:{bad}")), ["too_large"], "{bad}");
    }
    assert_eq!(told("a:1e18|c"), ["a count 1000000000000000000"]);
    assert_eq!(told("a:1e300|g").len(), 1, "a gauge is not added up");
}

#[test]
fn dogstatsd_gauges_are_absolute_and_nothing_else_differs() {
    let told = |text: &str| told_in(Dialect::Dogstatsd, text.as_bytes());
    assert_eq!(told("g:-5|g"), ["g set -5"]);
    assert_eq!(told("g:+5|g|#a:b"), ["g set 5 tags a:b"]);
    assert_eq!(told("t:5|ms|@0.1"), ["t Milliseconds 5 rate 0.1"]);
    assert_eq!(told("c:-5|c|T1656581400"), ["c count -5"]);
}

#[test]
fn the_perl_server_knows_neither_deltas_nor_sampled_timers() {
    assert_eq!(told_in(Dialect::Perl, b"a:-5|g"), ["a set -5"]);
    assert_eq!(told_in(Dialect::Perl, b"a:5|ms|@0.1"), ["a Milliseconds 5"]);
    assert_eq!(told_in(Dialect::Perl, b"a:5|c|@0.1"), ["a count 5 rate 0.1"]);
}

proptest! {
    /// Every line that is not empty gives at least one sample or one complaint, and numbers are
    /// what the grammar promises.
    #[test]
    fn any_bytes(bytes in "[a:|#@.1\\-+cgmshdT_e{},\n]{0,60}") {
        struct Check { lines: usize, answers: usize }
        impl Sink for Check {
            fn line(&mut self) { self.lines += 1; }
            fn sample(&mut self, sample: &Sample<'_>) {
                self.answers += 1;
                assert!(sample.rate > 0.0 && 1.0 / sample.rate <= WEIGHT_MAX);
                match sample.value {
                    Value::Count(number) | Value::Set(number) | Value::Change(number) => assert!(number.is_finite()),
                    Value::Timing(number, unit) => {
                        assert!(number.is_finite());
                        assert!(number >= 0.0 || unit == TimingUnit::Plain);
                    }
                    Value::Member(member) => assert!(!member.is_empty()),
                }
            }
            fn bad(&mut self, bad: BadLine<'_>) { self.answers += 1; assert!(!bad.line.is_empty()); }
            fn event(&mut self) { self.answers += 1; }
            fn check(&mut self) { self.answers += 1; }
        }
        let mut check = Check { lines: 0, answers: 0 };
        packet(bytes.as_bytes(), Dialect::Etsy, &mut check);
        prop_assert_eq!(check.lines, bytes.split('\n').filter(|line| !line.is_empty()).count());
        prop_assert!(check.answers >= check.lines);
    }
}
