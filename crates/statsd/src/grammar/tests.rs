//! The results of every form of line, and the reasons for refusals.

use proptest::prelude::*;

use super::*;

/// Records the content of packets, one text per call.
#[derive(Default)]
struct RecordedEvents {
    lines: usize,
    events: Vec<String>,
}

impl SampleSink for RecordedEvents {
    fn line(&mut self) {
        self.lines += 1;
    }

    fn sample(&mut self, sample: &StatsdSample<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let value = match sample.value {
            SampleValue::Count(number) => format!("count {number}"),
            SampleValue::Timing(number, unit) => format!("{unit:?} {number}"),
            SampleValue::Set(number) => format!("set {number}"),
            SampleValue::Change(number) => format!("change {number}"),
            SampleValue::Member(member) => format!("member {}", text(member)),
        };
        let mut line = format!("{} {value}", text(sample.name));
        if !sample.tags.is_empty() {
            line += &format!(" tags {}", text(sample.tags));
        }
        if !sample.container.is_empty() {
            line += &format!(" in {}", text(sample.container));
        }
        if sample.rate != 1.0 {
            line += &format!(" rate {}", sample.rate);
        }
        self.events.push(line);
    }

    fn timed_sample(&mut self, sample: &StatsdSample<'_>, time: Option<i64>) {
        self.sample(sample);
        let time = time.map_or("flush".to_owned(), |time| time.to_string());
        *self.events.last_mut().unwrap() += &format!(" at {time}");
    }

    fn running_total(&mut self, sample: &StatsdSample<'_>) {
        self.sample(sample);
        *self.events.last_mut().unwrap() += " in total";
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.events.push(bad.reason.as_str().to_owned());
    }

    fn event(&mut self, event: &StatsdEvent<'_>) {
        let StatsdEvent { title, text, fields, .. } = event;
        let [title, text] = [title, text].map(|text| String::from_utf8_lossy(text).into_owned());
        self.events.push(format!("event {title:?} {text:?}{}", options(fields)));
    }

    fn check(&mut self, check: &StatsdCheck<'_>) {
        let StatsdCheck { name, status, fields, .. } = check;
        let name = String::from_utf8_lossy(name);
        self.events.push(format!("check {name:?} {}{}", status.as_str(), options(fields)));
    }
}

/// Returns the fields of an event or a service check that are not as by default.
fn options(fields: &MessageOptions<'_>) -> String {
    let mut all = String::new();
    if let Some(time) = fields.time {
        all += &format!(" time={time}");
    }
    let (priority, alert) = (fields.priority.as_str(), fields.alert_type.as_str());
    let priority = if priority == "normal" { "" } else { priority };
    let alert = if alert == "info" { "" } else { alert };
    for (name, value) in [
        ("host", fields.host),
        ("tags", fields.tags),
        ("container", fields.container),
        ("key", fields.aggregation_key),
        ("priority", priority.as_bytes()),
        ("source", fields.source_type),
        ("alert", alert.as_bytes()),
        ("message", fields.message),
    ] {
        if !value.is_empty() {
            all += &format!(" {name}={}", String::from_utf8_lossy(value));
        }
    }
    all
}

fn rules(dialect: StatsdDialect) -> LineRules {
    LineRules::new(&StatsdSettings { dialect, ..StatsdSettings::default() })
}

fn parse_as(dialect: StatsdDialect, bytes: &[u8]) -> Vec<String> {
    let mut recorded = RecordedEvents::default();
    packet(bytes, rules(dialect), &mut recorded);
    recorded.events
}

fn parse(text: &str) -> Vec<String> {
    parse_as(StatsdDialect::Etsy, text.as_bytes())
}

#[test]
fn each_type_is_parsed() {
    assert_eq!(parse("a.b:1|c"), ["a.b count 1"]);
    assert_eq!(parse("a:3.5|ms"), ["a Milliseconds 3.5"]);
    assert_eq!(parse("a:-3|h"), ["a Plain -3"]);
    assert_eq!(parse("a:7|d"), ["a Plain 7"]);
    assert_eq!(parse("a:7|g"), ["a set 7"]);
    assert_eq!(parse("a:-7|g"), ["a change -7"]);
    assert_eq!(parse("a:+7|g"), ["a change 7"]);
    assert_eq!(parse("a:bob|s"), ["a member bob"]);
    assert_eq!(parse("a:|s"), ["a member 0"]);
    assert_eq!(parse("a:1|"), ["a count 1"]);
    assert_eq!(parse("a:1|whatever"), ["a count 1"]);
    assert_eq!(parse("a:2|ms\r"), ["a Milliseconds 2"]);
}

#[test]
fn sample_rates_are_validated() {
    assert_eq!(parse("a:1|c|@0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(parse("a:1|ms|@0.5"), ["a Milliseconds 1 rate 0.5"]);
    assert_eq!(parse("a:1|c|@2e-1"), ["a count 1 rate 0.2"]);
    for bad in ["@", "@0", "@-1", "@x", "@Infinity", "@1e-320", ""] {
        assert_eq!(parse(&format!("a:1|c|{bad}")), ["bad_rate"], "{bad:?}");
    }
    assert_eq!(parse("a:1|c|0.1"), ["unknown_field"]);
    // These lines crash other servers or block them for minutes.
    assert_eq!(parse("a:1|c|@+0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(parse("a:1|c|@ 0.1"), ["a count 1 rate 0.1"]);
    assert_eq!(parse("a:1|ms|@1e-9"), ["a Milliseconds 1 rate 0.000000001"]);
    assert_eq!(parse("constructor:1|ms"), ["constructor Milliseconds 1"]);
    assert_eq!(parse("__proto__:1|c"), ["__proto__ count 1"]);
    assert_eq!(parse("a:|g"), ["not_a_number"]);
}

#[test]
fn line_with_several_values_yields_each() {
    assert_eq!(parse("a:1|c:2|ms"), ["a count 1", "a Milliseconds 2"]);
    assert_eq!(parse("a:1|c|@0.5:2|ms"), ["a count 1 rate 0.5", "a Milliseconds 2"]);
    assert_eq!(
        parse("a:1:2:3|c|@0.5"),
        ["a count 1 rate 0.5", "a count 2 rate 0.5", "a count 3 rate 0.5"]
    );
    assert_eq!(parse("a:1:x|c"), ["a count 1", "not_a_number"]);
    assert_eq!(parse("a:1|c:2"), ["a count 1", "no_type"]);
    assert_eq!(parse("a:1|c\n\nb:2|c\n"), ["a count 1", "b count 2"]);
}

#[test]
fn dogstatsd_tags_and_fields_are_parsed() {
    assert_eq!(parse("a:1|c|#env:prod,canary"), ["a count 1 tags env:prod,canary"]);
    assert_eq!(parse("a:1|c|@0.5|#t:1"), ["a count 1 tags t:1 rate 0.5"]);
    assert_eq!(parse("a:1|c|#t:1|@0.5"), ["a count 1 tags t:1 rate 0.5"]);
    assert_eq!(parse("a:1|c|c:ci-83c|T1656581400"), ["a count 1"]);
    assert_eq!(
        parse("a:1|c|#t:1|c:in-5|e:it-false,cn-x|card:low|T5|new:er"),
        ["a count 1 tags t:1"]
    );
    assert_eq!(parse("a:1|g|T5:2|g"), ["a set 1", "a set 2"]);
    assert_eq!(parse("a:1|c|c:one:2|c"), ["a count 1"]);
    assert_eq!(parse("a:1|c|c:one|@0.5:2|c"), ["a count 1 rate 0.5", "a count 2"]);
    assert_eq!(parse("a:1|c|#"), ["a count 1"]);
    assert_eq!(parse("a|#b:1|c"), ["no_type"]);
}

#[test]
fn events_and_checks_are_parsed() {
    assert_eq!(parse("_e{5,4}:title|text|p:low"), ["event \"title\" \"text\" priority=low"]);
    assert_eq!(parse("_e{5,0}:title|"), ["event \"title\" \"\""]);
    assert_eq!(parse("_e{1,1}:1|c"), ["event \"1\" \"c\""], "not a counter");
    assert_eq!(parse("_e{3,3}:a|b|c|d|p:high|t:fatal|d:x"), ["event \"a|b\" \"c|d\""]);
    assert_eq!(
        parse(
            "_e{2,6}:hi|a\\nb:c|d:9|h:web|k:deploy|p:low|s:ci|t:error|#env:prod,x|c:ci-1|e:it|new"
        ),
        ["event \"hi\" \"a\\\\nb:c\" time=9 host=web tags=env:prod,x key=deploy priority=low \
             source=ci alert=error"]
    );
    assert_eq!(parse("_e{2,2}:h\u{e9}|xx"), ["bad_event"], "lengths are in bytes");
    assert_eq!(parse("_sc|db.up|0|m:fine"), ["check \"db.up\" ok message=fine"]);
    assert_eq!(parse("_sc|a|3"), ["check \"a\" unknown"]);
    assert_eq!(
        parse_as(
            StatsdDialect::Dogstatsd,
            b"_sc|a|2|d:9|h:web|#env:prod|m:down since 9:00|c:ci-1|card:low"
        ),
        [
            "check \"a\" critical time=9 host=web tags=env:prod container=ci-1 message=down since 9:00"
        ]
    );
    for bad in
        ["_e{5,9}:title|text", "_e{", "_e{a,b}:t|x", "_e{0,1}:|x", "_e{99999999999999999999,1}:a|b"]
    {
        assert_eq!(parse(bad), ["bad_event"], "{bad}");
    }
    assert_eq!(parse("_sc||0"), ["bad_check"]);
    assert_eq!(parse("_sc|db|9"), ["bad_check"]);
    assert_eq!(parse("_sc|db|00"), ["bad_check"]);
}

#[test]
fn unusable_values_report_reason() {
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
        assert_eq!(parse(line), [reason], "{line}");
    }
}

#[test]
fn excessive_values_are_refused() {
    assert_eq!(parse("a:1|c|@1e-300"), ["bad_rate"]);
    assert_eq!(parse("a:1|c|@1e-9"), ["a count 1 rate 0.000000001"]);
    assert_eq!(parse("a:1|c|#t:1|@1e-10"), ["bad_rate"]);
    for bad in ["1.7e308|c", "-1e19|c", "1e19|ms", "1e300|d", "+1e300|g", "1e12|c|@1e-7"] {
        assert_eq!(parse(&format!("a:{bad}")), ["too_large"], "{bad}");
    }
    assert_eq!(parse("a:1e18|c"), ["a count 1000000000000000000"]);
    assert_eq!(parse("a:1e300|g").len(), 1, "gauges are not summed");
}

#[test]
fn dogstatsd_gauges_are_absolute() {
    let parse = |text: &str| parse_as(StatsdDialect::Dogstatsd, text.as_bytes());
    assert_eq!(parse("g:-5|g"), ["g set -5"]);
    assert_eq!(parse("g:+5|g|#a:b"), ["g set 5 tags a:b"]);
    assert_eq!(parse("t:5|ms|@0.1"), ["t Milliseconds 5 rate 0.1"]);
    assert_eq!(parse("c:-5|c|T1656581400"), ["c count -5 at 1656581400"]);
}

#[test]
fn dogstatsd_dialect_reads_containers() {
    let parse = |text: &str| parse_as(StatsdDialect::Dogstatsd, text.as_bytes());
    assert_eq!(parse("a:1|c|c:ci-83c"), ["a count 1 in ci-83c"]);
    assert_eq!(
        parse("a:1:2|ms|@0.5|#t:1|c:in-5|e:it-false"),
        [
            "a Milliseconds 1 tags t:1 in in-5 rate 0.5",
            "a Milliseconds 2 tags t:1 in in-5 rate 0.5"
        ]
    );
    assert_eq!(
        parse("a:1|c|c:one|@0.5:2|g|c:two"),
        ["a count 1 in one rate 0.5", "a set 2 in two"]
    );
    assert_eq!(parse("a:1|c|c:one|card:none"), ["a count 1"]);
    assert_eq!(parse("a:1|c|card:low|#t|c:one|card:high"), ["a count 1 tags t in one"]);
    assert_eq!(parse("a:1|c|c:"), ["a count 1"]);
}

#[test]
fn dogstatsd_dialect_reads_timestamps() {
    let parse = |text: &str| parse_as(StatsdDialect::Dogstatsd, text.as_bytes());
    assert_eq!(parse("a:1:2|c|#t:1|T9"), ["a count 1 tags t:1 at 9", "a count 2 tags t:1 at 9"]);
    assert_eq!(parse("a:1|g|T9:2|g"), ["a set 1 at 9", "a set 2"]);
    assert_eq!(parse("a:1|ms|T9"), ["a Milliseconds 1"], "only counts and gauges have a time");
    assert_eq!(parse("a:1|s|T9"), ["a member 1"]);
    for bad in ["T0", "T", "T253402300800", "T99999999999999999999"] {
        assert_eq!(parse(&format!("a:1|c|{bad}")), ["bad_timestamp"], "{bad}");
        assert_eq!(parse(&format!("a:1|c|#t|{bad}")), ["bad_timestamp"], "{bad}");
    }
    assert_eq!(parse("a:1|c|#t|Tx"), ["a count 1 tags t"], "an unknown field after the tags");
}

#[test]
fn dogstatsd_dialect_reads_sets_and_fields_of_newer_clients() {
    let parse = |text: &str| parse_as(StatsdDialect::Dogstatsd, text.as_bytes());
    assert_eq!(parse("a:fe80::1|s|@0.5"), ["a member fe80::1 rate 0.5"]);
    assert_eq!(parse("a:|s"), ["a member 0"]);
    assert_eq!(
        parse("a:1:2|c|x:y:z|@0.5|#t"),
        ["a count 1 tags t rate 0.5", "a count 2 tags t rate 0.5"]
    );
    assert_eq!(parse("a:1|c|0.1"), ["a count 1"]);
    assert_eq!(parse("a:1|c|"), ["a count 1"]);
    // Other servers' packed values with their types are read, too.
    assert_eq!(parse("a:1|c:2|ms"), ["a count 1", "a Milliseconds 2"]);
}

#[test]
fn types_of_other_servers_are_counters_unless_turned_on() {
    let lines = "k:5|kv\nt:9|C|@0.1\nm:2|m";
    assert_eq!(parse(lines), ["k count 5", "t count 9 rate 0.1", "m count 2"]);
    let parse = |text: &str, dialect| {
        let types = ExtraTypes { kv: true, absolute_counter: true };
        let rules = LineRules { types, ..rules(dialect) };
        let mut recorded = RecordedEvents::default();
        packet(text.as_bytes(), rules, &mut recorded);
        recorded.events
    };
    let dogstatsd = StatsdDialect::Dogstatsd;
    for dialect in [StatsdDialect::Etsy, dogstatsd] {
        let expected = ["k set 5 at flush", "t count 9 in total", "m count 2"];
        assert_eq!(parse(lines, dialect), expected);
    }
    assert_eq!(parse("k:-5|kv|#t:1", StatsdDialect::Etsy), ["k set -5 tags t:1 at flush"]);
    assert_eq!(parse("k:5|kv|T9\nt:9|C|T9", dogstatsd), ["k set 5 at 9", "t count 9 in total"]);
    assert_eq!(parse("k:x|kv\nt:1e19|C", dogstatsd), ["not_a_number", "too_large"]);
}

#[test]
fn perl_dialect_ignores_deltas_and_timer_rates() {
    assert_eq!(parse_as(StatsdDialect::Perl, b"a:-5|g"), ["a set -5"]);
    assert_eq!(parse_as(StatsdDialect::Perl, b"a:5|ms|@0.1"), ["a Milliseconds 5"]);
    assert_eq!(parse_as(StatsdDialect::Perl, b"a:5|c|@0.1"), ["a count 5 rate 0.1"]);
}

proptest! {
    /// Every non-empty line yields at least one sample or reject, and numbers are within the
    /// documented ranges.
    #[test]
    fn every_line_yields_sample_or_reject(bytes in "[a:|#@.1\\-+cgmshdT_e{},\n]{0,60}") {
        struct CountingSink { lines: usize, events: usize }
        impl SampleSink for CountingSink {
            fn line(&mut self) { self.lines += 1; }
            fn sample(&mut self, sample: &StatsdSample<'_>) {
                self.events += 1;
                assert!(sample.rate > 0.0 && 1.0 / sample.rate <= WEIGHT_MAX);
                match sample.value {
                    SampleValue::Count(number) | SampleValue::Set(number) | SampleValue::Change(number) => assert!(number.is_finite()),
                    SampleValue::Timing(number, unit) => {
                        assert!(number.is_finite());
                        assert!(number >= 0.0 || unit == TimingUnit::Plain);
                    }
                    SampleValue::Member(member) => assert!(!member.is_empty()),
                }
            }
            fn timed_sample(&mut self, sample: &StatsdSample<'_>, _: Option<i64>) { self.sample(sample); }
            fn running_total(&mut self, sample: &StatsdSample<'_>) { self.sample(sample); }
            fn bad(&mut self, bad: BadLine<'_>) { self.events += 1; assert!(!bad.line.is_empty()); }
            fn event(&mut self, event: &StatsdEvent<'_>) { self.events += 1; assert!(!event.title.is_empty()); }
            fn check(&mut self, check: &StatsdCheck<'_>) { self.events += 1; assert!(!check.name.is_empty()); }
        }
        for dialect in [StatsdDialect::Etsy, StatsdDialect::Perl, StatsdDialect::Dogstatsd] {
            let mut check = CountingSink { lines: 0, events: 0 };
            packet(bytes.as_bytes(), rules(dialect), &mut check);
            prop_assert_eq!(check.lines, bytes.split('\n').filter(|line| !line.is_empty()).count());
            prop_assert!(check.events >= check.lines);
        }
    }

    /// An event with any texts and fields is read as it was written.
    #[test]
    fn events_round_trip(
        title in "[^\n]{1,9}", text in "[^\n]{0,9}", host in "[a-z.]{1,9}", tags in "[a-z:,]{1,9}",
    ) {
        let (title_bytes, text_bytes) = (title.len(), text.len());
        let line = format!("_e{{{title_bytes},{text_bytes}}}:{title}|{text}|h:{host}|#{tags}|t:warning");
        let event = event(line.as_bytes(), rules(StatsdDialect::Etsy)).unwrap();
        let fields = MessageOptions {
            host: host.as_bytes(),
            tags: tags.as_bytes(),
            alert_type: AlertType::Warning,
            ..MessageOptions::default()
        };
        let expected = StatsdEvent {
            line: line.as_bytes(), title: title.as_bytes(), text: text.as_bytes(), fields,
        };
        prop_assert_eq!(event, expected);
    }

    /// The fast path for common forms of lines yields what the general parser does.
    #[test]
    fn simple_lines_are_read_like_general_ones(
        line in "[a_.:|#]{0,3}a?:[+-]?[0-9]{0,17}(\\.[0-9]{0,3})?\\|(c|g|ms|s)(\\|@[+-]?[0-9.]{0,4})?(\\|#[a:,]{0,4})?[\r|@]?"
    ) {
        for dialect in [StatsdDialect::Etsy, StatsdDialect::Perl, StatsdDialect::Dogstatsd] {
            let mut general = RecordedEvents::default();
            parse::general_line(line.as_bytes(), rules(dialect), &mut general);
            prop_assert_eq!(parse_as(dialect, line.as_bytes()), general.events);
        }
    }
}
