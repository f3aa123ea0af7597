//! Replication through the pooler: PostgreSQL's own subscriber and tools are the clients.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::Pooler;

use crate::support::{Stage, connect, pooler, said};

/// Waits until a condition holds.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server of major 15 that replicates, and a pooler before it.
fn stage(test: &str) -> Option<Stage> {
    let builder = Cluster::builder().major(15).setting("wal_level", "logical");
    let server = or_say_why_not(test, builder.start())?;
    let pooler: Pooler = pooler(&server, "sizes = { pool = 2 }");
    Some(Stage { server, pooler })
}

#[test]
fn subscription_through_the_pooler_replicates_rows() {
    let Some(publisher) = stage("subscription") else { return };
    let subscriber = Cluster::builder().name("subscriber").major(15).start();
    let Some(subscriber) = or_say_why_not("subscription", subscriber) else { return };
    publisher.direct("create table orders (id int primary key, price float8)");
    publisher.direct("insert into orders values (1, 0.1)");
    publisher.direct("create publication shop for table orders");
    let mut client = connect(&subscriber.uri("postgres"));
    let client = client.as_mut().unwrap();
    let address = publisher.address();
    client.query("create table orders (id int primary key, price float8)").unwrap();
    client
        .query(&format!(
            "create subscription shop connection 'host={} port={} user=postgres dbname=postgres \
             application_name=sub options=''-c enable_seqscan=off''' publication shop",
            address.ip(),
            address.port()
        ))
        .unwrap();
    let count = "select count(*)::text from orders";
    wait_until("the first copy of the table", || {
        client.one_value(count).unwrap().as_deref() == Some("1")
    });
    publisher.direct("insert into orders select n, n / 3.0 from generate_series(2, 1000) n");
    wait_until("replicated rows", || client.one_value(count).unwrap().as_deref() == Some("1000"));
    let sum = "select sum(price)::text from orders";
    assert_eq!(client.one_value(sum).unwrap().unwrap(), publisher.direct(sum));
    client.query("drop subscription shop").unwrap();
}

/// A program that is killed with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn base_backup_and_wal_are_received_through_the_pooler() {
    let Some(stage) = stage("pg_basebackup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let wal = path("wal");
    fs::create_dir(&wal).unwrap();
    let receiver = stage.command("pg_receivewal").args(["-D", &wal]).stderr(Stdio::piped()).spawn();
    let _receiver = Running(receiver.unwrap());
    let has_segment = |partial: bool| {
        let mut names = fs::read_dir(&wal).unwrap().flatten().map(|entry| entry.file_name());
        names.any(|name| Path::new(&name).extension().is_some() == partial)
    };
    wait_until("the first segment to be received", || has_segment(true));
    stage.direct("select pg_switch_wal()");
    stage.direct("create table after_switch (n int)");
    wait_until("a whole segment", || has_segment(false));
    let backup = path("backup");
    said(stage.run("pg_basebackup", &["-D", &backup, "-X", "stream", "-c", "fast"]));
    assert!(Path::new(&backup).join("backup_manifest").is_file());
}
