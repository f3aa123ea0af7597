//! Tests of pipelined requests whose meaning depends on replies that have not arrived.

use super::{
    CoreHarness, message,
    statements::{bind, parse, reply_tags, sync},
};
use crate::{ClientId, PoolSpec, ServerId};

fn close(name: &str) -> Vec<u8> {
    message(b'C', format!("S{name}\0").as_bytes())
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn error(sqlstate: &str) -> Vec<u8> {
    message(b'E', format!("SERROR\0VERROR\0C{sqlstate}\0Mno\0\0").as_bytes())
}

/// Creates a client and its only server, before any request.
fn client_and_server(spec: PoolSpec) -> (CoreHarness, ClientId, ServerId) {
    let mut harness = CoreHarness::new(spec);
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    (harness, client, server)
}

#[test]
fn use_of_name_waits_for_parse_that_may_fail() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    let (bad, use_it) = ([parse("s", "wrong"), sync()].concat(), [bind("s", "x"), sync()].concat());
    harness.send_from_client(client, &[bad, use_it].concat());
    assert_eq!(harness.sent_to_server(server), [parse("howdah_1", "wrong"), sync()].concat());
    harness.send_from_server(server, &[error("42601"), message(b'Z', b"I")].concat());
    // The client's own name is sent to the server, so that the error contains it.
    assert_eq!(harness.sent_to_server(server), [bind("s", "x"), sync()].concat());
}

#[test]
fn same_text_is_parsed_again_after_failed_parse() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(
        client,
        &[parse("a", "wrong"), sync(), parse("b", "wrong"), sync()].concat(),
    );
    assert_eq!(harness.sent_to_server(server), [parse("howdah_1", "wrong"), sync()].concat());
    harness.send_from_server(server, &[error("42601"), message(b'Z', b"I")].concat());
    assert_eq!(harness.sent_to_server(server), [parse("howdah_2", "wrong"), sync()].concat());
}

#[test]
fn bind_in_same_batch_does_not_wait_for_parse() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("s", "select $1"), bind("s", "x"), sync()].concat());
    let sent = [parse("howdah_1", "select $1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent);
}

#[test]
fn skipped_parse_keeps_previous_unnamed_statement() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_server(server);
    let batch = [bind("none", "x"), parse("", "select 2"), sync()].concat();
    harness.send_from_client(client, &[batch, [bind("", "x"), sync()].concat()].concat());
    harness.sent_to_server(server);
    harness.send_from_server(server, &[error("26000"), message(b'Z', b"I")].concat());
    let sent = [parse("", "select 1"), bind("", "x"), sync()].concat();
    assert_eq!(
        harness.sent_to_server(server),
        sent,
        "the server may have another unnamed statement"
    );
}

#[test]
fn query_answered_by_pooler_drops_unnamed_statement() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &query("begin"));
    harness.send_from_server(server, &message(b'Z', b"T"));
    let batch = [parse("s", "select 1"), parse("", "select 2"), sync()].concat();
    harness.send_from_client(client, &batch);
    harness.sent_to_server(server);
    reply_tags(&mut harness, server, "11");
    harness.send_from_server(server, &message(b'Z', b"T"));
    harness.send_from_client(client, &query("deallocate s"));
    assert_eq!(harness.sent_to_server(server), b"");
    harness.send_from_client(client, &[bind("", "x"), sync()].concat());
    assert_eq!(harness.sent_to_server(server), [close(""), bind("", "x"), sync()].concat());
}

#[test]
fn deallocate_in_batch_waits_for_it_and_ends_it() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("s", "select 1"), query("deallocate s")].concat());
    let flush = message(b'H', b"");
    assert_eq!(harness.sent_to_server(server), [parse("howdah_1", "select 1"), flush].concat());
    reply_tags(&mut harness, server, "1");
    assert_eq!(harness.sent_to_server(server), sync());
    reply_tags(&mut harness, server, "Z");
    let received =
        [message(b'1', b""), message(b'C', b"DEALLOCATE\0"), message(b'Z', b"I")].concat();
    assert_eq!(harness.sent_to_client(client), received);
}

#[test]
fn name_with_skipped_close_can_be_deallocated() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("s", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_client(client);
    let batch = [bind("none", "x"), close("s"), sync()].concat();
    harness.send_from_client(client, &[batch, query("deallocate s")].concat());
    harness.send_from_server(server, &[error("26000"), message(b'Z', b"I")].concat());
    let received = harness.sent_to_client(client);
    let done = [message(b'C', b"DEALLOCATE\0"), message(b'Z', b"I")].concat();
    assert!(received.ends_with(&done));
}

#[test]
fn statement_with_pending_parse_is_not_evicted() {
    let mut spec = PoolSpec::new(1);
    spec.statements_per_server = 1;
    let (mut harness, client, server) = client_and_server(spec);
    let later = [parse("b", "select 2"), sync()].concat();
    harness.send_from_client(client, &[parse("a", "wrong"), sync(), later].concat());
    let sent = [parse("howdah_1", "wrong"), sync(), parse("howdah_2", "select 2"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent);
}

#[test]
fn bind_after_deallocate_all_waits_for_its_reply() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("s", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_server(server);
    let all = query("select 1; deallocate all");
    harness.send_from_client(client, &[all.clone(), bind("s", "x"), sync()].concat());
    assert_eq!(harness.sent_to_server(server), all);
    harness.send_from_server(server, &message(b'C', b"DEALLOCATE ALL\0"));
    reply_tags(&mut harness, server, "Z");
    assert_eq!(harness.sent_to_server(server), [bind("s", "x"), sync()].concat());
}

#[test]
fn shared_parse_goes_to_server_if_transaction_may_have_failed() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    harness.send_from_client(client, &[parse("a", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.sent_to_server(server);
    harness
        .send_from_client(client, &[query("begin; boom"), parse("b", "select 1"), sync()].concat());
    let sent = [query("begin; boom"), parse("", "select 1"), sync()].concat();
    assert_eq!(harness.sent_to_server(server), sent, "only the server knows");
}

#[test]
fn duplicate_name_after_failed_transaction_is_rejected() {
    let (mut harness, client, server) = client_and_server(PoolSpec::new(1));
    let other = harness.client();
    harness.send_from_client(client, &[parse("s", "select 1"), sync()].concat());
    reply_tags(&mut harness, server, "1Z");
    harness.send_from_client(other, &query("deallocate all"));
    harness.send_from_server(server, &message(b'C', b"DEALLOCATE ALL\0"));
    reply_tags(&mut harness, server, "Z");
    harness.send_from_client(client, &query("begin; boom"));
    harness.send_from_server(server, &[error("42601"), message(b'Z', b"E")].concat());
    harness.sent_to_server(server);
    harness.send_from_client(client, &[query("rollback"), parse("s", "select 2"), sync()].concat());
    assert_eq!(
        harness.sent_to_server(server),
        query("rollback"),
        "whether the server accepts a Parse depends on the reply"
    );
    harness.send_from_server(server, &message(b'C', b"ROLLBACK\0"));
    reply_tags(&mut harness, server, "Z");
    let missing = parse("howdah_1", "select 1");
    let sent = [missing, parse("howdah_1", "select 2"), sync()].concat();
    assert_eq!(
        harness.sent_to_server(server),
        sent,
        "otherwise the server would accept the second text"
    );
}
