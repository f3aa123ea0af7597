//! Checks that files with secrets are not accessible to others.

use std::{fs::Metadata, os::unix::fs::MetadataExt as _};

/// Whether a file's permissions are as narrow as libpq requires for private keys: only the owner
/// has access, except that the group of a file that root owns may read it.
///
/// For password files, libpq allows the group no access. But systemd's credentials and Kubernetes'
/// secrets are owned by root and readable by the group of the process, which is as safe.
pub(crate) fn is_private(metadata: &Metadata) -> bool {
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    metadata.mode() & forbidden == 0
}
