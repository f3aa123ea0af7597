//! Pools that share a limit: nobody's flood is another's drought.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Stage, connect, pooler_of};

/// A pooler with a cap on the server's host; `modest` and `flood` are two databases of it.
fn sharing(test: &str, cap: u32, weight: u32, workers: u32) -> Option<Stage> {
    let mut stage = Stage::set(test, "")?;
    stage.pooler = pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = {workers}\nlimits.servers-per-host = {cap}\n\
         timeouts.query-wait-notify = 0\n\
         [pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.modest]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [pool.databases.flood]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         weight = {weight}\n",
        port = stage.server.port()
    ));
    Some(stage)
}

fn words(stage: &Stage, database: &str) -> String {
    let port = stage.address().port();
    format!("host=127.0.0.1 port={port} user=postgres dbname={database}")
}

/// How many servers each of the two databases has.
fn servers(stage: &Stage) -> (usize, usize) {
    let view = stage.pooler.control().view(true);
    let of =
        |name: &str| view.servers.iter().filter(|it| view.pools[it.pool].database == name).count();
    (of("modest"), of("flood"))
}

/// Has 24 clients of `flood` always wait for its few servers while `work` is done.
fn under_flood<T>(stage: &Stage, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut client = connect(&words(stage, "flood")).unwrap();
                while !over.load(Ordering::Relaxed) {
                    client.query("select pg_sleep(0.02)").unwrap();
                }
            });
        }
        while servers(stage).1 < 3 {}
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn a_flood_leaves_others_their_part() {
    for workers in [1, 2] {
        let Some(stage) = sharing("flood", 4, 1, workers) else { return };
        let (mut waits, servers) = under_flood(&stage, || {
            let mut client = connect(&words(&stage, "modest")).unwrap();
            let (mut waits, mut servers) = (Vec::new(), BTreeSet::new());
            for _ in 0..200 {
                let began = Instant::now();
                servers.insert(client.one_value("select pg_backend_pid()::text").unwrap());
                waits.push(began.elapsed());
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
        // Its server stays its own while it is idle; a machine that is too busy may give it up.
        assert!(servers < 20, "{servers} servers for 200 queries");
    }
}

#[test]
fn weights_are_the_parts_that_all_get_who_want_more() {
    let Some(stage) = sharing("weights", 4, 3, 1) else { return };
    under_flood(&stage, || {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut client = connect(&words(&stage, "modest")).unwrap();
                    while !over.load(Ordering::Relaxed) {
                        client.query("select pg_sleep(0.02)").unwrap();
                    }
                });
            }
            // Both always want more: three to one, and it stays so.
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut since = None;
            loop {
                assert!(Instant::now() < deadline, "{:?}", servers(&stage));
                since = match servers(&stage) {
                    (1, 3) => since.or(Some(Instant::now())),
                    _ => None,
                };
                if since.is_some_and(|since: Instant| since.elapsed() > Duration::from_secs(2)) {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_host_has_no_more_than_its_cap_over_all_pools() {
    let Some(stage) = sharing("host cap", 2, 1, 1) else { return };
    thread::scope(|scope| {
        for number in 0..8 {
            let database = if number % 2 == 0 { "modest" } else { "flood" };
            let words = words(&stage, database);
            scope.spawn(move || {
                let mut client = connect(&words).unwrap();
                for _ in 0..20 {
                    client.query("select 1").unwrap();
                }
            });
        }
        // As the pooler counts: a process of the server outlives its connection by a moment.
        for _ in 0..200 {
            let (modest, flood) = servers(&stage);
            assert!(modest + flood <= 2, "{modest} and {flood}");
        }
    });
}
