//! The console of a pooler that works: what it shows, and what comes of what it is told.

use std::{sync::mpsc, thread};

use howdah_stats::Registry;

use crate::{
    support::{Raw, Stage, said},
    tables::TABLES,
};

/// A pooler whose console may be used.
fn stage(test: &str) -> Option<Stage> {
    Stage::set(test, "sizes = { pool = 2 }\nadmin-users = [\"postgres\"]")
}

fn console(stage: &Stage, command: &str) -> String {
    said(stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]))
}

/// The value of a column in the first row.
fn cell(stage: &Stage, command: &str, column: &str) -> String {
    let table = said(stage.run("psql", &["-XAq", "-d", "pgbouncer", "-c", command]));
    let mut lines = table.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let at = lines.next().unwrap().iter().position(|name| *name == column).unwrap();
    lines.next().unwrap()[at].to_owned()
}

#[test]
fn every_table_is_shown_and_counts_what_was_done() {
    let Some(stage) = stage("tables") else { return };
    said(stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    said(stage.run("pgbench", &["-n", "-S", "-c", "4", "-t", "25", "-M", "prepared"]));
    let mut held = Raw::log_in(stage.address());
    held.query("begin");
    held.until(b'Z');
    for name in TABLES {
        console(&stage, &format!("show {name}"));
    }
    let number =
        |command: &str, column: &str| cell(&stage, command, column).parse::<u64>().unwrap();
    assert!(number("show stats", "total_xact_count") >= 100);
    assert_eq!(number("show stats", "total_bind_count"), 100);
    assert_eq!(number("show stats", "total_client_parse_count"), 4);
    assert!(number("show stats_totals", "bytes_sent") > 100 * 50);
    assert!(number("show stats", "total_query_time") > 0);
    assert_eq!(number("show pools", "cl_active"), 1);
    assert_eq!(number("show pools", "sv_active"), 1);
    assert_eq!(cell(&stage, "show clients", "state"), "active");
    let link = cell(&stage, "show clients", "link");
    let servers = console(&stage, "show servers");
    assert!(servers.lines().any(|line| line.contains(&link) && line.contains("|active|")));
    let pid = number("show clients", "remote_pid");
    let running = format!("select state from pg_stat_activity where pid = {pid}");
    assert_eq!(stage.direct(&running), "idle in transaction");
    let address = held.0.local_addr().unwrap();
    assert_eq!(number("show clients", "port"), u64::from(address.port()));
    assert!(console(&stage, "show config").contains("default_pool_size|2|20|yes"));
    assert!(console(&stage, "show lists").contains("used_clients|1"));
    assert_eq!(cell(&stage, "show state", "value"), "yes");
}

#[test]
fn prometheus_is_shown_what_was_counted() {
    let Some(stage) = stage("metrics") else { return };
    stage.psql(&["select 1"]);
    for _ in 0..2 {
        let refused =
            stage.run("psql", &["-XAtq", "-d", "howdah", "-U", "nobody", "-c", "show state"]);
        assert!(!refused.status.success());
    }
    let registry = Registry::new();
    let (stop, stopped) = mpsc::channel();
    drop(stop); // One round.
    stage.pooler.control().keep_metrics(&registry, &stopped);
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
fn the_console_is_for_operators() {
    let Some(stage) = stage("operators") else { return };
    let stranger =
        stage.run("psql", &["-XAtq", "-U", "nobody", "-d", "howdah", "-c", "show version"]);
    assert!(!stranger.status.success());
    let wrong = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "drop table x"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("invalid command"));
    let missing = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "kill_client 4711"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no such client"));
}

/// Waits until something is shown.
fn until_shown(stage: &Stage, command: &str, column: &str, value: &str) {
    while cell(stage, command, column) != value {}
}

#[test]
fn a_pause_waits_for_transactions_and_holds_clients() {
    let Some(stage) = stage("pause") else { return };
    let mut inside = Raw::log_in(stage.address());
    inside.query("begin");
    inside.until(b'Z');
    thread::scope(|scope| {
        let paused = scope.spawn(|| console(&stage, "pause postgres"));
        until_shown(&stage, "show databases", "name", "postgres");
        until_shown(&stage, "show databases", "paused", "1");
        let waiting = scope.spawn(|| stage.psql(&["select 1"]));
        until_shown(&stage, "show pools", "cl_waiting", "1");
        assert!(!paused.is_finished(), "a transaction is open");
        inside.query("commit");
        inside.until(b'Z');
        paused.join().unwrap();
        let servers = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
        assert_eq!(stage.direct(servers), "1", "only this one");
        assert!(!waiting.is_finished());
        console(&stage, "resume postgres");
        assert_eq!(waiting.join().unwrap(), "1");
    });
    let again = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "resume"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing is paused"));
}

#[test]
fn one_user_is_paused_and_others_go_on() {
    let more = "admin-users = [\"postgres\"]\n[pool.users.ann]\nsecret = \"\"";
    let Some(stage) = Stage::set("pause a user", more) else { return };
    stage.direct("create role ann login");
    let as_ann = || said(stage.run("psql", &["-XAtq", "-U", "ann", "-c", "select current_user"]));
    assert_eq!(as_ann(), "ann");
    console(&stage, "pause postgres, ann");
    assert_eq!(console(&stage, "show paused"), "postgres|ann");
    assert_eq!(cell(&stage, "show databases", "paused"), "0");
    assert_eq!(stage.direct("select count(*) from pg_stat_activity where usename = 'ann'"), "0");
    thread::scope(|scope| {
        let waiting = scope.spawn(as_ann);
        until_shown(&stage, "show pools", "cl_waiting", "1");
        assert_eq!(stage.psql(&["select current_user"]), "postgres");
        assert!(!waiting.is_finished());
        console(&stage, "resume postgres,ann");
        assert_eq!(waiting.join().unwrap(), "ann");
    });
    assert_eq!(console(&stage, "show paused"), "");
    let refused = |command: &str| {
        let answer = stage.run("psql", &["-XAtq", "-d", "pgcat", "-c", command]);
        String::from_utf8_lossy(&answer.stderr).into_owned()
    };
    assert!(refused("resume postgres,ann").contains("ann is not paused"));
    console(&stage, "pause");
    console(&stage, "pause postgres,ann");
    assert!(refused("resume postgres,ann").contains("all users of postgres are paused"));
    assert!(console(&stage, "show paused").lines().any(|line| line == "postgres|"));
    console(&stage, "resume postgres");
    assert_eq!(as_ann(), "ann");
}

#[test]
fn servers_are_replaced_and_clients_ended() {
    let Some(stage) = stage("reconnect") else { return };
    let pid = || stage.psql(&["select pg_backend_pid()"]);
    let first = pid();
    assert_eq!(pid(), first);
    console(&stage, "reconnect");
    console(&stage, "wait_close postgres");
    assert_ne!(pid(), first);

    let mut client = Raw::log_in(stage.address());
    client.query("begin");
    client.until(b'Z');
    console(&stage, &format!("kill_client {}", cell(&stage, "show clients", "id")));
    let told = client.until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&told, b"C57P01\0").is_some());
    assert!(client.is_hung_up_on());

    console(&stage, "disable postgres");
    let refused = stage.run("psql", &["-XAtqc", "select 1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is disabled"));
    console(&stage, "enable postgres");
    let mut client = Raw::log_in(stage.address());
    console(&stage, "kill postgres");
    assert!(client.is_hung_up_on());
    console(&stage, "resume postgres");
    stage.psql(&["select 1"]);
}

#[test]
fn a_shutdown_ends_the_pooler_when_clients_have_left() {
    let Some(stage) = stage("shutdown") else { return };
    let client = Raw::log_in(stage.address());
    console(&stage, "shutdown wait_for_clients");
    let end = stage.pooler.end().unwrap();
    assert!(!stage.pooler.is_over());
    drop(client);
    end.wait();
    while !stage.pooler.is_over() {
        thread::yield_now();
    }
}
