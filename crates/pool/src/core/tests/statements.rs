//! Prepared statements of several clients on one server.

use super::{Stage, message};
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

pub(super) fn says(stage: &mut Stage, server: ServerId, tags: &str) {
    for tag in tags.bytes() {
        stage.server_says(server, &message(tag, if tag == b'Z' { b"I" } else { b"" }));
    }
}

#[test]
fn one_text_is_prepared_once_whoever_names_it() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (a, b) = (stage.client(), stage.client());
    let server = stage.server();
    for client in [a, b] {
        stage.client_gets(client);
    }

    stage.client_says(a, &[parse("mine", "select $1"), bind("mine", "x"), sync()].concat());
    let shared = [parse("howdah_1", "select $1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(stage.server_gets(server), shared);
    says(&mut stage, server, "12Z");
    stage.client_gets(a);

    stage.client_says(b, &[parse("yours", "select $1"), bind("yours", "y"), sync()].concat());
    assert_eq!(stage.server_gets(server), [bind("howdah_1", "y"), sync()].concat());
    says(&mut stage, server, "2Z");
    let told = [message(b'1', b""), message(b'2', b""), message(b'Z', b"I")].concat();
    assert_eq!(stage.client_gets(b), told, "the pooler answers the Parse, in its place");
}

#[test]
fn what_the_server_lacks_is_prepared_in_passing_and_what_is_too_much_is_closed() {
    let mut spec = PoolSpec::new(1);
    spec.statements_per_server = 1;
    let mut stage = Stage::new(spec);
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    stage.client_says(client, &[parse("a", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.client_says(client, &[parse("b", "select 2"), sync()].concat());
    stage.server_gets(server);
    says(&mut stage, server, "31Z");
    stage.client_gets(client);
    stage.client_says(client, &[bind("a", "x"), sync()].concat());
    let close = message(b'C', b"Showdah_2\0");
    let sent = [close, parse("howdah_1", "select 1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent);
    says(&mut stage, server, "312Z");
    assert_eq!(stage.client_gets(client), [message(b'2', b""), message(b'Z', b"I")].concat());
}

#[test]
fn a_name_used_again_is_refused_by_the_server_in_the_clients_words() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    stage.client_says(client, &[parse("s", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.server_gets(server);
    stage.client_gets(client);
    stage.client_says(client, &[parse("s", "select 2"), sync()].concat());
    assert_eq!(stage.server_gets(server), [parse("howdah_1", "select 2"), sync()].concat());
    let error = b"SERROR\0VERROR\0C42P05\0Mprepared statement \"howdah_1\" already exists\0\0";
    stage.server_says(server, &message(b'E', error));
    says(&mut stage, server, "Z");
    let told = stage.client_gets(client);
    assert!(memchr::memmem::find(&told, b"prepared statement \"s\" already exists").is_some());
    assert!(memchr::memmem::find(&told, b"howdah_").is_none());
}

#[test]
fn an_unnamed_statement_follows_its_client() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (a, b) = (stage.client(), stage.client());
    let server = stage.server();
    for (client, sql) in [(a, "select 1"), (b, "select 2")] {
        stage.client_says(client, &[parse("", sql), sync()].concat());
        says(&mut stage, server, "1Z");
        stage.client_gets(client);
    }
    stage.server_gets(server);
    stage.client_says(a, &[bind("", "x"), sync()].concat());
    let sent = [parse("", "select 1"), bind("", "x"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent, "and not the other's");
    says(&mut stage, server, "12Z");
    assert_eq!(stage.client_gets(a), [message(b'2', b""), message(b'Z', b"I")].concat());
}
