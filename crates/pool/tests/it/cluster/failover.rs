//! What fails, and what comes of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use howdah_lab::Cluster;

use super::{AUTO, NAMED, PORT, Raw, Stage, until, value};

/// What a client got for a query: its value, or none if its connection ended.
fn attempt(raw: &mut Raw, sql: &str) -> Option<String> {
    raw.try_query(sql).ok()?;
    let mut found = None;
    loop {
        match raw.message().ok()? {
            (b'D', row) => found = Some(String::from_utf8_lossy(&row[6..]).into_owned()),
            (b'E', _) => return None,
            (b'Z', _) => return found.or(Some(String::new())),
            _ => {}
        }
    }
}

#[test]
fn a_replica_that_is_killed_costs_only_what_was_under_way_there() {
    let Some(mut stage) = Stage::set("killed replica", &NAMED, "") else { return };
    const CLIENTS: usize = 12;
    let (stop, failures) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let done: Arc<Vec<AtomicU32>> = Arc::new((0..CLIENTS).map(|_| AtomicU32::new(0)).collect());
    let address = stage.address();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (stop, failures, done) =
                (Arc::clone(&stop), Arc::clone(&failures), Arc::clone(&done));
            thread::spawn(move || {
                let log_in = || {
                    let mut raw = Raw::connect(address);
                    raw.start_in("app", "target_session_attrs\0prefer-standby\0");
                    raw.until(b'Z');
                    raw
                };
                let mut raw = log_in();
                while !stop.load(Ordering::Relaxed) {
                    if attempt(&mut raw, "select pg_sleep(0.001)").is_none() {
                        failures.fetch_add(1, Ordering::Relaxed);
                        raw = log_in();
                    }
                    done[number].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let all_did = |more: u32| {
        let before: Vec<_> = done.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        until("all clients go on", || {
            done.iter()
                .zip(&before)
                .all(|(count, then)| count.load(Ordering::Relaxed) >= then + more)
        });
    };
    all_did(20);
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    let port = stage.servers[1].port();
    let connections = "select count(*) from pg_stat_activity \
                       where backend_type = 'client backend' and pid <> pg_backend_pid()";
    let under_way = stage.direct(1, connections).parse::<u32>().unwrap();
    stage.servers[1].kill().unwrap();
    all_did(50);
    let lost = failures.load(Ordering::Relaxed);
    assert!(lost <= under_way, "{lost} of {under_way}");
    until("the ban", || stage.console("show bans").contains(&format!("|{port}|")));
    let before = failures.load(Ordering::Relaxed);
    all_did(50);
    assert_eq!(failures.load(Ordering::Relaxed), before, "nobody goes there any more");

    // It is back, and an operator does not wait for the end of its ban.
    stage.servers[1].start().unwrap();
    stage.console(&format!("unban 127.0.0.1:{port}"));
    let serves = |server: usize| {
        let working = "select count(*) from pg_stat_activity where query like 'select pg_sleep%'";
        stage.direct(server, working) != "0"
    };
    until("it serves again", || serves(1));
    assert_eq!(stage.console("show bans"), "");
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(failures.load(Ordering::Relaxed), before);
}

#[test]
fn operators_ban_replicas_and_no_primary() {
    let Some(stage) = Stage::set("ban", &NAMED, "") else { return };
    let port = |server: usize| stage.servers[server].port().to_string();
    let mut standby = stage.client("standby");
    stage.console(&format!("ban 127.0.0.1:{} 3600", port(1)));
    let told = stage.console("show bans");
    assert!(told.contains(&port(1)) && told.contains("an operator's order"), "{told}");
    for _ in 0..20 {
        assert_eq!(value(&mut standby, PORT), port(2));
    }
    let refused = |command: &str| {
        let output = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&format!("ban 127.0.0.1:{}", port(0))).contains("is the primary"));
    assert!(refused("ban nowhere").contains("no database has a server nowhere"));
    assert!(refused(&format!("unban 127.0.0.1:{}", port(2))).contains("is not banned"));
    // When all are banned, none is.
    stage.console(&format!("ban 127.0.0.1:{}", port(2)));
    assert_ne!(value(&mut standby, PORT), port(0));
    assert_eq!(stage.console("show bans"), "");
    // A statement that takes too long is not the replica's fault.
    standby.query("set statement_timeout = 1; select pg_sleep(60)");
    assert!(standby.until(b'Z').iter().any(|(tag, _)| *tag == b'E'));
    assert_eq!(stage.console("show bans"), "");
    let members = stage.console("show members");
    assert_eq!(members.lines().count(), 3, "{members}");
    assert_eq!(stage.console("show databases").lines().count(), 3);
    assert_eq!(stage.console("show pools").lines().count(), 1);
    let registry = howdah_stats::Registry::new();
    let (stop, stopped) = std::sync::mpsc::channel();
    drop(stop); // One round.
    stage.pooler.control().keep_metrics(&registry, &stopped);
    let text = registry.prometheus();
    let labels = format!("{{database=\"app\",server=\"127.0.0.1:{}\",shard=\"\"}}", port(0));
    assert!(text.contains(&format!("howdah_pool_member_primary{labels} 1\n")), "{text}");
    assert!(text.contains(&format!("howdah_pool_member_up{labels} 1\n")), "{text}");
}

#[test]
fn a_replica_that_is_behind_gets_no_reads() {
    let more = "cluster = { max-lag-bytes = 100000, check-interval = \"50ms\" }";
    let Some(stage) = Stage::set("lag", &AUTO, more) else { return };
    let mut standby = stage.client("standby");
    let ports: Vec<_> = stage.servers.iter().map(|server| server.port().to_string()).collect();
    let both = |raw: &mut Raw| {
        let found: Vec<_> = (0..10).map(|_| value(raw, PORT)).collect();
        found.contains(&ports[1]) && found.contains(&ports[2])
    };
    until("both serve", || both(&mut standby));
    stage.direct(1, "select pg_wal_replay_pause()");
    let mut primary = stage.client("read-write");
    let much = "create table much as select generate_series(1, 20000)::text it";
    assert!(attempt(&mut primary, much).is_some());
    let is_behind = || {
        let members = stage.console("show members");
        let is = |port: &str, state: &str| {
            members.lines().any(|line| line.contains(port) && line.contains(state))
        };
        is(&ports[1], "|lagging|") && is(&ports[2], "|up|")
    };
    until("it is seen to lag", is_behind);
    for _ in 0..20 {
        assert_eq!(value(&mut standby, PORT), ports[2]);
    }
    stage.direct(1, "select pg_wal_replay_resume()");
    until("it has caught up", || both(&mut standby));
}

#[test]
fn a_promoted_standby_takes_the_writes_and_the_old_primary_gets_none() {
    failover(1);
}

/// The same with other pauses each time: `HOWDAH_FAILOVER_RUNS=20`.
#[test]
fn failovers_lose_nothing_that_was_acknowledged() {
    let runs = std::env::var("HOWDAH_FAILOVER_RUNS").ok().and_then(|it| it.parse().ok());
    (2..2 + runs.unwrap_or(0_u32)).for_each(failover);
}

/// A primary with a synchronous standby is killed, the standby is promoted, and the old primary is
/// started again: whatever was acknowledged is on the new primary, and nothing was written to the old.
fn failover(seed: u32) {
    let entries = &AUTO[..2];
    let more = "cluster = { check-interval = \"200ms\", failover-timeout = \"60s\" }";
    let Some(mut stage) = Stage::set("failover", entries, more) else { return };
    let primary = &stage.servers[0];
    super::direct(primary, "alter system set synchronous_standby_names = '*'");
    super::direct(primary, "select pg_reload_conf()");
    super::direct(
        primary,
        "create table kept \
        (client int, number int, started timestamptz default pg_postmaster_start_time())",
    );
    let (stop, address) = (Arc::new(AtomicBool::new(false)), stage.address());
    let writers: Vec<_> = (0..4)
        .map(|client| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || write(client, address, &stop))
        })
        .collect();
    let count = |server: &Cluster| {
        super::direct(server, "select count(*) from kept").parse::<u32>().unwrap()
    };
    until("writes", || count(&stage.servers[0]) > 50 + seed * 7);
    let server = stage.servers.remove(0);
    let mut old = server;
    old.kill().unwrap();
    let new = &stage.servers[0];
    // Between the two, more or less time.
    let restarts_first = seed.is_multiple_of(2);
    super::direct(new, "select pg_promote(false)");
    if !restarts_first {
        until("promotion", || super::direct(new, "select pg_is_in_recovery()") == "f");
    }
    let before_restart = stage.console("show members");
    old.start().unwrap();
    let is_over = || count(new) > 0 && super::direct(new, "select pg_is_in_recovery()") == "f";
    until("promotion", is_over);
    let then = count(new);
    until("writes at the new primary", || count(new) > then + 50);
    until("an alarm", || stage.console("show members").contains("|stale|"));
    let then = count(new);
    until("more writes", || count(new) > then + 50);
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = 0;
    for (client, writer) in writers.into_iter().enumerate() {
        let numbers = writer.join().unwrap();
        acknowledged += numbers.len();
        let sql = format!("select string_agg(number::text, ',') from kept where client = {client}");
        let found = super::direct(new, &sql);
        let found: std::collections::HashSet<_> = found.split(',').collect();
        for number in numbers {
            assert!(
                found.contains(number.to_string().as_str()),
                "seed {seed}: {client}/{number} is lost"
            );
        }
    }
    assert!(acknowledged > 100);
    // Each row knows by which start of a server it was written.
    // A commit that waits for a standby is seen by nobody before it need not wait any more.
    super::direct(&old, "alter system reset synchronous_standby_names");
    super::direct(&old, "select pg_reload_conf()");
    let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    until("nobody waits", || super::direct(&old, waiting) == "0");
    let started = "select count(*) from kept where started = pg_postmaster_start_time()";
    assert_eq!(super::direct(&old, started), "0", "seed {seed}: {before_restart}");
}

/// Writes rows with rising numbers, and gives those that were acknowledged.
fn write(client: usize, address: std::net::SocketAddr, stop: &AtomicBool) -> Vec<u32> {
    let (mut number, mut acknowledged) = (0, Vec::new());
    let mut connection: Option<Raw> = None;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let raw = connection.get_or_insert_with(|| {
            let mut raw = Raw::connect(address);
            raw.start_in("app", "target_session_attrs\0read-write\0");
            raw.until(b'Z');
            raw
        });
        match attempt(
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
fn who_listens_does_so_at_the_new_primary() {
    let more = "cluster = { check-interval = \"200ms\", failover-timeout = \"60s\" }";
    let Some(mut stage) = Stage::set("listen failover", &AUTO[..2], more) else { return };
    let mut raw = stage.client("read-write");
    raw.query("listen news");
    raw.until(b'Z');
    stage.direct(0, "notify news, 'before'");
    assert!(raw.until(b'A').pop().unwrap().1.ends_with(b"before\0"));
    stage.servers[0].kill().unwrap();
    stage.direct(1, "select pg_promote(false)");
    let notice = raw.until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    stage.direct(1, "notify news, 'after'");
    assert!(raw.until(b'A').pop().unwrap().1.ends_with(b"after\0"));
}
