//! Databases with a forced user: one pool for all clients, and server connections before the first
//! client.

use howdah_lab::wait_until;
use howdah_pool::PoolerSnapshot;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, connect, start_pooler_with};

/// A server with the roles `alice` and `dba`, and a pooler with these databases; `{port}` is the
/// server's port.
fn fixture(test: &str, databases: &str) -> Option<PoolFixture> {
    let mut fixture = PoolFixture::start(test, "")?;
    fixture.query_server("create role alice login");
    fixture.query_server("create role dba login");
    let port = fixture.server.port().to_string();
    fixture.pooler = start_pooler_with(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        [pool.limits]
        clients-per-user = 5
        [pool.listen]
        addresses = ["127.0.0.1"]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.users.alice]
        secret = ""
        max-clients = 2
        [pool.users.dba]
        secret = ""
        {}
        "#,
        databases.replace("{port}", &port)
    ));
    Some(fixture)
}

/// Counts connections to the server except the one that runs this query.
const COUNT_OTHER_BACKENDS: &str = "select count(*) from pg_stat_activity \
                      where backend_type = 'client backend' and pid <> pg_backend_pid()";

fn log_in(fixture: &PoolFixture, database: &str, user: &str) -> RawClient {
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup_for_user(user, database);
    raw.read_until(b'Z');
    raw
}

fn snapshot(fixture: &PoolFixture) -> PoolerSnapshot {
    fixture.pooler.control().snapshot(true)
}

#[test]
fn all_clients_of_a_forced_user_share_one_pool() {
    let Some(fixture) = fixture(
        "forced user",
        "[pool.databases.f]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         user = 'postgres'\npool-size = 2\n",
    ) else {
        return;
    };
    let users = ["postgres", "alice", "dba", "postgres", "alice", "dba"];
    let mut clients: Vec<_> = users.iter().map(|user| log_in(&fixture, "f", user)).collect();
    for raw in &mut clients[..2] {
        raw.send_query("begin; select current_user");
        let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(b"postgres"));
    }
    for raw in &mut clients[2..] {
        raw.send_query("select 1");
    }
    wait_until("the other clients to wait", WAIT_TIMEOUT, || {
        snapshot(&fixture).pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 4
    });
    assert_eq!(fixture.query_server(COUNT_OTHER_BACKENDS), "2");
    let view = snapshot(&fixture);
    let pools: Vec<_> = view.pools.iter().map(|pool| (&*pool.database, &*pool.user)).collect();
    assert_eq!(pools, [("f", "postgres")]);
    let mut own: Vec<_> = view.clients.iter().map(|client| view.client_user(client)).collect();
    own.sort_unstable();
    assert_eq!(own, ["alice", "alice", "dba", "dba", "postgres", "postgres"]);
    // The limit on clients per user applies to the client's own user, not to the forced one.
    let uri = format!("host=127.0.0.1 port={} dbname=f user=alice", fixture.address().port());
    let error = format!("{:?}", connect(&uri).unwrap_err());
    assert!(error.contains("max_user_client_connections"), "{error}");
    for raw in &mut clients[..2] {
        raw.send_query("commit");
        raw.read_until(b'Z');
    }
    for raw in &mut clients[2..] {
        raw.read_until(b'Z');
    }
    log_in(&fixture, "f", "dba");
}

#[test]
fn min_size_of_forced_user_is_open_before_first_client() {
    let Some(fixture) = fixture(
        "forced minimum",
        "[pool.databases.f]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         user = 'postgres'\nmin-size = 3\n",
    ) else {
        return;
    };
    wait_until("three connections of both workers together", WAIT_TIMEOUT, || {
        fixture.query_server(COUNT_OTHER_BACKENDS) == "3"
    });
    let mut raw = log_in(&fixture, "f", "alice");
    raw.send_query("select 1");
    raw.read_until(b'Z');
    assert!(fixture.query_server(COUNT_OTHER_BACKENDS).parse::<u32>().unwrap() <= 4);
}

#[test]
fn min_size_of_one_user_does_not_starve_another() {
    for (min, most) in [(1, 1), (5, 2)] {
        let Some(fixture) = fixture(
            "minimum and limit",
            &format!(
                "[pool.databases.d]\nhosts = ['127.0.0.1:{{port}}']\ndbname = 'postgres'\n\
                 pool-size = 5\nmin-size = {min}\nmax-servers = {most}\n"
            ),
        ) else {
            return;
        };
        let mut first = log_in(&fixture, "d", "postgres");
        first.send_query("select 1");
        first.read_until(b'Z');
        wait_until("the minimum to fill the limit", WAIT_TIMEOUT, || {
            fixture.query_server(COUNT_OTHER_BACKENDS) == most.to_string()
        });
        for user in ["alice", "dba", "alice", "postgres"] {
            let mut raw = log_in(&fixture, "d", user);
            raw.send_query("select current_user");
            let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
            assert!(row.ends_with(user.as_bytes()));
        }
    }
}
