//! Several servers behind one database: a primary with standbys, and a pooler before them.

mod failover;
mod hung;
mod put_back;
mod systems;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    process::{Command, Output},
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, client_tool, or_say_why_not};
use howdah_pool::{Origin, Pooler, config::Config};

use crate::support::{Raw, pooler_of, said};

/// How long something may take that takes moments where nothing else runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A primary with standbys, and a pooler before them.
pub(crate) struct Stage {
    /// The primary first.
    pub(crate) servers: Vec<Cluster>,
    pub(crate) pooler: Pooler,
}

impl Stage {
    /// Two standbys; `entries` are servers of the settings with `{0}` for the port of the first, and
    /// so on, and `more` is what else the settings of the database say. `None` if the machine has no
    /// PostgreSQL, which is said.
    pub(crate) fn set(test: &str, entries: &[&str], more: &str) -> Option<Self> {
        let primary = Cluster::builder()
            .setting("max_connections", "60")
            .setting("wal_level", "replica")
            .setting("hot_standby", "on")
            .start();
        let primary = or_say_why_not(test, primary)?;
        let standby =
            |name: &str| Cluster::builder().name(name).standby_of(&primary).start().unwrap();
        let standbys = (1..entries.len()).map(|at| standby(&format!("s{at}"))).collect::<Vec<_>>();
        let servers: Vec<_> = [primary].into_iter().chain(standbys).collect();
        let pooler = pooler_of(&settings(&servers, entries, more));
        Some(Self { servers, pooler })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    fn program(&self, name: &str) -> Command {
        let own = self.servers[0].binaries().program(name);
        let program = match own.is_file() {
            true => own,
            false => client_tool(name).expect("psql and pgbench are installed"),
        };
        Command::new(program)
    }

    /// Runs one of PostgreSQL's programs through the pooler.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Output {
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
        said(self.run("psql", &["-XAtq", "-d", "howdah", "-c", command]))
    }

    /// Asks a server itself.
    pub(crate) fn direct(&self, server: usize, statement: &str) -> String {
        direct(&self.servers[server], statement)
    }

    /// A client that says which servers would do.
    pub(crate) fn client(&self, attributes: &str) -> Raw {
        let mut raw = Raw::connect(self.address());
        raw.start_in("app", &format!("target_session_attrs\0{attributes}\0"));
        raw.until(b'Z');
        raw
    }
}

/// What a server itself answers.
pub(crate) fn direct(server: &Cluster, statement: &str) -> String {
    let own = server.binaries().program("psql");
    let program = if own.is_file() { own } else { client_tool("psql").expect("psql is installed") };
    let uri = server.uri("postgres");
    said(Command::new(program).args(["-XAtq", &uri, "-c", statement]).output().unwrap())
}

pub(crate) fn settings(servers: &[Cluster], entries: &[&str], more: &str) -> String {
    let mut entries = entries.join(",\n");
    for (number, server) in servers.iter().enumerate() {
        entries = entries.replace(&format!("{{{number}}}"), &server.port().to_string());
    }
    settings_of(&format!("servers = [{entries}]\n{more}"))
}

/// Those of a pooler whose only database, `app`, has these besides.
pub(crate) fn settings_of(app: &str) -> String {
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

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it has not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The value of the only row.
fn value(raw: &mut Raw, sql: &str) -> String {
    raw.query(sql);
    let messages = raw.until(b'Z');
    let row = messages.iter().find(|(tag, _)| *tag == b'D');
    let Some((_, row)) = row else {
        panic!("{sql}: {}", String::from_utf8_lossy(&messages[0].1));
    };
    String::from_utf8(row[6..].to_vec()).unwrap()
}

pub(crate) const AUTO: [&str; 3] = [
    "{ host = \"127.0.0.1\", port = {0} }",
    "{ host = \"127.0.0.1\", port = {1} }",
    "{ host = \"127.0.0.1\", port = {2} }",
];

pub(crate) const NAMED: [&str; 3] = [
    "{ host = \"127.0.0.1\", port = {0}, role = \"primary\", weight = 1 }",
    "{ host = \"127.0.0.1\", port = {1}, role = \"replica\", weight = 2 }",
    "{ host = \"127.0.0.1\", port = {2}, role = \"replica\", weight = 3 }",
];

const PORT: &str = "select current_setting('port')";

/// How many transactions each server did of many.
fn shares(client: &mut Raw, stage: &Stage, transactions: u32) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..transactions {
        *counts.entry(value(client, PORT)).or_insert(0) += 1;
    }
    let port = |server: &Cluster| server.port().to_string();
    stage.servers.iter().map(|server| counts.get(&port(server)).copied().unwrap_or(0)).collect()
}

#[test]
fn reads_are_spread_evenly_and_a_client_gets_what_it_asks_for() {
    let Some(stage) = Stage::set("spread", &AUTO, "") else { return };
    let mut primary = stage.client("read-write");
    assert_eq!(value(&mut primary, "select pg_is_in_recovery()"), "f");
    let mut standby = stage.client("standby");
    assert_eq!(value(&mut standby, "select pg_is_in_recovery()"), "t");
    assert_eq!(shares(&mut primary, &stage, 30), [30, 0, 0]);
    let [none, first, second] = shares(&mut standby, &stage, 200)[..] else { panic!("three") };
    assert!(none == 0 && first.abs_diff(second) <= 5, "{first} {second}");
    let even = shares(&mut stage.client("any"), &stage, 300);
    assert!(even.iter().all(|share| (95..=105).contains(share)), "{even:?}");

    // What the greeting says is what a client looks at that wants to know where it is.
    let mut raw = Raw::connect(stage.address());
    raw.start_in("app", "target_session_attrs\0read-only\0");
    let told = raw.until(b'Z');
    let told: Vec<_> = told.iter().map(|(_, body)| &body[..]).collect();
    let is_14 = stage.servers[0].major() >= 14;
    assert_eq!(told.contains(&&b"in_hot_standby\0on\0"[..]), is_14);

    // libpq keeps the parameter to itself, and looks where it is.
    let conninfo = "target_session_attrs=read-write";
    assert!(!said(stage.run("psql", &["-XAtqd", conninfo, "-c", PORT])).is_empty());
    let refused = stage.run("psql", &["-XAtqd", "options='-c target_session_attrs=boss'"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("invalid target_session_attrs"));
}

#[test]
fn pgbench_reads_everywhere_and_writes_at_the_primary() {
    let Some(stage) = Stage::set("pgbench", &NAMED, "") else { return };
    let writes = "PGOPTIONS=-c target_session_attrs=read-write";
    let (name, value) = writes.split_once('=').unwrap();
    said(stage.command("pgbench").env(name, value).args(["-i", "-q", "-s", "1"]).output().unwrap());
    let mut load = stage.command("pgbench");
    said(load.env(name, value).args(["-n", "-c", "4", "-t", "50"]).output().unwrap());
    let lsn = stage.direct(0, "select pg_current_wal_lsn()");
    for standby in [1, 2] {
        let replayed = format!("select pg_last_wal_replay_lsn() >= '{lsn}'");
        until("replay", || stage.direct(standby, &replayed) == "t");
    }
    for protocol in ["simple", "extended", "prepared"] {
        said(stage.run("pgbench", &["-n", "-S", "-c", "6", "-t", "100", "-M", protocol]));
    }
    let total = |server: usize| {
        let sql = "select sum(calls) from (select xact_commit calls from pg_stat_database \
                   where datname = 'postgres') it";
        stage.direct(server, sql).parse::<u64>().unwrap_or(0)
    };
    until("each server has had reads", || (1..3).all(|server| total(server) > 500));
}

#[test]
fn weights_are_kept() {
    let more = "cluster = { strategy = \"weighted\" }";
    let Some(stage) = Stage::set("weights", &NAMED, more) else { return };
    let shares = shares(&mut stage.client("any"), &stage, 300);
    assert_eq!(shares, [50, 100, 150]);
}

/// A server answers late when it is far away, or busy: then the others get what there is.
#[test]
fn a_slow_server_gets_little_by_latency() {
    let more = "cluster = { strategy = \"latency\" }";
    let Some(stage) = Stage::set("latency", &NAMED, more) else { return };
    // The same text takes its time at one of them only.
    let slow = stage.servers[2].port();
    let sql = format!(
        "select pg_sleep(case current_setting('port') when '{slow}' then 0.05 else 0.001 end)"
    );
    let work = |transactions: u32| {
        let mut client = stage.client("any");
        (0..transactions).for_each(|_| {
            client.query(&sql);
            client.until(b'Z');
        });
    };
    let run = || std::thread::scope(|scope| (0..6).for_each(|_| drop(scope.spawn(|| work(100)))));
    // Until it is known how fast each is, and then what they get.
    run();
    let counts = || {
        let members = stage.console("show members");
        let cells = members.lines().map(|line| line.split('|').nth(9).unwrap().parse().unwrap());
        cells.collect::<Vec<u64>>()
    };
    let before = counts();
    run();
    let more: Vec<_> = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
    assert_eq!(more.iter().sum::<u64>(), 600);
    assert!(more[2] < 60, "a tenth of what it would get in turn: {more:?}");
}

#[test]
fn the_list_of_servers_can_be_changed_while_clients_are_there() {
    let Some(stage) = Stage::set("list", &NAMED, "") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    let write = |entries: &[&str], more: &str| {
        std::fs::write(&file, settings(&stage.servers, entries, more)).unwrap();
    };
    write(&NAMED, "");
    let config = Config::read(&file).unwrap().config;
    let origin = Origin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from(config, Some(origin)).unwrap();
    let mut raw = Raw::connect(pooler.addresses()[0]);
    raw.start_in("app", "target_session_attrs\0standby\0");
    raw.until(b'Z');
    let ports: Vec<_> = stage.servers.iter().map(|server| server.port().to_string()).collect();
    let seen = |raw: &mut Raw| -> BTreeSet<String> { (0..10).map(|_| value(raw, PORT)).collect() };
    let of = |servers: &[usize]| servers.iter().map(|at| ports[*at].clone()).collect();
    assert_eq!(seen(&mut raw), of(&[1, 2]));
    write(&NAMED[..2], "");
    pooler.control().reload().unwrap();
    assert_eq!(seen(&mut raw), of(&[1]));
    write(&[NAMED[0], NAMED[2]], "");
    pooler.control().reload().unwrap();
    assert_eq!(seen(&mut raw), of(&[2]));
    write(&NAMED, "cluster = { strategy = \"random\", ban = 5 }");
    pooler.control().reload().unwrap();
    until("both serve", || seen(&mut raw) == of(&[1, 2]));
    // One server in their place: who is there stays.
    let text = settings(&stage.servers, &[], "hosts = [\"127.0.0.1\"]");
    let text = text.replace("servers = []", &format!("port = {}", ports[0]));
    std::fs::write(&file, text).unwrap();
    pooler.control().reload().unwrap();
    let both: BTreeSet<String> = of(&[1, 2]);
    assert!(seen(&mut raw).is_subset(&both));
    let mut other = Raw::connect(pooler.addresses()[0]);
    other.start_in("app", "");
    other.until(b'Z');
    assert_eq!(seen(&mut other), of(&[0]));
}
