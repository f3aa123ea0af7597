//! Unix sockets on both sides, several workers, and more than one server.

use std::{
    collections::BTreeMap,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::Stdio,
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::worker_of_key;
use howdah_wire::startup::CancelKey;

use crate::support::{Raw, Stage, connect, pooler_of, said};

#[test]
fn unix_sockets_work_on_both_sides_and_carry_cancels() {
    let Some(mut stage) = Stage::set("unix sockets", "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (directory, group) = (folder.path().display(), rustix::process::getgid().as_raw());
    stage.pooler = pooler_of(&format!(
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
        stage.server.socket_dir().display(),
        stage.server.port(),
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
    assert_eq!(said(psql().args(["-c", address]).output().unwrap()), "t");
    let sleep = "select pg_sleep(600)";
    let child = psql().args(["-c", sleep]).stderr(Stdio::piped()).spawn().unwrap();
    let running = format!("select count(*) from pg_stat_activity where query = '{sleep}'");
    while stage.direct(&running) != "1" {}
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("canceling statement due to user request"), "{said}");
    drop(stage);
    assert!(!socket.exists(), "nobody listens there any more");
}

/// A client's worker, as its cancel key tells.
fn worker_of(raw: &mut Raw) -> u8 {
    let messages = raw.until(b'Z');
    let (_, key) = messages.iter().find(|(tag, _)| *tag == b'K').unwrap();
    let (id, secret) = key.split_first_chunk().unwrap();
    let key = CancelKey::new(i32::from_be_bytes(*id), secret).unwrap();
    worker_of_key(&key).unwrap().0
}

#[test]
fn one_server_goes_from_core_to_core_where_clients_wait() {
    let Some(mut stage) = Stage::set("two workers", "") else { return };
    stage.pooler = pooler_of(&format!(
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
        stage.server.port()
    ));
    // The kernel deals connections out to workers; sooner or later each has two.
    let mut of: BTreeMap<u8, Vec<Raw>> = BTreeMap::new();
    while of.len() < 2 || of.values().any(|clients| clients.len() < 2) {
        let mut raw = Raw::connect(stage.address());
        raw.start(0, "");
        let worker = worker_of(&mut raw);
        of.entry(worker).or_default().push(raw);
    }
    let mut clients: Vec<Raw> = of.into_values().flatten().collect();
    for round in 0..50 {
        // All at once: everybody but one waits.
        for (number, client) in clients.iter_mut().enumerate() {
            client.query(&format!("select '{round} {number}'"));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let answers = client.until(b'Z');
            let row = answers.iter().find(|(tag, _)| *tag == b'D').unwrap();
            assert!(row.1.ends_with(format!("{round} {number}").as_bytes()));
        }
    }
    let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    assert_eq!(stage.direct(servers), "2", "the pool's one, and this one");
}

#[test]
fn a_host_that_does_not_answer_is_passed_over() {
    let started = Cluster::builder().start();
    let Some(server) = or_say_why_not("hosts", started) else { return };
    // A port of ours at which nobody listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pooler = pooler_of(&format!(
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
