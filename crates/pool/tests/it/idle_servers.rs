//! Idle servers that several workers share.

use howdah_lab::{Cluster, skip_without_postgres};

use crate::support::{PoolFixture, PoolerSettings, RawClient};

/// The statement takes longer than the time between two requests of a worker for idle servers.
const BACKEND_PID: &str = "select pg_backend_pid() from pg_sleep(0.15)";

#[test]
fn workers_use_idle_servers_of_others_before_they_open_the_last_ones() {
    let test = "workers_use_idle_servers_of_others_before_they_open_the_last_ones";
    let Some(server) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let more = "sizes = { pool = 2 }";
    let pooler = PoolerSettings { workers: 2, more, ..PoolerSettings::default() }.start(&server);
    let fixture = PoolFixture { server, pooler };
    // The kernel distributes them over both workers.
    let mut clients: Vec<_> = (0..10).map(|_| RawClient::log_in(fixture.address())).collect();
    let backend_pid = |client: &mut RawClient| {
        client.send_query(BACKEND_PID);
        let replies = client.read_until(b'Z');
        replies.into_iter().find(|(tag, _)| *tag == b'D').expect("the query returns a row").1
    };
    let first = backend_pid(&mut clients[0]);
    for client in &mut clients {
        assert_eq!(backend_pid(client), first, "the only server moves to the worker that needs it");
    }
    // Both servers are opened once both are needed.
    clients.iter_mut().for_each(|client| client.send_query(BACKEND_PID));
    clients.iter_mut().for_each(|client| drop(client.read_until(b'Z')));
    let backends = "select count(*) from pg_stat_activity where query like '%pg_sleep(0.15)'";
    assert_eq!(fixture.query_server(backends).trim(), "2");
}
