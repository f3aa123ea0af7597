//! Reads the files with another program: DuckDB, through Python, with queries such as users run.
//!
//! `scripts/setup` installs the Python; `HOWDAH_TEST_PYTHON` selects another one that has `duckdb`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use howdah_dataset::{
    CaptureSettings, CaptureWriter, Disposition, ReplayOutcome, RunSettings, RunWriter,
    StatementInfo,
};
use howdah_traffic::{
    Action, Bound, CapturedOutcome, Event, Kind, Parameter, Source, SqlState, Text, Timestamp,
};
use serde_json::{Value, json};

fn python() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = match env::var_os("HOWDAH_TEST_PYTHON") {
        Some(path) => path.into(),
        None => workspace.join("target/tools/venv/bin/python"),
    };
    assert!(
        path.exists(),
        "{} does not exist: run scripts/setup, or set HOWDAH_TEST_PYTHON to a Python with duckdb",
        path.display()
    );
    path
}

/// The rows of a query, where `{dir}` stands for the dataset.
fn query(dir: &Path, sql: &str) -> Value {
    const SCRIPT: &str = "import duckdb, json, sys\n\
        print(json.dumps(duckdb.sql(sys.argv[1]).fetchall(), default=lambda b: b.hex()))";
    let sql = sql.replace("{dir}", dir.to_str().unwrap());
    let output = Command::new(python()).args(["-c", SCRIPT, &sql]).output().unwrap();
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn event(micros: i64, action: Action) -> Event {
    Event {
        time: Timestamp::from_micros(micros),
        session: "656a1b2c.4d2".into(),
        user: "app".into(),
        database: "".into(),
        application: "psql".into(),
        action,
        outcome: CapturedOutcome::default(),
        source: Source::Duration,
        vxid: Some("3/17".into()),
        query_id: Some(-42),
        pipeline: Some(3),
        wire: None,
    }
}

fn capture(dir: &Path) {
    let mut writer = CaptureWriter::create(dir, CaptureSettings::default()).unwrap();
    let latin = Text::from(&b"select 'caf\xe9'"[..]);
    let mut failed = event(1_795_178_600_000_000, Action::Simple { sql: latin });
    failed.outcome = CapturedOutcome {
        duration_us: Some(1500),
        sqlstate: SqlState::new(b"22021"),
        error: Some("invalid byte sequence".into()),
    };
    let execute = Action::Execute(Bound {
        statement: "s1".into(),
        portal: "".into(),
        sql: "select $1, $2, $3".into(),
        parameters: Some(vec![
            Parameter::Value("it's".into()),
            Parameter::Null,
            Parameter::Truncated("long".into()),
        ]),
    });
    for event in [failed, event(1_795_178_599_577_000, execute), event(0, Action::Connect)] {
        writer.write(event).unwrap();
    }
    writer.finish(Value::Null).unwrap();
}

#[test]
fn duckdb_reads_a_capture() {
    let scratch = tempfile::tempdir().unwrap();
    capture(scratch.path());
    let rows_of = |sql| query(scratch.path(), sql);

    let kinds = "select kind, count(*) from '{dir}/events-*.parquet' group by kind order by kind";
    assert_eq!(rows_of(kinds), json!([["connect", 1], ["execute", 1], ["simple", 1]]));

    let range = "select epoch_us(min(time)), epoch_us(max(time)), typeof(min(time)) \
                 from '{dir}/events-*.parquet'";
    let range = rows_of(range);
    assert_eq!(range, json!([[0, 1_795_178_600_000_000_i64, "TIMESTAMP WITH TIME ZONE"]]));

    let parameters = "select parameters, parameters[1], len(parameters), parameters_truncated, \
                      parameters_bytes, statement, portal \
                      from '{dir}/events-*.parquet' where kind = 'execute'";
    let values = json!(["it's", null, "long"]);
    assert_eq!(rows_of(parameters), json!([[values, "it's", 3, [3], null, "s1", ""]]));

    let facts = "select sql, sql_bytes, duration_us, sqlstate, error, \"user\", database, query_id \
                 from '{dir}/events-*.parquet' where kind = 'simple'";
    let hex = "73656c6563742027636166e927";
    let text = "select 'caf\u{fffd}'";
    let expected = json!([[text, hex, 1500, "22021", "invalid byte sequence", "app", null, -42]]);
    assert_eq!(rows_of(facts), expected);

    let order = "select list(sequence order by time, sequence) from '{dir}/events-*.parquet'";
    assert_eq!(rows_of(order), json!([[[2, 1, 0]]]));

    let version = "select decode(value) from parquet_kv_metadata('{dir}/events-*.parquet') \
                   where decode(key) = 'howdah.version'";
    assert_eq!(rows_of(version), json!([["5"]]));
}

#[test]
fn duckdb_reads_many_pages() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = CaptureWriter::create(scratch.path(), CaptureSettings::default()).unwrap();
    for number in 0..20_000_usize {
        let text = |index| format!("{number}.{index} {}", "x".repeat(number % 300));
        let values = (0..number % 5).map(|index| match index {
            0 => Parameter::Null,
            1 => Parameter::Value("the same".into()),
            _ => Parameter::Value(text(index).into()),
        });
        let bound = Bound {
            statement: text(0).into(),
            portal: format!("{}", number % 3).into(),
            sql: "select 1".into(),
            parameters: (!number.is_multiple_of(7)).then(|| values.collect()),
        };
        let mut event = event(i64::try_from(number).unwrap(), Action::Execute(bound));
        event.outcome.duration_us = (!number.is_multiple_of(4)).then_some(number as u64);
        writer.write(event).unwrap();
    }
    writer.finish(Value::Null).unwrap();
    let sql = "select count(*), sum(sequence)::bigint, sum(duration_us)::bigint, count(duration_us), \
               count(distinct statement), sum(length(statement))::bigint, \
               count(distinct portal), count(*) filter (sql = 'select 1'), \
               sum(len(parameters))::bigint, count(parameters), \
               sum(length(array_to_string(parameters, '')))::bigint, count(sqlstate), count(types) \
               from '{dir}/events-*.parquet'";
    let numbers = || 0..20_000_usize;
    let timed = || numbers().filter(|number| !number.is_multiple_of(4));
    let bound = || numbers().filter(|number| !number.is_multiple_of(7));
    let length = |number: usize, index: usize| format!("{number}.{index} ").len() + number % 300;
    let texts: usize = bound()
        .flat_map(|number| (0..number % 5).map(move |index| (number, index)))
        .map(|(number, index)| match index {
            0 => 0,
            1 => "the same".len(),
            _ => length(number, index),
        })
        .sum();
    let expected = json!([[
        20_000,
        numbers().sum::<usize>(),
        timed().sum::<usize>(),
        timed().count(),
        20_000,
        numbers().map(|number| length(number, 0)).sum::<usize>(),
        3,
        20_000,
        bound().map(|number| number % 5).sum::<usize>(),
        bound().count(),
        texts,
        0,
        0,
    ]]);
    assert_eq!(query(scratch.path(), sql), expected);

    // Whole row groups are skipped because of their statistics.
    let sql = "select count(*) from '{dir}/events-*.parquet' \
               where \"user\" = 'app' and session = '656a1b2c.4d2' and time >= make_timestamptz(17000) \
               and time < make_timestamptz(18000)";
    assert_eq!(query(scratch.path(), sql), json!([[1000]]));
    for nowhere in ["\"user\" = 'bpp'", "session < '6'", "duration_us > 20000", "query_id > -42"] {
        let sql = format!("select count(*) from '{{dir}}/events-*.parquet' where {nowhere}");
        assert_eq!(query(scratch.path(), &sql), json!([[0]]), "{nowhere}");
    }
}

/// A run of two executions of a statement, the second of which failed, and the Parse before them.
fn run(dir: &Path) {
    let settings = RunSettings {
        capture: "monday".to_owned(),
        target: "postgresql://app@db.example/shop".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.10".to_owned(),
        started: Timestamp::from_micros(0),
        overwrite: false,
        part: None,
    };
    let mut writer = RunWriter::create(dir, settings).unwrap();
    let statement = StatementInfo {
        fingerprint: u64::MAX,
        query: "select $1".to_owned(),
        example_sql: "select 1".into(),
        example_parameters: None,
        user: "app".into(),
        database: "shop".into(),
    };
    writer.statement(&statement).unwrap();
    let outcome = |kind, service_us, disposition| ReplayOutcome {
        time: Timestamp::from_micros(0),
        session: "656a1b2c.4d2".into(),
        user: "app".into(),
        database: "shop".into(),
        kind,
        fingerprint: Some(statement.fingerprint),
        due_us: -5,
        sent_us: Some(0),
        service_us: Some(service_us),
        schedule_error_us: Some(5),
        dependency_lag_us: Some(0),
        input_late_us: Some(0),
        rows: Some(1),
        disposition,
        captured_us: None,
        order_wait_us: None,
        captured_rows: None,
        check: None,
    };
    writer.write(&outcome(Kind::Parse, 50, Disposition::Done)).unwrap();
    writer.write(&outcome(Kind::Execute, 100, Disposition::Done)).unwrap();
    let failed =
        Disposition::Failed { sqlstate: SqlState::new(b"57014"), message: "cancelled".into() };
    writer.write(&outcome(Kind::Execute, 300, failed)).unwrap();
    writer.finish(Value::Null, true).unwrap();
}

#[test]
fn duckdb_joins_the_tables_of_a_run() {
    let scratch = tempfile::tempdir().unwrap();
    run(scratch.path());

    let sql = "select s.fingerprint, s.query, count(*), \
               count(*) filter (o.disposition = 'failed'), avg(o.service_us), min(o.due_us) \
               from '{dir}/outcomes-*.parquet' o join '{dir}/statements-*.parquet' s \
               using (fingerprint) where o.kind = 'execute' group by all";
    let expected = json!([["ffffffffffffffff", "select $1", 2, 1, 200.0, -5]]);
    assert_eq!(query(scratch.path(), sql), expected);
}

#[test]
fn queries_of_the_documentation_work() {
    let page = include_str!("../../../docs/src/reference/capture-format.md");
    let (_, block) = page.split_once("```sql\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let folder = |name: &str| scratch.path().join(name);
    capture(&folder("monday"));
    run(&folder("monday-on-17"));
    let queries: Vec<_> = block.split(";\n").filter(|sql| !sql.trim().is_empty()).collect();
    assert_eq!(queries.len(), 4, "{queries:?}");
    let placed = |sql: &str| sql.replace("'monday", &format!("'{}", folder("monday").display()));
    let answers: Vec<_> = queries.iter().map(|sql| query(scratch.path(), &placed(sql))).collect();
    assert_eq!(answers[0].as_array().unwrap().len(), 3);
    assert_eq!(answers[1].as_array().unwrap().len(), 2);
    assert_eq!(answers[3], json!([["select $1", 2, 1, 0.2]]), "a Parse is not a call");
}
