//! SUSPEND at the console: a pooler that stands still, and goes on.

use std::{thread, time::Duration};

use howdah_lab::{Cluster, or_say_why_not};

use crate::support::{Raw, Stage, pooler_of, said};

/// Two workers, an operator, and these timeouts.
fn stage(test: &str, timeouts: &str) -> Option<Stage> {
    let server = Cluster::builder().setting("max_connections", "60").start();
    let server = or_say_why_not(test, server)?;
    let pooler = pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         [pool.timeouts]\n{timeouts}\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    ));
    Some(Stage { server, pooler })
}

fn console(stage: &Stage, command: &str) -> String {
    said(stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]))
}

fn error(stage: &Stage, command: &str) -> String {
    let output = stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
    assert!(!output.status.success(), "{command}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether nothing comes for a while, of a client that waits.
fn is_silent(client: &Raw) -> bool {
    client.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let silent = client.0.peek(&mut [0]).is_err();
    client.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    silent
}

/// Under load no transaction fails, none ends while everything stands still, and limits on time do not
/// count it.
#[test]
fn everything_stands_still_and_goes_on() {
    let Some(stage) = stage("suspend", "idle-transaction = '1s'") else { return };
    said(stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    let mut pgbench = stage.command("pgbench");
    pgbench.args(["-n", "-c", "6", "-M", "prepared", "-T", "10", "postgres"]);
    pgbench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let pgbench = pgbench.spawn().unwrap();
    let mut inside = Raw::log_in(stage.address());
    inside.query("begin");
    inside.until(b'Z');
    let transactions = || stage.direct("select count(*) from pgbench_history");
    let count = || transactions().parse::<u64>().unwrap();
    while count() < 50 {
        thread::yield_now();
    }

    console(&stage, "suspend");
    assert_eq!(console(&stage, "show state"), "active|no\npaused|no\nsuspended|yes");
    assert!(error(&stage, "suspend").contains("already suspended"));
    assert!(error(&stage, "pause").contains("already suspended"));
    // What servers had been sent they may still do; then nothing more comes to them.
    let busy = "select count(*) from pg_stat_activity where state = 'active' \
                and backend_type = 'client backend' and pid <> pg_backend_pid() \
                and wait_event_type is distinct from 'Lock'";
    while stage.direct(busy) != "0" {
        thread::yield_now();
    }
    let before = count();
    inside.query("select 1");
    let mut newcomer = Raw::log_in(stage.address());
    newcomer.query("select 2");
    assert!(is_silent(&inside) && is_silent(&newcomer));
    thread::sleep(Duration::from_millis(1500)); // More than a transaction may do nothing for.
    assert_eq!(count(), before);

    console(&stage, "resume");
    assert_eq!(console(&stage, "show state"), "active|yes\npaused|no\nsuspended|no");
    inside.until(b'D');
    newcomer.until(b'D');
    let done = pgbench.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains("failed transactions: 0"), "{text}");
    assert!(count() > before);
    assert!(error(&stage, "resume").contains("nothing is paused"));
}

/// One that does not take what is to be sent to it has its time; another is not disturbed.
#[test]
fn who_takes_nothing_is_closed() {
    let Some(stage) = stage("flush", "suspend = '500ms'") else { return };
    let mut reader = Raw::log_in(stage.address());
    let mut other = Raw::log_in(stage.address());
    reader.query("select repeat('x', 1000) from generate_series(1, 200000)");
    reader.until(b'D');
    // Until the pooler has as much as it takes for one who does not read.
    let blocked = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
    let mut in_a_row = 0;
    while in_a_row < 10 {
        in_a_row = if stage.direct(blocked) == "1" { in_a_row + 1 } else { 0 };
    }
    console(&stage, "suspend");
    assert!(reader.is_hung_up_on());
    console(&stage, "resume");
    other.query("select 1");
    other.until(b'Z');
}

/// A pause and a suspension exclude each other; orders to end go before a suspension.
#[test]
fn other_orders_know_of_a_suspension() {
    let Some(stage) = stage("orders", "") else { return };
    let mut client = Raw::log_in(stage.address());
    console(&stage, "pause postgres");
    assert!(error(&stage, "suspend").contains("paused databases"));
    console(&stage, "resume");
    // From now on there is a server; a client that waits for one is sent away at once.
    client.query("select 1");
    client.until(b'Z');
    console(&stage, "suspend");
    client.query("select 1");
    assert!(is_silent(&client));
    console(&stage, "shutdown wait_for_servers");
    // It had asked before the end: it is answered, and let go.
    client.until(b'D');
    assert!(client.is_hung_up_on());
    stage.pooler.end().unwrap().wait();
}
