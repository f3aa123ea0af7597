//! Tests the renderings of a comparison with all kinds of results.

use std::slice::from_ref;

use howdah_compare::{CompareSettings, FailOn, QueryText, RunInfo, Samples, compare};
use howdah_dataset::{Disposition, ReplayOutcome};
use howdah_sql::Fingerprint;
use howdah_traffic::{Kind, SqlState, Timestamp};

use super::*;
use crate::{document, headlines};

fn outcome(query: u64, number: u64, service_us: u64) -> ReplayOutcome {
    let at = i64::try_from(number).expect("small") * 1000;
    ReplayOutcome {
        time: Timestamp::from_micros(at),
        session: "a".into(),
        user: "app".into(),
        database: "shop".into(),
        kind: Kind::Simple,
        fingerprint: Some(query),
        due_us: at,
        sent_us: Some(at),
        service_us: Some(service_us),
        schedule_error_us: Some(0),
        dependency_lag_us: None,
        input_late_us: None,
        rows: Some(1),
        disposition: Disposition::Done,
        captured_us: None,
        order_wait_us: None,
        captured_rows: None,
        check: None,
    }
}

const QUERIES: [(u64, &str); 5] = [
    (1, "select id, total, state from orders where customer = ? order by created desc limit ?"),
    (2, "update customer set seen = now() where id = ?"),
    (3, "insert into event(kind, body) values (?, ...)"),
    (4, "select\tname from product where id = ? and \x1b[31mred\x1b[0m is not null"),
    (5, "select sum(total) from orders"),
];

fn samples(name: &str, version: &str, execute: impl Fn(&mut Samples)) -> Samples {
    let info = RunInfo {
        name: name.to_owned(),
        capture: "monday".to_owned(),
        target: "postgresql://app@db/shop".to_owned(),
        rate: "1".to_owned(),
        server_version: version.to_owned(),
        complete: true,
        missing_workers: Vec::new(),
    };
    let mut samples = Samples::new(info);
    execute(&mut samples);
    for (query, text) in QUERIES {
        let text = QueryText {
            query: text.to_owned(),
            user: "app".to_owned(),
            database: "shop".to_owned(),
        };
        samples.describe(Fingerprint(query), text);
    }
    samples
}

/// Returns durations spread evenly from 80 % to 120 % of `middle_us`, in shuffled order.
fn spread(middle_us: u64, number: u64) -> u64 {
    middle_us * (80 + number * 37 % 41) / 100
}

fn base() -> Samples {
    samples("runs/base", "16.14", |samples| {
        for number in 0..200 {
            samples.record(&outcome(1, number, spread(205, number)));
            samples.record(&outcome(2, number, spread(3_000, number)));
            samples.record(&outcome(3, number, spread(400, number)));
        }
        samples.record(&outcome(4, 1, 150));
    })
}

fn run() -> Samples {
    samples("runs/new", "17.10", |samples| {
        for number in 0..200 {
            samples.record(&outcome(1, number, spread(2_910, number)));
            samples.record(&outcome(2, number, spread(900, number)));
            if number % 50 == 7 {
                let disposition = Disposition::Failed {
                    sqlstate: SqlState::new(b"23505"),
                    message: "duplicate key value violates unique constraint \"event_pkey\"".into(),
                };
                samples.record(&ReplayOutcome { disposition, ..outcome(3, number, 100) });
            } else {
                samples.record(&ReplayOutcome {
                    rows: Some(2),
                    ..outcome(3, number, spread(400, number))
                });
            }
        }
        samples.record(&outcome(5, 1, 1_234_567));
    })
}

pub(crate) fn sample_comparison() -> (Comparison, Vec<Violation>) {
    let (base, run) = (base(), run());
    let mut comparison = compare(&base, &run, None, &CompareSettings::default());
    let slower = comparison.queries.iter_mut().find(|query| query.fingerprint.0 == 1);
    slower.expect("it was recorded").plan_change =
        Some("Index Scan using orders_customer_idx on orders became Seq Scan on orders".to_owned());
    let (bases, runs) = (from_ref(&base), from_ref(&run));
    let conditions = ["p95>1.5x", "errors>1x"].map(|text| FailOn::parse(text).expect("sound"));
    let violations =
        conditions.iter().flat_map(|condition| condition.violations(&comparison, bases, runs));
    let violations = violations.collect();
    (comparison, violations)
}

#[test]
fn a_table_of_everything() {
    let (comparison, violations) = sample_comparison();
    insta::assert_snapshot!(table(&comparison, &violations, &TableStyle::default()));
}

#[test]
fn narrow_table_is_truncated_and_limited() {
    let (comparison, _) = sample_comparison();
    let style = TableStyle { width: 70, queries_max: Some(2), is_colored: false };
    let shown = table(&comparison, &[], &style);
    assert!(shown.contains("… and 3 more"), "{shown}");
    let title = shown.lines().rfind(|line| line.contains("14.2×")).expect("the slower query");
    assert!(title.chars().count() <= 70 && title.ends_with('…'), "{title}");
}

#[test]
fn rare_queries_are_listed_last() {
    let mut comparison = compare(&base(), &base(), None, &CompareSettings::default());
    // Even where it would come first.
    comparison.queries.sort_by_key(|query| query.verdict != QueryVerdict::TooFew);
    let shown = table(&comparison, &[], &TableStyle::default());
    let (above, below) = shown.split_once("\nnot executed often enough to say:\n").expect("a line");
    assert!(above.contains("update customer") && !above.contains("select name from product"));
    assert!(below.starts_with("too few") && below.contains("select name from product"), "{below}");
}

#[test]
fn measures_fit_into_forty_columns() {
    let (comparison, _) = sample_comparison();
    let style = TableStyle { width: 40, ..TableStyle::default() };
    let shown = table(&comparison, &[], &style);
    let numbers =
        || shown.lines().filter(|line| line.starts_with("  base ") || line.starts_with("       "));
    assert_eq!(numbers().filter(|line| line.starts_with("  base ")).count(), 4);
    assert!(numbers().any(|line| line.contains("p99 ")), "{shown}");
    for line in numbers() {
        assert!(line.chars().count() <= 40, "{line}");
    }
}

#[test]
fn drift_note_mentions_control() {
    let (base, run) = (base(), run());
    let mut comparison = compare(&base, &run, Some(&base), &CompareSettings::default());
    comparison.caveats = vec![howdah_compare::Caveat::EverythingMoved];
    let note = headlines(&comparison).pop().expect("a note");
    assert!(note.contains("the control run differs from the base by 1.00×"), "{note}");
    assert!(!note.contains("is not the machine's noise"), "{note}");
    comparison.control = None;
    let note = headlines(&comparison).pop().expect("a note");
    assert!(note.contains("one more run of the base as --control"), "{note}");
}

#[test]
fn queries_with_deduced_types_are_marked_in_table_and_notes() {
    let (base, mut run) = (base(), run());
    run.mark_deduced_types(Fingerprint(2));
    let comparison = compare(&base, &run, None, &CompareSettings::default());
    let shown = table(&comparison, &[], &TableStyle::default());
    assert_eq!(shown.matches("  parameter types deduced from values").count(), 1, "{shown}");
    assert!(shown.contains("note: parameter types of 1 query were deduced"), "{shown}");
}

/// The page that documents the keys of the JSON document.
const PAGE: &str = include_str!("../../../../docs/src/reference/comparison.md");

#[test]
fn every_key_is_on_the_page() {
    let (base, run) = (base(), run());
    let comparison = compare(&base, &run, Some(&base), &CompareSettings::default());
    let (mut whole, violations) = sample_comparison();
    whole.control = comparison.control;
    whole.caveats = vec![howdah_compare::Caveat::DifferentRates];
    let mut keys = std::collections::BTreeSet::new();
    let document = document(&whole, &violations, None);
    collect_keys(&serde_json::to_value(document).expect("plain data"), &mut keys);
    assert!(keys.contains("noise") && keys.contains("kind") && keys.contains("ratio"));
    for key in &keys {
        assert!(PAGE.contains(&format!("| `{key}` |")), "{key} is not on the page");
    }
    for line in PAGE.lines() {
        let Some(key) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else {
            continue;
        };
        assert!(keys.contains(key), "{key} is on the page, but not in the document");
    }
}

fn collect_keys(value: &serde_json::Value, keys: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| collect_keys(value, keys));
        }
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            keys.insert(name.clone());
            collect_keys(value, keys);
        }),
        _ => {}
    }
}

#[test]
fn color_only_adds_escapes() {
    let (comparison, violations) = sample_comparison();
    let plain = table(&comparison, &violations, &TableStyle::default());
    assert!(!plain.contains('\x1b'), "not even a query's own escapes");
    let style = TableStyle { is_colored: true, ..TableStyle::default() };
    let painted = table(&comparison, &violations, &style);
    assert!(painted.contains("\x1b[31mslower\x1b[0m:"));
    let stripped = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"]
        .iter()
        .fold(painted, |text, escape| text.replace(escape, ""));
    assert_eq!(stripped, plain);
}

#[test]
fn a_document_of_everything() {
    let (comparison, violations) = sample_comparison();
    let document = document(&comparison, &violations, Some(2));
    let value = serde_json::to_value(&document).expect("plain data");
    assert_eq!(value["queries_total"], 5);
    insta::assert_snapshot!(serde_json::to_string_pretty(&rounded(value)).expect("plain data"));
}

/// Rounds to four digits, because the last digits differ between machines.
fn rounded(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().expect("it is");
            format!("{number:.3e}").parse::<f64>().map_or(Value::Null, Value::from)
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, rounded(value))).collect()
        }
        other => other,
    }
}

#[test]
fn equal_runs_have_no_change() {
    let comparison = compare(&base(), &base(), None, &CompareSettings::default());
    assert!(headlines(&comparison).is_empty());
    assert_eq!(
        crate::verdict_line(&comparison),
        "no change in 3 queries; 1 not executed often enough to say"
    );
}
