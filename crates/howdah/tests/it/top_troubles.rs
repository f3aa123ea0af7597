//! `howdah top` names what is wrong with a server, and its cause, on the first screen.

use std::{any::Any, iter::repeat_with, time::Duration};

use howdah_connect::Client;
use howdah_lab::{Builder, Cluster, skip_without_postgres};

use crate::{
    tmux::Tmux,
    top_screen::{LockChain, session},
};

/// A trouble that lasts until it is dropped, and the lines that name it.
struct StagedTrouble {
    /// Parts of a line of the header that names the trouble.
    expected: Vec<String>,
    /// Whatever must live on.
    _staged: Vec<Box<dyn Any>>,
}

impl StagedTrouble {
    fn new(expected: &[&str], staged: Vec<Box<dyn Any>>) -> Self {
        let expected = expected.iter().map(|part| (*part).to_owned()).collect();
        Self { expected, _staged: staged }
    }
}

/// Runs a statement in a session of its own until the server stops, and returns its process id.
fn run_until_server_stops(cluster: &Cluster, sql: &'static str) -> i32 {
    let mut client = session(cluster);
    let pid = client.process_id().unwrap();
    std::thread::spawn(move || repeat_with(|| client.query(sql)).take_while(Result::is_ok).count());
    pid
}

fn lock_chain(cluster: &Cluster) -> StagedTrouble {
    let chain = LockChain::build(cluster);
    let pid = format!("pid {} blocks 4 sessions", chain.pids[0]);
    StagedTrouble::new(&[&pid, "idle in tx"], vec![Box::new(chain)])
}

fn table_lock(cluster: &Cluster) -> StagedTrouble {
    let mut holder = session(cluster);
    holder.query("CREATE TABLE locked (a int)").unwrap();
    holder.query("BEGIN").unwrap();
    holder.query("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE").unwrap();
    for _ in 0..3 {
        run_until_server_stops(cluster, "SELECT * FROM locked");
    }
    let pid = format!("pid {} blocks 3 sessions", holder.process_id().unwrap());
    StagedTrouble::new(&[&pid, "LOCK TABLE locked"], vec![Box::new(holder)])
}

fn runaway_statement(cluster: &Cluster) -> StagedTrouble {
    let pid = run_until_server_stops(cluster, "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$");
    StagedTrouble::new(&[&format!("pid {pid} has run for"), "DO $$ BEGIN"], Vec::new())
}

fn temporary_files(cluster: &Cluster) -> StagedTrouble {
    let sql = "SELECT count(*) FROM \
        (SELECT repeat(md5(i::text), 8) FROM generate_series(1, 20000000) i ORDER BY 1) sorted";
    let pid = run_until_server_stops(cluster, sql);
    let writes = format!("pid {pid} writes temporary files");
    StagedTrouble::new(&[&writes, "SELECT count(*)"], Vec::new())
}

fn connection_storm(cluster: &Cluster) -> StagedTrouble {
    let clients: Vec<Client> = (0..56).map(|_| session(cluster)).collect();
    StagedTrouble::new(&["of 60 connections are in use"], vec![Box::new(clients)])
}

fn checkpoint_storm(cluster: &Cluster) -> StagedTrouble {
    let mut client = session(cluster);
    let checkpoint =
        move || client.query("CHECKPOINT").and_then(|_| client.query("SELECT pg_sleep(1)"));
    std::thread::spawn(|| repeat_with(checkpoint).take_while(Result::is_ok).count());
    StagedTrouble::new(&["checkpoints were requested in"], Vec::new())
}

fn buffer_thrash(cluster: &Cluster) -> StagedTrouble {
    let mut client = session(cluster);
    let fill = "CREATE TABLE large AS \
        SELECT i, repeat('x', 500) AS filler FROM generate_series(1, 100000) i";
    client.query(fill).unwrap();
    run_until_server_stops(cluster, "SELECT count(*) FROM large");
    StagedTrouble::new(&["buffers are too few:", "SELECT count(*)"], Vec::new())
}

fn standby_lag(cluster: &Cluster) -> StagedTrouble {
    let standby = Cluster::builder().major(cluster.major()).standby_of(cluster).start().unwrap();
    session(&standby).query("SELECT pg_wal_replay_pause()").unwrap();
    let fill = "CREATE TABLE news AS \
        SELECT repeat('x', 1000) AS text FROM generate_series(1, 200000) i";
    session(cluster).query(fill).unwrap();
    StagedTrouble::new(&["a standby lags"], vec![Box::new(standby)])
}

/// A vacuum that cannot be cancelled by those that wait for it, as one that prevents wraparound.
fn vacuum_in_the_way(cluster: &Cluster) -> StagedTrouble {
    let mut client = session(cluster);
    client.query("CREATE TABLE dirty AS SELECT i FROM generate_series(1, 200000) i").unwrap();
    client.query("DELETE FROM dirty WHERE i % 2 = 0").unwrap();
    let mut vacuum = session(cluster);
    let pid = vacuum.process_id().unwrap();
    vacuum.query("SET vacuum_cost_delay = 100").unwrap();
    vacuum.query("SET vacuum_cost_limit = 1").unwrap();
    std::thread::spawn(move || vacuum.query("VACUUM dirty").is_ok());
    let mut watcher = session(cluster);
    let running = "SELECT count(*) FROM pg_stat_progress_vacuum";
    howdah_lab::wait_until("a running vacuum", Duration::from_secs(60), || {
        watcher.one_value(running).unwrap().as_deref() == Some("1")
    });
    run_until_server_stops(cluster, "ALTER TABLE dirty ADD COLUMN b int");
    let blocks = format!("pid {pid} blocks 1 session");
    StagedTrouble::new(&[&blocks, "VACUUM dirty"], vec![Box::new(client)])
}

type CauseTrouble = fn(&Cluster) -> StagedTrouble;

#[test]
fn troubles_are_named_on_the_first_screen() {
    let test = "troubles_are_named_on_the_first_screen";
    let settings = |builder: Builder| {
        builder
            .setting("max_connections", "60")
            .setting("shared_buffers", "1MB")
            .setting("max_parallel_workers_per_gather", "0")
            .setting("autovacuum", "off")
            .setting("work_mem", "1MB")
    };
    let stages: [(&str, CauseTrouble); 9] = [
        ("a chain of row locks", lock_chain),
        ("a table lock", table_lock),
        ("a runaway statement", runaway_statement),
        ("temporary files", temporary_files),
        ("too many connections", connection_storm),
        ("checkpoints one after another", checkpoint_storm),
        ("a small buffer cache", buffer_thrash),
        ("a standby that lags", standby_lag),
        ("a vacuum in the way", vacuum_in_the_way),
    ];
    for major in [15, 18] {
        for (name, stage) in stages {
            let builder = settings(Cluster::builder().major(major));
            let Some(cluster) = skip_without_postgres(test, builder.start()) else { continue };
            let folder = tempfile::tempdir().unwrap();
            let uri = cluster.uri("postgres");
            let args = ["top", &uri, "--interval", "1s"];
            let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
            tmux.wait_for("figures", |screen| screen.contains("sessions "));
            let staged = stage(&cluster);
            tmux.wait_for(&format!("{name} on {major}: {:?}", staged.expected), |screen| {
                let is_it = |line: &str| staged.expected.iter().all(|part| line.contains(&**part));
                screen.lines().any(|line| line.starts_with('▲') && is_it(line))
            });
        }
    }
}
