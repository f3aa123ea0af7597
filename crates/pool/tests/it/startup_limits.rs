//! Connections that do not log in must not block others.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use howdah_lab::wait_until;
use howdah_pool::Pooler;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect as dial, socket_with};

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, connect, start_pooler_with};

/// Number of stalled connections.
const STALLED: usize = 2000;

/// A connection from another address of the loopback network.
fn connect_from(host: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    // Must not be inherited by servers that other tests start.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0)))?;
    dial(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// The start of an incomplete startup packet.
const HALF_A_PACKET: &[u8] = b"\0\0\0\x50\0\x03\0\0user\0";

/// Whether the other side has closed a connection.
fn is_closed(socket: &mut TcpStream) -> bool {
    let mut bytes = [0; 1024];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Keeps as many stalled connections up until it is over; counts those that were closed.
fn stall_connections(to: SocketAddr, is_over: &AtomicBool, closed: &AtomicUsize) {
    let mut stalled = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        while stalled.len() < STALLED && !is_over.load(Ordering::Relaxed) {
            let Ok(mut socket) = connect_from(2, to) else { continue };
            socket.set_nonblocking(true).unwrap();
            // A connection closed at once is counted below.
            let _ = socket.write_all(HALF_A_PACKET);
            stalled.push(socket);
        }
        let before = stalled.len();
        stalled.retain_mut(|socket| {
            // Single bytes do not complete the startup packet.
            let _ = socket.write_all(b"x");
            !is_closed(socket)
        });
        closed.fetch_add(before - stalled.len(), Ordering::Relaxed);
    }
}

fn start_scram_pooler(fixture: &PoolFixture, more: &str, unix: &str) -> Pooler {
    start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = [{unix}]\n\
         [pool.auth]\ntype = 'scram-sha-256'\n\
         [pool.users.postgres]\nsecret = 'sesame'\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        fixture.server.port()
    ))
}

fn conninfo(host: &str, port: u16, database: &str) -> String {
    format!(
        "host={host} port={port} user=postgres password=sesame dbname={database} sslmode=disable \
         connect_timeout=60"
    )
}

#[test]
fn logins_succeed_during_flood_of_stalled_connections() {
    let Some(mut fixture) = PoolFixture::start("stalled", "") else { return };
    fixture.pooler = start_scram_pooler(&fixture, "", "");
    let address = fixture.address();
    let (is_over, closed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let attack = {
        let (is_over, closed) = (Arc::clone(&is_over), Arc::clone(&closed));
        thread::spawn(move || stall_connections(address, &is_over, &closed))
    };
    wait_until("stalled connections to be closed", WAIT_TIMEOUT, || {
        closed.load(Ordering::Relaxed) >= STALLED
    });
    for number in 0..100 {
        let mut client = connect(&conninfo("127.0.0.1", address.port(), "postgres"))
            .unwrap_or_else(|error| panic!("login {number}: {error}"));
        client.query("select 1").unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    attack.join().unwrap();
}

#[test]
fn console_is_reachable_by_unix_socket_if_tcp_logins_are_full() {
    let Some(mut fixture) = PoolFixture::start("unix place", "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("'{}'", folder.path().display());
    fixture.pooler = start_scram_pooler(&fixture, "limits = { logins = 3 }", &unix);
    let address = fixture.address();
    // Three logins that have sent a startup packet and do not go on: these are not closed for
    // others.
    let mut stalled: Vec<_> = (2..5_u8)
        .map(|host| {
            let mut raw = RawClient(connect_from(host, address).unwrap());
            raw.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            raw.send_startup(0, "");
            assert_eq!(raw.read_message().unwrap().0, b'R');
            raw
        })
        .collect();
    let mut refused = RawClient(connect_from(6, address).unwrap());
    refused.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    refused.send_startup(0, "");
    let (tag, body) = refused.read_message().unwrap();
    assert!(tag == b'E' && memchr::memmem::find(&body, b"C53300\0").is_some());
    let host = folder.path().display().to_string();
    let mut console = connect(&conninfo(&host, address.port(), "pgbouncer")).unwrap();
    assert!(console.query("show lists").is_ok());
    // Silent connections to the unix socket are closed for others.
    let path = folder.path().join(format!(".s.PGSQL.{}", address.port()));
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    connect(&conninfo(&host, address.port(), "pgbouncer")).unwrap().query("show lists").unwrap();
    drop(silent);
    stalled.clear();
    connect(&conninfo("127.0.0.1", address.port(), "postgres")).unwrap().query("select 1").unwrap();
}

#[test]
fn connection_without_startup_packet_is_closed_early() {
    let Some(mut fixture) = PoolFixture::start("startup time", "") else { return };
    let more = "timeouts = { client-startup = '300ms', client-login = 0 }";
    fixture.pooler = start_scram_pooler(&fixture, more, "");
    // After the startup packet only the longer timeout for logins applies.
    let mut pending = RawClient::connect(fixture.address());
    pending.send_startup(0, "");
    assert_eq!(pending.read_message().unwrap().0, b'R');
    for bytes in [&b""[..], b"\0", HALF_A_PACKET] {
        let mut raw = RawClient::connect(fixture.address());
        raw.0.write_all(bytes).unwrap();
        let (tag, body) = raw.read_message().unwrap();
        assert!(tag == b'E' && memchr::memmem::find(&body, b"C57014\0").is_some());
        assert!(raw.is_disconnected());
    }
    pending.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let error = pending.0.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "the login is still pending");
}
