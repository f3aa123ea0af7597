//! TLS for clients: certificate, key, and the CAs of client certificates.

use std::sync::Arc;

use howdah_connect::{
    SslMode,
    tls::{TlsError, TlsVersion, cipher_name, client_verifier, end_point_hash, server_identity},
};
use howdah_pool_config::{TlsConfig, TlsSideConfig};
use rustls::{CipherSuite, ProtocolVersion, ServerConfig, sign::SingleCertAndKey};

use super::PoolerStartError;

/// The ALPN protocol that direct TLS must negotiate.
const ALPN: &[u8] = b"postgresql";

/// The TLS configuration for connections from clients.
#[derive(Debug)]
pub(super) struct ClientTls {
    pub(super) config: Arc<ServerConfig>,
    /// The certificate hash for SCRAM's channel binding.
    pub(super) end_point_hash: Option<Vec<u8>>,
}

/// Returns the TLS configuration for clients; `None` if TLS is disabled.
///
/// # Errors
///
/// A file cannot be used, or the files do not match.
pub(super) fn server_config(tls: &TlsConfig) -> Result<Option<ClientTls>, PoolerStartError> {
    let mode = tls.client_mode();
    if mode == SslMode::Disable {
        return Ok(None);
    }
    let leg = &tls.client;
    let wrong = |source: TlsError| {
        let key = format!("tls.client{}", setting_key(leg, &source));
        PoolerStartError::ClientTls { key, source: Box::new(source) }
    };
    // Both are set: the settings are refused otherwise.
    let (certificate, key) = (leg.certificate.clone(), leg.key.clone());
    let (certificate, key) = (certificate.unwrap_or_default(), key.unwrap_or_default());
    let identity = server_identity(&certificate, &key).map_err(wrong)?;
    let end_point_hash = identity.cert.first().and_then(|own| end_point_hash(own));
    let provider = Arc::new(leg.cipher_lists().provider());
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

/// Returns the key of `[pool.tls.client]` or `[pool.tls.server]` that names the file with the
/// error, such as `.key`; empty if the error is not about a file.
pub(super) fn setting_key(leg: &TlsSideConfig, error: &TlsError) -> &'static str {
    let files =
        [(".key", &leg.key), (".certificate", &leg.certificate), (".ca-file", &leg.ca_file)];
    let path = error.path();
    let found = files.into_iter().find(|(_, file)| path.is_some() && file.as_deref() == path);
    found.map_or("", |(key, _)| key)
}

/// Describes a TLS connection as PgBouncer does, such as `TLSv1.3/TLS_AES_256_GCM_SHA384`.
pub(super) fn describe_tls((version, suite): (ProtocolVersion, CipherSuite)) -> String {
    let version = match version {
        ProtocolVersion::TLSv1_2 => "TLSv1.2".to_owned(),
        ProtocolVersion::TLSv1_3 => "TLSv1.3".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{version}/{}", cipher_name(suite))
}

fn versions(leg: &TlsSideConfig) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let all = [
        (TlsVersion::Tls12, &rustls::version::TLS12),
        (TlsVersion::Tls13, &rustls::version::TLS13),
    ];
    let within = |version: TlsVersion| leg.min_version <= version && version <= leg.max_version;
    all.into_iter().filter(|(version, _)| within(*version)).map(|(_, it)| it).collect()
}
