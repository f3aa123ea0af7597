//! Certificates for a test, created by the `openssl` program in a temporary directory.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A directory of certificates, `NAME.crt`, and their keys, `NAME.key`.
pub(crate) struct Certificates(TempDir);

impl Certificates {
    /// Creates an empty directory; `None`, with a message, if `openssl` is not installed.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let runs = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
        if !runs.is_ok_and(|status| status.success()) {
            // Written to stderr directly, because the test harness would capture it.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no openssl program found");
            return None;
        }
        Some(Self(tempfile::tempdir().unwrap()))
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Creates a self-signed certificate, which may sign others.
    pub(crate) fn self_signed(&self, name: &str, common_name: &str, more: &[&str]) {
        let subject = format!("/CN={common_name}");
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let files = ["-keyout", &key, "-out", &certificate, "-subj", &subject];
        let fixed = ["req", "-x509", "-days", "30", "-nodes"];
        self.openssl(&[&fixed[..], &NEW_KEY, &files, more].concat());
    }

    /// Creates a certificate signed by another, with these extensions; without extensions it is of
    /// version 1 if `openssl` is older than 3.2.
    pub(crate) fn signed(&self, name: &str, common_name: &str, issuer: &str, extensions: &str) {
        let file = |name: &str, suffix: &str| format!("{name}.{suffix}");
        let (key, request) = (file(name, "key"), file(name, "csr"));
        let subject = format!("/CN={common_name}");
        let files = ["-keyout", &key, "-out", &request, "-subj", &subject];
        self.openssl(&[&["req", "-new", "-nodes"][..], &NEW_KEY, &files].concat());

        let (issuer_certificate, issuer_key) = (file(issuer, "crt"), file(issuer, "key"));
        let (certificate, config) = (file(name, "crt"), file(name, "ext"));
        let mut arguments = vec!["x509", "-req", "-days", "30", "-in", &request];
        arguments.extend(["-CA", &issuer_certificate, "-CAkey", &issuer_key, "-CAcreateserial"]);
        arguments.extend(["-out", &certificate]);
        if !extensions.is_empty() {
            std::fs::write(self.path(&config), extensions).unwrap();
            arguments.extend(["-extfile", &config]);
        }
        self.openssl(&arguments);
    }

    /// Runs `openssl` in the directory.
    pub(crate) fn openssl(&self, arguments: &[&str]) {
        let output =
            Command::new("openssl").args(arguments).current_dir(self.0.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {}: {said}", arguments.join(" "));
    }
}

impl AsRef<Path> for Certificates {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

/// Elliptic curve keys are fast to create.
const NEW_KEY: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
