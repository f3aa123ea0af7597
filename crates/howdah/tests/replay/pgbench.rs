//! Replays the log of pgbench's TPC-B against copies of its initial data: every statement is sent,
//! none fails, and the tables have the same final content.
//!
//! With one branch for eight clients, nearly every transaction waits for another session's row
//! lock. A replay in which one session's wait delayed another would never end.

use std::{path::Path, process::Command};

use howdah_dataset::Capture;
use howdah_lab::{Cluster, client_tool, skip_without_postgres};
use howdah_traffic::Kind;

use crate::support::{connect, howdah, replay, value};

const CLIENTS: u64 = 8;
const TRANSACTIONS: u64 = 60;

/// The number of queries that pgbench runs about its tables first.
const PRELIMINARY: u64 = 2;

const LOGGING: [(&str, &str); 5] = [
    ("logging_collector", "on"),
    ("log_connections", "on"),
    ("log_disconnections", "on"),
    ("log_timezone", "UTC"),
    ("autovacuum", "off"),
];

/// Logs each statement at its start, then its duration: the guide's recommendation.
const STARTS: [&str; 2] = ["log_statement = 'all'", "log_duration = on"];

/// Logs each message with its duration at its end, as hosted servers often do.
const ENDS: [&str; 1] = ["log_min_duration_statement = 0"];

#[test]
fn simple_queries_from_stderr() {
    let prefix = ("log_line_prefix", "%m %c %q%u@%d ");
    let destination = [("log_destination", "stderr"), prefix];
    pgbench("simple", &destination, &STARTS, "log", Kind::Simple);
}

#[test]
fn unnamed_statements_from_csvlog() {
    pgbench("extended", &[("log_destination", "csvlog")], &STARTS, "csv", Kind::Execute);
}

#[test]
fn prepared_statements_from_jsonlog() {
    pgbench("prepared", &[("log_destination", "jsonlog")], &STARTS, "json", Kind::Execute);
}

#[test]
fn parse_bind_and_execute_from_log_with_durations() {
    pgbench("prepared", &[("log_destination", "csvlog")], &ENDS, "csv", Kind::Execute);
}

fn pgbench(
    mode: &str,
    destination: &[(&str, &str)],
    statements: &[&str],
    extension: &str,
    kind: Kind,
) {
    let Some(program) = client_tool("pgbench") else {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED pgbench {mode}: no pgbench program found");
        return;
    };
    let mut builder = Cluster::builder().name("bench").major(15);
    for (name, value) in LOGGING.iter().chain(destination) {
        builder = builder.setting(*name, *value);
    }
    let Some(mut cluster) = skip_without_postgres("pgbench", builder.start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();

    connect(&cluster, "postgres").query("create database bench").unwrap();
    run(&program, &cluster, &["-i", "-q", "-s", "1"]);
    let mut control = connect(&cluster, "postgres");
    for copy in ["at_once", "at_its_pace"] {
        control.query(&format!("create database {copy} template bench")).unwrap();
    }
    for setting in statements {
        control.query(&format!("alter database bench set {setting}")).unwrap();
    }
    drop(control);
    let (clients, transactions) = (CLIENTS.to_string(), TRANSACTIONS.to_string());
    run(&program, &cluster, &["-n", "-M", mode, "-c", &clients, "-j", "2", "-t", &transactions]);
    // The logging collector has written all lines once it has exited.
    cluster.restart().unwrap();
    let logs = cluster.log_files(extension).unwrap();

    let mut import = howdah(folder);
    import.args(["capture", "import", "-o", "capture"]).args(&logs).assert().success();
    let kinds = Capture::open(&folder.join("capture")).unwrap().manifest().kinds.clone();
    let executions: u64 =
        kinds.iter().filter(|(kind, _)| kind.is_execution()).map(|(_, count)| count).sum();
    let expected = CLIENTS * TRANSACTIONS * 7;
    assert_eq!(executions, expected + PRELIMINARY, "{kinds:?}");
    let preliminary = if kind == Kind::Simple { PRELIMINARY } else { 0 };
    assert_eq!(kinds[&kind], expected + preliminary, "{kinds:?}");

    for (database, rate, workers) in [("at_its_pace", "1", "1"), ("at_once", "max", "2")] {
        let mapping = format!("bench={database}");
        let words = ["--rate", rate, "--workers", workers, "--map-database", &mapping];
        let replayed = replay(folder, "capture", &cluster.uri("postgres"), &words);
        replayed.assert_all_done();
        assert_eq!(replayed.report["executions"]["done"], executions);
        assert_eq!(replayed.report["connections_lost"], 0);
        assert_eq!(contents(&cluster, database), contents(&cluster, "bench"), "{database}");
    }
}

fn run(program: &Path, cluster: &Cluster, words: &[&str]) {
    let output = Command::new(program)
        .args(["-h", "127.0.0.1", "-p", &cluster.port().to_string(), "-U", "postgres"])
        .args(words)
        .arg("bench")
        .env_remove("PGDATABASE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// All data that the benchmark changes, except the times in its history.
fn contents(cluster: &Cluster, database: &str) -> Vec<String> {
    let mut client = connect(cluster, database);
    let tables = [
        "select aid, abalance from pgbench_accounts where abalance <> 0",
        "select tid, bid, tbalance from pgbench_tellers",
        "select bid, bbalance from pgbench_branches",
        "select tid, bid, aid, delta from pgbench_history",
    ];
    let mut contents: Vec<_> = tables
        .iter()
        .map(|table| {
            let sum = "select count(*) || ' ' || md5(string_agg(t::text, ' ' order by t))";
            value(&mut client, &format!("{sum} from ({table}) t"))
        })
        .collect();
    let history = value(&mut client, "select count(*) from pgbench_history");
    assert_eq!(history, (CLIENTS * TRANSACTIONS).to_string());
    contents.push(history);
    contents
}
