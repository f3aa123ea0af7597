//! Tests of linking and releasing servers, message by message.

use super::{CoreHarness, message};
use crate::{CoreEvent, PeerId, PoolSpec};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn answer(row: &str, status: u8) -> Vec<u8> {
    let row = message(b'D', &[&[0, 1, 0, 0, 0, row.len() as u8], row.as_bytes()].concat());
    [row, message(b'C', b"SELECT 1\0"), message(b'Z', &[status])].concat()
}

#[test]
fn first_client_login_completes_with_first_server() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    assert_eq!(harness.sent_to_client(client), b"");
    assert_eq!(harness.io.paused, [PeerId::Client(client)]);
    harness.log_in_server();
    assert!(harness.io.paused.is_empty());
    let greeting = harness.sent_to_client(client);
    assert!(greeting.starts_with(&message(b'S', b"server_version\x0015.0\0")));
    assert!(greeting.ends_with(&message(b'Z', b"I")));
}

#[test]
fn warm_transaction_takes_two_sends() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    harness.io.sends = 0;
    harness.send_from_client(client, &query("select 1"));
    assert_eq!(harness.sent_to_server(server), query("select 1"));
    harness.send_from_server(server, &answer("1", b'I'));
    assert_eq!(harness.sent_to_client(client), answer("1", b'I'));
    assert_eq!(harness.io.sends, 2);
}

#[test]
fn error_after_end_of_transaction_reaches_no_client() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (a, b) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    for client in [a, b] {
        harness.sent_to_client(client);
        harness.send_from_client(client, &query("select 1"));
    }
    let error = message(b'E', b"SFATAL\0C57P01\0Mterminating connection\0\0");
    harness.send_from_server(server, &[answer("a", b'I'), error].concat());
    assert_eq!(harness.sent_to_client(a), answer("a", b'I'));
    assert_eq!(harness.sent_to_client(b), b"", "it waits for another server");
    assert_eq!(harness.io.closed, [PeerId::Server(server)]);
}

#[test]
fn transaction_keeps_server_and_others_wait_in_order() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (a, b, c) = (harness.client(), harness.client(), harness.client());
    let server = harness.log_in_server();
    for client in [a, b, c] {
        harness.sent_to_client(client);
        harness.send_from_client(client, &query(&format!("begin {client:?}")));
    }
    assert_eq!(harness.sent_to_server(server), query("begin c0.0"));
    assert_eq!(harness.io.paused, [PeerId::Client(b), PeerId::Client(c)]);
    harness.send_from_server(server, &answer("a", b'T'));
    assert_eq!(harness.sent_to_server(server), b"", "the transaction is open");
    harness.send_from_client(a, &query("commit"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &answer("a", b'I'));
    assert_eq!(harness.sent_to_client(a), [answer("a", b'T'), answer("a", b'I')].concat());
    assert_eq!(harness.sent_to_server(server), query("begin c1.0"));
    harness.send_from_server(server, &answer("b", b'I'));
    assert_eq!(harness.sent_to_client(b), answer("b", b'I'));
    assert_eq!(harness.sent_to_server(server), query("begin c2.0"));
    assert!(harness.io.paused.is_empty());
    assert!(harness.io.opened.is_empty(), "the limit is one server");
}

#[test]
fn dialogue_is_independent_of_piece_size() {
    let batch = [
        message(b'P', b"\0select $1\0\0\0"),
        message(b'B', b"\0\0\0\0\0\x01\0\0\0\x01x\0\0"),
        message(b'D', b"P\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat();
    let reply = [
        message(b'1', b""),
        message(b'2', b""),
        message(b'n', b""),
        message(b'D', &[b'x'; 5000]),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ]
    .concat();
    for step in [1, 2, 3, 5, 7, 64, 4096] {
        let mut harness = CoreHarness::new(PoolSpec::new(1));
        let client = harness.client();
        let server = harness.log_in_server();
        harness.sent_to_client(client);
        for _ in 0..2 {
            batch.chunks(step).for_each(|piece| harness.send_from_client(client, piece));
            assert_eq!(harness.sent_to_server(server), batch, "in pieces of {step}");
            reply.chunks(step).for_each(|piece| harness.send_from_server(server, piece));
            assert_eq!(harness.sent_to_client(client), reply, "in pieces of {step}");
            assert!(harness.core.engines().peers.servers.get(server).unwrap().is_quiescent());
        }
    }
}

#[test]
fn slow_client_pauses_its_server() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    harness.io.stuck.push(PeerId::Client(client));
    harness.send_from_client(client, &query("select 1"));
    harness.send_from_server(server, &message(b'D', b"row"));
    assert_eq!(harness.io.paused, [PeerId::Client(client), PeerId::Server(server)]);
    harness.io.stuck.clear();
    harness.core.handle(CoreEvent::Drained(PeerId::Client(client)), harness.now, &mut harness.io);
    assert!(harness.io.paused.is_empty());
}

#[test]
fn transaction_of_lost_client_is_rolled_back() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (client, next) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    harness.send_from_client(client, &query("begin"));
    harness.send_from_server(server, &answer("", b'T'));
    harness.send_from_client(client, &query("select slow"));
    harness.send_from_client(next, &query("select 2"));
    harness.sent_to_server(server);
    harness.core.handle(CoreEvent::ClientClosed(client), harness.now, &mut harness.io);
    assert_eq!(harness.io.cancels.len(), 1, "the running statement is cancelled");
    harness.send_from_server(server, &answer("slow", b'T'));
    assert_eq!(harness.sent_to_server(server), query("ROLLBACK"));
    harness.send_from_server(server, &answer("", b'I'));
    assert_eq!(
        harness.sent_to_server(server),
        b"",
        "the cancel in flight could hit the next client"
    );
    harness.core.handle(CoreEvent::CancelFinished(server), harness.now, &mut harness.io);
    assert_eq!(harness.sent_to_server(server), query("select 2"));
    harness.sent_to_client(next);
    harness.send_from_server(server, &answer("2", b'I'));
    assert_eq!(harness.sent_to_client(next), answer("2", b'I'));
}
