//! The rustls configuration that does what was asked for.

use std::sync::Arc;

use rustls::{
    ClientConfig, InconsistentKeys, RootCertStore, SupportedProtocolVersion,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, ring::default_provider},
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use rustls_pki_types::ServerName;

use super::{
    error::TlsError,
    files,
    negotiation::ALPN_PROTOCOL,
    settings::{RootCertificates, SslMode, TlsSettings, TlsVersion},
    verifier::{Authorities, Trust, Verifier},
};
use crate::Endpoint;

/// The configuration for connections of these settings. Make it once and share it: it reads files.
///
/// # Errors
///
/// A file is missing, unreadable or not what it should be.
pub fn client_config(settings: &TlsSettings) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(default_provider());
    let verifier = Verifier::new(
        trust(settings, &provider)?,
        settings.mode == SslMode::VerifyFull,
        provider.signature_verification_algorithms,
    );
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(settings))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity(settings, &provider)? {
        Some(identity) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
        }
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = settings.sni;
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// The name that a server's certificate must be for, and that is sent to it as SNI.
///
/// # Errors
///
/// The host is neither a DNS name nor an address; a unix socket has no name at all.
pub fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, TlsError> {
    let host = endpoint.host();
    ServerName::try_from(host.as_ref())
        .map(|name| name.to_owned())
        .map_err(|_| TlsError::ServerName { host: host.into_owned() })
}

fn versions(settings: &TlsSettings) -> Vec<&'static SupportedProtocolVersion> {
    [(TlsVersion::Tls13, &TLS13), (TlsVersion::Tls12, &TLS12)]
        .into_iter()
        .filter(|(version, _)| (settings.min_version..=settings.max_version).contains(version))
        .map(|(_, supported)| supported)
        .collect()
}

/// Whom to believe. A root certificate file is believed in every mode, as libpq does.
fn trust(settings: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<Trust, TlsError> {
    let missing = |path: Option<&std::path::PathBuf>| {
        if settings.mode >= SslMode::VerifyCa {
            Err(TlsError::NoRootCertificate { path: path.cloned() })
        } else {
            Ok(Trust::Anybody)
        }
    };
    let path = match &settings.root_certificates {
        RootCertificates::None => return missing(None),
        RootCertificates::File(path) if !path.exists() => return missing(Some(path)),
        RootCertificates::File(path) => path,
        RootCertificates::System => return system_trust(settings, provider),
    };
    let certificates = files::certificates(path)?;
    let mut roots = RootCertStore::empty();
    let mut first_error = None;
    for certificate in &certificates {
        // A large bundle may hold a few that rustls cannot read; one that can be read will do.
        if let Err(error) = roots.add(certificate.clone()) {
            first_error.get_or_insert(error);
        }
    }
    if let Some(source) = first_error.filter(|_| roots.is_empty()) {
        return Err(TlsError::Unusable { path: path.clone(), what: "root certificate", source });
    }
    let revocations = revocations(settings)?;
    let has_revocations = !revocations.is_empty();
    let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .with_crls(revocations)
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| TlsError::Unusable {
            path: settings.revocations.clone().unwrap_or_else(|| path.clone()),
            what: "list of revoked certificates",
            source: rustls::Error::General(error.to_string()),
        })?;
    Ok(Trust::Authorities(Authorities { webpki, certificates, has_revocations }))
}

fn system_trust(settings: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<Trust, TlsError> {
    if settings.revocations.is_some() || settings.revocation_directory.is_some() {
        return Err(TlsError::RevocationsOfSystem);
    }
    let verifier = rustls_platform_verifier::Verifier::new(provider.clone());
    Ok(Trust::System(verifier.map_err(TlsError::SystemRoots)?))
}

fn revocations(
    settings: &TlsSettings,
) -> Result<Vec<rustls_pki_types::CertificateRevocationListDer<'static>>, TlsError> {
    let mut paths: Vec<_> = settings.revocations.iter().cloned().collect();
    if let Some(folder) = &settings.revocation_directory {
        paths.extend(files::entries(folder)?);
    }
    let mut lists = Vec::new();
    for path in paths {
        lists.extend(files::revocations(&path)?);
    }
    Ok(lists)
}

/// The client's own certificate and key, if it has them.
fn identity(
    settings: &TlsSettings,
    provider: &CryptoProvider,
) -> Result<Option<CertifiedKey>, TlsError> {
    let Some(path) = settings.certificate.as_ref().filter(|path| path.exists()) else {
        return Ok(None);
    };
    let key_path = settings
        .key
        .as_ref()
        .filter(|path| path.exists())
        .ok_or_else(|| TlsError::NoKey { certificate: path.clone(), key: settings.key.clone() })?;
    let certificates = files::certificates(path)?;
    let unusable =
        |source| TlsError::Unusable { path: key_path.clone(), what: "private key", source };
    let key =
        provider.key_provider.load_private_key(files::private_key(key_path)?).map_err(unusable)?;
    let identity = CertifiedKey::new(certificates, key);
    match identity.keys_match() {
        Err(error @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(unusable(error))
        }
        // What rustls cannot read in our own certificate is for the server to judge.
        _ => Ok(Some(identity)),
    }
}
