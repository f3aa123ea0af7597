//! Allow-lists, TLS, tokens and time limits of listeners.

use std::{
    fs,
    io::Read as _,
    process::{Command, Stdio},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::*;
use crate::receiver::testing::{TestIdentity, token_file};

/// A TCP listener with some of its settings changed.
fn tcp_with(change: impl FnOnce(&mut TcpRules)) -> ListenSettings {
    let mut rules = TcpRules {
        handshake_timeout: TEST_TIMEOUT,
        allow: Vec::new(),
        certificate: None,
        key: None,
        client_ca: None,
        token_file: None,
        idle_timeout: Duration::ZERO,
    };
    change(&mut rules);
    ListenSettings::Tcp {
        address: "127.0.0.1:0".parse().unwrap(),
        connections: 8,
        allow: rules.allow,
        tls_certificate: rules.certificate,
        tls_key: rules.key,
        client_ca: rules.client_ca,
        token_file: rules.token_file,
        handshake_timeout: rules.handshake_timeout,
        idle_timeout: rules.idle_timeout,
    }
}

struct TcpRules {
    handshake_timeout: Duration,
    allow: Vec<SenderNetwork>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
    idle_timeout: Duration,
}

/// Waits until the server has closed the connection. It may send an alert before.
fn assert_closed(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    let is_timeout = end.is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    });
    assert!(!is_timeout, "the connection must be closed");
}

#[test]
fn packets_of_unlisted_senders_are_denied() {
    let mut listen = udp("127.0.0.1:0", 1, 1 << 20);
    if let ListenSettings::Udp { allow, .. } = &mut listen {
        *allow = vec!["127.0.0.2".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    }
    let server = TestReceiver::open(&[listen]);
    let send = |source: &str, packet: &[u8]| {
        let client = UdpSocket::bind(source).unwrap();
        client.send_to(packet, server.address(0)).unwrap();
    };
    send("127.0.0.1:0", b"stranger:1|c");
    send("127.0.0.2:0", b"friend:1|c");
    send("127.0.0.3:0", b"stranger:2|c");
    send("127.0.0.2:0", b"friend:2|c");
    assert_eq!((server.next(), server.next()), ("friend:1|c".into(), "friend:2|c".into()));
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_eq!((account.sockets[0].packets_total, account.denied_total()), (2, 2));
    assert_eq!(account.sockets[0].bytes_total, 20, "denied packets are not delivered");
}

#[test]
fn connections_of_unlisted_senders_are_closed() {
    let allow =
        |network: &'static str| tcp_with(|rules| rules.allow = vec![network.parse().unwrap()]);
    let server = TestReceiver::open(&[allow("10.0.0.0/8"), allow("127.0.0.1")]);
    let mut stranger = TcpStream::connect(server.address(0)).unwrap();
    let _ = stranger.write_all(b"stranger:1|c\n");
    assert_closed(&stranger);
    TcpStream::connect(server.address(1)).unwrap().write_all(b"friend:1|c\n").unwrap();
    assert_eq!(server.next(), "friend:1|c\n");
    let account = server.receiver.stop(TEST_TIMEOUT);
    let denied: Vec<_> = account.sockets.iter().map(|socket| socket.denied_total).collect();
    assert_eq!(denied, [1, 0]);
}

#[test]
fn lines_count_only_after_valid_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = token_file(folder.path(), "sesame\n");
    let listen = tcp_with(|rules| rules.token_file = Some(path));
    let server = TestReceiver::open(&[listen, tcp(8)]);
    let connect = || TcpStream::connect(server.address(0)).unwrap();

    for start in ["auth wrong\nbad:1|c\n", "bad:1|c\nauth sesame\n", "auth sesam\n", "\n"] {
        let mut stream = connect();
        let _ = stream.write_all(start.as_bytes());
        assert_closed(&stream);
    }
    let mut endless = connect();
    let _ = endless.write_all(&[b'x'; 8192]);
    assert_closed(&endless);

    let mut stream = connect();
    stream.write_all(b"auth sesame\r\na:1|c\nb:").unwrap();
    assert_eq!(server.next(), "a:1|c\n");
    stream.write_all(b"1|c\n").unwrap();
    assert_eq!(server.next(), "b:1|c\n");

    // A connection that sends nothing does not count as an attempt.
    drop(connect());
    // While a client is silent, another listener's connections are read.
    let silent = connect();
    TcpStream::connect(server.address(1)).unwrap().write_all(b"open:1|c\n").unwrap();
    assert_eq!(server.next(), "open:1|c\n");
    drop(silent);
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_eq!(account.failed_handshakes_total(), 5);
    assert_eq!(account.sockets[0].packets_total, 2);
}

#[test]
fn silent_connection_is_closed_after_handshake_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = token_file(folder.path(), "sesame\n");
    let listen = tcp_with(|rules| {
        rules.token_file = Some(path);
        rules.handshake_timeout = Duration::from_millis(20);
    });
    let server = TestReceiver::open(&[listen]);
    // More than the limit of 8 at a time: closed connections make room.
    for _ in 0..10 {
        let stream = TcpStream::connect(server.address(0)).unwrap();
        assert_closed(&stream);
    }
    server.wait_for_account(|account| account.failed_handshakes_total() == 10);
}

#[test]
fn idle_connection_is_closed_and_its_incomplete_line_counted() {
    let listen = tcp_with(|rules| rules.idle_timeout = Duration::from_millis(50));
    let server = TestReceiver::open(&[listen]);
    let mut stream = TcpStream::connect(server.address(0)).unwrap();
    stream.write_all(b"a:1|c\nhalf a li").unwrap();
    assert_eq!(server.next(), "a:1|c\n");
    assert_closed(&stream);
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_eq!((account.sockets[0].packets_total, account.sockets[0].discarded_total), (1, 1));
}

fn chain(identity: &TestIdentity) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_file(&identity.certificate).unwrap()]
}

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// Connects with TLS. The handshake is part of the first write.
fn tls_client(server: SocketAddr, root: &TestIdentity, own: Option<&TestIdentity>) -> TlsClient {
    let mut roots = RootCertStore::empty();
    roots.add(chain(root).remove(0)).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            builder.with_client_auth_cert(chain(own), key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, TcpStream::connect(server).unwrap())
}

#[test]
fn encrypted_lines_count_and_truncated_stream_loses_only_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server_identity) = TestIdentity::make(folder.path(), "server") else { return };
    let path = token_file(folder.path(), "sesame\n");
    let listen = tcp_with(|rules| {
        rules.certificate = Some(server_identity.certificate.clone());
        rules.key = Some(server_identity.key.clone());
        rules.token_file = Some(path);
    });
    let server = TestReceiver::open(&[listen, tcp(8)]);
    let connect = || tls_client(server.address(0), &server_identity, None);

    // A client in the middle of its handshake delays no other.
    let silent = TcpStream::connect(server.address(0)).unwrap();
    let mut plain = TcpStream::connect(server.address(0)).unwrap();
    plain.write_all(b"auth sesame\nbad:1|c\n").unwrap();
    assert_closed(&plain);

    let mut stream = connect();
    stream.write_all(b"auth sesame\nfirst:1|c\n").unwrap();
    assert_eq!(server.next(), "first:1|c\n");
    // More than a record, a read of the socket and a read of the connection.
    let lines = "some.long.name.of.a.counter:1|c\n".repeat(10_000);
    let mut sent = lines.as_bytes();
    while !sent.is_empty() {
        let bytes = stream.write(sent).unwrap();
        sent = &sent[bytes..];
    }
    let mut received = String::new();
    while received.len() < lines.len() {
        received += &server.next();
    }
    assert_eq!(received, lines);
    stream.write_all(b"last:1|c").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(server.next(), "last:1|c");

    let mut broken = connect();
    broken.write_all(b"auth sesame\nwhole:1|c\nhalf a li").unwrap();
    assert_eq!(server.next(), "whole:1|c\n");
    drop(broken);
    server.wait_for_account(|account| account.sockets[0].discarded_total == 1);

    let mut wrong = connect();
    let _ = wrong.write_all(b"auth wrong\nbad:1|c\n");
    assert_closed(&wrong.sock);
    drop(silent);
    let account = server.receiver.stop(TEST_TIMEOUT);
    assert_eq!(account.failed_handshakes_total(), 2);
}

#[test]
fn encrypted_and_new_connections_continue_in_another_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let Some(identity) = TestIdentity::make(folder.path(), "server") else { return };
    let path = token_file(folder.path(), "sesame\n");
    let encrypted = tcp_with(|rules| {
        rules.certificate = Some(identity.certificate.clone());
        rules.key = Some(identity.key.clone());
    });
    let with_token = tcp_with(|rules| rules.token_file = Some(path));
    let listen = [encrypted, with_token];
    let mut old = TestReceiver::open(&listen);
    let address = old.address(0);
    let mut stream = tls_client(address, &identity, None);
    stream.write_all(b"one:1|c\ntw").unwrap();
    assert_eq!(old.next(), "one:1|c\n");
    let mut handshake = TcpStream::connect(old.address(1)).unwrap();
    handshake.write_all(b"auth ses").unwrap();
    // A takeover that fails changes nothing.
    old.receiver.halt();
    drop(old.receiver.passed_connections().unwrap());
    old.receiver.resume().unwrap();
    stream.write_all(b"o:2|c\nthr").unwrap();
    assert_eq!(old.next(), "two:2|c\n");

    old.receiver.halt();
    let mut passed = InheritedSockets::default();
    old.receiver.passed_sockets().unwrap().into_iter().for_each(|socket| passed.push(socket));
    let connections = old.receiver.passed_connections().unwrap();
    assert!(!connections.is_empty());
    let mut new = TestReceiver::prepare(&listen, &mut passed);
    assert_eq!(new.address(0), address);
    let relay = old.receiver.detach();
    new.receiver.release(connections);
    stream.write_all(b"ee:3|c\n").unwrap();
    assert_eq!(new.next(), "three:3|c\n");
    handshake.write_all(b"ame\nlate:1|c\n").unwrap();
    assert_eq!(new.next(), "late:1|c\n");
    // The client is asked to reconnect, and what it sends before is not lost.
    stream.sock.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    stream.write_all(b"last:4|c").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(new.next(), "last:4|c");
    let mut next = tls_client(address, &identity, None);
    next.write_all(b"next:5|c\n").unwrap();
    assert_eq!(new.next(), "next:5|c\n");
    drop((stream, handshake));
    relay.finish(Instant::now() + TEST_TIMEOUT);
    let account = new.receiver.stop(TEST_TIMEOUT);
    assert_eq!(account.sockets[0].discarded_total, 0);
}

#[test]
fn program_of_openssl_can_send() {
    let folder = tempfile::tempdir().unwrap();
    let Some(identity) = TestIdentity::make(folder.path(), "server") else { return };
    let path = token_file(folder.path(), "sesame\n");
    let listen = tcp_with(|rules| {
        rules.certificate = Some(identity.certificate.clone());
        rules.key = Some(identity.key.clone());
        rules.token_file = Some(path);
    });
    let server = TestReceiver::open(&[listen]);
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-no_ign_eof", "-verify_return_error", "-CAfile"])
        .arg(&identity.certificate)
        .args(["-servername", "localhost", "-connect", &server.address(0).to_string()])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(b"auth sesame\na:1|c\nb:2|c").unwrap();
    let mut received = String::new();
    while received.len() < 11 {
        received += &server.next();
    }
    assert_eq!(received, "a:1|c\nb:2|c");
    client.wait().unwrap();
}

#[test]
fn client_needs_certificate_of_authority() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str| TestIdentity::make(folder.path(), name);
    let Some(server_identity) = made("server") else { return };
    let (known, stranger) = (made("known").unwrap(), made("stranger").unwrap());
    let listen = tcp_with(|rules| {
        rules.certificate = Some(server_identity.certificate.clone());
        rules.key = Some(server_identity.key.clone());
        rules.client_ca = Some(known.certificate.clone());
    });
    let server = TestReceiver::open(&[listen]);
    for own in [None, Some(&stranger)] {
        let mut refused = tls_client(server.address(0), &server_identity, own);
        let _ = refused.write_all(b"bad:1|c\n");
        let end = refused.read(&mut [0; 16]);
        assert!(end.is_err(), "{end:?}");
    }
    let mut stream = tls_client(server.address(0), &server_identity, Some(&known));
    stream.write_all(b"good:1|c\n").unwrap();
    assert_eq!(server.next(), "good:1|c\n");
    server.wait_for_account(|account| account.failed_handshakes_total() == 2);
}

#[test]
fn reloaded_certificate_is_used_by_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str| TestIdentity::make(folder.path(), name);
    let Some(first) = made("first") else { return };
    let second = made("second").unwrap();
    let served = TestIdentity {
        certificate: folder.path().join("served.crt"),
        key: folder.path().join("served.key"),
    };
    let serve = |identity: &TestIdentity| {
        fs::copy(&identity.certificate, &served.certificate).unwrap();
        fs::copy(&identity.key, &served.key).unwrap();
    };
    serve(&first);
    let listen = tcp_with(|rules| {
        rules.certificate = Some(served.certificate.clone());
        rules.key = Some(served.key.clone());
    });
    let server = TestReceiver::open(&[listen]);
    let mut before = tls_client(server.address(0), &first, None);
    before.write_all(b"a:1|c\n").unwrap();
    assert_eq!(server.next(), "a:1|c\n");

    serve(&second);
    server.receiver.reload_access();
    let mut after = tls_client(server.address(0), &second, None);
    after.write_all(b"b:1|c\n").unwrap();
    assert_eq!(server.next(), "b:1|c\n");
    before.write_all(b"c:1|c\n").unwrap();
    assert_eq!(server.next(), "c:1|c\n", "established connections continue");

    // A file that cannot be used changes nothing.
    fs::write(&served.certificate, "no certificate").unwrap();
    server.receiver.reload_access();
    let mut still = tls_client(server.address(0), &second, None);
    still.write_all(b"d:1|c\n").unwrap();
    assert_eq!(server.next(), "d:1|c\n");
}

#[test]
fn unusable_access_files_are_named_at_start() {
    let listen = tcp_with(|rules| {
        rules.certificate = Some("/nonexistent/server.crt".into());
        rules.key = Some("/nonexistent/server.key".into());
    });
    let error = PacketReceiver::open(&[listen], PacketHandlers::default).unwrap_err();
    assert!(error.to_string().starts_with("cannot set up access to tcp 127.0.0.1:"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("/nonexistent/server.crt"), "{source}");
}
