//! A cluster rebuilt from its old primary after a promotion: its timeline goes back.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use howdah_lab::wait_until;

use super::{AUTO_ROLES, ClusterFixture, RawClient, SELECT_PORT, app_settings, query_value};
use crate::support::{WAIT_TIMEOUT, checked_stdout, start_pooler_with};

/// A TCP proxy whose target can be changed.
struct RedirectingProxy {
    port: u16,
    target: Arc<AtomicU16>,
}

impl RedirectingProxy {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, target) =
            (listener.local_addr().unwrap().port(), Arc::new(AtomicU16::new(server)));
        let current = Arc::clone(&target);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let to = SocketAddr::from(([127, 0, 0, 1], current.load(Ordering::Relaxed)));
                let Ok(server) = TcpStream::connect(to) else { continue };
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { port, target }
    }
}

#[test]
fn cluster_rebuilt_on_older_timeline_gets_writes() {
    let Some(mut fixture) = ClusterFixture::start("put back", &AUTO_ROLES, "") else { return };
    let port = |fixture: &ClusterFixture, server: usize| fixture.servers[server].port();
    let proxy = RedirectingProxy::start(port(&fixture, 1));
    let pooler = |primary_rejoin_delay: &str| {
        start_pooler_with(&app_settings(&format!(
            "servers = [{{ host = '127.0.0.1', port = {} }}, {{ host = '127.0.0.1', port = {} }}]\n\
             cluster = {{ check-interval = '100ms', primary-rejoin-delay = '{primary_rejoin_delay}', \
             failover-timeout = '1s' }}",
            port(&fixture, 0),
            proxy.port
        )))
    };
    let (mut automatic, mut manual) = (pooler("1s"), pooler("1h"));
    let write_at = |pooler: &howdah_pool::Pooler| {
        let mut raw = RawClient::connect(pooler.addresses()[0]);
        raw.send_startup_for_database("app", "target_session_attrs\0read-write\0");
        raw
    };
    for pooler in [&automatic, &manual] {
        let mut raw = write_at(pooler);
        raw.read_until(b'Z');
        query_value(&mut raw, "select pg_current_xact_id()");
    }
    // The standby is promoted, and both poolers follow it.
    fixture.query_server(1, "select pg_promote()");
    for pooler in [&mut automatic, &mut manual] {
        std::mem::swap(&mut fixture.pooler, pooler);
        wait_until("the old primary to be detected", WAIT_TIMEOUT, || {
            fixture.console("show members").contains("|stale|")
        });
        std::mem::swap(&mut fixture.pooler, pooler);
    }
    // The new primary is discarded and replaced by a standby of the old primary.
    fixture.servers[1].kill().unwrap();
    proxy.target.store(port(&fixture, 2), Ordering::Relaxed);
    let old = port(&fixture, 0).to_string();
    let is_written_to = |pooler: &howdah_pool::Pooler| {
        let mut raw = write_at(pooler);
        raw.read_until(b'Z');
        raw.send_query(SELECT_PORT);
        let (tag, body) = raw.read_message().unwrap();
        let received = String::from_utf8_lossy(&body).replace('\0', " ");
        assert!(tag == b'T' || tag == b'E', "{received}");
        if tag == b'T' {
            assert!(raw.read_message().unwrap().1.ends_with(old.as_bytes()));
        }
        (tag == b'T', received)
    };
    wait_until("writes after primary-rejoin-delay", WAIT_TIMEOUT, || is_written_to(&automatic).0);
    // With a long primary-rejoin-delay, the client's error suggests what an operator can do.
    wait_until("the error that suggests RESET CLUSTER", WAIT_TIMEOUT, || {
        is_written_to(&manual).1.contains("RESET CLUSTER")
    });
    fixture.pooler = manual;
    let refused =
        fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "reset cluster nowhere"]);
    assert!(!refused.status.success());
    checked_stdout(
        fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "reset cluster app"]),
    );
    wait_until("writes after RESET CLUSTER", WAIT_TIMEOUT, || is_written_to(&fixture.pooler).0);
    let members = fixture.console("show members");
    assert!(!members.contains("|stale|") && members.contains("|primary|"), "{members}");
}
