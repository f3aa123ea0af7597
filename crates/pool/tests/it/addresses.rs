//! Unix sockets for clients and servers, several workers, and several hosts.

use std::{
    collections::BTreeMap,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::Stdio,
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool_core::worker_of_key;
use howdah_wire::startup::CancelKey;

use crate::support::{
    PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, connect, start_pooler_with,
};

#[test]
fn unix_sockets_work_for_clients_servers_and_cancels() {
    let Some(mut fixture) = PoolFixture::start("unix sockets", "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (directory, group) = (folder.path().display(), rustix::process::getgid().as_raw());
    fixture.pooler = start_pooler_with(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        [pool.listen]
        addresses = []
        port = 7654
        unix-directories = ["{directory}"]
        unix-mode = 0o750
        unix-group = "{group}"
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.databases.postgres]
        hosts = ["{}"]
        port = {}
        "#,
        fixture.server.socket_dir().display(),
        fixture.server.port(),
    ));
    let socket = folder.path().join(".s.PGSQL.7654");
    let found = std::fs::metadata(&socket).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.gid()), (0o750, group));

    let psql = || {
        let program = howdah_lab::client_tool("psql").expect("psql is installed");
        let mut psql = std::process::Command::new(program);
        psql.env_clear().env("PGHOST", folder.path()).env("PGPORT", "7654");
        psql.args(["-XAtq", "-U", "postgres", "postgres"]);
        psql
    };
    let address = "select inet_server_addr() is null";
    assert_eq!(checked_stdout(psql().args(["-c", address]).output().unwrap()), "t");
    let sleep = "select pg_sleep(600)";
    let child = psql().args(["-c", sleep]).stderr(Stdio::piped()).spawn().unwrap();
    let running = format!("select count(*) from pg_stat_activity where query = '{sleep}'");
    wait_until("the statement to run", WAIT_TIMEOUT, || fixture.query_server(&running) == "1");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(output.contains("canceling statement due to user request"), "{output}");
    drop(fixture);
    assert!(!socket.exists(), "the socket is removed at the end");
}

/// The worker of a client, from its cancel key.
fn read_worker(raw: &mut RawClient) -> u8 {
    let messages = raw.read_until(b'Z');
    let (_, key) = messages.iter().find(|(tag, _)| *tag == b'K').unwrap();
    let (id, secret) = key.split_first_chunk().unwrap();
    let key = CancelKey::new(i32::from_be_bytes(*id), secret).unwrap();
    worker_of_key(&key).unwrap().0
}

#[test]
fn single_server_connection_moves_between_workers() {
    let Some(mut fixture) = PoolFixture::start("two workers", "") else { return };
    fixture.pooler = start_pooler_with(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        sizes = {{ pool = 1 }}
        [pool.listen]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.databases.postgres]
        hosts = ["127.0.0.1:{}"]
        "#,
        fixture.server.port()
    ));
    // The kernel distributes connections to workers; eventually each has two.
    let mut of: BTreeMap<u8, Vec<RawClient>> = BTreeMap::new();
    while of.len() < 2 || of.values().any(|clients| clients.len() < 2) {
        let mut raw = RawClient::connect(fixture.address());
        raw.send_startup(0, "");
        let worker = read_worker(&mut raw);
        of.entry(worker).or_default().push(raw);
    }
    let mut clients: Vec<RawClient> = of.into_values().flatten().collect();
    for round in 0..50 {
        // All at once: all but one wait.
        for (number, client) in clients.iter_mut().enumerate() {
            client.send_query(&format!("select '{round} {number}'"));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let answers = client.read_until(b'Z');
            let row = answers.iter().find(|(tag, _)| *tag == b'D').unwrap();
            assert!(row.1.ends_with(format!("{round} {number}").as_bytes()));
        }
    }
    let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    assert_eq!(
        fixture.query_server(servers),
        "2",
        "the pool's connection and the one that runs this query"
    );
}

#[test]
fn unreachable_host_is_skipped() {
    let started = Cluster::builder().start();
    let Some(server) = skip_without_postgres("hosts", started) else { return };
    // A port without a listener.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pooler = start_pooler_with(&format!(
        r#"
        [pool]
        mode = "transaction"
        [pool.listen]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.databases.postgres]
        hosts = ["{closed}", "127.0.0.1:{}"]
        load-balance-hosts = "first"
        "#,
        server.port()
    ));
    let port = pooler.addresses()[0].port();
    let words = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let mut client = connect(&words).unwrap();
    let found = client.one_value("select inet_server_port()::text").unwrap();
    assert_eq!(found, Some(server.port().to_string()));
}
