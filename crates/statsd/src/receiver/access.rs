//! [`StreamAccess`]: TLS and tokens that a listener demands from its connections.
//!
//! The files are read when the listener opens, and again on reload, for connections accepted from
//! then on.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use howdah_connect::tls::{TlsError, client_verifier, server_identity};
use parking_lot::RwLock;
use rustls::{ServerConfig, crypto::ring::default_provider, sign::SingleCertAndKey};
use subtle::{Choice, ConstantTimeEq as _};

use crate::settings::ListenSettings;

/// Maximum size of a token file in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a token in bytes.
const TOKEN_BYTES_MAX: usize = 1024;
/// The word before the token in a connection's first line.
pub(crate) const TOKEN_COMMAND: &[u8] = b"auth ";
/// Maximum length of the line with the token, with its `\r`.
pub(crate) const TOKEN_LINE_BYTES_MAX: usize = TOKEN_COMMAND.len() + TOKEN_BYTES_MAX + 1;

/// The reason why the files of a listener cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamAccessError {
    /// A certificate, key or authority file cannot be used, or TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token file cannot be read, or is too large.
    #[error("cannot read the token file {}", .path.display())]
    TokenFile {
        /// The configured path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Others than the owner may read or change the token file.
    #[error(
        "token file {} has mode {mode:04o}, which lets others use it: run `chmod 600` on it",
        .path.display()
    )]
    TokenPermissions {
        /// The configured path.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// The token file has no usable token.
    #[error("token file {}: {reason}", .path.display())]
    TokenContent {
        /// The configured path.
        path: PathBuf,
        /// The requirement that the content violates.
        reason: &'static str,
    },
}

/// The access rules of a listener for streams.
#[derive(Debug)]
pub(crate) struct StreamAccess {
    files: AccessFiles,
    secrets: RwLock<Arc<AccessSecrets>>,
    /// Maximum time for the TLS handshake and the token.
    pub(crate) timeout: Duration,
}

/// The paths of a listener's files.
#[derive(Clone, Debug)]
struct AccessFiles {
    /// Certificate and key.
    identity: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    tokens: Option<PathBuf>,
}

/// The content of a listener's files.
pub(crate) struct AccessSecrets {
    pub(crate) tls: Option<Arc<ServerConfig>>,
    tokens: Option<Vec<Box<[u8]>>>,
}

/// Omits the tokens.
impl fmt::Debug for AccessSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessSecrets")
            .field("tls", &self.tls.is_some())
            .field("tokens", &self.tokens.as_ref().map(Vec::len))
            .finish()
    }
}

impl StreamAccess {
    /// Reads the files of a listener; `None` if it demands neither TLS nor a token.
    ///
    /// # Errors
    ///
    /// A file cannot be used.
    pub(crate) fn open(listen: &ListenSettings) -> Result<Option<Arc<Self>>, StreamAccessError> {
        let (ListenSettings::Tcp {
            tls_certificate,
            tls_key,
            client_ca,
            token_file,
            handshake_timeout: timeout,
            ..
        }
        | ListenSettings::Forward {
            tls_certificate,
            tls_key,
            client_ca,
            token_file,
            handshake_timeout: timeout,
            ..
        }) = listen
        else {
            return Ok(None);
        };
        let identity = tls_certificate.clone().zip(tls_key.clone());
        if identity.is_none() && token_file.is_none() {
            return Ok(None);
        }
        let files =
            AccessFiles { identity, client_ca: client_ca.clone(), tokens: token_file.clone() };
        let secrets = RwLock::new(Arc::new(files.read()?));
        Ok(Some(Arc::new(Self { files, secrets, timeout: *timeout })))
    }

    /// Reads the files again. If one cannot be used, the previous content stays in use.
    ///
    /// # Errors
    ///
    /// A file cannot be used.
    pub(crate) fn reload(&self) -> Result<(), StreamAccessError> {
        let secrets = Arc::new(self.files.read()?);
        *self.secrets.write() = secrets;
        Ok(())
    }

    /// Returns the current content of the files.
    pub(crate) fn secrets(&self) -> Arc<AccessSecrets> {
        self.secrets.read().clone()
    }
}

impl AccessFiles {
    fn read(&self) -> Result<AccessSecrets, StreamAccessError> {
        let tls = match &self.identity {
            Some((certificate, key)) => {
                let authorities = self.client_ca.as_deref();
                Some(Arc::new(server_config(certificate, key, authorities)?))
            }
            None => None,
        };
        let tokens = self.tokens.as_deref().map(read_tokens).transpose()?;
        Ok(AccessSecrets { tls, tokens })
    }
}

impl AccessSecrets {
    /// Whether the first line of a connection must be a token.
    pub(crate) fn needs_token(&self) -> bool {
        self.tokens.is_some()
    }

    /// Whether a connection's first line has a valid token. The time does not depend on how much of
    /// a token is right, or on which of several it is.
    pub(crate) fn accepts(&self, line: &[u8]) -> bool {
        let Some(token) = line.strip_prefix(TOKEN_COMMAND) else { return false };
        let token = token.strip_suffix(b"\r").unwrap_or(token);
        let mut accepted = Choice::from(0);
        for known in self.tokens.iter().flatten() {
            accepted |= known.ct_eq(token);
        }
        accepted.into()
    }
}

fn server_config(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<ServerConfig, TlsError> {
    let identity = server_identity(certificate, key)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        Some(authorities) => builder.with_client_cert_verifier(client_verifier(authorities, true)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    // Clients send without reading. One that closes its socket with unread tickets in it would
    // reset the connection, and with it lines that are still on their way.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Reads the tokens of a file, one on each line.
fn read_tokens(path: &Path) -> Result<Vec<Box<[u8]>>, StreamAccessError> {
    let failed = |source| StreamAccessError::TokenFile { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    // Credentials of systemd and secrets of Kubernetes belong to root, and the group of the process
    // may read them.
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if mode & forbidden != 0 {
        return Err(StreamAccessError::TokenPermissions { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(TOKEN_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > TOKEN_FILE_BYTES_MAX {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    let invalid = |reason| StreamAccessError::TokenContent { path: path.to_owned(), reason };
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let tokens: Vec<Box<[u8]>> = lines.filter(|line| !line.is_empty()).map(Box::from).collect();
    if tokens.is_empty() {
        return Err(invalid("the file has no token: write one on each line"));
    }
    if tokens.iter().any(|token| token.len() > TOKEN_BYTES_MAX) {
        return Err(invalid("a token has more than 1024 bytes"));
    }
    if !tokens.iter().all(|token| token.iter().all(u8::is_ascii_graphic)) {
        return Err(invalid("a token must consist of visible ASCII characters without spaces"));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::backends::chain;

    fn token_file(folder: &Path, text: &str, mode: u32) -> PathBuf {
        let path = folder.join("tokens");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn token_of_any_line_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = token_file(folder.path(), "first\n\n  second \n", 0o600);
        let secrets = AccessSecrets { tls: None, tokens: Some(read_tokens(&path).unwrap()) };
        for (line, accepted) in [
            ("auth first", true),
            ("auth second\r", true),
            ("auth firs", false),
            ("auth first ", false),
            ("auth ", false),
            ("first", false),
            ("a:1|c", false),
        ] {
            assert_eq!(secrets.accepts(line.as_bytes()), accepted, "{line:?}");
        }
        assert_eq!(format!("{secrets:?}"), "AccessSecrets { tls: false, tokens: Some(2) }");
    }

    #[test]
    fn unsafe_or_empty_token_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = |text: &str, mode: u32| {
            let path = token_file(folder.path(), text, mode);
            let text = chain(&read_tokens(&path).unwrap_err());
            text.replace(&folder.path().display().to_string(), "")
        };
        assert_eq!(
            error("secret", 0o644),
            "token file /tokens has mode 0644, which lets others use it: run `chmod 600` on it"
        );
        assert_eq!(
            error(" \n\n", 0o600),
            "token file /tokens: the file has no token: write one on each line"
        );
        let long = error(&"x".repeat(1025), 0o600);
        assert!(long.ends_with("more than 1024 bytes"), "{long}");
        let spaced = error("a b", 0o600);
        assert!(spaced.ends_with("visible ASCII characters without spaces"), "{spaced}");
        let large = error(&"x\n".repeat(40_000), 0o600);
        assert!(large.starts_with("cannot read the token file /tokens: "), "{large}");
    }
}
