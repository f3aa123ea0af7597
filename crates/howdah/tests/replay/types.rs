//! Parameter types, which a log does not contain.

use serde_json::json;

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, text},
};

/// An expression, the parameter types that a driver such as psycopg 3 declares, and values for two
/// executions. The second values need not fit the types that the first ones suggest.
struct TypeCase {
    select: &'static str,
    types: &'static str,
    values: [&'static [&'static str]; 2],
}

const fn type_case(
    select: &'static str,
    types: &'static str,
    values: [&'static [&'static str]; 2],
) -> TypeCase {
    TypeCase { select, types, values }
}

const CASES: [TypeCase; 24] = [
    type_case("$1 + $2", "numeric, numeric", [&["1", "2"], &["1.5", "3000000000"]]),
    type_case(
        "$1 - $2",
        "timestamptz, timestamptz",
        [
            &["2026-11-20 10:00:00+00", "2026-11-19 09:00:00+00"],
            &["2026-11-20 10:00:00.5+00", "2026-11-19 09:00:00+01"],
        ],
    ),
    type_case(
        "to_char($1, 'YYYY-MM')",
        "timestamptz",
        [&["2026-11-20 10:00:00+00"], &["2026-12-20 10:00:00+00"]],
    ),
    type_case("to_char($1, '999.99')", "numeric", [&["12.5"], &["7"]]),
    type_case("date_trunc('day', $1)", "timestamptz", [&["2026-11-20 10:00:00+00"], &["NULL"]]),
    type_case("unnest($1)", "int8[]", [&["{3,1,2}"], &["{10,NULL,3000000000}"]]),
    type_case(
        "$1 - interval '1 day'",
        "timestamp",
        [&["2026-11-20 10:00:00"], &["2026-11-21 00:00:00"]],
    ),
    type_case("$1 < $2", "int4, int4", [&["10", "9"], &["9", "10"]]),
    type_case("greatest($1, $2)", "int4, int4", [&["10", "9"], &["100", "99"]]),
    type_case(
        "least($1, $2, $3)",
        "numeric, numeric, numeric",
        [&["10", "9", "100"], &["10", "9.5", "NULL"]],
    ),
    type_case("coalesce($1, $2) + 1", "int4, int4", [&["NULL", "5"], &["4", "5"]]),
    type_case(
        "case when $1 > $2 then 'more' else 'less' end",
        "int4, int4",
        [&["10", "9"], &["9", "10"]],
    ),
    type_case("concat($1, '-', $2)", "int4, text", [&["10", "x"], &["11", "12"]]),
    type_case("abs($1)", "int4", [&["-5"], &["5"]]),
    type_case("round($1, $2)", "numeric, int4", [&["2.345", "2"], &["2.5", "0"]]),
    type_case(
        "extract(hour from $1)",
        "timestamp",
        [&["2026-11-20 10:00:00"], &["2026-11-20 23:00:00"]],
    ),
    type_case(
        "$1 between $2 and $3",
        "int4, int4, int4",
        [&["10", "9", "100"], &["9", "10", "100"]],
    ),
    type_case(
        "(select max(v) from (values ($1), ($2)) t (v))",
        "int4, int4",
        [&["10", "9"], &["7", "11"]],
    ),
    type_case("jsonb_build_object('a', $1)", "int4", [&["5"], &["6"]]),
    type_case("now() - $1 < now()", "interval", [&["01:00:00"], &["1 day 02:00:00"]]),
    type_case("generate_series($1, $2)", "int4, int4", [&["1", "3"], &["2", "4"]]),
    type_case("date '2026-11-20' - $1", "int4", [&["5"], &["6"]]),
    type_case("$1 = any($2)", "int4, int4[]", [&["10", "{9,10}"], &["1", "{}"]]),
    // Text stays text, even if it looks like a number.
    type_case("$1 < $2", "text, text", [&["10a", "9a"], &["b", "a"]]),
];

fn quote_literal(value: &str) -> String {
    if value == "NULL" { value.to_owned() } else { format!("'{value}'") }
}

/// The results in production: the same statements with the driver's types.
fn run_with_types(fixture: &ReplayFixture) -> Vec<String> {
    let mut client = fixture.client();
    let mut answers = Vec::new();
    for (number, TypeCase { select, types, values }) in CASES.iter().enumerate() {
        client.query(&format!("prepare p{number} ({types}) as select ({select})::text")).unwrap();
        for values in values {
            let values: Vec<_> = values.iter().map(|value| quote_literal(value)).collect();
            let sql = format!("execute p{number} ({})", values.join(", "));
            for row in &client.query(&sql).unwrap()[0].rows {
                answers.push(format!("{number}: {}", row.text(0).unwrap_or("NULL".into())));
            }
        }
    }
    answers.sort();
    answers
}

/// A log of the same statements, each of which inserts its result into `answers`.
fn write_log(database: &str, name: &str, in_transaction: bool) -> LogBuilder {
    let mut log = LogBuilder::new(database);
    log.connect(0, 1);
    if in_transaction {
        log.query(1, 1, "begin");
    }
    let mut at = 10;
    for round in 0..2 {
        for (number, TypeCase { select, values, .. }) in CASES.iter().enumerate() {
            let sql = format!("insert into answers select {number}, ({select})::text");
            let values: Vec<_> = values[round]
                .iter()
                .enumerate()
                .map(|(at, value)| format!("${} = {}", at + 1, quote_literal(value)))
                .collect();
            let name = if name.is_empty() { "<unnamed>".into() } else { format!("{name}{number}") };
            log.execute(at, 1, &name, &sql, &values.join(", "));
            at += 3;
        }
    }
    if in_transaction {
        log.query(at, 1, "commit");
    }
    log.disconnect(at + 10, 1);
    log
}

#[test]
fn deduced_types_give_same_results_as_production() {
    let Some(fixture) = ReplayFixture::new("deduced") else { return };
    fixture.client().query("create table answers (n int, v text)").unwrap();
    let expected = run_with_types(&fixture);
    for (name, in_transaction) in [("", false), ("", true), ("s", false), ("s", true)] {
        fixture.client().query("truncate answers").unwrap();
        let log = write_log("deduced", name, in_transaction);
        let replayed = fixture.replay(&log.text, &["--rate", "max"]);
        replayed.assert_all_done();
        let answers = fixture.value(
            "select string_agg(n || ': ' || coalesce(v, 'NULL'), E'\\n' order by n || ': ' || coalesce(v, 'NULL') collate \"C\") from answers",
        );
        let answers: Vec<_> = answers.lines().map(str::to_owned).collect();
        assert_eq!(answers, expected, "{name:?} {in_transaction}");
        let deduced = &replayed.report["types_deduced"];
        let statements = deduced["statements"].as_array().unwrap().len();
        assert!(statements >= 19, "{deduced}");
        assert!(deduced["executions"].as_u64().unwrap() >= 38, "{deduced}");
    }
    // The comparison reports the deduced types, too.
    let run = |words: &[&str]| {
        let done = fixture.howdah().args(words).assert().success();
        text(&done.get_output().stdout)
    };
    let shown = run(&["compare", "run", "run"]);
    assert!(shown.contains("note: parameter types of "), "{shown}");
    let shown: serde_json::Value =
        serde_json::from_str(&run(&["compare", "run", "run", "--format", "json"])).unwrap();
    let marked = shown["queries"].as_array().unwrap();
    assert!(marked.iter().filter(|query| query["types_deduced"] == true).count() >= 19);
}

#[test]
fn types_are_not_deduced_unless_needed() {
    let Some(fixture) = ReplayFixture::new("not_deduced") else { return };
    let objects = "create table t (id int, name varchar, at timestamptz); insert into t values (1, '10', now())";
    fixture.client().query(objects).unwrap();
    let mut log = LogBuilder::new("not_deduced");
    log.connect(0, 1);
    let statements = [
        ("select * from t where id = $1 and name = $2 limit $3", "$1 = '1', $2 = '10', $3 = '5'"),
        ("insert into t (id, name) values ($1, $2)", "$1 = '2', $2 = '007'"),
        ("update t set name = $1 where name = $2", "$1 = '20', $2 = '10'"),
        ("select lower($1)", "$1 = '10'"),
        // Compared with each other and with a text column.
        ("select * from t where $1 = $2 and name = $1", "$1 = '10', $2 = '10'"),
    ];
    for (at, (sql, values)) in statements.into_iter().enumerate() {
        log.execute(10 + 3 * at as u64, 1, "<unnamed>", sql, values);
    }
    log.disconnect(90, 1);
    let replayed = fixture.replay(&log.text, &[]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["types_deduced"], json!({ "executions": 0, "statements": [] }));
    assert_eq!(fixture.value("select string_agg(name, ' ' order by id) from t"), "20 007");
}

#[test]
fn statement_failing_with_any_types_does_not_stop_session() {
    let Some(fixture) = ReplayFixture::new("hopeless") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("hopeless");
    log.connect(0, 1);
    for round in 0..3 {
        log.execute(
            10 + round * 10,
            1,
            "<unnamed>",
            "select no_such_function($1 + $2)",
            "$1 = '1', $2 = '2'",
        );
        log.execute(15 + round * 10, 1, "<unnamed>", "insert into t values ($1)", "$1 = 'abc'");
    }
    log.query(60, 1, "insert into t values (1)").disconnect(90, 1);
    let replayed = fixture.replay(&log.text, &[]);
    assert_eq!(replayed.report["errors"], json!({ "42725": 3, "22P02": 3 }));
    assert_eq!(fixture.value("select count(*) from t"), "1");
}
