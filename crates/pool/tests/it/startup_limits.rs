//! Connections that do not log in must not keep others from it.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_pool::Pooler;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect as dial, socket_with};

use crate::support::{Raw, Stage, connect, pooler_of};

/// Stalled connections that are kept up.
const STALLED: usize = 2000;

/// A connection from another address of the loopback network.
fn connect_from(host: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    // Not for the servers that other tests start meanwhile.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0)))?;
    dial(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// The beginning of a startup packet whose end never comes.
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
fn stall(to: SocketAddr, is_over: &AtomicBool, closed: &AtomicUsize) {
    let mut stalled = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        while stalled.len() < STALLED && !is_over.load(Ordering::Relaxed) {
            let Ok(mut socket) = connect_from(2, to) else { continue };
            socket.set_nonblocking(true).unwrap();
            // One that was closed at once is counted below.
            let _ = socket.write_all(HALF_A_PACKET);
            stalled.push(socket);
        }
        let before = stalled.len();
        stalled.retain_mut(|socket| {
            // A byte now and then does not make it a client.
            let _ = socket.write_all(b"x");
            !is_closed(socket)
        });
        closed.fetch_add(before - stalled.len(), Ordering::Relaxed);
    }
}

fn scram_pooler(stage: &Stage, more: &str, unix: &str) -> Pooler {
    pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = [{unix}]\n\
         [pool.auth]\ntype = 'scram-sha-256'\n\
         [pool.users.postgres]\nsecret = 'sesame'\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        stage.server.port()
    ))
}

fn words(host: &str, port: u16, database: &str) -> String {
    format!(
        "host={host} port={port} user=postgres password=sesame dbname={database} sslmode=disable \
         connect_timeout=60"
    )
}

#[test]
fn logins_succeed_while_another_address_stalls_two_thousand_connections() {
    let Some(mut stage) = Stage::set("stalled", "") else { return };
    stage.pooler = scram_pooler(&stage, "", "");
    let address = stage.address();
    let (is_over, closed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let attack = {
        let (is_over, closed) = (Arc::clone(&is_over), Arc::clone(&closed));
        thread::spawn(move || stall(address, &is_over, &closed))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while closed.load(Ordering::Relaxed) < STALLED {
        assert!(Instant::now() < deadline, "stalled connections were not closed within a minute");
        thread::yield_now();
    }
    for number in 0..100 {
        let mut client = connect(&words("127.0.0.1", address.port(), "postgres"))
            .unwrap_or_else(|error| panic!("login {number}: {error}"));
        client.query("select 1").unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    attack.join().unwrap();
}

#[test]
fn console_is_reached_by_unix_socket_when_all_tcp_logins_are_taken() {
    let Some(mut stage) = Stage::set("unix place", "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("'{}'", folder.path().display());
    stage.pooler = scram_pooler(&stage, "limits = { logins = 3 }", &unix);
    let address = stage.address();
    // Three that have asked to log in and do not answer, from as many addresses: nobody is to make room.
    let mut stalled: Vec<_> = (2..5_u8)
        .map(|host| {
            let mut raw = Raw(connect_from(host, address).unwrap());
            raw.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            raw.start(0, "");
            assert_eq!(raw.message().unwrap().0, b'R');
            raw
        })
        .collect();
    let mut refused = Raw(connect_from(6, address).unwrap());
    refused.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    refused.start(0, "");
    let (tag, body) = refused.message().unwrap();
    assert!(tag == b'E' && memchr::memmem::find(&body, b"C53300\0").is_some());
    let host = folder.path().display().to_string();
    let mut console = connect(&words(&host, address.port(), "pgbouncer")).unwrap();
    assert!(console.query("show lists").is_ok());
    // Silent ones there make room as well.
    let path = folder.path().join(format!(".s.PGSQL.{}", address.port()));
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    connect(&words(&host, address.port(), "pgbouncer")).unwrap().query("show lists").unwrap();
    drop(silent);
    stalled.clear();
    connect(&words("127.0.0.1", address.port(), "postgres")).unwrap().query("select 1").unwrap();
}

#[test]
fn connection_without_a_startup_packet_is_closed_before_the_end_of_logins() {
    let Some(mut stage) = Stage::set("startup time", "") else { return };
    let more = "timeouts = { client-startup = '300ms', client-login = 0 }";
    stage.pooler = scram_pooler(&stage, more, "");
    // One that has said who it is has as long as logins have.
    let mut asked = Raw::connect(stage.address());
    asked.start(0, "");
    assert_eq!(asked.message().unwrap().0, b'R');
    for bytes in [&b""[..], b"\0", HALF_A_PACKET] {
        let mut raw = Raw::connect(stage.address());
        raw.0.write_all(bytes).unwrap();
        let (tag, body) = raw.message().unwrap();
        assert!(tag == b'E' && memchr::memmem::find(&body, b"C57014\0").is_some());
        assert!(raw.is_hung_up_on());
    }
    asked.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let error = asked.0.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "it is still asked");
}
