//! Servers that are known by a name which comes to mean another place.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use howdah_lab::Cluster;
use howdah_pool::{Names, Pooler, config::Config};

use crate::{
    cluster::{direct, until},
    support::{Raw, Stage},
};

/// Connections at a server beside the one that asks.
const OTHERS: &str = "select count(*) from pg_stat_activity \
                      where backend_type = 'client backend' and pid <> pg_backend_pid()";

fn port(raw: &mut Raw) -> String {
    raw.query("select current_setting('port')");
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    String::from_utf8(row[6..].to_vec()).unwrap()
}

#[test]
fn hosts_follow_a_name_that_moves() {
    let Some(mut stage) = Stage::set("moved name", "") else { return };
    let other = Cluster::builder().name("other").start().unwrap();
    let place = Arc::new(AtomicU16::new(stage.server.port()));
    let current = Arc::clone(&place);
    let names = Names::new(move |host, _| match host {
        "db.test" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], current.load(Ordering::Relaxed)))]),
        other => Err(std::io::Error::other(other.to_owned())),
    });
    let text = "[databases]\npostgres = host=db.test user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                listen_port = 0\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                dns_max_ttl = 1\n";
    let config = Config::read_str(text, Path::new("test.ini")).unwrap().config;
    stage.pooler = Pooler::start_with_names(config, names).unwrap();
    let mut clients: Vec<_> = (0..3).map(|_| Raw::log_in(stage.address())).collect();
    let (old, new) = (stage.server.port().to_string(), other.port().to_string());
    for raw in &mut clients {
        assert_eq!(port(raw), old);
    }
    let mut busy = Raw::log_in(stage.address());
    busy.query("begin");
    busy.until(b'Z');
    place.store(other.port(), Ordering::Relaxed);
    until("clients that were there use the new place", || {
        clients.iter_mut().all(|raw| port(raw) == new)
    });
    until("what was free at the old one is closed", || stage.direct(OTHERS) == "1");
    // A transaction ends where it began.
    assert_eq!(port(&mut busy), old);
    busy.query("commit");
    busy.until(b'Z');
    until("and then that connection is closed, too", || stage.direct(OTHERS) == "0");
    assert_eq!(port(&mut busy), new);
    assert_ne!(direct(&other, OTHERS), "0");
}
