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
    good().into_iter().map(|line| line.replace(from, to) + "\n").collect()
}

#[test]
fn a_log_that_has_everything_is_fine() {
    let (said, code) = examine(&without("nothing at all"));
    assert_eq!(code, Some(0), "{said}");
    insta::assert_snapshot!("doctor_good", said);
}

#[test]
fn each_wrong_setting_is_named() {
    let cases = [
        ("log_duration", without("LOG:  duration:")),
        ("log_connections", without("connection authorized")),
        ("log_disconnections", without("disconnection")),
        ("log_min_error_statement", without("STATEMENT:")),
        ("log_error_verbosity terse", without("DETAIL:")),
        ("log_line_prefix", changed("UTC|app|shop|web|65e1a2b3.4d2|3/4|0|00000|0|", "UTC [7] ")),
    ];
    for (name, log) in cases {
        let (said, code) = examine(&log);
        insta::assert_snapshot!(
            format!("doctor_{}", name.replace(' ', "_")),
            format!("{said}exit code {code:?}\n")
        );
    }
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

#[test]
fn a_server_is_asked_without_a_superuser() {
    let search = howdah_lab::Search::new().fetch(false);
    let started = howdah_lab::Cluster::builder().search(search).start();
    let Some(cluster) = howdah_lab::or_say_why_not("the doctor of a server", started) else {
        return;
    };
    let uri = cluster.uri("postgres");
    let target = howdah_connect::Target::resolve(
        &howdah_connect::Words::from_conninfo(&uri),
        &howdah_connect::Environment::empty(),
    );
    let mut client = howdah_connect::Client::connect(&target.unwrap()).unwrap();
    client
        .query("create role nobody login; create role loud; alter role loud set log_statement = 'none'")
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = howdah(folder.path());
    let uri = uri.replace("postgres@", "nobody@");
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
