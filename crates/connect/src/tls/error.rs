//! What can be wrong with the files and settings of TLS.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The settings for TLS cannot be put into effect. Nothing was sent yet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A verifying mode without anything to verify by.
    #[error(
        "root certificate file {} does not exist: provide it, use the system's trusted roots with \
         sslrootcert=system, or do without verification with sslmode=require",
        .path.as_deref().unwrap_or("~/.postgresql/root.crt".as_ref()).display()
    )]
    NoRootCertificate {
        /// Where it was looked for, if there is a home directory.
        path: Option<PathBuf>,
    },
    /// The operating system has no root certificates, or none that can be used.
    #[error("the system's root certificates cannot be used")]
    SystemRoots(#[source] rustls::Error),
    /// A list of revoked certificates cannot be combined with the system's root certificates.
    #[error("sslcrl and sslcrldir cannot be used together with sslrootcert=system")]
    RevocationsOfSystem,
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file holds nothing of what it should.
    #[error("{} holds no {what}", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// Something in a file cannot be used.
    #[error("{} holds a {what} that cannot be used", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// A private key is of a kind or size that is not supported.
    #[error(
        "private key {} cannot be used: it must be RSA of 2048 to 8192 bits, ECDSA on P-256 or P-384, or \
         Ed25519; `openssl pkey -in FILE -noout -text` shows what it is", .path.display()
    )]
    UnusableKey {
        /// The key's file.
        path: PathBuf,
        /// What rustls says of it.
        source: rustls::Error,
    },
    /// A private key belongs to another certificate.
    #[error("private key {} does not belong to certificate {}", .key.display(), .certificate.display())]
    WrongKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// There is a client certificate, but no key for it.
    #[error(
        "certificate {} has no private key: {} does not exist",
        .certificate.display(), .key.as_deref().unwrap_or("~/.postgresql/postgresql.key".as_ref()).display()
    )]
    NoKey {
        /// The certificate's file.
        certificate: PathBuf,
        /// Where the key was looked for.
        key: Option<PathBuf>,
    },
    /// The private key has a passphrase.
    #[error(
        "private key {} is encrypted, which is not supported: decrypt it with openssl pkey",
        .path.display()
    )]
    EncryptedKey {
        /// The key's file.
        path: PathBuf,
    },
    /// Others may read the private key.
    #[error(
        "private key {} has mode {mode:04o}: it must be 0600 or less, or 0640 or less if root owns it",
        .path.display()
    )]
    KeyPermissions {
        /// The key's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The host is neither a DNS name nor an address.
    #[error("{host:?} cannot be the name of a TLS server")]
    ServerName {
        /// The host.
        host: String,
    },
    /// rustls does not accept the settings.
    #[error("TLS cannot be configured")]
    Configuration(#[from] rustls::Error),
}

impl TlsError {
    /// The file that is to be mended, if it is one.
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
