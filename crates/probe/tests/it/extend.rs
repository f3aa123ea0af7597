//! Compares extension locks reported by BPF programs with what sessions do.

use std::{
    collections::HashSet,
    sync::Barrier,
    thread,
    time::{Duration, SystemTime},
};

use howdah_inspect::OsProcess;
use howdah_lab::Cluster;
use howdah_probe::extend::{ExtensionLock, ExtensionLocks, ExtensionSummary, LockStats};

use crate::support::{copy_concurrently, may_trace, number, on_every_major, session};

#[test]
fn extension_locks_name_relation_and_backend() {
    if !may_trace("extension locks") {
        return;
    }
    on_every_major("extension locks", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE grown (pad text)").unwrap();
        let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
        let sql = "SELECT oid FROM pg_database WHERE datname = current_database()";
        let database = number(&mut client, sql);
        let pid = number(&mut client, "SELECT pg_backend_pid()");
        let mut locks = ExtensionLocks::attach(server).unwrap();
        let before = SystemTime::now();
        let insert = "INSERT INTO grown SELECT repeat('x', 1000) FROM generate_series(1, 2000)";
        client.query(insert).unwrap();
        let pages = number(&mut client, "SELECT pg_relation_size('grown') / 8192");
        let mut seen = Vec::new();
        locks.drain(|lock| seen.push(lock));
        let reported: Vec<_> = seen.iter().filter(|lock| lock.relation == relation).collect();
        assert!(
            reported.iter().all(|lock| (lock.database, lock.pid) == (database, pid)),
            "{reported:?}"
        );
        // From 16 on a relation is extended by up to 64 pages at once.
        let least = if server.major() < 16 { pages } else { pages / 64 };
        assert!(reported.len() as u32 >= least, "{} locks for {pages} pages", reported.len());
        let (first, last) = (before - Duration::from_secs(1), SystemTime::now());
        assert!(reported.iter().all(|lock| first < lock.released_at && lock.released_at <= last));
        assert!(locks.lost_events().unwrap().is_none(), "{:?}", locks.lost_events());
    });
}

/// Backends that insert into one table wait for each other.
#[test]
fn contended_extension_waits_are_measured() {
    if !may_trace("extension waits") {
        return;
    }
    const BACKENDS: usize = 6;
    on_every_major("extension waits", |cluster, server| {
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let mut locks = ExtensionLocks::attach(server).unwrap();
        let start = Barrier::new(BACKENDS);
        thread::scope(|scope| {
            for _ in 0..BACKENDS {
                scope.spawn(|| {
                    let mut client = session(cluster);
                    start.wait();
                    let pads = "SELECT repeat('x', 2000) FROM generate_series(1, 3000)";
                    client.query(&format!("INSERT INTO grown {pads}")).unwrap();
                });
            }
        });
        let relation = number(&mut session(cluster), "SELECT 'grown'::regclass::oid");
        let (mut summary, mut backends) = (ExtensionSummary::default(), HashSet::new());
        locks.drain(|lock| {
            if lock.relation == relation {
                summary.add(&lock);
                backends.insert(lock.pid);
            }
        });
        assert_eq!(backends.len(), BACKENDS);
        let LockStats { wait: waits, hold: holds, .. } = summary.stats();
        assert!(waits.min <= waits.p50 && waits.p50 <= waits.p99 && waits.p99 <= waits.max);
        // With more backends than processors, some backends wait as long as others hold the lock.
        assert!(waits.max >= holds.p50, "{waits:?} {holds:?}");
        assert_eq!(holds.count, waits.count + summary.conditional());
    });
}

/// COPY into tables that grow at once takes extension locks inside others up to 15, because free
/// space maps grow with their tables. In every version, each lock is reported with its hold.
#[test]
fn locks_inside_other_locks_are_complete() {
    if !may_trace("nested extension locks") {
        return;
    }
    on_every_major("nested extension locks", |cluster, server| {
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let mut locks = ExtensionLocks::attach(server).unwrap();
        let (mut inner, mut rounds) = (0, 0);
        // A free space map grows rarely, and not always inside the lock.
        while inner == 0 && rounds < if server.major() < 16 { 20 } else { 1 } {
            rounds += 1;
            session(cluster).query("TRUNCATE grown").unwrap();
            copy_concurrently(cluster);
            let mut reported: Vec<ExtensionLock> = Vec::new();
            locks.drain(|lock| reported.push(lock));
            inner = count_inner(&reported);
        }
        assert!(locks.lost_events().unwrap().is_none(), "{:?}", locks.lost_events());
        assert_eq!(inner > 0, server.major() < 16, "{inner} after {rounds} rounds");
    });
}

/// Counts the locks that were taken and released inside another lock of the same backend. The inner
/// lock is released, and thus reported, first.
fn count_inner(reported: &[ExtensionLock]) -> usize {
    let acquired_at = |lock: &ExtensionLock| lock.released_at - lock.hold;
    let is_inner = |at: &usize| {
        let inner = &reported[*at];
        let later = reported[at + 1..].iter().find(|lock| lock.pid == inner.pid);
        later.is_some_and(|outer| acquired_at(outer) < acquired_at(inner))
    };
    (0..reported.len()).filter(is_inner).count()
}

/// Two servers run the same binary; programs run for both and report one.
#[test]
fn other_server_of_same_binary_is_ignored() {
    if !may_trace("one of two servers") {
        return;
    }
    on_every_major("one of two servers", |cluster, server| {
        let built = Cluster::builder().major(server.major()).start().unwrap();
        let mut locks = ExtensionLocks::attach(server).unwrap();
        // A table created in the same transaction is extended without a lock: two transactions.
        let make = "CREATE TABLE grown (pad text)";
        let grow = "INSERT INTO grown SELECT repeat('x', 1000) FROM generate_series(1, 500)";
        let mut other = session(&built);
        other.query(make).and_then(|_| other.query(grow)).unwrap();
        let mut reported: Vec<ExtensionLock> = Vec::new();
        locks.drain(|lock| reported.push(lock));
        let others = reported.iter().filter(|lock| {
            let parent = OsProcess::from_pid(lock.pid).and_then(OsProcess::parent);
            parent.is_ok_and(|parent| parent != Some(server.postmaster()))
        });
        assert_eq!(others.count(), 0, "{reported:?}");
        let mut own = session(cluster);
        own.query(make).and_then(|_| own.query(grow)).unwrap();
        locks.drain(|lock| reported.push(lock));
        let pid = number(&mut own, "SELECT pg_backend_pid()");
        assert!(reported.iter().any(|lock| lock.pid == pid), "{reported:?}");
        assert_eq!(locks.lost_events().unwrap().no_start, 0);
    });
}
