//! Cancelling, and what takes too long.

use std::time::Duration;

use super::{
    POOL, Stage, message,
    statements::{bind, parse, says, sync},
};
use crate::{PoolSpec, Time};

#[test]
fn a_queued_clients_cancel_is_answered_at_once() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (busy, queued) = (stage.client(), stage.client());
    let server = stage.server();
    stage.client_says(busy, &message(b'Q', b"select 1\0"));
    let batch = [message(b'P', b"\0select 2\0\0\0"), message(b'S', b"")].concat();
    stage.client_says(queued, &[batch, message(b'Q', b"select 3\0")].concat());
    stage.client_gets(queued);
    let key = stage.core.cancel_key_of(queued).unwrap();
    stage.core.cancel(&key, stage.now, &mut stage.io);
    let told = stage.client_gets(queued);
    assert!(memchr::memmem::find(&told, b"C57014\0").is_some());
    assert!(told.ends_with(&message(b'Z', b"I")));
    assert!(stage.io.cancels.is_empty(), "the server works for another");
    stage.server_gets(server);
    stage.server_says(server, &message(b'Z', b"I"));
    assert_eq!(
        stage.server_gets(server),
        message(b'Q', b"select 3\0"),
        "what came behind it stays"
    );
    assert!(stage.core.has_pool(POOL));
}

#[test]
fn only_the_linked_server_is_cancelled_and_only_with_the_key() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    let key = stage.core.cancel_key_of(client).unwrap();
    stage.core.cancel(&key, stage.now, &mut stage.io);
    assert!(stage.io.cancels.is_empty(), "it does nothing");
    stage.client_says(client, &message(b'Q', b"select 1\0"));
    let wrong = howdah_wire::startup::CancelKey::new(key.process_id(), b"none").unwrap();
    stage.core.cancel(&wrong, stage.now, &mut stage.io);
    assert!(stage.io.cancels.is_empty(), "the key is another");
    stage.core.cancel(&key, stage.now, &mut stage.io);
    assert_eq!(stage.io.cancels.len(), 1);
    assert_eq!(stage.io.cancels[0].0, server);
}

#[test]
fn a_statement_that_had_to_be_prepared_in_passing_is_cancelled_like_any_other() {
    let mut stage = Stage::new(PoolSpec::new(2));
    let (client, other) = (stage.client(), stage.client());
    let first = stage.server();
    stage.client_says(client, &[parse("s", "select pg_sleep($1)"), sync()].concat());
    says(&mut stage, first, "1Z");
    // Another keeps the server on which it is prepared.
    stage.client_says(other, &message(b'Q', b"begin\0"));
    stage.server_says(first, &message(b'Z', b"T"));
    stage.client_says(client, &[bind("s", "9"), sync()].concat());
    let second = stage.server();
    assert_eq!(stage.server_gets(second)[0], b'P', "it is prepared in passing");
    // The server says nothing of that before it has answered all.
    let key = stage.core.cancel_key_of(client).unwrap();
    stage.core.cancel(&key, stage.now, &mut stage.io);
    assert_eq!(stage.io.cancels.len(), 1);
    assert_eq!(stage.io.cancels[0].0, second);
}

#[test]
fn an_idle_transaction_ends_and_a_busy_one_does_not() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.idle_transaction = Some(Duration::from_secs(1));
    let mut stage = Stage::new(spec);
    let client = stage.client();
    let server = stage.server();
    stage.client_says(client, &message(b'Q', b"begin\0"));
    stage.now = Time::default() + Duration::from_secs(9);
    stage.core.tick(stage.now, &mut stage.io);
    stage.client_gets(client);
    stage.server_says(server, &message(b'Z', b"T"));
    stage.core.tick(stage.now + Duration::from_millis(500), &mut stage.io);
    assert_eq!(stage.client_gets(client), message(b'Z', b"T"));
    stage.server_gets(server);
    stage.core.tick(stage.now + Duration::from_millis(1100), &mut stage.io);
    assert!(memchr::memmem::find(&stage.client_gets(client), b"C25P03\0").is_some());
    assert_eq!(stage.server_gets(server), message(b'Q', b"ROLLBACK\0"), "the server lives");
}
