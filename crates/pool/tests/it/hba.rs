//! Who comes in by which door: rules of an hba file, maps, and the owner at the console.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Pooler, config::Config};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::support::connect;

/// A pooler that follows rules, with a unix socket in a folder of its own.
struct House {
    _server: Cluster,
    pooler: Pooler,
    folder: TempDir,
}

impl House {
    fn build(test: &str, method: &str, rules: &str, maps: &str) -> Option<Self> {
        let server = or_say_why_not(test, Cluster::builder().start())?;
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
             auth_file = userlist.txt\n{}admin_users = ann\n",
            server.port(),
            folder.path().display(),
            if method == "hba" { "auth_hba_file = hba\nauth_ident_file = ident\n" } else { "" },
        );
        fs::write(at("pgbouncer.ini"), settings).unwrap();
        let pooler = Pooler::start(Config::read(&at("pgbouncer.ini")).unwrap().config).unwrap();
        Some(Self { _server: server, pooler, folder })
    }

    fn socket_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Who somebody is at the server, or why not.
    fn outcome(&self, host: &Path, user: &str, password: &str, database: &str) -> String {
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

/// The name of who runs the tests.
fn own_name() -> String {
    let uid = geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid)).unwrap();
    line.split(':').next().unwrap().to_owned()
}

#[test]
fn rules_decide_by_door_user_and_database() {
    let rules = "local postgres ann peer map=own\nlocal all all reject\n\
                 host pgbouncer ann 127.0.0.1/32 scram-sha-256\n\
                 host template1 all samehost reject\n\
                 host all ann 127.0.0.1/32 md5\nhost postgres postgres 127.0.0.0/8 trust\n";
    let maps = format!("own {} ann\n", own_name());
    let Some(house) = House::build("hba", "hba", rules, &maps) else { return };
    let (tcp, unix) = (PathBuf::from("127.0.0.1"), house.socket_dir());
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
        let outcome = house.outcome(host, user, password, database);
        assert!(outcome.contains(expected), "{user}@{}/{database}: {outcome}", host.display());
    }
    let strange = house.outcome(&tcp, "nobody", "", "postgres");
    assert!(strange.contains(&from.replace("user \"postgres\"", "user \"nobody\"")), "{strange}");
}

#[test]
fn who_runs_the_pooler_is_at_home_at_the_console() {
    let Some(house) = House::build("owner", "scram-sha-256", "", "") else { return };
    let (tcp, unix) = (PathBuf::from("127.0.0.1"), house.socket_dir());
    let the = |host: &Path, user: &str, database: &str| house.outcome(host, user, "x", database);
    assert_eq!(the(unix, "pgbouncer", "pgbouncer"), "the console");
    assert_eq!(the(unix, "howdah", "pgbouncer"), "the console");
    for (host, user, database) in [
        (tcp.as_path(), "pgbouncer", "pgbouncer"),
        (unix, "ann", "pgbouncer"),
        (unix, "pgbouncer", "postgres"),
    ] {
        let told = the(host, user, database);
        assert!(told.contains("password authentication failed"), "{user} {database}: {told}");
    }
}
