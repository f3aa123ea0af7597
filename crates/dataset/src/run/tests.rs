//! Tests that write and read runs.

use std::{fs, path::Path};

use howdah_traffic::{Kind, Parameter, SqlState, Timestamp};
use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::{DatasetKind, ReadError, WriteError, buffer::BufferLimits};

const SMALL: BufferLimits = BufferLimits {
    file_rows: 8,
    file_bytes: 4096,
    group_rows: 3,
    group_bytes: 1024,
    unsaved_max: std::time::Duration::MAX,
};

fn settings() -> RunSettings {
    RunSettings {
        capture: "monday.log".to_owned(),
        target: "postgresql://app@db.example/shop".to_owned(),
        rate: "1.5".to_owned(),
        server_version: "17.10".to_owned(),
        started: Timestamp::from_micros(1_795_178_599_577_000),
        overwrite: false,
        part: None,
    }
}

fn outcome(number: i64) -> ReplayOutcome {
    ReplayOutcome {
        time: Timestamp::from_micros(number),
        session: "656a1b2c.4d2".into(),
        user: "app".into(),
        database: "shop".into(),
        kind: Kind::Simple,
        fingerprint: Some(number.unsigned_abs()),
        due_us: number,
        sent_us: Some(number + 1),
        service_us: Some(250),
        schedule_error_us: Some(1),
        dependency_lag_us: None,
        input_late_us: None,
        rows: Some(1),
        disposition: Disposition::Done,
        captured_us: Some(200),
        order_wait_us: None,
        captured_rows: Some(1),
        check: Some(ResultCheck::Same),
    }
}

fn statement(fingerprint: u64) -> StatementInfo {
    StatementInfo {
        fingerprint,
        query: "select $1".to_owned(),
        example_sql: format!("select {fingerprint}").into(),
        example_parameters: None,
        user: "app".into(),
        database: "".into(),
    }
}

fn writer(dir: &Path) -> RunWriter {
    RunWriter::with_limits(dir, settings(), SMALL).unwrap()
}

fn any_disposition() -> impl Strategy<Value = Disposition> {
    let code = option::of("[0-9A-Z]{5}".prop_map(|code| SqlState::new(code.as_bytes()).unwrap()));
    let message = vec(any::<u8>(), 0..20).prop_map(Text::from);
    prop_oneof![
        Just(Disposition::Done),
        (code, message).prop_map(|(sqlstate, message)| Disposition::Failed { sqlstate, message }),
        "[a-z ]{0,9}".prop_map(|reason| Disposition::Skipped { reason: reason.into() }),
        "[a-z ]{0,9}".prop_map(|reason| Disposition::Dropped { reason: reason.into() }),
    ]
}

fn any_outcome() -> impl Strategy<Value = ReplayOutcome> {
    let amount = || option::of(0..=i64::MAX.unsigned_abs());
    let names = (any::<String>(), any::<String>(), any::<String>());
    let kind = proptest::sample::select(Kind::ALL);
    let schedule = (any::<i64>(), any::<i64>(), any::<Option<i64>>());
    let amounts = (amount(), amount(), amount(), amount(), amount(), amount(), amount(), amount());
    let check =
        proptest::sample::select(&[None, Some(ResultCheck::Same), Some(ResultCheck::Different)]);
    let end = (any_disposition(), check);
    (names, kind, any::<Option<u64>>(), schedule, amounts, end).prop_map(
        |(names, kind, fingerprint, (time, due_us, sent_us), amounts, end)| ReplayOutcome {
            time: Timestamp::from_micros(time),
            session: names.0.into(),
            user: names.1.into(),
            database: names.2.into(),
            kind,
            fingerprint,
            due_us,
            sent_us,
            service_us: amounts.0,
            schedule_error_us: amounts.1,
            dependency_lag_us: amounts.2,
            input_late_us: amounts.5,
            rows: amounts.3,
            disposition: end.0,
            captured_us: amounts.4,
            order_wait_us: amounts.6,
            captured_rows: amounts.7,
            check: end.1,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn outcomes_round_trip(outcomes in vec(any_outcome(), 0..40)) {
        let scratch = tempfile::tempdir().unwrap();
        let mut writer = writer(scratch.path());
        for outcome in &outcomes {
            writer.write(outcome).unwrap();
        }
        let manifest = writer.finish(serde_json::Value::Null, true).unwrap();
        let sent_or_skipped = manifest.done + manifest.failed + manifest.skipped;
        prop_assert_eq!(manifest.outcomes, sent_or_skipped + manifest.dropped);
        let run = ReplayRun::open(scratch.path()).unwrap();
        prop_assert_eq!(run.manifest(), &manifest);
        prop_assert_eq!(run.outcomes().map(Result::unwrap).collect::<Vec<_>>(), outcomes);
    }
}

#[test]
fn statements_are_stored_once() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = writer(scratch.path());
    let bound = StatementInfo {
        example_parameters: Some(vec![
            Parameter::Null,
            Parameter::Value(Text::from(&b"caf\xe9"[..])),
            Parameter::Truncated("cut".into()),
        ]),
        ..statement(u64::MAX)
    };
    let expected: Vec<StatementInfo> =
        (0..20).map(statement).chain(std::iter::once(bound)).collect();
    for statement in &expected {
        writer.statement(statement).unwrap();
        writer.statement(statement).unwrap();
    }
    let manifest = writer.finish(serde_json::Value::Null, true).unwrap();
    assert_eq!((manifest.statements, manifest.statement_files), (21, 3));
    assert_eq!(ReplayRun::open(scratch.path()).unwrap().statements().unwrap(), expected);
}

#[test]
fn stopped_run_is_valid_and_incomplete() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = writer(scratch.path());
    writer.write(&outcome(1)).unwrap();
    let skipped = Disposition::Skipped { reason: "stopped".into() };
    writer.write(&ReplayOutcome { disposition: skipped, sent_us: None, ..outcome(2) }).unwrap();
    writer.finish(serde_json::json!({ "p99_us": 250 }), false).unwrap();
    let run = ReplayRun::open(scratch.path()).unwrap();
    let manifest = run.manifest();
    assert!(manifest.finished && !manifest.complete);
    assert_eq!((manifest.outcomes, manifest.done, manifest.skipped), (2, 1, 1));
    assert_eq!(manifest.summary["p99_us"], 250);
    assert_eq!(manifest.target, settings().target);
}

#[test]
fn killed_run_keeps_outcomes_with_their_statements() {
    let scratch = tempfile::tempdir().unwrap();
    let manifest = scratch.path().join(DatasetKind::Run.manifest_name());
    let mut writer = writer(scratch.path());
    let at_start = fs::read(&manifest).unwrap();
    for number in 0..10 {
        writer.statement(&statement(number.try_into().unwrap())).unwrap();
        writer.write(&outcome(number)).unwrap();
    }
    drop(writer);
    // Killed between a file and its manifest: the rows on disk are counted on opening.
    fs::write(&manifest, at_start).unwrap();
    let run = ReplayRun::open(scratch.path()).unwrap();
    assert_eq!(run.manifest().outcomes, 8);
    assert!(!run.manifest().finished);
    let described: Vec<u64> =
        run.statements().unwrap().iter().map(|statement| statement.fingerprint).collect();
    assert_eq!(run.manifest().statements, described.len() as u64);
    for outcome in run.outcomes() {
        assert!(described.contains(&outcome.unwrap().fingerprint.unwrap()));
    }
}

#[test]
fn capture_is_not_a_run() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("capture.json"), "{}").unwrap();
    let error = ReplayRun::open(scratch.path()).unwrap_err();
    assert!(matches!(error, ReadError::OtherKind { .. }), "{error}");
    let error = RunWriter::create(scratch.path(), RunSettings { overwrite: true, ..settings() })
        .unwrap_err();
    assert!(matches!(error, WriteError::OtherKind { .. }), "{error}");
}

#[test]
fn fingerprint_is_sixteen_digits() {
    assert_eq!(fingerprint_text(0xab), "00000000000000ab");
    assert_eq!(fingerprint_from_text("00000000000000ab"), Some(0xab));
    for text in ["ab", "00000000000000xy", "+0000000000000ab"] {
        assert_eq!(fingerprint_from_text(text), None, "{text}");
    }
}

#[test]
fn version_1_run_is_read_without_new_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = ReplayRun::open(&root.join("tests/fixtures/run-version-1")).unwrap();
    assert_eq!(run.manifest().version, 1);
    let outcomes: Vec<_> = run.outcomes().collect::<Result<_, _>>().unwrap();
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.kind).collect();
    assert_eq!(kinds, [Kind::Connect, Kind::Simple, Kind::Simple, Kind::Disconnect]);
    assert!(outcomes.iter().all(|outcome| outcome.input_late_us.is_none()));
    assert!(outcomes.iter().all(|outcome| outcome.dependency_lag_us.is_some()));
    assert_eq!(run.statements().unwrap().len(), 2);
}
