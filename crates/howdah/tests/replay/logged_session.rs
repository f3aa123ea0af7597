//! A session like those of drivers, whose log is replayed in each format: the tables become the
//! same, and the same statements fail. `compat/run --replay-logs` does this with real drivers.

use std::fs;

use howdah_lab::{Cluster, skip_without_postgres, wait_for};
use serde_json::json;

use crate::{
    pooler_capture::{RawConnection, bind, execute, message, parse, query, sync},
    support::{TIMEOUT, connect, howdah, replay, value},
};

const SETTINGS: [(&str, &str); 10] = [
    ("logging_collector", "on"),
    ("log_destination", "stderr,csvlog,jsonlog"),
    ("log_line_prefix", PREFIX),
    ("log_statement", "all"),
    ("log_duration", "on"),
    ("log_parameter_max_length_on_error", "-1"),
    ("log_connections", "on"),
    ("log_disconnections", "on"),
    ("log_timezone", "UTC"),
    ("autovacuum", "off"),
];

/// The prefix that `howdah capture doctor` recommends.
const PREFIX: &str = "%m|%u|%d|%a|%c|%v|%x|%e|%Q|";

fn insert(raw: &mut RawConnection, row: i32) {
    let sql = "insert into t values ($1, 'ü''\\', '', null, '\\x00ff')";
    raw.send(&[parse("", sql, 1), bind("", "", &[row]), execute("", 0), sync()]);
    raw.read_until_ready();
}

/// One transaction that depends on every one of its statements: an error that the original did not
/// have would lose all its rows.
fn run_session(port: u16) {
    let mut raw = RawConnection::connect(port, "logged");
    let simple = |raw: &mut RawConnection, sql: &str| {
        raw.send(&[query(sql)]);
        raw.read_until_ready();
    };
    simple(&mut raw, "create table t (n int, a text, b text, c int, d bytea)");
    simple(&mut raw, "create table u (n int); create table copied (n int); begin");
    insert(&mut raw, 1);
    // A named statement whose result has changed since it was prepared.
    let returning = "insert into u values ($1) returning *";
    raw.send(&[parse("s", returning, 1), bind("s", "", &[1]), execute("", 0), sync()]);
    raw.read_until_ready();
    simple(&mut raw, "alter table u add m text default 'm'; savepoint a");
    raw.send(&[bind("s", "", &[2]), execute("", 0), sync()]);
    raw.read_until_ready();
    simple(&mut raw, "rollback to a");
    insert(&mut raw, 2);
    // A COPY by the extended protocol, whose rows are not in the log.
    raw.send(&[
        parse("c", "copy copied from stdin", 0),
        bind("c", "", &[]),
        execute("", 0),
        sync(),
    ]);
    raw.read_until(b'G');
    raw.send(&[message(b'd', &[b"1\n"]), message(b'c', &[]), sync()]);
    raw.read_until_ready();
    insert(&mut raw, 3);
    // The log does not contain the name of a statement that failed in Bind.
    raw.send(&[parse("p", "select 1 / $1", 1), sync()]);
    raw.read_until_ready();
    simple(&mut raw, "savepoint b");
    raw.send(&[bind("p", "", &[0]), execute("", 0), sync()]);
    raw.read_until_ready();
    simple(&mut raw, "rollback to b");
    simple(&mut raw, "deallocate p");
    insert(&mut raw, 4);
    simple(&mut raw, "commit");
    raw.send(&[message(b'X', &[])]);
}

#[test]
fn logged_session_replays_to_same_tables() {
    let builder = Cluster::builder().name("logged").major(18);
    let builder = SETTINGS.into_iter().fold(builder, |all, (name, value)| all.setting(name, value));
    let Some(mut cluster) = skip_without_postgres("a log of a session", builder.start()) else {
        return;
    };
    let databases = ["logged", "from_log", "from_csv", "from_json"];
    for database in databases {
        connect(&cluster, "postgres").query(&format!("create database {database}")).unwrap();
    }
    run_session(cluster.port());
    let mut control = connect(&cluster, "postgres");
    wait_for("the end of the session", TIMEOUT, || {
        let sessions = "select count(*) from pg_stat_activity where datname = 'logged'";
        (value(&mut control, sessions) == "0").then_some(())
    });
    drop(control);
    // The logging collector has written its last lines once the server has stopped.
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rows = |database: &str| {
        let mut client = connect(&cluster, database);
        ["t", "u"].map(|table| {
            let sql = format!("select string_agg(r::text, ' ' order by r::text) from {table} r");
            value(&mut client, &sql)
        })
    };
    let expected = rows("logged");
    assert_eq!(expected[1], "(1,m)");
    for extension in ["log", "csv", "json"] {
        let files = cluster.log_files(extension).unwrap();
        let log: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let (name, database) = (format!("s.{extension}"), format!("from_{extension}"));
        fs::write(folder.path().join(&name), log).unwrap();
        let words = ["capture", "import", &name, "--database", "logged", "-o", extension];
        howdah(folder.path()).args(words).assert().success();
        let map = format!("logged={database}");
        let words = ["--rate", "max", "--map-database", &map];
        let replayed = replay(folder.path(), extension, &cluster.uri("postgres"), &words);
        let report = &replayed.report;
        assert_eq!(rows(&database), expected, "{extension}: {report}");
        assert_eq!(report["errors"], report["errors_captured_too"], "{extension}");
        assert_eq!(report["failed_only_when_captured"], 0, "{extension}: {report}");
        let skipped = json!({ "rows of COPY FROM STDIN not captured": 1 });
        assert_eq!(report["skipped"], skipped, "{extension}");
    }
}
