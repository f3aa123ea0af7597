//! Failures of servers, bans, and failover.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use howdah_lab::{Cluster, wait_until};

use super::{AUTO_ROLES, ClusterFixture, FIXED_ROLES, RawClient, SELECT_PORT, query_value};
use crate::support::WAIT_TIMEOUT;

/// Runs a query, and returns its value; `None` after an error or if the connection ended.
fn try_query_value(raw: &mut RawClient, sql: &str) -> Option<String> {
    raw.try_send_query(sql).ok()?;
    let mut found = None;
    loop {
        match raw.read_message().ok()? {
            (b'D', row) => found = Some(String::from_utf8_lossy(&row[6..]).into_owned()),
            (b'E', _) => return None,
            (b'Z', _) => return found.or(Some(String::new())),
            _ => {}
        }
    }
}

#[test]
fn killed_replica_fails_only_running_statements() {
    let Some(mut fixture) = ClusterFixture::start("killed replica", &FIXED_ROLES, "") else {
        return;
    };
    const CLIENTS: usize = 12;
    let (stop, failures) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let done: Arc<Vec<AtomicU32>> = Arc::new((0..CLIENTS).map(|_| AtomicU32::new(0)).collect());
    let address = fixture.address();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (stop, failures, done) =
                (Arc::clone(&stop), Arc::clone(&failures), Arc::clone(&done));
            thread::spawn(move || {
                let log_in = || {
                    let mut raw = RawClient::connect(address);
                    raw.send_startup_for_database("app", "target_session_attrs\0prefer-standby\0");
                    raw.read_until(b'Z');
                    raw
                };
                let mut raw = log_in();
                while !stop.load(Ordering::Relaxed) {
                    if try_query_value(&mut raw, "select pg_sleep(0.001)").is_none() {
                        failures.fetch_add(1, Ordering::Relaxed);
                        raw = log_in();
                    }
                    done[number].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let wait_for_progress = |more: u32| {
        let before: Vec<_> = done.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        wait_until("progress of all clients", WAIT_TIMEOUT, || {
            done.iter()
                .zip(&before)
                .all(|(count, then)| count.load(Ordering::Relaxed) >= then + more)
        });
    };
    wait_for_progress(20);
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    let port = fixture.servers[1].port();
    let connections = "select count(*) from pg_stat_activity \
                       where backend_type = 'client backend' and pid <> pg_backend_pid()";
    let running = fixture.query_server(1, connections).parse::<u32>().unwrap();
    fixture.servers[1].kill().unwrap();
    wait_for_progress(50);
    let lost = failures.load(Ordering::Relaxed);
    assert!(lost <= running, "{lost} of {running}");
    wait_until("the ban", WAIT_TIMEOUT, || {
        fixture.console("show bans").contains(&format!("|{port}|"))
    });
    let before = failures.load(Ordering::Relaxed);
    wait_for_progress(50);
    assert_eq!(failures.load(Ordering::Relaxed), before, "the banned replica is not used");

    // UNBAN ends the ban of the restarted replica early.
    fixture.servers[1].start().unwrap();
    fixture.console(&format!("unban 127.0.0.1:{port}"));
    let serves = |server: usize| {
        let working = "select count(*) from pg_stat_activity where query like 'select pg_sleep%'";
        fixture.query_server(server, working) != "0"
    };
    wait_until("the server to serve again", WAIT_TIMEOUT, || serves(1));
    assert_eq!(fixture.console("show bans"), "");
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(failures.load(Ordering::Relaxed), before);
}

#[test]
fn console_bans_replicas_but_not_primary() {
    let Some(fixture) = ClusterFixture::start("ban", &FIXED_ROLES, "") else { return };
    let port = |server: usize| fixture.servers[server].port().to_string();
    let mut standby = fixture.client("standby");
    fixture.console(&format!("ban 127.0.0.1:{} 3600", port(1)));
    let received = fixture.console("show bans");
    assert!(
        received.contains(&port(1)) && received.contains("requested by an administrator"),
        "{received}"
    );
    for _ in 0..20 {
        assert_eq!(query_value(&mut standby, SELECT_PORT), port(2));
    }
    let refused = |command: &str| {
        let output = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&format!("ban 127.0.0.1:{}", port(0))).contains("is the primary"));
    assert!(refused("ban nowhere").contains("no database has a server nowhere"));
    assert!(refused(&format!("unban 127.0.0.1:{}", port(2))).contains("is not banned"));
    // If all replicas are banned, the bans are lifted.
    fixture.console(&format!("ban 127.0.0.1:{}", port(2)));
    assert_ne!(query_value(&mut standby, SELECT_PORT), port(0));
    assert_eq!(fixture.console("show bans"), "");
    // A statement timeout does not ban the replica.
    standby.send_query("set statement_timeout = 1; select pg_sleep(60)");
    assert!(standby.read_until(b'Z').iter().any(|(tag, _)| *tag == b'E'));
    assert_eq!(fixture.console("show bans"), "");
    let members = fixture.console("show members");
    assert_eq!(members.lines().count(), 3, "{members}");
    assert_eq!(fixture.console("show databases").lines().count(), 4);
    assert_eq!(fixture.console("show pools").lines().count(), 2);
    let registry = howdah_stats::Registry::new();
    let (stop, stopped) = std::sync::mpsc::channel();
    drop(stop); // Export once.
    fixture.pooler.control().export_metrics(&registry, &stopped);
    let text = registry.prometheus();
    let labels = format!("{{database=\"app\",server=\"127.0.0.1:{}\",shard=\"\"}}", port(0));
    assert!(text.contains(&format!("howdah_pool_member_primary{labels} 1\n")), "{text}");
    assert!(text.contains(&format!("howdah_pool_member_up{labels} 1\n")), "{text}");
}

#[test]
fn lagging_replica_gets_no_reads() {
    let more = "cluster = { max-lag-bytes = 100000, check-interval = \"50ms\" }";
    let Some(fixture) = ClusterFixture::start("lag", &AUTO_ROLES, more) else { return };
    let mut standby = fixture.client("standby");
    let ports: Vec<_> = fixture.servers.iter().map(|server| server.port().to_string()).collect();
    let both = |raw: &mut RawClient| {
        let found: Vec<_> = (0..10).map(|_| query_value(raw, SELECT_PORT)).collect();
        found.contains(&ports[1]) && found.contains(&ports[2])
    };
    wait_until("both standbys to serve", WAIT_TIMEOUT, || both(&mut standby));
    fixture.query_server(1, "select pg_wal_replay_pause()");
    let mut primary = fixture.client("read-write");
    let much = "create table much as select generate_series(1, 20000)::text it";
    assert!(try_query_value(&mut primary, much).is_some());
    let is_behind = || {
        let members = fixture.console("show members");
        let is = |port: &str, state: &str| {
            members.lines().any(|line| line.contains(port) && line.contains(state))
        };
        is(&ports[1], "|lagging|") && is(&ports[2], "|up|")
    };
    wait_until("the lag to be detected", WAIT_TIMEOUT, is_behind);
    for _ in 0..20 {
        assert_eq!(query_value(&mut standby, SELECT_PORT), ports[2]);
    }
    fixture.query_server(1, "select pg_wal_replay_resume()");
    wait_until("the standby to catch up", WAIT_TIMEOUT, || both(&mut standby));
}

#[test]
fn promoted_standby_gets_writes_and_old_primary_none() {
    failover(1);
}

/// Repeats with different timing; run with `HOWDAH_FAILOVER_RUNS=20`.
#[test]
fn failovers_lose_nothing_acknowledged() {
    let runs = std::env::var("HOWDAH_FAILOVER_RUNS").ok().and_then(|it| it.parse().ok());
    (2..2 + runs.unwrap_or(0_u32)).for_each(failover);
}

/// A primary with a synchronous standby is killed, the standby promoted, and the old primary
/// restarted. All acknowledged rows must be on the new primary, and none written to the old one.
fn failover(seed: u32) {
    let entries = &AUTO_ROLES[..2];
    let more = "cluster = { check-interval = \"200ms\", failover-timeout = \"60s\" }";
    let Some(mut fixture) = ClusterFixture::start("failover", entries, more) else { return };
    let primary = &fixture.servers[0];
    super::query_server(primary, "alter system set synchronous_standby_names = '*'");
    super::query_server(primary, "select pg_reload_conf()");
    super::query_server(
        primary,
        "create table kept \
        (client int, number int, started timestamptz default pg_postmaster_start_time())",
    );
    let (stop, address) = (Arc::new(AtomicBool::new(false)), fixture.address());
    let writers: Vec<_> = (0..4)
        .map(|client| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || write(client, address, &stop))
        })
        .collect();
    let count = |server: &Cluster| {
        super::query_server(server, "select count(*) from kept").parse::<u32>().unwrap()
    };
    wait_until("writes", WAIT_TIMEOUT, || count(&fixture.servers[0]) > 50 + seed * 7);
    let server = fixture.servers.remove(0);
    let mut old = server;
    old.kill().unwrap();
    let new = &fixture.servers[0];
    // The order of promotion and restart depends on the seed.
    let restarts_first = seed.is_multiple_of(2);
    super::query_server(new, "select pg_promote(false)");
    if !restarts_first {
        wait_until("promotion", WAIT_TIMEOUT, || {
            super::query_server(new, "select pg_is_in_recovery()") == "f"
        });
    }
    let before_restart = fixture.console("show members");
    old.start().unwrap();
    let is_over =
        || count(new) > 0 && super::query_server(new, "select pg_is_in_recovery()") == "f";
    wait_until("promotion", WAIT_TIMEOUT, is_over);
    let then = count(new);
    wait_until("writes at the new primary", WAIT_TIMEOUT, || count(new) > then + 50);
    wait_until("the old primary to be marked stale", WAIT_TIMEOUT, || {
        fixture.console("show members").contains("|stale|")
    });
    let then = count(new);
    wait_until("more writes", WAIT_TIMEOUT, || count(new) > then + 50);
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = 0;
    for (client, writer) in writers.into_iter().enumerate() {
        let numbers = writer.join().unwrap();
        acknowledged += numbers.len();
        let sql = format!("select string_agg(number::text, ',') from kept where client = {client}");
        let found = super::query_server(new, &sql);
        let found: std::collections::HashSet<_> = found.split(',').collect();
        for number in numbers {
            assert!(
                found.contains(number.to_string().as_str()),
                "seed {seed}: {client}/{number} is lost"
            );
        }
    }
    assert!(acknowledged > 100);
    // Each row has the start time of the server that wrote it. Commits that wait for a synchronous
    // standby are invisible until they stop waiting.
    super::query_server(&old, "alter system reset synchronous_standby_names");
    super::query_server(&old, "select pg_reload_conf()");
    let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    wait_until("the end of waiting commits", WAIT_TIMEOUT, || {
        super::query_server(&old, waiting) == "0"
    });
    let started = "select count(*) from kept where started = pg_postmaster_start_time()";
    assert_eq!(super::query_server(&old, started), "0", "seed {seed}: {before_restart}");
}

/// Writes rows with increasing numbers, and returns the acknowledged ones.
fn write(client: usize, address: std::net::SocketAddr, stop: &AtomicBool) -> Vec<u32> {
    let (mut number, mut acknowledged) = (0, Vec::new());
    let mut connection: Option<RawClient> = None;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let raw = connection.get_or_insert_with(|| {
            let mut raw = RawClient::connect(address);
            raw.send_startup_for_database("app", "target_session_attrs\0read-write\0");
            raw.read_until(b'Z');
            raw
        });
        match try_query_value(
            raw,
            &format!("insert into kept (client, number) values ({client}, {number})"),
        ) {
            Some(_) => acknowledged.push(number),
            None => connection = None,
        }
    }
    acknowledged
}

#[test]
fn listen_moves_to_new_primary() {
    let more = "cluster = { check-interval = \"200ms\", failover-timeout = \"60s\" }";
    let Some(mut fixture) = ClusterFixture::start("listen failover", &AUTO_ROLES[..2], more) else {
        return;
    };
    let mut raw = fixture.client("read-write");
    raw.send_query("listen news");
    raw.read_until(b'Z');
    fixture.query_server(0, "notify news, 'before'");
    assert!(raw.read_until(b'A').pop().unwrap().1.ends_with(b"before\0"));
    fixture.servers[0].kill().unwrap();
    fixture.query_server(1, "select pg_promote(false)");
    let notice = raw.read_until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    fixture.query_server(1, "notify news, 'after'");
    assert!(raw.read_until(b'A').pop().unwrap().1.ends_with(b"after\0"));
}
