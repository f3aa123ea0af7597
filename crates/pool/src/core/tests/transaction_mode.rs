//! Linking and releasing, message by message.

use super::{Stage, message};
use crate::{Peer, PoolSpec};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn answer(row: &str, status: u8) -> Vec<u8> {
    let row = message(b'D', &[&[0, 1, 0, 0, 0, row.len() as u8], row.as_bytes()].concat());
    [row, message(b'C', b"SELECT 1\0"), message(b'Z', &[status])].concat()
}

#[test]
fn a_cold_pool_greets_when_its_first_server_is_there() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    assert_eq!(stage.client_gets(client), b"");
    assert_eq!(stage.io.paused, [Peer::Client(client)]);
    stage.server();
    assert!(stage.io.paused.is_empty());
    let greeting = stage.client_gets(client);
    assert!(greeting.starts_with(&message(b'S', b"server_version\x0015.0\0")));
    assert!(greeting.ends_with(&message(b'Z', b"I")));
}

#[test]
fn a_warm_transaction_is_two_sends() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    stage.io.sends = 0;
    stage.client_says(client, &query("select 1"));
    assert_eq!(stage.server_gets(server), query("select 1"));
    stage.server_says(server, &answer("1", b'I'));
    assert_eq!(stage.client_gets(client), answer("1", b'I'));
    assert_eq!(stage.io.sends, 2);
}

#[test]
fn a_transaction_keeps_its_server_and_others_wait_in_order() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (a, b, c) = (stage.client(), stage.client(), stage.client());
    let server = stage.server();
    for client in [a, b, c] {
        stage.client_gets(client);
        stage.client_says(client, &query(&format!("begin {client:?}")));
    }
    assert_eq!(stage.server_gets(server), query("begin c0.0"));
    assert_eq!(stage.io.paused, [Peer::Client(b), Peer::Client(c)]);
    stage.server_says(server, &answer("a", b'T'));
    assert_eq!(stage.server_gets(server), b"", "the transaction is open");
    stage.client_says(a, &query("commit"));
    stage.server_gets(server);
    stage.server_says(server, &answer("a", b'I'));
    assert_eq!(stage.client_gets(a), [answer("a", b'T'), answer("a", b'I')].concat());
    assert_eq!(stage.server_gets(server), query("begin c1.0"));
    stage.server_says(server, &answer("b", b'I'));
    assert_eq!(stage.client_gets(b), answer("b", b'I'));
    assert_eq!(stage.server_gets(server), query("begin c2.0"));
    assert!(stage.io.paused.is_empty());
    assert!(stage.io.opened.is_empty(), "the limit is one server");
}

#[test]
fn pieces_of_any_size_give_the_same_dialogue() {
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
        let mut stage = Stage::new(PoolSpec::new(1));
        let client = stage.client();
        let server = stage.server();
        stage.client_gets(client);
        for _ in 0..2 {
            batch.chunks(step).for_each(|piece| stage.client_says(client, piece));
            assert_eq!(stage.server_gets(server), batch, "in pieces of {step}");
            reply.chunks(step).for_each(|piece| stage.server_says(server, piece));
            assert_eq!(stage.client_gets(client), reply, "in pieces of {step}");
            assert!(stage.core.servers.get(server).unwrap().is_settled());
        }
    }
}

#[test]
fn a_client_that_takes_nothing_stops_its_server() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    stage.io.stuck.push(Peer::Client(client));
    stage.client_says(client, &query("select 1"));
    stage.server_says(server, &message(b'D', b"row"));
    assert_eq!(stage.io.paused, [Peer::Client(client), Peer::Server(server)]);
    stage.io.stuck.clear();
    stage.core.drained(Peer::Client(client), stage.now, &mut stage.io);
    assert!(stage.io.paused.is_empty());
}

#[test]
fn a_vanished_client_is_rolled_back() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (client, next) = (stage.client(), stage.client());
    let server = stage.server();
    stage.client_says(client, &query("begin"));
    stage.server_says(server, &answer("", b'T'));
    stage.client_says(client, &query("select slow"));
    stage.client_says(next, &query("select 2"));
    stage.server_gets(server);
    stage.core.client_closed(client, stage.now, &mut stage.io);
    assert_eq!(stage.io.cancels.len(), 1, "nobody waits for the answer");
    stage.server_says(server, &answer("slow", b'T'));
    assert_eq!(stage.server_gets(server), query("ROLLBACK"));
    stage.server_says(server, &answer("", b'I'));
    assert_eq!(stage.server_gets(server), b"", "a cancel is under way, it would hit the next");
    stage.core.cancel_finished(server, stage.now, &mut stage.io);
    assert_eq!(stage.server_gets(server), query("select 2"));
    stage.client_gets(next);
    stage.server_says(server, &answer("2", b'I'));
    assert_eq!(stage.client_gets(next), answer("2", b'I'));
}
