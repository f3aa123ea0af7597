//! Removal of idle pools, also while new clients log in.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_stats::Registry;

use crate::support::{PoolFixture, WAIT_TIMEOUT, checked_stdout, connect, start_pooler_with};

/// Two workers. Pools of databases that match `*` are removed soon, those of `named` after
/// `pool_idle`.
fn fixture(test: &str, pool_idle: &str, more: &str) -> Option<PoolFixture> {
    let server =
        skip_without_postgres(test, Cluster::builder().setting("max_connections", "80").start())?;
    let pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         sizes = {{ pool = 2 }}\n[pool.timeouts]\nautodb-idle = '20ms'\npool-idle = {pool_idle}\n\
         server-idle = '1ms'\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n{more}\n\
         [pool.databases.named]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{port}']\n",
        port = server.port()
    ));
    Some(PoolFixture { server, pooler })
}

/// The rows of a console table.
fn show_rows(fixture: &PoolFixture, table: &str) -> Vec<String> {
    let command = format!("show {table}");
    let rows =
        checked_stdout(fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", &command]));
    rows.lines().map(str::to_owned).collect()
}

#[test]
fn removed_pools_disappear_from_tables_and_metrics_but_not_totals() {
    let Some(fixture) = fixture("unused", "0", "") else { return };
    fixture.query_server("create database tenant");
    let query_name = |database: &str| {
        checked_stdout(
            fixture
                .run_program("psql", &["-XAtq", "-d", database, "-c", "select current_database()"]),
        )
    };
    assert_eq!(query_name("tenant"), "tenant");
    assert_eq!(query_name("named"), "postgres");
    let control = fixture.pooler.control();
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (control, registry) = (&control, &registry);
        scope.spawn(move || control.export_metrics(registry, &stopped));
        wait_until("its series", WAIT_TIMEOUT, || {
            registry.prometheus().contains("database=\"named\"")
        });
        let is_left = || control.snapshot(false).pools.iter().all(|pool| pool.database == "named");
        wait_until("the removal of the pool", WAIT_TIMEOUT, is_left);
        wait_until("the removal of its series", WAIT_TIMEOUT, || {
            !registry.prometheus().contains("database=\"tenant\"")
        });
        drop(stop);
    });
    assert!(registry.prometheus().contains("database=\"named\""));
    let names = |table: &str| -> Vec<String> {
        let rows = show_rows(&fixture, table).into_iter();
        let names = rows.map(|row| row.split('|').next().unwrap().to_owned());
        names.filter(|name| name != "pgbouncer").collect()
    };
    for table in ["pools", "stats", "databases"] {
        assert_eq!(names(table), ["named"], "{table}");
    }
    let queries = |table: &str| {
        let rows = show_rows(&fixture, table);
        rows.into_iter().find(|row| row.starts_with("total_query_count|")).unwrap()
    };
    assert_eq!(queries("totals"), "total_query_count|2");
    // The pool is created again.
    assert_eq!(query_name("tenant"), "tenant");
    assert_eq!(queries("totals"), "total_query_count|3");
}

#[test]
fn pool_of_configured_database_has_own_timeout() {
    let Some(fixture) = fixture("named", "'50ms'", "") else { return };
    checked_stdout(fixture.run_program("psql", &["-XAtq", "-d", "named", "-c", "select 1"]));
    let control = fixture.pooler.control();
    wait_until("the removal of the pool", WAIT_TIMEOUT, || {
        control.snapshot(false).pools.is_empty()
    });
    let stats = show_rows(&fixture, "stats_totals");
    let stats: Vec<_> = stats.iter().filter(|row| !row.starts_with("pgbouncer|")).collect();
    assert!(stats.len() == 1 && stats[0].starts_with("named|"), "{stats:?}");
    assert_eq!(stats[0].split('|').nth(3), Some("1"), "the counts of its database remain");
}

/// Clients reconnect about as often as pools are removed: each login succeeds, with the right
/// database and user.
#[test]
fn login_during_removal_of_pool_succeeds() {
    let users =
        (0..4).map(|at| format!("[pool.users.user_{at}]\nsecret = ''\n")).collect::<String>();
    let Some(fixture) = fixture("moments", "0", &users) else { return };
    for at in 0..4 {
        fixture.query_server(&format!("create role user_{at} login"));
    }
    let address = fixture.address();
    let over = AtomicBool::new(false);
    let removals = thread::scope(|scope| {
        let clients: Vec<_> = (0..4_u64)
            .map(|at| {
                let over = &over;
                scope.spawn(move || {
                    let words = format!(
                        "host={} port={} dbname=postgres user=user_{at}",
                        address.ip(),
                        address.port()
                    );
                    // Pauses of various lengths around the timeout after which a pool is removed.
                    let mut rounds = 0_u64;
                    while !over.load(Ordering::Relaxed) {
                        let mut client = connect(&words).unwrap();
                        let user = client.one_value("select current_user").unwrap();
                        assert_eq!(user, Some(format!("user_{at}")));
                        drop(client);
                        rounds += 1;
                        let pause = (rounds * 37 + at * 11) % 230;
                        // The pause is the stimulus: the pool must become idle.
                        thread::sleep(Duration::from_millis(pause));
                    }
                    rounds
                })
            })
            .collect();
        // The number of logins in removed pools rises with each removal.
        let control = fixture.pooler.control();
        let (mut removals, mut before) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while removals < 40 && Instant::now() < deadline {
            let logins: u64 = control.snapshot(false).removed.iter().map(|(_, it)| it.logins).sum();
            removals += u32::from(logins > before);
            before = logins;
            // Sampled, since the number of removals within the time depends on the machine.
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        let rounds: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        let control = fixture.pooler.control();
        wait_until("the removal of all pools", WAIT_TIMEOUT, || {
            control.snapshot(false).pools.is_empty()
        });
        let counted: u64 = control.snapshot(false).removed.iter().map(|(_, it)| it.logins).sum();
        assert_eq!(counted, rounds, "no counts are lost");
        removals
    });
    assert!(removals >= 5, "only {removals} pools were removed");
}
