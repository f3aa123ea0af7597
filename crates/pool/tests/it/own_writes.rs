//! Clients that read what they wrote, before a primary with standbys that are late.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use crate::{
    cluster::{AUTO, NAMED, Stage, settings, until},
    route::{asked, client_at, run},
    support::{Raw, pooler_of},
};

const AUTOMATIC: &str = "cluster = { role = \"auto\" }\nrouting = { read-your-writes = true }";

/// Which server answers, and how many rows of a client it has.
fn rows_of(client: u32) -> String {
    format!("select current_setting('port') || ':' || count(*) from kept where client = {client}")
}

/// A server's port, and how many rows it has.
fn read(raw: &mut Raw, client: u32, is_extended: bool) -> (String, u32) {
    let sql = rows_of(client);
    let answer = if is_extended { run(raw, &sql, &[]) } else { asked(raw, &sql) };
    let value = answer.split(", ").find(|part| part.contains(':'));
    let (port, rows) = value.unwrap_or_else(|| panic!("{answer}")).split_once(':').unwrap();
    (port.to_owned(), rows.parse().unwrap())
}

fn write(raw: &mut Raw, client: u32, is_extended: bool) {
    let sql = format!("insert into kept values ({client})");
    let answer = if is_extended { run(raw, &sql, &[]) } else { asked(raw, &sql) };
    assert!(answer.ends_with("INSERT 0 1, I"), "{answer}");
}

/// Reads until every one of some servers has answered; each has to have so many rows.
fn until_read_at(raw: &mut Raw, client: u32, rows: u32, ports: &[String]) {
    let mut missing: BTreeSet<_> = ports.iter().cloned().collect();
    until("all serve", || {
        let (port, found) = read(raw, client, client.is_multiple_of(2));
        assert_eq!(found, rows, "at {port}");
        missing.remove(&port);
        missing.is_empty()
    });
}

/// Has standbys replay nothing.
fn pause(stage: &Stage) {
    for standby in 1..stage.servers.len() {
        stage.direct(standby, "select pg_wal_replay_pause()");
    }
}

impl Stage {
    fn ports(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.port().to_string()).collect()
    }

    /// With a table that every server has.
    fn with_table(self) -> Self {
        self.direct(0, "create table kept (client int)");
        for standby in 1..self.servers.len() {
            until("the table", || {
                self.direct(standby, "select count(*) from pg_class where relname = 'kept'") == "1"
            });
        }
        self
    }

    fn metric(&self, name: &str) -> u64 {
        let registry = howdah_stats::Registry::new();
        let (stop, stopped) = std::sync::mpsc::channel();
        drop(stop); // One round.
        self.pooler.control().keep_metrics(&registry, &stopped);
        let text = registry.prometheus();
        let line = text.lines().find(|line| line.starts_with(name) && line.contains("\"app\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
    }
}

#[test]
fn who_wrote_reads_it_while_standbys_do_not_replay_and_others_read_there() {
    let Some(stage) = Stage::set("own writes", &AUTO, AUTOMATIC) else { return };
    let stage = stage.with_table();
    let ports = stage.ports();
    let (mut writer, mut other) = (client_at(stage.address()), client_at(stage.address()));
    until_read_at(&mut other, 0, 0, &ports);
    pause(&stage);
    for (rows, is_extended) in [(1, false), (2, true)] {
        write(&mut writer, 7, is_extended);
        for round in 0..60 {
            let found = read(&mut writer, 7, round % 2 == 0);
            assert_eq!(found, (ports[0].clone(), rows), "{round}");
        }
    }
    assert!(stage.metric("howdah_pool_reads_redirected_total") >= 120);
    // Who wrote nothing reads everywhere, and finds what there is.
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        let (port, rows) = read(&mut other, 7, false);
        assert_eq!(rows, if port == ports[0] { 2 } else { 0 });
        seen.insert(port);
    }
    assert_eq!(seen.len(), 3);
    // A transaction that wrote, in several requests; and one that only said that it might.
    for sql in ["begin", "insert into kept values (8)", "select 1", "commit"] {
        asked(&mut other, sql);
    }
    assert_eq!(read(&mut other, 8, false), (ports[0].clone(), 1));

    // One replays again, and takes part again; the other does not.
    stage.direct(1, "select pg_wal_replay_resume()");
    until_read_at(&mut writer, 7, 2, &ports[..2]);
    for _ in 0..20 {
        assert_ne!(read(&mut writer, 7, true).0, ports[2]);
    }
    stage.direct(2, "select pg_wal_replay_resume()");
    until_read_at(&mut writer, 7, 2, &ports);
    let kept = stage.metric("howdah_pool_reads_redirected_total");
    until_read_at(&mut writer, 7, 2, &ports);
    assert_eq!(stage.metric("howdah_pool_reads_redirected_total"), kept);
}

#[test]
fn explicit_roles_wait_or_go_to_the_primary() {
    let more = "cluster = { failover-timeout = \"1s\" }";
    let Some(stage) = Stage::set("own writes by role", &AUTO, more) else { return };
    let mut stage = stage.with_table();
    let ports = stage.ports();
    let says = |raw: &mut Raw, sql: &str| assert!(asked(raw, sql).ends_with(", I"), "{sql}");
    let mut raw = client_at(stage.address());
    until_read_at(&mut raw, 1, 0, &ports);
    assert_eq!(asked(&mut raw, "show read your writes"), "off, SELECT 1, I");
    says(&mut raw, "set read your writes to on");
    pause(&stage);
    says(&mut raw, "set server role to 'primary'");
    write(&mut raw, 1, false);
    for role in ["any", "prefer-replica"] {
        says(&mut raw, &format!("set server role to '{role}'"));
        for round in 0..20 {
            assert_eq!(read(&mut raw, 1, round % 2 == 0), (ports[0].clone(), 1), "{role}");
        }
    }
    // A standby and nothing else: it waits for one that has it.
    says(&mut raw, "set server role to 'replica'");
    raw.query(&rows_of(1));
    let told = raw.until(b'E').pop().unwrap().1;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("no standby has replayed in time what this session wrote"), "{told}");
    let patient = settings(&stage.servers, &AUTO, "cluster = { failover-timeout = \"60s\" }");
    stage.pooler = pooler_of(&patient);
    let mut waits = client_at(stage.address());
    says(&mut waits, "set read your writes to on");
    says(&mut waits, "set server role to 'primary'");
    write(&mut waits, 2, false);
    says(&mut waits, "set server role to 'replica'");
    let awaited = "howdah_pool_reads_waited_total";
    let before = stage.metric(awaited);
    waits.query(&rows_of(2));
    until("it waits", || stage.metric(awaited) > before);
    stage.direct(2, "select pg_wal_replay_resume()");
    let rows = waits.until(b'Z');
    let row = rows.iter().find(|(tag, _)| *tag == b'D').expect("it is answered");
    assert_eq!(row.1[6..], *format!("{}:1", ports[2]).as_bytes());
    // Who does not mind reads what there is.
    says(&mut waits, "set read your writes to default");
    let mut seen = BTreeSet::new();
    until("both serve", || {
        let (port, rows) = read(&mut waits, 2, false);
        assert_eq!(rows, u32::from(port == ports[2]));
        seen.insert(port);
        seen.len() == 2
    });
}

/// The end of a segment is a place that a standby reaches by another name.
#[test]
fn a_segment_that_is_switched_keeps_nobody_from_standbys() {
    let Some(stage) = Stage::set("own writes and segments", &AUTO[..2], AUTOMATIC) else { return };
    let stage = stage.with_table();
    let ports = stage.ports();
    let mut raw = client_at(stage.address());
    until_read_at(&mut raw, 1, 0, &ports);
    for round in 1..=3 {
        write(&mut raw, 1, false);
        assert!(asked(&mut raw, "select pg_switch_wal()::text").ends_with("SELECT 1, I"));
        let on_page = "select (pg_current_wal_insert_lsn() - '0/0') % 8192 < 48";
        let is_bare = stage.direct(0, on_page) == "t";
        until_read_at(&mut raw, 1, round, &ports);
        if is_bare && stage.direct(0, on_page) == "t" {
            return; // Nothing was written meanwhile that would have helped.
        }
    }
}

/// By the statistics of standbys, which a superuser sees, and without.
#[test]
fn a_standby_is_promoted_and_another_is_late() {
    promoted("postgres");
    promoted("plain");
}

fn promoted(checker: &str) {
    let more = format!(
        "cluster = {{ role = \"auto\", check-interval = \"200ms\", check-user = \"{checker}\", \
         failover-timeout = \"60s\" }}\nrouting = {{ read-your-writes = true }}\n\
         [pool.users.plain]\nsecret = ''"
    );
    let Some(stage) = Stage::set("own writes and failover", &AUTO, &more) else { return };
    let mut stage = stage.with_table();
    stage.direct(0, "create role plain login");
    let ports = stage.ports();
    let mut writer = client_at(stage.address());
    until_read_at(&mut writer, 1, 0, &ports);
    stage.direct(2, "select pg_wal_replay_pause()");
    write(&mut writer, 1, false);
    until_read_at(&mut writer, 1, 1, &ports[..2]);
    stage.servers[0].kill().unwrap();
    stage.direct(1, "select pg_promote(false)");
    // What it wrote before is there, and what it writes now.
    until("a new primary", || stage.direct(1, "select pg_is_in_recovery()") == "f");
    assert_eq!(read(&mut writer, 1, false), (ports[1].clone(), 1));
    write(&mut writer, 1, true);
    for round in 0..30 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 2));
    }
    // The late one goes on, on the old timeline still: however far it gets there, it has not what was written.
    stage.direct(2, "select pg_wal_replay_resume()");
    until("it has replayed", || stage.direct(2, "select count(*) from kept") == "1");
    for round in 0..30 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 2));
    }
    // It follows the new primary, and takes part again as soon as it is known to.
    let follows = format!(
        "alter system set primary_conninfo = 'host=127.0.0.1 port={} user=postgres'",
        ports[1]
    );
    stage.direct(2, &follows);
    stage.direct(2, "select pg_reload_conf()");
    until("it has replayed", || stage.direct(2, "select count(*) from kept") == "2");
    if checker == "plain" {
        // Nobody but the control file tells it that it is on the new timeline.
        stage.direct(1, "checkpoint");
        let position = stage.direct(1, "select pg_current_wal_lsn()");
        let has_it = format!("select pg_last_wal_replay_lsn() >= '{position}'");
        until("it has replayed", || stage.direct(2, &has_it) == "t");
        stage.direct(2, "checkpoint");
    }
    until_read_at(&mut writer, 1, 2, &ports[1..]);
    let members = stage.console("show members");
    assert!(members.contains(&format!("|{}|replica|up|", ports[2])), "{members}");
}

/// Writes and reads at once, by several clients of standbys that replay late.
#[test]
fn thousands_of_own_writes_are_found_with_it_and_missed_without() {
    let without = "cluster = { role = \"auto\" }\nrouting = { primary-reads = false }";
    for (more, is_on) in [(AUTOMATIC, true), (without, false)] {
        let Some(stage) = Stage::set("many own writes", &AUTO, more) else { return };
        let stage = stage.with_table();
        let ports = stage.ports();
        let mut first = client_at(stage.address());
        until_read_at(&mut first, 0, 0, if is_on { &ports } else { &ports[1..] });
        for (standby, delay) in [(1, "30ms"), (2, "5ms")] {
            let sql = format!("alter system set recovery_min_apply_delay = '{delay}'");
            stage.direct(standby, &sql);
            stage.direct(standby, "select pg_reload_conf()");
        }
        let missed = Arc::new(AtomicU32::new(0));
        let at_standbys = Arc::new(AtomicU32::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, primary) = (stage.address(), ports[0].clone());
        let clients: Vec<_> = (1..=4)
            .map(|client| {
                let (missed, at_standbys, is_over, primary) = (
                    Arc::clone(&missed),
                    Arc::clone(&at_standbys),
                    Arc::clone(&is_over),
                    primary.clone(),
                );
                thread::spawn(move || {
                    let mut raw = client_at(address);
                    for written in 1..=1000 {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let is_extended = written % 3 == 0;
                        write(&mut raw, client, is_extended);
                        // Every now and then for long enough that standbys get on.
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
        assert!(at_standbys > 0, "nobody read at a standby");
        println!("read your writes {is_on}: {missed} missed, {at_standbys} reads at standbys");
    }
}

/// The right to read the control file can be taken away, and that to know where WAL is inserted.
#[test]
fn who_may_not_ask_how_far_servers_are_reads_at_the_primary() {
    let more = "cluster = { role = \"auto\", check-interval = \"100ms\", check-user = \"plain\", \
                failover-timeout = \"60s\" }\nrouting = { read-your-writes = true }\n\
                [pool.users.plain]\nsecret = ''";
    let Some(stage) = Stage::set("own writes without rights", &AUTO, more) else { return };
    let mut stage = stage.with_table();
    let ports = stage.ports();
    let revoke = "create role plain login; \
                  revoke execute on function pg_control_checkpoint(), pg_control_recovery() \
                  from public";
    stage.direct(0, revoke);
    for standby in [1, 2] {
        let is_there = "select count(*) from pg_roles where rolname = 'plain' \
                        and not has_function_privilege(oid, 'pg_control_recovery()', 'execute')";
        until("the role", || stage.direct(standby, is_there) == "1");
    }
    let (mut writer, mut other) = (client_at(stage.address()), client_at(stage.address()));
    until_read_at(&mut other, 1, 0, &ports);
    for rows in 1..=20 {
        write(&mut writer, 1, rows % 2 == 0);
        for round in 0..5 {
            assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), rows));
        }
    }
    until_read_at(&mut other, 2, 0, &ports);
    // All else is known as ever: by whose timeline a standby goes, it says to who may see statistics.
    stage.direct(0, "grant pg_read_all_stats to plain");
    until_read_at(&mut writer, 1, 20, &ports);
    stage.direct(0, "revoke pg_read_all_stats from plain");
    pause(&stage);
    write(&mut writer, 1, false);
    for round in 0..20 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), 21));
    }
    for standby in [1, 2] {
        stage.direct(standby, "select pg_wal_replay_resume()");
        until("it has replayed", || stage.direct(standby, "select count(*) from kept") == "21");
    }
    // A failover is seen by a question that is refused in part, too.
    stage.servers[0].kill().unwrap();
    stage.direct(1, "select pg_promote(false)");
    until("a new primary", || stage.direct(1, "select pg_is_in_recovery()") == "f");
    write(&mut writer, 1, false);
    for round in 0..20 {
        assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[1].clone(), 22));
    }
}

/// Nothing at all may be asked: then who is what stands in the settings.
#[test]
fn where_no_question_is_answered_own_writes_are_read_at_the_primary() {
    let more = "cluster = { role = \"auto\", check-interval = \"50ms\", check-user = \"plain\" }\n\
                routing = { read-your-writes = true }\n[pool.users.plain]\nsecret = ''";
    let Some(stage) = Stage::set("own writes without answers", &NAMED, more) else { return };
    let stage = stage.with_table();
    let ports = stage.ports();
    let mut first = client_at(stage.address());
    until_read_at(&mut first, 0, 0, &ports);
    stage.direct(0, "create role plain login");
    stage.direct(0, "revoke execute on function pg_current_wal_insert_lsn() from public");
    let asks = "select count(*) from pg_stat_activity where usename = 'plain'";
    until("it is asked", || stage.direct(0, asks) == "1");
    pause(&stage);
    let mut writer = client_at(stage.address());
    for rows in 1..=10 {
        write(&mut writer, 1, rows % 2 == 0);
        for round in 0..5 {
            assert_eq!(read(&mut writer, 1, round % 2 == 0), (ports[0].clone(), rows));
        }
    }
    until_read_at(&mut client_at(stage.address()), 2, 0, &ports);
}
