//! Servers that are not PostgreSQL, or that misbehave at the start of a connection.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use howdah_connect::{ConnectFailure, LoginRefused, tls::NegotiationError};

use crate::{connect, only_failure};

/// Accepts one connection and handles it on a thread; returns the port.
pub(crate) fn serve(script: impl FnOnce(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        script(stream);
    });
    port
}

/// Accepts one connection, reads the client's first bytes, sends `answer`, and closes when the
/// client does.
fn serve_bytes(answer: &'static [u8]) -> u16 {
    serve(move |mut stream| {
        let mut first = [0; 1000];
        let _ = stream.read(&mut first);
        let _ = stream.write_all(answer);
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

fn cause(port: u16, more: &str) -> ConnectFailure {
    only_failure(connect(&format!("host=127.0.0.1 port={port} password=hunter2 {more}")))
}

#[test]
fn server_closing_immediately_is_an_error() {
    for more in ["sslmode=disable", "sslmode=prefer", "sslmode=require"] {
        let port = serve(drop);
        let cause = cause(port, more);
        let closed = matches!(cause, ConnectFailure::Closed | ConnectFailure::Lost(_));
        assert!(closed, "{more}: {cause}");
    }
}

#[test]
fn invalid_tls_replies_are_errors() {
    use NegotiationError::{NotOffered, NotPostgres, ServerError, UnencryptedData};
    let table: [(&[u8], &str, NegotiationError); 6] = [
        (b"N", "require", NotOffered),
        (b"N", "verify-full sslrootcert=system", NotOffered),
        (b"E\0\0\0\x20SFATAL\0Mcome here instead\0\0", "require", ServerError),
        (b"E\0\0\0\x20SFATAL\0Mcome here instead\0\0", "prefer", ServerError),
        (b"HTTP/1.1 400 Bad Request\r\n", "prefer", NotPostgres { byte: b'H' }),
        // A man in the middle has injected a login without password before the handshake.
        (b"SR\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", "require", UnencryptedData),
    ];
    for (answer, mode, expected) in table {
        let cause = cause(serve_bytes(answer), &format!("sslmode={mode}"));
        let ConnectFailure::Negotiation(found) = cause else { panic!("{mode}: {cause}") };
        assert_eq!(found, expected);
    }
}

#[test]
fn non_postgresql_server_is_an_error() {
    let cause = cause(serve_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "sslmode=disable");
    assert!(matches!(cause, ConnectFailure::Protocol(_)), "{cause}");
}

#[test]
fn cleartext_password_request_is_refused_if_scram_required() {
    let (told, heard) = std::sync::mpsc::channel();
    let port = serve(move |mut stream| {
        let mut first = [0; 1000];
        let _ = stream.read(&mut first).unwrap();
        // Asks for the password in clear text.
        stream.write_all(b"R\0\0\0\x08\0\0\0\x03").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        told.send(rest).unwrap();
    });
    let cause = cause(port, "sslmode=disable require_auth=scram-sha-256");
    let refused =
        matches!(cause, ConnectFailure::LoginRefused(LoginRefused::Method { method: "password" }));
    assert!(refused, "{cause}");
    assert_eq!(heard.recv().unwrap(), b"");
}

#[test]
fn unresponsive_server_times_out() {
    for mode in ["disable", "require"] {
        let port = serve(|mut stream| {
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let cause = cause(port, &format!("sslmode={mode} connect_timeout=1"));
        assert!(matches!(cause, ConnectFailure::TimedOut { .. }), "{cause}");
    }
}
