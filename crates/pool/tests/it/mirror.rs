//! A share of traffic run on another cluster, too, with real servers: equal tables where nothing was
//! dropped, and clients that notice nothing of whatever the mirror does.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{DropReason, MirrorReport, Origin, Pooler, config::Config};
use howdah_stats::Registry;

use crate::support::{Raw, Stage, connect, pooler_of, said};

/// A server, another one that mirrors it, and a pooler whose settings stand in a file.
struct Scene {
    stage: Stage,
    mirror: Cluster,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scene {
    /// `database` are keys of the database, and `mirror` those of its mirror beside its place; nothing
    /// leaves it out.
    fn set(test: &str, database: &str, mirror: Option<&str>) -> Option<Self> {
        let start = || Cluster::builder().setting("max_connections", "60").start();
        let server = or_say_why_not(test, start())?;
        let there = or_say_why_not(test, start())?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        fs::write(&file, text(&server, &there, database, mirror)).unwrap();
        let config = Config::read(&file).unwrap().config;
        let origin = Origin { path: file.clone(), workers: None };
        let pooler = Pooler::start_from(config, Some(origin)).unwrap();
        Some(Self { stage: Stage { server, pooler }, mirror: there, file, _folder: folder })
    }

    fn reload(&self, database: &str, mirror: Option<&str>) {
        fs::write(&self.file, text(&self.stage.server, &self.mirror, database, mirror)).unwrap();
        self.stage.pooler.control().reload().unwrap();
    }

    /// Asks the mirror itself.
    fn there(&self, statement: &str) -> String {
        let psql = self.mirror.binaries().program("psql");
        let psql = if psql.is_file() { psql } else { "psql".into() };
        let args = ["-XAtq", "-v", "ON_ERROR_STOP=1", &self.mirror.uri("postgres")];
        said(Command::new(psql).args(args).args(["-c", statement]).output().unwrap())
    }

    /// Has both do something.
    fn both(&self, statement: &str) {
        self.stage.direct(statement);
        self.there(statement);
    }

    fn report(&self) -> MirrorReport {
        let view = self.stage.pooler.control().view(false);
        view.mirrors.into_iter().next().map(|mirror| mirror.report).unwrap_or_default()
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.report().dropped[why as usize]
    }

    /// Waits until nothing waits for the mirror.
    fn settle(&self) {
        let is_settled = |it: &MirrorReport| it.buffered_bytes == 0;
        wait_for("nothing to wait", || is_settled(&self.report()), || self.report());
    }

    fn client(&self) -> howdah_connect::Client {
        let port = self.stage.address().port();
        connect(&format!("host=127.0.0.1 port={port} dbname=postgres user=postgres")).unwrap()
    }

    /// Runs statements until one is run on the mirror again.
    fn until_it_is_back(&self, client: &mut howdah_connect::Client, statement: &str) {
        let before = self.report().transactions;
        let try_again = || {
            client.query(statement).unwrap();
            self.report().transactions > before
        };
        wait_for("the mirror to be back", try_again, || self.report());
        self.settle();
    }

    /// Sends a signal to every process of the mirror.
    fn signal(&self, signal: &str) {
        crate::support::signal(self.mirror.pid().unwrap(), signal);
    }
}

fn text(server: &Cluster, there: &Cluster, database: &str, mirror: Option<&str>) -> String {
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

const PLAIN: &str = "hosts = ['127.0.0.1:PORT']";

/// Waits until something is so.
fn wait_for<T: std::fmt::Debug>(
    what: &str,
    mut is_so: impl FnMut() -> bool,
    shown: impl Fn() -> T,
) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what}: {:?}", shown());
        thread::sleep(Duration::from_millis(5));
    }
}

/// What the tables of pgbench hold, times left out.
const CONTENTS: &str = "select md5(string_agg(row::text, ',' order by row::text)) from (\
     select (aid, bid, abalance) row from pgbench_accounts where abalance <> 0 union all \
     select (tid, bid, tbalance) from pgbench_tellers union all \
     select (bid, bbalance, 0) from pgbench_branches union all \
     select (tid * 1000 + bid, aid, delta) from pgbench_history) rows";

#[test]
fn where_nothing_is_dropped_tables_are_equal() {
    let Some(scene) = Scene::set("mirror", PLAIN, Some("client-bytes = 10000000")) else { return };
    let stage = &scene.stage;
    said(stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    scene.settle();
    for protocol in ["simple", "extended", "prepared"] {
        said(stage.run("pgbench", &["-n", "-c", "4", "-t", "100", "-M", protocol]));
    }
    scene.settle();
    let report = scene.report();
    assert!(report.transactions >= 1200, "{report:?}");
    assert_eq!(report.dropped_in_all(), 0, "{report:?}");
    assert_eq!((report.mirror_failed, report.client_failed), (0, 0), "{report:?}");
    assert_eq!(scene.there("select count(*) from pgbench_history"), "1200");
    assert_eq!(scene.there(CONTENTS), stage.direct(CONTENTS));
    // What is counted of the database is its own.
    let view = stage.pooler.control().view(false);
    let home = view.pools.iter().find(|pool| !pool.is_mirror).unwrap();
    assert!(home.tally.transactions < 1300, "{:?}", home.tally);
    let shown = said(stage.run("psql", &["-XAq", "-d", "howdah", "-c", "show mirrors"]));
    let mut lines = shown.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let (names, row) = (lines.next().unwrap(), lines.next().unwrap());
    let cell = |name: &str| row[names.iter().position(|it| *it == name).unwrap()];
    assert_eq!(cell("port"), scene.mirror.port().to_string());
    assert_eq!((cell("sample_rate"), cell("dropped")), ("1", "0"));
    assert_eq!(cell("xact_count"), report.transactions.to_string());
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel();
    drop(stop); // One round.
    stage.pooler.control().keep_metrics(&registry, &stopped);
    let place = format!("database=\"postgres\",mirror=\"127.0.0.1:{}\"", scene.mirror.port());
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
fn a_share_of_clients_is_mirrored_and_settings_change_it() {
    let Some(scene) = Scene::set("mirror share", PLAIN, Some("sample-rate = 0.5")) else { return };
    let mut clients: Vec<_> = (0..40).map(|_| scene.client()).collect();
    let half = scene.report().clients;
    assert!((18..=22).contains(&half), "{half} of 40");
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    scene.settle();
    assert_eq!(scene.report().transactions, half);
    scene.reload(PLAIN, Some("sample-rate = 1.0"));
    assert_eq!(scene.report().clients, 40);
    scene.reload(PLAIN, None);
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    assert!(scene.stage.pooler.control().view(false).mirrors.is_empty());
    scene.reload(PLAIN, Some("sample-rate = 0.0"));
    assert_eq!(scene.report().clients, 0);
    scene.reload(PLAIN, Some("sample-rate = 1.0"));
    let before = scene.report().transactions;
    clients.iter_mut().for_each(|client| drop(client.query("select 1").unwrap()));
    scene.settle();
    assert_eq!(scene.report().transactions - before, 40);
}

/// Some hundred transactions, each of which has to succeed.
fn insert(client: &mut howdah_connect::Client, count: usize) {
    for _ in 0..count {
        client.query("insert into t select 1").unwrap();
    }
}

#[test]
fn a_mirror_that_is_killed_drops_and_comes_back() {
    let Some(mut scene) = Scene::set("mirror killed", PLAIN, Some("client-bytes = 4096")) else {
        return;
    };
    scene.both("create table t (a int)");
    let mut client = scene.client();
    insert(&mut client, 5);
    scene.settle();
    assert_eq!(scene.there("select count(*) from t"), "5");
    scene.mirror.kill().unwrap();
    insert(&mut client, 300);
    wait_for("drops", || scene.report().dropped_in_all() > 0, || scene.report());
    scene.mirror.start().unwrap();
    scene.until_it_is_back(&mut client, "insert into t select 1");
    let report = scene.report();
    let count = scene.stage.direct("select count(*) from t").parse::<u64>().unwrap();
    // One that was lost in the middle may be there or not.
    let lost = report.dropped[DropReason::Lost as usize];
    let there = scene.there("select count(*) from t").parse::<u64>().unwrap();
    assert_eq!(report.transactions + report.dropped_in_all(), count, "{report:?}");
    assert!((report.transactions..=report.transactions + lost).contains(&there), "{report:?}");
    assert!(report.last_error.is_some());
}

#[test]
fn a_mirror_that_is_frozen_holds_up_nobody() {
    let Some(scene) = Scene::set("mirror frozen", PLAIN, Some("client-bytes = 4096")) else {
        return;
    };
    scene.both("create table t (a int)");
    let mut client = scene.client();
    insert(&mut client, 5);
    scene.settle();
    scene.signal("-STOP");
    insert(&mut client, 300);
    let mut late = scene.client();
    insert(&mut late, 300);
    let report = scene.report();
    assert!(scene.dropped(DropReason::Full) > 400, "{report:?}");
    assert!(report.buffered_bytes <= 2 * 4096, "{report:?}");
    drop(late);
    scene.signal("-CONT");
    scene.until_it_is_back(&mut client, "insert into t select 1");
    let count = scene.stage.direct("select count(*) from t").parse::<u64>().unwrap();
    let report = scene.report();
    assert_eq!(report.transactions + report.dropped_in_all(), count, "{report:?}");
    assert_eq!(scene.there("select count(*) from t"), report.transactions.to_string());
}

#[test]
fn a_lock_on_the_mirror_holds_up_nobody() {
    let Some(scene) = Scene::set("mirror locked", PLAIN, Some("client-bytes = 4096")) else {
        return;
    };
    scene.both("create table t (a int)");
    let mut holder = connect(&scene.mirror.uri("postgres")).unwrap();
    holder.query("begin").unwrap();
    holder.query("lock table t").unwrap();
    let mut client = scene.client();
    insert(&mut client, 300);
    assert!(scene.dropped(DropReason::Full) > 200, "{:?}", scene.report());
    assert_eq!(scene.report().transactions, 0);
    holder.query("commit").unwrap();
    scene.until_it_is_back(&mut client, "insert into t select 1");
    // One that takes too long there is cancelled.
    scene.reload(PLAIN, Some("client-bytes = 4096\ntimeout = '200ms'"));
    holder.query("begin").unwrap();
    holder.query("lock table t").unwrap();
    insert(&mut client, 1);
    wait_for("a timeout", || scene.dropped(DropReason::Timeout) == 1, || scene.report());
    holder.query("commit").unwrap();
    scene.until_it_is_back(&mut client, "insert into t select 1");
}

#[test]
fn a_mirror_with_another_password_drops_until_it_is_told_the_right_one() {
    let there = Cluster::builder().password("sesame").start();
    let Some(there) = or_say_why_not("mirror password", there) else { return };
    let mirror = |secret: &str| format!("user = 'postgres'\nsecret = '{secret}'");
    let Some(mut scene) = Scene::set("mirror password", PLAIN, None) else { return };
    scene.mirror = there;
    scene.reload(PLAIN, Some(&mirror("wrong")));
    let mut client = scene.client();
    client.query("select 1").unwrap();
    wait_for("a drop", || scene.dropped(DropReason::Unreachable) > 0, || scene.report());
    let report = scene.report();
    assert!(report.last_error.as_deref().is_some_and(|it| it.starts_with("28P01")), "{report:?}");
    assert!(!format!("{report:?}").contains("wrong"));
    scene.reload(PLAIN, Some(&mirror("sesame")));
    scene.until_it_is_back(&mut client, "select 1");
}

#[test]
fn a_mirror_is_given_whole_transactions_and_its_errors_are_counted() {
    let Some(scene) = Scene::set("mirror transactions", PLAIN, Some("")) else { return };
    scene.both("create table t (a int primary key)");
    // A COPY, whose rows come behind it.
    let mut raw = Raw::log_in(scene.stage.address());
    raw.query("copy t from stdin");
    raw.until(b'G');
    raw.send(b'd', b"1\n2\n");
    raw.send(b'd', b"3\n");
    raw.send(b'c', b"");
    raw.until(b'Z');
    // One that its client gives up.
    raw.query("copy t from stdin");
    raw.until(b'G');
    raw.send(b'd', b"7\n");
    raw.send(b'f', b"no\0");
    raw.until(b'Z');
    scene.settle();
    assert_eq!(scene.there("select sum(a) from t"), "6");
    // A client that goes in the middle of a transaction.
    raw.query("begin");
    raw.until(b'Z');
    raw.query("insert into t values (8)");
    raw.until(b'Z');
    drop(raw);
    wait_for("it to have gone", || scene.dropped(DropReason::Left) == 1, || scene.report());
    let mut client = scene.client();
    // Errors: on both sides, there only, here only.
    assert!(client.query("insert into t values (1)").is_err());
    client.query("set search_path to public").unwrap();
    scene.there("insert into t values (9)");
    client.query("insert into t values (9)").unwrap();
    scene.stage.direct("insert into t values (10)");
    assert!(client.query("insert into t values (10)").is_err());
    client.query("begin; insert into t values (11); commit").unwrap();
    scene.settle();
    let report = scene.report();
    assert_eq!((report.mirror_failed, report.client_failed, report.different), (1, 1, 0));
    assert_eq!(report.classes, [(*b"23", 1)]);
    assert_eq!(scene.there("select count(*) from t"), "6");
    // A table that is missing there: also in the middle of a string, whose transaction stays open.
    scene.there("drop table t");
    client.query("begin; insert into t values (12); commit").unwrap();
    client.query("select 1").unwrap();
    scene.settle();
    assert_eq!(scene.report().mirror_failed, 2);
    let open = "select count(*) from pg_stat_activity where state like 'idle in%'";
    assert_eq!(scene.there(open), "0");
}

#[test]
fn the_poolers_own_commands_are_not_mirrored() {
    let servers = "servers = [{ host = '127.0.0.1:PORT' }]";
    let Some(scene) = Scene::set("mirror commands", servers, Some("")) else { return };
    let mut client = scene.client();
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
    scene.settle();
    let report = scene.report();
    assert_eq!((report.mirror_failed, report.dropped_in_all()), (0, 0), "{report:?}");
    assert_eq!(report.transactions, 4, "{report:?}");
    let sum = "select sum(a) from t";
    assert_eq!((scene.there(sum), scene.stage.direct(sum)), ("10".to_owned(), "10".to_owned()));
}

/// Where only the form is known that servers keep a password in, a client's own proof logs in: at the
/// servers of a cluster, and at a mirror that keeps the same form.
#[test]
fn a_clients_own_proof_logs_in_to_cluster_and_mirror() {
    let start = || Cluster::builder().password("sesame").start();
    let Some(server) = or_say_why_not("mirror scram", start()) else { return };
    let Some(there) = or_say_why_not("mirror scram", start()) else { return };
    let words = |port: u16| {
        format!("host=127.0.0.1 port={port} dbname=postgres user=postgres password=sesame")
    };
    let stored = "select rolpassword from pg_authid where rolname = 'postgres'";
    let stored = connect(&words(server.port())).unwrap().one_value(stored).unwrap().unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"), "{stored}");
    let same = format!("alter role postgres password '{stored}'");
    connect(&words(there.port())).unwrap().query(&same).unwrap();
    let pooler = pooler_of(&format!(
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
    let report = || pooler.control().view(false).mirrors.remove(0).report;
    wait_for("the mirror to run it", || report().transactions == 1, report);
    assert_eq!(report().dropped_in_all(), 0);
}
