//! Physical standbys.

use std::sync::atomic::{AtomicBool, Ordering};

use howdah_lab::{Cluster, Labs, MAJORS, wait_until};

use crate::support::{TIMEOUT, connect, open_tempdir, sql, start};

#[test]
fn standby_streams_from_primary_in_every_major() {
    for major in MAJORS {
        let test = format!("standby of {major}");
        let builder = Cluster::builder().major(major).setting("work_mem", "5MB");
        let Some(primary) = start(&test, builder) else { continue };
        let on_primary = primary.uri("postgres");
        sql(&on_primary, "CREATE TABLE t AS SELECT 1 AS x");

        let builder = Cluster::builder().name("copycat").standby_of(&primary);
        let mut standby = builder.start().unwrap();
        let on_standby = standby.uri("postgres");
        assert_eq!(standby.major(), major);
        assert_eq!(sql(&on_standby, "SELECT pg_is_in_recovery()"), "t");
        assert_eq!(sql(&on_standby, "SELECT x FROM t"), "1");
        assert_eq!(sql(&on_standby, "SHOW work_mem"), "5MB");
        assert_eq!(sql(&on_standby, "SHOW cluster_name"), "copycat");
        sql(&on_primary, "INSERT INTO t VALUES (2)");
        wait_until("streaming", TIMEOUT, || sql(&on_standby, "SELECT count(*) FROM t") == "2");
        assert_eq!(sql(&on_primary, "SELECT application_name FROM pg_stat_replication"), "copycat");

        // After a restart it catches up, without a permanent replication slot on the primary.
        standby.stop().unwrap();
        sql(&on_primary, "INSERT INTO t VALUES (3); CHECKPOINT");
        standby.start().unwrap();
        wait_until("streaming again", TIMEOUT, || {
            sql(&on_standby, "SELECT count(*) FROM t") == "3"
        });
        drop(standby);
        wait_until("the removal of the slot", TIMEOUT, || {
            sql(&on_primary, "SELECT count(*) FROM pg_replication_slots") == "0"
        });
    }
}

#[test]
fn standby_of_busy_primary_is_consistent() {
    let Some(primary) = start("busy primary", Cluster::builder()) else { return };
    let uri = primary.uri("postgres");
    sql(&uri, "CREATE TABLE pairs AS SELECT i AS a, -i AS b FROM generate_series(1, 5000) i");
    let done = AtomicBool::new(false);
    let standby = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = connect(&uri);
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                client.query("UPDATE pairs SET a = a + 1, b = b - 1").unwrap();
                client.query("CHECKPOINT").unwrap();
                rounds += 1;
            }
            rounds
        });
        let standby = Cluster::builder().standby_of(&primary).start();
        done.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
        standby.unwrap()
    });
    let row =
        |uri: &str| sql(uri, "SELECT format('%s %s %s', sum(a), sum(a + b), count(*)) FROM pairs");
    let expected = row(&uri);
    assert!(expected.ends_with(" 0 5000"), "{expected}");
    wait_until("streaming", TIMEOUT, || row(&standby.uri("postgres")) == expected);
}

#[test]
fn standby_of_primary_with_password_starts() {
    let builder = Cluster::builder().password("it's s3cret");
    let Some(primary) = start("standby with password", builder) else { return };
    let standby = Cluster::builder().standby_of(&primary).start().unwrap();
    assert_eq!(standby.password(), Some("it's s3cret"));
}

#[test]
fn standby_of_lab_is_a_lab() {
    let dir = open_tempdir();
    let labs = Labs::in_dir(dir.path().join("labs"));
    if start("standby of a lab", Cluster::builder()).is_none() {
        return;
    }
    let primary = labs.start(Some("one"), Cluster::builder()).unwrap().leave_running();
    let builder = Cluster::builder().standby_of_lab(&primary);
    let standby = labs.start(None, builder).unwrap().leave_running();
    assert_eq!((standby.name.as_str(), standby.standby_of.as_deref()), ("standby", Some("one")));
    assert_eq!(sql(&standby.uri("postgres"), "SELECT pg_is_in_recovery()"), "t");
    labs.stop("standby").unwrap();
    labs.stop("one").unwrap();
}

#[test]
fn standby_of_stopped_primary_is_an_error() {
    let Some(mut primary) = start("stopped primary", Cluster::builder()) else { return };
    let builder = Cluster::builder().standby_of(&primary);
    primary.stop().unwrap();
    let error = builder.start().unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to the primary"), "{error}");
}
