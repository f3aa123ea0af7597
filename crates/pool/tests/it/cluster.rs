//! A database with several servers: a primary with standbys, and a pooler in front of them.

mod failover;
mod foreign_system;
mod older_timeline;
mod unresponsive;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    process::{Command, Output},
};

use howdah_lab::{Cluster, client_tool, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use crate::support::{RawClient, WAIT_TIMEOUT, checked_stdout, start_pooler_with};

/// A primary with standbys, and a pooler in front of them.
pub(crate) struct ClusterFixture {
    /// The primary first.
    pub(crate) servers: Vec<Cluster>,
    pub(crate) pooler: Pooler,
}

impl ClusterFixture {
    /// Starts one server per entry, the first as primary. `entries` are the configured servers,
    /// with `{0}` for the port of the first and so on; `more` are further lines of the database.
    /// Prints a message and returns `None` if PostgreSQL is not installed.
    pub(crate) fn start(test: &str, entries: &[&str], more: &str) -> Option<Self> {
        let primary = Cluster::builder()
            .setting("max_connections", "60")
            .setting("wal_level", "replica")
            .setting("hot_standby", "on")
            .start();
        let primary = skip_without_postgres(test, primary)?;
        let standby =
            |name: &str| Cluster::builder().name(name).standby_of(&primary).start().unwrap();
        let standbys = (1..entries.len()).map(|at| standby(&format!("s{at}"))).collect::<Vec<_>>();
        let servers: Vec<_> = [primary].into_iter().chain(standbys).collect();
        let pooler = start_pooler_with(&settings(&servers, entries, more));
        Some(Self { servers, pooler })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    fn program(&self, name: &str) -> Command {
        let own = self.servers[0].binaries().program(name);
        let program = if own.is_file() {
            own
        } else {
            client_tool(name).expect("psql and pgbench are installed")
        };
        Command::new(program)
    }

    /// Runs one of PostgreSQL's programs through the pooler.
    pub(crate) fn run_program(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.program(program);
        command
            .env_clear()
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", self.address().port().to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "app")
            .env("PGCONNECT_TIMEOUT", "60");
        command
    }

    pub(crate) fn console(&self, command: &str) -> String {
        checked_stdout(self.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]))
    }

    /// Runs a statement directly at a server.
    pub(crate) fn query_server(&self, server: usize, statement: &str) -> String {
        query_server(&self.servers[server], statement)
    }

    /// A client with this `target_session_attrs`.
    pub(crate) fn client(&self, attributes: &str) -> RawClient {
        let mut raw = RawClient::connect(self.address());
        raw.send_startup_for_database("app", &format!("target_session_attrs\0{attributes}\0"));
        raw.read_until(b'Z');
        raw
    }
}

/// Runs a statement directly at a server, and returns its output.
pub(crate) fn query_server(server: &Cluster, statement: &str) -> String {
    let own = server.binaries().program("psql");
    let program = if own.is_file() { own } else { client_tool("psql").expect("psql is installed") };
    let uri = server.uri("postgres");
    checked_stdout(Command::new(program).args(["-XAtq", &uri, "-c", statement]).output().unwrap())
}

pub(crate) fn settings(servers: &[Cluster], entries: &[&str], more: &str) -> String {
    let mut entries = entries.join(",\n");
    for (number, server) in servers.iter().enumerate() {
        entries = entries.replace(&format!("{{{number}}}"), &server.port().to_string());
    }
    app_settings(&format!("servers = [{entries}]\n{more}"))
}

/// The configuration of a pooler whose only database is `app`, with these lines.
pub(crate) fn app_settings(app: &str) -> String {
    format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        admin-users = ["postgres"]
        [pool.listen]
        addresses = ["127.0.0.1"]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.databases.app]
        dbname = "postgres"
        {app}
        "#
    )
}

/// Runs a query, and returns the value of its only row.
fn query_value(raw: &mut RawClient, sql: &str) -> String {
    raw.send_query(sql);
    let messages = raw.read_until(b'Z');
    let row = messages.iter().find(|(tag, _)| *tag == b'D');
    let Some((_, row)) = row else {
        panic!("{sql}: {}", String::from_utf8_lossy(&messages[0].1));
    };
    String::from_utf8(row[6..].to_vec()).unwrap()
}

pub(crate) const AUTO_ROLES: [&str; 3] = [
    "{ host = \"127.0.0.1\", port = {0} }",
    "{ host = \"127.0.0.1\", port = {1} }",
    "{ host = \"127.0.0.1\", port = {2} }",
];

pub(crate) const FIXED_ROLES: [&str; 3] = [
    "{ host = \"127.0.0.1\", port = {0}, role = \"primary\", weight = 1 }",
    "{ host = \"127.0.0.1\", port = {1}, role = \"replica\", weight = 2 }",
    "{ host = \"127.0.0.1\", port = {2}, role = \"replica\", weight = 3 }",
];

const SELECT_PORT: &str = "select current_setting('port')";

/// Runs transactions, and returns how many of them each server has run.
fn transactions_by_server(
    client: &mut RawClient,
    fixture: &ClusterFixture,
    transactions: u32,
) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..transactions {
        *counts.entry(query_value(client, SELECT_PORT)).or_insert(0) += 1;
    }
    let port = |server: &Cluster| server.port().to_string();
    fixture.servers.iter().map(|server| counts.get(&port(server)).copied().unwrap_or(0)).collect()
}

#[test]
fn reads_are_balanced_evenly_over_matching_servers() {
    let Some(fixture) = ClusterFixture::start("spread", &AUTO_ROLES, "") else { return };
    let mut primary = fixture.client("read-write");
    assert_eq!(query_value(&mut primary, "select pg_is_in_recovery()"), "f");
    let mut standby = fixture.client("standby");
    assert_eq!(query_value(&mut standby, "select pg_is_in_recovery()"), "t");
    assert_eq!(transactions_by_server(&mut primary, &fixture, 30), [30, 0, 0]);
    let [none, first, second] = transactions_by_server(&mut standby, &fixture, 200)[..] else {
        panic!("three")
    };
    assert!(none == 0 && first.abs_diff(second) <= 5, "{first} {second}");
    let even = transactions_by_server(&mut fixture.client("any"), &fixture, 300);
    assert!(even.iter().all(|share| (95..=105).contains(share)), "{even:?}");

    // Clients that want to know the server's role look at the startup parameters.
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup_for_database("app", "target_session_attrs\0read-only\0");
    let received = raw.read_until(b'Z');
    let received: Vec<_> = received.iter().map(|(_, body)| &body[..]).collect();
    let is_14 = fixture.servers[0].major() >= 14;
    assert_eq!(received.contains(&&b"in_hot_standby\0on\0"[..]), is_14);

    // libpq does not send the parameter, but checks the server's role itself.
    let conninfo = "target_session_attrs=read-write";
    assert!(
        !checked_stdout(fixture.run_program("psql", &["-XAtqd", conninfo, "-c", SELECT_PORT]))
            .is_empty()
    );
    let refused =
        fixture.run_program("psql", &["-XAtqd", "options='-c target_session_attrs=boss'"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("invalid target_session_attrs"));
}

#[test]
fn pgbench_reads_from_all_servers_and_writes_to_primary() {
    let Some(fixture) = ClusterFixture::start("pgbench", &FIXED_ROLES, "") else { return };
    let writes = "PGOPTIONS=-c target_session_attrs=read-write";
    let (name, value) = writes.split_once('=').unwrap();
    checked_stdout(
        fixture.command("pgbench").env(name, value).args(["-i", "-q", "-s", "1"]).output().unwrap(),
    );
    let mut load = fixture.command("pgbench");
    checked_stdout(load.env(name, value).args(["-n", "-c", "4", "-t", "50"]).output().unwrap());
    let lsn = fixture.query_server(0, "select pg_current_wal_lsn()");
    for standby in [1, 2] {
        let replayed = format!("select pg_last_wal_replay_lsn() >= '{lsn}'");
        wait_until("replay", WAIT_TIMEOUT, || fixture.query_server(standby, &replayed) == "t");
    }
    for protocol in ["simple", "extended", "prepared"] {
        checked_stdout(
            fixture.run_program("pgbench", &["-n", "-S", "-c", "6", "-t", "100", "-M", protocol]),
        );
    }
    let total = |server: usize| {
        let sql = "select sum(calls) from (select xact_commit calls from pg_stat_database \
                   where datname = 'postgres') it";
        fixture.query_server(server, sql).parse::<u64>().unwrap_or(0)
    };
    wait_until("reads at each server", WAIT_TIMEOUT, || (1..3).all(|server| total(server) > 500));
}

#[test]
fn transactions_follow_weights() {
    let more = "cluster = { strategy = \"weighted\" }";
    let Some(fixture) = ClusterFixture::start("weights", &FIXED_ROLES, more) else { return };
    let shares = transactions_by_server(&mut fixture.client("any"), &fixture, 300);
    assert_eq!(shares, [50, 100, 150]);
}

/// A distant or busy server is slow: most transactions should go to the others.
#[test]
fn latency_strategy_avoids_slow_server() {
    let more = "cluster = { strategy = \"latency\" }";
    let Some(fixture) = ClusterFixture::start("latency", &FIXED_ROLES, more) else { return };
    // The same statement is slow at one of the servers only.
    let slow = fixture.servers[2].port();
    let sql = format!(
        "select pg_sleep(case current_setting('port') when '{slow}' then 0.05 else 0.001 end)"
    );
    let work = |transactions: u32| {
        let mut client = fixture.client("any");
        (0..transactions).for_each(|_| {
            client.send_query(&sql);
            client.read_until(b'Z');
        });
    };
    let run = || std::thread::scope(|scope| (0..6).for_each(|_| drop(scope.spawn(|| work(100)))));
    // The first run measures the latencies, the second shows the distribution.
    run();
    let counts = || {
        let members = fixture.console("show members");
        let cells = members.lines().map(|line| line.split('|').nth(9).unwrap().parse().unwrap());
        cells.collect::<Vec<u64>>()
    };
    let before = counts();
    run();
    let more: Vec<_> = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
    assert_eq!(more.iter().sum::<u64>(), 600);
    assert!(more[2] < 60, "more than a third of its share by round robin: {more:?}");
}

#[test]
fn reload_changes_servers_for_connected_clients() {
    let Some(fixture) = ClusterFixture::start("list", &FIXED_ROLES, "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    let write = |entries: &[&str], more: &str| {
        std::fs::write(&file, settings(&fixture.servers, entries, more)).unwrap();
    };
    write(&FIXED_ROLES, "");
    let config = Config::read(&file).unwrap().config;
    let origin = ConfigOrigin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
    let mut raw = RawClient::connect(pooler.addresses()[0]);
    raw.send_startup_for_database("app", "target_session_attrs\0standby\0");
    raw.read_until(b'Z');
    let ports: Vec<_> = fixture.servers.iter().map(|server| server.port().to_string()).collect();
    let read_ports = |raw: &mut RawClient| -> BTreeSet<String> {
        (0..10).map(|_| query_value(raw, SELECT_PORT)).collect()
    };
    let of = |servers: &[usize]| servers.iter().map(|at| ports[*at].clone()).collect();
    assert_eq!(read_ports(&mut raw), of(&[1, 2]));
    write(&FIXED_ROLES[..2], "");
    pooler.control().reload().unwrap();
    assert_eq!(read_ports(&mut raw), of(&[1]));
    write(&[FIXED_ROLES[0], FIXED_ROLES[2]], "");
    pooler.control().reload().unwrap();
    assert_eq!(read_ports(&mut raw), of(&[2]));
    write(&FIXED_ROLES, "cluster = { strategy = \"random\", ban = 5 }");
    pooler.control().reload().unwrap();
    wait_until("both standbys to serve", WAIT_TIMEOUT, || read_ports(&mut raw) == of(&[1, 2]));
    // A single server instead: connected clients stay.
    let text = settings(&fixture.servers, &[], "hosts = [\"127.0.0.1\"]");
    let text = text.replace("servers = []", &format!("port = {}", ports[0]));
    std::fs::write(&file, text).unwrap();
    pooler.control().reload().unwrap();
    let both: BTreeSet<String> = of(&[1, 2]);
    assert!(read_ports(&mut raw).is_subset(&both));
    let mut other = RawClient::connect(pooler.addresses()[0]);
    other.send_startup_for_database("app", "");
    other.read_until(b'Z');
    assert_eq!(read_ports(&mut other), of(&[0]));
}
