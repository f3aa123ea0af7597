//! A pooler with a `pgbouncer.ini` that contains every key.

use std::fs;

use howdah_lab::{Cluster, skip_without_postgres};
use howdah_pool::Pooler;
use howdah_pool_config::{
    Config,
    pgbouncer::{DATABASE_KEYS, KEYS, USER_KEYS},
};

use crate::{certificates::Certificates, support::connect};

const INI: &str = include_str!("../../../pool-config/src/pgbouncer/every-key.ini");

#[test]
fn file_contains_every_key() {
    for key in KEYS {
        let lines = INI.lines().filter(|line| line.starts_with(&format!("{} =", key.name)));
        assert_eq!(lines.count(), 1, "{}", key.name);
    }
    for (start, keys) in [("shop = ", DATABASE_KEYS), ("ann = ", USER_KEYS)] {
        let line = INI.lines().find(|line| line.starts_with(start)).unwrap();
        for (key, _) in keys {
            assert!(line.contains(&format!(" {key}=")), "{key}");
        }
    }
}

#[test]
fn file_with_every_key_is_accepted() {
    let Some(server) = skip_without_postgres("every key", Cluster::builder().start()) else {
        return;
    };
    let Some(certificates) = Certificates::new("every key") else { return };
    certificates.self_signed("us", "localhost", &[]);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = INI
        .replace("{host}", "127.0.0.1")
        .replace("{port}", &server.port().to_string())
        .replace("{folder}", &folder.path().display().to_string())
        .replace("{ca}", &certificates.path("us.crt").display().to_string())
        .replace("{certificate}", &certificates.path("us.crt").display().to_string())
        .replace("{key}", &certificates.path("us.key").display().to_string());
    fs::write(at("pgbouncer.ini"), text).unwrap();
    fs::write(at("userlist.txt"), "\"postgres\" \"sesame\"\n\"ann\" \"sesame\"\n").unwrap();
    fs::write(at("hba"), "host all all samehost scram-sha-256\n").unwrap();
    fs::write(at("ident"), "").unwrap();
    let read = Config::read(&at("pgbouncer.ini")).unwrap();
    // Every key without effect causes a warning.
    let has_warning = |key: &str| read.warnings.iter().any(|warning| warning.key == key);
    for key in KEYS {
        assert_eq!(has_warning(key.name), key.target().is_none(), "{}", key.name);
    }
    let pooler = Pooler::start(read.config).unwrap();
    let port = pooler.addresses()[0].port();
    let words = |database: &str| {
        format!(
            "host=127.0.0.1 port={port} user=postgres password=sesame dbname={database} \
             application_name=me"
        )
    };
    let mut client = connect(&words("shop")).unwrap();
    let own = "select application_name from pg_stat_activity where pid = pg_backend_pid()";
    let name = client.one_value(own).unwrap().unwrap();
    assert!(name.starts_with("me - 127.0.0.1:"), "{name}");
    let mut console = connect(&words("pgbouncer")).unwrap();
    console.query("show config").unwrap();
}

#[test]
fn wildcard_can_map_to_one_database() {
    let Some(server) = skip_without_postgres("one database", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={} dbname=postgres\n[pgbouncer]\nlisten_port = 0\n\
         listen_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n",
        server.port(),
        folder.path().join("users").display()
    );
    fs::write(&file, text).unwrap();
    fs::write(folder.path().join("users"), "\"postgres\" \"\"\n").unwrap();
    let pooler = Pooler::start(Config::read(&file).unwrap().config).unwrap();
    let port = pooler.addresses()[0].port();
    for database in ["shop", "postgres", "any name"] {
        let words = format!("host=127.0.0.1 port={port} user=postgres dbname='{database}'");
        let mut client = connect(&words).unwrap();
        let place = client.one_value("select current_database()").unwrap();
        assert_eq!(place.as_deref(), Some("postgres"));
    }
}
