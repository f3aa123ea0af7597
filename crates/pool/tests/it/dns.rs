//! Host names of servers whose address changes.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use howdah_lab::{Cluster, wait_until};
use howdah_pool::{HostResolver, Pooler};
use howdah_pool_config::Config;

use crate::{
    cluster::query_server,
    support::{PoolFixture, RawClient, WAIT_TIMEOUT},
};

/// Counts connections to a server except the one that runs this query.
const COUNT_OTHER_BACKENDS: &str = "select count(*) from pg_stat_activity \
                      where backend_type = 'client backend' and pid <> pg_backend_pid()";

fn server_port(raw: &mut RawClient) -> String {
    raw.send_query("select current_setting('port')");
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    String::from_utf8(row[6..].to_vec()).unwrap()
}

#[test]
fn connections_follow_changed_address() {
    let Some(mut fixture) = PoolFixture::start("moved name", "") else { return };
    let other = Cluster::builder().name("other").start().unwrap();
    let target = Arc::new(AtomicU16::new(fixture.server.port()));
    let current = Arc::clone(&target);
    let resolver = HostResolver::new(move |host, _| match host {
        "db.test" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], current.load(Ordering::Relaxed)))]),
        other => Err(std::io::Error::other(other.to_owned())),
    });
    let text = "[databases]\npostgres = host=db.test user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                listen_port = 0\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                dns_max_ttl = 1\n";
    let config = Config::read_str(text, Path::new("test.ini")).unwrap().config;
    fixture.pooler = Pooler::start_with_resolver(config, resolver).unwrap();
    let mut clients: Vec<_> = (0..3).map(|_| RawClient::log_in(fixture.address())).collect();
    let (old, new) = (fixture.server.port().to_string(), other.port().to_string());
    for raw in &mut clients {
        assert_eq!(server_port(raw), old);
    }
    let mut busy = RawClient::log_in(fixture.address());
    busy.send_query("begin");
    busy.read_until(b'Z');
    target.store(other.port(), Ordering::Relaxed);
    wait_until("clients to use the new server", WAIT_TIMEOUT, || {
        clients.iter_mut().all(|raw| server_port(raw) == new)
    });
    wait_until("idle connections to the old server to close", WAIT_TIMEOUT, || {
        fixture.query_server(COUNT_OTHER_BACKENDS) == "1"
    });
    // A transaction ends at the server where it started.
    assert_eq!(server_port(&mut busy), old);
    busy.send_query("commit");
    busy.read_until(b'Z');
    wait_until("the last connection to the old server to close", WAIT_TIMEOUT, || {
        fixture.query_server(COUNT_OTHER_BACKENDS) == "0"
    });
    assert_eq!(server_port(&mut busy), new);
    assert_ne!(query_server(&other, COUNT_OTHER_BACKENDS), "0");
}
