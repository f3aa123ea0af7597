//! The client side of TLS: certificate, key, and the authorities of clients' certificates.

use std::sync::Arc;

use howdah_connect::{
    SslMode,
    tls::{TlsError, TlsVersion, client_verifier, end_point_hash, server_identity},
};
use rustls::{ServerConfig, sign::SingleCertAndKey};

use super::StartError;
use crate::config::{Tls, TlsLeg};

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
    let wrong = |source: TlsError| {
        let key = format!("tls.client{}", key_of(leg, &source));
        StartError::ClientTls { key, source: Box::new(source) }
    };
    // Settings without one of them are refused before.
    let (certificate, key) = (leg.certificate.clone(), leg.key.clone());
    let (certificate, key) = (certificate.unwrap_or_default(), key.unwrap_or_default());
    let identity = server_identity(&certificate, &key).map_err(wrong)?;
    let end_point_hash = identity.cert.first().and_then(|own| end_point_hash(own));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(leg))
        .map_err(|error| wrong(error.into()))?;
    let builder = match &leg.ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let required = mode >= SslMode::VerifyCa;
            builder.with_client_cert_verifier(client_verifier(path, required).map_err(wrong)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Some(ClientTls { config: Arc::new(config), end_point_hash }))
}

/// Which key of `[pool.tls.client]` or `[pool.tls.server]` names the file that is to be mended: `.key`,
/// or nothing if it is none of them.
pub(super) fn key_of(leg: &TlsLeg, error: &TlsError) -> &'static str {
    let files =
        [(".key", &leg.key), (".certificate", &leg.certificate), (".ca-file", &leg.ca_file)];
    let path = error.path();
    let found = files.into_iter().find(|(_, file)| path.is_some() && file.as_deref() == path);
    found.map_or("", |(key, _)| key)
}

fn versions(leg: &TlsLeg) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let all = [
        (TlsVersion::Tls12, &rustls::version::TLS12),
        (TlsVersion::Tls13, &rustls::version::TLS13),
    ];
    let within = |version: TlsVersion| leg.min_version <= version && version <= leg.max_version;
    all.into_iter().filter(|(version, _)| within(*version)).map(|(_, it)| it).collect()
}
