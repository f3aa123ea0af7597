//! Whether a peer's certificate is to be believed: a server's by the rules that libpq users rely on, a
//! client's by those of PostgreSQL.
//!
//! webpki does the work. Three things that OpenSSL takes, and that PostgreSQL installations have,
//! it does not:
//!
//! - a name that stands only in the subject's common name;
//! - a self-signed certificate that is both the server's and the root that is trusted;
//! - a certificate of version 1, as `openssl x509 -req` made them before OpenSSL 3.2, and with it
//!   the recipe of PostgreSQL's manual.
//!
//! They are verified here, each after webpki has said no for just that reason.

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

/// Judges servers' certificates.
#[derive(Debug)]
pub(super) struct Verifier {
    trust: Trust,
    check_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Who may vouch for a server.
#[derive(Debug)]
pub(super) enum Trust {
    /// Nobody has to: TLS keeps out those who only listen.
    Anybody,
    /// The authorities of a file.
    Authorities(Authorities),
    /// The authorities of the operating system.
    System(rustls_platform_verifier::Verifier),
}

#[derive(Debug)]
pub(super) struct Authorities {
    pub(super) webpki: Arc<WebPkiServerVerifier>,
    /// The same authorities, whole.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Whether revocations have to be looked for.
    pub(super) has_revocations: bool,
}

impl Verifier {
    pub(super) fn new(
        trust: Trust,
        check_name: bool,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { trust, check_name, algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier: &dyn ServerCertVerifier = match &self.trust {
            Trust::Anybody => return Ok(ServerCertVerified::assertion()),
            Trust::Authorities(authorities) => &*authorities.webpki,
            Trust::System(verifier) => verifier,
        };
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let named = match (verified, &self.trust) {
            // The name is looked at last: all else is well.
            (verified, _) if verified.as_ref().err().is_none_or(is_wrong_name) => {
                verified.map(drop)
            }
            (Err(error), Trust::Authorities(authorities)) => {
                let Authorities { certificates, has_revocations, .. } = authorities;
                if *has_revocations
                    || !vouch_directly(certificates, end_entity, now, &self.algorithms)?
                {
                    return Err(error);
                }
                // One of version 1 cannot be read here, and has no alternative names.
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

/// Judges clients' certificates.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    /// The authorities, whole.
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
        match vouch_directly(&self.certificates, end_entity, now, &self.algorithms)? {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(error),
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

/// Whether one of these authorities has itself signed a certificate that webpki has no rules for: one of
/// version 1, or one that is its own authority.
///
/// # Errors
///
/// One has, but the certificate is not valid now.
fn vouch_directly(
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
    let (from, until) = certificate.validity;
    match i64::try_from(now.as_secs()).unwrap_or(i64::MAX) {
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

/// Whether the common name is the server's, in a certificate without alternative names of that
/// kind. Source: PostgreSQL manual, "Client Verification of Server Certificates".
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

/// Whether `*.rest` stands for `label.rest`. The star is for one label, not for several.
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
    fn a_star_is_for_one_label() {
        assert!(matches_wildcard("*.example.com", "db1.Example.com"));
        assert!(!matches_wildcard("*.example.com", "a.db1.example.com"));
        assert!(!matches_wildcard("*.example.com", "example.com"));
        assert!(!matches_wildcard("*.example.com", ".example.com"));
        assert!(!matches_wildcard("*", "localhost"));
        assert!(!matches_wildcard("db*.example.com", "db1.example.com"));
    }
}
