//! `SET` at the console: what `RELOAD` would refuse is refused, and settings of TLS wait for each other.

use std::fs;

use crate::{
    certificates::Certificates,
    support::{Stage, connect},
};

/// A pooler whose console may be used.
fn stage(test: &str) -> Option<Stage> {
    Stage::set(test, "admin-users = [\"postgres\"]")
}

/// What the console says to a command, on both channels.
fn console(stage: &Stage, command: &str) -> String {
    let output = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    texts.concat()
}

#[test]
fn files_that_cannot_be_used_are_refused_and_change_nothing() {
    let Some(stage) = stage("set files") else { return };
    let config = console(&stage, "show config");
    for (command, why) in [
        ("set auth_hba_file = '/nonexistent'", "auth_hba_file: "),
        ("set auth_file = '/etc/passwd'", "auth_file: /etc/passwd:1: a user must stand between"),
        ("set auth_file = '/nonexistent'", "auth_file: cannot read the user list"),
        ("set auth_type = hba", "hba needs auth.hba-file"),
        ("set client_tls_key_file = '/etc/passwd'", "client_tls_key_file: "),
        ("set server_tls_ca_file = '/nonexistent'", "server_tls_ca_file: cannot read /nonexistent"),
    ] {
        let said = console(&stage, command);
        assert!(said.contains("ERROR") && said.contains(why), "{command}: {said}");
    }
    assert_eq!(console(&stage, "show config"), config);
    assert_eq!(stage.psql(&["select 'in'"]), "in");
}

#[test]
fn tls_settings_are_set_one_by_one_in_any_order() {
    let Some(certificates) = Certificates::new("set tls") else { return };
    certificates.self_signed("root", "root", &[]);
    certificates.signed("pooler", "localhost", "root", "subjectAltName=DNS:localhost\n");
    let Some(stage) = stage("set tls") else { return };
    let path = |name: &str| certificates.path(name).display().to_string();
    let set = |key: &str, value: &str| console(&stage, &format!("set {key} = '{value}'"));
    let is_encrypted = || {
        let port = stage.address().port();
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
            let said = set(key, &value(key));
            // A certificate with its key fit together before anybody is offered them.
            let fits = at == 2 || (at == 1 && order[2] == "client_tls_sslmode");
            assert_eq!(
                said.contains("held until TLS settings fit"),
                !fits,
                "{order:?} {key}: {said}"
            );
            assert!(!said.contains("ERROR"), "{said}");
            assert_eq!(is_encrypted(), at == 2, "{order:?} {key}");
        }
        set("client_tls_sslmode", "disable");
        assert!(!is_encrypted());
        set("client_tls_key_file", "");
        let said = set("client_tls_cert_file", "");
        assert!(!said.contains("held"), "{said}");
    }
    // A key of another certificate is held; the certificate that it is for makes them fit.
    for key in orders[0] {
        set(key, &value(key));
    }
    let said = set("client_tls_key_file", &path("root.key"));
    assert!(said.contains("does not belong to certificate"), "{said}");
    assert!(is_encrypted(), "those of before are used");
    assert!(!set("client_tls_key_file", &path("pooler.key")).contains("held"));

    let said = set("server_tls_sslmode", "verify-full");
    assert!(said.contains("held") && said.contains("must name whose certificates"), "{said}");
    let said = set("server_tls_ca_file", &path("root.crt"));
    assert!(said.contains("tls.server.mode: ") && said.contains("verify-full"), "{said}");
    fs::remove_file(path("root.crt")).unwrap();
}
