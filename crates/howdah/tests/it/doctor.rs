//! `howdah capture doctor`: logs with one wrong setting each, and servers.

use std::fs;

use crate::{howdah, text};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../logs/tests/fixtures/17");

/// Lines with the recommended prefix and settings.
fn complete_log() -> Vec<String> {
    let line = |ms: u32, rest: &str| {
        format!("2026-11-20 12:43:20.{ms:03} UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|{rest}")
    };
    vec![
        "2026-11-20 12:43:20.000 UTC|||||65e1a2b3.4d2|||00000|0|LOG:  connection received: host=[local]"
            .replace("|||||", "|[unknown]|[unknown]|[unknown]|")
            .replace("|||00000", "||0|00000"),
        line(1, "LOG:  connection authorized: user=app database=shop application_name=web"),
        line(2, "LOG:  statement: select 1"),
        line(3, "LOG:  duration: 0.412 ms"),
        line(4, "LOG:  execute s1: select $1"),
        line(4, "DETAIL:  Parameters: $1 = 'seven'"),
        line(5, "LOG:  duration: 0.100 ms"),
        line(6, "ERROR:  column \"x\" does not exist at character 8"),
        line(6, "STATEMENT:  select x"),
        line(7, "LOG:  disconnection: session time: 0:00:00.007 user=app database=shop host=[local]"),
    ]
}

/// Runs the doctor on a log; returns its report and exit code.
fn run_doctor(log: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.log"), log).unwrap();
    let mut doctor = howdah(folder.path());
    let output = doctor.args(["capture", "doctor", "server.log"]).output().unwrap();
    (text(&output.stdout), output.status.code())
}

fn log_without(needle: &str) -> String {
    let lines = complete_log().into_iter().filter(|line| !line.contains(needle));
    lines.map(|line| line + "\n").collect()
}

fn log_with_replaced(from: &str, to: &str) -> String {
    // Lines without the replaced text are dropped: a server with this setting would not write them.
    let lines = complete_log().into_iter().filter(|line| line.contains(from));
    lines.map(|line| line.replace(from, to) + "\n").collect()
}

#[test]
fn complete_log_has_no_findings() {
    let (messages, code) = run_doctor(&log_without("nothing at all"));
    assert_eq!(code, Some(0), "{messages}");
    insta::assert_snapshot!("doctor_good", messages);
}

/// A log of these messages, with the prefix of [`complete_log`].
fn log(messages: &[&str]) -> String {
    let head = "UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|";
    log_with(messages, |ms| format!("2026-11-20 12:43:20.{ms:03} {head}"))
}

/// Like [`log`] with another prefix, which may depend on the line number.
fn log_with(messages: &[&str], prefix: impl Fn(usize) -> String) -> String {
    let connected = "LOG:  connection authorized: user=app database=shop application_name=web";
    let gone = "LOG:  disconnection: session time: 0:00:00.900 user=app database=shop host=[local]";
    let all = [connected].into_iter().chain(messages.iter().copied()).chain([gone]);
    all.enumerate().map(|(number, message)| format!("{}{message}\n", prefix(number))).collect()
}

#[test]
fn each_wrong_setting_is_reported() {
    let cases = [
        ("log_duration", log_without("LOG:  duration:")),
        ("log_connections", log_without("connection authorized")),
        ("log_disconnections", log_without("disconnection")),
        ("log_min_error_statement", log_without("STATEMENT:")),
        ("log_error_verbosity terse", log_without("DETAIL:")),
        ("log_error_verbosity verbose", verbose_log()),
        (
            "log_line_prefix",
            log_with_replaced("UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|", "UTC [7] "),
        ),
        ("log_line_prefix without session", log_with_replaced("|65e1a2b3.4d2|3/4|0|00000|0|", " ")),
        ("log_line_prefix without time", log_with_replaced("2026-11-20 12:43:20.0", "[4711] ")),
        ("log_timezone", log_with_replaced(" UTC|", " IST|")),
        (
            "log_destination stderr without vxid",
            log_with_replaced(
                "UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|",
                "UTC|app|shop|65e1a2b3.4d2|",
            ),
        ),
    ];
    cases.into_iter().for_each(check);
}

#[test]
fn each_cause_of_missing_statements_is_reported() {
    let cases = [
        ("log_statement none", log(&["LOG:  duration: 0.412 ms", "LOG:  duration: 0.100 ms"])),
        (
            "log_statement none, durations of all",
            log(&[
                "LOG:  duration: 0.412 ms  statement: select 1",
                "LOG:  duration: 0.100 ms  bind s1: select $1",
                "DETAIL:  Parameters: $1 = 'seven'",
                "LOG:  duration: 0.100 ms  execute s1: select $1",
                "DETAIL:  Parameters: $1 = 'seven'",
            ]),
        ),
        (
            "log_statement none, a threshold",
            log(&[
                "LOG:  duration: 212.412 ms  statement: select pg_sleep(0.2)",
                "LOG:  duration: 101.100 ms  statement: select count(*) from t",
            ]),
        ),
        ("log_statement mod", log(&["LOG:  statement: insert into t values (1)"; 6])),
        (
            "log_statement mod, durations of all",
            log(&[
                "LOG:  statement: insert into t values (1)",
                "LOG:  duration: 0.412 ms",
                "LOG:  duration: 0.100 ms  statement: select 1",
            ]),
        ),
        ("nothing but sessions", log(&[])),
        (
            "log_min_duration_statement 0 beside log_statement all",
            log(&[
                "LOG:  duration: 0.100 ms  parse s1: select $1",
                "LOG:  duration: 0.050 ms  bind s1: select $1",
                "DETAIL:  Parameters: $1 = 'seven'",
                "LOG:  execute s1: select $1",
                "DETAIL:  Parameters: $1 = 'seven'",
                "LOG:  duration: 0.412 ms",
            ]),
        ),
        ("log_min_duration_sample", {
            let half = "LOG:  duration: 0.080 ms  execute s1: select $1";
            let values = "DETAIL:  Parameters: $1 = 'seven'";
            log(&[half, values, half, values, half, values])
        }),
        ("log_min_duration_sample of simple queries", {
            let begin = "LOG:  duration: 0.020 ms  statement: begin";
            let query = "LOG:  duration: 0.400 ms  statement: select 1";
            log(&[begin, query, begin, begin, query, query, begin])
        }),
        ("log_transaction_sample_rate", {
            let head = "UTC|app|shop|web|65e1a2b3.4d2|3/";
            let executed = "LOG:  duration: 0.080 ms  execute <unnamed>: select 1";
            log_with(&[executed; 4], |number| {
                format!("2026-11-20 12:43:20.{number:03} {head}{}|0|00000|0|", 7 + 10 * number)
            })
        }),
    ];
    cases.into_iter().for_each(check);
}

#[test]
fn each_cause_of_lost_values_is_reported() {
    let cases = [
        (
            "log_parameter_max_length",
            log(&[
                "LOG:  execute s1: insert into t values ($1, $2)",
                "DETAIL:  Parameters: $1 = 'eight by...', $2 = 'also eig...'",
                "LOG:  duration: 0.412 ms",
                "LOG:  execute s1: insert into t values ($1, $2)",
                "DETAIL:  Parameters: $1 = 'eight mo...', $2 = 'short'",
                "LOG:  duration: 0.412 ms",
            ]),
        ),
        (
            "log_parameter_max_length_on_error",
            log(&[
                "LOG:  statement: select 1",
                "LOG:  duration: 0.412 ms",
                "ERROR:  invalid input syntax for type integer: \"x\"",
                "CONTEXT:  unnamed portal parameter $1 = '...'",
                "STATEMENT:  select $1::int",
            ]),
        ),
        ("lc_messages", log(&["LOG:  Anweisung: select 1", "LOG:  Dauer: 0.412 ms"])),
        ("lc_messages from the first line", {
            "2026-11-20 12:43:20.001 UTC [7] app@shop FEHLER:  Spalte »x« existiert nicht\n"
                .repeat(3)
        }),
        ("logging_collector", {
            let messages = ["LOG:  statement: select 1", "LOG:  duration: 0.412 ms"];
            log_with(&messages.repeat(3), |number| {
                // Five lines are missing in between.
                let line = number + 1 + if number > 4 { 5 } else { 0 };
                format!(
                    "2026-11-20 12:43:20 UTC [1234]: [{line}-1] user=app,db=shop,app=web,client=[local] "
                )
            })
        }),
    ];
    cases.into_iter().for_each(check);
}

/// Compares the doctor's report on a log with its snapshot.
fn check((name, log): (&str, String)) {
    let (messages, code) = run_doctor(&log);
    let name = name.replace(", ", "_").replace(' ', "_");
    insta::assert_snapshot!(format!("doctor_{name}"), format!("{messages}exit code {code:?}\n"));
}

/// The complete log with log_error_verbosity = verbose: SQLSTATE and source location.
fn verbose_log() -> String {
    let verbose = |line: String| {
        let line = line.replace("LOG:  ", "LOG:  00000: ").replace("ERROR:  ", "ERROR:  42703: ");
        let place = "LOCATION:  exec_simple_query, postgres.c:1078";
        let is_first = line.contains("LOG:  ") || line.contains("ERROR:  ");
        let head = &line[..line.rfind('|').map_or(0, |at| at + 1)];
        if is_first { format!("{line}\n{head}{place}\n") } else { format!("{line}\n") }
    };
    complete_log().into_iter().map(verbose).collect()
}

#[test]
fn real_logs_are_checked_for_wrong_settings() {
    for (name, has) in [
        ("prod.log", "log_min_duration_statement"),
        ("durationonly.csv", "log_statement"),
        ("verbose.log", "log_error_verbosity"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{FIXTURES}/{name}");
        let mut doctor = howdah(folder.path());
        let output =
            doctor.args(["capture", "doctor", &path, "--format", "json"]).output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = document["findings"].as_array().unwrap();
        assert!(findings.iter().any(|finding| finding["setting"] == has), "{name}: {document:#}");
        let needed = findings.iter().any(|finding| finding["need"] == "needed");
        assert_eq!(output.status.code(), Some(if needed { 3 } else { 0 }), "{name}");
    }
}

/// Starts a server and connects as superuser; `None` if the test is skipped.
fn start_server(major: u32) -> Option<(howdah_lab::Cluster, howdah_connect::Client)> {
    let search = howdah_lab::BinariesSearch::new().fetch(false).major(major);
    let started = howdah_lab::Cluster::builder().search(search).start();
    let cluster = howdah_lab::skip_without_postgres("the doctor of a server", started)?;
    let target = howdah_connect::ConnectTarget::resolve(
        &howdah_connect::ConnParams::from_conninfo(cluster.uri("postgres")),
        &howdah_connect::Environment::empty(),
    );
    let client = howdah_connect::Client::connect(&target.unwrap()).unwrap();
    Some((cluster, client))
}

/// Runs the doctor on a server; returns its JSON report and exit code.
fn run_doctor_on_server(uri: &str) -> (serde_json::Value, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = howdah(folder.path());
    let output = doctor.args(["capture", "doctor", uri, "--format", "json"]).output().unwrap();
    let document = serde_json::from_slice(&output.stdout);
    (document.unwrap_or_else(|_| panic!("{}", text(&output.stderr))), output.status.code())
}

/// The settings in the report's findings.
fn wrong_settings(document: &serde_json::Value) -> Vec<&str> {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["setting"].as_str().unwrap()).collect()
}

#[test]
fn server_check_works_without_superuser() {
    let Some((cluster, mut client)) = start_server(15) else { return };
    client
        .query("create role nobody login; create role loud; alter role loud set log_statement = 'none'")
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = howdah(folder.path());
    let uri = cluster.uri("postgres").replace("postgres@", "nobody@");
    let output = doctor.args(["capture", "doctor", &uri]).output().unwrap();
    let messages = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{messages} {}", text(&output.stderr));
    for part in [
        "ALTER SYSTEM SET log_statement = 'all';",
        "log_statement for role loud: none",
        "pg_reload_conf",
    ] {
        assert!(messages.contains(part), "{part} is not in {messages}");
    }
}

/// Each wrong setting is reported, and after running the printed remedy, only settings that need a
/// restart are.
fn check_remedy(major: u32) {
    let Some((cluster, mut client)) = start_server(major) else { return };
    let wrong = [
        ("log_statement", "'mod'"),
        ("log_min_duration_sample", "10"),
        ("log_transaction_sample_rate", "0.5"),
        ("log_line_prefix", "'%m '"),
        ("log_parameter_max_length", "100"),
        ("log_error_verbosity", "'terse'"),
        ("log_min_error_statement", "'log'"),
        ("log_min_messages", "'fatal'"),
        ("lc_messages", "'de_DE'"),
        ("log_duration", "off"),
        ("log_min_duration_statement", "250"),
        ("log_parameter_max_length_on_error", "10"),
        ("log_connections", if major >= 18 { "''" } else { "off" }),
        ("log_disconnections", "off"),
        ("log_timezone", "'Europe/Vienna'"),
        ("compute_query_id", "off"),
        ("log_destination", "'stderr'"),
        ("log_statement_sample_rate", "0.1"),
    ];
    let run = |client: &mut howdah_connect::Client, lines: &mut dyn Iterator<Item = String>| {
        for line in lines {
            client.query(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    };
    let is_there = |client: &mut howdah_connect::Client, name: &str, value: &str| {
        // The server refuses a locale that is not installed.
        client.query(&format!("alter system set {name} = {value}")).is_ok()
    };
    let mut set = Vec::new();
    for (name, value) in wrong {
        if is_there(&mut client, name, value) {
            set.push(name);
        } else {
            assert_eq!(name, "lc_messages", "PostgreSQL {major} refuses {value}");
        }
    }
    run(&mut client, &mut ["select pg_reload_conf()".to_owned()].into_iter());
    let uri = cluster.uri("postgres");
    // New sessions get the settings once the postmaster has reloaded them.
    let (document, code) =
        wait_for_report(&uri, |document| wrong_settings(document).contains(&"log_duration"));
    assert_eq!(code, Some(3));
    let found = wrong_settings(&document);
    for name in set.iter().filter(|name| **name != "log_statement_sample_rate") {
        assert!(found.contains(name), "{name} is not in {found:?}");
    }
    let remedy: Vec<_> = document["remedy"].as_array().unwrap().iter().collect();
    let lines = remedy.iter().map(|line| line.as_str().unwrap().to_owned());
    run(&mut client, &mut lines.filter(|line| !line.starts_with("--")));
    let (document, _) =
        wait_for_report(&uri, |document| !wrong_settings(document).contains(&"log_duration"));
    assert!(
        wrong_settings(&document).iter().all(|name| *name == "logging_collector"),
        "{document:#}"
    );
}

/// Runs the doctor until the condition holds, as the server reloads settings asynchronously.
fn wait_for_report(
    uri: &str,
    condition: impl Fn(&serde_json::Value) -> bool,
) -> (serde_json::Value, Option<i32>) {
    howdah_lab::wait_for("the reloaded settings", std::time::Duration::from_secs(60), || {
        let (document, code) = run_doctor_on_server(uri);
        condition(&document).then_some((document, code))
    })
}

#[test]
fn remedy_fixes_settings_of_postgresql_15() {
    check_remedy(15);
}

#[test]
fn remedy_fixes_settings_of_postgresql_18() {
    check_remedy(18);
}
