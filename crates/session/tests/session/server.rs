//! Tests with a PostgreSQL server.

use std::io::{Read, Write};

use howdah_session::{Request, TransactionStatus, ValueFormat};
use howdah_wire::startup;

use crate::cluster::{PASSWORD, TestConnection, cluster, socket};

#[test]
fn every_method_logs_in() {
    let Some(cluster) = cluster() else { return };
    for role in ["scram", "md5", "clear"] {
        let mut connection = TestConnection::open(cluster, role, Some(PASSWORD));
        let welcome = connection.until_ready();
        assert_eq!(welcome.last().unwrap(), "LoggedIn", "{role}");
        assert!(connection.client.is_ready());
        assert_eq!(connection.client.parameter("session_authorization"), Some(role));
        assert_eq!(connection.client.parameter("application_name"), Some("session"));
        assert!(connection.client.cancel_key().is_some());

        let mut wrong = TestConnection::open(cluster, role, Some("wrong"));
        assert_eq!(wrong.until_ready(), ["Error 28P01", "End Ok(())"], "{role}");
    }
    let mut unknown = TestConnection::open(cluster, "nobody", None);
    assert_eq!(unknown.until_ready(), ["Error 28000", "End Ok(())"]);
}

#[test]
fn simple_queries_return_results() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.query(b"select 1 as a, null as b; create temp table t (x int)").unwrap();
    assert_eq!(
        connection.until_ready(),
        [
            "RowDescription a,b",
            "Row 1|NULL",
            "CommandComplete SELECT 1",
            "CommandComplete CREATE TABLE",
            "Ready Idle"
        ]
    );
    connection.client.query(b"").unwrap();
    assert_eq!(connection.until_ready(), ["EmptyQuery", "Ready Idle"]);
    connection
        .client
        .query(b"begin; insert into t select generate_series(1, 3); select 1/0")
        .unwrap();
    assert_eq!(
        connection.until_ready(),
        ["CommandComplete BEGIN", "CommandComplete INSERT 0 3", "Error 22012", "Ready Failed"]
    );
    assert_eq!(connection.client.transaction_status(), TransactionStatus::Failed);
    connection.client.query(b"rollback").unwrap();
    assert_eq!(connection.until_ready(), ["CommandComplete ROLLBACK", "Ready Idle"]);
    // Two queries at once.
    connection.client.query(b"select 1 where false").unwrap();
    connection.client.query(b"select 2").unwrap();
    assert_eq!(connection.client.pending_ready_count(), 2);
    assert_eq!(connection.until_ready().len(), 3 + 4);
}

#[test]
fn portals_return_rows_in_batches() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    let client = &mut connection.client;
    client.query(b"begin").unwrap();
    client.parse(b"s", b"select * from generate_series(1, $1)", &[23]).unwrap();
    client.describe_statement(b"s").unwrap();
    client.bind(b"p", b"s", [Some(&b"5"[..])]).unwrap();
    client.describe_portal(b"p").unwrap();
    client.execute(b"p", 2).unwrap();
    client.sync();
    client.execute(b"p", 0).unwrap();
    client.close_portal(b"p").unwrap();
    client.close_statement(b"s").unwrap();
    client.sync();
    client.query(b"commit").unwrap();
    assert_eq!(
        connection.until_ready(),
        [
            "CommandComplete BEGIN",
            "Ready InTransaction",
            "ParseComplete",
            "ParameterDescription [23]",
            "RowDescription generate_series",
            "BindComplete",
            "RowDescription generate_series",
            "Row 1",
            "Row 2",
            "PortalSuspended",
            "Ready InTransaction",
            "Row 3",
            "Row 4",
            "Row 5",
            "CommandComplete SELECT 3",
            "CloseComplete",
            "CloseComplete",
            "Ready InTransaction",
            "CommandComplete COMMIT",
            "Ready Idle"
        ]
    );
}

#[test]
fn values_are_bound_in_both_formats() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    let client = &mut connection.client;
    client.parse(b"", b"select $1::int, $2::text, $3::bytea", &[]).unwrap();
    let values = [Some(&7_i32.to_be_bytes()[..]), None, Some(b"\\x00ff")];
    let formats = [ValueFormat::Binary, ValueFormat::Text, ValueFormat::Text];
    let results = [ValueFormat::Text, ValueFormat::Text, ValueFormat::Binary];
    client.bind_with_formats(b"", b"", &formats, values, &results).unwrap();
    client.execute(b"", 0).unwrap();
    client.sync();
    let lines = connection.until_ready();
    assert_eq!(lines[2], "Row 7|NULL|\0\u{fffd}");
}

#[test]
fn pipeline_error_skips_to_sync() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    let client = &mut connection.client;
    client.parse(b"ok", b"select 1", &[]).unwrap();
    client.parse(b"bad", b"selec 1", &[]).unwrap();
    client.bind(b"", b"ok", []).unwrap();
    client.execute(b"", 0).unwrap();
    client.query(b"select 'a query is skipped too'").unwrap();
    client.sync();
    client.bind(b"", b"ok", []).unwrap();
    client.execute(b"", 0).unwrap();
    client.sync();
    assert_eq!(
        connection.until_ready(),
        [
            "ParseComplete",
            "Error 42601",
            "Ready Idle",
            "BindComplete",
            "Row 1",
            "CommandComplete SELECT 1",
            "Ready Idle"
        ]
    );
    assert!(connection.client.is_ready());
}

#[test]
fn flush_returns_replies_without_sync() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.parse(b"", b"select 1", &[]).unwrap();
    connection.client.flush();
    assert_eq!(connection.until("ParseComplete"), ["ParseComplete"]);
    assert!(!connection.client.is_ready(), "the batch is open");
    connection.client.sync();
    assert_eq!(connection.until_ready(), ["Ready Idle"]);
    assert!(connection.client.is_ready());
}

#[test]
fn copy_in_and_out_transfer_data() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.query(b"create temp table t (x int, y text)").unwrap();
    connection.until_ready();
    connection.client.query(b"copy t from stdin").unwrap();
    assert_eq!(connection.until("CopyIn"), ["CopyIn"]);
    connection.client.copy_data(b"1\ta\n2").unwrap();
    connection.client.copy_data(b"\tb\n").unwrap();
    connection.client.copy_done();
    assert_eq!(connection.until_ready(), ["CommandComplete COPY 2", "Ready Idle"]);

    connection.client.query(b"copy t to stdout").unwrap();
    assert_eq!(
        connection.until_ready(),
        [
            "CopyOut",
            "CopyData \"1\\ta\\n\"",
            "CopyData \"2\\tb\\n\"",
            "CopyDone",
            "CommandComplete COPY 2",
            "Ready Idle"
        ]
    );

    connection.client.query(b"copy t from stdin").unwrap();
    connection.until("CopyIn");
    connection.client.copy_fail(b"not captured").unwrap();
    assert_eq!(connection.until_ready(), ["Error 57014", "Ready Idle"]);
    // The server fails first; data in flight is ignored.
    connection.client.query(b"copy t from stdin; select 1").unwrap();
    connection.client.copy_data(b"x\ty\n").unwrap();
    connection.client.copy_data(b"3\tc\n").unwrap();
    connection.client.copy_done();
    connection.client.query(b"select count(*) from t").unwrap();
    let lines = connection.until_ready();
    assert_eq!(lines[..3], ["CopyIn", "Error 22P02", "Ready Idle"]);
    assert_eq!(lines[4], "Row 2");
    assert!(connection.client.is_ready());
}

#[test]
fn extended_copy_ignores_sync() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.query(b"create temp table t (x int)").unwrap();
    connection.until_ready();
    for fails in [false, true] {
        connection.client.parse(b"", b"copy t from stdin", &[]).unwrap();
        connection.client.bind(b"", b"", []).unwrap();
        let execute = connection.client.execute(b"", 0).unwrap();
        connection.client.sync();
        assert_eq!(connection.until("CopyIn"), ["ParseComplete", "BindComplete", "CopyIn"]);
        let owed: Vec<_> = connection.client.outstanding().collect();
        assert_eq!(owed, [(execute, Request::Execute)]);
        assert_eq!(connection.client.pending_ready_count(), 0);
        if fails {
            connection.client.copy_fail(b"enough").unwrap();
        } else {
            connection.client.copy_data(b"1\n").unwrap();
            connection.client.copy_done();
        }
        connection.client.sync();
        let outcome = if fails { "Error 57014" } else { "CommandComplete COPY 1" };
        assert_eq!(connection.until_ready(), [outcome, "Ready Idle"]);
        assert!(connection.client.is_ready());
    }
}

#[test]
fn functions_are_called_by_oid() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    let int4pl = 177;
    connection.client.call_function(int4pl, [Some(&b"40"[..]), Some(b"2")]).unwrap();
    assert_eq!(connection.until_ready(), ["FunctionResult Some(\"42\")", "Ready Idle"]);
    connection.client.call_function(int4pl, [None, Some(&b"2"[..])]).unwrap();
    assert_eq!(connection.until_ready(), ["FunctionResult None", "Ready Idle"]);
    connection.client.call_function(1, []).unwrap();
    assert_eq!(connection.until_ready(), ["Error 42883", "Ready Idle"]);
}

#[test]
fn discarded_rows_report_only_length() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.discard_rows(true);
    connection.client.query(b"select repeat('x', 1000000) from generate_series(1, 3)").unwrap();
    let row = "Row of 1000006 bytes";
    assert_eq!(
        connection.until_ready(),
        ["RowDescription repeat", row, row, row, "CommandComplete SELECT 3", "Ready Idle"]
    );
}

#[test]
fn statement_is_cancelled_by_key() {
    let Some(cluster) = cluster() else { return };
    let mut connection = TestConnection::ready(cluster);
    connection.client.query(b"select pg_sleep(3600)").unwrap();
    connection.flush();
    let key = connection.client.cancel_key().unwrap();

    // A cancel request that arrives before the statement would have no effect.
    let mut observer = TestConnection::ready(cluster);
    let running = format!(
        "select wait_event from pg_stat_activity where pid = {} and wait_event = 'PgSleep'",
        key.process_id()
    );
    let mut asked = Vec::new();
    while asked.len() != 4 {
        observer.client.query(running.as_bytes()).unwrap();
        asked = observer.until_ready();
    }

    let mut request = Vec::new();
    startup::cancel_request(&mut request, key);
    let mut canceller = socket(cluster);
    canceller.write_all(&request).unwrap();
    assert_eq!(canceller.read(&mut [0]).unwrap(), 0, "cancel requests get no reply");
    assert_eq!(connection.until_ready(), ["RowDescription pg_sleep", "Error 57014", "Ready Idle"]);
}

#[test]
fn notifications_notices_and_parameters_are_reported() {
    let Some(cluster) = cluster() else { return };
    let mut listener = TestConnection::ready(cluster);
    listener.client.query(b"listen news").unwrap();
    listener.until_ready();
    let mut speaker = TestConnection::ready(cluster);
    speaker
        .client
        .query(b"notify news, 'hello'; do $$ begin raise warning 'beware'; end $$")
        .unwrap();
    let said = speaker.until_ready();
    assert!(said.contains(&"Notice beware".to_owned()), "{said:?}");
    assert_eq!(listener.until("Notification"), ["Notification news=hello"]);
    speaker.client.query(b"set application_name = 'loud'").unwrap();
    assert_eq!(
        speaker.until_ready(),
        ["CommandComplete SET", "ParameterStatus application_name=loud", "Ready Idle"]
    );
    assert_eq!(speaker.client.parameter("application_name"), Some("loud"));
}

#[test]
fn terminated_session_reports_error() {
    let Some(cluster) = cluster() else { return };
    let mut victim = TestConnection::ready(cluster);
    let key = victim.client.cancel_key().unwrap();
    let mut killer = TestConnection::ready(cluster);
    let sql = format!("select pg_terminate_backend({})", key.process_id());
    killer.client.query(sql.as_bytes()).unwrap();
    killer.until_ready();
    assert_eq!(victim.until_ready(), ["Error 57P01", "End Ok(())"]);

    killer.client.terminate();
    assert_eq!(killer.until_ready(), ["End Ok(())"]);
}
