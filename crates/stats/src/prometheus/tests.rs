//! Expected texts are written by hand from the format specification. The parser below is as strict
//! as Prometheus' own about line order and escapes.

use std::collections::BTreeMap;

use super::PrometheusNumber;
use crate::{Description, MetricUnit, Registry};

const STATEMENTS: Description = Description::counter(
    "t_statements_total",
    "Statements, with \\ and\na second line, \"quoted\".",
);
const ERRORS: Description =
    Description::counter("t_errors_total", "Errors.").labels(&["sqlstate", "who"]);
const LAG: Description = Description::gauge("t_lag_seconds", "Lag.").unit(MetricUnit::Seconds);
const WAIT: Description = Description::histogram("t_wait_seconds", "Wait.")
    .bounds_us(&[100, 1_000, 2_500_000])
    .labels(&["kind"]);

#[test]
fn text_matches_exposition_format() {
    let registry = Registry::new();
    registry.counter(&STATEMENTS).add(7);
    registry.counter_with(&ERRORS, &[("sqlstate", "23505"), ("who", "a\"b\\c\nd")]).add(1);
    registry.counter_with(&ERRORS, &[("sqlstate", "40001"), ("who", "é{},=")]).add(2);
    registry.gauge(&LAG).set(-0.25);
    let wait = registry.histogram_with(&WAIT, &[("kind", "simple")]);
    for us in [100, 101, 5_000_000] {
        wait.observe_us(us);
    }
    assert_eq!(
        registry.prometheus(),
        r#"# HELP t_errors_total Errors.
# TYPE t_errors_total counter
t_errors_total{sqlstate="23505",who="a\"b\\c\nd"} 1
t_errors_total{sqlstate="40001",who="é{},="} 2
# HELP t_lag_seconds Lag.
# TYPE t_lag_seconds gauge
t_lag_seconds -0.25
# HELP t_statements_total Statements, with \\ and\na second line, "quoted".
# TYPE t_statements_total counter
t_statements_total 7
# HELP t_wait_seconds Wait.
# TYPE t_wait_seconds histogram
t_wait_seconds_bucket{kind="simple",le="0.0001"} 1
t_wait_seconds_bucket{kind="simple",le="0.001"} 2
t_wait_seconds_bucket{kind="simple",le="2.5"} 2
t_wait_seconds_bucket{kind="simple",le="+Inf"} 3
t_wait_seconds_sum{kind="simple"} 5.000201
t_wait_seconds_count{kind="simple"} 3
"#
    );
}

#[test]
fn numbers_are_shortest_and_round_trip() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (-2.5, "-2.5"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e20, "100000000000000000000"),
        (-1e21, "-1e21"),
        (f64::MAX, "1.7976931348623157e308"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ] {
        let rendered = PrometheusNumber(value).to_string();
        assert_eq!(rendered, text);
        let parsed: f64 = rendered.parse().unwrap();
        assert!(parsed == value || parsed.is_nan() && value.is_nan(), "{text}");
    }
}

#[test]
fn rendered_text_round_trips() {
    let registry = Registry::new();
    let texts = ["", "plain", "a\"b", "back\\slash", "line\nfeed", "\\n", "}", "é✓", ",x=\"1\""];
    for (at, text) in texts.iter().enumerate() {
        let labels = [("sqlstate", *text), ("who", texts[texts.len() - 1 - at])];
        registry.counter_with(&ERRORS, &labels).add(at as u64 + 1);
        registry.histogram_with(&WAIT, &[("kind", text)]).observe_us(150);
    }
    let samples = parse(&registry.prometheus());
    for (at, text) in texts.iter().enumerate() {
        let labels = [("sqlstate", *text), ("who", texts[texts.len() - 1 - at])];
        assert_eq!(samples[&key("t_errors_total", &labels)], (at + 1).to_string());
        let bucket =
            |le| samples[&key("t_wait_seconds_bucket", &[("kind", text), ("le", le)])].clone();
        assert_eq!([bucket("0.0001"), bucket("0.001"), bucket("+Inf")], ["0", "1", "1"]);
    }
    assert_eq!(samples.len(), texts.len() * (1 + 6));
}

type SeriesKey = (String, BTreeMap<String, String>);

fn key(name: &str, labels: &[(&str, &str)]) -> SeriesKey {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    (name.to_owned(), labels.iter().map(owned).collect())
}

fn parse(text: &str) -> BTreeMap<SeriesKey, String> {
    let mut samples = BTreeMap::new();
    let mut family = String::new();
    assert!(text.ends_with('\n'), "the last line must end in a newline");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with("# HELP ") {
            let (key, value) = sample(line);
            assert!(key.0.starts_with(&family), "{line} follows the type of {family}");
            assert!(samples.insert(key, value).is_none(), "{line} occurs twice");
        }
    }
    samples
}

fn sample(line: &str) -> (SeriesKey, String) {
    let name_ends = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none());
            match after.split_at(1) {
                (",", after) => rest = after,
                ("}", after) => {
                    rest = after;
                    break;
                }
                _ => panic!("{line}"),
            }
        }
    }
    ((name.to_owned(), labels), rest.strip_prefix(' ').unwrap().to_owned())
}

/// Returns the text up to the closing quote, and the rest after the quote.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                char @ ('\\' | '"') => char,
                char => panic!("\\{char} is not an escape"),
            }),
            _ => value.push(char),
        }
    }
    panic!("no closing quote in {text}")
}
