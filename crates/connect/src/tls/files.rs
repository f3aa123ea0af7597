//! Reads certificates, keys and revocation lists from files.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
    pem::{self, PemObject},
};

use super::error::TlsError;
use crate::file_permissions::is_private;

/// Maximum size of a file in bytes. It is larger than any certificate bundle; a wrong path must not
/// exhaust memory.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads all certificates of a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    sections(path, &read(path)?, "certificate")
}

/// Reads all revocation lists of a PEM file, at least one.
pub(super) fn revocations(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    sections(path, &read(path)?, "list of revoked certificates")
}

/// Returns the files in a directory, sorted by name.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, TlsError> {
    let unreadable = |source| TlsError::File { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(unreadable)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(unreadable)?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

/// Reads the private key of a file, in PEM or DER.
///
/// # Errors
///
/// The errors of [`private_key_unchecked`], or the file's permissions are wider than
/// [`check_permissions`] allows.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    check_permissions(path)?;
    private_key_unchecked(path)
}

/// Reads a private key without checking permissions. The content of the file counts, not its label:
/// keys in PKCS #8 sometimes appear under `BEGIN RSA PRIVATE KEY`, and OpenSSL accepts them.
///
/// # Errors
///
/// The file is unreadable, or contains no private key or an encrypted one.
pub(super) fn private_key_unchecked(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(path)?;
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    if !has("-----BEGIN ") {
        return PrivateKeyDer::try_from(bytes.clone()).map_err(|_| nothing(path, "private key"));
    }
    // PKCS #8 marks encryption in the label, older formats in a header.
    if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::EncryptedKey { path: path.to_owned() });
    }
    let labelled = PrivateKeyDer::from_pem_slice(&bytes);
    let labelled = labelled.map_err(|error| bad_pem(path, error, "private key"))?;
    Ok(PrivateKeyDer::try_from(labelled.secret_der().to_vec()).unwrap_or(labelled))
}

/// Checks permissions as libpq does; see [`is_private`].
fn check_permissions(path: &Path) -> Result<(), TlsError> {
    let metadata =
        fs::metadata(path).map_err(|source| TlsError::File { path: path.to_owned(), source })?;
    if is_private(&metadata) {
        return Ok(());
    }
    Err(TlsError::KeyPermissions { path: path.to_owned(), mode: metadata.mode() & 0o777 })
}

fn sections<T: PemObject>(
    path: &Path,
    bytes: &[u8],
    what: &'static str,
) -> Result<Vec<T>, TlsError> {
    let sections = T::pem_slice_iter(bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad_pem(path, error, what))?;
    if sections.is_empty() { Err(nothing(path, what)) } else { Ok(sections) }
}

fn bad_pem(path: &Path, error: pem::Error, what: &'static str) -> TlsError {
    match error {
        pem::Error::NoItemsFound => nothing(path, what),
        error => TlsError::File {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        },
    }
}

fn nothing(path: &Path, what: &'static str) -> TlsError {
    TlsError::Empty { path: path.to_owned(), what }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let try_read = || {
        let mut bytes = Vec::new();
        let read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    };
    try_read().map_err(|source| TlsError::File { path: path.to_owned(), source })
}
