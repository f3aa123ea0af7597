//! Encryption of both legs, and what certificates prove.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    process::{Command, Stdio},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Pooler, config::Config};

use crate::{
    certificates::Certificates,
    support::{Raw, connect, pooler_of},
};

/// A server with TLS, certificates of all sorts, and poolers before it.
struct Scene {
    server: Cluster,
    certificates: Certificates,
}

/// Who gets in at the server, and how.
const RULES: &str = "\
host      all  postgres  127.0.0.1/32  trust
hostssl   all  tls       127.0.0.1/32  trust
hostnossl all  no_tls    127.0.0.1/32  trust
hostssl   all  cert      127.0.0.1/32  cert
";

impl Scene {
    fn set(test: &str) -> Option<Self> {
        let certificates = Certificates::new(test)?;
        certificates.self_signed("root", "howdah test root", &[]);
        certificates.self_signed("stranger", "another root", &[]);
        certificates.signed("pooler", "unused", "root", "subjectAltName=DNS:localhost\n");
        certificates.signed("server", "unused", "root", "subjectAltName=DNS:localhost\n");
        certificates.signed("cert", "cert", "root", "extendedKeyUsage=clientAuth\n");
        certificates.signed("intruder", "cert", "stranger", "extendedKeyUsage=clientAuth\n");
        let mut server = or_say_why_not(test, Cluster::builder().name("pool-tls").start())?;
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

    /// A pooler with these settings of `[pool.tls]`, and others behind.
    fn pooler(&self, tls: &str, more: &str) -> Pooler {
        let tls = tls.replace("DIR", &self.certificates.as_ref().display().to_string());
        pooler_of(&format!(
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

    /// Connects to a pooler; `DIR` in the words is the folder of certificates.
    fn connect(&self, pooler: &Pooler, user: &str, words: &str) -> Result<String, String> {
        let words = words.replace("DIR", &self.certificates.as_ref().display().to_string());
        let port = pooler.addresses()[0].port();
        let conninfo = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user={user} {words}"
        );
        let mut client = connect(&conninfo).map_err(|error| chain(&error))?;
        let asked = "select concat_ws(' ', current_user, ssl) from pg_stat_ssl \
                     where pid = pg_backend_pid()";
        let server = client.one_value(asked).map_err(|error| chain(&error))?.unwrap();
        let leg = if client.is_encrypted() { "encrypted" } else { "plain" };
        Ok(format!("{leg}; {server}"))
    }
}

fn write_for_server(server: &Cluster, name: &str, text: &str) {
    let owner = fs::metadata(server.data_dir()).unwrap();
    let path = server.data_dir().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

const TRUST: &str = "[pool.auth]\ntype = 'trust'\n";
const OWN: &str = "certificate = 'DIR/pooler.crt', key = 'DIR/pooler.key'";

#[test]
fn clients_get_the_encryption_that_both_sides_want() {
    let Some(scene) = Scene::set("client tls") else { return };
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
        let pooler = scene.pooler(&format!("client = {{ mode = '{mode}', {OWN} }}"), TRUST);
        for (words, expected) in clients {
            let got = scene.connect(&pooler, "postgres", words);
            let text = got.clone().unwrap_or_else(|error| error);
            assert!(text.contains(expected), "{mode}, {words}: {got:?}");
            let is_in = *expected == "plain" || *expected == "encrypted";
            assert_eq!(got.is_ok(), is_in, "{mode}, {words}: {got:?}");
        }
    }
}

#[test]
fn tls_that_begins_at_once_is_for_postgresql_only() {
    let Some(scene) = Scene::set("alpn") else { return };
    let pooler = scene.pooler(&format!("client = {{ mode = 'require', {OWN} }}"), TRUST);
    let place = pooler.addresses()[0].to_string();
    let shake = |alpn: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &place, "-brief"]).args(alpn).stdin(Stdio::piped());
        let mut child = openssl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Kept open: who ends the connection is the pooler.
        let input = child.stdin.take();
        let status = child.wait_with_output().unwrap();
        drop(input);
        (status.status.success(), status.stdout)
    };
    // No protocol named: the handshake is done, then the pooler hangs up without a word.
    assert_eq!(shake(&[]).1, b"");
    let (went_well, _) = shake(&["-alpn", "http/1.1"]);
    assert!(!went_well, "another protocol has to fail the handshake");
}

#[test]
fn what_comes_before_the_answer_about_tls_is_not_taken_for_what_is_behind_it() {
    use std::io::{Read as _, Write as _};
    let Some(scene) = Scene::set("tls injection") else { return };
    let pooler = scene.pooler(&format!("client = {{ mode = 'prefer', {OWN} }}"), TRUST);
    let address = pooler.addresses()[0];
    let ssl = b"\0\0\0\x08\x04\xd2\x16\x2f";
    let gss = b"\0\0\0\x08\x04\xd2\x16\x30";
    // Bytes in the same packet as the request.
    let mut raw = Raw::connect(address);
    raw.0.write_all(&[&ssl[..], b"\0\0\0\x0b\0\x03\0\0us"].concat()).unwrap();
    assert!(raw.is_hung_up_on());
    // Plain text where the handshake is due.
    let mut raw = Raw::connect(address);
    raw.0.write_all(ssl).unwrap();
    let mut answer = [0];
    raw.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"S");
    raw.start(0, "");
    assert!(raw.is_hung_up_on());
    // GSS is refused, and the client may go on: with TLS, or in the clear.
    let mut raw = Raw::connect(address);
    raw.0.write_all(gss).unwrap();
    raw.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"N");
    raw.start(0, "");
    raw.until(b'Z');
    // But not twice.
    let mut raw = Raw::connect(address);
    raw.0.write_all(gss).unwrap();
    raw.0.read_exact(&mut answer).unwrap();
    raw.0.write_all(gss).unwrap();
    assert!(raw.is_hung_up_on());
}

#[test]
fn a_client_is_whom_its_certificate_names() {
    let Some(scene) = Scene::set("cert") else { return };
    let tls = format!(
        "client = {{ mode = 'verify-full', {OWN}, ca-file = 'DIR/root.crt' }}\n\
         server = {{ mode = 'require', certificate = 'DIR/cert.crt', key = 'DIR/cert.key' }}"
    );
    let pooler = scene.pooler(&tls, "[pool.auth]\ntype = 'cert'\n");
    let shows =
        |name: &str| format!("sslmode=require sslcert=DIR/{name}.crt sslkey=DIR/{name}.key");
    // By the same certificate we get in at the server.
    let got = scene.connect(&pooler, "cert", &shows("cert"));
    assert_eq!(got.as_deref(), Ok("encrypted; cert t"));
    let other = scene.connect(&pooler, "postgres", &shows("cert")).unwrap_err();
    assert!(other.contains("certificate authentication failed for user \"postgres\""), "{other}");
    scene.connect(&pooler, "cert", &shows("intruder")).unwrap_err();
    scene.connect(&pooler, "cert", "sslmode=require").unwrap_err();
    // Who got in does not open the door for who comes next.
    assert!(scene.connect(&pooler, "cert", &shows("cert")).is_ok());
}

/// The recipe of PostgreSQL's manual: a certificate of version 1, with a common name only.
#[test]
fn version_1_certificates_are_served_and_taken_from_clients() {
    let Some(scene) = Scene::set("version 1") else { return };
    let certificates = &scene.certificates;
    certificates.signed("old", "localhost", "root", "");
    certificates.signed("old_cert", "cert", "root", "");
    certificates.signed("old_intruder", "cert", "stranger", "");
    // Keys in PKCS #8 below another label, as PgCat's own test key is.
    let key = fs::read_to_string(certificates.path("old.key")).unwrap();
    let key =
        key.replace("BEGIN PRIVATE", "BEGIN RSA PRIVATE").replace("END PRIVATE", "END RSA PRIVATE");
    fs::write(certificates.path("relabelled.key"), key).unwrap();
    let own = "certificate = 'DIR/old.crt', key = 'DIR/relabelled.key'";
    let tls = format!(
        "client = {{ mode = 'verify-ca', {own}, ca-file = 'DIR/root.crt' }}\n\
         server = {{ mode = 'require', certificate = 'DIR/old_cert.crt', key = 'DIR/old_cert.key' }}"
    );
    let pooler = scene.pooler(&tls, "[pool.auth]\ntype = 'cert'\n");
    let shows = |name: &str, version: &str| {
        format!(
            "sslmode=verify-full sslrootcert=DIR/root.crt sslcert=DIR/{name}.crt \
             sslkey=DIR/{name}.key ssl_min_protocol_version={version} \
             ssl_max_protocol_version={version}"
        )
    };
    for version in ["TLSv1.2", "TLSv1.3"] {
        for name in ["old_cert", "cert"] {
            let got = scene.connect(&pooler, "cert", &shows(name, version));
            assert_eq!(got.as_deref(), Ok("encrypted; cert t"), "{name} {version}");
        }
        assert!(scene.connect(&pooler, "cert", &shows("old_intruder", version)).is_err());
    }
}

#[test]
fn key_of_another_certificate_is_refused_by_name() {
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
        chain(&Pooler::start(read.config).unwrap_err()).replace(&folder, "DIR")
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
fn servers_get_the_encryption_that_both_sides_want() {
    let Some(scene) = Scene::set("server tls") else { return };
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
        let pooler = scene.pooler(&format!("server = {{ {server} }}"), TRUST);
        let got = scene.connect(&pooler, user, "sslmode=disable").unwrap_or_else(|error| error);
        assert!(got.contains(expected), "{server}, {user}: {got}");
    }
    let own = "server = { mode = 'require', certificate = 'DIR/cert.crt', key = 'DIR/cert.key' }";
    let pooler = scene.pooler(own, TRUST);
    let got = scene.connect(&pooler, "cert", "sslmode=disable");
    assert_eq!(got.as_deref(), Ok("plain; cert t"));
}

#[test]
fn a_cancel_goes_through_tls_on_both_legs() {
    let Some(scene) = Scene::set("cancel over tls") else { return };
    let tls = format!("client = {{ mode = 'require', {OWN} }}\nserver = {{ mode = 'require' }}");
    let pooler = scene.pooler(&tls, TRUST);
    let port = pooler.addresses()[0].port();
    let words = format!("host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user=tls");
    let mut client = connect(&format!("{words} sslmode=require")).unwrap();
    let cancel = client.cancel_handle().unwrap();
    let mut watcher = connect(&scene.server.uri("postgres")).unwrap();
    let running = "select count(*)::text from pg_stat_activity \
                   where query = 'select pg_sleep(600)' and state = 'active'";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while watcher.one_value(running).unwrap().as_deref() != Some("1") {}
            cancel.cancel().unwrap();
        });
        let error = client.query("select pg_sleep(600)").unwrap_err();
        assert_eq!(error.sqlstate(), Some("57014"), "{error}");
    });
    assert_eq!(client.one_value("select 'alive'").unwrap().as_deref(), Some("alive"));
}
