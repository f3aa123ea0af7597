//! A pooler with a `pgbouncer.ini` that contains every key.

use std::fs;

use howdah_lab::{Cluster, skip_without_postgres};
use howdah_pool::Pooler;
use howdah_pool_config::{
    Config,
    pgbouncer::{DATABASE_KEYS, KEYS, USER_KEYS},
};

use crate::{
    certificates::Certificates,
    support::{PoolFixture, RawClient, connect},
};

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

/// A pooler with a `pgbouncer.ini`, in which `more` are lines of `[pgbouncer]`.
fn start_with(more: &str, database: &str) -> Option<PoolFixture> {
    let server = skip_without_postgres("pgbouncer.ini", Cluster::builder().start())?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={} {database}\n[pgbouncer]\nlisten_port = 0\n\
         listen_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
         admin_users = postgres\n{more}\n",
        server.port(),
        folder.path().join("users").display()
    );
    fs::write(&file, text).unwrap();
    fs::write(folder.path().join("users"), "\"postgres\" \"\"\n").unwrap();
    let pooler = Pooler::start(Config::read(&file).unwrap().config).unwrap();
    Some(PoolFixture { server, pooler })
}

#[test]
fn wildcard_can_map_to_one_database() {
    let Some(fixture) = start_with("", "dbname=postgres") else { return };
    let port = fixture.address().port();
    for database in ["shop", "postgres", "any name"] {
        let words = format!("host=127.0.0.1 port={port} user=postgres dbname='{database}'");
        let mut client = connect(&words).unwrap();
        let place = client.one_value("select current_database()").unwrap();
        assert_eq!(place.as_deref(), Some("postgres"));
    }
}

#[test]
fn login_notify_message_is_a_notice_after_the_login() {
    let Some(fixture) = start_with("login_notify_message = maintenance tonight", "") else {
        return;
    };
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(0, "");
    let messages = raw.read_until(b'Z');
    let notices: Vec<_> = messages.iter().filter(|(tag, _)| *tag == b'N').collect();
    let [(_, body)] = notices[..] else { panic!("{} notices", notices.len()) };
    let text = body.escape_ascii().to_string();
    assert!(text.contains("SNOTICE") && text.contains("Mmaintenance tonight"), "{text}");
    // The client knows from AuthenticationOk that it has logged in.
    let at = |tag| messages.iter().position(|(it, _)| *it == tag).unwrap();
    assert!(at(b'R') < at(b'N'));
    assert_eq!(fixture.psql(&["select 1"]), "1");
}

#[test]
fn server_fast_close_ends_idle_sessions_with_an_outdated_server() {
    for closes in [false, true] {
        let setting = format!("pool_mode = session\nserver_fast_close = {}", u8::from(closes));
        let Some(fixture) = start_with(&setting, "") else { return };
        let mut console = RawClient::connect(fixture.address());
        console.send_startup_for_database("pgbouncer", "");
        console.read_until(b'Z');
        let [mut idle, mut busy] = [(); 2].map(|()| {
            let mut client = RawClient::log_in(fixture.address());
            client.send_query("begin");
            client.read_until(b'Z');
            client
        });
        idle.send_query("commit");
        idle.read_until(b'Z');
        console.send_query("reconnect postgres");
        console.read_until(b'Z');
        if closes {
            let (tag, body) = idle.read_message().unwrap();
            let text = body.escape_ascii().to_string();
            assert!(tag == b'E' && text.contains("database configuration changed"), "{text}");
            assert!(idle.is_disconnected());
        }
        // A transaction is not interrupted.
        busy.send_query("commit");
        let committed = busy.read_until(b'Z');
        assert!(committed.iter().any(|(_, body)| body == b"COMMIT\0"));
        if closes {
            assert!(busy.is_disconnected());
        } else {
            for mut client in [idle, busy] {
                client.send_query("select 1");
                client.read_until(b'Z');
            }
        }
    }
}

#[test]
fn check_query_that_always_fails_does_not_prevent_queries() {
    let settings = "pool_mode = transaction\nserver_check_query = select 1/0\n\
                    server_check_delay = 0\nquery_wait_timeout = 20";
    let Some(fixture) = start_with(settings, "") else { return };
    let mut client = RawClient::log_in(fixture.address());
    let mut backends = Vec::new();
    for _ in 0..3 {
        client.send_query("select pg_backend_pid()");
        let replies = client.read_until(b'Z');
        let row = replies.into_iter().find(|(tag, _)| *tag == b'D');
        backends.push(row.expect("the query returns a row").1);
    }
    assert!(backends[0] != backends[1] && backends[1] != backends[2], "{backends:?}");
}
