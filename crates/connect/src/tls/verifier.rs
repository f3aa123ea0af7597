//! Verifies peers' certificates: a server's by the rules that libpq users rely on, a client's by
//! PostgreSQL's rules.
//!
//! webpki verifies certificates, but rejects three kinds that OpenSSL accepts and that PostgreSQL
//! installations use:
//!
//! - one that has the server's name only in the subject's common name;
//! - a self-signed certificate that is both the server's and the trusted root;
//! - one of version 1, which `openssl x509 -req` created before OpenSSL 3.2 if one followed the
//!   instructions in PostgreSQL's manual.
//!
//! If webpki rejects a certificate of one of these kinds, this module verifies it: the common name
//! if the name was the only fault; signature and validity for the other two. It does the latter for
//! a server's certificate only if the authorities come from a file, without revocation lists.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::WebPkiSupportedAlgorithms,
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::x509::Certificate;

/// Verifies servers' certificates.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: TrustAnchors,
    check_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The trust anchors for server certificates.
#[derive(Debug)]
pub(super) enum TrustAnchors {
    /// Any certificate is accepted: TLS only protects against passive eavesdropping.
    Any,
    /// The authorities in a file.
    Authorities(Authorities),
    /// The authorities of the operating system.
    System(rustls_platform_verifier::Verifier),
}

#[derive(Debug)]
pub(super) struct Authorities {
    pub(super) webpki: Arc<WebPkiServerVerifier>,
    /// The same authorities, as complete certificates.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Whether revocation lists were given.
    pub(super) has_revocations: bool,
}

impl ServerVerifier {
    pub(super) fn new(
        trust: TrustAnchors,
        check_name: bool,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { trust, check_name, algorithms }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier: &dyn ServerCertVerifier = match &self.trust {
            TrustAnchors::Any => return Ok(ServerCertVerified::assertion()),
            TrustAnchors::Authorities(authorities) => &*authorities.webpki,
            TrustAnchors::System(verifier) => verifier,
        };
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let named = match (verified, &self.trust) {
            // The name is checked last, so everything else in the certificate is valid here.
            (verified, _) if verified.as_ref().err().is_none_or(is_wrong_name) => {
                verified.map(drop)
            }
            (Err(error), TrustAnchors::Authorities(authorities)) => {
                let Authorities { certificates, has_revocations, .. } = authorities;
                if *has_revocations
                    || !is_signed_by_any(certificates, end_entity, now, &self.algorithms)?
                {
                    return Err(error);
                }
                // webpki cannot parse a certificate of version 1, which has no alternative names.
                ParsedCertificate::try_from(end_entity)
                    .map_err(|_| CertificateError::NotValidForName.into())
                    .and_then(|certificate| verify_server_name(&certificate, server_name))
            }
            (verified, _) => return verified,
        };
        match named {
            Err(error) if self.check_name && !common_name_matches(end_entity, server_name) => {
                Err(error)
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verify = rustls::crypto::verify_tls12_signature;
        verify_handshake(message, cert, dss, verify, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verify = rustls::crypto::verify_tls13_signature;
        verify_handshake(message, cert, dss, verify, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

type VerifySignature = fn(
    &[u8],
    &CertificateDer<'_>,
    &DigitallySignedStruct,
    &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error>;

/// Verifies that the peer has the key of its certificate.
fn verify_handshake(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    verify: VerifySignature,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(certificate) = Certificate::parse(cert).filter(|cert| cert.version < 3) else {
        return verify(message, cert, dss, algorithms);
    };
    let schemes = algorithms.mapping.iter();
    let valid = schemes.filter(|(scheme, _)| *scheme == dss.scheme).any(|(_, algorithms)| {
        algorithms.iter().any(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == certificate.key_algorithm
                && algorithm.verify_signature(certificate.key, message, dss.signature()).is_ok()
        })
    });
    if valid {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// Verifies clients' certificates.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    /// The authorities, as complete certificates.
    certificates: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    pub(super) fn new(
        webpki: Arc<dyn ClientCertVerifier>,
        certificates: Vec<CertificateDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { webpki, certificates, algorithms }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.webpki.verify_client_cert(end_entity, intermediates, now);
        let Err(error) = verified else { return verified };
        if is_signed_by_any(&self.certificates, end_entity, now, &self.algorithms)? {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(error)
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verify = rustls::crypto::verify_tls12_signature;
        verify_handshake(message, cert, dss, verify, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verify = rustls::crypto::verify_tls13_signature;
        verify_handshake(message, cert, dss, verify, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether one of these authorities directly signed a certificate that webpki does not support: one
/// of version 1, or a self-signed one that is itself among the authorities.
///
/// # Errors
///
/// An authority signed it, but the certificate is not valid now.
fn is_signed_by_any(
    authorities: &[CertificateDer<'static>],
    end_entity: &CertificateDer<'_>,
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<bool, Error> {
    let Some(certificate) = Certificate::parse(end_entity) else { return Ok(false) };
    let own_authority = authorities.iter().any(|root| root == end_entity);
    if !own_authority && certificate.version >= 3 {
        return Ok(false);
    }
    let signed_by = |root: &CertificateDer<'_>| {
        Certificate::parse(root).is_some_and(|root| is_signed_by(&certificate, &root, algorithms))
    };
    if !authorities.iter().any(signed_by) {
        return Ok(false);
    }
    let Some((from, until)) = certificate.validity() else { return Ok(false) };
    match now.as_secs() {
        now if now < from => Err(CertificateError::NotValidYet.into()),
        now if now > until => Err(CertificateError::Expired.into()),
        _ => Ok(true),
    }
}

fn is_signed_by(
    certificate: &Certificate<'_>,
    issuer: &Certificate<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    certificate.issuer == issuer.subject
        && algorithms.all.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == certificate.signature_algorithm
                && algorithm.public_key_alg_id().as_ref() == issuer.key_algorithm
                && algorithm
                    .verify_signature(issuer.key, certificate.signed, certificate.signature)
                    .is_ok()
        })
}

fn is_wrong_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

/// Whether the common name matches the server's name, provided the certificate has no alternative
/// names of the same kind. Source: PostgreSQL manual, "Client Verification of Server Certificates".
fn common_name_matches(end_entity: &CertificateDer<'_>, server_name: &ServerName<'_>) -> bool {
    let Some(certificate) = Certificate::parse(end_entity) else { return false };
    let is_address = matches!(server_name, ServerName::IpAddress(_));
    if certificate.has_alternative_name(is_address) != Some(false) {
        return false;
    }
    let host = server_name.to_str();
    certificate.common_name().is_some_and(|name| {
        name.eq_ignore_ascii_case(&host) || (!is_address && matches_wildcard(name, &host))
    })
}

/// Whether `*.rest` matches `label.rest`. The star matches one label only.
fn matches_wildcard(pattern: &str, host: &str) -> bool {
    let Some(rest) = pattern.strip_prefix("*.") else { return false };
    host.split_once('.').is_some_and(|(label, after)| {
        !label.is_empty() && !rest.is_empty() && after.eq_ignore_ascii_case(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_matches_one_label() {
        assert!(matches_wildcard("*.example.com", "db1.Example.com"));
        assert!(!matches_wildcard("*.example.com", "a.db1.example.com"));
        assert!(!matches_wildcard("*.example.com", "example.com"));
        assert!(!matches_wildcard("*.example.com", ".example.com"));
        assert!(!matches_wildcard("*", "localhost"));
        assert!(!matches_wildcard("db*.example.com", "db1.example.com"));
    }
}
