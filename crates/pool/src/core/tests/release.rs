//! What happens to a server between two clients, and to transactions that are not to be.

use std::time::Duration;

use super::{Stage, message};
use crate::{Check, ClientId, Limit, Mode, Peer, PoolSpec, Reset, ServerId};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn pair(spec: PoolSpec) -> (Stage, ClientId, ServerId) {
    let mut stage = Stage::new(spec);
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    (stage, client, server)
}

#[test]
fn statement_mode_refuses_a_transaction_in_words_that_programs_know() {
    let (mut stage, client, server) = pair(PoolSpec { mode: Mode::Statement, ..PoolSpec::new(1) });
    stage.client_says(client, &query("begin"));
    stage.server_gets(server);
    stage.server_says(server, &[message(b'C', b"BEGIN\0"), ready(b'T')].concat());
    let told = stage.client_gets(client);
    let text = b"C08P01\0Mtransaction blocks not allowed in statement pooling mode\0";
    assert!(memchr::memmem::find(&told, text).is_some());
    assert!(memchr::memmem::find(&told, &ready(b'T')).is_none(), "it never is ready in one");
    assert_eq!(stage.io.closed, [Peer::Client(client)], "the server lives");
    assert_eq!(stage.server_gets(server), query("ROLLBACK"));
}

#[test]
fn a_transaction_has_its_time() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.transaction = Some(Duration::from_millis(3500));
    let (mut stage, client, server) = pair(spec);
    stage.wait(10_000);
    for status in [b"T", b"T", b"I", b"T"] {
        stage.client_says(client, &query("select 1"));
        stage.wait(1000);
        stage.server_says(server, &message(b'Z', status));
    }
    stage.client_gets(client);
    stage.wait(2400);
    assert_eq!(stage.client_gets(client), b"", "another one began meanwhile");
    stage.wait(200);
    assert!(memchr::memmem::find(&stage.client_gets(client), b"C25P04\0").is_some());
    assert_eq!(stage.io.closed, [Peer::Client(client)]);
}

#[test]
fn the_reset_query_is_run_when_a_session_ends() {
    let reset = Reset { query: (*b"DISCARD ALL").into(), always: false };
    let mut spec = PoolSpec { mode: Mode::Session, reset: Some(reset), ..PoolSpec::new(1) };
    let (mut stage, client, server) = pair(spec.clone());
    stage.client_says(client, &query("listen x"));
    stage.server_says(server, &[message(b'C', b"LISTEN\0"), ready(b'I')].concat());
    stage.server_gets(server);
    stage.client_says(client, &message(b'X', b""));
    assert_eq!(stage.server_gets(server), query("DISCARD ALL"));
    stage.server_says(server, &[message(b'C', b"DISCARD ALL\0"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), b"", "which resets all");

    spec.server_limits = [Limit::new(1)].into();
    spec.greeting = std::sync::Arc::default();
    spec.reset = Some(Reset { query: [].into(), always: false });
    let (mut stage, client, server) = pair(spec);
    stage.client_says(client, &query("set work_mem = 1"));
    stage.server_says(server, &[message(b'C', b"SET\0"), ready(b'I')].concat());
    stage.server_gets(server);
    stage.client_says(client, &message(b'X', b""));
    assert_eq!(stage.server_gets(server), b"", "nothing is to be run");
}

#[test]
fn the_reset_query_may_be_for_every_transaction() {
    let reset = Reset { query: (*b"select reset()").into(), always: true };
    let (mut stage, client, server) = pair(PoolSpec { reset: Some(reset), ..PoolSpec::new(1) });
    stage.client_says(client, &query("call listens()"));
    stage.server_gets(server);
    stage.server_says(server, &[message(b'C', b"LISTEN\0"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), query("select reset()"));
    stage.server_says(server, &[message(b'C', b"SELECT 1\0"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), query("UNLISTEN *;"), "what is dirty is reset besides");
}

#[test]
fn a_server_that_was_idle_for_long_is_asked_first() {
    let check = Check { query: [].into(), idle: Duration::from_secs(30) };
    let (mut stage, client, server) = pair(PoolSpec { check: Some(check), ..PoolSpec::new(1) });
    stage.client_says(client, &query("select 1"));
    assert_eq!(stage.server_gets(server), query("select 1"));
    stage.server_says(server, &ready(b'I'));
    stage.wait(31_000);
    stage.client_says(client, &query("select 2"));
    assert_eq!(stage.server_gets(server), query(""));
    assert!(stage.io.opened.is_empty(), "it is worth waiting for");
    stage.server_says(server, &[message(b'I', b""), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), query("select 2"));
    stage.server_says(server, &ready(b'I'));

    stage.wait(31_000);
    stage.client_says(client, &query("select 3"));
    stage.wait(6000);
    assert_eq!(stage.io.closed, [Peer::Server(server)], "it does not answer");
    let fresh = stage.server();
    assert_eq!(stage.server_gets(fresh), query("select 3"));
}

#[test]
fn a_server_may_be_asked_before_every_client() {
    for (round_robin, always) in [(false, false), (true, false), (false, true), (true, true)] {
        let check = Some(Check { query: [].into(), idle: Duration::ZERO });
        let reset = Some(Reset { query: (*b"reset").into(), always });
        let spec = PoolSpec { check, reset, round_robin, ..PoolSpec::new(1) };
        let (mut stage, client, server) = pair(spec);
        for _ in 0..3 {
            stage.client_says(client, &query("select 1"));
            assert_eq!(stage.server_gets(server), query(""));
            stage.server_says(server, &[message(b'I', b""), ready(b'I')].concat());
            assert_eq!(stage.server_gets(server), query("select 1"));
            stage.server_says(server, &ready(b'I'));
            if always {
                assert_eq!(stage.server_gets(server), query("reset"));
                stage.server_says(server, &ready(b'I'));
            }
        }
    }
}

#[test]
fn what_was_asked_before_a_goodbye_is_done() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[query("insert"), message(b'X', b"")].concat());
    assert!(stage.io.cancels.is_empty(), "a server would have run it to its end");
    stage.server_says(server, &[message(b'C', b"INSERT 0 1\0"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), query("insert"));
    assert_eq!(stage.io.closed, [Peer::Client(client)]);
}
