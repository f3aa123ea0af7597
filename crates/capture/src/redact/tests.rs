//! Tests which values are removed, and which parts of a statement are kept.

use howdah_sql::grammar::{Effect, classify};
use howdah_traffic::{CapturedOutcome, CopyInData, Source, Timestamp, WireDetail};
use proptest::prelude::*;

use super::*;

fn redactor() -> Redactor {
    Redactor::new(&RedactionKey::from_secret(b"sixteen bytes or more").unwrap())
}

fn event(action: Action) -> Event {
    Event {
        time: Timestamp::from_micros(0),
        session: "s".into(),
        user: "u".into(),
        database: "d".into(),
        application: "psql of Jane Roe".into(),
        action,
        outcome: CapturedOutcome {
            error: Some("invalid input: \"hunter2\"".into()),
            ..CapturedOutcome::default()
        },
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

fn redacted(sql: &str) -> String {
    let simple = event(Action::Simple { sql: sql.into() });
    let event = redactor().redact(simple);
    event.action.sql().unwrap().to_string()
}

fn value(text: &str) -> String {
    let parameters = Some(vec![Parameter::Value(text.into()), Parameter::Null]);
    let bound = Bound { statement: "".into(), portal: "".into(), sql: "".into(), parameters };
    match redactor().redact(event(Action::Execute(bound))).action {
        Action::Execute(Bound { parameters: Some(values), .. }) => match &values[..] {
            [Parameter::Value(value), Parameter::Null] => value.to_string(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn secrets_in_any_spelling_are_removed() {
    for sql in [
        "alter role app password 'hunter2sekret'",
        "create role app login encrypted password 'SCRAM-SHA-256$4096:hunter2sekret$a:b'",
        "alter role app with password E'hunter2\\nsekret'",
        "alter role app with password U&'hunter2\\0041sekret' valid until '2030-01-01'",
        "alter role app with password U&'hunter2!0041sekret' uescape '!'",
        "select dblink('host=x password=hunter2 user=sekret')",
        "create user mapping for u server s options (password 'hunter2sekret')",
        "select 1 -- password is hunter2",
        "select /* hunter2 /* sekret */ */ 1",
        "select x uescape 'hunter2sekret'",
        "select $$hunter2$$, $pw$ sekret 'hunter2' $pw$",
        "do $x$begin perform 'hunter2'; end$x$",
        "select 'a' -- c\n 'hunter2'",
        "set app.token = hunter2sekret",
        "set app.token to 'hunter2', sekret",
        "alter role app set app.token = hunter2sekret",
        "select N'hunter2', b'0101', x'aff3'",
        "select 'it''s hunter2'",
        "select 'it\\'s hunter2'",
        "select 'hunter2",
        "select E'it\\'s hunter2', 'sekret'",
        "select $$hunter2",
        "select \\set hunter2",
        "/* hunter2",
    ] {
        let out = redacted(sql);
        assert!(!out.contains("hunter2"), "{sql} became {out}");
        assert!(!out.contains("sekret"), "{sql} became {out}");
    }
    let event = redactor().redact(event(Action::Connect));
    assert!(!format!("{event:?}").contains("hunter2"), "{event:?}");
    assert!(!format!("{event:?}").contains("Jane"), "{event:?}");
}

#[test]
fn structure_is_kept() {
    assert_eq!(
        redacted("begin; SELECT a, \"B c\" FROM s.t;"),
        "begin; SELECT a, \"B c\" FROM s.t;"
    );
    assert_eq!(redacted("set search_path to app, public"), "set search_path to app, public");
    assert_eq!(redacted("update t set a.b = c"), "update t set a.b = c");
    assert_eq!(redacted("select $1, null, true, 0"), "select $1, null, true, 0");
    let like = redacted("select 'a%_b', E'\\\\x', 12345.678e3");
    assert_eq!(like.len(), "select 'a%_b', '\\x', 12345.678e3".len(), "{like}");
    assert!(like.ends_with("e3") && like.contains("%_"), "{like}");
}

#[test]
fn equal_values_have_equal_replacements() {
    let sql = redacted("select 'Jane Roe', 4711, 'Jane Roe'");
    let name = value("Jane Roe");
    assert_ne!(name, "Jane Roe");
    assert_eq!(sql.matches(&format!("'{name}'")).count(), 2, "{sql} {name}");
    assert!(sql.contains(&value("4711")), "{sql}");
    assert_ne!(value("Jane Roe"), value("Jane Row"));
    let other = RedactionKey::from_secret(b"another sixteen bytes").unwrap();
    let connect = || event(Action::Connect);
    assert_ne!(Redactor::new(&other).redact(connect()), redactor().redact(connect()));
    assert_eq!(redactor().redact(connect()), redactor().redact(connect()));
}

#[test]
fn shapes_are_kept() {
    for (text, fits) in [
        ("2026-11-20", (|v| v[5..7].parse::<u32>().unwrap() <= 12) as fn(&str) -> bool),
        ("2026-11-20 12:43:19.577+00", |v| v[11..13].parse::<u32>().unwrap() < 24),
        ("d3b07384-d113-4ec6-a5d8-000000000000", |v| {
            v.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
        }),
        ("2147483647", |v| v.parse::<i32>().is_ok()),
        ("32767", |v| v.parse::<i16>().is_ok()),
        ("9223372036854775807", |v| v.parse::<i64>().is_ok()),
        ("-17.50", |v| v.parse::<f64>().is_ok_and(|number| number <= -10.0)),
        ("0", |v| v == "0"),
        ("true", |v| v.len() == 4),
        (r#"{"a": [1, true, null, "b\"c"], "d": -0.5}"#, |v| {
            serde_json::from_str::<serde_json::Value>(v).is_ok()
        }),
        (r#"[5e3, -2.5E-10, 1e+2, "1e5"]"#, |v| {
            serde_json::from_str::<serde_json::Value>(v).is_ok() && v.contains("E-10")
        }),
        ("{1,2,NULL}", |v| v.starts_with('{') && v.ends_with('}')),
        ("caf\u{e9}", |v| v.len() == 5 && v.is_ascii()),
    ] {
        let out = value(text);
        assert_eq!(out.len(), text.len(), "{text} became {out}");
        assert!(fits(&out), "{text} became {out}");
    }
}

#[test]
fn digits_resembling_exponents_are_removed() {
    for text in ["[1e4718152345", "[1E+4718152345]", "[0.00e4718152345]", "{\"a\": 2e-4718152345}"]
    {
        let out = value(text);
        assert!(!out.contains("4718152345"), "{text} became {out}");
        assert_eq!(out.len(), text.len(), "{text} became {out}");
        let is_json = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
        assert!(!is_json(text) || is_json(&out), "{text} became {out}");
    }
    let many = value("[1e4e4e4e4e4e471");
    assert!(many.starts_with('[') && !many.contains("e4e4"), "{many}");
    for sql in ["select 1e4718152345", "select 1.5E-4718152345", "select .5e+47_18_15_23_45"] {
        let out = redacted(sql);
        assert!(!out.contains("4718152345") && !out.contains("47_18"), "{sql} became {out}");
    }
    assert!(redacted("select 12.5e-308").ends_with("e-308"));
}

#[test]
fn wire_details_are_redacted() {
    let mut one = event(Action::Execute(Bound {
        statement: "".into(),
        portal: "".into(),
        sql: "select $1, $2, $3".into(),
        parameters: Some(vec![
            Parameter::Value("Jane Roe".into()),
            Parameter::Value(Text::from(&[0, 0, 0x12, 0x67][..])),
            Parameter::Value(Text::from(&[1][..])),
        ]),
    }));
    one.wire = Some(Box::new(WireDetail {
        formats: vec![1],
        settings: vec![("app.user".into(), "Jane Roe".into()), ("TimeZone".into(), "UTC".into())],
        copy_in: Some(CopyInData {
            bytes: 9,
            data: vec![Some("1\tJane Roe\n".into())],
            failed: false,
        }),
        ..WireDetail::default()
    }));
    let out = redactor().redact(one);
    assert!(!format!("{out:?}").contains("Jane"), "{out:?}");
    let Action::Execute(Bound { parameters: Some(values), .. }) = &out.action else { panic!() };
    let bytes: Vec<&[u8]> = values
        .iter()
        .map(|value| match value {
            Parameter::Value(text) => text.as_bytes(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bytes[0].len(), 8);
    assert!(bytes[1].len() == 4 && bytes[1][0] < 0x80 && bytes[1] != [0, 0, 0x12, 0x67]);
    assert!(bytes[2] == [0] || bytes[2] == [1]);
    let wire = out.wire.unwrap();
    assert_eq!(wire.settings[1].1, "UTC".into());
    assert_eq!(wire.copy_in.unwrap(), CopyInData { bytes: 9, data: vec![None], failed: false });
}

#[test]
fn names_are_replaced_on_request() {
    let mut redactor = redactor().with_names();
    let mut names = |sql: &str| {
        let out = redactor.redact(event(Action::Simple { sql: sql.into() }));
        out.action.sql().unwrap().to_string()
    };
    let replaced = |name: &str| {
        let values =
            ValueRedactor::new(&RedactionKey::from_secret(b"sixteen bytes or more").unwrap());
        values.name(name.as_bytes())
    };
    for sql in [
        "DECLARE @ binary scroll CURSOR FOR select a from t",
        "fetch @",
        "fetch forward 0 from @; move all in @; close @",
        "close all; deallocate all; unlisten *",
        "update t set a = b where current of @",
        "begin; SAVEPOINT @; rollback to @; rollback work to savepoint @; release @",
        "release savepoint @; commit",
        "prepare @ (int) as select $0 + a from t; execute @(0); deallocate prepare @",
        "explain (analyze) execute @; create table x as execute @",
        "create trigger x after insert on t for each row execute function f()",
        "listen @; notify @; unlisten @; select pg_notify('@', null)",
        "prepare transaction '0'; grant execute on function f() to r; rollback",
    ] {
        let expected = sql.replace('@', &replaced("jane_roe"));
        assert_eq!(names(&sql.replace('@', "jane_roe")), expected);
        if !sql.contains("pg_notify") {
            assert_eq!(names(&sql.replace('@', "\"jane_roe\"")), expected);
            assert_eq!(names(&sql.replace('@', "Jane_Roe")), expected);
        }
    }
    assert_ne!(replaced("s1"), replaced("s2"));
    let quoted = names("close \"Jane \"\"Roe\"");
    assert_eq!(quoted, format!("close {}", replaced("Jane \"Roe")));
    let bound = Bound {
        statement: "jane_roe".into(),
        portal: "".into(),
        sql: "select a".into(),
        parameters: None,
    };
    let Action::Bind(bound) = redactor.redact(event(Action::Bind(bound))).action else { panic!() };
    assert_eq!((bound.statement, bound.portal), (replaced("jane_roe").into(), "".into()));
    // Without the request, names stay.
    assert_eq!(redacted("savepoint jane_roe"), "savepoint jane_roe");
}

#[test]
fn short_keys_are_rejected() {
    assert!(matches!(RedactionKey::from_secret(b"short\n"), Err(KeyError::TooShort { bytes: 5 })));
    assert!(RedactionKey::random().is_ok());
}

/// Generates a value of at least twelve alphanumeric characters, which does not occur elsewhere by
/// chance.
fn secret() -> impl Strategy<Value = String> {
    "[a-z0-9]{4}[A-Z]{3}[a-z0-9]{5,20}"
}

/// Generates a statement with two secrets, in one of many spellings.
fn statement() -> impl Strategy<Value = (String, [String; 2])> {
    let templates = prop::sample::select(vec![
        "select 'A', 'B'",
        "select E'A\\'\\n', U&'B'",
        "insert into t (a, b) values ('A', 'x''B')",
        "select * from t where a = N'A' -- B",
        "select /* A */ $q$B$q$",
        "update t set a = 'A' where b like '%B%'",
        "alter role r password 'A'; set app.x = 'B'",
        "copy (select 'A') to stdout with (null 'B')",
        "select 'A'\n  'B'",
        "select 'A\\'', 'B'",
        "select 'A', 'B",
        "select \"n\", 'A' || E'\\\\B'",
        "comment on table t is 'A'; notify c, 'B'",
        "select $$A B$$",
    ]);
    (templates, secret(), secret()).prop_map(|(template, a, b)| {
        (template.replace('A', "\u{1}").replace('B', &b).replace('\u{1}', &a), [a, b])
    })
}

proptest! {
    #[test]
    fn no_literal_survives((sql, secrets) in statement(), bound in secret()) {
        let parameters = Some(vec![Parameter::Truncated(bound.as_str().into())]);
        let execute = Action::Execute(Bound {
            statement: "".into(), portal: "".into(), sql: sql.as_str().into(), parameters,
        });
        let mut one = event(execute);
        one.application = secrets[0].as_str().into();
        one.outcome.error = Some(format!("no {bound}").into());
        let out = format!("{:?}", redactor().redact(one));
        for secret in secrets.iter().chain([&bound]) {
            prop_assert!(!out.contains(secret.as_str()), "{secret} of {sql} in {out}");
        }
    }

    #[test]
    fn redacted_statements_stay_parsable((sql, _) in statement()) {
        if classify(sql.as_bytes()).effect != Effect::Unreadable {
            let out = redacted(&sql);
            let withheld = out.starts_with("redacted '");
            prop_assert!(withheld || classify(out.as_bytes()).effect == classify(sql.as_bytes()).effect, "{sql} became {out}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_accepted(sql: Vec<u8>) {
        redactor().redact(event(Action::Simple { sql: sql.into() }));
    }
}
