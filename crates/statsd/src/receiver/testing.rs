//! Certificates and tokens for tests of listeners.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A self-signed certificate for `localhost`.
pub(crate) struct TestIdentity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl TestIdentity {
    /// Creates the files with `openssl`; `None`, with a message, if it is not installed.
    pub(crate) fn make(folder: &Path, name: &str) -> Option<Self> {
        let certificate = folder.join(format!("{name}.crt"));
        let key = folder.join(format!("{name}.key"));
        let openssl = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")])
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output();
        let Ok(output) = openssl else {
            let _ = writeln!(io::stderr(), "SKIPPED: openssl is missing: install it");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { certificate, key })
    }
}

/// Writes a token file that only the owner may read.
pub(crate) fn token_file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tokens");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}
