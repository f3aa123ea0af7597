//! A cluster that is made anew from its old primary after a promotion: its timeline goes back.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use super::{AUTO, PORT, Raw, Stage, settings_of, until, value};
use crate::support::{pooler_of, said};

/// An address behind which one server after another stands.
struct Address {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Address {
    fn of(server: u16) -> Self {
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
fn cluster_put_back_to_an_older_timeline_is_written_to_again() {
    let Some(mut stage) = Stage::set("put back", &AUTO, "") else { return };
    let port = |stage: &Stage, server: usize| stage.servers[server].port();
    let address = Address::of(port(&stage, 1));
    let pooler = |primary_rejoin_delay: &str| {
        pooler_of(&settings_of(&format!(
            "servers = [{{ host = '127.0.0.1', port = {} }}, {{ host = '127.0.0.1', port = {} }}]\n\
             cluster = {{ check-interval = '100ms', primary-rejoin-delay = '{primary_rejoin_delay}', \
             failover-timeout = '1s' }}",
            port(&stage, 0),
            address.port
        )))
    };
    let (mut by_itself, mut by_order) = (pooler("1s"), pooler("1h"));
    let write_at = |pooler: &howdah_pool::Pooler| {
        let mut raw = Raw::connect(pooler.addresses()[0]);
        raw.start_in("app", "target_session_attrs\0read-write\0");
        raw
    };
    for pooler in [&by_itself, &by_order] {
        let mut raw = write_at(pooler);
        raw.until(b'Z');
        value(&mut raw, "select pg_current_xact_id()");
    }
    // The standby is promoted, and both follow.
    stage.direct(1, "select pg_promote()");
    for pooler in [&mut by_itself, &mut by_order] {
        std::mem::swap(&mut stage.pooler, pooler);
        until("the old primary is known to be one", || {
            stage.console("show members").contains("|stale|")
        });
        std::mem::swap(&mut stage.pooler, pooler);
    }
    // It is thrown away, and a standby of the old primary comes in its place.
    stage.servers[1].kill().unwrap();
    address.target.store(port(&stage, 2), Ordering::Relaxed);
    let old = port(&stage, 0).to_string();
    let is_written_to = |pooler: &howdah_pool::Pooler| {
        let mut raw = write_at(pooler);
        raw.until(b'Z');
        raw.query(PORT);
        let (tag, body) = raw.message().unwrap();
        let told = String::from_utf8_lossy(&body).replace('\0', " ");
        assert!(tag == b'T' || tag == b'E', "{told}");
        if tag == b'T' {
            assert!(raw.message().unwrap().1.ends_with(old.as_bytes()));
        }
        (tag == b'T', told)
    };
    until("it is taken by itself", || is_written_to(&by_itself).0);
    // Where that takes longer than anybody waits, a client is told what an operator can do.
    until("the other has seen it", || is_written_to(&by_order).1.contains("RESET CLUSTER"));
    stage.pooler = by_order;
    let refused = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "reset cluster nowhere"]);
    assert!(!refused.status.success());
    said(stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "reset cluster app"]));
    until("it is taken by order", || is_written_to(&stage.pooler).0);
    let members = stage.console("show members");
    assert!(!members.contains("|stale|") && members.contains("|primary|"), "{members}");
}
