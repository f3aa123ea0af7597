//! `deploy/spark/compare.py`: equals `howdah compare`.
//!
//! The SQL and the statistics are the same for every engine. These tests use DuckDB, which
//! `scripts/setup` installs. `make spark` runs them with Spark.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use howdah_dataset::{Disposition, ReplayOutcome, ReplayRun, RunWriter, StatementInfo};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_traffic::{Kind, SqlState, Timestamp};
use serde_json::{Value, json};

use crate::{compare::settings, howdah, rehearse::client, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Compares with the job, and returns its output.
fn job(folder: &Path, words: &[&str]) -> Output {
    let tools = root().join("target/tools");
    let is_spark = env::var_os("HOWDAH_TEST_SPARK").is_some();
    let python = match env::var_os("HOWDAH_TEST_PYTHON") {
        Some(path) => path.into(),
        None if is_spark => tools.join("spark/bin/python"),
        None => tools.join("venv/bin/python"),
    };
    assert!(
        python.exists(),
        "{} does not exist: run {}, or set HOWDAH_TEST_PYTHON to a Python with duckdb or pyspark",
        python.display(),
        if is_spark { "make spark" } else { "scripts/setup" }
    );
    let mut command = Command::new(&python);
    command
        .arg(root().join("deploy/spark/compare.py"))
        .args(["--engine", if is_spark { "spark" } else { "duckdb" }])
        .args(words)
        .current_dir(folder)
        .env("COLUMNS", "100")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    if is_spark {
        // A short program is not worth optimising.
        let settings = "--master local[2] --conf spark.sql.shuffle.partitions=4 \
                        --conf spark.ui.enabled=false --conf spark.log.level=ERROR \
                        --driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' \
                        pyspark-shell";
        command
            .env("PYSPARK_PYTHON", &python)
            .env("PYSPARK_SUBMIT_ARGS", settings)
            .env("SPARK_LOCAL_IP", "127.0.0.1");
    }
    command.output().unwrap()
}

/// The output of both programs for the same arguments.
fn both(folder: &Path, words: &[&str]) -> [String; 2] {
    let ours = howdah(folder).arg("compare").args(words).output().unwrap();
    let job = job(folder, words);
    assert_eq!(job.status.code(), ours.status.code(), "{words:?}: {}", text(&job.stderr));
    [text(&ours.stdout), text(&job.stdout)]
}

fn both_documents(folder: &Path, words: &[&str]) -> [Value; 2] {
    let words = [words, &["--format", "json"]].concat();
    both(folder, &words).map(|output| serde_json::from_str(&output).unwrap())
}

/// Compares all keys: texts and whole numbers exactly, others up to the rounding of the last
/// digits. Adds the differences to `wrong`.
fn compare_values(path: &str, ours: &Value, job: &Value, wrong: &mut Vec<String>) {
    match (ours, job) {
        (Value::Object(ours), Value::Object(job)) => {
            for key in ours.keys().chain(job.keys().filter(|key| !ours.contains_key(*key))) {
                let of = |side: &serde_json::Map<String, Value>| side.get(key).cloned();
                let missing = || json!("no such key");
                let (ours, job) = (of(ours), of(job));
                let (ours, job) = (ours.unwrap_or_else(missing), job.unwrap_or_else(missing));
                compare_values(&format!("{path}.{key}"), &ours, &job, wrong);
            }
        }
        (Value::Array(ours), Value::Array(job)) if ours.len() == job.len() => {
            for (index, (ours, job)) in ours.iter().zip(job).enumerate() {
                compare_values(&format!("{path}[{index}]"), ours, job, wrong);
            }
        }
        (Value::Number(ours), Value::Number(job)) if ours.is_f64() || job.is_f64() => {
            let (ours, job) = (ours.as_f64().unwrap(), job.as_f64().unwrap());
            if (ours - job).abs() > 1e-9 * ours.abs() {
                wrong.push(format!("{path}: {ours}, not {job}"));
            }
        }
        (ours, job) if ours != job => wrong.push(format!("{path}: {ours}, not {job}")),
        _ => {}
    }
}

fn assert_equal(ours: &Value, job: &Value) {
    let mut wrong = Vec::new();
    compare_values("", ours, job, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn verdicts(document: &Value) -> Vec<&str> {
    let queries = document["queries"].as_array().unwrap().iter();
    queries.map(|query| query["verdict"].as_str().unwrap()).collect()
}

/// A log of 6,000 statements: one query is executed more often than a sample has room for, some
/// executions fail.
fn write_log(folder: &Path) {
    let mut log = String::new();
    for number in 0..6_000 {
        let sql = match number % 20 {
            0 => format!("select count(*) from items where id between {number} and 20000"),
            1 => format!("select 1 / {}", number % 3),
            2 => format!("insert into log values ({}, 'x y')", number % 900),
            3 => format!("update items set note = 'n' where id = {number}"),
            _ => format!("select note from items where id = {}", number * 7 % 20_000),
        };
        let (second, millisecond) = (number / 1_000, number % 1_000);
        let session = 7 + number % 3;
        log.push_str(&format!(
            "2026-11-20 12:43:{second:02}.{millisecond:03} UTC [{session}] postgres@postgres LOG:  \
             duration: 0.500 ms  statement: {sql}\n"
        ));
    }
    fs::write(folder.join("server.log"), log).unwrap();
}

/// Replays a log on a server in turns: with an index (`a1`, `a2`) and without it (`b1`, `b2`).
fn alternate_replays(folder: &Path, cluster: &Cluster) {
    write_log(folder);
    let mut client = client(cluster, "postgres");
    client
        .query(
            "create table items as select id, repeat('x', 100) note from generate_series(1, 20000) id;
             create table log (id int primary key, note text)",
        )
        .unwrap();
    for run in ["a1", "b1", "b2", "a2"] {
        let index = if run.starts_with('a') {
            "create index if not exists items_id on items (id)"
        } else {
            "drop index if exists items_id"
        };
        client.query(&format!("truncate log; {index}")).unwrap();
        let uri = cluster.uri("postgres");
        let words = ["replay", "server.log", "--target", &uri, "-o", run, "--rate", "max"];
        howdah(folder).args(words).assert().success();
    }
}

#[test]
fn job_equals_compare_on_replayed_runs() {
    let started = Cluster::builder().start();
    let Some(cluster) = skip_without_postgres("the comparison of replays by the job", started)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    alternate_replays(folder.path(), &cluster);
    let pair = ["a1", "b1"];
    let [ours, job] = both_documents(folder.path(), &pair);
    assert!(verdicts(&ours).contains(&"slower"), "{ours:#}");
    assert!(ours["base"]["errors"].as_u64() > Some(0), "{ours:#}");
    let is_sampled = |query: &Value| query["base"]["timed"].as_u64() > Some(4_096);
    assert!(ours["queries"].as_array().unwrap().iter().any(is_sampled), "{ours:#}");
    assert_equal(&ours, &job);
    for words in [
        &["a1", "b1", "--control", "a2", "--min-change", "2x"][..],
        &["--base", "a1", "a2", "--run", "b1", "b2"],
    ] {
        let [ours, job] = both_documents(folder.path(), words);
        assert_equal(&ours, &job);
    }
    let [ours, job] = both(folder.path(), &pair);
    assert_eq!(job, ours);
}

fn statement(fingerprint: u64) -> StatementInfo {
    StatementInfo {
        fingerprint,
        query: format!("select 'é' from t{fingerprint} where {}", "x = ? and ".repeat(500)),
        example_sql: "select 1".into(),
        example_parameters: None,
        user: "app".into(),
        database: "shop".into(),
    }
}

/// A run with what replays of a log rarely have: a slow tail, times of zero and of over an hour,
/// failures without SQLSTATE and with long messages, executions that were skipped or dropped or
/// have no fingerprint, rows that are not executions. It fills several files.
fn unusual_outcomes(is_changed: bool) -> impl Iterator<Item = ReplayOutcome> {
    (0..140_000_i64).map(move |number| {
        let fingerprint = match number % 100 {
            0..60 => Some(0xfedc_ba98_7654_3210),
            60..80 => Some(2),
            80..90 => Some(3),
            90..95 => Some(4),
            95 => Some(if is_changed { 5 } else { 6 }),
            96 => None,
            97 if number < 1_000 => Some(7),
            _ => Some(8),
        };
        let slow = if is_changed && number % 11 == 0 { 40 } else { 1 };
        let service_us = match fingerprint {
            Some(2) => 500 * slow + number.unsigned_abs() * 37 % 41,
            Some(3) if number % 7_000 == 80 => u64::from(u32::MAX) + number.unsigned_abs(),
            Some(4) => 0,
            Some(8) => number.unsigned_abs() * number.unsigned_abs() % 90_001,
            _ => 80 + number.unsigned_abs() * 7_919 % 6_007 * if is_changed { 2 } else { 1 },
        };
        let message = format!("no\n  such {} {number}", "ä".repeat(400));
        let disposition = match number % 1_000 {
            1 => Disposition::Failed { sqlstate: None, message: "connection lost".into() },
            2..6 => Disposition::Failed {
                sqlstate: SqlState::new(if number % 2 == 0 { b"40001" } else { b"22012" }),
                message: message.as_str().into(),
            },
            6..9 => Disposition::Skipped { reason: "replay ended".into() },
            9..12 => Disposition::Dropped { reason: "skip".into() },
            _ => Disposition::Done,
        };
        let is_sent = matches!(disposition, Disposition::Done | Disposition::Failed { .. });
        ReplayOutcome {
            time: Timestamp::from_micros(number * 900),
            session: "656a1b2c.4d2".into(),
            user: "app".into(),
            database: "shop".into(),
            kind: if number % 13 == 0 { Kind::Parse } else { Kind::Execute },
            fingerprint,
            due_us: number * 900 - 2_000,
            sent_us: is_sent.then_some(number * 900 - 1_500),
            service_us: (is_sent && number % 17 > 0).then_some(service_us),
            schedule_error_us: Some(3),
            dependency_lag_us: None,
            input_late_us: None,
            rows: (number % 3 > 0).then_some(number.unsigned_abs() % 5),
            disposition,
            captured_us: None,
            order_wait_us: None,
            captured_rows: None,
            check: None,
        }
    })
}

fn write_run(folder: &Path, outcomes: impl Iterator<Item = ReplayOutcome>) {
    let mut writer = RunWriter::create(folder, settings()).unwrap();
    for outcome in outcomes {
        if let Some(fingerprint) = outcome.fingerprint {
            writer.statement(&statement(fingerprint)).unwrap();
        }
        writer.write(&outcome).unwrap();
    }
    let deduced =
        json!({ "types_deduced": { "executions": 3, "statements": ["0000000000000002"] } });
    writer.finish(deduced, true).unwrap();
}

#[test]
fn job_equals_compare_on_unusual_runs() {
    let folder = tempfile::tempdir().unwrap();
    write_run(&folder.path().join("base"), unusual_outcomes(false));
    write_run(&folder.path().join("run"), unusual_outcomes(true));
    assert!(folder.path().join("run/outcomes-000002.parquet").exists());
    let words = ["base", "run"];
    let [ours, job] = both_documents(folder.path(), &words);
    for verdict in ["slower", "no change", "only in base", "only in run"] {
        assert!(verdicts(&ours).contains(&verdict), "{verdict}: {ours:#}");
    }
    assert!(ours["run"]["unattributed"].as_u64() > Some(0));
    assert_equal(&ours, &job);
    let words = ["--base", "base", "base", "--run", "run", "base"];
    let [ours, job] = both_documents(folder.path(), &words);
    assert_equal(&ours, &job);
}

/// Marks a run as the part of a worker.
fn mark_part(run: &Path, worker: u32, workers: u32) {
    let path = run.join("run.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["part"] = json!({ "run_id": "nightly", "worker": worker, "workers": workers });
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn parts_of_workers_equal_one_run() {
    const WORKERS: u32 = 3;
    const NAME: &str = "it's 100 % é";
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_run(&folder.join("base"), unusual_outcomes(false).take(30_000));
    write_run(&folder.join("run"), unusual_outcomes(true).take(30_000));
    let whole = ReplayRun::open(&folder.join("run")).unwrap();
    for worker in 0..WORKERS {
        let outcomes = whole.outcomes().map(Result::unwrap).skip(worker as usize * 10_000);
        let part = folder.join(format!("{NAME}/worker-{worker}"));
        write_run(&part, outcomes.take(10_000));
        mark_part(&part, worker, WORKERS);
    }
    let compared = |run: &str| -> Value {
        let output = job(folder, &["base", run, "--format", "json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document["run"]["name"] = json!("run");
        document["run_runs"][0]["name"] = json!("run");
        document
    };
    assert_equal(&compared("run"), &compared(NAME));
    // A part that is missing is reported.
    fs::remove_dir_all(folder.join(NAME).join("worker-1")).unwrap();
    let document = compared(NAME);
    assert_eq!(document["run"]["complete"], false);
    let caveat = format!("{NAME} is incomplete: it lacks the part of worker 1");
    assert_eq!(document["caveats"][0]["text"], caveat);
}

#[test]
fn runs_that_lack_files_and_other_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for run in ["base", "run"] {
        write_run(&folder.join(run), unusual_outcomes(false).take(100));
    }
    fs::create_dir(folder.join("empty")).unwrap();
    let refused = |words: &[&str]| {
        let output = job(folder, words);
        assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    };
    let message = refused(&["base", "empty"]);
    assert!(message.contains("empty is not a run: it has no run.json"), "{message}");
    let message = refused(&["base", "."]);
    assert!(message.contains(". has several runs, such as "), "{message}");
    fs::remove_file(folder.join("run/outcomes-000001.parquet")).unwrap();
    let message = refused(&["base", "run"]);
    assert!(message.contains("run has 0 outcomes, but its run.json counts 100"), "{message}");
}
