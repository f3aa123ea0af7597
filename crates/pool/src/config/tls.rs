//! Encryption of both legs, as it is written.

use std::path::PathBuf;

use howdah_connect::{
    TlsSettings,
    tls::{RootCertificates, SslMode, TlsVersion},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Encryption of both legs: `[pool.tls]`. Unix sockets carry none, whatever the mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tls {
    /// Between clients and us.
    pub client: TlsLeg,
    /// Between us and servers.
    pub server: TlsLeg,
}

/// Encryption of one leg: `[pool.tls.client]`, `[pool.tls.server]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsLeg {
    /// How much there must be; the leg's own default if none is given. [`Tls::client_mode`] and
    /// [`Tls::server_mode`] tell.
    #[serde(with = "mode")]
    pub mode: Option<SslMode>,
    /// Our certificate and those between it and its authority, in PEM.
    pub certificate: Option<PathBuf>,
    /// The certificate's key, in PEM.
    pub key: Option<PathBuf>,
    /// Whom we believe, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Oldest version.
    #[serde(with = "version")]
    pub min_version: TlsVersion,
    /// Newest version.
    #[serde(with = "version")]
    pub max_version: TlsVersion,
}

impl Default for TlsLeg {
    fn default() -> Self {
        Self {
            mode: None,
            certificate: None,
            key: None,
            ca_file: None,
            min_version: TlsVersion::Tls12,
            max_version: TlsVersion::Tls13,
        }
    }
}

impl Tls {
    /// What clients get: `disable`, the default, answers no to who asks for TLS; `allow` and
    /// `prefer` answer yes; `require` lets in nobody without; `verify-ca` and `verify-full` nobody
    /// without a certificate of the authorities.
    pub fn client_mode(&self) -> SslMode {
        self.client.mode.unwrap_or(SslMode::Disable)
    }

    /// What servers must have, in libpq's sense; `prefer` unless told otherwise.
    pub fn server_mode(&self) -> SslMode {
        self.server.mode.unwrap_or(SslMode::Prefer)
    }

    /// The server's leg in libpq's words, from which a connection's configuration is made.
    pub fn server_settings(&self) -> TlsSettings {
        let leg = &self.server;
        let mut settings = TlsSettings::default();
        settings.mode = self.server_mode();
        settings.root_certificates = match &leg.ca_file {
            Some(path) => RootCertificates::File(path.clone()),
            None => RootCertificates::None,
        };
        settings.certificate.clone_from(&leg.certificate);
        settings.key.clone_from(&leg.key);
        settings.min_version = leg.min_version;
        settings.max_version = leg.max_version;
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
        let word = String::deserialize(from)?;
        let wrong = || D::Error::custom(format!("{word:?} is not {}", SslMode::EXPECTED));
        SslMode::parse(&word).ok_or_else(wrong).map(Some)
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
        let word = String::deserialize(from)?;
        let wrong = || D::Error::custom(format!("{word:?} is neither TLSv1.2 nor TLSv1.3"));
        TlsVersion::parse(&word).ok_or_else(wrong)
    }

    pub(crate) fn serialize<S: Serializer>(it: &TlsVersion, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(it.as_str())
    }
}
