//! HTTPS: which certificates are believed, and that what is sent arrives, at a server of a few lines
//! that does nothing but TLS. (InfluxDB and the collector are sent to over TLS in their own tests.)

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use howdah_statsd::settings::{Backends, Influx};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::support::{AT_THE_END, Certificate, send, serve_within};

#[test]
fn values_arrive_over_tls_if_the_certificate_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, host: &str| Certificate::make(folder.path(), name, host);
    let Some(certificate) = made("good", "localhost") else { return };
    let (port, request) = listen(&certificate);
    let undelivered = deliver(port, &certificate.certificate);
    assert!(undelivered.is_empty(), "{undelivered:?}");
    let request = request.join().unwrap();
    assert!(
        request.starts_with(&format!("POST /write?db=x HTTP/1.1\r\nHost: localhost:{port}\r\n"))
    );
    assert!(request.contains("api.hits,metric_type=counter count=30,"), "{request}");
}

#[test]
fn nothing_is_said_to_a_server_with_another_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, host: &str| Certificate::make(folder.path(), name, host);
    let Some(certificate) = made("good", "localhost") else { return };
    // Of another server, and for another host.
    for (name, host) in [("other", "localhost"), ("elsewhere", "elsewhere.example.org")] {
        let pretender = made(name, host).unwrap();
        let believed = if name == "other" { &certificate } else { &pretender };
        let (port, request) = listen(&pretender);
        let undelivered = deliver(port, &believed.certificate);
        let said = format!("{undelivered:?}");
        assert!(said.contains("influx") && said.contains("certificate"), "{said}");
        assert_eq!(request.join().unwrap(), "", "{name}");
    }
}

/// Sends once, when it ends; what was not delivered.
fn deliver(port: u16, root: &Path) -> Vec<(&'static str, String)> {
    let influx = Influx {
        url: format!("https://localhost:{port}/write?db=x"),
        token_file: None,
        ca_file: Some(root.to_owned()),
        spool_bytes: 0,
    };
    let backends = Backends { influx: vec![influx], ..Backends::default() };
    let server = serve_within(backends, AT_THE_END, Duration::from_secs(20));
    send(&server);
    server.stop().undelivered
}

/// A server with that certificate, for one connection; gives what it was asked.
fn listen(certificate: &Certificate) -> (u16, JoinHandle<String>) {
    let chain = vec![CertificateDer::from_pem_file(&certificate.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (peer, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, peer);
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        // The body ends in a line about the server itself.
        while !String::from_utf8_lossy(&request).contains("metric_type=own") {
            match stream.read(&mut buffer) {
                Ok(bytes) if bytes > 0 => request.extend_from_slice(&buffer[..bytes]),
                _ => break,
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        stream.conn.send_close_notify();
        let _ = stream.flush();
        String::from_utf8(request).unwrap()
    });
    (port, thread)
}
