use std::slice::from_ref;

use proptest::prelude::*;

use super::*;
use crate::{CompareSettings, compare, testing::RunBuilder};

#[test]
fn every_form_of_condition_round_trips() {
    for (text, shown) in [
        ("p95>1.5x", "p95>1.5x"),
        (" P99 >= 2X ", "p99>=2x"),
        ("mean>20ms", "mean>20ms"),
        ("max>2s", "max>2s"),
        ("p50 > 800us", "p50>800us"),
        ("p50>800µs", "p50>800us"),
        ("total>1.5min", "total>90s"),
        // Not 66.00000000000001s, nor a text that parses as another limit.
        ("total>1.1min", "total>66s"),
        ("p95>1000.0001ms", "p95>1000.0001ms"),
        ("errors>0", "errors>0"),
        ("errors>1x", "errors>1x"),
        ("calls>=10", "calls>=10"),
        ("p90>.5x", "p90>0.5x"),
    ] {
        let condition = FailOn::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(condition.to_string(), shown);
        assert_eq!(FailOn::parse(shown), Ok(condition));
    }
}

#[test]
fn invalid_conditions_are_rejected_with_reason() {
    use ParseFailOnError::{BadLimit, LimitDoesNotFit, NoComparator, UnknownMetric};
    let wrong = |text: &str| FailOn::parse(text).expect_err(text);
    assert!(matches!(wrong("p95"), NoComparator { .. }));
    assert!(matches!(wrong("p95<1.5x"), NoComparator { .. }));
    assert!(matches!(wrong("p42>1.5x"), UnknownMetric { .. }));
    assert!(matches!(wrong(">1.5x"), UnknownMetric { .. }));
    for text in
        ["p95>", "p95>x", "p95>-1x", "p95>1.5y", "p95>infx", "p95>nanms", "p95>>2x", "p95>1..5x"]
    {
        assert!(matches!(wrong(text), BadLimit { .. }), "{text}");
    }
    assert!(matches!(wrong("p95>3"), LimitDoesNotFit { .. }));
    assert!(matches!(wrong("errors>3ms"), LimitDoesNotFit { .. }));
}

fn violating_queries(condition: &str, base: &RunBuilder, run: &RunBuilder) -> Vec<u64> {
    let comparison = compare(&base.samples, &run.samples, None, &CompareSettings::default());
    let condition = FailOn::parse(condition).expect("a condition");
    let crossings =
        condition.violations(&comparison, from_ref(&base.samples), from_ref(&run.samples));
    crossings.into_iter().map(|crossing| crossing.fingerprint.0).collect()
}

#[test]
fn ratios_need_executions_and_significance() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 100, 1_000.0, 0.2);
    run.record_many(1, 100, 2_000.0, 0.2);
    base.record_many(2, 100, 1_000.0, 0.2);
    run.record_many(2, 100, 1_050.0, 0.2);
    // Twice as slow, but too few executions.
    base.record_many(3, 10, 1_000.0, 0.2);
    run.record_many(3, 10, 2_000.0, 0.2);
    // A single stall of the machine raises the 95th percentile and nothing else.
    base.record_many(4, 100, 1_000.0, 0.2);
    run.record_many(4, 50, 1_000.0, 0.2);
    run.record_many(4, 8, 90_000.0, 0.2);
    run.record_many(4, 42, 1_000.0, 0.2);
    assert_eq!(violating_queries("p95>1.5x", &base, &run), [1]);
    assert_eq!(violating_queries("p50>1.5x", &base, &run), [1]);
    assert_eq!(violating_queries("total>1.9x", &base, &run), [1]);
    assert!(violating_queries("p95>3x", &base, &run).is_empty());
    assert_eq!(violating_queries("max>5x", &base, &run), [4]);
    assert_eq!(
        violating_queries("p95>60ms", &base, &run),
        [4],
        "a fixed limit needs no significance"
    );
    assert_eq!(
        violating_queries("p50>0.9x", &base, &run).len(),
        3,
        "a limit below 1 needs no growth"
    );
}

#[test]
fn errors_count_from_the_first() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_failed(1, "23505");
    run.record_failed(1, "23505");
    base.record_many(2, 3, 100.0, 0.1);
    run.record_failed(2, "42P01");
    run.record_failed(3, "42P01");
    let sorted = |condition| {
        let mut queries = violating_queries(condition, &base, &run);
        queries.sort_unstable();
        queries
    };
    assert_eq!(sorted("errors>0"), [1, 2, 3]);
    assert_eq!(sorted("errors>1x"), [2, 3]);
    assert_eq!(sorted("errors>=1x"), [1, 2, 3]);
    assert!(sorted("errors>1").is_empty());
    assert_eq!(sorted("calls>=1"), [1, 2, 3]);
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_rejected(text in "(mean|p95|errors|calls|[a-z]{0,3}) ?>?=? ?[0-9.]{0,6}[a-zµ ]{0,3}|.{0,20}") {
        if let Ok(condition) = FailOn::parse(&text) {
            let again = FailOn::parse(&condition.to_string()).expect("shown as it is read");
            prop_assert_eq!(again.to_string(), condition.to_string());
        }
    }
}
