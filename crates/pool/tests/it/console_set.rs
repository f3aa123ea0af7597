//! `SET` at the console: invalid settings are refused as by `RELOAD`, inconsistent TLS settings
//! held back.

use std::fs;

use crate::{
    certificates::Certificates,
    support::{PoolFixture, connect},
};

/// A pooler with access to its console.
fn fixture(test: &str) -> Option<PoolFixture> {
    PoolFixture::start(test, "admin-users = [\"postgres\"]")
}

/// The console's output and messages for a command.
fn console_output(fixture: &PoolFixture, command: &str) -> String {
    let output = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    texts.concat()
}

#[test]
fn set_refuses_unusable_files() {
    let Some(fixture) = fixture("set files") else { return };
    let config = console_output(&fixture, "show config");
    for (command, why) in [
        ("set auth_hba_file = '/nonexistent'", "auth_hba_file: "),
        (
            "set auth_file = '/etc/passwd'",
            "auth_file: /etc/passwd:1: expected a user in double quotes",
        ),
        ("set auth_file = '/nonexistent'", "auth_file: cannot read the user list"),
        ("set auth_type = hba", "hba needs auth.hba-file"),
        ("set client_tls_key_file = '/etc/passwd'", "client_tls_key_file: "),
        ("set server_tls_ca_file = '/nonexistent'", "server_tls_ca_file: cannot read /nonexistent"),
    ] {
        let output = console_output(&fixture, command);
        assert!(output.contains("ERROR") && output.contains(why), "{command}: {output}");
    }
    assert_eq!(console_output(&fixture, "show config"), config);
    assert_eq!(fixture.psql(&["select 'in'"]), "in");
}

#[test]
fn tls_keys_are_set_in_any_order() {
    let Some(certificates) = Certificates::new("set tls") else { return };
    certificates.self_signed("root", "root", &[]);
    certificates.signed("pooler", "localhost", "root", "subjectAltName=DNS:localhost\n");
    let Some(fixture) = fixture("set tls") else { return };
    let path = |name: &str| certificates.path(name).display().to_string();
    let set = |key: &str, value: &str| console_output(&fixture, &format!("set {key} = '{value}'"));
    let is_encrypted = || {
        let port = fixture.address().port();
        let words = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user=postgres \
             sslmode=verify-full sslrootcert={}",
            path("root.crt")
        );
        connect(&words).is_ok_and(|client| client.is_encrypted())
    };
    let orders = [
        ["client_tls_key_file", "client_tls_cert_file", "client_tls_sslmode"],
        ["client_tls_sslmode", "client_tls_cert_file", "client_tls_key_file"],
        ["client_tls_cert_file", "client_tls_sslmode", "client_tls_key_file"],
    ];
    let value = |key: &str| match key {
        "client_tls_key_file" => path("pooler.key"),
        "client_tls_cert_file" => path("pooler.crt"),
        _ => "require".to_owned(),
    };
    for order in orders {
        for (at, key) in order.into_iter().enumerate() {
            let output = set(key, &value(key));
            // Certificate and key are consistent even while TLS is still disabled.
            let fits = at == 2 || (at == 1 && order[2] == "client_tls_sslmode");
            assert_eq!(
                output.contains("held until the TLS settings are consistent"),
                !fits,
                "{order:?} {key}: {output}"
            );
            assert!(!output.contains("ERROR"), "{output}");
            assert_eq!(is_encrypted(), at == 2, "{order:?} {key}");
        }
        set("client_tls_sslmode", "disable");
        assert!(!is_encrypted());
        set("client_tls_key_file", "");
        let output = set("client_tls_cert_file", "");
        assert!(!output.contains("held"), "{output}");
    }
    // A key of another certificate is held back until certificate and key match.
    for key in orders[0] {
        set(key, &value(key));
    }
    let output = set("client_tls_key_file", &path("root.key"));
    assert!(output.contains("does not belong to certificate"), "{output}");
    assert!(is_encrypted(), "the previous settings are used");
    assert!(!set("client_tls_key_file", &path("pooler.key")).contains("held"));

    let output = set("server_tls_sslmode", "verify-full");
    assert!(
        output.contains("held") && output.contains("is needed to verify certificates of servers"),
        "{output}"
    );
    let output = set("server_tls_ca_file", &path("root.crt"));
    assert!(output.contains("tls.server.mode: ") && output.contains("verify-full"), "{output}");
    fs::remove_file(path("root.crt")).unwrap();
}
