//! Tests the renderings of a rehearsal with all kinds of results.

use std::slice::from_ref;

use howdah_compare::{CompareSettings, FailOn, QueryText, RunInfo, Samples, compare};
use howdah_dataset::{Disposition, ReplayOutcome};
use howdah_traffic::{Kind, SqlState};

use super::*;
use crate::TableStyle;

const SLOWER: u64 = 1;
const RARE: u64 = 2;
const FAILING: u64 = 3;

/// A value that appears in a server's message, and must not appear in reports.
const SECRET: &str = "anna@example.org";

fn outcome(query: u64, number: u64, service_us: u64) -> ReplayOutcome {
    let at = i64::try_from(number).expect("small") * 1_000;
    ReplayOutcome {
        time: Timestamp::from_micros(at),
        session: "a".into(),
        user: "app".into(),
        database: "shop".into(),
        kind: Kind::Simple,
        fingerprint: Some(query),
        due_us: at,
        sent_us: Some(at),
        service_us: Some(service_us * (80 + number * 37 % 41) / 100),
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

fn samples(name: &str, middle_us: u64, failures: u64) -> Samples {
    let info = RunInfo { name: name.to_owned(), complete: true, ..RunInfo::default() };
    let mut samples = Samples::new(info);
    for number in 0..200 {
        samples.record(&outcome(SLOWER, number, middle_us));
    }
    samples.record(&outcome(RARE, 1, 150));
    for number in 0..failures {
        samples.record(&ReplayOutcome {
            disposition: Disposition::Failed {
                sqlstate: SqlState::new(b"23505"),
                message: format!("Key (mail)=({SECRET}) already exists").into_bytes().into(),
            },
            ..outcome(FAILING, number, 100)
        });
    }
    let texts = [
        (SLOWER, "select * from orders where customer = ? and kind <> ?"),
        (RARE, "select `x` | ? from \"items\""),
        (FAILING, "insert into customer values (?)"),
    ];
    for (query, text) in texts {
        let query_text = QueryText { query: text.to_owned(), ..QueryText::default() };
        samples.describe(Fingerprint(query), query_text);
    }
    samples
}

fn run(name: &str, side: RehearsalSide) -> RunSummary {
    RunSummary {
        name: name.to_owned(),
        side,
        started: Timestamp::from_micros(1_795_178_599_577_000),
        finished: Timestamp::from_micros(1_795_178_659_777_000),
        executions: 201,
        failed: 2,
        skipped: 0,
        schedule_error_p99_us: Some(120),
        machine: Some(RunMachine {
            calibration_p50_us: Some(1_000),
            busy: 0.34,
            steal: 0.05,
            io_wait: 0.0,
        }),
    }
}

fn report(middle_us: u64) -> RehearsalReport {
    let (base, change) = (samples("a1", 200, 0), samples("b1", middle_us, 2));
    let mut comparison = compare(&base, &change, None, &CompareSettings::default());
    let condition: FailOn = "p95>1.5x".parse().expect("it is valid");
    let violations = condition.violations(&comparison, from_ref(&base), from_ref(&change));
    for error in comparison.queries.iter_mut().flat_map(|query| &mut query.errors) {
        error.message.clear();
    }
    let is_slower = comparison.slower().next().is_some();
    let orders =
        TableName { database: None, schema: "public".to_owned(), name: "orders".to_owned() };
    RehearsalReport {
        howdah: "0.1.0".to_owned(),
        started: Timestamp::from_micros(1_795_178_599_577_000),
        finished: Timestamp::from_micros(1_795_178_999_577_000),
        verdict: if is_slower { RehearsalVerdict::Failed } else { RehearsalVerdict::Passed },
        obstacles: Vec::new(),
        time_lines: TimeLines::default(),
        comparison,
        violations,
        runs: vec![run("a1", RehearsalSide::Base), run("b1", RehearsalSide::Change)],
        start: StartState {
            target: Some(RecoveryTarget {
                lsn: Some("0/16B3748".to_owned()),
                timeline: Some(1),
                time: Some(Timestamp::from_micros(1_795_178_599_577_000)),
            }),
            positions: BothSides {
                base: Some(StartPosition::Distance { bytes: 184, is_exact: true }),
                change: Some(StartPosition::OtherSystem),
            },
            apart: None,
        },
        servers: BothSides::default(),
        differences: vec![
            ServerDifference::SettingDiffers {
                name: "work_mem".to_owned(),
                values: BothSides { base: "4MB".to_owned(), change: "64kB".to_owned() },
            },
            ServerDifference::TableDiffers {
                table: orders,
                difference: TableDifference::DroppedIndex("by_customer".to_owned()),
            },
        ],
        reasons: BTreeMap::from([(Fingerprint(SLOWER), vec![1])]),
        plan_failures: BTreeMap::new(),
        examples: BTreeMap::new(),
        growth: vec![DataGrowth {
            side: RehearsalSide::Base,
            bytes_before: 8 << 20,
            bytes_after: 9 << 20,
        }],
        order_effects: vec![OrderEffect { side: RehearsalSide::Change, factor: 1.1 }],
        options: BTreeMap::from([("--rate".to_owned(), "1".to_owned())]),
        warnings: vec!["no CHECKPOINT on base".to_owned()],
    }
}

#[test]
fn text_names_reason_and_runs() {
    insta::assert_snapshot!(text(&report(2_900), &TableStyle::default()));
}

#[test]
fn markdown_matches_snapshot() {
    insta::assert_snapshot!(markdown(&report(2_900)));
}

#[test]
fn junit_has_one_test_per_query() {
    let xml = junit(&report(2_900));
    insta::assert_snapshot!(xml);
    let passed = junit(&report(200));
    assert!(passed.contains(" failures=\"0\" "), "{passed}");
}

#[test]
fn document_has_stable_keys() {
    let report = report(2_900);
    let json = serde_json::to_value(document(&report)).expect("it can be serialised");
    assert_eq!(json["format"], "howdah-rehearsal-report");
    assert_eq!(json["version"], REHEARSAL_VERSION);
    assert_eq!(json["verdict"], "failed");
    assert_eq!(json["differences"][1]["kind"], "dropped_index");
    assert_eq!(json["differences"][1]["table"], "orders");
    assert_eq!(json["queries"][0]["reasons"], serde_json::json!([1]));
    assert_eq!(json["runs"][0]["side"], "base");
    assert_eq!(json["start"]["recovery_target"]["lsn"], "0/16B3748");
    assert_eq!(json["start"]["base"]["bytes"], 184);
    assert_eq!(json["start"]["change"]["kind"], "other_system");
    assert_eq!(json["comparison"]["format"], "howdah-comparison");
}

#[test]
fn values_appear_in_no_format_unless_requested() {
    let mut report = report(2_900);
    let render = |report: &RehearsalReport| {
        let json = serde_json::to_string(&document(report)).expect("it can be serialised");
        [text(report, &TableStyle::default()), html(report), json, markdown(report), junit(report)]
    };
    for rendered in render(&report) {
        assert!(!rendered.contains(SECRET), "{rendered}");
    }
    report.examples.insert(Fingerprint(SLOWER), format!("select '{SECRET}'"));
    let has_values = render(&report).map(|rendered| rendered.contains(SECRET));
    assert_eq!(has_values, [true, true, true, false, false]);
}

#[test]
fn obstacle_is_the_answer_if_runs_are_not_comparable() {
    let obstacle = Obstacle::Noise { factor: 1.41, limit: 1.25 };
    let report = RehearsalReport {
        verdict: RehearsalVerdict::NotComparable,
        obstacles: vec![obstacle],
        violations: Vec::new(),
        ..report(200)
    };
    assert_eq!(
        report.summary(),
        "not comparable: two runs on the base differ by 1.41×, and 1.25× counts as a change"
    );
    assert!(junit(&report).contains(" failures=\"1\" "));
}

/// The page that documents the keys of the JSON document and of the journal.
const PAGE: &str = include_str!("../../../../docs/src/reference/rehearsal.md");

/// A server with everything that [`ServerFacts`] can describe.
fn full_facts() -> ServerFacts {
    let orders =
        TableName { database: None, schema: "public".to_owned(), name: "orders".to_owned() };
    let index = IndexFacts { name: "i".to_owned(), definition: "btree (a)".to_owned(), bytes: 1 };
    let setting = SettingValue { value: "64kB".to_owned(), default: "4MB".to_owned() };
    ServerFacts {
        settings: BTreeMap::from([("work_mem".to_owned(), setting)]),
        views: vec![ViewFacts { name: orders.clone(), tables: vec![orders.clone()] }],
        tables: vec![TableFacts {
            name: orders,
            bytes: 8_192,
            statistics: TableStatistics::default(),
            indexes: vec![index],
            triggers: Vec::new(),
        }],
        ..ServerFacts::default()
    }
}

#[test]
fn every_key_is_on_the_page() {
    let report = RehearsalReport {
        obstacles: vec![Obstacle::TooFewExecutions],
        servers: BothSides { base: full_facts(), change: full_facts() },
        ..report(2_900)
    };
    let mut json = serde_json::to_value(document(&report)).expect("it can be serialised");
    // It has a page and a test of its own.
    let fields = json.as_object_mut().expect("an object");
    fields.insert("comparison".to_owned(), serde_json::Value::Null);
    // Their keys are names of options and settings.
    fields.insert("options".to_owned(), serde_json::Value::Null);
    let mut keys = std::collections::BTreeSet::new();
    collect_keys(&json, &mut keys);
    assert!(keys.remove("work_mem"), "{keys:?}");
    // The other files of a rehearsal have sections and tests of their own.
    let (page, _) = PAGE.split_once("\n## `rehearsal.json`").expect("a section");
    for key in &keys {
        assert!(page.contains(&format!("\n| `{key}` |")), "{key} is not on the page");
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` |")).map(|(key, _)| key);
    for key in rows.filter(|key| !key.contains(['.', '/', '`', ','])) {
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
