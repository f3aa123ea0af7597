//! Parameters whose types a log does not hold.

use serde_json::json;

use crate::{
    logs::Log,
    support::{Stage, howdah, text},
};

/// An expression, the types that a driver such as psycopg 3 gives with it, and values for two executions, the
/// second of which need not fit the types that the first one suggests.
struct Case {
    select: &'static str,
    types: &'static str,
    values: [&'static [&'static str]; 2],
}

const fn case(
    select: &'static str,
    types: &'static str,
    values: [&'static [&'static str]; 2],
) -> Case {
    Case { select, types, values }
}

const CASES: [Case; 24] = [
    case("$1 + $2", "numeric, numeric", [&["1", "2"], &["1.5", "3000000000"]]),
    case(
        "$1 - $2",
        "timestamptz, timestamptz",
        [
            &["2026-11-20 10:00:00+00", "2026-11-19 09:00:00+00"],
            &["2026-11-20 10:00:00.5+00", "2026-11-19 09:00:00+01"],
        ],
    ),
    case(
        "to_char($1, 'YYYY-MM')",
        "timestamptz",
        [&["2026-11-20 10:00:00+00"], &["2026-12-20 10:00:00+00"]],
    ),
    case("to_char($1, '999.99')", "numeric", [&["12.5"], &["7"]]),
    case("date_trunc('day', $1)", "timestamptz", [&["2026-11-20 10:00:00+00"], &["NULL"]]),
    case("unnest($1)", "int8[]", [&["{3,1,2}"], &["{10,NULL,3000000000}"]]),
    case(
        "$1 - interval '1 day'",
        "timestamp",
        [&["2026-11-20 10:00:00"], &["2026-11-21 00:00:00"]],
    ),
    case("$1 < $2", "int4, int4", [&["10", "9"], &["9", "10"]]),
    case("greatest($1, $2)", "int4, int4", [&["10", "9"], &["100", "99"]]),
    case(
        "least($1, $2, $3)",
        "numeric, numeric, numeric",
        [&["10", "9", "100"], &["10", "9.5", "NULL"]],
    ),
    case("coalesce($1, $2) + 1", "int4, int4", [&["NULL", "5"], &["4", "5"]]),
    case(
        "case when $1 > $2 then 'more' else 'less' end",
        "int4, int4",
        [&["10", "9"], &["9", "10"]],
    ),
    case("concat($1, '-', $2)", "int4, text", [&["10", "x"], &["11", "12"]]),
    case("abs($1)", "int4", [&["-5"], &["5"]]),
    case("round($1, $2)", "numeric, int4", [&["2.345", "2"], &["2.5", "0"]]),
    case(
        "extract(hour from $1)",
        "timestamp",
        [&["2026-11-20 10:00:00"], &["2026-11-20 23:00:00"]],
    ),
    case("$1 between $2 and $3", "int4, int4, int4", [&["10", "9", "100"], &["9", "10", "100"]]),
    case(
        "(select max(v) from (values ($1), ($2)) t (v))",
        "int4, int4",
        [&["10", "9"], &["7", "11"]],
    ),
    case("jsonb_build_object('a', $1)", "int4", [&["5"], &["6"]]),
    case("now() - $1 < now()", "interval", [&["01:00:00"], &["1 day 02:00:00"]]),
    case("generate_series($1, $2)", "int4, int4", [&["1", "3"], &["2", "4"]]),
    case("date '2026-11-20' - $1", "int4", [&["5"], &["6"]]),
    case("$1 = any($2)", "int4, int4[]", [&["10", "{9,10}"], &["1", "{}"]]),
    // What is a text stays one, and so does what only looks like a number.
    case("$1 < $2", "text, text", [&["10a", "9a"], &["b", "a"]]),
];

fn quoted(value: &str) -> String {
    if value == "NULL" { value.to_owned() } else { format!("'{value}'") }
}

/// What production did: the same with the types that the driver gave.
fn in_production(stage: &Stage) -> Vec<String> {
    let mut client = stage.client();
    let mut answers = Vec::new();
    for (number, Case { select, types, values }) in CASES.iter().enumerate() {
        client.query(&format!("prepare p{number} ({types}) as select ({select})::text")).unwrap();
        for values in values {
            let values: Vec<_> = values.iter().map(|value| quoted(value)).collect();
            let sql = format!("execute p{number} ({})", values.join(", "));
            for row in &client.query(&sql).unwrap()[0].rows {
                answers.push(format!("{number}: {}", row.text(0).unwrap_or("NULL".into())));
            }
        }
    }
    answers.sort();
    answers
}

/// The same statements as a log has them, each writing its answer down.
fn log(database: &str, name: &str, in_transaction: bool) -> Log {
    let mut log = Log::new(database);
    log.connect(0, 1);
    if in_transaction {
        log.query(1, 1, "begin");
    }
    let mut at = 10;
    for round in 0..2 {
        for (number, Case { select, values, .. }) in CASES.iter().enumerate() {
            let sql = format!("insert into answers select {number}, ({select})::text");
            let values: Vec<_> = values[round]
                .iter()
                .enumerate()
                .map(|(at, value)| format!("${} = {}", at + 1, quoted(value)))
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
fn statements_that_need_types_are_replayed_with_the_answers_of_production() {
    let Some(stage) = Stage::new("deduced") else { return };
    stage.client().query("create table answers (n int, v text)").unwrap();
    let expected = in_production(&stage);
    for (name, in_transaction) in [("", false), ("", true), ("s", false), ("s", true)] {
        stage.client().query("truncate answers").unwrap();
        let log = log("deduced", name, in_transaction);
        let replayed = stage.replay(&log.text, &["--rate", "max"]);
        replayed.assert_all_done();
        let answers = stage.value(
            "select string_agg(n || ': ' || coalesce(v, 'NULL'), E'\\n' order by n || ': ' || coalesce(v, 'NULL') collate \"C\") from answers",
        );
        let answers: Vec<_> = answers.lines().map(str::to_owned).collect();
        assert_eq!(answers, expected, "{name:?} {in_transaction}");
        let deduced = &replayed.report["types_deduced"];
        let statements = deduced["statements"].as_array().unwrap().len();
        assert!(statements >= 19, "{deduced}");
        assert!(deduced["executions"].as_u64().unwrap() >= 38, "{deduced}");
    }
    // And so the comparison says.
    let run = |words: &[&str]| {
        let done = howdah(stage.folder.path()).args(words).assert().success();
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
fn statements_that_work_without_types_are_sent_without() {
    let Some(stage) = Stage::new("not_deduced") else { return };
    let objects = "create table t (id int, name varchar, at timestamptz); insert into t values (1, '10', now())";
    stage.client().query(objects).unwrap();
    let mut log = Log::new("not_deduced");
    log.connect(0, 1);
    let statements = [
        ("select * from t where id = $1 and name = $2 limit $3", "$1 = '1', $2 = '10', $3 = '5'"),
        ("insert into t (id, name) values ($1, $2)", "$1 = '2', $2 = '007'"),
        ("update t set name = $1 where name = $2", "$1 = '20', $2 = '10'"),
        ("select lower($1)", "$1 = '10'"),
        // Compared with one another, and with a column that is a text.
        ("select * from t where $1 = $2 and name = $1", "$1 = '10', $2 = '10'"),
    ];
    for (at, (sql, values)) in statements.into_iter().enumerate() {
        log.execute(10 + 3 * at as u64, 1, "<unnamed>", sql, values);
    }
    log.disconnect(90, 1);
    let replayed = stage.replay(&log.text, &[]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["types_deduced"], json!({ "executions": 0, "statements": [] }));
    assert_eq!(stage.value("select string_agg(name, ' ' order by id) from t"), "20 007");
}

#[test]
fn statement_that_fails_with_any_types_fails_once_and_its_session_goes_on() {
    let Some(stage) = Stage::new("hopeless") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("hopeless");
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
    let replayed = stage.replay(&log.text, &[]);
    assert_eq!(replayed.report["errors"], json!({ "42725": 3, "22P02": 3 }));
    assert_eq!(stage.value("select count(*) from t"), "1");
}
