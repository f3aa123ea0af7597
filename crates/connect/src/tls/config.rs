//! The rustls configuration for given TLS settings.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, ring::default_provider},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::{
    error::TlsError,
    files,
    negotiation::ALPN_PROTOCOL,
    settings::{RootCertificates, SslMode, TlsSettings, TlsVersion},
    verifier::{Authorities, ClientVerifier, ServerVerifier, TrustAnchors},
    x509::has_key,
};
use crate::Endpoint;

/// Returns the client configuration for these settings. Create it once and share it, because it
/// reads files.
///
/// # Errors
///
/// A file is missing, unreadable or invalid, the key belongs to another certificate, the system's
/// root certificates cannot be used, or the settings contradict each other.
pub fn client_config(settings: &TlsSettings) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(settings.ciphers.provider());
    let verifier = ServerVerifier::new(
        trust_anchors(settings, &provider)?,
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

/// Returns the server's name for TLS: `verify-full` compares it with the certificate, and if it is
/// a DNS name, SNI sends it.
///
/// # Errors
///
/// The host is neither a DNS name nor an IP address, or the endpoint is a unix socket.
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

/// Returns the trusted authorities. As in libpq, an existing root certificate file is used in every
/// mode.
fn trust_anchors(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<TrustAnchors, TlsError> {
    let missing = |path: Option<&std::path::PathBuf>| {
        if settings.mode >= SslMode::VerifyCa {
            Err(TlsError::NoRootCertificate { path: path.cloned() })
        } else {
            Ok(TrustAnchors::Any)
        }
    };
    let path = match &settings.root_certificates {
        RootCertificates::None => return missing(None),
        RootCertificates::File(path) if !path.exists() => return missing(Some(path)),
        RootCertificates::File(path) => path,
        RootCertificates::System => return system_trust_anchors(settings, provider),
    };
    let (certificates, roots) = roots(path)?;
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
    Ok(TrustAnchors::Authorities(Authorities { webpki, certificates, has_revocations }))
}

/// Returns all certificates of a file, and a store of those that rustls accepts as authorities. The
/// store contains at least one.
fn roots(path: &Path) -> Result<(Vec<CertificateDer<'static>>, RootCertStore), TlsError> {
    let certificates = files::certificates(path)?;
    let mut roots = RootCertStore::empty();
    let mut first_error = None;
    for certificate in &certificates {
        // A large bundle may contain a few certificates that rustls cannot parse; one valid
        // certificate is sufficient.
        if let Err(error) = roots.add(certificate.clone()) {
            first_error.get_or_insert(error);
        }
    }
    match first_error.filter(|_| roots.is_empty()) {
        Some(source) => {
            Err(TlsError::Unusable { path: path.to_owned(), what: "root certificate", source })
        }
        None => Ok((certificates, roots)),
    }
}

fn system_trust_anchors(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<TrustAnchors, TlsError> {
    if settings.revocations.is_some() || settings.revocation_directory.is_some() {
        return Err(TlsError::RevocationsOfSystem);
    }
    let verifier = rustls_platform_verifier::Verifier::new(provider.clone());
    Ok(TrustAnchors::System(verifier.map_err(TlsError::SystemRoots)?))
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

/// Returns the client's certificate chain and private key, if a certificate file exists.
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
    certified((path, certificates), (key_path, files::private_key(key_path)?), provider).map(Some)
}

/// Loads a server's certificate chain and private key. Unlike rustls itself, this accepts
/// certificates of version 1, which the instructions in PostgreSQL's manual produce; the client
/// decides whether to trust one.
///
/// # Errors
///
/// A file is missing, unreadable or invalid, or the key belongs to another certificate.
pub fn server_identity(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let certificates = files::certificates(certificate)?;
    let private = files::private_key_unchecked(key)?;
    certified((certificate, certificates), (key, private), &default_provider())
}

/// Checks that a file contains certificates.
///
/// # Errors
///
/// The file is missing or unreadable, is not valid PEM, or contains no certificate.
pub fn check_certificates(path: &Path) -> Result<(), TlsError> {
    files::certificates(path).map(drop)
}

/// Checks that a file contains a usable private key.
///
/// # Errors
///
/// The file is missing or unreadable, or contains no key, an encrypted one, or one of an
/// unsupported type.
pub fn check_private_key(path: &Path) -> Result<(), TlsError> {
    let key = files::private_key_unchecked(path)?;
    let loaded = default_provider().key_provider.load_private_key(key);
    loaded.map(drop).map_err(|source| TlsError::UnusableKey { path: path.to_owned(), source })
}

/// Checks that a file contains certificates of authorities.
///
/// # Errors
///
/// The file is missing or unreadable, is not valid PEM, or contains no certificate that can be an
/// authority's.
pub fn check_authorities(path: &Path) -> Result<(), TlsError> {
    roots(path).map(drop)
}

/// Returns a verifier of clients' certificates that trusts the authorities in a file. Clients
/// without a certificate are accepted unless `required`. Certificates of version 1 are accepted if
/// an authority signed them directly.
///
/// # Errors
///
/// The file is missing, unreadable or invalid.
pub fn client_verifier(
    authorities: &Path,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let provider = Arc::new(default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let (certificates, roots) = roots(authorities)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    let webpki = builder.build().map_err(|error| TlsError::Unusable {
        path: authorities.to_owned(),
        what: "root certificate",
        source: rustls::Error::General(error.to_string()),
    })?;
    Ok(Arc::new(ClientVerifier::new(webpki, certificates, algorithms)))
}

/// Combines a certificate chain with its key, and checks that they match, if the certificate can be
/// parsed. The check of rustls parses only certificates of version 3.
fn certified(
    (path, certificates): (&Path, Vec<CertificateDer<'static>>),
    (key_path, key): (&Path, PrivateKeyDer<'static>),
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let unusable = |source| TlsError::UnusableKey { path: key_path.to_owned(), source };
    let key = provider.key_provider.load_private_key(key).map_err(unusable)?;
    let own = certificates.first().map(AsRef::as_ref).unwrap_or_default();
    let public = key.public_key();
    if public.is_some_and(|public| has_key(own, &public) == Some(false)) {
        let (key, certificate) = (key_path.to_owned(), path.to_owned());
        return Err(TlsError::WrongKey { key, certificate });
    }
    Ok(CertifiedKey::new(certificates, key))
}
