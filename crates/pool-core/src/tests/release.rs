//! Tests of releasing servers: resets, checks, and transactions that are not allowed.

use std::time::Duration;

use super::{CoreHarness, message};
use crate::{
    CheckQuery, ClientId, ConnectionLimit, CoreEvent, PeerId, PoolSpec, PoolingMode, ResetQuery,
    ServerId,
};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn client_and_server(spec: PoolSpec) -> (CoreHarness, ClientId, ServerId) {
    let mut harness = CoreHarness::new(spec);
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    (harness, client, server)
}

#[test]
fn statement_mode_rejects_transaction_like_pgbouncer() {
    let (mut harness, client, server) =
        client_and_server(PoolSpec { mode: PoolingMode::Statement, ..PoolSpec::new(1) });
    harness.send_from_client(client, &query("begin"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[message(b'C', b"BEGIN\0"), ready(b'T')].concat());
    let received = harness.sent_to_client(client);
    let text = b"C08P01\0Mtransaction blocks not allowed in statement pooling mode\0";
    assert!(memchr::memmem::find(&received, text).is_some());
    assert!(
        memchr::memmem::find(&received, &ready(b'T')).is_none(),
        "ReadyForQuery is not forwarded"
    );
    assert_eq!(harness.io.closed, [PeerId::Client(client)], "the server connection stays open");
    assert_eq!(harness.sent_to_server(server), query("ROLLBACK"));
}

#[test]
fn transaction_timeout_counts_from_its_begin() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.transaction = Some(Duration::from_millis(3500));
    let (mut harness, client, server) = client_and_server(spec);
    harness.advance(10_000);
    for status in [b"T", b"T", b"I", b"T"] {
        harness.send_from_client(client, &query("select 1"));
        harness.advance(1000);
        harness.send_from_server(server, &message(b'Z', status));
    }
    harness.sent_to_client(client);
    harness.advance(2400);
    assert_eq!(harness.sent_to_client(client), b"", "a new transaction has started meanwhile");
    harness.advance(200);
    assert!(memchr::memmem::find(&harness.sent_to_client(client), b"C25P04\0").is_some());
    assert_eq!(harness.io.closed, [PeerId::Client(client)]);
}

#[test]
fn reset_query_runs_at_end_of_session() {
    let reset = ResetQuery { query: (*b"DISCARD ALL").into(), is_always: false };
    let mut spec = PoolSpec { mode: PoolingMode::Session, reset: Some(reset), ..PoolSpec::new(1) };
    let (mut harness, client, server) = client_and_server(spec.clone());
    harness.send_from_client(client, &query("listen x"));
    harness.send_from_server(server, &[message(b'C', b"LISTEN\0"), ready(b'I')].concat());
    harness.sent_to_server(server);
    harness.send_from_client(client, &message(b'X', b""));
    assert_eq!(harness.sent_to_server(server), query("DISCARD ALL"));
    harness.send_from_server(server, &[message(b'C', b"DISCARD ALL\0"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), b"", "DISCARD ALL resets everything");

    spec.server_limits = [ConnectionLimit::new(1)].into();
    spec.welcome = std::sync::Arc::default();
    spec.reset = Some(ResetQuery { query: [].into(), is_always: false });
    let (mut harness, client, server) = client_and_server(spec);
    harness.send_from_client(client, &query("set work_mem = 1"));
    harness.send_from_server(server, &[message(b'C', b"SET\0"), ready(b'I')].concat());
    harness.sent_to_server(server);
    harness.send_from_client(client, &message(b'X', b""));
    assert_eq!(harness.sent_to_server(server), b"", "an empty reset query sends nothing");
}

#[test]
fn reset_query_can_run_after_every_transaction() {
    let reset = ResetQuery { query: (*b"select reset()").into(), is_always: true };
    let (mut harness, client, server) =
        client_and_server(PoolSpec { reset: Some(reset), ..PoolSpec::new(1) });
    harness.send_from_client(client, &query("call listens()"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[message(b'C', b"LISTEN\0"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), query("select reset()"));
    harness.send_from_server(server, &[message(b'C', b"SELECT 1\0"), ready(b'I')].concat());
    assert_eq!(
        harness.sent_to_server(server),
        query("UNLISTEN *;"),
        "other session state is reset as well"
    );
}

#[test]
fn server_idle_for_long_is_checked_first() {
    let check = CheckQuery { query: [].into(), idle: Duration::from_secs(30) };
    let (mut harness, client, server) =
        client_and_server(PoolSpec { check: Some(check), ..PoolSpec::new(1) });
    harness.send_from_client(client, &query("select 1"));
    assert_eq!(harness.sent_to_server(server), query("select 1"));
    harness.send_from_server(server, &ready(b'I'));
    harness.advance(31_000);
    harness.send_from_client(client, &query("select 2"));
    assert_eq!(harness.sent_to_server(server), query(""));
    assert!(harness.io.opened.is_empty(), "no server is opened during the check");
    harness.send_from_server(server, &[message(b'I', b""), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), query("select 2"));
    harness.send_from_server(server, &ready(b'I'));

    harness.advance(31_000);
    harness.send_from_client(client, &query("select 3"));
    harness.advance(6000);
    assert_eq!(harness.io.closed, [PeerId::Server(server)], "the check was not answered");
    let fresh = harness.log_in_server();
    assert_eq!(harness.sent_to_server(fresh), query("select 3"));
}

#[test]
fn check_delay_of_zero_checks_before_every_client() {
    for (round_robin, always) in [(false, false), (true, false), (false, true), (true, true)] {
        let check = Some(CheckQuery { query: [].into(), idle: Duration::ZERO });
        let reset = Some(ResetQuery { query: (*b"reset").into(), is_always: always });
        let spec = PoolSpec { check, reset, is_round_robin: round_robin, ..PoolSpec::new(1) };
        let (mut harness, client, server) = client_and_server(spec);
        harness.advance(1);
        for _ in 0..3 {
            harness.send_from_client(client, &query("select 1"));
            assert_eq!(harness.sent_to_server(server), query(""));
            harness.send_from_server(server, &[message(b'I', b""), ready(b'I')].concat());
            assert_eq!(harness.sent_to_server(server), query("select 1"));
            harness.send_from_server(server, &ready(b'I'));
            if always {
                assert_eq!(harness.sent_to_server(server), query("reset"));
                harness.send_from_server(server, &ready(b'I'));
            }
        }
    }
}

#[test]
fn failed_check_replaces_server_and_fresh_server_is_not_checked() {
    let check = Some(CheckQuery { query: (*b"select 1/0").into(), idle: Duration::ZERO });
    let (mut harness, client, mut server) =
        client_and_server(PoolSpec { check, ..PoolSpec::new(1) });
    harness.advance(1);
    for _ in 0..3 {
        harness.send_from_client(client, &query("select 1"));
        assert_eq!(harness.sent_to_server(server), query("select 1/0"));
        harness.send_from_server(
            server,
            &[message(b'E', b"SERROR\0C22012\0\0"), ready(b'I')].concat(),
        );
        assert_eq!(harness.io.closed, [PeerId::Server(server)]);
        harness.io.closed.clear();
        server = harness.log_in_server();
        assert_eq!(harness.sent_to_server(server), query("select 1"));
        harness.send_from_server(server, &ready(b'I'));
        harness.advance(1);
    }
}

#[test]
fn requests_before_terminate_are_executed() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[query("insert"), message(b'X', b"")].concat());
    assert!(harness.io.cancels.is_empty(), "PostgreSQL would have completed it");
    harness.send_from_server(server, &[message(b'C', b"INSERT 0 1\0"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), query("insert"));
    assert_eq!(harness.io.closed, [PeerId::Client(client)]);
}

#[test]
fn client_lost_in_copy_data_after_failed_copy_pads_nothing() {
    let spec = PoolSpec { mode: PoolingMode::Session, ..PoolSpec::new(1) };
    let (mut harness, client, server) = client_and_server(spec);
    harness.send_from_client(client, &query("copy t from stdin"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &message(b'G', b"\0\0\0"));
    let error = message(b'E', b"SERROR\0VERROR\0C22P02\0Mno integer\0\0");
    harness.send_from_server(server, &[error, ready(b'I')].concat());
    // The server discards CopyData until it has read the message that ends the COPY, but no part of
    // this one was forwarded.
    let data = message(b'd', &[b'x'; 10_000]);
    harness.send_from_client(client, &data[..6_000]);
    let before = harness.sent_to_server(server);
    harness.core.handle(CoreEvent::ClientClosed(client), harness.now, &mut harness.io);
    let sent = [before, harness.sent_to_server(server)].concat();
    assert!(sent.starts_with(b"Q"), "{sent:?}");
    assert!(!sent.contains(&1), "{sent:?}");
    assert!(harness.io.closed.iter().all(|peer| *peer != PeerId::Server(server)));
}

#[test]
fn copy_that_starts_after_disconnect_is_ended_before_rollback() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    let batch = [
        message(b'P', b"\0copy t from stdin\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
    ];
    harness.send_from_client(client, &batch.concat());
    harness.send_from_server(server, &[message(b'1', b""), message(b'2', b"")].concat());
    harness.sent_to_server(server);
    // The server has already entered COPY mode, but its CopyInResponse has not arrived.
    harness.core.handle(CoreEvent::ClientClosed(client), harness.now, &mut harness.io);
    let sent = harness.sent_to_server(server);
    let copy_fail = message(b'f', b"client disconnected\0");
    assert!(sent.starts_with(&copy_fail), "{}", sent.escape_ascii());
    let replies = [message(b'G', b"\0\0\0"), message(b'E', b"C57014\0\0"), ready(b'I')];
    harness.send_from_server(server, &replies.concat());
    harness.core.handle(CoreEvent::CancelFinished(server), harness.now, &mut harness.io);
    assert_eq!(harness.io.closed, [], "the server can be used again");
    let next = harness.client();
    harness.send_from_client(next, &query("select 1"));
    assert_eq!(harness.sent_to_server(server), query("select 1"));
}
