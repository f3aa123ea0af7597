//! The client leg's TLS: certificate, key, and whose certificates clients may show.

use std::{path::Path, sync::Arc};

use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::StartError;
use crate::config::{Tls, TlsLeg};
use howdah_connect::{
    SslMode,
    tls::{TlsVersion, end_point_hash},
};

/// The protocol that TLS without an SSLRequest has to agree on.
const ALPN: &[u8] = b"postgresql";

/// The client leg's TLS.
#[derive(Debug)]
pub(super) struct ClientTls {
    pub(super) config: Arc<ServerConfig>,
    /// What SCRAM is bound to.
    pub(super) end_point_hash: Option<Vec<u8>>,
}

/// The configuration, or `None` if clients get no TLS.
///
/// # Errors
///
/// A file is missing or holds something else.
pub(super) fn server_config(tls: &Tls) -> Result<Option<ClientTls>, StartError> {
    let mode = tls.client_mode();
    if mode == SslMode::Disable {
        return Ok(None);
    }
    let leg = &tls.client;
    let wrong = |path: &Path, text: String| StartError::ClientTls {
        path: path.display().to_string(),
        text,
    };
    let (Some(certificate), Some(key)) = (&leg.certificate, &leg.key) else {
        return Err(wrong(Path::new("tls.client"), "certificate and key are needed".to_owned()));
    };
    let chain = certificates(certificate)?;
    let end_point_hash = chain.first().and_then(|own| end_point_hash(own));
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, e.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(leg))
        .map_err(|error| wrong(Path::new("tls.client"), error.to_string()))?;
    let builder = match &leg.authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| wrong(path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match mode {
                SslMode::VerifyCa | SslMode::VerifyFull => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            let verifier = verifier.build().map_err(|error| wrong(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| wrong(certificate, error.to_string()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Some(ClientTls { config: Arc::new(config), end_point_hash }))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let wrong = |text: String| StartError::ClientTls { path: path.display().to_string(), text };
    let read: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?.collect();
    let read = read.map_err(|error| wrong(error.to_string()))?;
    if read.is_empty() { Err(wrong("it holds no certificate".to_owned())) } else { Ok(read) }
}

fn versions(leg: &TlsLeg) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let all = [
        (TlsVersion::Tls12, &rustls::version::TLS12),
        (TlsVersion::Tls13, &rustls::version::TLS13),
    ];
    let within = |version: TlsVersion| leg.min_version <= version && version <= leg.max_version;
    all.into_iter().filter(|(version, _)| within(*version)).map(|(_, it)| it).collect()
}
