//! Replication through the pooler, with PostgreSQL's own subscriber and tools as clients.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;

use crate::support::{PoolFixture, WAIT_TIMEOUT, checked_stdout, connect, start_pooler};

/// A server of major 15 with logical replication, and a pooler in front of it.
fn fixture(test: &str) -> Option<PoolFixture> {
    let builder = Cluster::builder().major(15).setting("wal_level", "logical");
    let server = skip_without_postgres(test, builder.start())?;
    let pooler: Pooler = start_pooler(&server, "sizes = { pool = 2 }");
    Some(PoolFixture { server, pooler })
}

#[test]
fn subscription_through_the_pooler_replicates_rows() {
    let Some(publisher) = fixture("subscription") else { return };
    let subscriber = Cluster::builder().name("subscriber").major(15).start();
    let Some(subscriber) = skip_without_postgres("subscription", subscriber) else { return };
    publisher.query_server("create table orders (id int primary key, price float8)");
    publisher.query_server("insert into orders values (1, 0.1)");
    publisher.query_server("create publication shop for table orders");
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
    wait_until("the first copy of the table", 2 * WAIT_TIMEOUT, || {
        client.one_value(count).unwrap().as_deref() == Some("1")
    });
    publisher.query_server("insert into orders select n, n / 3.0 from generate_series(2, 1000) n");
    wait_until("replicated rows", 2 * WAIT_TIMEOUT, || {
        client.one_value(count).unwrap().as_deref() == Some("1000")
    });
    let sum = "select sum(price)::text from orders";
    assert_eq!(client.one_value(sum).unwrap().unwrap(), publisher.query_server(sum));
    client.query("drop subscription shop").unwrap();
}

/// A program that is killed on drop.
struct ChildProcess(Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn base_backup_and_wal_are_received_through_the_pooler() {
    let Some(fixture) = fixture("pg_basebackup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let wal = path("wal");
    fs::create_dir(&wal).unwrap();
    let receiver =
        fixture.command("pg_receivewal").args(["-D", &wal]).stderr(Stdio::piped()).spawn();
    let _receiver = ChildProcess(receiver.unwrap());
    let has_segment = |partial: bool| {
        let mut names = fs::read_dir(&wal).unwrap().flatten().map(|entry| entry.file_name());
        names.any(|name| Path::new(&name).extension().is_some() == partial)
    };
    wait_until("the first segment to be received", 2 * WAIT_TIMEOUT, || has_segment(true));
    fixture.query_server("select pg_switch_wal()");
    fixture.query_server("create table after_switch (n int)");
    wait_until("a complete segment", 2 * WAIT_TIMEOUT, || has_segment(false));
    let backup = path("backup");
    checked_stdout(
        fixture.run_program("pg_basebackup", &["-D", &backup, "-X", "stream", "-c", "fast"]),
    );
    assert!(Path::new(&backup).join("backup_manifest").is_file());
}
