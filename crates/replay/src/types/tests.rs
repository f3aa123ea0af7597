//! Tests which types are deduced from statements, values and the results of trials.

use howdah_traffic::{Action, Bound, CapturedOutcome, Source, SqlState, Timestamp};

use super::*;

fn values(texts: &[&str]) -> Vec<Parameter> {
    let value = |text: &&str| match *text {
        "NULL" => Parameter::Null,
        text => Parameter::Value(text.into()),
    };
    texts.iter().map(value).collect()
}

fn event(sql: &str) -> Event {
    let bound =
        Bound { statement: "".into(), portal: "".into(), sql: sql.into(), parameters: None };
    Event {
        time: Timestamp::from_micros(0),
        session: "s".into(),
        user: "u".into(),
        database: "d".into(),
        application: "".into(),
        action: Action::Execute(bound),
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

fn trial_succeeds(types: &[u32]) -> TrialResult {
    TrialResult { types: types.to_vec(), is_bound: true, failure: None }
}

fn trial_fails(code: &[u8]) -> TrialResult {
    let failure = ReplayFailure { sqlstate: SqlState::new(code), message: "no".into() };
    TrialResult { failure: Some(failure), ..TrialResult::default() }
}

fn sent_types(decision: Decision) -> Vec<u32> {
    match decision {
        Decision::Send(types) => types.unwrap_or_default().to_vec(),
        Decision::Try(probe) => panic!("not sent: {probe:?}"),
    }
}

fn expect_trial(decision: Decision) -> Box<TypeTrial> {
    match decision {
        Decision::Try(probe) => probe,
        Decision::Send(types) => panic!("sent with {types:?}"),
    }
}

#[test]
fn refused_statement_gets_types_that_widen_with_values() {
    let types = ParameterTypes::default();
    let event = event("select $1 + $2");
    let decide = |texts: &[&str]| types.decide(&event, &values(texts), false, true);
    assert_eq!(sent_types(decide(&["1", "2"])), [0_u32; 0]);
    let refusal = trial_fails(b"42725").failure.unwrap();
    assert!(types.record_refusal(&event, &refusal));
    let probe = expect_trial(decide(&["1", "2"]));
    assert_eq!(*probe.types(), [0_u32; 0]);
    let probe = types.record_result(probe, &trial_fails(b"42725")).expect("a guess");
    assert_eq!(*probe.types(), [23, 23]);
    assert!(types.record_result(probe, &trial_succeeds(&[23, 23])).is_none());
    assert_eq!(sent_types(decide(&["1", "2"])), [23, 23]);
    assert_eq!(sent_types(decide(&["NULL", "2.5"])), [23, 1700]);
    assert_eq!(sent_types(decide(&["3000000000", "2"])), [20, 1700]);
    assert_eq!(&*types.known_types(&event).expect("known"), [20, 1700]);
    // Another session sent it while the types were tried: it is sent again, with them.
    assert!(types.record_refusal(&event, &refusal));
    assert_eq!(sent_types(decide(&["1", "2"])), [20, 1700]);
}

#[test]
fn numbers_compared_as_text_get_types() {
    let types = ParameterTypes::default();
    let event = event("select $1 < $2 and $3 = $4");
    let probe = expect_trial(types.decide(&event, &values(&["10", "9", "a", "b"]), false, true));
    let probe = types.record_result(probe, &trial_succeeds(&[25; 4])).expect("a guess");
    assert_eq!(*probe.types(), [23, 23, 0, 0]);
    types.record_result(probe, &trial_succeeds(&[23, 23, 25, 25]));
    let next = types.decide(&event, &values(&["10", "9", "a", "b"]), false, true);
    assert_eq!(sent_types(next), [23, 23, 0, 0]);
    // The value is not a number: a new trial is made, and the numbers keep their types.
    let words = values(&["x", "9", "a", "b"]);
    let probe = expect_trial(types.decide(&event, &words, false, true));
    let probe = types.record_result(probe, &trial_succeeds(&[25; 4])).expect("a guess");
    assert_eq!(*probe.types(), [0, 23, 0, 0]);
    assert!(types.record_result(probe, &trial_fails(b"22P02")).is_none());
    assert_eq!(sent_types(types.decide(&event, &words, false, true)), [0_u32; 0]);
    let next = types.decide(&event, &values(&["1", "NULL", "a", "b"]), false, true);
    assert_eq!(sent_types(next), [23, 23, 0, 0]);
}

#[test]
fn constants_that_decide_types_make_variants() {
    let types = ParameterTypes::default();
    let (date, number) = (event("select to_char($1, 'YYYY')"), event("select to_char($1, '999')"));
    let (moment, amount) = (values(&["2026-11-20 10:00:00+00"]), values(&["12.5"]));
    for (event, values, oid) in [(&date, &moment, 1184), (&number, &amount, 1700)] {
        let probe = expect_trial(types.decide(event, values, true, true));
        let probe = types.record_result(probe, &trial_fails(b"42725")).expect("a guess");
        assert_eq!(*probe.types(), [oid]);
        assert!(types.record_result(probe, &trial_succeeds(&[oid, 25])).is_none());
    }
    assert_eq!(sent_types(types.decide(&date, &moment, true, true)), [1184]);
    assert_eq!(sent_types(types.decide(&number, &amount, true, true)), [1700]);
}

#[test]
fn statement_that_fails_with_types_is_sent_untyped() {
    let types = ParameterTypes::default();
    let event = event("select $1 < $2 and name = $1 from t");
    let one = values(&["10", "9"]);
    let mut probe = types.record_result(
        expect_trial(types.decide(&event, &one, false, true)),
        &trial_succeeds(&[25, 25]),
    );
    while let Some(next) = probe {
        probe = types.record_result(next, &trial_fails(b"42883"));
    }
    assert_eq!(sent_types(types.decide(&event, &one, true, true)), [0_u32; 0]);
}

#[test]
fn guesses_run_from_likely_to_unlikely() {
    let types = ParameterTypes::default();
    let event = event("select now() - $1, $2");
    let one = values(&["01:00:00", "x"]);
    // Outside of a transaction a refusal is harmless; inside, it aborts the transaction.
    assert_eq!(sent_types(types.decide(&event, &one, false, true)), [0_u32; 0]);
    let mut probe = types.record_result(
        expect_trial(types.decide(&event, &one, true, true)),
        &trial_fails(b"22007"),
    );
    let mut tries = Vec::new();
    while let Some(next) = probe {
        tries.push(next.types().to_vec());
        probe = types.record_result(next, &trial_fails(b"42883"));
    }
    assert_eq!(tries, [[1083, 0], [1083, 25], [1186, 0], [1186, 25]]);
    assert_eq!(sent_types(types.decide(&event, &one, true, true)), [0_u32; 0]);
    assert!(
        !types.record_refusal(&event, &trial_fails(b"42725").failure.unwrap()),
        "nothing helps"
    );
}

#[test]
fn null_values_decide_no_types() {
    let types = ParameterTypes::default();
    let event = event("select $1 + $2");
    let probe = expect_trial(types.decide(&event, &values(&["NULL", "NULL"]), true, true));
    assert!(types.record_result(probe, &trial_fails(b"42725")).is_none());
    let probe = expect_trial(types.decide(&event, &values(&["1", "NULL"]), true, true));
    let probe = types.record_result(probe, &trial_fails(b"42725")).expect("a guess");
    assert_eq!(*probe.types(), [23, 0]);
}

#[test]
fn placeholders_next_to_columns_need_no_trial() {
    let types = ParameterTypes::default();
    let event = event("select * from t where id = $1 limit $2");
    assert_eq!(sent_types(types.decide(&event, &values(&["1", "2"]), true, true)), [0_u32; 0]);
    let other = trial_fails(b"42P01").failure.unwrap();
    assert!(!types.record_refusal(&event, &other));
}
