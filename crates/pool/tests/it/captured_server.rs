//! The captured server in the manifest of a capture.

use std::{net::SocketAddr, path::Path};

use howdah_dataset::{Capture, CapturedServer};
use howdah_lab::{Cluster, skip_without_postgres, wait_for, wait_until};
use howdah_pool::{HostResolver, Pooler};
use howdah_pool_config::Config;
use tempfile::TempDir;

use crate::{
    cluster::query_server,
    support::{RawClient, WAIT_TIMEOUT, start_pooler_with},
};

/// Settings for a pooler with captures in `folder` and these databases.
fn settings(folder: &Path, more: &str) -> String {
    format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 1
        capture = {{ path = "{}", file-time = "1s" }}
        [pool.listen]
        addresses = ["127.0.0.1"]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.users.app]
        secret = ""
        {more}
        "#,
        folder.display()
    )
}

fn database(name: &str, server: &Cluster) -> String {
    format!(
        "[pool.databases.{name}]\ndbname = \"postgres\"\nhosts = [\"127.0.0.1:{}\"]\n",
        server.port()
    )
}

fn start(name: &str) -> Option<Cluster> {
    let started = Cluster::builder().name(name).unique_system_identifier(true).start();
    skip_without_postgres("captured server", started)
}

/// Runs a query through the pooler.
fn query(pooler: &Pooler, user: &str, database: &str) -> RawClient {
    let mut client = RawClient::connect(pooler.addresses()[0]);
    client.send_startup_for_user(user, database);
    client.read_until(b'Z');
    client.send_query("select 1");
    client.read_until(b'Z');
    client
}

/// Stops the capture, and returns the server in its manifest.
fn stop_capture(pooler: &Pooler, folder: &Path) -> Option<CapturedServer> {
    let status = pooler.control().stop_capture().unwrap();
    assert_eq!(status.error, None);
    captured_server(folder)
}

fn captured_server(folder: &Path) -> Option<CapturedServer> {
    Capture::open(&folder.join("it")).unwrap().manifest().origin.server.clone()
}

#[test]
fn manifest_has_server_and_its_position_at_the_start() {
    let Some(server) = start("captured") else { return };
    let folder = TempDir::new().unwrap();
    let pooler = start_pooler_with(&settings(folder.path(), &database("shop", &server)));
    let mut client = query(&pooler, "postgres", "shop");
    let position = "select pg_current_wal_lsn(), extract(epoch from now()) * 1000000";
    let before = query_server(&server, position);
    pooler.control().start_capture(Some("it")).unwrap();
    let after = query_server(&server, position);
    client.send_query("create table t as select generate_series(1, 1000)");
    client.read_until(b'Z');
    let captured = stop_capture(&pooler, folder.path()).unwrap();

    let fact = |sql: &str| Some(query_server(&server, sql));
    let identifier = fact("select system_identifier from pg_control_system()");
    assert_eq!(captured.system_identifier, identifier);
    assert_eq!(captured.timeline, Some(1));
    assert_eq!(captured.address, Some(format!("127.0.0.1:{}", server.port())));
    let started = "select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint";
    let started: i64 = query_server(&server, started).parse().unwrap();
    assert_eq!(captured.postmaster_start.unwrap().as_micros(), started);
    let time = captured.time.unwrap().as_micros() as f64;
    let at = |row: &str| row.split_once('|').unwrap().1.parse::<f64>().unwrap();
    assert!((at(&before)..=at(&after)).contains(&time), "{before} {time} {after}");
    // Background processes may have written WAL between the queries.
    let lsn = captured.lsn.unwrap();
    let [before, after] = [&before, &after].map(|row| row.split_once('|').unwrap().0);
    let between = format!("select '{lsn}'::pg_lsn between '{before}' and '{after}'");
    assert_eq!(query_server(&server, &between), "t", "{before} {lsn} {after}");
    // The connection for it is closed.
    let own = "select count(*) from pg_stat_activity where application_name = 'howdah pool'";
    wait_until("the end of the pooler's own connection", WAIT_TIMEOUT, || {
        query_server(&server, own) == "0"
    });
}

#[test]
fn server_is_found_with_the_first_client_of_a_running_capture() {
    let Some(server) = start("later") else { return };
    let folder = TempDir::new().unwrap();
    let pooler = start_pooler_with(&settings(folder.path(), &database("shop", &server)));
    pooler.control().start_capture(Some("it")).unwrap();
    assert_eq!(captured_server(folder.path()), None);
    let mut client = query(&pooler, "postgres", "shop");
    // A finished file updates the manifest of the running capture.
    let captured = wait_for("the captured server in the manifest", WAIT_TIMEOUT, || {
        client.send_query("select 1");
        client.read_until(b'Z');
        captured_server(folder.path())
    });
    assert!(captured.system_identifier.is_some() && captured.lsn.is_some(), "{captured:?}");
    assert_eq!(stop_capture(&pooler, folder.path()), Some(captured));
}

#[test]
fn role_without_permission_leaves_only_the_identifier_empty() {
    let Some(server) = start("denied") else { return };
    query_server(&server, "create role app login");
    query_server(&server, "revoke execute on function pg_control_system() from public");
    let folder = TempDir::new().unwrap();
    let pooler = start_pooler_with(&settings(folder.path(), &database("shop", &server)));
    let _client = query(&pooler, "app", "shop");
    pooler.control().start_capture(Some("it")).unwrap();
    let captured = stop_capture(&pooler, folder.path()).unwrap();
    assert_eq!(captured.system_identifier, None);
    assert!(captured.lsn.is_some() && captured.time.is_some(), "{captured:?}");
    assert_eq!(captured.timeline, Some(1));
}

#[test]
fn databases_on_one_server_are_one_and_on_two_servers_are_none() {
    let (Some(server), Some(other)) = (start("one"), start("two")) else { return };
    let folder = TempDir::new().unwrap();
    let databases =
        [database("shop", &server), database("crm", &server), database("other", &other)].concat();
    let pooler = start_pooler_with(&settings(folder.path(), &databases));
    let _clients = ["shop", "crm"].map(|database| query(&pooler, "postgres", database));
    pooler.control().start_capture(Some("it")).unwrap();
    let captured = stop_capture(&pooler, folder.path()).unwrap();
    assert_eq!(captured.address, Some(format!("127.0.0.1:{}", server.port())));
    std::fs::remove_dir_all(folder.path().join("it")).unwrap();
    let _client = query(&pooler, "postgres", "other");
    pooler.control().start_capture(Some("it")).unwrap();
    assert_eq!(stop_capture(&pooler, folder.path()), None);
}

#[test]
fn server_of_a_cluster_with_host_names_is_its_primary() {
    let Some(primary) = start("primary") else { return };
    let standby = Cluster::builder().name("standby").standby_of(&primary).start().unwrap();
    let folder = TempDir::new().unwrap();
    let entries = [("standby", &standby), ("primary", &primary)]
        .map(|(name, server)| format!("{{ host = \"{name}.test\", port = {} }}", server.port()));
    let cluster = format!(
        "[pool.databases.shop]\ndbname = \"postgres\"\nservers = [{}]\n",
        entries.join(", ")
    );
    let resolver = HostResolver::new(|_, port| Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]));
    let text = settings(folder.path(), &cluster);
    let config = Config::read_str(&text, Path::new("test.toml")).unwrap().config;
    let pooler = Pooler::start_with_resolver(config, resolver).unwrap();
    let mut client = RawClient::connect(pooler.addresses()[0]);
    // This client waits until the primary is known.
    client.send_startup_for_database("shop", "target_session_attrs\0read-write\0");
    client.read_until(b'Z');
    client.send_query("create table t (a int)");
    client.read_until(b'Z');
    pooler.control().start_capture(Some("it")).unwrap();
    let captured = stop_capture(&pooler, folder.path()).unwrap();
    assert_eq!(captured.address, Some(format!("primary.test:{}", primary.port())));
}
