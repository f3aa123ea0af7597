//! Errors in the files and settings of TLS.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The reason why TLS settings cannot be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The mode verifies certificates, but there are no root certificates.
    #[error(
        "root certificate file {} does not exist: provide it, use the system's trusted roots with \
         sslrootcert=system, or do without verification with sslmode=require",
        .path.as_deref().unwrap_or("~/.postgresql/root.crt".as_ref()).display()
    )]
    NoRootCertificate {
        /// The file named by `sslrootcert`; `None` if it is not set and the default file does not
        /// exist.
        path: Option<PathBuf>,
    },
    /// The operating system has no usable root certificates.
    #[error("the system's root certificates cannot be used")]
    SystemRoots(#[source] rustls::Error),
    /// A list of revoked certificates cannot be combined with the system's root certificates.
    #[error("sslcrl and sslcrldir cannot be used together with sslrootcert=system")]
    RevocationsOfSystem,
    /// A file or directory cannot be read, or a file is not valid PEM.
    #[error("cannot read {}", .path.display())]
    File {
        /// Path of the file or directory with the problem.
        path: PathBuf,
        /// The error of the operating system or of the PEM parser.
        source: io::Error,
    },
    /// A file contains none of the expected items.
    #[error("{} contains no {what}", .path.display())]
    Empty {
        /// Path of the file with the problem.
        path: PathBuf,
        /// Description of the expected content.
        what: &'static str,
    },
    /// An item in a file is invalid.
    #[error("{} contains a {what} that cannot be used", .path.display())]
    Unusable {
        /// Path of the file with the problem.
        path: PathBuf,
        /// Description of the invalid item.
        what: &'static str,
        /// The reason that rustls gives.
        source: rustls::Error,
    },
    /// A private key cannot be used, usually because of its type or size.
    #[error(
        "private key {} cannot be used: it must be RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384, or \
         Ed25519; `openssl pkey -in FILE -noout -text` shows what it is", .path.display()
    )]
    UnusableKey {
        /// Path of the key file.
        path: PathBuf,
        /// The reason that rustls gives.
        source: rustls::Error,
    },
    /// A private key does not match the certificate.
    #[error("private key {} does not belong to certificate {}", .key.display(), .certificate.display())]
    WrongKey {
        /// Path of the key file.
        key: PathBuf,
        /// Path of the certificate file.
        certificate: PathBuf,
    },
    /// A client certificate has no key.
    #[error(
        "certificate {} has no private key: {} does not exist",
        .certificate.display(), .key.as_deref().unwrap_or("~/.postgresql/postgresql.key".as_ref()).display()
    )]
    NoKey {
        /// Path of the certificate file.
        certificate: PathBuf,
        /// The file named by `sslkey`; `None` if it is not set and the default file does not exist.
        key: Option<PathBuf>,
    },
    /// The private key is encrypted with a passphrase.
    #[error(
        "private key {} is encrypted, which is not supported: decrypt it with openssl pkey",
        .path.display()
    )]
    EncryptedKey {
        /// Path of the key file.
        path: PathBuf,
    },
    /// The private key is accessible to others.
    #[error(
        "private key {} has mode {mode:04o}: it must be 0600 or less, or 0640 or less if root owns it",
        .path.display()
    )]
    KeyPermissions {
        /// Path of the key file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The host is neither a DNS name nor an address.
    #[error("host {host:?} is neither a DNS name nor an IP address, as TLS requires")]
    ServerName {
        /// The host from the connection parameters.
        host: String,
    },
    /// rustls rejects the settings.
    #[error("TLS cannot be configured")]
    Configuration(#[from] rustls::Error),
}

impl TlsError {
    /// Returns the file that must be fixed, if the error is about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::NoRootCertificate { path } => path.as_deref(),
            Self::File { path, .. }
            | Self::Empty { path, .. }
            | Self::Unusable { path, .. }
            | Self::UnusableKey { path, .. }
            | Self::EncryptedKey { path }
            | Self::KeyPermissions { path, .. } => Some(path),
            Self::WrongKey { key, .. } => Some(key),
            Self::NoKey { key, certificate } => Some(key.as_ref().unwrap_or(certificate)),
            Self::SystemRoots(_)
            | Self::RevocationsOfSystem
            | Self::ServerName { .. }
            | Self::Configuration(_) => None,
        }
    }
}
