//! Tests of prepared statements of several clients on one server.

use super::{CoreHarness, message};
use crate::{PoolSpec, ServerId};

pub(super) fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

pub(super) fn bind(name: &str, value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    let values = [&[0, 0, 0, 1, 0, 0, 0, length][..], value.as_bytes(), &[0, 0]].concat();
    message(b'B', &[b"\0", name.as_bytes(), b"\0", &values].concat())
}

pub(super) fn sync() -> Vec<u8> {
    message(b'S', b"")
}

pub(super) fn reply_tags(harness: &mut CoreHarness, server: ServerId, tags: &str) {
    for tag in tags.bytes() {
        harness.send_from_server(server, &message(tag, if tag == b'Z' { b"I" } else { b"" }));
    }
}

#[test]
fn same_text_is_prepared_once_for_all_clients() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (a, b) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    for client in [a, b] {
        harness.sent_to_client(client);
    }

    harness.send_from_client(a, &[parse("mine", "select $1"), bind("mine", "x"), sync()].concat());
    let shared = [parse("howdah_1", "select $1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), shared);
    reply_tags(&mut harness, server, "12Z");
    harness.sent_to_client(a);

    harness
        .send_from_client(b, &[parse("yours", "select $1"), bind("yours", "y"), sync()].concat());
    assert_eq!(harness.sent_to_server(server), [bind("howdah_1", "y"), sync()].concat());
    reply_tags(&mut harness, server, "2Z");
    let received = [message(b'1', b""), message(b'2', b""), message(b'Z', b"I")].concat();
    assert_eq!(harness.sent_to_client(b), received, "the pooler answers the Parse, in order");
}

#[test]
fn missing_statements_are_prepared_and_excess_closed() {
    let mut spec = PoolSpec::new(1);
    spec.statements_per_server = 1;
    let mut harness = CoreHarness::new(spec);
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    harness.send_from_client(client, &[parse("a", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.send_from_client(client, &[parse("b", "select 2"), sync()].concat());
    harness.sent_to_server(server);
    reply_tags(&mut harness, server, "31Z");
    harness.sent_to_client(client);
    harness.send_from_client(client, &[bind("a", "x"), sync()].concat());
    let close = message(b'C', b"Showdah_2\0");
    let sent = [close, parse("howdah_1", "select 1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent);
    reply_tags(&mut harness, server, "312Z");
    assert_eq!(harness.sent_to_client(client), [message(b'2', b""), message(b'Z', b"I")].concat());
}

#[test]
fn duplicate_name_error_has_clients_name() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    harness.send_from_client(client, &[parse("s", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_server(server);
    harness.sent_to_client(client);
    harness.send_from_client(client, &[parse("s", "select 2"), sync()].concat());
    assert_eq!(harness.sent_to_server(server), [parse("howdah_1", "select 2"), sync()].concat());
    let error = b"SERROR\0VERROR\0C42P05\0Mprepared statement \"howdah_1\" already exists\0\0";
    harness.send_from_server(server, &message(b'E', error));
    reply_tags(&mut harness, server, "Z");
    let received = harness.sent_to_client(client);
    assert!(memchr::memmem::find(&received, b"prepared statement \"s\" already exists").is_some());
    assert!(memchr::memmem::find(&received, b"howdah_").is_none());
}

#[test]
fn unnamed_statement_is_restored_for_its_client() {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let (a, b) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    for (client, sql) in [(a, "select 1"), (b, "select 2")] {
        harness.send_from_client(client, &[parse("", sql), sync()].concat());
        reply_tags(&mut harness, server, "1Z");
        harness.sent_to_client(client);
    }
    harness.sent_to_server(server);
    harness.send_from_client(a, &[bind("", "x"), sync()].concat());
    let sent = [parse("", "select 1"), bind("", "x"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent, "not the other client's");
    reply_tags(&mut harness, server, "12Z");
    assert_eq!(harness.sent_to_client(a), [message(b'2', b""), message(b'Z', b"I")].concat());
}
