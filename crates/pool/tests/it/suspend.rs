//! SUSPEND and RESUME at the console.

use std::{thread, time::Duration};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, start_pooler_with};

/// A pooler with two workers, console access, and these timeouts.
fn fixture(test: &str, timeouts: &str) -> Option<PoolFixture> {
    let server = Cluster::builder().setting("max_connections", "60").start();
    let server = skip_without_postgres(test, server)?;
    let pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         [pool.timeouts]\n{timeouts}\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    ));
    Some(PoolFixture { server, pooler })
}

fn console_command(fixture: &PoolFixture, command: &str) -> String {
    checked_stdout(fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]))
}

fn console_error(fixture: &PoolFixture, command: &str) -> String {
    let output = fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
    assert!(!output.status.success(), "{command}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a waiting client receives nothing for a while.
fn is_silent(client: &RawClient) -> bool {
    client.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let silent = client.0.peek(&mut [0]).is_err();
    client.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    silent
}

/// Under load no transaction fails, none ends during the suspension, and the suspension does not
/// count towards timeouts.
#[test]
fn suspend_and_resume_under_load() {
    let Some(fixture) = fixture("suspend", "idle-transaction = '1s'") else { return };
    checked_stdout(fixture.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    let mut pgbench = fixture.command("pgbench");
    pgbench.args(["-n", "-c", "6", "-M", "prepared", "-T", "10", "postgres"]);
    pgbench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let pgbench = pgbench.spawn().unwrap();
    let mut inside = RawClient::log_in(fixture.address());
    inside.send_query("begin");
    inside.read_until(b'Z');
    let transactions = || fixture.query_server("select count(*) from pgbench_history");
    let count = || transactions().parse::<u64>().unwrap();
    wait_until("50 transactions", WAIT_TIMEOUT, || count() >= 50);

    console_command(&fixture, "suspend");
    assert_eq!(console_command(&fixture, "show state"), "active|no\npaused|no\nsuspended|yes");
    assert!(console_error(&fixture, "suspend").contains("already suspended"));
    assert!(console_error(&fixture, "pause").contains("already suspended"));
    // Servers finish what had been sent to them; after that they receive nothing.
    let busy = "select count(*) from pg_stat_activity where state = 'active' \
                and backend_type = 'client backend' and pid <> pg_backend_pid() \
                and wait_event_type is distinct from 'Lock'";
    wait_until("idle servers", WAIT_TIMEOUT, || fixture.query_server(busy) == "0");
    let before = count();
    inside.send_query("select 1");
    let mut newcomer = RawClient::log_in(fixture.address());
    newcomer.send_query("select 2");
    assert!(is_silent(&inside) && is_silent(&newcomer));
    // The time itself is the stimulus: it exceeds the timeout for idle transactions.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(count(), before);

    console_command(&fixture, "resume");
    assert_eq!(console_command(&fixture, "show state"), "active|yes\npaused|no\nsuspended|no");
    inside.read_until(b'D');
    newcomer.read_until(b'D');
    let output = pgbench.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("failed transactions: 0"), "{text}");
    assert!(count() > before);
    assert!(console_error(&fixture, "resume").contains("pooler is not paused"));
}

/// A client that does not read its pending output is disconnected after a timeout; others are not
/// affected.
#[test]
fn suspend_disconnects_client_that_does_not_read() {
    let Some(fixture) = fixture("flush", "suspend = '500ms'") else { return };
    let mut reader = RawClient::log_in(fixture.address());
    let mut other = RawClient::log_in(fixture.address());
    reader.send_query("select repeat('x', 1000) from generate_series(1, 200000)");
    reader.read_until(b'D');
    // Wait until the pooler has buffered as much as it does for a client that does not read.
    let blocked = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
    let mut in_a_row = 0;
    wait_until("the server to block", WAIT_TIMEOUT, || {
        in_a_row = if fixture.query_server(blocked) == "1" { in_a_row + 1 } else { 0 };
        in_a_row == 10
    });
    console_command(&fixture, "suspend");
    assert!(reader.is_disconnected());
    console_command(&fixture, "resume");
    other.send_query("select 1");
    other.read_until(b'Z');
}

/// PAUSE and SUSPEND exclude each other; SHUTDOWN ends a suspension.
#[test]
fn other_commands_respect_suspension() {
    let Some(fixture) = fixture("orders", "") else { return };
    let mut client = RawClient::log_in(fixture.address());
    console_command(&fixture, "pause postgres");
    assert!(console_error(&fixture, "suspend").contains("paused databases"));
    console_command(&fixture, "resume");
    // Now there is a server connection; without one, SHUTDOWN would disconnect the waiting client.
    client.send_query("select 1");
    client.read_until(b'Z');
    console_command(&fixture, "suspend");
    client.send_query("select 1");
    assert!(is_silent(&client));
    console_command(&fixture, "shutdown wait_for_servers");
    // Its query was sent before the shutdown: it gets its result, then it is disconnected.
    client.read_until(b'D');
    assert!(client.is_disconnected());
    fixture.pooler.shutdown_waiter().unwrap().wait();
}
