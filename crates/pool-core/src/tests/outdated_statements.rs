//! Tests of servers that reject, or have dropped, a statement that the pooler believes to be
//! prepared.

use super::{
    CoreHarness, message,
    statements::{bind, parse, reply_tags, sync},
};
use crate::{ClientId, PoolSpec, ServerId};

fn describe(what: &str) -> Vec<u8> {
    message(b'D', format!("{what}\0").as_bytes())
}

fn execute() -> Vec<u8> {
    message(b'E', b"\0\0\0\0\0")
}

fn run(name: &str) -> Vec<u8> {
    [bind(name, "x"), describe("P"), execute(), sync()].concat()
}

fn refused(sqlstate: &str) -> Vec<u8> {
    let text = format!("SERROR\0VERROR\0C{sqlstate}\0Mcached plan must not change result type\0\0");
    message(b'E', text.as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

/// Creates a client that has prepared `s`, which is `howdah_1` on its server.
fn prepared() -> (CoreHarness, ClientId, ServerId) {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    harness.send_from_client(client, &[parse("s", "table t"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_client(client);
    harness.sent_to_server(server);
    (harness, client, server)
}

fn renewed() -> Vec<u8> {
    [message(b'C', b"Showdah_1\0"), parse("howdah_1", "table t"), run("howdah_1")].concat()
}

#[test]
fn changed_result_type_is_reparsed_without_an_error() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &run("s"));
    assert_eq!(harness.sent_to_server(server), run("howdah_1"));
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), renewed());
    assert_eq!(harness.sent_to_client(client), b"");
    reply_tags(&mut harness, server, "312nDCZ");
    let received: Vec<u8> =
        harness.sent_to_client(client).chunks(5).map(|message| message[0]).collect();
    assert!(received.starts_with(b"2nDC"), "{}", received.escape_ascii());
    harness.send_from_client(client, &run("s"));
    assert_eq!(harness.sent_to_server(server), run("howdah_1"), "the statement works again");
}

#[test]
fn statement_parsed_in_same_batch_is_retried() {
    let (mut harness, _, server) = prepared();
    let next = harness.client();
    harness.sent_to_client(next);
    harness.send_from_client(
        next,
        &[parse("n", "table t"), bind("n", "x"), execute(), sync()].concat(),
    );
    harness.sent_to_server(server);
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    let again = [bind("howdah_1", "x"), execute(), sync()].concat();
    assert!(harness.sent_to_server(server).ends_with(&again));
    assert_eq!(
        harness.sent_to_client(next),
        message(b'1', b""),
        "the pooler has answered the Parse"
    );
}

#[test]
fn client_without_describe_gets_the_error() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &[bind("s", "x"), execute(), sync()].concat());
    harness.sent_to_server(server);
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_client(client), [refused("0A000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), b"");
    harness.send_from_client(client, &[parse("s2", "table t"), sync()].concat());
    let sent = [parse("howdah_2", "table t"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent, "prepared again, it is a new statement");
}

#[test]
fn error_in_transaction_is_forwarded() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &message(b'Q', b"begin\0"));
    harness.send_from_server(server, &ready(b'T'));
    harness.send_from_client(client, &run("s"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[refused("0A000"), ready(b'E')].concat());
    assert!(harness.sent_to_client(client).ends_with(&[refused("0A000"), ready(b'E')].concat()));
    assert_eq!(harness.sent_to_server(server), b"");
}

#[test]
fn batch_is_retried_once() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &run("s"));
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    harness.sent_to_server(server);
    reply_tags(&mut harness, server, "31");
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_client(client), [refused("0A000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), b"");
}

#[test]
fn batch_that_has_executed_something_is_not_retried() {
    let (mut harness, client, server) = prepared();
    let first = [parse("", "insert"), bind("", "x"), execute()].concat();
    harness.send_from_client(client, &[first, run("s")].concat());
    harness.sent_to_server(server);
    reply_tags(&mut harness, server, "12C");
    harness.send_from_server(server, &[refused("0A000"), ready(b'I')].concat());
    assert!(harness.sent_to_client(client).ends_with(&[refused("0A000"), ready(b'I')].concat()));
    assert_eq!(harness.sent_to_server(server), b"");
}

#[test]
fn statement_deallocated_by_function_is_prepared_again() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &run("s"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[refused("26000"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), renewed());
    assert_eq!(harness.sent_to_client(client), b"");
}

#[test]
fn missing_statement_error_has_clients_name() {
    let (mut harness, client, server) = prepared();
    harness.send_from_client(client, &[bind("s", "x"), execute(), sync()].concat());
    harness.sent_to_server(server);
    harness.send_from_server(server, &[refused("26000"), ready(b'I')].concat());
    let received = harness.sent_to_client(client);
    assert!(memchr::memmem::find(&received, b"prepared statement \"s\" does not exist").is_some());
    harness.send_from_client(client, &run("s"));
    let sent = [parse("howdah_1", "table t"), run("howdah_1")].concat();
    assert_eq!(harness.sent_to_server(server), sent);
}

#[test]
fn prepared_deallocate_drops_shared_statement() {
    let (mut harness, client, server) = prepared();
    let batch = |sql: &str| [parse("", sql), bind("", "x"), execute(), sync()].concat();
    harness.send_from_client(client, &batch("DEALLOCATE s"));
    assert_eq!(harness.sent_to_server(server), batch("DEALLOCATE howdah_1"));
    reply_tags(&mut harness, server, "12");
    harness.send_from_server(server, &[message(b'C', b"DEALLOCATE\0"), ready(b'I')].concat());
    harness.send_from_client(client, &[bind("s", "x"), sync()].concat());
    assert_eq!(
        harness.sent_to_server(server),
        [bind("s", "x"), sync()].concat(),
        "neither client nor server has it"
    );
}
