//! `howdah top` without a terminal, with real servers.

use std::time::Duration;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use serde_json::Value;

use crate::{howdah, text};

fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

#[test]
fn once_prints_one_json_document() {
    let Some(cluster) = skip_without_postgres("top json", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'seen by top'").unwrap();
    let pid = client.process_id().unwrap();
    let output = howdah(folder.path())
        .args(["top", &cluster.uri("postgres"), "--once", "--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["samples"][0]["rows"].as_array().unwrap();
    let mine = rows.iter().find(|row| row["pid"] == pid).unwrap();
    assert_eq!(mine["query"], "BEGIN; SELECT 'seen by top'");
    assert_eq!(mine["state"], "idle in transaction");
    assert!(mine["time"].as_f64().unwrap() >= 0.0);
}

#[test]
fn first_sample_has_rates() {
    let Some(cluster) = skip_without_postgres("top csv", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = [
        "top",
        &uri,
        "--view",
        "databases",
        "--count",
        "2",
        "--interval",
        "200ms",
        "--format",
        "csv",
    ];
    let output = howdah(folder.path()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = text(&output.stdout);
    assert!(written.starts_with("server,taken,database,backends,commits,"), "{written}");
    let postgres = written.lines().filter(|line| line.contains(",postgres,"));
    let commits: Vec<&str> = postgres.filter_map(|line| line.split(',').nth(4)).collect();
    assert_eq!(commits.len(), 2, "{written}");
    assert!(commits.iter().all(|rate| rate.parse::<f64>().is_ok()), "{written}");
}

#[test]
fn unreachable_server_does_not_hide_the_other() {
    let Some(cluster) = skip_without_postgres("top away", Cluster::builder().start()) else {
        return;
    };
    let Some(mut gone) = skip_without_postgres("top away", Cluster::builder().start()) else {
        return;
    };
    let away = gone.uri("postgres");
    gone.stop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path())
        .args(["top", &cluster.uri("postgres"), &away, "--once", "--format", "ndjson", "--idle"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    assert!(text(&output.stderr).contains(&gone.port().to_string()), "{}", text(&output.stderr));
}

#[test]
fn slow_statement_is_logged_once() {
    let Some(cluster) = skip_without_postgres("top slow", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    let cancel = client.cancel_handle().unwrap();
    let sleeper =
        std::thread::spawn(move || client.query("SELECT pg_sleep(600), 'for long'").is_err());
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--count", "40", "--interval", "100ms", "--format", "ndjson"];
    let slow = ["--slow_threshold", "300ms", "--slow-log", "slow.log", "--slow-log-format", "json"];
    let output = howdah(folder.path()).args(args).args(slow).output().unwrap();
    cancel.cancel().unwrap();
    assert!(sleeper.join().unwrap());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let log = std::fs::read_to_string(folder.path().join("slow.log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "logged once: {log}");
    assert_eq!(lines[0]["query"], "SELECT pg_sleep(600), 'for long'");
    assert!(lines[0]["seconds"].as_f64().unwrap() > 0.3);
}

#[test]
fn invalid_options_are_refused_before_connecting() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], words: &str| {
        let output = howdah(folder.path()).arg("top").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    };
    refused(&["--filter", "user:"], "has no value: write one after it");
    refused(&["--interval", "soon"], "write a time such as 500ms");
    refused(&["--interval", "0s"], "write a time such as 500ms");
    refused(&["--view", "nothing"], "activity");
    refused(&["--count", "0"], "0 is not in 1..");
}

#[test]
fn unprivileged_role_sees_sessions_without_hidden_columns() {
    let Some(cluster) = skip_without_postgres("top plain role", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("CREATE ROLE watcher LOGIN").and_then(|_| client.query("BEGIN")).unwrap();
    client.query("SELECT 'hidden'").unwrap();
    let pid = client.process_id().unwrap();
    let uri = cluster.uri("postgres").replace("postgres@", "watcher@");
    let args = ["top", &uri, "--once", "--format", "json"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["samples"][0]["rows"].as_array().unwrap();
    let hidden = rows.iter().find(|row| row["pid"] == pid).unwrap().as_object().unwrap();
    // Every role may read database and user, but not what the session does.
    assert_eq!((&hidden["database"], &hidden["user"]), (&"postgres".into(), &"postgres".into()));
    for column in ["state", "time", "query", "wait"] {
        assert!(
            !hidden.contains_key(column),
            "{column} cannot be read, so it is left out: {hidden:?}"
        );
    }
    assert!(!text(&output.stdout).contains("hidden"));
}

/// Waits until a session has waited 1.1 s for a lock.
fn wait_for_lock_wait(client: &mut Client) {
    let sql =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart < now() - interval '1.1 s'";
    wait_until("a lock wait of 1.1 s", Duration::from_secs(60), || {
        client.one_value(sql).unwrap().as_deref() == Some("1")
    });
}

#[test]
fn unprivileged_role_sees_blocked_sessions_and_unchecked_alerts() {
    let Some(cluster) = skip_without_postgres("top plain alert", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut holder = session(&cluster);
    holder.query("CREATE ROLE plain LOGIN; CREATE TABLE locked ()").unwrap();
    holder.query("BEGIN; LOCK TABLE locked").unwrap();
    let mut waiter = session(&cluster);
    let (held_by, waits) = (holder.process_id().unwrap(), waiter.process_id().unwrap());
    let waiter = std::thread::spawn(move || waiter.query("SELECT * FROM locked").is_ok());
    wait_for_lock_wait(&mut session(&cluster));
    let uri = cluster.uri("postgres").replace("postgres@", "plain@");
    let top = |args: &[&str]| {
        howdah(folder.path()).args(["top", &uri, "--once"]).args(args).output().unwrap()
    };

    let output = top(&["--alert", "blocked > 1s"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("blocked > 1s: ") && stderr.contains(&waits.to_string()));

    let output = top(&["--alert", "query > 1s"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("alert 'query > 1s' cannot be checked"), "{stderr}");
    assert!(stderr.contains("GRANT pg_monitor TO \"plain\""), "{stderr}");

    let output = top(&["--alert", "connections > 99%"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let output = top(&["--view", "blocking", "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["samples"][0]["rows"].as_array().unwrap();
    let pids: Vec<_> = rows.iter().map(|row| row["pid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(pids, [held_by.to_string(), waits.to_string()], "{document}");
    assert!(rows[1]["blocked"].as_f64().unwrap() > 1.0, "{document}");
    assert!(rows[0].get("state").is_none() && rows[0].get("query").is_none(), "{document}");

    holder.query("COMMIT").unwrap();
    assert!(waiter.join().unwrap());
}
