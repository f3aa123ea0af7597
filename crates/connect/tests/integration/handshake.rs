//! Verification of certificates, with a minimal server that only does TLS.

use std::{
    io::{Read, Write},
    path::Path,
    sync::Arc,
};

use howdah_connect::{ConnectFailure, ConnectTarget, tls::NegotiationError};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring::default_provider,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::{certificates::Certificates, fake_servers::serve, only_failure, target};

/// Starts a server with this certificate and key, which need not match, and optionally an ALPN
/// protocol. It closes the connection after the handshake.
fn tls_server(certificate: &Path, key: &Path, direct: bool, alpn: Option<&[u8]>) -> u16 {
    let provider = Arc::new(default_provider());
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let identity = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
    let config = Arc::new(config);
    serve(move |mut stream| {
        if !direct {
            let mut request = [0; 8];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"S").unwrap();
        }
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        // The startup packet arrives only if the client accepted the handshake.
        let _ = stream.read(&mut [0; 1000]);
        stream.conn.send_close_notify();
        let _ = stream.flush();
    })
}

/// Whether the handshake with such a server succeeds; if not, why.
fn shake_hands(target: &ConnectTarget) -> Result<(), String> {
    match only_failure(howdah_connect::Client::connect(target)) {
        ConnectFailure::Closed => Ok(()),
        cause @ ConnectFailure::Handshake(_) => Err(cause.to_string()),
        other => panic!("{other}"),
    }
}

struct HandshakeCase {
    certificates: Certificates,
}

impl HandshakeCase {
    /// Whether a client that trusts `root.crt` accepts the server's certificate.
    fn is_accepted(&self, root: &str, server: &str, host: &str, mode: &str) -> Result<(), String> {
        let mut results = Vec::new();
        for version in ["TLSv1.2", "TLSv1.3"] {
            let file = |suffix: &str| self.certificates.path(&format!("{server}.{suffix}"));
            let port = tls_server(&file("crt"), &file("key"), false, None);
            let root = self.certificates.path(&format!("{root}.crt"));
            let target = target(&format!(
                "host={host} hostaddr=127.0.0.1 port={port} sslmode={mode} sslrootcert={} \
                 ssl_max_protocol_version={version}",
                root.display()
            ));
            results.push(shake_hands(&target));
        }
        assert_eq!(results[0], results[1], "versions differ: {root} {server} {host} {mode}");
        results.remove(0)
    }

    #[track_caller]
    fn assert_refused(&self, root: &str, server: &str, host: &str, mode: &str, because: &str) {
        let refused = self.is_accepted(root, server, host, mode).unwrap_err();
        assert!(refused.contains(because), "{refused}");
    }
}

#[test]
fn certificate_of_trusted_authority_is_accepted() {
    let Some(certificates) = Certificates::new("handshakes") else { return };
    certificates.self_signed("root", "root", &[]);
    // The same name, but another key.
    certificates.self_signed("forger", "root", &[]);
    certificates.signed("leaf", "db1", "root", "subjectAltName=DNS:db1.example.com\n");
    certificates.signed("forged", "db1", "forger", "subjectAltName=DNS:db1.example.com\n");
    certificates.signed("plain", "db1.example.com", "root", "");
    certificates.signed("plain-forged", "db1.example.com", "forger", "");
    let case = HandshakeCase { certificates };
    for host in ["db1.example.com", "db2.example.com", "127.0.0.1"] {
        assert_eq!(case.is_accepted("root", "leaf", host, "verify-ca"), Ok(()));
        assert_eq!(case.is_accepted("root", "plain", host, "verify-ca"), Ok(()));
    }
    assert_eq!(case.is_accepted("root", "leaf", "db1.example.com", "verify-full"), Ok(()));
    assert_eq!(case.is_accepted("root", "plain", "db1.example.com", "verify-full"), Ok(()));
    case.assert_refused("root", "plain", "db2.example.com", "verify-full", "another host");
    for mode in ["require", "verify-ca", "verify-full"] {
        let signature = "certificate";
        case.assert_refused("root", "forged", "db1.example.com", mode, signature);
        case.assert_refused("root", "plain-forged", "db1.example.com", mode, signature);
    }
    assert_eq!(case.is_accepted("none", "forged", "db1.example.com", "require"), Ok(()));
    assert_eq!(case.is_accepted("none", "plain-forged", "x", "require"), Ok(()));
}

#[test]
fn alternative_names_override_common_name() {
    let Some(certificates) = Certificates::new("names") else { return };
    certificates.self_signed("root", "root", &[]);
    let names = "subjectAltName=DNS:db1.example.com,DNS:*.dbs.example.com,IP:127.0.0.1\n";
    certificates.signed("names", "db9.example.com", "root", names);
    certificates.signed("common", "db1.example.com", "root", "basicConstraints=CA:FALSE\n");
    certificates.signed("star", "*.example.com", "root", "basicConstraints=CA:FALSE\n");
    certificates.signed("address", "db1.example.com", "root", "subjectAltName=IP:10.0.0.1\n");
    let case = HandshakeCase { certificates };
    for (server, host) in [
        ("names", "db1.example.com"),
        ("names", "DB1.example.com"),
        ("names", "a.dbs.example.com"),
        ("names", "127.0.0.1"),
        ("common", "db1.example.com"),
        ("star", "db7.example.com"),
        ("address", "db1.example.com"),
    ] {
        assert_eq!(
            case.is_accepted("root", server, host, "verify-full"),
            Ok(()),
            "{server} {host}"
        );
    }
    for (server, host) in [
        // If there are alternative names, the common name does not count.
        ("names", "db9.example.com"),
        ("names", "dbs.example.com"),
        ("names", "127.0.0.2"),
        ("common", "db2.example.com"),
        ("star", "a.b.example.com"),
        ("star", "example.com"),
        ("address", "10.0.0.2"),
    ] {
        case.assert_refused("root", server, host, "verify-full", "not valid for name");
    }
}

#[test]
fn self_signed_certificate_can_be_trusted_root() {
    let Some(certificates) = Certificates::new("self-signed") else { return };
    let names = ["-addext", "subjectAltName=DNS:db1.example.com"];
    certificates.self_signed("own", "db1", &names);
    certificates.self_signed("other", "db1", &names);
    certificates.self_signed("common", "db1.example.com", &[]);
    let case = HandshakeCase { certificates };
    assert_eq!(case.is_accepted("own", "own", "db1.example.com", "verify-full"), Ok(()));
    assert_eq!(case.is_accepted("common", "common", "db1.example.com", "verify-full"), Ok(()));
    assert_eq!(case.is_accepted("own", "own", "db2.example.com", "verify-ca"), Ok(()));
    case.assert_refused("own", "own", "db2.example.com", "verify-full", "not valid for name");
    case.assert_refused("common", "common", "db2.example.com", "verify-full", "not valid for name");
    case.assert_refused("own", "other", "db1.example.com", "verify-ca", "certificate");
}

#[test]
fn certificate_without_its_key_is_refused() {
    let Some(certificates) = Certificates::new("stolen certificates") else { return };
    certificates.self_signed("root", "root", &[]);
    certificates.signed("leaf", "db1.example.com", "root", "basicConstraints=CA:FALSE\n");
    certificates.signed("plain", "db1.example.com", "root", "");
    let case = HandshakeCase { certificates };
    for certificate in ["leaf", "plain"] {
        let path = |file: String| case.certificates.path(&file);
        let (certificate, key) = (path(format!("{certificate}.crt")), path("root.key".to_owned()));
        for version in ["TLSv1.2", "TLSv1.3"] {
            let port = tls_server(&certificate, &key, false, None);
            let target = target(&format!(
                "host=db1.example.com hostaddr=127.0.0.1 port={port} sslmode=verify-full \
                 sslrootcert={} ssl_max_protocol_version={version}",
                path("root.crt".to_owned()).display()
            ));
            let refused = shake_hands(&target).unwrap_err();
            assert!(refused.contains("BadSignature"), "{refused}");
        }
    }
}

#[test]
fn revoked_certificate_is_refused() {
    let Some(certificates) = Certificates::new("revocation") else { return };
    certificates.self_signed("root", "root", &[]);
    for name in ["good", "bad"] {
        certificates.signed(name, "db1.example.com", "root", "basicConstraints=CA:FALSE\n");
    }
    let config = "[ca]\ndefault_ca=it\n[it]\ndatabase=index.txt\ncrlnumber=crlnumber\n\
                  default_md=sha256\ndefault_crl_days=30\n";
    std::fs::write(certificates.path("ca.cnf"), config).unwrap();
    std::fs::write(certificates.path("index.txt"), "").unwrap();
    std::fs::write(certificates.path("crlnumber"), "01\n").unwrap();
    let ca = ["ca", "-config", "ca.cnf", "-cert", "root.crt", "-keyfile", "root.key"];
    certificates.openssl(&[&ca[..], &["-revoke", "bad.crt"]].concat());
    certificates.openssl(&[&ca[..], &["-gencrl", "-out", "root.crl"]].concat());
    let shake = |server: &str, lists: &str| {
        let file = |suffix: &str| certificates.path(&format!("{server}.{suffix}"));
        let port = tls_server(&file("crt"), &file("key"), false, None);
        shake_hands(&target(&format!(
            "host=db1.example.com hostaddr=127.0.0.1 port={port} sslmode=verify-full \
             sslrootcert={} {lists}",
            certificates.path("root.crt").display()
        )))
    };
    let list = format!("sslcrl={}", certificates.path("root.crl").display());
    assert_eq!(shake("bad", ""), Ok(()));
    assert_eq!(shake("good", &list), Ok(()));
    let refused = shake("bad", &list).unwrap_err();
    assert!(refused.contains("Revoked"), "{refused}");
    let folder = certificates.path("crls");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(certificates.path("root.crl"), folder.join("0.r0")).unwrap();
    let folder = format!("sslcrldir={}", folder.display());
    assert_eq!(shake("good", &folder), Ok(()));
    assert!(shake("bad", &folder).is_err());
}

#[test]
fn direct_tls_requires_alpn() {
    let Some(certificates) = Certificates::new("direct TLS") else { return };
    certificates.self_signed("root", "localhost", &[]);
    let (certificate, key) = (certificates.path("root.crt"), certificates.path("root.key"));
    let to = |port: u16| {
        target(&format!("host=127.0.0.1 port={port} sslmode=require sslnegotiation=direct"))
    };
    let port = tls_server(&certificate, &key, true, Some(b"postgresql"));
    assert_eq!(shake_hands(&to(port)), Ok(()));
    let port = tls_server(&certificate, &key, true, None);
    let cause = only_failure(howdah_connect::Client::connect(&to(port)));
    assert!(matches!(cause, ConnectFailure::Negotiation(NegotiationError::NoAlpn)), "{cause}");
    let port = tls_server(&certificate, &key, true, Some(b"http/1.1"));
    assert!(shake_hands(&to(port)).is_err());
}
