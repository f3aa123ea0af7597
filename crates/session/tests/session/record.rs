//! Records a dialogue between a PostgreSQL server and this client, for the tests of the wire crate.

#![allow(clippy::disallowed_methods, reason = "a recorder writes files")]

use std::path::Path;

use crate::cluster::{PASSWORD, TestConnection, cluster};

/// Writes `crates/wire/testdata/*.bin`. Afterwards, `INSTA_UPDATE=always cargo test -p howdah-wire`
/// writes the corresponding snapshots.
#[test]
#[ignore = "writes files of the wire crate"]
fn record_sessions() {
    let cluster = cluster().expect("a server to record");
    record("scram", &conversation(TestConnection::open(cluster, "scram", Some(PASSWORD))));
    record("trust", &conversation(TestConnection::open(cluster, "postgres", None)));
}

/// A sample of every kind of request.
fn conversation(mut connection: TestConnection) -> TestConnection {
    connection.until("LoggedIn");
    let client = &mut connection.client;
    client.query(b"create temp table t (id int primary key, name text); listen news").unwrap();
    client.parse(b"s", b"insert into t values ($1, $2) returning *", &[23]).unwrap();
    client.describe_statement(b"s").unwrap();
    client.bind(b"p", b"s", [Some(&b"1"[..]), None]).unwrap();
    client.describe_portal(b"p").unwrap();
    client.execute(b"p", 0).unwrap();
    client.close_portal(b"p").unwrap();
    client.sync();
    client.bind(b"", b"s", [Some(&b"1"[..]), Some(b"twice")]).unwrap();
    client.execute(b"", 0).unwrap();
    client.sync();
    client.parse(b"", b"select generate_series(1, 3)", &[]).unwrap();
    client.bind(b"", b"", []).unwrap();
    client.execute(b"", 2).unwrap();
    client.flush();
    client.sync();
    client.parse(b"", b"", &[]).unwrap();
    client.describe_statement(b"").unwrap();
    client.bind(b"", b"", []).unwrap();
    client.execute(b"", 0).unwrap();
    client.sync();
    client.call_function(177, [Some(&b"40"[..]), Some(b"2")]).unwrap();
    client.query(b"notify news, 'hello'; do $$ begin raise warning 'beware'; end $$").unwrap();
    client.query(b"begin; copy t from stdin").unwrap();
    client.copy_data(b"2\tb\n").unwrap();
    client.copy_done();
    client.query(b"copy t to stdout").unwrap();
    client.query(b"copy t from stdin").unwrap();
    client.copy_fail(b"enough").unwrap();
    client.query(b"").unwrap();
    assert_eq!(connection.until_ready().last().unwrap(), "Ready Failed");
    connection.client.terminate();
    connection.flush();
    connection
}

fn record(name: &str, connection: &TestConnection) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/testdata");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(format!("{name}.frontend.bin")), &connection.sent).unwrap();
    std::fs::write(dir.join(format!("{name}.backend.bin")), &connection.received).unwrap();
}
