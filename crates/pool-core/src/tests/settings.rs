//! Tests of clients' session parameters, and of resetting session state.

use std::sync::Arc;

use howdah_wire::{
    Frame,
    frontend::{FrontendMessage, encode},
};
use proptest::prelude::*;

use super::{CoreHarness, message};
use crate::{ClientId, ConnectQuery, PeerId, PoolSpec, ServerId, SessionParameter};

/// Returns a session parameter with this name and value.
type NameAndValue = (Vec<u8>, Vec<u8>);

/// Returns the parameters that the messages sent to a server set, and the bytes after their Sync.
fn settings(sent: &[u8]) -> (Vec<NameAndValue>, &[u8]) {
    let (mut found, mut rest) = (Vec::new(), sent);
    while let Some((frame, later)) = Frame::split(rest, 1 << 20).unwrap() {
        match FrontendMessage::parse(frame).unwrap() {
            FrontendMessage::Bind(bind) => {
                let mut values = bind.values.map(|value| value.unwrap().to_vec());
                found.push((values.next().unwrap(), values.next().unwrap()));
            }
            FrontendMessage::Sync => return (found, later),
            FrontendMessage::Parse(_) | FrontendMessage::Execute { .. } => {}
            _ => break,
        }
        rest = later;
    }
    (found, rest)
}

/// Returns a server's reply to the messages that set one parameter.
fn accept(name: &str, value: &str) -> Vec<u8> {
    let report = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
    let row = message(b'D', b"\0\0");
    let done = [row, message(b'C', b"SELECT 1\0")].concat();
    [message(b'2', b""), done, message(b'S', &report), message(b'Z', b"I")].concat()
}

fn query(harness: &mut CoreHarness, client: ClientId, server: ServerId) -> Vec<u8> {
    harness.send_from_client(client, &message(b'Q', b"select 1\0"));
    harness.sent_to_server(server)
}

#[test]
fn new_parameter_values_are_applied_before_the_request() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (plain, zoned) =
        (harness.client(), harness.client_with(vec![SessionParameter::new("timezone", "cet")]));
    let server = harness.log_in_server();
    harness.sent_to_client(zoned);

    let sent = query(&mut harness, zoned, server);
    let (found, rest) = settings(&sent);
    assert_eq!(found, [(b"TimeZone".to_vec(), b"cet".to_vec())]);
    assert_eq!(rest, b"", "the request waits until the value is accepted");
    let parsed = message(b'1', b"");
    harness.send_from_server(server, &[parsed, accept("TimeZone", "CET")].concat());
    assert_eq!(harness.sent_to_server(server), message(b'Q', b"select 1\0"));
    harness.send_from_server(server, &message(b'Z', b"I"));
    assert_eq!(harness.sent_to_client(zoned), message(b'Z', b"I"), "no other reply is forwarded");

    let sent = query(&mut harness, zoned, server);
    assert_eq!(sent, message(b'Q', b"select 1\0"), "the server spells the same value CET");
    harness.send_from_server(server, &message(b'Z', b"I"));

    let sent = query(&mut harness, plain, server);
    let (found, rest) = settings(&sent);
    assert_eq!(found, [(b"TimeZone".to_vec(), b"UTC".to_vec())]);
    assert_eq!(rest, message(b'Q', b"select 1\0"), "an accepted value is sent with the request");
    harness.sent_to_client(plain);
    harness.send_from_server(server, &[accept("TimeZone", "UTC"), message(b'Z', b"I")].concat());
    assert_eq!(harness.sent_to_client(plain), message(b'Z', b"I"));
}

#[test]
fn rejected_parameter_disconnects_client_before_its_request() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client_with(vec![SessionParameter::new("work_mem", "a lot")]);
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    query(&mut harness, client, server);
    let error = b"SERROR\0VERROR\0C22023\0Minvalid value for parameter\0\0";
    harness.send_from_server(server, &[message(b'1', b""), message(b'E', error)].concat());
    let received = harness.sent_to_client(client);
    assert!(memchr::memmem::find(&received, b"VFATAL\0C22023\0Minvalid value").is_some());
    assert_eq!(harness.io.closed.len(), 2);
}

#[test]
fn only_changed_session_state_is_reset_after_the_reply() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    let run = |harness: &mut CoreHarness, sql: &str, tag: &str| {
        let mut buf = Vec::new();
        encode::query(&mut buf, sql.as_bytes()).unwrap();
        harness.send_from_client(client, &buf);
        harness.sent_to_server(server);
        let tag = message(b'C', &[tag.as_bytes(), b"\0"].concat());
        harness.sent_to_client(client);
        harness.send_from_server(server, &[tag, message(b'Z', b"I")].concat());
        assert!(harness.sent_to_client(client).ends_with(&message(b'Z', b"I")));
        let reset = harness.sent_to_server(server);
        if !reset.is_empty() {
            harness.send_from_server(server, &message(b'Z', b"I"));
        }
        String::from_utf8_lossy(reset.get(5..).unwrap_or_default())
            .trim_end_matches('\0')
            .to_owned()
    };
    assert_eq!(run(&mut harness, "select 1", "SELECT 1"), "");
    assert_eq!(run(&mut harness, "set local work_mem = 1", "SET"), "");
    assert_eq!(
        run(&mut harness, "set timezone = 'CET'", "SET"),
        "",
        "the parameter is reported and tracked"
    );
    assert_eq!(
        run(&mut harness, "set work_mem = 1", "SET"),
        "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;"
    );
    assert_eq!(run(&mut harness, "call listens()", "LISTEN"), "UNLISTEN *;");
    assert_eq!(
        run(&mut harness, "select pg_advisory_lock(1)", "SELECT 1"),
        "SELECT pg_catalog.pg_advisory_unlock_all();"
    );
    assert_eq!(run(&mut harness, "create temp table t ()", "CREATE TABLE"), "DISCARD TEMP;");
}

proptest! {
    /// Any byte in a value arrives unchanged.
    #[test]
    fn hostile_values_arrive_unchanged(value in proptest::collection::vec(1u8.., 0..200)) {
        let mut harness = CoreHarness::new(PoolSpec::new(1));
        let client = harness.client_with(vec![SessionParameter::new("application_name", &value)]);
        let server = harness.log_in_server();
        let sent = query(&mut harness, client, server);
        let (found, rest) = settings(&sent);
        prop_assert_eq!(found, [(b"application_name".to_vec(), value)]);
        prop_assert_eq!(rest, b"");
    }
}

/// Creates a client whose startup packet contains a `TimeZone` that differs from the server's
/// default.
fn client_with_time_zone() -> (CoreHarness, ClientId, ServerId) {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client_with(vec![SessionParameter::new("TimeZone", "CET")]);
    let server = harness.log_in_server();
    query(&mut harness, client, server);
    harness.send_from_server(server, &[message(b'1', b""), accept("TimeZone", "CET")].concat());
    harness.send_from_server(server, &message(b'Z', b"I"));
    harness.sent_to_client(client);
    harness.sent_to_server(server);
    (harness, client, server)
}

fn report(value: &str) -> Vec<u8> {
    message(b'S', &[b"TimeZone\0", value.as_bytes(), b"\0"].concat())
}

#[test]
fn reset_restores_clients_startup_value() {
    for (sql, tag) in [("reset all", "RESET"), ("set timezone to default", "SET")] {
        let (mut harness, client, server) = client_with_time_zone();
        harness.send_from_client(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        harness.sent_to_server(server);
        let done = message(b'C', format!("{tag}\0").as_bytes());
        let ready = message(b'Z', b"I");
        harness.send_from_server(server, &[done.clone(), report("UTC"), ready.clone()].concat());
        let sent = harness.sent_to_server(server);
        let (found, rest) = settings(&sent);
        assert_eq!(found, [(b"TimeZone".to_vec(), b"CET".to_vec())]);
        assert_eq!(rest, b"");
        assert_eq!(
            harness.sent_to_client(client),
            done,
            "ReadyForQuery waits, and UTC is not reported"
        );
        harness.send_from_server(server, &accept("TimeZone", "CET"));
        assert_eq!(harness.sent_to_client(client), [report("CET"), ready].concat());
    }
}

#[test]
fn failed_reset_restores_nothing() {
    let (mut harness, client, server) = client_with_time_zone();
    harness.send_from_client(client, &message(b'Q', b"reset all; boom\0"));
    harness.sent_to_server(server);
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Mno\0\0");
    harness.send_from_server(server, &message(b'C', b"RESET\0"));
    harness.send_from_server(server, &[error, message(b'Z', b"I")].concat());
    assert!(harness.sent_to_client(client).ends_with(&message(b'Z', b"I")));
    assert_eq!(harness.sent_to_server(server), b"");
}

#[test]
fn set_before_a_failing_reset_in_the_next_batch_is_reported() {
    let (mut harness, client, server) = client_with_time_zone();
    let run = |sql: &str| {
        [
            message(b'P', format!("\0{sql}\0\0\0").as_bytes()),
            message(b'B', b"\0\0\0\0\0\0\0\0"),
            message(b'E', b"\0\0\0\0\0"),
        ]
        .concat()
    };
    let (set, reset, sync) =
        (run("set timezone = 'UTC'"), run("reset timezone"), message(b'S', b""));
    harness.send_from_client(client, &[set, sync.clone(), reset].concat());
    harness.sent_to_server(server);
    let started = [message(b'1', b""), message(b'2', b"")].concat();
    let done = [started, message(b'C', b"SET\0"), report("UTC"), message(b'Z', b"I")].concat();
    harness.send_from_server(server, &done);
    // The report belongs to the SET; the RESET has not even been answered.
    assert_eq!(harness.sent_to_client(client), done);
    harness.send_from_client(client, &sync);
    harness.sent_to_server(server);
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Mno\0\0");
    let failed = [error, message(b'Z', b"I")].concat();
    harness.send_from_server(server, &failed);
    assert_eq!(harness.sent_to_client(client), failed);
    assert_eq!(harness.sent_to_server(server), b"", "nothing is restored");
}

#[test]
fn request_after_reset_waits_for_restored_value() {
    let (mut harness, client, server) = client_with_time_zone();
    let (reset, next) = (message(b'Q', b"reset all\0"), message(b'Q', b"select 1\0"));
    harness.send_from_client(client, &[reset.clone(), next.clone()].concat());
    assert_eq!(harness.sent_to_server(server), reset);
    let done = [message(b'C', b"RESET\0"), report("UTC"), message(b'Z', b"I")].concat();
    harness.send_from_server(server, &done);
    assert!(settings(&harness.sent_to_server(server)).1.is_empty());
    harness.send_from_server(server, &accept("TimeZone", "CET"));
    assert_eq!(harness.sent_to_server(server), next);
}

#[test]
fn state_changed_after_discard_all_is_reset() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    let lock = message(b'Q', b"select pg_advisory_lock(1)\0");
    harness.send_from_client(client, &[message(b'Q', b"discard all\0"), lock].concat());
    harness.sent_to_server(server);
    let ready = message(b'Z', b"I");
    harness.send_from_server(server, &[message(b'C', b"DISCARD ALL\0"), ready.clone()].concat());
    harness.send_from_server(server, &[message(b'C', b"SELECT 1\0"), ready].concat());
    let reset = message(b'Q', b"SELECT pg_catalog.pg_advisory_unlock_all();\0");
    assert_eq!(harness.sent_to_server(server), reset);
}

#[test]
fn set_statement_is_prepared_again_after_discard_all() {
    let (mut harness, client, server) = client_with_time_zone();
    harness.send_from_client(client, &message(b'Q', b"discard all\0"));
    harness.sent_to_server(server);
    let done = [message(b'C', b"DISCARD ALL\0"), report("UTC"), message(b'Z', b"I")].concat();
    harness.send_from_server(server, &done);
    assert_eq!(harness.sent_to_server(server)[0], b'P');
}

fn with_connect_query(query: &str) -> (CoreHarness, ClientId, ServerId) {
    let connect_query = Some(Arc::new(ConnectQuery::new(query)));
    let mut harness = CoreHarness::new(PoolSpec { connect_query, ..PoolSpec::new(1) });
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    (harness, client, server)
}

#[test]
fn connect_query_follows_a_reset_in_the_same_write_before_the_next_client() {
    let (mut harness, client, server) = with_connect_query("set role alice");
    let next = harness.client();
    let (set, select) = (message(b'Q', b"set work_mem = 1\0"), message(b'Q', b"select 1\0"));
    harness.send_from_client(client, &set);
    harness.send_from_client(next, &select);
    harness.sent_to_server(server);
    let sends = harness.io.sends;
    harness.send_from_server(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    let reset = message(b'Q', b"SET SESSION AUTHORIZATION DEFAULT;RESET ALL;\0");
    assert_eq!(
        harness.sent_to_server(server),
        [reset, message(b'Q', b"set role alice\0")].concat()
    );
    assert_eq!(harness.io.sends, sends + 2, "one send to the client, one to the server");
    harness.send_from_server(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    assert_eq!(harness.sent_to_server(server), b"", "no client gets the server between the two");
    harness.send_from_server(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    assert_eq!(harness.sent_to_server(server), select);
}

#[test]
fn server_is_closed_instead_of_reset_if_its_connect_query_cannot_be_repeated() {
    let (mut harness, client, server) = with_connect_query("create temp table t ()");
    harness.send_from_client(client, &message(b'Q', b"set work_mem = 1\0"));
    harness.send_from_server(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    assert!(harness.io.closed.contains(&PeerId::Server(server)));
}

#[test]
fn server_whose_connect_query_fails_after_a_reset_is_closed() {
    let (mut harness, client, server) = with_connect_query("set role alice");
    harness.send_from_client(client, &message(b'Q', b"reset role\0"));
    harness.send_from_server(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    harness.send_from_server(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    assert!(harness.io.closed.is_empty());
    let error = b"SERROR\0VERROR\0C22023\0Mrole \"alice\" does not exist\0\0";
    harness.send_from_server(server, &message(b'E', error));
    assert_eq!(harness.io.closed, [PeerId::Server(server)]);
}
