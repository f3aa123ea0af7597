//! While a pooler shuts down: who is refused, who is served, and what its console says.

use std::{
    io::ErrorKind,
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectError};

use crate::support::{Raw, Stage, connect, pooler_of};

/// A pooler with a unix socket in this folder, and with a way to take over from it.
fn stage(test: &str, folder: &Path) -> Option<Stage> {
    let mut stage = Stage::set(test, "")?;
    stage.pooler = pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         sizes = {{ pool = 1 }}\n\
         [pool.listen]\nport = 0\nunix-directories = ['{folder}']\ntakeover = '{folder}/takeover'\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        stage.server.port(),
        folder = folder.display(),
    ));
    Some(stage)
}

fn by_unix_socket(stage: &Stage, folder: &Path, database: &str) -> Result<Client, ConnectError> {
    let (host, port) = (folder.display(), stage.address().port());
    connect(&format!("host={host} port={port} user=postgres dbname={database} connect_timeout=60"))
}

/// Waits until the kernel refuses connections.
fn until_refused(stage: &Stage) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpStream::connect(stage.address()) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            _ => assert!(Instant::now() < deadline, "connections are not refused"),
        }
    }
}

fn in_transaction(stage: &Stage) -> Raw {
    let mut raw = Raw::log_in(stage.address());
    raw.query("begin");
    raw.until(b'Z');
    raw
}

#[test]
fn tcp_is_refused_and_the_console_answers_at_once_while_transactions_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(stage) = stage("drains", folder.path()) else { return };
    let mut busy = in_transaction(&stage);
    let mut console = by_unix_socket(&stage, folder.path(), "pgbouncer").unwrap();
    stage.pooler.drain();
    until_refused(&stage);
    // The other worker has ended by now, or ends soon: none of these waits for it.
    let began = Instant::now();
    for _ in 0..20 {
        console.query("show clients").unwrap();
        let mut other = by_unix_socket(&stage, folder.path(), "pgbouncer").unwrap();
        other.query("show pools").unwrap();
    }
    // Each took ten seconds.
    assert!(began.elapsed() < Duration::from_secs(60));
    let refused = by_unix_socket(&stage, folder.path(), "postgres").unwrap_err();
    assert_eq!(refused.sqlstate(), Some("57P03"), "{refused}");
    assert!(!stage.pooler.is_over());
    busy.query("commit");
    busy.until(b'C');
    assert!(busy.is_hung_up_on());
    stage.pooler.end().unwrap().wait();
}

#[test]
fn clients_are_served_until_they_disconnect_when_the_pooler_waits_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(stage) = stage("waits", folder.path()) else { return };
    let mut client = Raw::log_in(stage.address());
    stage.pooler.wait_for_clients();
    until_refused(&stage);
    client.query("select 1");
    client.until(b'Z');
    assert!(!stage.pooler.is_over());
    drop(client);
    stage.pooler.end().unwrap().wait();
}

#[test]
fn clients_that_wait_for_a_server_are_sent_away_when_the_pooler_waits_for_servers() {
    let folder = tempfile::tempdir().unwrap();
    let Some(stage) = stage("sends away", folder.path()) else { return };
    let mut waiting = Raw::log_in(stage.address());
    let mut busy = in_transaction(&stage);
    waiting.query("select 1");
    let deadline = Instant::now() + Duration::from_secs(60);
    let waits = || {
        let view = stage.pooler.control().view(false);
        view.pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 1
    };
    while !waits() {
        assert!(Instant::now() < deadline, "the client does not wait for the server");
    }
    stage.pooler.drain();
    let told = waiting.until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&told, b"C57P01\0").is_some(), "{}", told.escape_ascii());
    assert!(waiting.is_hung_up_on());
    assert!(!stage.pooler.is_over(), "the other is in a transaction");
    busy.query("commit");
    busy.until(b'C');
    stage.pooler.end().unwrap().wait();
}
