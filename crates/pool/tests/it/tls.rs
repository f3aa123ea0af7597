//! Encryption towards clients and servers, and authentication by certificates.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    process::{Command, Stdio},
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;
use howdah_pool_config::Config;

use crate::{
    certificates::Certificates,
    support::{RawClient, WAIT_TIMEOUT, connect, start_pooler_with},
};

/// A server with TLS, and various certificates.
struct TlsFixture {
    server: Cluster,
    certificates: Certificates,
}

/// The server's `pg_hba.conf`; roles are named for their rule.
const RULES: &str = "\
host      all  postgres  127.0.0.1/32  trust
hostssl   all  tls       127.0.0.1/32  trust
hostnossl all  no_tls    127.0.0.1/32  trust
hostssl   all  cert      127.0.0.1/32  cert
";

impl TlsFixture {
    fn start(test: &str) -> Option<Self> {
        let certificates = Certificates::new(test)?;
        certificates.self_signed("root", "howdah test root", &[]);
        certificates.self_signed("stranger", "another root", &[]);
        certificates.signed("pooler", "unused", "root", "subjectAltName=DNS:localhost\n");
        certificates.signed("server", "unused", "root", "subjectAltName=DNS:localhost\n");
        certificates.signed("cert", "cert", "root", "extendedKeyUsage=clientAuth\n");
        certificates.signed("intruder", "cert", "stranger", "extendedKeyUsage=clientAuth\n");
        let mut server = skip_without_postgres(test, Cluster::builder().name("pool-tls").start())?;
        for file in ["root.crt", "server.crt", "server.key"] {
            let text = fs::read_to_string(certificates.path(file)).unwrap();
            write_for_server(&server, file, &text);
        }
        let mut client = connect(&server.uri("postgres")).unwrap();
        let statements = [
            "create role tls login",
            "create role no_tls login",
            "create role cert login",
            "alter system set ssl = on",
            "alter system set ssl_ca_file = 'root.crt'",
        ];
        statements.iter().for_each(|statement| drop(client.query(statement).unwrap()));
        client.close();
        write_for_server(&server, "pg_hba.conf", RULES);
        server.restart().unwrap();
        Some(Self { server, certificates })
    }

    /// Starts a pooler with these settings of `[pool.tls]`, and more after them.
    fn start_pooler(&self, tls: &str, more: &str) -> Pooler {
        let tls = tls.replace("DIR", &self.certificates.as_ref().display().to_string());
        start_pooler_with(&format!(
            r#"
            [pool]
            mode = "transaction"
            workers = 1
            [pool.listen]
            addresses = ["127.0.0.1"]
            port = 0
            unix-directories = []
            [pool.tls]
            {tls}
            [pool.databases."*"]
            hosts = ["localhost"]
            port = {}
            [pool.users]
            postgres = {{ secret = '' }}
            tls = {{ secret = '' }}
            no_tls = {{ secret = '' }}
            cert = {{ secret = '' }}
            {more}
            "#,
            self.server.port()
        ))
    }

    /// Connects to a pooler, and describes the encryption on both sides; `DIR` in the connection
    /// string is the folder of certificates.
    fn describe_connection(
        &self,
        pooler: &Pooler,
        user: &str,
        words: &str,
    ) -> Result<String, String> {
        let words = words.replace("DIR", &self.certificates.as_ref().display().to_string());
        let port = pooler.addresses()[0].port();
        let conninfo = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user={user} {words}"
        );
        let mut client = connect(&conninfo).map_err(|error| error_chain(&error))?;
        let query = "select concat_ws(' ', current_user, ssl) from pg_stat_ssl \
                     where pid = pg_backend_pid()";
        let server = client.one_value(query).map_err(|error| error_chain(&error))?.unwrap();
        let client_side = if client.is_encrypted() { "encrypted" } else { "plain" };
        Ok(format!("{client_side}; {server}"))
    }
}

fn write_for_server(server: &Cluster, name: &str, text: &str) {
    let owner = fs::metadata(server.data_dir()).unwrap();
    let path = server.data_dir().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

const TRUST: &str = "[pool.auth]\ntype = 'trust'\n";
const POOLER_CERTIFICATE: &str = "certificate = 'DIR/pooler.crt', key = 'DIR/pooler.key'";

#[test]
fn client_encryption_follows_modes_of_both_sides() {
    let Some(fixture) = TlsFixture::start("client tls") else { return };
    let full = "sslmode=verify-full sslrootcert=DIR/root.crt";
    let direct = format!("{full} sslnegotiation=direct");
    let cases: [(&str, &[(&str, &str)]); 3] = [
        (
            "disable",
            &[
                ("sslmode=disable", "plain"),
                ("sslmode=prefer", "plain"),
                ("sslmode=require", "not"),
                (&direct, ""),
            ],
        ),
        (
            "prefer",
            &[
                ("sslmode=disable", "plain"),
                ("sslmode=allow", "plain"),
                ("sslmode=prefer", "encrypted"),
                ("sslmode=require", "encrypted"),
                ("sslmode=verify-ca sslrootcert=DIR/root.crt", "encrypted"),
                (full, "encrypted"),
                (&direct, "encrypted"),
                ("sslmode=verify-ca sslrootcert=DIR/stranger.crt", "certificate"),
            ],
        ),
        (
            "require",
            &[
                ("sslmode=disable", "SSL required"),
                ("sslmode=allow", "encrypted"),
                (full, "encrypted"),
            ],
        ),
    ];
    for (mode, clients) in cases {
        let pooler = fixture
            .start_pooler(&format!("client = {{ mode = '{mode}', {POOLER_CERTIFICATE} }}"), TRUST);
        for (words, expected) in clients {
            let got = fixture.describe_connection(&pooler, "postgres", words);
            let text = got.clone().unwrap_or_else(|error| error);
            assert!(text.contains(expected), "{mode}, {words}: {got:?}");
            let is_in = *expected == "plain" || *expected == "encrypted";
            assert_eq!(got.is_ok(), is_in, "{mode}, {words}: {got:?}");
        }
    }
}

#[test]
fn direct_tls_requires_postgresql_alpn() {
    let Some(fixture) = TlsFixture::start("alpn") else { return };
    let pooler = fixture
        .start_pooler(&format!("client = {{ mode = 'require', {POOLER_CERTIFICATE} }}"), TRUST);
    let address = pooler.addresses()[0].to_string();
    let handshake = |alpn: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &address, "-brief"]).args(alpn).stdin(Stdio::piped());
        let mut child = openssl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Kept open, so that the pooler ends the connection.
        let input = child.stdin.take();
        let status = child.wait_with_output().unwrap();
        drop(input);
        (status.status.success(), status.stdout)
    };
    // No protocol: the handshake succeeds, then the pooler disconnects without a message.
    assert_eq!(handshake(&[]).1, b"");
    let (succeeded, _) = handshake(&["-alpn", "http/1.1"]);
    assert!(!succeeded, "another protocol must fail the handshake");
}

#[test]
fn plaintext_before_tls_handshake_is_refused() {
    use std::io::{Read as _, Write as _};
    let Some(fixture) = TlsFixture::start("tls injection") else { return };
    let pooler = fixture
        .start_pooler(&format!("client = {{ mode = 'prefer', {POOLER_CERTIFICATE} }}"), TRUST);
    let address = pooler.addresses()[0];
    let ssl = b"\0\0\0\x08\x04\xd2\x16\x2f";
    let gss = b"\0\0\0\x08\x04\xd2\x16\x30";
    // Bytes sent together with the request.
    let mut raw = RawClient::connect(address);
    raw.0.write_all(&[&ssl[..], b"\0\0\0\x0b\0\x03\0\0us"].concat()).unwrap();
    assert!(raw.is_disconnected());
    // Plaintext instead of the handshake.
    let mut raw = RawClient::connect(address);
    raw.0.write_all(ssl).unwrap();
    let mut answer = [0];
    raw.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"S");
    raw.send_startup(0, "");
    assert!(raw.is_disconnected());
    // GSS is refused, and the client may continue with TLS or without encryption.
    let mut raw = RawClient::connect(address);
    raw.0.write_all(gss).unwrap();
    raw.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"N");
    raw.send_startup(0, "");
    raw.read_until(b'Z');
    // But not twice.
    let mut raw = RawClient::connect(address);
    raw.0.write_all(gss).unwrap();
    raw.0.read_exact(&mut answer).unwrap();
    raw.0.write_all(gss).unwrap();
    assert!(raw.is_disconnected());
}

#[test]
fn certificate_authenticates_its_common_name() {
    let Some(fixture) = TlsFixture::start("cert") else { return };
    let tls = format!(
        "client = {{ mode = 'verify-full', {POOLER_CERTIFICATE}, ca-file = 'DIR/root.crt' }}\n\
         server = {{ mode = 'require', certificate = 'DIR/cert.crt', key = 'DIR/cert.key' }}"
    );
    let pooler = fixture.start_pooler(&tls, "[pool.auth]\ntype = 'cert'\n");
    let conninfo =
        |name: &str| format!("sslmode=require sslcert=DIR/{name}.crt sslkey=DIR/{name}.key");
    // The pooler logs in to the server with the same certificate.
    let got = fixture.describe_connection(&pooler, "cert", &conninfo("cert"));
    assert_eq!(got.as_deref(), Ok("encrypted; cert t"));
    let other = fixture.describe_connection(&pooler, "postgres", &conninfo("cert")).unwrap_err();
    assert!(other.contains("certificate authentication failed for user \"postgres\""), "{other}");
    fixture.describe_connection(&pooler, "cert", &conninfo("intruder")).unwrap_err();
    fixture.describe_connection(&pooler, "cert", "sslmode=require").unwrap_err();
    // Other logins do not depend on earlier ones.
    assert!(fixture.describe_connection(&pooler, "cert", &conninfo("cert")).is_ok());
}

/// Certificates as created in PostgreSQL's manual: version 1, with a common name only.
#[test]
fn version_1_certificates_are_supported() {
    let Some(fixture) = TlsFixture::start("version 1") else { return };
    let certificates = &fixture.certificates;
    certificates.signed("old", "localhost", "root", "");
    certificates.signed("old_cert", "cert", "root", "");
    certificates.signed("old_intruder", "cert", "stranger", "");
    // A PKCS #8 key with another label, like PgCat's test key.
    let key = fs::read_to_string(certificates.path("old.key")).unwrap();
    let key =
        key.replace("BEGIN PRIVATE", "BEGIN RSA PRIVATE").replace("END PRIVATE", "END RSA PRIVATE");
    fs::write(certificates.path("relabelled.key"), key).unwrap();
    let certificate = "certificate = 'DIR/old.crt', key = 'DIR/relabelled.key'";
    let tls = format!(
        "client = {{ mode = 'verify-ca', {certificate}, ca-file = 'DIR/root.crt' }}\n\
         server = {{ mode = 'require', certificate = 'DIR/old_cert.crt', key = 'DIR/old_cert.key' }}"
    );
    let pooler = fixture.start_pooler(&tls, "[pool.auth]\ntype = 'cert'\n");
    let conninfo = |name: &str, version: &str| {
        format!(
            "sslmode=verify-full sslrootcert=DIR/root.crt sslcert=DIR/{name}.crt \
             sslkey=DIR/{name}.key ssl_min_protocol_version={version} \
             ssl_max_protocol_version={version}"
        )
    };
    for version in ["TLSv1.2", "TLSv1.3"] {
        for name in ["old_cert", "cert"] {
            let got = fixture.describe_connection(&pooler, "cert", &conninfo(name, version));
            assert_eq!(got.as_deref(), Ok("encrypted; cert t"), "{name} {version}");
        }
        assert!(
            fixture
                .describe_connection(&pooler, "cert", &conninfo("old_intruder", version))
                .is_err()
        );
    }
}

#[test]
fn key_of_other_certificate_is_refused_by_name() {
    let Some(certificates) = Certificates::new("keys") else { return };
    certificates.self_signed("root", "root", &[]);
    certificates.signed("old", "localhost", "root", "");
    certificates.signed("new", "localhost", "root", "subjectAltName=DNS:localhost\n");
    certificates.openssl(&["genrsa", "-out", "small.key", "1024"]);
    let folder = certificates.as_ref().display().to_string();
    let refused = |certificate: &str, key: &str| {
        let text = format!(
            "[pool.listen]\nport = 0\nunix-directories = []\n[pool.databases.a]\n\
             [pool.tls.client]\nmode = 'prefer'\ncertificate = '{folder}/{certificate}'\n\
             key = '{folder}/{key}'\n"
        );
        let read = Config::read_str(&text, Path::new("test.toml")).unwrap();
        error_chain(&Pooler::start(read.config).unwrap_err()).replace(&folder, "DIR")
    };
    let expected = "cannot set up TLS for clients: tls.client.key: private key DIR/root.key does not \
                    belong to certificate ";
    assert_eq!(refused("old.crt", "root.key"), format!("{expected}DIR/old.crt"));
    assert_eq!(refused("new.crt", "root.key"), format!("{expected}DIR/new.crt"));
    let small = refused("new.crt", "small.key");
    assert!(small.contains("tls.client.key: private key DIR/small.key cannot be used"), "{small}");
    let missing = refused("none.crt", "root.key");
    assert!(missing.contains("tls.client.certificate: cannot read DIR/none.crt"), "{missing}");
}

#[test]
fn server_encryption_follows_modes_of_both_sides() {
    let Some(fixture) = TlsFixture::start("server tls") else { return };
    let full = "mode = 'verify-full', ca-file = 'DIR/root.crt'";
    let cases = [
        ("mode = 'disable'", "no_tls", "no_tls f"),
        ("mode = 'disable'", "tls", "no pg_hba.conf entry"),
        ("mode = 'allow'", "no_tls", "no_tls f"),
        ("mode = 'allow'", "tls", "tls t"),
        ("mode = 'prefer'", "tls", "tls t"),
        ("mode = 'prefer'", "no_tls", "no_tls f"),
        ("mode = 'require'", "tls", "tls t"),
        ("mode = 'require'", "no_tls", "no pg_hba.conf entry"),
        ("mode = 'verify-ca', ca-file = 'DIR/root.crt'", "tls", "tls t"),
        (full, "tls", "tls t"),
        ("mode = 'verify-full', ca-file = 'DIR/stranger.crt'", "tls", "ertificate"),
        ("mode = 'require'", "cert", "certificate"),
    ];
    for (server, user, expected) in cases {
        let pooler = fixture.start_pooler(&format!("server = {{ {server} }}"), TRUST);
        let got = fixture
            .describe_connection(&pooler, user, "sslmode=disable")
            .unwrap_or_else(|error| error);
        assert!(got.contains(expected), "{server}, {user}: {got}");
    }
    let own = "server = { mode = 'require', certificate = 'DIR/cert.crt', key = 'DIR/cert.key' }";
    let pooler = fixture.start_pooler(own, TRUST);
    let got = fixture.describe_connection(&pooler, "cert", "sslmode=disable");
    assert_eq!(got.as_deref(), Ok("plain; cert t"));
}

#[test]
fn cancel_works_over_tls_on_both_sides() {
    let Some(fixture) = TlsFixture::start("cancel over tls") else { return };
    let tls = format!(
        "client = {{ mode = 'require', {POOLER_CERTIFICATE} }}\nserver = {{ mode = 'require' }}"
    );
    let pooler = fixture.start_pooler(&tls, TRUST);
    let port = pooler.addresses()[0].port();
    let words = format!("host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user=tls");
    let mut client = connect(&format!("{words} sslmode=require")).unwrap();
    let cancel = client.cancel_handle().unwrap();
    let mut admin = connect(&fixture.server.uri("postgres")).unwrap();
    let running = "select count(*)::text from pg_stat_activity \
                   where query = 'select pg_sleep(600)' and state = 'active'";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the statement to run", WAIT_TIMEOUT, || {
                admin.one_value(running).unwrap().as_deref() == Some("1")
            });
            cancel.cancel().unwrap();
        });
        let error = client.query("select pg_sleep(600)").unwrap_err();
        assert_eq!(error.sqlstate(), Some("57014"), "{error}");
    });
    assert_eq!(client.one_value("select 'alive'").unwrap().as_deref(), Some("alive"));
}
