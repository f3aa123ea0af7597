//! Start and end of sessions, their names, and times.

use howdah_logs::{GapKind, ImportOptions, ProblemReason};
use howdah_traffic::{Event, Source};

use crate::support::{descriptions, error, import, import_with};

fn names(event: &Event) -> (&str, &str, &str) {
    (&event.user, &event.database, &event.application)
}

#[test]
fn session_joined_midway_gets_a_connect() {
    let (events, summary) =
        import("2026-11-20 12:00:00.000 UTC [7] al@shop LOG:  statement: select 1\n");
    assert_eq!(descriptions(&events), ["connect", "simple select 1"]);
    assert_eq!((events[0].source, names(&events[0])), (Source::Inferred, ("al", "shop", "")));
    assert_eq!(events[0].time, events[1].time);
    assert_eq!(summary.facts.joined_midway, 1);
}

#[test]
fn names_of_connection_message_apply_to_later_records() {
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC [7] LOG:  connection received: host=[local]\n\
         2026-11-20 12:00:00.001 UTC [7] LOG:  connection authorized: user=a b database=my db \
         application_name=we\"ird | app SSL enabled (protocol=TLSv1.3, cipher=X, bits=256)\n\
         2026-11-20 12:00:00.002 UTC [7] LOG:  statement: select 1\n\
         2026-11-20 12:00:00.003 UTC [7] LOG:  disconnection: session time: 0:00:00.003 user=a b\n",
    );
    assert_eq!(descriptions(&events), ["connect", "simple select 1", "disconnect"]);
    for event in &events {
        assert_eq!(names(event), ("a b", "my db", "we\"ird | app"));
        assert_eq!(event.source == Source::Session, event.action.sql().is_none());
    }
}

#[test]
fn rejected_connection_is_not_an_event() {
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC [7] [unknown]@[unknown] LOG:  connection received: host=[local]\n\
         2026-11-20 12:00:00.001 UTC [7] al@shop FATAL:  password authentication failed for user \"al\"\n\
         2026-11-20 12:00:00.002 UTC [8] [unknown]@[unknown] LOG:  connection received: host=[local]\n",
    );
    assert_eq!(descriptions(&events), [""; 0]);
}

#[test]
fn fatal_error_disconnects_session_once() {
    let (events, _) = import(
        "2026-11-20 12:00:00.001 UTC [7] al@shop LOG:  connection authorized: user=al database=shop\n\
         2026-11-20 12:00:00.002 UTC [7] al@shop FATAL:  role \"al\" does not exist\n\
         2026-11-20 12:00:00.003 UTC [8] al@shop LOG:  statement: select 1\n\
         2026-11-20 12:00:00.004 UTC [8] al@shop FATAL:  terminating connection due to administrator command\n\
         2026-11-20 12:00:00.004 UTC [8] al@shop STATEMENT:  select 1\n\
         2026-11-20 12:00:00.005 UTC [8] al@shop LOG:  disconnection: session time: 0:00:01.000 user=al\n\
         2026-11-20 12:00:00.006 UTC [9] al@shop LOG:  connection authorized: user=al database=shop\n\
         2026-11-20 12:00:00.007 UTC [9] al@shop FATAL:  terminating connection due to idle-session timeout\n",
    );
    let got = descriptions(&events);
    assert_eq!(
        got,
        [
            "connect",
            "disconnect",
            "connect",
            "simple select 1",
            "disconnect",
            "connect",
            "disconnect"
        ]
    );
    assert_eq!(error(&events[0]), "role \"al\" does not exist");
    assert_eq!(error(&events[1]), "");
    assert_eq!(error(&events[3]), "terminating connection due to administrator command");
    assert_eq!(error(&events[4]), "");
    assert_eq!(error(&events[5]), "");
    assert_eq!(error(&events[6]), "terminating connection due to idle-session timeout");
}

#[test]
fn reused_process_id_is_another_session() {
    // The prefix has no %c, and the end of the first session is not logged.
    let (events, summary) = import(
        "2026-11-20 12:00:00 UTC:10.0.0.1(501):al@shop:[7]:LOG:  statement: select 1\n\
         2026-11-20 12:00:05 UTC:10.0.0.1(777):al@shop:[7]:LOG:  statement: select 2\n\
         2026-11-20 12:00:09 UTC:10.0.0.1(777):[unknown]@[unknown]:[7]:LOG:  connection received: host=10.0.0.1 port=9\n\
         2026-11-20 12:00:09 UTC:10.0.0.1(778):al@shop:[7]:LOG:  connection authorized: user=al database=shop\n",
    );
    let got = descriptions(&events);
    assert_eq!(
        got,
        [
            "connect",
            "simple select 1",
            "disconnect",
            "connect",
            "simple select 2",
            "disconnect",
            "connect"
        ]
    );
    assert_eq!(summary.prefix.expect("a prefix").text, "%t:%r:%u@%d:[%p]:");
    let mut ids: Vec<_> = events.iter().map(|event| event.session.clone()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn session_id_is_derived_from_start_and_process() {
    let options =
        ImportOptions { prefix: Some("%m %s %p %u@%d ".to_owned()), ..ImportOptions::default() };
    let log = "2026-11-20 12:43:22.558 UTC 2026-11-20 12:43:22 UTC 18279 al@shop LOG:  statement: select 1\n";
    let (events, _) = import_with(log, options);
    assert_eq!(&*events[0].session, "6b00406a.4767");
}

#[test]
fn restart_disconnects_all_sessions() {
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC [7] al@shop LOG:  statement: select 1\n\
         2026-11-20 12:00:00.000 UTC [8] al@shop LOG:  statement: select 2\n\
         2026-11-20 12:00:01.000 UTC [1] LOG:  all server processes terminated; reinitializing\n\
         2026-11-20 12:00:02.000 UTC [7] al@shop LOG:  statement: select 3\n",
    );
    assert_eq!(
        descriptions(&events),
        [
            "connect",
            "connect",
            "simple select 1",
            "disconnect",
            "simple select 2",
            "disconnect",
            "connect",
            "simple select 3",
        ]
    );
}

#[test]
fn walsenders_and_workers_are_not_clients() {
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC [7] rep@[unknown] LOG:  replication connection authorized: user=rep\n\
         2026-11-20 12:00:00.001 UTC [7] rep@[unknown] LOG:  statement: SHOW data_directory\n\
         2026-11-20 12:00:00.002 UTC [7] rep@[unknown] ERROR:  requested WAL segment has been removed\n\
         2026-11-20 12:00:00.002 UTC [7] rep@[unknown] STATEMENT:  START_REPLICATION 0/1\n\
         2026-11-20 12:00:00.003 UTC [8] LOG:  automatic vacuum of table \"a.b.c\": index scans: 0\n\
         2026-11-20 12:00:00.004 UTC [8] ERROR:  canceling autovacuum task\n\
         2026-11-20 12:00:00.004 UTC [8] CONTEXT:  automatic vacuum of table \"a.b.c\"\n\
         2026-11-20 12:00:00.005 UTC [9] rep@[unknown] ERROR:  replication slot is active\n\
         2026-11-20 12:00:00.005 UTC [9] rep@[unknown] STATEMENT:  START_REPLICATION 0/1\n",
    );
    assert_eq!(descriptions(&events), [""; 0]);
}

#[test]
fn parallel_worker_error_is_not_an_event() {
    let row = |pid: u32, leader: &str, kind: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",{pid},\"[local]\",6b004067.{pid:x},1,\"SELECT\",\
             2026-11-20 12:00:00 UTC,3/4,0,ERROR,22012,\"division by zero\",,,,,,\"select 1/x from t\",,,\"\",\
             \"{kind}\",{leader},0\n"
        )
    };
    let (events, _) = import(row(9, "8", "parallel worker") + &row(8, "", "client backend"));
    assert_eq!(descriptions(&events), ["connect", "simple select 1/x from t"]);
    // A text log does not show leaders, but a connection would have been logged.
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC|al|shop|6b06e800.8|LOG:  connection authorized: user=al database=shop\n\
         2026-11-20 12:00:05.000 UTC|al|shop|6b06e804.9|ERROR:  division by zero\n\
         2026-11-20 12:00:05.000 UTC|al|shop|6b06e804.9|STATEMENT:  select 1/x from t\n\
         2026-11-20 12:00:05.000 UTC|al|shop|6b06e800.8|ERROR:  division by zero\n\
         2026-11-20 12:00:05.000 UTC|al|shop|6b06e800.8|CONTEXT:  parallel worker\n\
         2026-11-20 12:00:05.000 UTC|al|shop|6b06e800.8|STATEMENT:  select 1/x from t\n",
    );
    assert_eq!(descriptions(&events), ["connect", "simple select 1/x from t"]);
}

#[test]
fn application_name_may_contain_a_label() {
    let prefix = Some("%m [%p] %q%u@%d/%a ".to_owned());
    let options = ImportOptions { prefix, ..ImportOptions::default() };
    let (events, _) = import_with(
        "2026-11-20 12:00:00.000 UTC [7] a@corp@shop/[unknown] LOG:  connection authorized: user=a@corp \
         database=shop application_name=x LOG:  y\n\
         2026-11-20 12:00:00.001 UTC [7] a@corp@shop/x LOG:  y LOG:  execute S: select $1\n\
         2026-11-20 12:00:00.001 UTC [7] a@corp@shop/x LOG:  y DETAIL:  parameters: $1 = '1'\n",
        options,
    );
    assert_eq!(descriptions(&events), ["connect", "execute [S/] select $1 ('1')"]);
    assert_eq!(names(&events[1]), ("a@corp", "shop", "x LOG:  y"));
}

#[test]
fn number_of_open_sessions_is_bounded() {
    let mut log = String::new();
    for pid in 0..70_000 {
        log += &format!("2026-11-20 12:00:00.000 UTC [{pid}] al@shop LOG:  statement: select 1\n");
    }
    let (events, summary) = import(log);
    let ended = events.iter().filter(|event| is_described_as(event, "disconnect")).count();
    assert_eq!(ended, 16_384);
    assert_eq!(summary.facts.sessions, 70_000);
}

fn is_described_as(event: &Event, text: &str) -> bool {
    crate::support::describe(event) == text
}

#[test]
fn lost_lines_are_counted_by_line_numbers() {
    let row = |line: u32| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,{line},\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: select {line}\",,,,,,,,,\"\",\"client backend\",,0\n"
        )
    };
    let (_, summary) = import(row(4) + &row(5) + &row(9));
    assert_eq!(summary.facts.lost_lines, 3);
}

#[test]
fn joining_inside_a_transaction_is_counted() {
    let (_, summary) = import(
        "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,9,\"idle in transaction\",\
         2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: commit\",,,,,,,,,\"\",\"client backend\",,0\n",
    );
    assert_eq!((summary.facts.joined_midway, summary.facts.joined_in_transaction), (1, 1));
}

#[test]
fn time_zones_are_read_from_log_and_option() {
    let time = |zone: &str, option: Option<&str>| {
        let options =
            ImportOptions { timezone: option.map(str::to_owned), ..ImportOptions::default() };
        let log = format!("2026-11-20 12:00:00.000 {zone} [7] al@shop LOG:  statement: select 1\n");
        let (events, summary) = import_with(log, options);
        (events[0].time.to_string(), summary.problems.first().map(|problem| problem.reason))
    };
    let at = |hour: u32| format!("2026-11-20T{hour:02}:00:00.000000Z");
    assert_eq!(time("UTC", None), (at(12), None));
    assert_eq!(time("GMT", None), (at(12), None));
    assert_eq!(time("+03", None), (at(9), None));
    assert_eq!(time("-03", None), (at(15), None));
    assert_eq!(time("CET", None), (at(11), None));
    assert_eq!(time("CST", None), (at(18), Some(ProblemReason::AmbiguousZone)));
    assert_eq!(time("CST", Some("Asia/Shanghai")), (at(4), None));
    assert_eq!(time("QQQ", None), (at(12), Some(ProblemReason::UnknownZone)));
    assert_eq!(time("QQQ", Some("+02:00")), (at(10), None));
}

#[test]
fn prefix_without_session_merges_sessions() {
    let options =
        ImportOptions { prefix: Some("%t %u@%d ".to_owned()), ..ImportOptions::default() };
    let (events, summary) = import_with(
        "2026-11-20 12:00:00 UTC al@shop LOG:  statement: select 1\n\
         2026-11-20 12:00:00 UTC bo@shop LOG:  statement: select 2\n",
        options,
    );
    assert!(summary.facts.sessions_merged);
    assert_eq!(descriptions(&events), ["connect", "connect", "simple select 1", "simple select 2"]);
}

#[test]
fn restarted_line_numbers_are_another_session() {
    let options = ImportOptions {
        prefix: Some("%m [%p]: [%l-1] %u@%d ".to_owned()),
        ..ImportOptions::default()
    };
    let line = |number: u32, text: &str| {
        format!("2026-11-20 12:00:00.000 UTC [7]: [{number}-1] al@shop LOG:  {text}\n")
    };
    let log = line(8, "statement: select 1") + &line(9, "statement: select 2");
    let log = log + &line(2, "statement: select 3") + &line(5, "statement: select 4");
    let (events, summary) = import_with(log, options);
    let expected = [
        "connect",
        "simple select 1",
        "simple select 2",
        "disconnect",
        "connect",
        "simple select 3",
        "simple select 4",
    ];
    assert_eq!(descriptions(&events), expected);
    assert_eq!(summary.facts.lost_lines, 2);
}

#[test]
fn killed_process_disconnects_only_its_session() {
    let (events, _) = import(
        "2026-11-20 12:00:00.000 UTC [7] al@shop LOG:  statement: select 1\n\
         2026-11-20 12:00:00.000 UTC [8] al@shop LOG:  statement: select 2\n\
         2026-11-20 12:00:01.000 UTC [1] LOG:  server process (PID 7) was terminated by signal 9: Killed\n\
         2026-11-20 12:00:01.000 UTC [1] DETAIL:  Failed process was running: select 1\n\
         2026-11-20 12:00:01.000 UTC [1] LOG:  terminating any other active server processes\n\
         2026-11-20 12:00:01.001 UTC [1] LOG:  all server processes terminated; reinitializing\n",
    );
    let ended: Vec<_> = events
        .iter()
        .filter(|event| is_described_as(event, "disconnect"))
        .map(|event| (event.session.rsplit_once('.').map(|(_, pid)| pid), event.time.to_string()))
        .collect();
    assert_eq!(
        ended,
        [
            (Some("7"), "2026-11-20T12:00:01.000000Z".to_owned()),
            (Some("8"), "2026-11-20T12:00:01.001000Z".to_owned())
        ]
    );
}

#[test]
fn first_statement_does_not_start_before_its_session() {
    let log = "2026-11-20 12:43:20 UTC [7]:LOG:  connection authorized: user=al database=shop\n\
               2026-11-20 12:43:20 UTC [7]:LOG:  duration: 250.000 ms  statement: select 1\n\
               2026-11-20 12:43:21 UTC [7]:LOG:  duration: 250.000 ms  statement: select 2\n";
    let options = ImportOptions { prefix: Some("%t [%p]:".to_owned()), ..ImportOptions::default() };
    let (events, _) = import_with(log, options);
    let starts: Vec<_> = events.iter().map(|event| event.time.to_string()).collect();
    let expected = [
        "2026-11-20T12:43:20.000000Z",
        "2026-11-20T12:43:20.000000Z",
        "2026-11-20T12:43:20.750000Z",
    ];
    assert_eq!(starts, expected);
}

#[test]
fn repeated_records_are_counted() {
    let row = |line: u32, message: &str| {
        format!(
            "2026-11-20 12:43:20.100 UTC,\"al\",\"shop\",7,\"[local]\",6b004067.7,{line},\"SELECT\",\
             2026-11-20 12:43:19 UTC,3/4,0,LOG,00000,\"{message}\",,,,,,,,,\"psql\",\"client backend\",,0\n"
        )
    };
    let rows = [
        row(1, "statement: select 1"),
        row(2, "duration: 1.000 ms"),
        row(3, "statement: select 2"),
    ];
    let log = [rows.concat(), rows[1..].concat()].concat();
    let (_, summary) = import_with(log, ImportOptions::default());
    assert_eq!((summary.facts.repeated_lines, summary.facts.lost_lines), (1, 0));
    assert!(summary.completeness().gaps.iter().any(|gap| gap.kind == GapKind::Repeated));
    let (_, summary) = import_with(rows.concat(), ImportOptions::default());
    assert_eq!(summary.facts.repeated_lines, 0);
}

/// A log without connections, with `log_statement = all` and `log_duration`: the line numbers show
/// that a session was in no transaction before.
#[test]
fn session_starting_in_log_has_its_first_pipeline() {
    let row = |line: u32, vxid: &str, tag: &str, message: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-20 12:00:00.{line:03} UTC\",\"user\":\"al\",\"dbname\":\"shop\",\
             \"pid\":8,\"session_id\":\"6b004067.8\",\"line_num\":{line},\"ps\":\"{tag}\",\
             \"session_start\":\"2026-11-20 12:00:00 UTC\",\"vxid\":\"{vxid}\",\"txid\":0,\
             \"error_severity\":\"LOG\",\"message\":\"{message}\",\"backend_type\":\"client backend\"}}\n"
        )
    };
    let insert = "execute <unnamed>: insert into t values (1)";
    let steps =
        [("PARSE", "duration: 0.100 ms"), ("BIND", "duration: 0.100 ms"), ("INSERT", insert)];
    let log = |first: u32| -> String {
        let pair = steps.into_iter().chain([("INSERT", "duration: 0.100 ms")]).chain(steps);
        (first..).zip(pair).map(|(line, (tag, message))| row(line, "3/5", tag, message)).collect()
    };
    let executions = |first| {
        let (events, summary) = import(log(first));
        let pipelines: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.action, howdah_traffic::Action::Execute(_)))
            .map(|event| event.pipeline)
            .collect();
        (pipelines, summary.facts.joined_midway)
    };
    assert_eq!(executions(1), (vec![Some(1), Some(1)], 0));
    assert_eq!(executions(4), (vec![None, None], 1));
}
