//! `howdah capture doctor` on logs with one setting wrong each.

use std::fs;

use crate::{howdah, text};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../logs/tests/fixtures/17");

/// Lines with the recommended prefix, of a server that logs all it should.
fn good() -> Vec<String> {
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

/// What the doctor says of a log, and its exit code.
fn examine(log: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.log"), log).unwrap();
    let mut doctor = howdah(folder.path());
    let output = doctor.args(["capture", "doctor", "server.log"]).output().unwrap();
    (text(&output.stdout), output.status.code())
}

fn without(needle: &str) -> String {
    let lines = good().into_iter().filter(|line| !line.contains(needle));
    lines.map(|line| line + "\n").collect()
}

fn changed(from: &str, to: &str) -> String {
    // A server that logs otherwise has no line of the first way.
    let lines = good().into_iter().filter(|line| line.contains(from));
    lines.map(|line| line.replace(from, to) + "\n").collect()
}

#[test]
fn a_log_that_has_everything_is_fine() {
    let (said, code) = examine(&without("nothing at all"));
    assert_eq!(code, Some(0), "{said}");
    insta::assert_snapshot!("doctor_good", said);
}

/// A log of these messages, with the prefix of [`good`].
fn log(messages: &[&str]) -> String {
    let head = "UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|";
    log_with(messages, |ms| format!("2026-11-20 12:43:20.{ms:03} {head}"))
}

/// The same with another prefix, which may depend on the number of the line.
fn log_with(messages: &[&str], prefix: impl Fn(usize) -> String) -> String {
    let connected = "LOG:  connection authorized: user=app database=shop application_name=web";
    let gone = "LOG:  disconnection: session time: 0:00:00.900 user=app database=shop host=[local]";
    let all = [connected].into_iter().chain(messages.iter().copied()).chain([gone]);
    all.enumerate().map(|(number, message)| format!("{}{message}\n", prefix(number))).collect()
}

#[test]
fn each_wrong_setting_is_named() {
    let cases = [
        ("log_duration", without("LOG:  duration:")),
        ("log_connections", without("connection authorized")),
        ("log_disconnections", without("disconnection")),
        ("log_min_error_statement", without("STATEMENT:")),
        ("log_error_verbosity terse", without("DETAIL:")),
        ("log_error_verbosity verbose", verbose()),
        ("log_line_prefix", changed("UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|", "UTC [7] ")),
        ("log_line_prefix without session", changed("|65e1a2b3.4d2|3/4|0|00000|0|", " ")),
        ("log_line_prefix without time", changed("2026-11-20 12:43:20.0", "[4711] ")),
        ("log_timezone", changed(" UTC|", " IST|")),
        (
            "log_destination stderr without vxid",
            changed("UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|", "UTC|app|shop|65e1a2b3.4d2|"),
        ),
    ];
    cases.into_iter().for_each(check);
}

#[test]
fn each_way_to_log_less_than_every_statement_is_named() {
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
fn each_way_to_lose_values_or_words_is_named() {
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
                // The server wrote five lines that are not there.
                let line = number + 1 + if number > 4 { 5 } else { 0 };
                format!(
                    "2026-11-20 12:43:20 UTC [1234]: [{line}-1] user=app,db=shop,app=web,client=[local] "
                )
            })
        }),
    ];
    cases.into_iter().for_each(check);
}

/// A log of which the doctor says what the snapshot says.
fn check((name, log): (&str, String)) {
    let (said, code) = examine(&log);
    let name = name.replace(", ", "_").replace(' ', "_");
    insta::assert_snapshot!(format!("doctor_{name}"), format!("{said}exit code {code:?}\n"));
}

/// Every message with its SQLSTATE and its place in the server's source.
fn verbose() -> String {
    let verbose = |line: String| {
        let line = line.replace("LOG:  ", "LOG:  00000: ").replace("ERROR:  ", "ERROR:  42703: ");
        let place = "LOCATION:  exec_simple_query, postgres.c:1078";
        let is_first = line.contains("LOG:  ") || line.contains("ERROR:  ");
        let head = &line[..line.rfind('|').map_or(0, |at| at + 1)];
        if is_first { format!("{line}\n{head}{place}\n") } else { format!("{line}\n") }
    };
    good().into_iter().map(verbose).collect()
}

#[test]
fn real_logs_are_judged_by_how_they_were_written() {
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

/// A server, and a connection as its superuser; `None`, said aloud, if there is none.
fn server(major: u32) -> Option<(howdah_lab::Cluster, howdah_connect::Client)> {
    let search = howdah_lab::Search::new().fetch(false).major(major);
    let started = howdah_lab::Cluster::builder().search(search).start();
    let cluster = howdah_lab::or_say_why_not("the doctor of a server", started)?;
    let target = howdah_connect::Target::resolve(
        &howdah_connect::Words::from_conninfo(cluster.uri("postgres")),
        &howdah_connect::Environment::empty(),
    );
    let client = howdah_connect::Client::connect(&target.unwrap()).unwrap();
    Some((cluster, client))
}

/// What the doctor says of a server, as JSON, and its exit code.
fn ask(uri: &str) -> (serde_json::Value, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = howdah(folder.path());
    let output = doctor.args(["capture", "doctor", uri, "--format", "json"]).output().unwrap();
    let document = serde_json::from_slice(&output.stdout);
    (document.unwrap_or_else(|_| panic!("{}", text(&output.stderr))), output.status.code())
}

/// The settings that are found to be wrong, in the order of the report.
fn wrong_settings(document: &serde_json::Value) -> Vec<&str> {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["setting"].as_str().unwrap()).collect()
}

#[test]
fn a_server_is_asked_without_a_superuser() {
    let Some((cluster, mut client)) = server(15) else { return };
    client
        .query("create role nobody login; create role loud; alter role loud set log_statement = 'none'")
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = howdah(folder.path());
    let uri = cluster.uri("postgres").replace("postgres@", "nobody@");
    let output = doctor.args(["capture", "doctor", &uri]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said} {}", text(&output.stderr));
    for part in [
        "ALTER SYSTEM SET log_statement = 'all';",
        "log_statement for role loud: none",
        "pg_reload_conf",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

/// Each setting set wrong is named; and once the lines that the doctor prints were run, nothing is
/// wrong but what takes a restart.
fn what_the_doctor_prescribes_cures(major: u32) {
    let Some((cluster, mut client)) = server(major) else { return };
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
        // A locale may be missing on this machine: then the server refuses it.
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
    // The postmaster hands its new settings to those who come after it has read them.
    let (document, code) =
        until(&uri, |document| wrong_settings(document).contains(&"log_duration"));
    assert_eq!(code, Some(3));
    let found = wrong_settings(&document);
    for name in set.iter().filter(|name| **name != "log_statement_sample_rate") {
        assert!(found.contains(name), "{name} is not in {found:?}");
    }
    let remedy: Vec<_> = document["remedy"].as_array().unwrap().iter().collect();
    let lines = remedy.iter().map(|line| line.as_str().unwrap().to_owned());
    run(&mut client, &mut lines.filter(|line| !line.starts_with("--")));
    let (document, _) = until(&uri, |document| !wrong_settings(document).contains(&"log_duration"));
    assert!(
        wrong_settings(&document).iter().all(|name| *name == "logging_collector"),
        "{document:#}"
    );
}

/// Asks until the answer is as it will be once the server has read its settings.
fn until(
    uri: &str,
    is_it: impl Fn(&serde_json::Value) -> bool,
) -> (serde_json::Value, Option<i32>) {
    for _ in 0..200 {
        let (document, code) = ask(uri);
        if is_it(&document) {
            return (document, code);
        }
    }
    panic!("the server does not read its settings")
}

#[test]
fn what_the_doctor_prescribes_cures_postgresql_15() {
    what_the_doctor_prescribes_cures(15);
}

#[test]
fn what_the_doctor_prescribes_cures_postgresql_18() {
    what_the_doctor_prescribes_cures(18);
}
