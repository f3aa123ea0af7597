//! Pools that nobody uses are given up; who comes in that very moment does not notice.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_stats::Registry;

use crate::support::{Stage, connect, pooler_of, said};

/// Two workers; databases without names are left soon, `named` after `pool_idle`.
fn stage(test: &str, pool_idle: &str, more: &str) -> Option<Stage> {
    let server = or_say_why_not(test, Cluster::builder().setting("max_connections", "80").start())?;
    let pooler = pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         sizes = {{ pool = 2 }}\n[pool.timeouts]\nautodb-idle = '20ms'\npool-idle = {pool_idle}\n\
         server-idle = '1ms'\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n{more}\n\
         [pool.databases.named]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{port}']\n",
        port = server.port()
    ));
    Some(Stage { server, pooler })
}

/// The rows of a table at the console.
fn shown(stage: &Stage, table: &str) -> Vec<String> {
    let command = format!("show {table}");
    let rows = said(stage.run("psql", &["-XAtq", "-d", "howdah", "-c", &command]));
    rows.lines().map(str::to_owned).collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        thread::yield_now();
    }
}

#[test]
fn rows_and_series_of_unused_pools_go_and_sums_stay() {
    let Some(stage) = stage("unused", "0", "") else { return };
    stage.direct("create database tenant");
    let ask = |database: &str| {
        said(stage.run("psql", &["-XAtq", "-d", database, "-c", "select current_database()"]))
    };
    assert_eq!(ask("tenant"), "tenant");
    assert_eq!(ask("named"), "postgres");
    let control = stage.pooler.control();
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (watched, kept) = (&control, &registry);
        scope.spawn(move || watched.keep_metrics(kept, &stopped));
        until("it has series", || registry.prometheus().contains("database=\"named\""));
        let is_left = || control.view(false).pools.iter().all(|pool| pool.database == "named");
        until("the pool is given up", is_left);
        until("so are its series", || !registry.prometheus().contains("database=\"tenant\""));
        drop(stop);
    });
    assert!(registry.prometheus().contains("database=\"named\""));
    let names = |table: &str| -> Vec<String> {
        let rows = shown(&stage, table).into_iter();
        rows.map(|row| row.split('|').next().unwrap().to_owned()).collect()
    };
    for table in ["pools", "stats", "databases"] {
        assert_eq!(names(table), ["named"], "{table}");
    }
    let queries = |table: &str| {
        let rows = shown(&stage, table);
        rows.into_iter().find(|row| row.starts_with("total_query_count|")).unwrap()
    };
    assert_eq!(queries("totals"), "total_query_count|2");
    // It is used again as if for the first time.
    assert_eq!(ask("tenant"), "tenant");
    assert_eq!(queries("totals"), "total_query_count|3");
}

#[test]
fn one_that_the_settings_name_stays_or_has_its_own_time() {
    let Some(stage) = stage("named", "'50ms'", "") else { return };
    said(stage.run("psql", &["-XAtq", "-d", "named", "-c", "select 1"]));
    let control = stage.pooler.control();
    until("the pool is given up", || control.view(false).pools.is_empty());
    let stats = shown(&stage, "stats_totals");
    assert!(stats.len() == 1 && stats[0].starts_with("named|"), "{stats:?}");
    assert_eq!(stats[0].split('|').nth(3), Some("1"), "what its database did stays counted");
}

/// Clients that come again and again, about as often as pools are given up: each gets in, and is served
/// by its own database as its own user.
#[test]
fn who_comes_when_a_pool_is_given_up_is_served() {
    let users =
        (0..4).map(|at| format!("[pool.users.user_{at}]\nsecret = ''\n")).collect::<String>();
    let Some(stage) = stage("moments", "0", &users) else { return };
    for at in 0..4 {
        stage.direct(&format!("create role user_{at} login"));
    }
    let address = stage.address();
    let over = AtomicBool::new(false);
    let given_up = thread::scope(|scope| {
        let clients: Vec<_> = (0..4_u64)
            .map(|at| {
                let over = &over;
                scope.spawn(move || {
                    let words = format!(
                        "host={} port={} dbname=postgres user=user_{at}",
                        address.ip(),
                        address.port()
                    );
                    // Pauses of all lengths around the time after which a pool is given up.
                    let mut rounds = 0_u64;
                    while !over.load(Ordering::Relaxed) {
                        let mut client = connect(&words).unwrap();
                        let user = client.one_value("select current_user").unwrap();
                        assert_eq!(user, Some(format!("user_{at}")));
                        drop(client);
                        rounds += 1;
                        let pause = (rounds * 37 + at * 11) % 230;
                        thread::sleep(Duration::from_millis(pause));
                    }
                    rounds
                })
            })
            .collect();
        // A pool that is given up takes its count of logins along.
        let control = stage.pooler.control();
        let (mut given_up, mut before) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while given_up < 40 && Instant::now() < deadline {
            let logins: u64 = control.view(false).past.iter().map(|(_, it)| it.logins).sum();
            given_up += u32::from(logins > before);
            before = logins;
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        let rounds: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        let control = stage.pooler.control();
        until("all are given up", || control.view(false).pools.is_empty());
        let counted: u64 = control.view(false).past.iter().map(|(_, it)| it.logins).sum();
        assert_eq!(counted, rounds, "nothing is lost of what was counted");
        given_up
    });
    assert!(given_up >= 5, "only {given_up} were given up");
}
