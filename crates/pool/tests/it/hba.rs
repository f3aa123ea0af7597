//! Authentication by `pg_hba.conf` rules and user name maps, and console access of the process
//! owner.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_lab::{Cluster, skip_without_postgres};
use howdah_pool::Pooler;
use howdah_pool_config::Config;
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::support::connect;

/// A pooler with hba rules and a unix socket in its own folder.
struct HbaFixture {
    _server: Cluster,
    pooler: Pooler,
    folder: TempDir,
}

impl HbaFixture {
    fn start(test: &str, method: &str, rules: &str, maps: &str) -> Option<Self> {
        let server = skip_without_postgres(test, Cluster::builder().start())?;
        let mut admin = connect(&server.uri("postgres")).unwrap();
        admin.query("create role ann login superuser").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("hba"), rules).unwrap();
        fs::write(at("ident"), maps).unwrap();
        fs::write(at("userlist.txt"), "\"ann\" \"sesame\"\n\"postgres\" \"sesame\"\n").unwrap();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\npool_mode = transaction\n\
             listen_addr = 127.0.0.1\nlisten_port = 0\nunix_socket_dir = {}\nauth_type = {method}\n\
             auth_file = {}\n{}admin_users = ann\n",
            server.port(),
            folder.path().display(),
            at("userlist.txt").display(),
            if method == "hba" {
                let (hba, ident) = (at("hba"), at("ident"));
                format!(
                    "auth_hba_file = {}\nauth_ident_file = {}\n",
                    hba.display(),
                    ident.display()
                )
            } else {
                String::new()
            },
        );
        fs::write(at("pgbouncer.ini"), settings).unwrap();
        let pooler = Pooler::start(Config::read(&at("pgbouncer.ini")).unwrap().config).unwrap();
        Some(Self { _server: server, pooler, folder })
    }

    fn socket_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The role at the server after a login, or the error.
    fn login_outcome(&self, host: &Path, user: &str, password: &str, database: &str) -> String {
        let port = self.pooler.addresses()[0].port();
        let words = format!(
            "host={} port={port} user={user} password='{password}' dbname={database} \
             sslmode=disable connect_timeout=60",
            host.display()
        );
        let mut client = match connect(&words) {
            Ok(client) => client,
            Err(error) => return error.to_string(),
        };
        if database == "pgbouncer" {
            client.query("show version").unwrap();
            return "the console".to_owned();
        }
        client.one_value("select current_user::text").unwrap().unwrap()
    }
}

/// The name of the operating system user that runs the tests.
fn os_user_name() -> String {
    let uid = geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid)).unwrap();
    line.split(':').next().unwrap().to_owned()
}

#[test]
fn rules_match_connection_type_user_and_database() {
    let rules = "local postgres ann peer map=own\nlocal all all reject\n\
                 host pgbouncer ann 127.0.0.1/32 scram-sha-256\n\
                 host template1 all samehost reject\n\
                 host all ann 127.0.0.1/32 md5\nhost postgres postgres 127.0.0.0/8 trust\n";
    let maps = format!("own {} ann\n", os_user_name());
    let Some(fixture) = HbaFixture::start("hba", "hba", rules, &maps) else { return };
    let (tcp, unix) = (PathBuf::from("127.0.0.1"), fixture.socket_dir());
    let from = "host \"127.0.0.1\", user \"postgres\", database \"postgres\", no encryption";
    let cases: [(&Path, [&str; 3], &str); 11] = [
        (&tcp, ["ann", "sesame", "postgres"], "ann"),
        (&tcp, ["ann", "wrong", "postgres"], "password authentication failed for user \"ann\""),
        (&tcp, ["postgres", "", "postgres"], "postgres"),
        (&tcp, ["postgres", "", "nowhere"], "no pg_hba.conf entry for host \"127.0.0.1\""),
        (&tcp, ["nobody", "", "postgres"], "no pg_hba.conf entry for host \"127.0.0.1\""),
        (&tcp, ["ann", "sesame", "template1"], "pg_hba.conf rejects connection for host"),
        (&tcp, ["ann", "sesame", "pgbouncer"], "the console"),
        (unix, ["ann", "", "postgres"], "ann"),
        (unix, ["postgres", "", "postgres"], "pg_hba.conf rejects connection for host \"[local]\""),
        (unix, ["ann", "sesame", "pgbouncer"], "pg_hba.conf rejects connection"),
        (unix, ["pgbouncer", "", "pgbouncer"], "the console"),
    ];
    for (host, [user, password, database], expected) in cases {
        let outcome = fixture.login_outcome(host, user, password, database);
        assert!(outcome.contains(expected), "{user}@{}/{database}: {outcome}", host.display());
    }
    let unknown = fixture.login_outcome(&tcp, "nobody", "", "postgres");
    assert!(unknown.contains(&from.replace("user \"postgres\"", "user \"nobody\"")), "{unknown}");
}

#[test]
fn process_owner_has_console_access_by_unix_socket() {
    let Some(fixture) = HbaFixture::start("owner", "scram-sha-256", "", "") else { return };
    let (tcp, unix) = (PathBuf::from("127.0.0.1"), fixture.socket_dir());
    let outcome =
        |host: &Path, user: &str, database: &str| fixture.login_outcome(host, user, "x", database);
    assert_eq!(outcome(unix, "pgbouncer", "pgbouncer"), "the console");
    assert_eq!(outcome(unix, "howdah", "pgbouncer"), "the console");
    for (host, user, database) in [
        (tcp.as_path(), "pgbouncer", "pgbouncer"),
        (unix, "ann", "pgbouncer"),
        (unix, "pgbouncer", "postgres"),
    ] {
        let error = outcome(host, user, database);
        assert!(error.contains("password authentication failed"), "{user} {database}: {error}");
    }
}
