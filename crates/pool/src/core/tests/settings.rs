//! Settings that go with a client, and what is left behind.

use std::sync::Arc;

use howdah_wire::{
    Frame,
    frontend::{Message, encode},
};
use proptest::prelude::*;

use super::{Stage, message};
use crate::{ClientId, ConnectQuery, Peer, PoolSpec, ServerId, Setting};

/// A name and a value.
type Pair = (Vec<u8>, Vec<u8>);

/// The settings in what was sent to a server, and what follows their Sync.
fn settings(sent: &[u8]) -> (Vec<Pair>, &[u8]) {
    let (mut found, mut rest) = (Vec::new(), sent);
    while let Some((frame, later)) = Frame::split(rest, 1 << 20).unwrap() {
        match Message::parse(frame).unwrap() {
            Message::Bind(bind) => {
                let mut values = bind.values.map(|value| value.unwrap().to_vec());
                found.push((values.next().unwrap(), values.next().unwrap()));
            }
            Message::Sync => return (found, later),
            Message::Parse(_) | Message::Execute { .. } => {}
            _ => break,
        }
        rest = later;
    }
    (found, rest)
}

/// What a server answers to one setting.
fn accepted(name: &str, value: &str) -> Vec<u8> {
    let report = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
    let row = message(b'D', b"\0\0");
    let done = [row, message(b'C', b"SELECT 1\0")].concat();
    [message(b'2', b""), done, message(b'S', &report), message(b'Z', b"I")].concat()
}

fn query(stage: &mut Stage, client: ClientId, server: ServerId) -> Vec<u8> {
    stage.client_says(client, &message(b'Q', b"select 1\0"));
    stage.server_gets(server)
}

#[test]
fn settings_are_proven_alone_and_then_go_with_the_request() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let (plain, zoned) = (stage.client(), stage.client_with(vec![Setting::new("timezone", "cet")]));
    let server = stage.server();
    stage.client_gets(zoned);

    let sent = query(&mut stage, zoned, server);
    let (found, rest) = settings(&sent);
    assert_eq!(found, [(b"TimeZone".to_vec(), b"cet".to_vec())]);
    assert_eq!(rest, b"", "it might be refused, and then nothing may have run");
    let parsed = message(b'1', b"");
    stage.server_says(server, &[parsed, accepted("TimeZone", "CET")].concat());
    assert_eq!(stage.server_gets(server), message(b'Q', b"select 1\0"));
    stage.server_says(server, &message(b'Z', b"I"));
    assert_eq!(stage.client_gets(zoned), message(b'Z', b"I"), "nothing else was for the client");

    let sent = query(&mut stage, zoned, server);
    assert_eq!(sent, message(b'Q', b"select 1\0"), "it is CET there, which is what cet means");
    stage.server_says(server, &message(b'Z', b"I"));

    let sent = query(&mut stage, plain, server);
    let (found, rest) = settings(&sent);
    assert_eq!(found, [(b"TimeZone".to_vec(), b"UTC".to_vec())]);
    assert_eq!(rest, message(b'Q', b"select 1\0"), "in the same write");
    stage.client_gets(plain);
    stage.server_says(server, &[accepted("TimeZone", "UTC"), message(b'Z', b"I")].concat());
    assert_eq!(stage.client_gets(plain), message(b'Z', b"I"));
}

#[test]
fn a_setting_that_is_refused_ends_the_client_before_anything_ran() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client_with(vec![Setting::new("work_mem", "a lot")]);
    let server = stage.server();
    stage.client_gets(client);
    query(&mut stage, client, server);
    let error = b"SERROR\0VERROR\0C22023\0Minvalid value for parameter\0\0";
    stage.server_says(server, &[message(b'1', b""), message(b'E', error)].concat());
    let told = stage.client_gets(client);
    assert!(memchr::memmem::find(&told, b"VFATAL\0C22023\0Minvalid value").is_some());
    assert_eq!(stage.io.closed.len(), 2);
}

#[test]
fn only_what_is_dirty_is_reset_and_the_client_does_not_wait_for_it() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    let run = |stage: &mut Stage, sql: &str, tag: &str| {
        let mut buf = Vec::new();
        encode::query(&mut buf, sql.as_bytes()).unwrap();
        stage.client_says(client, &buf);
        stage.server_gets(server);
        let tag = message(b'C', &[tag.as_bytes(), b"\0"].concat());
        stage.client_gets(client);
        stage.server_says(server, &[tag, message(b'Z', b"I")].concat());
        assert!(stage.client_gets(client).ends_with(&message(b'Z', b"I")));
        let reset = stage.server_gets(server);
        if !reset.is_empty() {
            stage.server_says(server, &message(b'Z', b"I"));
        }
        String::from_utf8_lossy(reset.get(5..).unwrap_or_default())
            .trim_end_matches('\0')
            .to_owned()
    };
    assert_eq!(run(&mut stage, "select 1", "SELECT 1"), "");
    assert_eq!(run(&mut stage, "set local work_mem = 1", "SET"), "");
    assert_eq!(run(&mut stage, "set timezone = 'CET'", "SET"), "", "it is reported and carried");
    assert_eq!(
        run(&mut stage, "set work_mem = 1", "SET"),
        "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;"
    );
    assert_eq!(run(&mut stage, "call listens()", "LISTEN"), "UNLISTEN *;");
    assert_eq!(
        run(&mut stage, "select pg_advisory_lock(1)", "SELECT 1"),
        "SELECT pg_catalog.pg_advisory_unlock_all();"
    );
    assert_eq!(run(&mut stage, "create temp table t ()", "CREATE TABLE"), "DISCARD TEMP;");
}

proptest! {
    /// Nothing in a value is taken for anything but a value.
    #[test]
    fn hostile_values_arrive_as_they_are(value in proptest::collection::vec(1u8.., 0..200)) {
        let mut stage = Stage::new(PoolSpec::new(1));
        let client = stage.client_with(vec![Setting::new("application_name", &value)]);
        let server = stage.server();
        let sent = query(&mut stage, client, server);
        let (found, rest) = settings(&sent);
        prop_assert_eq!(found, [(b"application_name".to_vec(), value)]);
        prop_assert_eq!(rest, b"");
    }
}

/// A client that began with a zone of its own, on a server that is not in that zone by itself.
fn zoned() -> (Stage, ClientId, ServerId) {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client_with(vec![Setting::new("TimeZone", "CET")]);
    let server = stage.server();
    query(&mut stage, client, server);
    stage.server_says(server, &[message(b'1', b""), accepted("TimeZone", "CET")].concat());
    stage.server_says(server, &message(b'Z', b"I"));
    stage.client_gets(client);
    stage.server_gets(server);
    (stage, client, server)
}

fn report(value: &str) -> Vec<u8> {
    message(b'S', &[b"TimeZone\0", value.as_bytes(), b"\0"].concat())
}

#[test]
fn reset_leads_to_what_the_client_began_with() {
    for (sql, tag) in [("reset all", "RESET"), ("set timezone to default", "SET")] {
        let (mut stage, client, server) = zoned();
        stage.client_says(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        stage.server_gets(server);
        let done = message(b'C', format!("{tag}\0").as_bytes());
        let ready = message(b'Z', b"I");
        stage.server_says(server, &[done.clone(), report("UTC"), ready.clone()].concat());
        let sent = stage.server_gets(server);
        let (found, rest) = settings(&sent);
        assert_eq!(found, [(b"TimeZone".to_vec(), b"CET".to_vec())]);
        assert_eq!(rest, b"");
        assert_eq!(stage.client_gets(client), done, "it is not ready yet, and not in UTC");
        stage.server_says(server, &accepted("TimeZone", "CET"));
        assert_eq!(stage.client_gets(client), [report("CET"), ready].concat());
    }
}

#[test]
fn a_reset_that_failed_changes_nothing() {
    let (mut stage, client, server) = zoned();
    stage.client_says(client, &message(b'Q', b"reset all; boom\0"));
    stage.server_gets(server);
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Mno\0\0");
    stage.server_says(server, &message(b'C', b"RESET\0"));
    stage.server_says(server, &[error, message(b'Z', b"I")].concat());
    assert!(stage.client_gets(client).ends_with(&message(b'Z', b"I")));
    assert_eq!(stage.server_gets(server), b"");
}

#[test]
fn what_comes_behind_a_reset_finds_it_done() {
    let (mut stage, client, server) = zoned();
    let (reset, next) = (message(b'Q', b"reset all\0"), message(b'Q', b"select 1\0"));
    stage.client_says(client, &[reset.clone(), next.clone()].concat());
    assert_eq!(stage.server_gets(server), reset);
    let done = [message(b'C', b"RESET\0"), report("UTC"), message(b'Z', b"I")].concat();
    stage.server_says(server, &done);
    assert!(settings(&stage.server_gets(server)).1.is_empty());
    stage.server_says(server, &accepted("TimeZone", "CET"));
    assert_eq!(stage.server_gets(server), next);
}

#[test]
fn what_comes_behind_a_discard_is_still_reset() {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    let lock = message(b'Q', b"select pg_advisory_lock(1)\0");
    stage.client_says(client, &[message(b'Q', b"discard all\0"), lock].concat());
    stage.server_gets(server);
    let ready = message(b'Z', b"I");
    stage.server_says(server, &[message(b'C', b"DISCARD ALL\0"), ready.clone()].concat());
    stage.server_says(server, &[message(b'C', b"SELECT 1\0"), ready].concat());
    let reset = message(b'Q', b"SELECT pg_catalog.pg_advisory_unlock_all();\0");
    assert_eq!(stage.server_gets(server), reset);
}

#[test]
fn discard_all_prepares_the_setter_again() {
    let (mut stage, client, server) = zoned();
    stage.client_says(client, &message(b'Q', b"discard all\0"));
    stage.server_gets(server);
    let done = [message(b'C', b"DISCARD ALL\0"), report("UTC"), message(b'Z', b"I")].concat();
    stage.server_says(server, &done);
    assert_eq!(stage.server_gets(server)[0], b'P');
}

fn with_connect_query(query: &str) -> (Stage, ClientId, ServerId) {
    let connect_query = Some(Arc::new(ConnectQuery::new(query)));
    let mut stage = Stage::new(PoolSpec { connect_query, ..PoolSpec::new(1) });
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    (stage, client, server)
}

#[test]
fn connect_query_follows_a_reset_in_the_same_write_before_the_next_client() {
    let (mut stage, client, server) = with_connect_query("set role alice");
    let next = stage.client();
    let (set, select) = (message(b'Q', b"set work_mem = 1\0"), message(b'Q', b"select 1\0"));
    stage.client_says(client, &set);
    stage.client_says(next, &select);
    stage.server_gets(server);
    let sends = stage.io.sends;
    stage.server_says(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    let reset = message(b'Q', b"SET SESSION AUTHORIZATION DEFAULT;RESET ALL;\0");
    assert_eq!(stage.server_gets(server), [reset, message(b'Q', b"set role alice\0")].concat());
    assert_eq!(stage.io.sends, sends + 2, "one to the client, one to the server");
    stage.server_says(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    assert_eq!(stage.server_gets(server), b"", "nobody comes between them");
    stage.server_says(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    assert_eq!(stage.server_gets(server), select);
}

#[test]
fn server_is_closed_instead_of_reset_if_its_connect_query_cannot_be_repeated() {
    let (mut stage, client, server) = with_connect_query("create temp table t ()");
    stage.client_says(client, &message(b'Q', b"set work_mem = 1\0"));
    stage.server_says(server, &[message(b'C', b"SET\0"), message(b'Z', b"I")].concat());
    assert!(stage.io.closed.contains(&Peer::Server(server)));
}

#[test]
fn server_whose_connect_query_fails_after_a_reset_is_closed() {
    let (mut stage, client, server) = with_connect_query("set role alice");
    stage.client_says(client, &message(b'Q', b"reset role\0"));
    stage.server_says(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    stage.server_says(server, &[message(b'C', b"RESET\0"), message(b'Z', b"I")].concat());
    assert!(stage.io.closed.is_empty());
    let error = b"SERROR\0VERROR\0C22023\0Mrole \"alice\" does not exist\0\0";
    stage.server_says(server, &message(b'E', error));
    assert_eq!(stage.io.closed, [Peer::Server(server)]);
}
