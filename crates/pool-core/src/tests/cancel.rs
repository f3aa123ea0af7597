//! Tests of cancel requests and the idle-transaction timeout.

use std::time::Duration;

use super::{
    CoreHarness, POOL, message,
    statements::{bind, parse, reply_tags, sync},
};
use crate::{PoolSpec, Time};

#[test]
fn cancel_of_queued_request_is_answered_at_once() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (busy, queued) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    harness.send_from_client(busy, &message(b'Q', b"select 1\0"));
    let batch = [message(b'P', b"\0select 2\0\0\0"), message(b'S', b"")].concat();
    harness.send_from_client(queued, &[batch, message(b'Q', b"select 3\0")].concat());
    harness.sent_to_client(queued);
    let key = harness.core.cancel_key_of(queued).unwrap();
    harness.core.cancel(&key, harness.now, &mut harness.io);
    let received = harness.sent_to_client(queued);
    assert!(memchr::memmem::find(&received, b"C57014\0").is_some());
    assert!(received.ends_with(&message(b'Z', b"I")));
    assert!(harness.io.cancels.is_empty(), "the server is linked to another client");
    harness.sent_to_server(server);
    harness.send_from_server(server, &message(b'Z', b"I"));
    assert_eq!(
        harness.sent_to_server(server),
        message(b'Q', b"select 3\0"),
        "the next request is kept"
    );
    assert!(harness.core.has_pool(POOL));
}

#[test]
fn cancel_needs_linked_server_and_correct_key() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    let key = harness.core.cancel_key_of(client).unwrap();
    harness.core.cancel(&key, harness.now, &mut harness.io);
    assert!(harness.io.cancels.is_empty(), "the client has no request");
    harness.send_from_client(client, &message(b'Q', b"select 1\0"));
    let wrong = howdah_wire::startup::CancelKey::new(key.process_id(), b"none").unwrap();
    harness.core.cancel(&wrong, harness.now, &mut harness.io);
    assert!(harness.io.cancels.is_empty(), "the key is wrong");
    harness.core.cancel(&key, harness.now, &mut harness.io);
    assert_eq!(harness.io.cancels.len(), 1);
    assert_eq!(harness.io.cancels[0].0, server);
}

#[test]
fn cancel_reaches_server_while_statement_is_being_prepared() {
    let mut harness = CoreHarness::new(PoolSpec::new(2));
    let (client, other) = (harness.client(), harness.client());
    let first = harness.log_in_server();
    harness.send_from_client(client, &[parse("s", "select pg_sleep($1)"), sync()].concat());
    reply_tags(&mut harness, first, "1Z");
    // Another client occupies the server on which the statement is prepared.
    harness.send_from_client(other, &message(b'Q', b"begin\0"));
    harness.send_from_server(first, &message(b'Z', b"T"));
    harness.send_from_client(client, &[bind("s", "9"), sync()].concat());
    let second = harness.log_in_server();
    assert_eq!(harness.sent_to_server(second)[0], b'P', "the statement is prepared first");
    // The server sends its replies only after the whole batch.
    let key = harness.core.cancel_key_of(client).unwrap();
    harness.core.cancel(&key, harness.now, &mut harness.io);
    assert_eq!(harness.io.cancels.len(), 1);
    assert_eq!(harness.io.cancels[0].0, second);
}

#[test]
fn idle_transaction_times_out_and_busy_one_does_not() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.idle_transaction = Some(Duration::from_secs(1));
    let mut harness = CoreHarness::new(spec);
    let client = harness.client();
    let server = harness.log_in_server();
    harness.send_from_client(client, &message(b'Q', b"begin\0"));
    harness.now = Time::default() + Duration::from_secs(9);
    harness.core.tick(harness.now, &mut harness.io);
    harness.sent_to_client(client);
    harness.send_from_server(server, &message(b'Z', b"T"));
    harness.core.tick(harness.now + Duration::from_millis(500), &mut harness.io);
    assert_eq!(harness.sent_to_client(client), message(b'Z', b"T"));
    harness.sent_to_server(server);
    harness.core.tick(harness.now + Duration::from_millis(1100), &mut harness.io);
    assert!(memchr::memmem::find(&harness.sent_to_client(client), b"C25P03\0").is_some());
    assert_eq!(
        harness.sent_to_server(server),
        message(b'Q', b"ROLLBACK\0"),
        "the server connection stays open"
    );
}
