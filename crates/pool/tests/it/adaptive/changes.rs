//! Pinned clients when something else changes: the settings, the server, or their own connection.

use std::{fs, path::PathBuf};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use super::{client, run, start, wait_for_pins};
use crate::support::{PoolFixture, PoolerSettings, WAIT_TIMEOUT};

/// A pooler with a configuration file, whose pool has two servers.
struct ModeFixture {
    pool: PoolFixture,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

const MORE: &str = "sizes = { pool = 2 }\nadmin-users = [\"postgres\"]";

impl ModeFixture {
    fn start(test: &str, mode: &str) -> Option<Self> {
        let server = skip_without_postgres(test, Cluster::builder().start())?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        let settings = PoolerSettings { mode, more: MORE, ..PoolerSettings::default() };
        fs::write(&file, settings.to_toml(&server)).unwrap();
        let config = Config::read(&file).unwrap().config;
        let origin = ConfigOrigin { path: file.clone(), workers: None };
        let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
        Some(Self { pool: PoolFixture { server, pooler }, file, _folder: folder })
    }

    fn reload(&self, mode: &str) {
        let settings = PoolerSettings { mode, more: MORE, ..PoolerSettings::default() };
        fs::write(&self.file, settings.to_toml(&self.pool.server)).unwrap();
        self.pool.pooler.control().reload().unwrap();
    }
}

/// The text of a column in the first row of a console table whose first cell is `postgres`.
fn cell(console: &mut Client, command: &str, column: &str) -> String {
    let tables = console.query(command).unwrap();
    let column = tables[0].column(column).unwrap();
    let row = tables[0].rows.iter().find(|row| row.bytes(0) == Some(b"postgres")).unwrap();
    row.text(column).unwrap().into_owned()
}

/// The mode is that of the pool in which a client has started, also after a reload.
#[test]
fn reload_of_the_mode_applies_to_new_clients_only() {
    let Some(fixture) = ModeFixture::start("pinmode", "adaptive") else { return };
    let mut console = client(&fixture.pool, "howdah");
    let mut pinned = client(&fixture.pool, "postgres");
    run(&mut pinned, "create temp table x as select 5 as a");
    run(&mut pinned, "set work_mem = '7MB'");
    wait_for_pins(&mut console, |list| !list.is_empty());
    fixture.reload("transaction");
    assert_eq!(run(&mut pinned, "table x"), "5");
    run(&mut pinned, "drop table x");
    wait_for_pins(&mut console, str::is_empty);
    let mut shared = client(&fixture.pool, "postgres");
    assert_eq!(run(&mut shared, "show work_mem"), "4MB");
    run(&mut shared, "create temp table y ()");
    assert_eq!(run(&mut pinned, "show work_mem"), "7MB");
    run(&mut pinned, "create temp table x as select 6 as a");
    let list = wait_for_pins(&mut console, |list| !list.is_empty());
    assert!(list.contains("table x"), "{list}");

    fixture.reload("adaptive");
    assert_eq!(run(&mut pinned, "table x"), "6");
    run(&mut pinned, "discard all");
    wait_for_pins(&mut console, str::is_empty);
    // The client in transaction mode is not pinned, and its table is gone.
    assert_eq!(run(&mut shared, "select to_regclass('pg_temp.y')"), "null");
    let mut new = client(&fixture.pool, "postgres");
    run(&mut new, "create temp table z ()");
    assert!(wait_for_pins(&mut console, |list| !list.is_empty()).contains("table z"));
}

#[test]
fn pinned_client_is_killed_with_its_state() {
    let Some(fixture) = start("pinkill", 15, "") else { return };
    let mut console = client(&fixture, "howdah");
    for command in ["KILL_CLIENT", "KILL"] {
        let mut pinned = client(&fixture, "postgres");
        run(&mut pinned, "create temp table x ()");
        run(&mut pinned, "load 'auto_explain'");
        wait_for_pins(&mut console, |list| list.contains("LOAD"));
        if command == "KILL" {
            assert_eq!(run(&mut console, "kill postgres"), "");
        } else {
            let id = cell(&mut console, "show pinned", "id");
            assert_eq!(run(&mut console, &format!("kill_client {id}")), "");
        }
        let refused = run(&mut pinned, "select 1");
        assert!(refused.contains("administrator"), "{command}: {refused}");
        assert_eq!(wait_for_pins(&mut console, str::is_empty), "");
        run(&mut console, "resume postgres");
        let mut next = client(&fixture, "postgres");
        assert_eq!(run(&mut next, "select to_regclass('pg_temp.x')"), "null");
        let unknown = run(&mut next, "show auto_explain.log_nested_statements");
        assert!(unknown.contains("unrecognized configuration parameter"), "{unknown}");
    }
}

/// The client is disconnected, so it cannot miss that its state is lost.
#[test]
fn pinned_client_is_disconnected_when_its_server_is_lost() {
    let Some(fixture) = start("pinlost", 15, "") else { return };
    let mut console = client(&fixture, "howdah");
    let mut pinned = client(&fixture, "postgres");
    run(&mut pinned, "create temp table x ()");
    let backend = run(&mut pinned, "select pg_backend_pid()");
    wait_for_pins(&mut console, |list| !list.is_empty());
    fixture.query_server(&format!("select pg_terminate_backend({backend})"));
    assert_eq!(wait_for_pins(&mut console, str::is_empty), "");
    let refused = run(&mut pinned, "select count(*) from x");
    assert!(refused.contains("closed the connection unexpectedly"), "{refused}");
    assert_ne!(run(&mut pinned, "select 1"), "1");
    let mut again = client(&fixture, "postgres");
    assert_ne!(run(&mut again, "select pg_backend_pid()"), backend);
    assert_eq!(run(&mut again, "select to_regclass('pg_temp.x')"), "null");
}

#[test]
fn time_limit_of_pinned_client_waits_for_its_transaction() {
    let Some(fixture) = start("pintime", 15, "pinned-time = \"300ms\"") else { return };
    let mut pinned = client(&fixture, "postgres");
    run(&mut pinned, "create temp table x ()");
    run(&mut pinned, "begin");
    for _ in 0..3 {
        assert_eq!(run(&mut pinned, "select count(*) from x, pg_sleep(0.3)"), "0");
    }
    assert_eq!(run(&mut pinned, "commit"), "");
    let mut refused = String::new();
    wait_until("the client is disconnected", WAIT_TIMEOUT, || {
        refused = run(&mut pinned, "select 1");
        refused != "1"
    });
    assert!(refused.contains("temporary: table x") && refused.contains("pinned-time"), "{refused}");
}

#[test]
fn pause_waits_until_no_client_is_pinned() {
    let Some(fixture) = start("pinpause", 15, "") else { return };
    let mut console = client(&fixture, "howdah");
    let mut pinned = client(&fixture, "postgres");
    run(&mut pinned, "create temp table x ()");
    wait_for_pins(&mut console, |list| !list.is_empty());
    let mut pausing = client(&fixture, "howdah");
    let paused = std::thread::spawn(move || run(&mut pausing, "pause postgres"));
    wait_until("the database is paused", WAIT_TIMEOUT, || {
        cell(&mut console, "show databases", "paused") == "1"
    });
    assert_eq!(run(&mut pinned, "select count(*) from x"), "0");
    assert!(!paused.is_finished());
    run(&mut pinned, "drop table x");
    assert_eq!(paused.join().unwrap(), "");
}
