//! Pipelines in the logs of real servers: statements before one Sync are imported and replayed as
//! one pipeline, with each logging configuration and log format.

use std::{collections::HashMap, fs, ops::ControlFlow, path::Path};

use howdah_lab::{Cluster, skip_without_postgres};
use howdah_logs::{ImportOptions, ImportSummary, read_files};
use howdah_traffic::{Action, Event, Parameter};

use crate::{
    pooler_capture::{RawConnection, bind, execute, message, parse, query, sync},
    support::{connect, howdah, replay, value},
};

/// A logging configuration of the guide, set for one database.
struct Logging {
    database: &'static str,
    settings: &'static [&'static str],
    /// Whether the log shows which executions shared a Sync. If not, the report counts them.
    shows_syncs: bool,
}

const LOGGINGS: [Logging; 6] = [
    Logging {
        database: "starts_and_durations",
        settings: &["log_statement = 'all'", "log_duration = on"],
        shows_syncs: true,
    },
    Logging { database: "starts", settings: &["log_statement = 'all'"], shows_syncs: false },
    Logging { database: "ends", settings: &["log_min_duration_statement = 0"], shows_syncs: true },
    Logging {
        database: "starts_and_ends",
        settings: &["log_statement = 'all'", "log_min_duration_statement = 0"],
        shows_syncs: true,
    },
    Logging {
        database: "changes_and_durations",
        settings: &["log_statement = 'mod'", "log_duration = on"],
        shows_syncs: true,
    },
    Logging { database: "changes", settings: &["log_statement = 'mod'"], shows_syncs: false },
];

/// Two executions before one Sync.
fn pair(one: i32, other: i32) -> Vec<Vec<u8>> {
    [one, other].iter().flat_map(|value| insert(*value)).chain([sync()]).collect()
}

fn insert(value: i32) -> [Vec<u8>; 3] {
    [parse("", "insert into t values ($1)", 1), bind("", "", &[value]), execute("", 0)]
}

/// A session that only writes. Row 1 exists already.
fn write_rows(port: u16, database: &str) {
    let mut raw = RawConnection::connect(port, database);
    // The second statement fails, so neither row is inserted.
    raw.send(&pair(100, 1));
    raw.read_until_ready();
    raw.send(&pair(2, 3));
    raw.read_until_ready();
    for value in [4, 5] {
        raw.send(&insert(value));
        raw.send(&[sync()]);
        raw.read_until_ready();
    }
    raw.send(&[query("begin")]);
    raw.read_until_ready();
    for value in [6, 7] {
        raw.send(&insert(value));
        raw.send(&[sync()]);
        raw.read_until_ready();
    }
    raw.send(&[query("commit")]);
    raw.read_until_ready();
    raw.send(&pair(8, 9));
    raw.read_until_ready();
    raw.send(&[message(b'X', &[])]);
}

const PREFIX: &str = "%m|%u|%d|%c|%v|";

fn write_server_logs(major: u32) -> Option<(Cluster, tempfile::TempDir)> {
    let builder = Cluster::builder()
        .name("pipelines")
        .major(major)
        .setting("logging_collector", "on")
        .setting("log_destination", "stderr,csvlog,jsonlog")
        .setting("log_line_prefix", PREFIX)
        .setting("log_connections", "on")
        .setting("log_disconnections", "on")
        .setting("log_timezone", "UTC")
        .setting("autovacuum", "off");
    let mut cluster = skip_without_postgres("a server that logs pipelines", builder.start())?;
    let mut control = connect(&cluster, "postgres");
    for Logging { database, settings, .. } in LOGGINGS {
        control.query(&format!("create database {database}")).unwrap();
        connect(&cluster, database)
            .query("create table t (a int primary key); insert into t values (1)")
            .unwrap();
        for setting in settings {
            control.query(&format!("alter database {database} set {setting}")).unwrap();
        }
    }
    control.query("create database copy template starts_and_durations").unwrap();
    drop(control);
    for Logging { database, .. } in LOGGINGS {
        write_rows(cluster.port(), database);
    }
    // The logging collector has written its last lines once the server has stopped.
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for extension in ["log", "csv", "json"] {
        let files = cluster.log_files(extension).unwrap();
        let log: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        for Logging { database, .. } in LOGGINGS {
            // The importer infers logging settings from the whole file, so each database gets its
            // own.
            let is_one = |line: &&str| {
                [format!("|{database}|"), format!(",\"{database}\","), format!(":\"{database}\"")]
                    .iter()
                    .any(|name| line.contains(name))
            };
            let lines: Vec<&str> = log.lines().filter(is_one).collect();
            fs::write(
                folder.path().join(format!("{database}.{extension}")),
                lines.join("\n") + "\n",
            )
            .unwrap();
        }
    }
    Some((cluster, folder))
}

fn import_events(path: &Path) -> (Vec<Event>, ImportSummary) {
    let mut events = Vec::new();
    let options = ImportOptions {
        prefix: path
            .extension()
            .is_some_and(|extension| extension == "log")
            .then(|| PREFIX.to_owned()),
        ..ImportOptions::default()
    };
    let push = |event| {
        events.push(event);
        Ok::<_, std::convert::Infallible>(())
    };
    let summary = read_files(&[path.to_owned()], options, |_| ControlFlow::Continue(()), push);
    let summary = summary.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (events, summary)
}

/// The pipeline of the execution that inserts each value.
fn pipelines(events: &[Event]) -> HashMap<i32, Option<u32>> {
    let one = |event: &Event| {
        let Action::Execute(bound) = &event.action else { return None };
        let Parameter::Value(value) = bound.parameters.as_ref()?.first()? else { return None };
        Some((value.to_str_lossy().parse().unwrap(), event.pipeline))
    };
    events.iter().filter_map(one).collect()
}

fn check_pipelines(major: u32) {
    let Some((cluster, folder)) = write_server_logs(major) else { return };
    for Logging { database, shows_syncs, .. } in LOGGINGS {
        for extension in ["log", "csv", "json"] {
            let (events, summary) =
                import_events(&folder.path().join(format!("{database}.{extension}")));
            let pipelines = pipelines(&events);
            let of = |value: i32| *pipelines.get(&value).unwrap_or_else(|| panic!("no {value}"));
            let name = format!("PostgreSQL {major}, {database}.{extension}: {pipelines:?}");
            let unknown = summary.facts.executions_of_unknown_pipeline;
            if database == "changes" {
                // Without BEGIN in the log, a transaction block looks the same as a pipeline.
                assert_eq!(unknown, 8, "{name}");
                assert!(pipelines.values().all(Option::is_none), "{name}");
                continue;
            }
            assert_eq!(of(100).is_some(), shows_syncs, "{name}");
            assert_eq!(of(100), of(1), "{name}");
            assert_eq!(of(2).is_some(), shows_syncs, "{name}");
            assert_eq!(of(2), of(3), "{name}");
            assert!(!shows_syncs || of(2) != of(1) && of(4) != of(3) && of(4) != of(5), "{name}");
            assert_eq!([of(6), of(7)], [None, None], "{name}");
            // By now the importer has seen that BEGIN is logged, or not.
            assert!(of(8).is_some() && of(8) == of(9), "{name}");
            let expected = match (database, extension) {
                ("starts", _) => 4,
                // Without command tags, the duration of BEGIN could belong to any statement.
                ("changes_and_durations", "log") => 2,
                _ => 0,
            };
            assert_eq!(unknown, expected, "{name}");
        }
    }
    // The failed pipeline inserts no row in the replay either.
    let database = "starts_and_durations";
    for extension in ["csv", "json"] {
        let mut copy = connect(&cluster, "copy");
        copy.query("truncate t; insert into t values (1)").unwrap();
        let map = format!("{database}=copy");
        let log = format!("{database}.{extension}");
        let words = ["--rate", "max", "--map-database", map.as_str()];
        replay(folder.path(), &log, &cluster.uri("postgres"), &words);
        let rows = "select string_agg(a::text, ' ' order by a) from t";
        assert_eq!(value(&mut copy, rows), "1 2 3 4 5 6 7 8 9", "PostgreSQL {major}, {extension}");
        assert_eq!(value(&mut connect(&cluster, database), rows), "1 2 3 4 5 6 7 8 9");
    }
    // Executions with unknown pipeline are reported.
    let done = howdah(folder.path())
        .args(["capture", "import", "starts.csv", "--discard"])
        .assert()
        .success();
    let report = crate::support::text(&done.get_output().stderr);
    assert!(report.contains("whether they were sent in one pipeline: 4"), "{report}");
}

#[test]
fn logged_pipelines_stay_whole_with_postgresql_15() {
    check_pipelines(15);
}

#[test]
fn logged_pipelines_stay_whole_with_postgresql_18() {
    check_pipelines(18);
}
