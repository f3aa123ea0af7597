//! Traffic mirrored to another cluster, with real servers: equal tables if nothing was dropped, and
//! clients that are not affected by the mirror.

use std::{fs, path::PathBuf, process::Command, sync::mpsc};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;
use howdah_pool_core::{DropReason, MirrorReport};
use howdah_stats::Registry;

use crate::support::{
    PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, connect, start_pooler_with,
};

/// A server, a mirror of it, and a pooler with a configuration file.
struct MirrorFixture {
    pool: PoolFixture,
    mirror: Cluster,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl MirrorFixture {
    /// `database` are keys of the database, and `mirror` further keys of its mirror; without a
    /// mirror if `None`.
    fn start(test: &str, database: &str, mirror: Option<&str>) -> Option<Self> {
        let start = || Cluster::builder().setting("max_connections", "60").start();
        let server = skip_without_postgres(test, start())?;
        let mirror_server = skip_without_postgres(test, start())?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        fs::write(&file, settings(&server, &mirror_server, database, mirror)).unwrap();
        let config = Config::read(&file).unwrap().config;
        let origin = ConfigOrigin { path: file.clone(), workers: None };
        let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
        Some(Self {
            pool: PoolFixture { server, pooler },
            mirror: mirror_server,
            file,
            _folder: folder,
        })
    }

    fn reload(&self, database: &str, mirror: Option<&str>) {
        fs::write(&self.file, settings(&self.pool.server, &self.mirror, database, mirror)).unwrap();
        self.pool.pooler.control().reload().unwrap();
    }

    /// Runs a statement directly at the mirror.
    fn query_mirror(&self, statement: &str) -> String {
        let psql = self.mirror.binaries().program("psql");
        let psql = if psql.is_file() { psql } else { "psql".into() };
        let args = ["-XAtq", "-v", "ON_ERROR_STOP=1", &self.mirror.uri("postgres")];
        checked_stdout(Command::new(psql).args(args).args(["-c", statement]).output().unwrap())
    }

    /// Runs a statement directly at both clusters.
    fn query_both(&self, statement: &str) {
        self.pool.query_server(statement);
        self.query_mirror(statement);
    }

    fn report(&self) -> MirrorReport {
        let view = self.pool.pooler.control().snapshot(false);
        view.mirrors.into_iter().next().map(|mirror| mirror.report).unwrap_or_default()
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.report().dropped[why as usize]
    }

    /// Waits until nothing is buffered for the mirror.
    fn wait_until_drained(&self) {
        let is_settled = |it: &MirrorReport| it.buffered_bytes == 0;
        wait_until("an empty buffer", WAIT_TIMEOUT, || is_settled(&self.report()));
    }

    fn client(&self) -> howdah_connect::Client {
        let port = self.pool.address().port();
        connect(&format!("host=127.0.0.1 port={port} dbname=postgres user=postgres")).unwrap()
    }

    /// Runs statements until one is mirrored again.
    fn wait_until_mirrored(&self, client: &mut howdah_connect::Client, statement: &str) {
        let before = self.report().transactions;
        let try_again = || {
            client.query(statement).unwrap();
            self.report().transactions > before
        };
        wait_until("the mirror to be back", WAIT_TIMEOUT, try_again);
        self.wait_until_drained();
    }

    /// Sends a signal to every process of the mirror.
    fn signal_mirror(&self, signal: &str) {
        crate::support::signal_all_processes(self.mirror.pid().unwrap(), signal);
    }
}

fn settings(server: &Cluster, there: &Cluster, database: &str, mirror: Option<&str>) -> String {
    let mirror = mirror.map(|more| {
        let port = there.port();
        format!("[[pool.databases.postgres.mirrors]]\nhost = '127.0.0.1:{port}'\n{more}")
    });
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
        [pool.databases.postgres]
        {}
        {}
        "#,
        database.replace("PORT", &server.port().to_string()),
        mirror.unwrap_or_default()
    )
}

const ONE_HOST: &str = "hosts = ['127.0.0.1:PORT']";

/// A checksum of pgbench's tables, without times.
const CONTENTS: &str = "select md5(string_agg(row::text, ',' order by row::text)) from (\
     select (aid, bid, abalance) row from pgbench_accounts where abalance <> 0 union all \
     select (tid, bid, tbalance) from pgbench_tellers union all \
     select (bid, bbalance, 0) from pgbench_branches union all \
     select (tid * 1000 + bid, aid, delta) from pgbench_history) rows";

#[test]
fn mirror_without_drops_has_equal_tables() {
    let Some(fixture) = MirrorFixture::start("mirror", ONE_HOST, Some("client-bytes = 10000000"))
    else {
        return;
    };
    let pool = &fixture.pool;
    checked_stdout(pool.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    fixture.wait_until_drained();
    for protocol in ["simple", "extended", "prepared"] {
        checked_stdout(
            pool.run_program("pgbench", &["-n", "-c", "4", "-t", "100", "-M", protocol]),
        );
    }
    fixture.wait_until_drained();
    let report = fixture.report();
    assert!(report.transactions >= 1200, "{report:?}");
    assert_eq!(report.dropped_total(), 0, "{report:?}");
    assert_eq!((report.failed_mirror_only, report.failed_client_only), (0, 0), "{report:?}");
    assert_eq!(fixture.query_mirror("select count(*) from pgbench_history"), "1200");
    assert_eq!(fixture.query_mirror(CONTENTS), pool.query_server(CONTENTS));
    // The counts of the database do not include the mirror.
    let view = pool.pooler.control().snapshot(false);
    let home = view.pools.iter().find(|pool| !pool.is_mirror).unwrap();
    assert!(home.tally.transactions < 1300, "{:?}", home.tally);
    let shown =
        checked_stdout(pool.run_program("psql", &["-XAq", "-d", "howdah", "-c", "show mirrors"]));
    let mut lines = shown.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let (names, row) = (lines.next().unwrap(), lines.next().unwrap());
    let cell = |name: &str| row[names.iter().position(|it| *it == name).unwrap()];
    assert_eq!(cell("port"), fixture.mirror.port().to_string());
    assert_eq!((cell("sample_rate"), cell("dropped")), ("1", "0"));
    assert_eq!(cell("xact_count"), report.transactions.to_string());
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel();
    drop(stop); // Export once.
    pool.pooler.control().export_metrics(&registry, &stopped);
    let place = format!("database=\"postgres\",mirror=\"127.0.0.1:{}\"", fixture.mirror.port());
    let text = registry.prometheus();
    for line in [
        format!("howdah_pool_mirror_transactions_total{{{place}}} {}\n", report.transactions),
        format!("howdah_pool_mirror_dropped_total{{{place},reason=\"buffer_full\"}} 0\n"),
        format!("howdah_pool_mirror_buffered_bytes{{{place}}} 0\n"),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn sample_rate_follows_reload() {
    let Some(fixture) = MirrorFixture::start("mirror share", ONE_HOST, Some("sample-rate = 0.5"))
    else {
        return;
    };
    let mut clients: Vec<_> = (0..40).map(|_| fixture.client()).collect();
    let half = fixture.report().clients;
    assert!((18..=22).contains(&half), "{half} of 40");
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    fixture.wait_until_drained();
    assert_eq!(fixture.report().transactions, half);
    fixture.reload(ONE_HOST, Some("sample-rate = 1.0"));
    assert_eq!(fixture.report().clients, 40);
    fixture.reload(ONE_HOST, None);
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    assert!(fixture.pool.pooler.control().snapshot(false).mirrors.is_empty());
    fixture.reload(ONE_HOST, Some("sample-rate = 0.0"));
    assert_eq!(fixture.report().clients, 0);
    fixture.reload(ONE_HOST, Some("sample-rate = 1.0"));
    let before = fixture.report().transactions;
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    fixture.wait_until_drained();
    assert_eq!(fixture.report().transactions - before, 40);
}

/// Runs transactions, each of which must succeed.
fn insert(client: &mut howdah_connect::Client, count: usize) {
    for _ in 0..count {
        client.query("insert into t select 1").unwrap();
    }
}

#[test]
fn killed_mirror_drops_until_it_is_back() {
    let Some(mut fixture) =
        MirrorFixture::start("mirror killed", ONE_HOST, Some("client-bytes = 4096"))
    else {
        return;
    };
    fixture.query_both("create table t (a int)");
    let mut client = fixture.client();
    insert(&mut client, 5);
    fixture.wait_until_drained();
    assert_eq!(fixture.query_mirror("select count(*) from t"), "5");
    fixture.mirror.kill().unwrap();
    insert(&mut client, 300);
    wait_until("dropped transactions", WAIT_TIMEOUT, || fixture.report().dropped_total() > 0);
    fixture.mirror.start().unwrap();
    fixture.wait_until_mirrored(&mut client, "insert into t select 1");
    let report = fixture.report();
    let count = fixture.pool.query_server("select count(*) from t").parse::<u64>().unwrap();
    // A transaction interrupted by the kill may be committed or not.
    let lost = report.dropped[DropReason::ConnectionLost as usize];
    let there = fixture.query_mirror("select count(*) from t").parse::<u64>().unwrap();
    assert_eq!(report.transactions + report.dropped_total(), count, "{report:?}");
    assert!((report.transactions..=report.transactions + lost).contains(&there), "{report:?}");
    assert!(report.last_error.is_some());
}

#[test]
fn frozen_mirror_does_not_block_clients() {
    let Some(fixture) =
        MirrorFixture::start("mirror frozen", ONE_HOST, Some("client-bytes = 4096"))
    else {
        return;
    };
    fixture.query_both("create table t (a int)");
    let mut client = fixture.client();
    insert(&mut client, 5);
    fixture.wait_until_drained();
    fixture.signal_mirror("-STOP");
    insert(&mut client, 300);
    let mut late = fixture.client();
    insert(&mut late, 300);
    let report = fixture.report();
    assert!(fixture.dropped(DropReason::BufferFull) > 400, "{report:?}");
    assert!(report.buffered_bytes <= 2 * 4096, "{report:?}");
    drop(late);
    fixture.signal_mirror("-CONT");
    fixture.wait_until_mirrored(&mut client, "insert into t select 1");
    let count = fixture.pool.query_server("select count(*) from t").parse::<u64>().unwrap();
    let report = fixture.report();
    assert_eq!(report.transactions + report.dropped_total(), count, "{report:?}");
    assert_eq!(fixture.query_mirror("select count(*) from t"), report.transactions.to_string());
}

#[test]
fn lock_on_mirror_does_not_block_clients() {
    let Some(fixture) =
        MirrorFixture::start("mirror locked", ONE_HOST, Some("client-bytes = 4096"))
    else {
        return;
    };
    fixture.query_both("create table t (a int)");
    let mut holder = connect(&fixture.mirror.uri("postgres")).unwrap();
    holder.query("begin").unwrap();
    holder.query("lock table t").unwrap();
    let mut client = fixture.client();
    insert(&mut client, 300);
    assert!(fixture.dropped(DropReason::BufferFull) > 200, "{:?}", fixture.report());
    assert_eq!(fixture.report().transactions, 0);
    holder.query("commit").unwrap();
    fixture.wait_until_mirrored(&mut client, "insert into t select 1");
    // A transaction that takes too long at the mirror is cancelled.
    fixture.reload(ONE_HOST, Some("client-bytes = 4096\ntimeout = '200ms'"));
    holder.query("begin").unwrap();
    holder.query("lock table t").unwrap();
    insert(&mut client, 1);
    wait_until("a timeout", WAIT_TIMEOUT, || fixture.dropped(DropReason::Timeout) == 1);
    holder.query("commit").unwrap();
    fixture.wait_until_mirrored(&mut client, "insert into t select 1");
}

#[test]
fn mirror_with_wrong_password_drops_until_reload() {
    let there = Cluster::builder().password("sesame").start();
    let Some(there) = skip_without_postgres("mirror password", there) else { return };
    let mirror = |secret: &str| format!("user = 'postgres'\nsecret = '{secret}'");
    let Some(mut fixture) = MirrorFixture::start("mirror password", ONE_HOST, None) else { return };
    fixture.mirror = there;
    fixture.reload(ONE_HOST, Some(&mirror("wrong")));
    let mut client = fixture.client();
    client.query("select 1").unwrap();
    wait_until("a dropped transaction", WAIT_TIMEOUT, || {
        fixture.dropped(DropReason::Unreachable) > 0
    });
    let report = fixture.report();
    assert!(report.last_error.as_deref().is_some_and(|it| it.starts_with("28P01")), "{report:?}");
    assert!(!format!("{report:?}").contains("wrong"));
    fixture.reload(ONE_HOST, Some(&mirror("sesame")));
    fixture.wait_until_mirrored(&mut client, "select 1");
}

#[test]
fn only_complete_transactions_are_mirrored() {
    let Some(fixture) = MirrorFixture::start("mirror transactions", ONE_HOST, Some("")) else {
        return;
    };
    fixture.query_both("create table t (a int primary key)");
    // A COPY with its rows.
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send_query("copy t from stdin");
    raw.read_until(b'G');
    raw.send(b'd', b"1\n2\n");
    raw.send(b'd', b"3\n");
    raw.send(b'c', b"");
    raw.read_until(b'Z');
    // A COPY that the client aborts.
    raw.send_query("copy t from stdin");
    raw.read_until(b'G');
    raw.send(b'd', b"7\n");
    raw.send(b'f', b"no\0");
    raw.read_until(b'Z');
    fixture.wait_until_drained();
    assert_eq!(fixture.query_mirror("select sum(a) from t"), "6");
    // A client that disconnects in a transaction.
    raw.send_query("begin");
    raw.read_until(b'Z');
    raw.send_query("insert into t values (8)");
    raw.read_until(b'Z');
    drop(raw);
    wait_until("the dropped transaction", WAIT_TIMEOUT, || {
        fixture.dropped(DropReason::ClientGone) == 1
    });
    let mut client = fixture.client();
    // Errors: on both sides, only at the mirror, only at the server.
    assert!(client.query("insert into t values (1)").is_err());
    client.query("set search_path to public").unwrap();
    fixture.query_mirror("insert into t values (9)");
    client.query("insert into t values (9)").unwrap();
    fixture.pool.query_server("insert into t values (10)");
    assert!(client.query("insert into t values (10)").is_err());
    client.query("begin; insert into t values (11); commit").unwrap();
    fixture.wait_until_drained();
    let report = fixture.report();
    assert_eq!(
        (report.failed_mirror_only, report.failed_client_only, report.sqlstate_differs),
        (1, 1, 0)
    );
    assert_eq!(report.classes, [(*b"23", 1)]);
    assert_eq!(fixture.query_mirror("select count(*) from t"), "6");
    // A table missing at the mirror; also within a query string, whose transaction must not stay
    // open.
    fixture.query_mirror("drop table t");
    client.query("begin; insert into t values (12); commit").unwrap();
    client.query("select 1").unwrap();
    fixture.wait_until_drained();
    assert_eq!(fixture.report().failed_mirror_only, 2);
    let open = "select count(*) from pg_stat_activity where state like 'idle in%'";
    assert_eq!(fixture.query_mirror(open), "0");
}

#[test]
fn pooler_commands_are_not_mirrored() {
    let servers = "servers = [{ host = '127.0.0.1:PORT' }]";
    let Some(fixture) = MirrorFixture::start("mirror commands", servers, Some("")) else { return };
    let mut client = fixture.client();
    client.query("set server role to 'primary'").unwrap();
    client.query("show server role").unwrap();
    client.query("begin").unwrap();
    client.query("create table t (a int)").unwrap();
    client.query("commit").unwrap();
    client.query("set server role to 'auto'").unwrap();
    client.query("begin").unwrap();
    client.query("insert into t values (1)").unwrap();
    client.query("commit").unwrap();
    client.query("set timezone to 'Asia/Tokyo'").unwrap();
    client
        .query("insert into t select extract(hour from '2026-01-01 00:00Z'::timestamptz)")
        .unwrap();
    fixture.wait_until_drained();
    let report = fixture.report();
    assert_eq!((report.failed_mirror_only, report.dropped_total()), (0, 0), "{report:?}");
    assert_eq!(report.transactions, 4, "{report:?}");
    let sum = "select sum(a) from t";
    assert_eq!(
        (fixture.query_mirror(sum), fixture.pool.query_server(sum)),
        ("10".to_owned(), "10".to_owned())
    );
}

/// If only the SCRAM secret is known, the client key recovered from the client's login is used at
/// the servers of the cluster, and at a mirror with the same secret.
#[test]
fn scram_client_key_logs_in_to_cluster_and_mirror() {
    let start = || Cluster::builder().password("sesame").start();
    let Some(server) = skip_without_postgres("mirror scram", start()) else { return };
    let Some(there) = skip_without_postgres("mirror scram", start()) else { return };
    let words = |port: u16| {
        format!("host=127.0.0.1 port={port} dbname=postgres user=postgres password=sesame")
    };
    let stored = "select rolpassword from pg_authid where rolname = 'postgres'";
    let stored = connect(&words(server.port())).unwrap().one_value(stored).unwrap().unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"), "{stored}");
    let same = format!("alter role postgres password '{stored}'");
    connect(&words(there.port())).unwrap().query(&same).unwrap();
    let pooler = start_pooler_with(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 1
        [pool.listen]
        port = 0
        unix-directories = []
        [pool.users.postgres]
        secret = '{stored}'
        [pool.databases.postgres]
        servers = [{{ host = "127.0.0.1:{}" }}]
        mirrors = [{{ host = "127.0.0.1:{}" }}]
        "#,
        server.port(),
        there.port()
    ));
    let mut client = connect(&words(pooler.addresses()[0].port())).unwrap();
    client.query("select 1").unwrap();
    let report = || pooler.control().snapshot(false).mirrors.remove(0).report;
    wait_until("the mirrored statement", WAIT_TIMEOUT, || report().transactions == 1);
    assert_eq!(report().dropped_total(), 0);
}
