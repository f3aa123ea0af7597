//! Methods of authentication, TLS modes and channel binding, against a real server.

use howdah_connect::{ConnectError, ConnectFailure, LoginRefused, tls::TlsError};

use crate::{
    cluster::{PASSWORD, shared},
    connect, failures, only_failure,
};

/// The password of every role, for a connection string.
const WITH_PASSWORD: &str = r"password='it\'s % a secret'";

#[test]
fn every_method_logs_in() {
    let Some(shared) = shared() else { return };
    for mode in ["disable", "prefer", "require"] {
        for user in ["postgres", "scram", "md5", "plain"] {
            let more = format!("{WITH_PASSWORD} sslmode={mode}");
            let mut client = connect(&shared.by_tcp(user, &more)).unwrap();
            assert_eq!(client.is_encrypted(), mode != "disable");
            assert_eq!(client.one_value("select current_user").unwrap().as_deref(), Some(user));
        }
    }
    for user in ["postgres", "scram"] {
        let mut client = connect(&shared.by_socket(user, WITH_PASSWORD)).unwrap();
        assert!(!client.is_encrypted());
        assert_eq!(client.one_value("select current_user").unwrap().as_deref(), Some(user));
    }
}

#[test]
fn wrong_password_reports_server_error() {
    let Some(shared) = shared() else { return };
    for user in ["scram", "md5", "plain"] {
        for mode in ["disable", "prefer", "allow", "require"] {
            let conninfo = shared.by_tcp(user, &format!("password=hunter2 sslmode={mode}"));
            let error = connect(&conninfo).unwrap_err();
            assert_eq!(error.sqlstate(), Some("28P01"), "{error}");
            let printed = format!("{error} {error:?}");
            assert!(printed.contains("password authentication failed"), "{printed}");
            assert!(!printed.contains("hunter2"));
            // A second attempt would fail in the same way.
            assert!(matches!(only_failure(Err(error)), ConnectFailure::Sql(_)));
        }
    }
}

#[test]
fn missing_password_is_a_client_error() {
    let Some(shared) = shared() else { return };
    for user in ["scram", "md5", "plain"] {
        let cause = only_failure(connect(&shared.by_tcp(user, "")));
        assert!(cause.to_string().contains("asks for a password"), "{cause}");
    }
}

#[test]
fn password_is_read_from_passfile() {
    use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
    use std::{fs, os::unix::fs::PermissionsExt};
    let Some(shared) = shared() else { return };
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".pgpass");
    fs::write(&file, format!("localhost:{}:*:scram:{PASSWORD}\n", shared.port())).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let environment = Environment::empty().with_home(home.path()).with_os_user("nobody");
    let words = ConnParams::from_conninfo(shared.by_tcp("postgres", ""));
    let target = ConnectTarget::resolve(&words, &environment).unwrap().with_user("scram");
    let mut client = Client::connect(&target).unwrap();
    assert_eq!(client.one_value("select current_user").unwrap().as_deref(), Some("scram"));
}

#[test]
fn optional_modes_fall_back_to_accepted_encryption() {
    let Some(shared) = shared() else { return };
    for (user, mode, encrypted) in [
        ("tls", "allow", true),
        ("tls", "prefer", true),
        ("no_tls", "allow", false),
        ("no_tls", "prefer", false),
        ("scram", "allow", false),
    ] {
        let more = format!("{WITH_PASSWORD} sslmode={mode}");
        let client = connect(&shared.by_tcp(user, &more)).unwrap();
        assert_eq!(client.is_encrypted(), encrypted, "{user} {mode}");
    }
    for (user, mode) in [("tls", "disable"), ("no_tls", "require")] {
        let error = connect(&shared.by_tcp(user, &format!("sslmode={mode}"))).unwrap_err();
        assert_eq!(error.sqlstate(), Some("28000"), "{error}");
    }
    // pg_hba.conf rejects this name: both encryption methods were tried.
    let both = failures(connect(&shared.by_tcp("nobody", "sslmode=prefer")));
    assert_eq!(both.len(), 2, "{both:?}");
}

#[test]
fn certificate_verification_follows_sslmode() {
    let Some(shared) = shared() else { return };
    let certificates = shared.certificates();
    let root = certificates.path("root.crt").display().to_string();
    // Not an authority at all.
    let other = certificates.path("cert.crt").display().to_string();
    for mode in ["require", "verify-ca", "verify-full"] {
        let ours = format!("sslmode={mode} sslrootcert={root}");
        assert!(connect(&shared.by_tcp("tls", &ours)).unwrap().is_encrypted());
        let theirs = format!("sslmode={mode} sslrootcert={other}");
        let cause = only_failure(connect(&shared.by_tcp("tls", &theirs)));
        assert!(matches!(cause, ConnectFailure::Handshake(_)), "{cause}");
    }
    let by_address = |mode: &str| {
        let port = shared.port();
        format!(
            "host=127.0.0.1 port={port} dbname=postgres user=tls sslmode={mode} sslrootcert={root}"
        )
    };
    assert!(connect(&by_address("verify-ca")).is_ok());
    let cause = only_failure(connect(&by_address("verify-full")));
    assert!(cause.to_string().contains("not valid for name"), "{cause}");
    for mode in ["verify-ca", "verify-full"] {
        let missing = format!("sslmode={mode} sslrootcert=/nowhere/root.crt");
        let error = connect(&shared.by_tcp("tls", &missing)).unwrap_err();
        assert!(matches!(error, ConnectError::Tls(TlsError::NoRootCertificate { .. })), "{error}");
    }
    // As in libpq, an invalid root certificate makes `prefer` fall back to no TLS.
    let prefer = format!("sslmode=prefer sslrootcert={other}");
    assert!(!connect(&shared.by_tcp("postgres", &prefer)).unwrap().is_encrypted());
    let missing = "sslmode=require sslrootcert=/nowhere/root.crt";
    assert!(connect(&shared.by_tcp("tls", missing)).unwrap().is_encrypted());
}

#[test]
fn client_certificate_logs_in() {
    let Some(shared) = shared() else { return };
    let certificates = shared.certificates();
    let file = |name: &str| certificates.path(name).display().to_string();
    let with = |certificate: &str, key: &str| {
        let files = format!("sslcert={} sslkey={}", file(certificate), file(key));
        connect(&shared.by_tcp("cert", &format!("sslmode=require {files}")))
    };
    let mut client = with("cert.crt", "cert.key").unwrap();
    assert_eq!(client.one_value("select current_user").unwrap().as_deref(), Some("cert"));

    let error = with("cert.crt", "server.key").unwrap_err();
    assert!(matches!(error, ConnectError::Tls(TlsError::WrongKey { .. })), "{error}");
    let error = with("cert.crt", "none.key").unwrap_err();
    assert!(matches!(error, ConnectError::Tls(TlsError::NoKey { .. })), "{error}");
    // Without a certificate the server refuses the login with its own message.
    let error = with("none.crt", "none.key").unwrap_err();
    assert_eq!(error.sqlstate(), Some("28000"), "{error}");

    certificates.openssl(&[
        "pkcs8",
        "-topk8",
        "-in",
        "cert.key",
        "-out",
        "encrypted.key",
        "-passout",
        "pass:hunter2",
    ]);
    let error = with("cert.crt", "encrypted.key").unwrap_err();
    assert!(matches!(error, ConnectError::Tls(TlsError::EncryptedKey { .. })), "{error}");
}

#[test]
fn key_readable_by_others_is_refused() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let Some(shared) = shared() else { return };
    let certificates = shared.certificates();
    let key = certificates.path("open.key");
    fs::copy(certificates.path("cert.key"), &key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let files = format!(
        "sslmode=require sslcert={} sslkey={}",
        certificates.path("cert.crt").display(),
        key.display()
    );
    let error = connect(&shared.by_tcp("cert", &files)).unwrap_err();
    let refused = matches!(error, ConnectError::Tls(TlsError::KeyPermissions { mode: 0o644, .. }));
    assert!(refused, "{error}");
}

#[test]
fn required_channel_binding_is_enforced() {
    let Some(shared) = shared() else { return };
    let with = |user: &str, more: &str| {
        connect(&shared.by_tcp(user, &format!("{WITH_PASSWORD} channel_binding=require {more}")))
    };
    assert!(with("scram", "sslmode=require").unwrap().is_encrypted());
    for user in ["md5", "plain", "postgres"] {
        let cause = only_failure(with(user, "sslmode=require"));
        let refused = matches!(cause, ConnectFailure::LoginRefused(LoginRefused::NotBound));
        assert!(refused, "{user}: {cause}");
    }
    let cause = only_failure(with("scram", "sslmode=disable"));
    assert!(matches!(cause, ConnectFailure::LoginRefused(LoginRefused::NotBound)), "{cause}");
    let unbound = format!("{WITH_PASSWORD} channel_binding=disable sslmode=require");
    assert!(connect(&shared.by_tcp("scram", &unbound)).is_ok());
}

#[test]
fn require_auth_restricts_methods() {
    let Some(shared) = shared() else { return };
    let with = |user: &str, methods: &str| {
        connect(&shared.by_tcp(user, &format!("{WITH_PASSWORD} require_auth={methods}")))
    };
    assert!(with("scram", "scram-sha-256").is_ok());
    assert!(with("md5", "md5,scram-sha-256").is_ok());
    assert!(with("postgres", "none").is_ok());
    for (user, methods) in [
        ("plain", "scram-sha-256"),
        ("plain", "!password"),
        ("md5", "scram-sha-256"),
        ("postgres", "!none"),
    ] {
        let cause = only_failure(with(user, methods));
        let refused = matches!(cause, ConnectFailure::LoginRefused(LoginRefused::Method { .. }));
        assert!(refused, "{user} {methods}: {cause}");
    }
}

#[test]
fn direct_tls_works_since_postgresql_17() {
    let Some(shared) = shared() else { return };
    let direct = connect(&shared.by_tcp("tls", "sslmode=require sslnegotiation=direct"));
    let version = shared.client().server_version_num().unwrap();
    if version >= 170_000 {
        assert!(direct.unwrap().is_encrypted());
        return;
    }
    // An older server takes the first bytes of TLS for a startup packet, and closes the connection.
    let cause = only_failure(direct);
    let hung_up = matches!(
        cause,
        ConnectFailure::Closed | ConnectFailure::Lost(_) | ConnectFailure::Handshake(_)
    );
    assert!(hung_up, "{cause}");
}
