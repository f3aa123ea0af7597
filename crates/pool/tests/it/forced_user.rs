//! Databases that force their user: one pool for all clients, and servers that are open before any comes.

use howdah_pool::View;

use crate::{
    cluster::until,
    support::{Raw, Stage, connect, pooler_of},
};

/// A pooler before a server with the roles `alice` and `dba`, with databases of these settings; `{port}` is
/// the server's port.
fn stage(test: &str, databases: &str) -> Option<Stage> {
    let mut stage = Stage::set(test, "")?;
    stage.direct("create role alice login");
    stage.direct("create role dba login");
    let port = stage.server.port().to_string();
    stage.pooler = pooler_of(&format!(
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
    Some(stage)
}

/// Connections at the server beside the one that asks.
const OTHERS: &str = "select count(*) from pg_stat_activity \
                      where backend_type = 'client backend' and pid <> pg_backend_pid()";

fn log_in(stage: &Stage, database: &str, user: &str) -> Raw {
    let mut raw = Raw::connect(stage.address());
    raw.start_user(user, database);
    raw.until(b'Z');
    raw
}

fn view(stage: &Stage) -> View {
    stage.pooler.control().view(true)
}

#[test]
fn all_clients_of_a_forced_user_share_one_pool() {
    let Some(stage) = stage(
        "forced user",
        "[pool.databases.f]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         user = 'postgres'\npool-size = 2\n",
    ) else {
        return;
    };
    let users = ["postgres", "alice", "dba", "postgres", "alice", "dba"];
    let mut clients: Vec<_> = users.iter().map(|user| log_in(&stage, "f", user)).collect();
    for raw in &mut clients[..2] {
        raw.query("begin; select current_user");
        let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(b"postgres"));
    }
    for raw in &mut clients[2..] {
        raw.query("select 1");
    }
    until("the others wait", || {
        view(&stage).pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 4
    });
    assert_eq!(stage.direct(OTHERS), "2");
    let view = view(&stage);
    let pools: Vec<_> = view.pools.iter().map(|pool| (&*pool.database, &*pool.user)).collect();
    assert_eq!(pools, [("f", "postgres")]);
    let mut own: Vec<_> = view.clients.iter().map(|client| view.client_user(client)).collect();
    own.sort_unstable();
    assert_eq!(own, ["alice", "alice", "dba", "dba", "postgres", "postgres"]);
    // How many clients there may be of a user is asked of who it is, not of the forced user.
    let uri = format!("host=127.0.0.1 port={} dbname=f user=alice", stage.address().port());
    let error = format!("{:?}", connect(&uri).unwrap_err());
    assert!(error.contains("max_user_client_connections"), "{error}");
    for raw in &mut clients[..2] {
        raw.query("commit");
        raw.until(b'Z');
    }
    for raw in &mut clients[2..] {
        raw.until(b'Z');
    }
    log_in(&stage, "f", "dba");
}

#[test]
fn minimum_of_a_forced_user_is_open_before_the_first_client() {
    let Some(stage) = stage(
        "forced minimum",
        "[pool.databases.f]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         user = 'postgres'\nmin-size = 3\n",
    ) else {
        return;
    };
    until("three are open, by both workers together", || stage.direct(OTHERS) == "3");
    let mut raw = log_in(&stage, "f", "alice");
    raw.query("select 1");
    raw.until(b'Z');
    assert!(stage.direct(OTHERS).parse::<u32>().unwrap() <= 4);
}

#[test]
fn minimum_of_one_user_does_not_starve_another() {
    for (min, most) in [(1, 1), (5, 2)] {
        let Some(stage) = stage(
            "minimum and limit",
            &format!(
                "[pool.databases.d]\nhosts = ['127.0.0.1:{{port}}']\ndbname = 'postgres'\n\
                 pool-size = 5\nmin-size = {min}\nmax-servers = {most}\n"
            ),
        ) else {
            return;
        };
        let mut first = log_in(&stage, "d", "postgres");
        first.query("select 1");
        first.until(b'Z');
        until("its minimum fills the limit", || stage.direct(OTHERS) == most.to_string());
        for user in ["alice", "dba", "alice", "postgres"] {
            let mut raw = log_in(&stage, "d", user);
            raw.query("select current_user");
            let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
            assert!(row.ends_with(user.as_bytes()));
        }
    }
}
