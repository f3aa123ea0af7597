//! `--redact`: literals and parameter values are gone, and the rest is still valid SQL.

use std::collections::HashSet;

use howdah_capture::{RedactionKey, Redactor};
use howdah_sql::grammar::{Effect, classify};
use howdah_traffic::{Action, Bound, CapturedOutcome, Event, Parameter, Source, Text, Timestamp};
use pg_query::protobuf::Token;

use super::Shape;

/// Constructs that contain literals, and text that could end them early.
pub const WORDS: &[&[u8]] = &[
    b"\0",
    b"Hunter2Sekret",
    b"4711081512345",
    b"'",
    b"''",
    b"\\'",
    b"\\",
    b"E'",
    b"U&'",
    b" uescape '!'",
    b"N'",
    b"x'affe0123456789'",
    b"b'0101'",
    b"$$",
    b"$a$",
    b"--",
    b"\n",
    b"/*",
    b"*/",
    b"\"",
    b"select ",
    b" from t where a = ",
    b"alter role app password ",
    b"set app.token = ",
    b"set local app.token to ",
    b"create user mapping for u server s options (password ",
    b")",
    b";",
    b"1.5e-3",
    b"0x1F",
    b"1_000",
    b"2026-11-20 12:43:19",
    b"{\"a\": [1, true, null, -2.5e3, \"b\\u00e9\\\"c\"]}",
    b"[1e5]",
    b"{1,2,NULL}",
    b"\\xdeadbeef",
    b"d3b07384-d113-4ec6-a5d8-000000000000",
    b"\xc3\xa9",
    b"\xff",
    b"true",
    b"null",
    b", ",
];

/// Copies of the text, tokens of PostgreSQL's scanner, parse trees.
pub const MEMORY: (usize, usize) = (1 << 20, 40_000);

/// Redacts a statement and values, separated by zero bytes, which PostgreSQL's texts cannot
/// contain.
pub fn run(input: &[u8]) -> Shape {
    let mut parts = input.split(|byte| *byte == 0);
    let sql = parts.next().unwrap_or_default();
    let values: Vec<_> = parts.collect();
    let event = event(sql, &values);
    let redacted = redactor().redact(event.clone());
    assert_eq!(redactor().redact(event.clone()), redacted, "the same key, another redactor");
    stays(&event, &redacted);
    let (Action::Execute(bound), Some(written)) = (&redacted.action, redacted.action.sql()) else {
        return Shape::of("another action");
    };
    let written = written.as_bytes();
    let withheld = written.starts_with(b"redacted '") && !sql.starts_with(b"redacted '");
    let kinds = statement(sql, written, withheld);
    for (value, after) in values.iter().zip(bound.parameters.iter().flatten()) {
        let Parameter::Value(after) = after else { unreachable!("{after:?}") };
        value_is_gone(value, after.as_bytes());
    }
    Shape::each(kinds)
        .and((withheld, values.len().min(3)))
        .and(values.last().and_then(|v| v.first()))
}

fn redactor() -> Redactor {
    let key = RedactionKey::from_secret(b"sixteen bytes or more").expect("a long key");
    Redactor::new(&key)
}

fn event(sql: &[u8], values: &[&[u8]]) -> Event {
    let parameters = values.iter().map(|value| Parameter::Value((*value).into())).collect();
    let (statement, portal) = ("S_1".into(), "C_1".into());
    let bound = Bound { statement, portal, sql: sql.into(), parameters: Some(parameters) };
    Event {
        time: Timestamp::from_micros(1_795_178_599_577_123),
        session: "6b004067.7".into(),
        user: "al".into(),
        database: "shop".into(),
        application: "Hunter2Sekret".into(),
        action: Action::Execute(bound),
        outcome: CapturedOutcome {
            duration_us: Some(7),
            error: Some(Text::from("Hunter2Sekret")),
            ..CapturedOutcome::default()
        },
        source: Source::Statement,
        vxid: Some("3/4".into()),
        query_id: Some(5),
        pipeline: Some(6),
        wire: None,
    }
}

/// Checks that names, times and ids are unchanged, and that application and error text are gone.
fn stays(event: &Event, redacted: &Event) {
    let told = |event: &Event| {
        let Event { time, session, user, database, source, vxid, query_id, pipeline, .. } =
            event.clone();
        (
            time,
            session,
            user,
            database,
            source,
            (vxid, query_id, pipeline, event.outcome.duration_us),
        )
    };
    assert_eq!(told(event), told(redacted));
    let texts = format!("{:?} {:?}", redacted.application, redacted.outcome.error);
    assert!(!texts.contains("Hunter2Sekret"), "{texts}");
    let Action::Execute(Bound { statement, portal, .. }) = &redacted.action else { return };
    assert_eq!((statement.as_bytes(), portal.as_bytes()), (&b"S_1"[..], &b"C_1"[..]));
}

/// Checks that the constants found by PostgreSQL's scanner are gone and its grammar accepts the
/// result.
fn statement(sql: &[u8], written: &[u8], withheld: bool) -> Vec<i32> {
    let Ok(text) = std::str::from_utf8(sql) else { return vec![-1] };
    let Ok(scanned) = pg_query::scan(text) else { return vec![-2] };
    let (mut secrets, mut names) = (HashSet::new(), HashSet::new());
    let mut kinds = Vec::new();
    for token in &scanned.tokens {
        let span = usize::try_from(token.start).ok().zip(usize::try_from(token.end).ok());
        let token_text = span.and_then(|(start, end)| sql.get(start..end)).unwrap_or_default();
        kinds.push(token.token);
        match token.token() {
            Token::Sconst
            | Token::Usconst
            | Token::Xconst
            | Token::SqlComment
            | Token::CComment => secrets.extend(long_runs(token_text)),
            Token::Iconst | Token::Fconst => secrets.extend(digits_of(token_text)),
            // A single bit has a 50 % chance of staying the same.
            Token::Bconst => {}
            _ => names.extend(long_runs(token_text)),
        }
    }
    for secret in secrets {
        let is_in = |text: &[u8]| text.windows(secret.len()).any(|part| part == secret);
        // The same digits in a name are not redacted.
        let is_there = is_in(written) && !names.iter().any(|name| is_in(name));
        assert!(!is_there, "{} is in {}", secret.escape_ascii(), written.escape_ascii());
    }
    if !withheld && classify(sql).effect != Effect::Unreadable {
        assert_ne!(classify(written).effect, Effect::Unreadable, "{}", written.escape_ascii());
    }
    kinds.truncate(64);
    kinds
}

/// Alphanumeric runs too long to reappear by chance.
fn long_runs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_alphanumeric()).filter(|run| run.len() >= RUN_BYTES)
}

const RUN_BYTES: usize = 12;

/// The digits of a decimal number before its exponent.
fn digits_of(number: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_other = |byte: &u8| !byte.is_ascii_digit() && !b"._".contains(byte);
    let decimal = number.split(is_other).next().unwrap_or_default();
    long_runs(decimal)
}

/// Checks that a redacted value shares no long run of characters with the original.
fn value_is_gone(value: &[u8], after: &[u8]) {
    if value.is_ascii() {
        assert_eq!(value.len(), after.len(), "{}", after.escape_ascii());
    }
    // Zeros may stay, including those of an exponent too large for any type.
    let tells = |run: &&[u8]| run.iter().filter(|byte| !b"0eE".contains(byte)).count() >= 6;
    for run in long_runs(value).filter(tells) {
        let is_there = after.windows(run.len()).any(|part| part == run);
        assert!(!is_there, "{} is in {}", run.escape_ascii(), after.escape_ascii());
    }
    let is_json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).is_ok();
    if matches!(value.first(), Some(b'{' | b'[')) && is_json(value) {
        assert!(is_json(after), "{} became {}", value.escape_ascii(), after.escape_ascii());
    }
}
