//! Programs and files that provide passwords.

use std::{fs, time::Duration};

use super::*;

/// A shell script as the program, which appends to `runs` in its folder.
fn script(folder: &Path, text: &str, lifetime: Duration) -> SecretSource {
    let path = folder.join("script");
    fs::write(&path, format!("echo run >> {}/runs\n{text}\n", folder.display())).unwrap();
    let command = vec!["/bin/sh".to_owned(), path.display().to_string()];
    SecretSource::Command { command, lifetime }
}

fn runs(folder: &Path) -> usize {
    fs::read_to_string(folder.join("runs")).unwrap().lines().count()
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn printed_password_is_used_until_it_ends_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = ServerSecrets::default();
    let source = script(folder.path(), "echo sesame", MINUTE);
    for _ in 0..3 {
        assert_eq!(secrets.fetch(&source).unwrap().expose(), b"sesame");
    }
    assert_eq!(runs(folder.path()), 1);
    secrets.discard(&source);
    assert_eq!(secrets.fetch(&source).unwrap().expose(), b"sesame");
    assert_eq!(runs(folder.path()), 2);
    // The program's own statement overrides the setting.
    let source = script(folder.path(), "printf 'open\\r\\n0\\n'", MINUTE);
    for _ in 0..2 {
        assert_eq!(secrets.fetch(&source).unwrap().expose(), b"sesame", "the same command");
    }
    secrets.discard(&source);
    for _ in 0..2 {
        assert_eq!(secrets.fetch(&source).unwrap().expose(), b"open");
    }
    assert_eq!(runs(folder.path()), 4);
}

#[test]
fn failing_program_is_reported_without_its_output() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("echo sesame; echo no access >&2; exit 3", "failed (exit status: 3): no access"),
        ("true", "printed no password: the first line, the password, is empty"),
        ("echo; echo sesame", "printed no password"),
        ("printf 'sesame\\nsoon\\n'", "the second line is not a number of seconds"),
        ("head -c 100000 /dev/zero", "printed more than a password"),
        ("head -c 100000 /dev/zero >&2; exit 1", "failed (exit status: 1): \\0"),
    ] {
        let source = script(folder.path(), text, MINUTE);
        let error = ServerSecrets::default().fetch(&source).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.starts_with("/bin/sh ") && !error.contains("sesame"), "{error}");
        assert!(error.len() < 1500, "{error}");
    }
    let command = vec!["/no/such/program".to_owned()];
    let missing = SecretSource::Command { command, lifetime: MINUTE };
    let error = ServerSecrets::default().fetch(&missing).unwrap_err();
    assert!(error.contains("/no/such/program cannot be started"), "{error}");
}

#[test]
fn old_password_is_used_to_its_end_if_the_program_fails() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = ServerSecrets::default();
    let source = script(folder.path(), "echo sesame", Duration::from_secs(3600));
    secrets.fetch(&source).unwrap();
    let make_due = |is_over: bool| {
        let entry = Arc::clone(&secrets.0.lock()[&source]);
        let mut cached = entry.0.lock();
        let cached = cached.as_mut().unwrap();
        cached.refresh_at = Instant::now();
        if is_over {
            cached.ends_at = Instant::now();
        }
    };
    script(folder.path(), "exit 1", Duration::from_secs(3600));
    make_due(false);
    assert_eq!(secrets.fetch(&source).unwrap().expose(), b"sesame");
    make_due(true);
    assert!(secrets.fetch(&source).is_err());
}

#[test]
fn file_is_read_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let (secrets, source) = (ServerSecrets::default(), SecretSource::File(path.clone()));
    assert!(secrets.fetch(&source).unwrap_err().contains("cannot read"));
    for password in ["sesame", "open\n", "a b\r\nrest"] {
        fs::write(&path, password).unwrap();
        let expected = password.lines().next().unwrap().as_bytes();
        assert_eq!(secrets.fetch(&source).unwrap().expose(), expected);
    }
    fs::write(&path, "\n").unwrap();
    assert!(secrets.fetch(&source).unwrap_err().contains("is empty"));
}
