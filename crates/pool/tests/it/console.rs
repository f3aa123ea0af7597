//! The console of a running pooler: tables and commands.

use std::{sync::mpsc, thread};

use howdah_lab::wait_until;
use howdah_stats::Registry;

use crate::{
    support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout},
    tables::TABLES,
};

/// A pooler with access to its console.
fn fixture(test: &str) -> Option<PoolFixture> {
    PoolFixture::start(test, "sizes = { pool = 2 }\nadmin-users = [\"postgres\"]")
}

fn console_command(fixture: &PoolFixture, command: &str) -> String {
    checked_stdout(fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]))
}

/// The value of a column in the first row that is not about the console itself.
fn cell(fixture: &PoolFixture, command: &str, column: &str) -> String {
    let table =
        checked_stdout(fixture.run_program("psql", &["-XAq", "-d", "pgbouncer", "-c", command]));
    let mut lines = table.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let at = lines.next().unwrap().iter().position(|name| *name == column).unwrap();
    lines.find(|row| !row.contains(&"pgbouncer")).unwrap()[at].to_owned()
}

#[test]
fn every_table_is_shown_with_counts() {
    let Some(fixture) = fixture("tables") else { return };
    checked_stdout(fixture.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    checked_stdout(
        fixture.run_program("pgbench", &["-n", "-S", "-c", "4", "-t", "25", "-M", "prepared"]),
    );
    let mut held = RawClient::log_in(fixture.address());
    held.send_query("begin");
    held.read_until(b'Z');
    for name in TABLES {
        console_command(&fixture, &format!("show {name}"));
    }
    let number =
        |command: &str, column: &str| cell(&fixture, command, column).parse::<u64>().unwrap();
    assert!(number("show stats", "total_xact_count") >= 100);
    assert_eq!(number("show stats", "total_bind_count"), 100);
    assert_eq!(number("show stats", "total_client_parse_count"), 4);
    assert!(number("show stats_totals", "bytes_sent") > 100 * 50);
    assert!(number("show stats", "total_query_time") > 0);
    assert_eq!(number("show pools", "cl_active"), 1);
    assert_eq!(number("show pools", "sv_active"), 1);
    assert_eq!(cell(&fixture, "show clients", "state"), "active");
    let link = cell(&fixture, "show clients", "link");
    let servers = console_command(&fixture, "show servers");
    assert!(servers.lines().any(|line| line.contains(&link) && line.contains("|active|")));
    let pid = number("show clients", "remote_pid");
    let running = format!("select state from pg_stat_activity where pid = {pid}");
    assert_eq!(fixture.query_server(&running), "idle in transaction");
    let address = held.0.local_addr().unwrap();
    assert_eq!(number("show clients", "port"), u64::from(address.port()));
    assert!(console_command(&fixture, "show config").contains("default_pool_size|2|20|yes"));
    assert!(console_command(&fixture, "show lists").contains("used_clients|2"));
    assert_eq!(cell(&fixture, "show state", "value"), "yes");
}

#[test]
fn metrics_are_exported_to_prometheus() {
    let Some(fixture) = fixture("metrics") else { return };
    fixture.psql(&["select 1"]);
    for _ in 0..2 {
        let refused = fixture
            .run_program("psql", &["-XAtq", "-d", "howdah", "-U", "nobody", "-c", "show state"]);
        assert!(!refused.status.success());
    }
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel();
    drop(stop); // Export once.
    fixture.pooler.control().export_metrics(&registry, &stopped);
    let text = registry.prometheus();
    let pool = "database=\"postgres\",user=\"postgres\"";
    for line in [
        format!("howdah_pool_servers{{{pool},state=\"idle\"}} 1\n"),
        format!("howdah_pool_queries_total{{{pool}}} 1\n"),
        format!("howdah_pool_logins_total{{{pool}}} 1\n"),
        format!("howdah_pool_query_seconds_count{{{pool}}} 1\n"),
        "howdah_pool_paused{database=\"postgres\"} 0\n".to_owned(),
        "howdah_pool_logins_refused_total{reason=\"user\"} 2\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn console_is_restricted_to_admins() {
    let Some(fixture) = fixture("operators") else { return };
    let unknown_user = fixture
        .run_program("psql", &["-XAtq", "-U", "nobody", "-d", "howdah", "-c", "show version"]);
    assert!(!unknown_user.status.success());
    let wrong = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "drop table x"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("invalid command"));
    let missing = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "kill_client 4711"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("client not found"));
}

/// Waits until a column of a table's first row has a value.
fn wait_until_shown(fixture: &PoolFixture, command: &str, column: &str, value: &str) {
    let what = format!("{command}: {column} = {value}");
    wait_until(&what, WAIT_TIMEOUT, || cell(fixture, command, column) == value);
}

#[test]
fn pause_waits_for_transactions_and_holds_clients() {
    let Some(fixture) = fixture("pause") else { return };
    let mut inside = RawClient::log_in(fixture.address());
    inside.send_query("begin");
    inside.read_until(b'Z');
    thread::scope(|scope| {
        let paused = scope.spawn(|| console_command(&fixture, "pause postgres"));
        wait_until_shown(&fixture, "show databases", "name", "postgres");
        wait_until_shown(&fixture, "show databases", "paused", "1");
        let waiting = scope.spawn(|| fixture.psql(&["select 1"]));
        wait_until_shown(&fixture, "show pools", "cl_waiting", "1");
        assert!(!paused.is_finished(), "a transaction is open");
        inside.send_query("commit");
        inside.read_until(b'Z');
        paused.join().unwrap();
        let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
        assert_eq!(fixture.query_server(servers), "1", "only the one that runs this query");
        assert!(!waiting.is_finished());
        console_command(&fixture, "resume postgres");
        assert_eq!(waiting.join().unwrap(), "1");
    });
    let again = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "resume"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("pooler is not paused"));
}

#[test]
fn pause_of_user_does_not_affect_others() {
    let more = "admin-users = [\"postgres\"]\n[pool.users.ann]\nsecret = \"\"";
    let Some(fixture) = PoolFixture::start("pause a user", more) else { return };
    fixture.query_server("create role ann login");
    let as_ann = || {
        checked_stdout(
            fixture.run_program("psql", &["-XAtq", "-U", "ann", "-c", "select current_user"]),
        )
    };
    assert_eq!(as_ann(), "ann");
    console_command(&fixture, "pause postgres, ann");
    assert_eq!(console_command(&fixture, "show paused"), "postgres|ann");
    assert_eq!(cell(&fixture, "show databases", "paused"), "0");
    assert_eq!(
        fixture.query_server("select count(*) from pg_stat_activity where usename = 'ann'"),
        "0"
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(as_ann);
        wait_until_shown(&fixture, "show pools", "cl_waiting", "1");
        assert_eq!(fixture.psql(&["select current_user"]), "postgres");
        assert!(!waiting.is_finished());
        console_command(&fixture, "resume postgres,ann");
        assert_eq!(waiting.join().unwrap(), "ann");
    });
    assert_eq!(console_command(&fixture, "show paused"), "");
    let refused = |command: &str| {
        let answer = fixture.run_program("psql", &["-XAtq", "-d", "pgcat", "-c", command]);
        String::from_utf8_lossy(&answer.stderr).into_owned()
    };
    assert!(refused("resume postgres,ann").contains("ann is not paused"));
    console_command(&fixture, "pause");
    console_command(&fixture, "pause postgres,ann");
    assert!(refused("resume postgres,ann").contains("all users of postgres are paused"));
    assert!(console_command(&fixture, "show paused").lines().any(|line| line == "postgres|"));
    console_command(&fixture, "resume postgres");
    assert_eq!(as_ann(), "ann");
}

#[test]
fn reconnect_disable_and_kill_work() {
    let Some(fixture) = fixture("reconnect") else { return };
    let pid = || fixture.psql(&["select pg_backend_pid()"]);
    let first = pid();
    assert_eq!(pid(), first);
    console_command(&fixture, "reconnect");
    console_command(&fixture, "wait_close postgres");
    assert_ne!(pid(), first);

    let mut client = RawClient::log_in(fixture.address());
    client.send_query("begin");
    client.read_until(b'Z');
    console_command(&fixture, &format!("kill_client {}", cell(&fixture, "show clients", "id")));
    let received = client.read_until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&received, b"C57P01\0").is_some());
    assert!(client.is_disconnected());

    console_command(&fixture, "disable postgres");
    let refused = fixture.run_program("psql", &["-XAtqc", "select 1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is disabled"));
    console_command(&fixture, "enable postgres");
    let mut client = RawClient::log_in(fixture.address());
    console_command(&fixture, "kill postgres");
    assert!(client.is_disconnected());
    console_command(&fixture, "resume postgres");
    fixture.psql(&["select 1"]);
}

#[test]
fn kill_client_ends_console_connections() {
    let Some(fixture) = fixture("kill console") else { return };
    let mut console = RawClient::connect(fixture.address());
    console.send_startup_for_database("pgbouncer", "application_name\0victim\0");
    console.read_until(b'Z');
    let args = ["-XAq", "-d", "pgbouncer", "-c", "show clients"];
    let table = checked_stdout(fixture.run_program("psql", &args));
    let mut lines = table.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let at = lines.next().unwrap().iter().position(|name| *name == "id").unwrap();
    let id = lines.find(|row| row.contains(&"victim")).unwrap()[at].to_owned();
    console_command(&fixture, &format!("kill_client {id}"));
    let received = console.read_until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&received, b"SFATAL\0").is_some());
    assert!(memchr::memmem::find(&received, b"C57P01\0").is_some());
    assert!(console.is_disconnected());
    wait_until("the connection is not listed any more", WAIT_TIMEOUT, || {
        !console_command(&fixture, "show clients").contains("victim")
    });
}

#[test]
fn shutdown_waits_for_clients() {
    let Some(fixture) = fixture("shutdown") else { return };
    let client = RawClient::log_in(fixture.address());
    console_command(&fixture, "shutdown wait_for_clients");
    let end = fixture.pooler.shutdown_waiter().unwrap();
    assert!(!fixture.pooler.is_finished());
    drop(client);
    end.wait();
    wait_until("the end of the pooler", WAIT_TIMEOUT, || fixture.pooler.is_finished());
}
