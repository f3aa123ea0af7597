//! HTTPS: which certificates are trusted, and delivery to a minimal TLS server. (InfluxDB and the
//! collector are tested with TLS separately.)

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use howdah_statsd::settings::{BackendSettings, InfluxSettings};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::support::{NO_PERIODIC_FLUSH, TestCertificate, send, serve_with_timeout};

#[test]
fn values_are_delivered_with_trusted_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, host: &str| TestCertificate::make(folder.path(), name, host);
    let Some(certificate) = made("good", "localhost") else { return };
    let (port, request) = listen(&certificate);
    let undelivered = deliver(port, &certificate.certificate);
    assert!(undelivered.is_empty(), "{undelivered:?}");
    let request = request.join().unwrap();
    assert!(request.starts_with("POST /write?db=x HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("\r\nhost: localhost:{port}\r\n")), "{request}");
    assert!(request.contains("api.hits,metric_type=counter count=30,"), "{request}");
}

#[test]
fn nothing_is_sent_with_untrusted_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, host: &str| TestCertificate::make(folder.path(), name, host);
    let Some(certificate) = made("good", "localhost") else { return };
    // A certificate that is not trusted, and one for another host name.
    for (name, host) in [("other", "localhost"), ("elsewhere", "elsewhere.example.org")] {
        let presented = made(name, host).unwrap();
        let trusted = if name == "other" { &certificate } else { &presented };
        let (port, request) = listen(&presented);
        let undelivered = deliver(port, &trusted.certificate);
        let errors = format!("{undelivered:?}");
        assert!(errors.contains("influx") && errors.contains("certificate"), "{errors}");
        assert_eq!(request.join().unwrap(), "", "{name}");
    }
}

/// Sends the samples with a flush at shutdown; returns the undelivered backends.
fn deliver(port: u16, root: &Path) -> Vec<(&'static str, String)> {
    let influx = InfluxSettings {
        url: format!("https://localhost:{port}/write?db=x"),
        token_file: None,
        ca_file: Some(root.to_owned()),
        spool_bytes: 0,
    };
    let backends = BackendSettings { influx: vec![influx], ..BackendSettings::default() };
    let server = serve_with_timeout(backends, NO_PERIODIC_FLUSH, Duration::from_secs(20));
    send(&server);
    server.stop().undelivered
}

/// Starts a server with this certificate for one connection; the thread returns the request.
fn listen(certificate: &TestCertificate) -> (u16, JoinHandle<String>) {
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
        // The body ends with a line of self metrics.
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
