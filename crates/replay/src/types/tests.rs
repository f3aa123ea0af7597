//! Statements and what a server answers to tries of them.

use howdah_traffic::{Action, Bound, Outcome, Source, SqlState, Timestamp};

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
        outcome: Outcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

fn works(types: &[u32]) -> ProbeResult {
    ProbeResult { types: types.to_vec(), is_bound: true, failure: None }
}

fn fails(code: &[u8]) -> ProbeResult {
    let failure = Failure { sqlstate: SqlState::new(code), message: "no".into() };
    ProbeResult { failure: Some(failure), ..ProbeResult::default() }
}

fn sent(decision: Decision) -> Vec<u32> {
    match decision {
        Decision::Send(types) => types.unwrap_or_default().to_vec(),
        Decision::Try(probe) => panic!("not sent: {probe:?}"),
    }
}

fn tried(decision: Decision) -> Box<Probe> {
    match decision {
        Decision::Try(probe) => probe,
        Decision::Send(types) => panic!("sent with {types:?}"),
    }
}

#[test]
fn refused_statement_is_tried_with_types_which_widen_with_its_values() {
    let types = ParameterTypes::default();
    let event = event("select $1 + $2");
    let decide = |texts: &[&str]| types.decide(&event, &values(texts), false, true);
    assert_eq!(sent(decide(&["1", "2"])), [0_u32; 0]);
    let refusal = fails(b"42725").failure.unwrap();
    assert!(types.refused(&event, &refusal));
    let probe = tried(decide(&["1", "2"]));
    assert_eq!(*probe.types(), [0_u32; 0]);
    let probe = types.conclude(probe, &fails(b"42725")).expect("a guess");
    assert_eq!(*probe.types(), [23, 23]);
    assert!(types.conclude(probe, &works(&[23, 23])).is_none());
    assert_eq!(sent(decide(&["1", "2"])), [23, 23]);
    assert_eq!(sent(decide(&["NULL", "2.5"])), [23, 1700]);
    assert_eq!(sent(decide(&["3000000000", "2"])), [20, 1700]);
    assert_eq!(&*types.known(&event).expect("known"), [20, 1700]);
    assert!(!types.refused(&event, &refusal), "it has types already");
}

#[test]
fn numbers_that_a_server_takes_for_texts_are_typed_and_texts_are_not() {
    let types = ParameterTypes::default();
    let event = event("select $1 < $2 and $3 = $4");
    let probe = tried(types.decide(&event, &values(&["10", "9", "a", "b"]), false, true));
    let probe = types.conclude(probe, &works(&[25; 4])).expect("a guess");
    assert_eq!(*probe.types(), [23, 23, 0, 0]);
    types.conclude(probe, &works(&[23, 23, 25, 25]));
    let next = types.decide(&event, &values(&["10", "9", "a", "b"]), false, true);
    assert_eq!(sent(next), [23, 23, 0, 0]);
    // A value that is no number: that is looked at anew, and the numbers keep their types.
    let words = values(&["x", "9", "a", "b"]);
    let probe = tried(types.decide(&event, &words, false, true));
    let probe = types.conclude(probe, &works(&[25; 4])).expect("a guess");
    assert_eq!(*probe.types(), [0, 23, 0, 0]);
    assert!(types.conclude(probe, &fails(b"22P02")).is_none());
    assert_eq!(sent(types.decide(&event, &words, false, true)), [0_u32; 0]);
    let next = types.decide(&event, &values(&["1", "NULL", "a", "b"]), false, true);
    assert_eq!(sent(next), [23, 23, 0, 0]);
}

#[test]
fn constants_that_decide_types_make_variants_of_a_statement() {
    let types = ParameterTypes::default();
    let (date, number) = (event("select to_char($1, 'YYYY')"), event("select to_char($1, '999')"));
    let (moment, amount) = (values(&["2026-11-20 10:00:00+00"]), values(&["12.5"]));
    for (event, values, oid) in [(&date, &moment, 1184), (&number, &amount, 1700)] {
        let probe = tried(types.decide(event, values, true, true));
        let probe = types.conclude(probe, &fails(b"42725")).expect("a guess");
        assert_eq!(*probe.types(), [oid]);
        assert!(types.conclude(probe, &works(&[oid, 25])).is_none());
    }
    assert_eq!(sent(types.decide(&date, &moment, true, true)), [1184]);
    assert_eq!(sent(types.decide(&number, &amount, true, true)), [1700]);
}

#[test]
fn statement_that_works_only_without_types_is_sent_without() {
    let types = ParameterTypes::default();
    let event = event("select $1 < $2 and name = $1 from t");
    let one = values(&["10", "9"]);
    let mut probe =
        types.conclude(tried(types.decide(&event, &one, false, true)), &works(&[25, 25]));
    while let Some(next) = probe {
        probe = types.conclude(next, &fails(b"42883"));
    }
    assert_eq!(sent(types.decide(&event, &one, true, true)), [0_u32; 0]);
}

#[test]
fn guesses_go_from_the_likely_to_the_unlikely_and_end() {
    let types = ParameterTypes::default();
    let event = event("select now() - $1, $2");
    let one = values(&["01:00:00", "x"]);
    // Outside of a transaction a refusal harms nobody, inside it would.
    assert_eq!(sent(types.decide(&event, &one, false, true)), [0_u32; 0]);
    let mut probe = types.conclude(tried(types.decide(&event, &one, true, true)), &fails(b"22007"));
    let mut tries = Vec::new();
    while let Some(next) = probe {
        tries.push(next.types().to_vec());
        probe = types.conclude(next, &fails(b"42883"));
    }
    assert_eq!(tries, [[1083, 0], [1083, 25], [1186, 0], [1186, 25]]);
    assert_eq!(sent(types.decide(&event, &one, true, true)), [0_u32; 0]);
    assert!(!types.refused(&event, &fails(b"42725").failure.unwrap()), "nothing helps");
}

#[test]
fn nulls_alone_leave_the_question_open() {
    let types = ParameterTypes::default();
    let event = event("select $1 + $2");
    let probe = tried(types.decide(&event, &values(&["NULL", "NULL"]), true, true));
    assert!(types.conclude(probe, &fails(b"42725")).is_none());
    let probe = tried(types.decide(&event, &values(&["1", "NULL"]), true, true));
    let probe = types.conclude(probe, &fails(b"42725")).expect("a guess");
    assert_eq!(*probe.types(), [23, 0]);
}

#[test]
fn statements_beside_columns_are_never_tried_before() {
    let types = ParameterTypes::default();
    let event = event("select * from t where id = $1 limit $2");
    assert_eq!(sent(types.decide(&event, &values(&["1", "2"]), true, true)), [0_u32; 0]);
    let other = fails(b"42P01").failure.unwrap();
    assert!(!types.refused(&event, &other));
}
