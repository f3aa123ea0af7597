//! Read your writes, with a primary and lagging standbys.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use howdah_lab::wait_until;

use crate::{
    cluster::{AUTO_ROLES, ClusterFixture, FIXED_ROLES, settings},
    routing::{log_in_to_app, query_reply, run_extended},
    support::{RawClient, WAIT_TIMEOUT, start_pooler_with},
};

const READ_YOUR_WRITES: &str =
    "cluster = { role = \"auto\" }\nrouting = { read-your-writes = true }";

/// The port of the server, and the number of a client's rows there.
fn select_rows(client: u32) -> String {
    format!("select current_setting('port') || ':' || count(*) from kept where client = {client}")
}

/// Reads the port of a server and the number of a client's rows there.
fn read(raw: &mut RawClient, client: u32, is_extended: bool) -> (String, u32) {
    let sql = select_rows(client);
    let answer = if is_extended { run_extended(raw, &sql, &[]) } else { query_reply(raw, &sql) };
    let value = answer.split(", ").find(|part| part.contains(':'));
    let (port, rows) = value.unwrap_or_else(|| panic!("{answer}")).split_once(':').unwrap();
    (port.to_owned(), rows.parse().unwrap())
}

fn write(raw: &mut RawClient, client: u32, is_extended: bool) {
    let sql = format!("insert into kept values ({client})");
    let answer = if is_extended { run_extended(raw, &sql, &[]) } else { query_reply(raw, &sql) };
    assert!(answer.ends_with("INSERT 0 1, I"), "{answer}");
}

/// Reads until all of these servers have served a read; each must have this number of rows.
fn wait_until_read_at(raw: &mut RawClient, client: u32, rows: u32, ports: &[String]) {
    let mut missing: BTreeSet<_> = ports.iter().cloned().collect();
    wait_until("reads at all servers", WAIT_TIMEOUT, || {
        let (port, found) = read(raw, client, client.is_multiple_of(2));
        assert_eq!(found, rows, "at {port}");
        missing.remove(&port);
        missing.is_empty()
    });
}

/// Pauses replay on all standbys.
fn pause_replay(fixture: &ClusterFixture) {
    for standby in 1..fixture.servers.len() {
        fixture.query_server(standby, "select pg_wal_replay_pause()");
    }
}

impl ClusterFixture {
    fn ports(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.port().to_string()).collect()
    }

    /// Creates a table, and waits until all servers have it.
    fn with_table(self) -> Self {
        self.query_server(0, "create table kept (client int)");
        for standby in 1..self.servers.len() {
            wait_until("the table at the standby", WAIT_TIMEOUT, || {
                self.query_server(standby, "select count(*) from pg_class where relname = 'kept'")
                    == "1"
            });
        }
        self
    }

    fn metric(&self, name: &str) -> u64 {
        let registry = howdah_stats::Registry::new();
        let (stop, stopped) = std::sync::mpsc::channel();
        drop(stop); // Export once.
        self.pooler.control().export_metrics(&registry, &stopped);
        let text = registry.prometheus();
        let line = text.lines().find(|line| line.starts_with(name) && line.contains("\"app\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
    }
}

#[test]
fn writer_reads_at_primary_while_replay_is_paused() {
    let Some(fixture) = ClusterFixture::start("own writes", &AUTO_ROLES, READ_YOUR_WRITES) else {
        return;
    };
    let fixture = fixture.with_table();
    let ports = fixture.ports();
    let (mut writer, mut other) =
        (log_in_to_app(fixture.address()), log_in_to_app(fixture.address()));
    wait_until_read_at(&mut other, 0, 0, &ports);
    pause_replay(&fixture);
    for (rows, is_extended) in [(1, false), (2, true)] {
        write(&mut writer, 7, is_extended);
        for round in 0..60 {
            let found = read(&mut writer, 7, round % 2 == 0);
            assert_eq!(found, (ports[0].clone(), rows), "{round}");
        }
    }
    assert!(fixture.metric("howdah_pool_reads_redirected_total") >= 120);
    // A client without writes reads from all servers.
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        let (port, rows) = read(&mut other, 7, false);
        assert_eq!(rows, if port == ports[0] { 2 } else { 0 });
        seen.insert(port);
    }
    assert_eq!(seen.len(), 3);
    // A transaction with writes, in several requests.
    for sql in ["begin", "insert into kept values (8)", "select 1", "commit"] {
        query_reply(&mut other, sql);
    }
    assert_eq!(read(&mut other, 8, false), (ports[0].clone(), 1));

    // One standby resumes replay and serves reads again; the other does not.
    fixture.query_server(1, "select pg_wal_replay_resume()");
    wait_until_read_at(&mut writer, 7, 2, &ports[..2]);
    for _ in 0..20 {
        assert_ne!(read(&mut writer, 7, true).0, ports[2]);
    }
    fixture.query_server(2, "select pg_wal_replay_resume()");
    wait_until_read_at(&mut writer, 7, 2, &ports);
    let kept = fixture.metric("howdah_pool_reads_redirected_total");
    wait_until_read_at(&mut writer, 7, 2, &ports);
    assert_eq!(fixture.metric("howdah_pool_reads_redirected_total"), kept);
}

#[test]
fn explicit_roles_wait_or_go_to_the_primary() {
    let more = "cluster = { failover-timeout = \"1s\" }";
    let Some(fixture) = ClusterFixture::start("own writes by role", &AUTO_ROLES, more) else {
        return;
    };
    let mut fixture = fixture.with_table();
    let ports = fixture.ports();
    let run =
        |raw: &mut RawClient, sql: &str| assert!(query_reply(raw, sql).ends_with(", I"), "{sql}");
    let mut raw = log_in_to_app(fixture.address());
    wait_until_read_at(&mut raw, 1, 0, &ports);
    assert_eq!(query_reply(&mut raw, "show read your writes"), "off, SELECT 1, I");
    run(&mut raw, "set read your writes to on");
    pause_replay(&fixture);
    run(&mut raw, "set server role to 'primary'");
    write(&mut raw, 1, false);
    for role in ["any", "prefer-replica"] {
        run(&mut raw, &format!("set server role to '{role}'"));
        for round in 0..20 {
            assert_eq!(read(&mut raw, 1, round % 2 == 0), (ports[0].clone(), 1), "{role}");
        }
    }
    // With role replica, a read waits for a standby that has replayed the write.
    run(&mut raw, "set server role to 'replica'");
    raw.send_query(&select_rows(1));
    let received = raw.read_until(b'E').pop().unwrap().1;
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(received.contains("no standby replayed this session's writes in time"), "{received}");
    let long_timeout =
        settings(&fixture.servers, &AUTO_ROLES, "cluster = { failover-timeout = \"60s\" }");
    fixture.pooler = start_pooler_with(&long_timeout);
    let mut waits = log_in_to_app(fixture.address());
    run(&mut waits, "set read your writes to on");
    run(&mut waits, "set server role to 'primary'");
    write(&mut waits, 2, false);
    run(&mut waits, "set server role to 'replica'");
    let awaited = "howdah_pool_reads_waited_total";
    let before = fixture.metric(awaited);
    waits.send_query(&select_rows(2));
    wait_until("the read to wait", WAIT_TIMEOUT, || fixture.metric(awaited) > before);
    fixture.query_server(2, "select pg_wal_replay_resume()");
    let rows = waits.read_until(b'Z');
    let row = rows.iter().find(|(tag, _)| *tag == b'D').expect("it is answered");
    assert_eq!(row.1[6..], *format!("{}:1", ports[2]).as_bytes());
    // Without read your writes, both standbys serve reads.
    run(&mut waits, "set read your writes to default");
    let mut seen = BTreeSet::new();
    wait_until("both standbys to serve", WAIT_TIMEOUT, || {
        let (port, rows) = read(&mut waits, 2, false);
        assert_eq!(rows, u32::from(port == ports[2]));
        seen.insert(port);
        seen.len() == 2
    });
}

/// After a segment switch, a standby reports the position as the start of the next segment.
#[test]
fn segment_switch_does_not_block_reads_at_standbys() {
    let Some(fixture) =
        ClusterFixture::start("own writes and segments", &AUTO_ROLES[..2], READ_YOUR_WRITES)
    else {
        return;
    };
    let fixture = fixture.with_table();
    let ports = fixture.ports();
    let mut raw = log_in_to_app(fixture.address());
    wait_until_read_at(&mut raw, 1, 0, &ports);
    for round in 1..=3 {
        write(&mut raw, 1, false);
        assert!(query_reply(&mut raw, "select pg_switch_wal()::text").ends_with("SELECT 1, I"));
        let on_page = "select (pg_current_wal_insert_lsn() - '0/0') % 8192 < 48";
        let is_bare = fixture.query_server(0, on_page) == "t";
        wait_until_read_at(&mut raw, 1, round, &ports);
        if is_bare && fixture.query_server(0, on_page) == "t" {
            return; // No other WAL was written meanwhile, so the case was tested.
        }
    }
}

/// With the statistics of standbys, which only a superuser can read, and without.
#[test]
fn own_writes_are_read_after_promotion_with_lagging_standby() {
    check_promotion("postgres");
    check_promotion("plain");
}

fn check_promotion(checker: &str) {
    let more = format!(
        "cluster = {{ role = \"auto\", check-interval = \"200ms\", check-user = \"{checker}\", \
         failover-timeout = \"60s\" }}\nrouting = {{ read-your-writes = true }}\n\
         [pool.users.plain]\nsecret = ''"
    );
    let Some(fixture) = ClusterFixture::start("own writes and failover", &AUTO_ROLES, &more) else {
        return;
    };
    let mut fixture = fixture.with_table();
    fixture.query_server(0, "create role plain login");
    let ports = fixture.ports();
    let mut writer = log_in_to_app(fixture.address());
    wait_until_read_at(&mut writer, 1, 0, &ports);
    fixture.query_server(2, "select pg_wal_replay_pause()");
    write(&mut writer, 1, false);
    wait_until_read_at(&mut writer, 1, 1, &ports[..2]);
    fixture.servers[0].kill().unwrap();
    fixture.query_server(1, "select pg_promote(false)");
    // Earlier and new writes are read at the new primary.
    wait_until("a new primary", WAIT_TIMEOUT, || {
        fixture.query_server(1, "select pg_is_in_recovery()") == "f"
    });
    assert_eq!(read(&mut writer, 1, false), (ports[1].clone(), 1));
    write(&mut writer, 1, true);
    for round in 0..30 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 2));
    }
    // The lagging standby resumes on the old timeline, on which it never gets the new writes.
    fixture.query_server(2, "select pg_wal_replay_resume()");
    wait_until("the standby to replay", WAIT_TIMEOUT, || {
        fixture.query_server(2, "select count(*) from kept") == "1"
    });
    for round in 0..30 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 2));
    }
    // It follows the new primary, and serves reads again once that is detected.
    let follows = format!(
        "alter system set primary_conninfo = 'host=127.0.0.1 port={} user=postgres'",
        ports[1]
    );
    fixture.query_server(2, &follows);
    fixture.query_server(2, "select pg_reload_conf()");
    wait_until("the standby to replay", WAIT_TIMEOUT, || {
        fixture.query_server(2, "select count(*) from kept") == "2"
    });
    if checker == "plain" {
        // Without statistics, only the control file shows that it is on the new timeline.
        fixture.query_server(1, "checkpoint");
        let position = fixture.query_server(1, "select pg_current_wal_lsn()");
        let has_it = format!("select pg_last_wal_replay_lsn() >= '{position}'");
        wait_until("the standby to replay", WAIT_TIMEOUT, || {
            fixture.query_server(2, &has_it) == "t"
        });
        fixture.query_server(2, "checkpoint");
    }
    wait_until_read_at(&mut writer, 1, 2, &ports[1..]);
    let members = fixture.console("show members");
    assert!(members.contains(&format!("|{}|replica|up|", ports[2])), "{members}");
}

/// Concurrent writes and reads by several clients, with lagging standbys.
#[test]
fn own_writes_are_missed_only_if_disabled() {
    let without = "cluster = { role = \"auto\" }\nrouting = { primary-reads = false }";
    for (more, is_on) in [(READ_YOUR_WRITES, true), (without, false)] {
        let Some(fixture) = ClusterFixture::start("many own writes", &AUTO_ROLES, more) else {
            return;
        };
        let fixture = fixture.with_table();
        let ports = fixture.ports();
        let mut first = log_in_to_app(fixture.address());
        wait_until_read_at(&mut first, 0, 0, if is_on { &ports } else { &ports[1..] });
        for (standby, delay) in [(1, "30ms"), (2, "5ms")] {
            let sql = format!("alter system set recovery_min_apply_delay = '{delay}'");
            fixture.query_server(standby, &sql);
            fixture.query_server(standby, "select pg_reload_conf()");
        }
        let missed = Arc::new(AtomicU32::new(0));
        let at_standbys = Arc::new(AtomicU32::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, primary) = (fixture.address(), ports[0].clone());
        let clients: Vec<_> = (1..=4)
            .map(|client| {
                let (missed, at_standbys, is_over, primary) = (
                    Arc::clone(&missed),
                    Arc::clone(&at_standbys),
                    Arc::clone(&is_over),
                    primary.clone(),
                );
                thread::spawn(move || {
                    let mut raw = log_in_to_app(address);
                    for written in 1..=1000 {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let is_extended = written % 3 == 0;
                        write(&mut raw, client, is_extended);
                        // From time to time long enough for standbys to catch up.
                        for _ in 0..if written % 50 == 0 { 100 } else { 2 } {
                            let (port, rows) = read(&mut raw, client, is_extended);
                            if rows != written {
                                missed.fetch_add(1, Ordering::Relaxed);
                                is_over.store(!is_on, Ordering::Relaxed);
                            }
                            at_standbys.fetch_add(u32::from(port != primary), Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let (missed, at_standbys) =
            (missed.load(Ordering::Relaxed), at_standbys.load(Ordering::Relaxed));
        assert_eq!(missed == 0, is_on, "{missed} reads missed what was written");
        assert!(at_standbys > 0, "no reads at standbys");
        println!("read your writes {is_on}: {missed} missed, {at_standbys} reads at standbys");
    }
}

/// Without the privilege to read the control file, part of the health check fails.
#[test]
fn partly_refused_health_check_sends_own_reads_to_primary() {
    let more = "cluster = { role = \"auto\", check-interval = \"100ms\", check-user = \"plain\", \
                failover-timeout = \"60s\" }\nrouting = { read-your-writes = true }\n\
                [pool.users.plain]\nsecret = ''";
    let Some(fixture) = ClusterFixture::start("own writes without rights", &AUTO_ROLES, more)
    else {
        return;
    };
    let mut fixture = fixture.with_table();
    let ports = fixture.ports();
    let revoke = "create role plain login; \
                  revoke execute on function pg_control_checkpoint(), pg_control_recovery() \
                  from public";
    fixture.query_server(0, revoke);
    for standby in [1, 2] {
        let is_there = "select count(*) from pg_roles where rolname = 'plain' \
                        and not has_function_privilege(oid, 'pg_control_recovery()', 'execute')";
        wait_until("the role at the standby", WAIT_TIMEOUT, || {
            fixture.query_server(standby, is_there) == "1"
        });
    }
    let (mut writer, mut other) =
        (log_in_to_app(fixture.address()), log_in_to_app(fixture.address()));
    wait_until_read_at(&mut other, 1, 0, &ports);
    for rows in 1..=20 {
        write(&mut writer, 1, rows % 2 == 0);
        for round in 0..5 {
            assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), rows));
        }
    }
    wait_until_read_at(&mut other, 2, 0, &ports);
    // With the privilege to read statistics, the timeline of a standby is known.
    fixture.query_server(0, "grant pg_read_all_stats to plain");
    wait_until_read_at(&mut writer, 1, 20, &ports);
    fixture.query_server(0, "revoke pg_read_all_stats from plain");
    pause_replay(&fixture);
    write(&mut writer, 1, false);
    for round in 0..20 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), 21));
    }
    for standby in [1, 2] {
        fixture.query_server(standby, "select pg_wal_replay_resume()");
        wait_until("the standby to replay", WAIT_TIMEOUT, || {
            fixture.query_server(standby, "select count(*) from kept") == "21"
        });
    }
    // A partly refused health check still detects a failover.
    fixture.servers[0].kill().unwrap();
    fixture.query_server(1, "select pg_promote(false)");
    wait_until("a new primary", WAIT_TIMEOUT, || {
        fixture.query_server(1, "select pg_is_in_recovery()") == "f"
    });
    write(&mut writer, 1, false);
    for round in 0..20 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 22));
    }
}

/// If health checks fail completely, only the configured roles are known.
#[test]
fn failed_health_checks_send_own_reads_to_primary() {
    let more = "cluster = { role = \"auto\", check-interval = \"50ms\", check-user = \"plain\" }\n\
                routing = { read-your-writes = true }\n[pool.users.plain]\nsecret = ''";
    let Some(fixture) = ClusterFixture::start("own writes without answers", &FIXED_ROLES, more)
    else {
        return;
    };
    let fixture = fixture.with_table();
    let ports = fixture.ports();
    let mut first = log_in_to_app(fixture.address());
    wait_until_read_at(&mut first, 0, 0, &ports);
    fixture.query_server(0, "create role plain login");
    fixture.query_server(0, "revoke execute on function pg_current_wal_insert_lsn() from public");
    let checks = "select count(*) from pg_stat_activity where usename = 'plain'";
    wait_until("the health check", WAIT_TIMEOUT, || fixture.query_server(0, checks) == "1");
    pause_replay(&fixture);
    let mut writer = log_in_to_app(fixture.address());
    for rows in 1..=10 {
        write(&mut writer, 1, rows % 2 == 0);
        for round in 0..5 {
            assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), rows));
        }
    }
    wait_until_read_at(&mut log_in_to_app(fixture.address()), 2, 0, &ports);
}
