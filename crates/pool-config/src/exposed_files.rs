//! Warnings about files with secrets that every user of the machine may read.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use super::{Config, Diagnostic, StoredSecret};

/// Returns a warning for each file with secrets that every user may read: the configuration file
/// at `path`, the user list, private keys and the key for redaction.
pub(super) fn exposed_files(config: &Config, path: &Path) -> Vec<Diagnostic> {
    let users = config.users.values();
    let (listed, own): (Vec<_>, Vec<_>) = users.partition(|user| user.secret_is_listed);
    let databases = config.databases.values().map(|database| &database.secret);
    let own = own.into_iter().map(|user| &user.secret).chain(databases);
    let files = [
        has_secret(own).then_some(path),
        config.auth.file.as_deref().filter(|_| has_secret(listed.iter().map(|user| &user.secret))),
        config.tls.client.key.as_deref(),
        config.tls.server.key.as_deref(),
        config.capture.redact_key.as_deref(),
    ];
    let secret_files = config.users.values().filter_map(|user| user.secret_file.as_deref());
    files.into_iter().flatten().chain(secret_files).filter_map(warning).collect()
}

/// An empty secret, as `trust` needs one, is none.
fn has_secret<'c>(mut secrets: impl Iterator<Item = &'c Option<StoredSecret>>) -> bool {
    secrets.any(|secret| secret.as_ref().is_some_and(|secret| !secret.is_empty()))
}

fn warning(file: &Path) -> Option<Diagnostic> {
    // A file that cannot be read is an error elsewhere.
    let mode = fs::metadata(file).ok()?.mode() & 0o777;
    let text = format!(
        "contains secrets, and every user of this machine can read it (mode {mode:04o}): \
         run `chmod o-rwx` on it"
    );
    (mode & 0o004 != 0).then(|| Diagnostic::new(file, 0, "", text))
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn file_with_secrets_that_everybody_can_read_causes_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("howdah.toml");
        let list = folder.path().join("users.txt");
        fs::write(&list, "\"a\" \"Sesame\"\n\"b\" \"\"\n").unwrap();
        let warned = |settings: &str, modes: [u32; 2]| {
            fs::write(&path, settings).unwrap();
            for (file, mode) in [&path, &list].into_iter().zip(modes) {
                fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
            }
            let warnings = Config::read(&path).unwrap().warnings;
            let names = warnings.iter().map(|warning| {
                assert!(warning.text.contains("chmod o-rwx"), "{warning}");
                warning.file.file_name().unwrap().to_str().unwrap().to_owned()
            });
            names.collect::<Vec<_>>()
        };
        let database = "[pool.databases.shop]\nhosts = ['db1']\n";
        let lists = format!("[pool.auth]\nfile = 'users.txt'\n{database}");
        assert_eq!(warned(&lists, [0o644, 0o644]), ["users.txt"]);
        assert_eq!(warned(&lists, [0o644, 0o640]), [""; 0]);
        let own = format!("{database}[pool.users.c]\nsecret = 'Sesame'\n");
        assert_eq!(warned(&own, [0o644, 0o644]), ["howdah.toml"]);
        assert_eq!(warned(&own, [0o640, 0o644]), [""; 0]);
        let none = format!("[pool.auth]\ntype = 'trust'\n{database}[pool.users.c]\nsecret = ''\n");
        assert_eq!(warned(&none, [0o644, 0o644]), [""; 0]);
    }
}
