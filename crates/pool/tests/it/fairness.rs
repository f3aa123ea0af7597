//! Pools that share a limit on server connections: each gets its share under load.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_lab::wait_until;

use crate::support::{PoolFixture, WAIT_TIMEOUT, connect, start_pooler_with};

/// A pooler with a limit on connections to the host and the databases `modest` and `flood`.
fn fixture(test: &str, cap: u32, weight: u32, workers: u32) -> Option<PoolFixture> {
    let mut fixture = PoolFixture::start(test, "")?;
    fixture.pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = {workers}\nlimits.servers-per-host = {cap}\n\
         timeouts.query-wait-notify = 0\n\
         [pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.modest]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [pool.databases.flood]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         weight = {weight}\n",
        port = fixture.server.port()
    ));
    Some(fixture)
}

fn conninfo(fixture: &PoolFixture, database: &str) -> String {
    let port = fixture.address().port();
    format!("host=127.0.0.1 port={port} user=postgres dbname={database}")
}

/// The number of server connections of each of the two databases.
fn server_counts(fixture: &PoolFixture) -> (usize, usize) {
    let view = fixture.pooler.control().snapshot(true);
    let of =
        |name: &str| view.servers.iter().filter(|it| view.pools[it.pool].database == name).count();
    (of("modest"), of("flood"))
}

/// Runs `work` while 24 clients of `flood` compete for its few server connections.
fn with_flood<T>(fixture: &PoolFixture, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut client = connect(&conninfo(fixture, "flood")).unwrap();
                while !over.load(Ordering::Relaxed) {
                    client.query("select pg_sleep(0.02)").unwrap();
                }
            });
        }
        wait_until("the flood", WAIT_TIMEOUT, || server_counts(fixture).1 >= 3);
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn flooded_pool_leaves_share_for_others() {
    for workers in [1, 2] {
        let Some(fixture) = fixture("flood", 4, 1, workers) else { return };
        let (mut waits, servers) = with_flood(&fixture, || {
            let mut client = connect(&conninfo(&fixture, "modest")).unwrap();
            let (mut waits, mut servers) = (Vec::new(), BTreeSet::new());
            for _ in 0..200 {
                let began = Instant::now();
                servers.insert(client.one_value("select pg_backend_pid()::text").unwrap());
                waits.push(began.elapsed());
                // A moderate load with pauses is what this test is about.
                thread::sleep(Duration::from_millis(5));
            }
            (waits, servers.len())
        });
        waits.sort_unstable();
        let at = |part: usize| waits[(waits.len() * part / 100).min(waits.len() - 1)];
        println!(
            "flood of 24 on 4 connections, {workers} workers: the other pool's queries took p50 {:?}, \
             p99 {:?}, most {:?}, on {servers} servers",
            at(50),
            at(99),
            at(100)
        );
        // The idle pool keeps its server connection, except sometimes on an overloaded machine.
        assert!(servers < 20, "{servers} servers for 200 queries");
    }
}

#[test]
fn busy_pools_share_limit_by_weight() {
    let Some(fixture) = fixture("weights", 4, 3, 1) else { return };
    with_flood(&fixture, || {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut client = connect(&conninfo(&fixture, "modest")).unwrap();
                    while !over.load(Ordering::Relaxed) {
                        client.query("select pg_sleep(0.02)").unwrap();
                    }
                });
            }
            // Both always have waiting clients: three to one, for two seconds in a row.
            let mut since = None;
            wait_until("a stable distribution of 1 to 3", WAIT_TIMEOUT, || {
                since = match server_counts(&fixture) {
                    (1, 3) => since.or(Some(Instant::now())),
                    _ => None,
                };
                since.is_some_and(|since: Instant| since.elapsed() > Duration::from_secs(2))
            });
            over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn host_limit_applies_across_pools() {
    let Some(fixture) = fixture("host cap", 2, 1, 1) else { return };
    thread::scope(|scope| {
        for number in 0..8 {
            let database = if number % 2 == 0 { "modest" } else { "flood" };
            let words = conninfo(&fixture, database);
            scope.spawn(move || {
                let mut client = connect(&words).unwrap();
                for _ in 0..20 {
                    client.query("select 1").unwrap();
                }
            });
        }
        // The pooler's own count: a backend outlives its connection by a moment.
        for _ in 0..200 {
            let (modest, flood) = server_counts(&fixture);
            assert!(modest + flood <= 2, "{modest} and {flood}");
        }
    });
}
