//! During shutdown: refused clients, served clients, and the console.

use std::{
    io::ErrorKind,
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectError};
use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, connect, start_pooler_with};

/// A pooler with a unix socket and a takeover socket in this folder.
fn fixture(test: &str, folder: &Path) -> Option<PoolFixture> {
    let mut fixture = PoolFixture::start(test, "")?;
    fixture.pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         sizes = {{ pool = 1 }}\n\
         [pool.listen]\nport = 0\nunix-directories = ['{folder}']\ntakeover = '{folder}/takeover'\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        fixture.server.port(),
        folder = folder.display(),
    ));
    Some(fixture)
}

fn connect_by_unix_socket(
    fixture: &PoolFixture,
    folder: &Path,
    database: &str,
) -> Result<Client, ConnectError> {
    let (host, port) = (folder.display(), fixture.address().port());
    connect(&format!("host={host} port={port} user=postgres dbname={database} connect_timeout=60"))
}

/// Waits until the kernel refuses connections.
fn wait_until_refused(fixture: &PoolFixture) {
    wait_until("connections to be refused", WAIT_TIMEOUT, || {
        let error = TcpStream::connect(fixture.address()).err();
        error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
}

fn begin_transaction(fixture: &PoolFixture) -> RawClient {
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("begin");
    raw.read_until(b'Z');
    raw
}

#[test]
fn drain_refuses_tcp_but_not_console() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fixture) = fixture("drains", folder.path()) else { return };
    let mut busy = begin_transaction(&fixture);
    let mut console = connect_by_unix_socket(&fixture, folder.path(), "pgbouncer").unwrap();
    fixture.pooler.drain();
    wait_until_refused(&fixture);
    // The other worker has ended or ends soon; none of these commands waits for it.
    let began = Instant::now();
    for _ in 0..20 {
        console.query("show clients").unwrap();
        let mut other = connect_by_unix_socket(&fixture, folder.path(), "pgbouncer").unwrap();
        other.query("show pools").unwrap();
    }
    // Without that, each would take ten seconds.
    assert!(began.elapsed() < Duration::from_secs(60));
    let refused = connect_by_unix_socket(&fixture, folder.path(), "postgres").unwrap_err();
    assert_eq!(refused.sqlstate(), Some("57P03"), "{refused}");
    assert!(!fixture.pooler.is_finished());
    busy.send_query("commit");
    busy.read_until(b'C');
    assert!(busy.is_disconnected());
    fixture.pooler.shutdown_waiter().unwrap().wait();
}

#[test]
fn wait_for_clients_serves_clients_until_they_disconnect() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fixture) = fixture("waits", folder.path()) else { return };
    let mut client = RawClient::log_in(fixture.address());
    fixture.pooler.wait_for_clients();
    wait_until_refused(&fixture);
    client.send_query("select 1");
    client.read_until(b'Z');
    assert!(!fixture.pooler.is_finished());
    drop(client);
    fixture.pooler.shutdown_waiter().unwrap().wait();
}

#[test]
fn drain_disconnects_clients_that_wait_for_server() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fixture) = fixture("sends away", folder.path()) else { return };
    let mut waiting = RawClient::log_in(fixture.address());
    let mut busy = begin_transaction(&fixture);
    waiting.send_query("select 1");
    let is_waiting = || {
        let view = fixture.pooler.control().snapshot(false);
        view.pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 1
    };
    wait_until("the client to wait for the server", WAIT_TIMEOUT, is_waiting);
    fixture.pooler.drain();
    let received = waiting.read_until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&received, b"C57P01\0").is_some(), "{}", received.escape_ascii());
    assert!(waiting.is_disconnected());
    assert!(!fixture.pooler.is_finished(), "the other is in a transaction");
    busy.send_query("commit");
    busy.read_until(b'C');
    fixture.pooler.shutdown_waiter().unwrap().wait();
}
