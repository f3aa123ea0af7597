//! The encryption settings, before any file is read.

use super::ciphers::CipherLists;
use std::path::PathBuf;

use crate::{
    choice::choice, environment::Environment, resolve_error::ResolveError, settings::KeywordValues,
};

choice! {
    /// The protection that a connection must have (`sslmode`), from least to most.
    ///
    /// Source: PostgreSQL manual, "SSL Mode Descriptions".
    pub enum SslMode {
        /// No TLS.
        Disable = "disable",
        /// No TLS, unless the server requires it.
        Allow = "allow",
        /// TLS if the server offers it, and otherwise, or if that fails, no TLS.
        Prefer = "prefer",
        /// TLS. The server's certificate is verified only if there is a root certificate file.
        Require = "require",
        /// TLS with a certificate signed by a trusted authority.
        VerifyCa = "verify-ca",
        /// TLS with a certificate signed by a trusted authority for the given host.
        VerifyFull = "verify-full",
    }
}

choice! {
    /// The way in which TLS begins (`sslnegotiation`).
    pub enum SslNegotiation {
        /// The client sends an SSLRequest first.
        Postgres = "postgres",
        /// The client starts the TLS handshake immediately. Requires PostgreSQL 17 or later.
        Direct = "direct",
    }
}

choice! {
    /// The binding of SCRAM to the TLS connection (`channel_binding`).
    pub enum ChannelBindingMode {
        /// SCRAM is never bound.
        Disable = "disable",
        /// SCRAM is bound if both sides support it.
        Prefer = "prefer",
        /// A login that cannot be bound is refused.
        Require = "require",
    }
}

/// A TLS protocol version that this program supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246), with authenticated encryption only.
    Tls12,
    /// TLS 1.3 (RFC 8446), which hides certificates from eavesdroppers.
    Tls13,
}

impl TlsVersion {
    /// Returns the keyword in a connection string, where case does not matter.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls12 => "TLSv1.2",
            Self::Tls13 => "TLSv1.3",
        }
    }

    /// Parses a keyword, in any case; `None` if it names none of these versions.
    pub fn parse(word: &str) -> Option<Self> {
        let mut versions = [Self::Tls12, Self::Tls13].into_iter();
        versions.find(|version| version.as_str().eq_ignore_ascii_case(word))
    }
}

/// The authorities that are trusted (`sslrootcert`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCertificates {
    /// The authorities of the operating system (`sslrootcert=system`).
    System,
    /// The authorities in a PEM file. A file that was set explicitly need not exist unless the mode
    /// verifies certificates.
    File(PathBuf),
    /// No authorities: no file was set, and the default file does not exist.
    None,
}

/// The encryption settings.
///
/// Unix sockets are never encrypted, so these settings do not apply to them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// `sslmode`: the required protection.
    pub mode: SslMode,
    /// `sslnegotiation`: how TLS begins.
    pub negotiation: SslNegotiation,
    /// `sslrootcert`, by default `~/.postgresql/root.crt` if it exists.
    pub root_certificates: RootCertificates,
    /// `sslcrl`: revoked certificates, in PEM. By default `~/.postgresql/root.crl` if it exists,
    /// unless `sslcrldir` or `sslrootcert=system` is set.
    pub revocations: Option<PathBuf>,
    /// `sslcrldir`: a directory of files with revoked certificates.
    pub revocation_directory: Option<PathBuf>,
    /// `sslcert`, by default `~/.postgresql/postgresql.crt` if it exists. A file that was set
    /// explicitly need not exist. Also `None` if `is_certificate_disabled`.
    pub certificate: Option<PathBuf>,
    /// `sslcertmode=disable`: no certificate may be sent, not even the default one.
    pub is_certificate_disabled: bool,
    /// `sslkey`: the key of `certificate`, by default `~/.postgresql/postgresql.key` if it exists.
    pub key: Option<PathBuf>,
    /// `sslsni`: whether the host name is sent unencrypted, for proxies.
    pub sni: bool,
    /// `ssl_min_protocol_version`: the oldest version to accept.
    pub min_version: TlsVersion,
    /// `ssl_max_protocol_version`: the newest version to accept.
    pub max_version: TlsVersion,
    /// The cipher suites that may be negotiated.
    pub ciphers: CipherLists,
    /// `channel_binding`: whether SCRAM must prove that both sides see the same TLS connection.
    pub channel_binding: ChannelBindingMode,
}

impl Default for TlsSettings {
    /// Returns libpq's defaults when no settings or files exist: TLS if the server offers it,
    /// unverified.
    fn default() -> Self {
        Self {
            mode: SslMode::Prefer,
            negotiation: SslNegotiation::Postgres,
            root_certificates: RootCertificates::None,
            revocations: None,
            revocation_directory: None,
            certificate: None,
            is_certificate_disabled: false,
            key: None,
            sni: true,
            min_version: TlsVersion::Tls12,
            max_version: TlsVersion::Tls13,
            ciphers: CipherLists::default(),
            channel_binding: ChannelBindingMode::Prefer,
        }
    }
}

impl TlsSettings {
    /// Returns the channel binding data for a TLS connection with this server certificate: the
    /// value for [`howdah_session::Login::channel_binding`]. `None` if binding is off or not
    /// possible.
    pub fn binding(&self, peer_certificate: Option<&[u8]>) -> Option<Vec<u8>> {
        match self.channel_binding {
            ChannelBindingMode::Disable => None,
            ChannelBindingMode::Prefer | ChannelBindingMode::Require => {
                super::end_point_hash(peer_certificate?)
            }
        }
    }

    pub(crate) fn resolve(
        settings: &KeywordValues,
        environment: &Environment,
    ) -> Result<Self, ResolveError> {
        let usual = |name: &str| {
            environment.home_file(&format!(".postgresql/{name}")).filter(|path| path.exists())
        };
        let file =
            |keyword, name| settings.value(keyword).map(PathBuf::from).or_else(|| usual(name));
        let root_certificates = match settings.value("sslrootcert") {
            Some("system") => RootCertificates::System,
            _ => file("sslrootcert", "root.crt")
                .map_or(RootCertificates::None, RootCertificates::File),
        };
        let revocation_directory = settings.value("sslcrldir").map(PathBuf::from);
        let revocations = match (settings.value("sslcrl"), &revocation_directory) {
            (Some(path), _) => Some(PathBuf::from(path)),
            // The default list contains revocations of the default authority only.
            (None, None) if root_certificates != RootCertificates::System => usual("root.crl"),
            (None, _) => None,
        };
        let is_certificate_disabled = match settings.value("sslcertmode") {
            None | Some("allow") => false,
            Some("disable") => true,
            // The handshake does not reveal whether the server requested the certificate.
            Some("require") => return Err(unsupported(settings, "sslcertmode")),
            Some(other) => {
                return Err(settings.invalid(
                    "sslcertmode",
                    other,
                    "one of: disable allow require",
                ));
            }
        };
        let certificate = file("sslcert", "postgresql.crt").filter(|_| !is_certificate_disabled);
        let tls = Self {
            ciphers: CipherLists::default(),
            mode: resolve_mode(settings, &root_certificates)?,
            negotiation: settings.parsed(
                "sslnegotiation",
                SslNegotiation::Postgres,
                SslNegotiation::EXPECTED,
                SslNegotiation::parse,
            )?,
            root_certificates,
            revocations,
            revocation_directory,
            certificate,
            is_certificate_disabled,
            key: file("sslkey", "postgresql.key"),
            sni: settings.parsed("sslsni", true, "0 or 1", |value| match value {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })?,
            min_version: resolve_min_version(settings)?,
            max_version: settings.parsed(
                "ssl_max_protocol_version",
                TlsVersion::Tls13,
                "TLSv1.2 or TLSv1.3: older versions are not supported",
                TlsVersion::parse,
            )?,
            channel_binding: settings.parsed(
                "channel_binding",
                ChannelBindingMode::Prefer,
                ChannelBindingMode::EXPECTED,
                ChannelBindingMode::parse,
            )?,
        };
        tls.check(settings)?;
        Ok(tls)
    }

    /// Rejects combinations that promise more protection than they provide, and an empty range of
    /// TLS versions.
    fn check(&self, settings: &KeywordValues) -> Result<(), ResolveError> {
        let weak = |option, needed| {
            Err(ResolveError::WeakSslMode { mode: self.mode.as_str(), option, needed })
        };
        if self.root_certificates == RootCertificates::System && self.mode < SslMode::VerifyFull {
            return weak("sslrootcert=system", "verify-full");
        }
        if self.negotiation == SslNegotiation::Direct && self.mode < SslMode::Require {
            return weak("sslnegotiation=direct", "require, verify-ca or verify-full");
        }
        if self.min_version > self.max_version {
            let max = self.max_version.as_str();
            let expected = "at least ssl_min_protocol_version";
            return Err(settings.invalid("ssl_max_protocol_version", max, expected));
        }
        Ok(())
    }
}

fn resolve_mode(
    settings: &KeywordValues,
    roots: &RootCertificates,
) -> Result<SslMode, ResolveError> {
    let default = match (settings.value("requiressl"), roots) {
        // The system's authorities sign certificates for anyone, so only the name identifies a
        // server.
        (_, RootCertificates::System) => SslMode::VerifyFull,
        (Some("1"), _) => SslMode::Require,
        _ => SslMode::Prefer,
    };
    settings.parsed("sslmode", default, SslMode::EXPECTED, SslMode::parse)
}

fn resolve_min_version(settings: &KeywordValues) -> Result<TlsVersion, ResolveError> {
    // Older versions were never supported, so a lower minimum is always met.
    settings.parsed("ssl_min_protocol_version", TlsVersion::Tls12, "a TLS version", |value| {
        let older = ["TLSv1", "TLSv1.1"].iter().any(|name| name.eq_ignore_ascii_case(value));
        if older { Some(TlsVersion::Tls12) } else { TlsVersion::parse(value) }
    })
}

/// Returns the error for a value that requests unsupported protection.
pub(crate) fn unsupported(settings: &KeywordValues, keyword: &'static str) -> ResolveError {
    ResolveError::Unsupported {
        keyword,
        value: settings.value(keyword).unwrap_or_default().to_owned(),
        origin: settings.origin(keyword),
    }
}
