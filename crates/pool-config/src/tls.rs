//! `[pool.tls]`: encryption of connections from clients and to servers.

use std::path::PathBuf;

use howdah_connect::{
    TlsSettings,
    tls::{CipherLists, RootCertificates, SslMode, TlsVersion},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Settings for the encryption of connections from clients and to servers: `[pool.tls]`. Unix
/// sockets are never encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsConfig {
    /// Encryption of connections from clients.
    pub client: TlsSideConfig,
    /// Encryption of connections to servers.
    pub server: TlsSideConfig,
}

/// Settings for the encryption of connections on one side of the pooler: `[pool.tls.client]`,
/// `[pool.tls.server]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsSideConfig {
    /// The encryption mode, named as in libpq's `sslmode`; `None` means the side's default, see
    /// [`TlsConfig::client_mode`] and [`TlsConfig::server_mode`].
    #[serde(with = "mode")]
    pub mode: Option<SslMode>,
    /// File with the pooler's certificate and intermediate certificates, in PEM.
    pub certificate: Option<PathBuf>,
    /// File with the certificate's private key, in PEM.
    pub key: Option<PathBuf>,
    /// File with the trusted certificate authorities, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Oldest TLS version that is accepted.
    #[serde(with = "version")]
    pub min_version: TlsVersion,
    /// Newest TLS version that is accepted.
    #[serde(with = "version")]
    pub max_version: TlsVersion,
    /// Cipher suites of TLS 1.2 in OpenSSL's notation; all if empty.
    pub ciphers: String,
    /// Cipher suites of TLS 1.3 in OpenSSL's notation; all if empty.
    pub tls13_ciphers: String,
}

impl TlsSideConfig {
    /// Returns the cipher suites that may be negotiated.
    pub fn cipher_lists(&self) -> CipherLists {
        CipherLists { tls12: self.ciphers.clone(), tls13: self.tls13_ciphers.clone() }
    }
}

impl Default for TlsSideConfig {
    fn default() -> Self {
        Self {
            mode: None,
            certificate: None,
            key: None,
            ca_file: None,
            min_version: TlsVersion::Tls12,
            max_version: TlsVersion::Tls13,
            ciphers: String::new(),
            tls13_ciphers: String::new(),
        }
    }
}

impl TlsConfig {
    /// Returns the mode for clients: `disable`, the default, refuses TLS; `allow` and `prefer`
    /// offer it; `require` refuses TCP clients without TLS; `verify-ca` and `verify-full` also
    /// require a client certificate of a trusted authority.
    pub fn client_mode(&self) -> SslMode {
        self.client.mode.unwrap_or(SslMode::Disable)
    }

    /// Returns the mode for servers, with libpq's meaning; `prefer` by default.
    pub fn server_mode(&self) -> SslMode {
        self.server.mode.unwrap_or(SslMode::Prefer)
    }

    /// Returns the TLS settings of connections to servers.
    pub fn server_settings(&self) -> TlsSettings {
        let server = &self.server;
        let mut settings = TlsSettings::default();
        settings.mode = self.server_mode();
        settings.root_certificates = match &server.ca_file {
            Some(path) => RootCertificates::File(path.clone()),
            None => RootCertificates::None,
        };
        settings.certificate.clone_from(&server.certificate);
        settings.key.clone_from(&server.key);
        settings.min_version = server.min_version;
        settings.max_version = server.max_version;
        settings.ciphers = server.cipher_lists();
        settings
    }
}

mod mode {
    use serde::de::Error as _;

    use super::{Deserialize as _, Deserializer, Serializer, SslMode};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<SslMode>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let text = String::deserialize(from)?;
        let invalid = || D::Error::custom(format!("{text:?} is not {}", SslMode::EXPECTED));
        SslMode::parse(&text).ok_or_else(invalid).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(it: &Option<SslMode>, to: S) -> Result<S::Ok, S::Error> {
        match it {
            Some(mode) => to.serialize_str(mode.as_str()),
            None => to.serialize_none(),
        }
    }
}

mod version {
    use serde::de::Error as _;

    use super::{Deserialize as _, Deserializer, Serializer, TlsVersion};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TlsVersion, D::Error> {
        let text = String::deserialize(from)?;
        let invalid = || D::Error::custom(format!("{text:?} is neither TLSv1.2 nor TLSv1.3"));
        TlsVersion::parse(&text).ok_or_else(invalid)
    }

    pub(crate) fn serialize<S: Serializer>(it: &TlsVersion, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(it.as_str())
    }
}
