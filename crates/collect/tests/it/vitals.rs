//! Figures for a recorder, on every major version.

use std::time::Duration;

use howdah_collect::{MonitorConnection, WaitedLock};
use howdah_lab::{Cluster, wait_for, wait_until};

use crate::support::{run_in_thread, session, start, target};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn vitals_and_lock_waits_are_read_on_every_major() {
    for major in 14..=18 {
        let how = Cluster::builder()
            .major(major)
            .setting("autovacuum", "off")
            .setting("max_prepared_transactions", "2");
        let Some(cluster) = start("vitals_and_lock_waits_are_read_on_every_major", how) else {
            continue;
        };
        let admin = target(&cluster, "postgres");
        let mut client = session(&admin);
        client.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
        client.query("INSERT INTO item VALUES (1); CREATE ROLE plain LOGIN").unwrap();
        let relation = client.one_value("SELECT 'item'::regclass::oid").unwrap().unwrap();
        let database = "SELECT oid FROM pg_database WHERE datname = current_database()";
        let database = client.one_value(database).unwrap().unwrap();
        let relation = Some((database.parse().unwrap(), relation.parse().unwrap()));
        for role in ["postgres", "plain"] {
            let mut server = MonitorConnection::connect(&admin.with_user(role)).unwrap();
            let before = server.vitals().unwrap();
            assert!(before.clients >= 2 && before.commits > 0, "{major}: {before:?}");
            assert!(before.sessions_started.is_some() && before.replay_lag_bytes.is_none());
            client.query("CHECKPOINT").unwrap();
            wait_until("a counted checkpoint", TIMEOUT, || {
                server.vitals().unwrap().requested_checkpoints > before.requested_checkpoints
            });
            // Two sessions wait for the transaction that changes the row: one of them for itself,
            // the other for the row's lock.
            let change = "UPDATE item SET id = 1";
            client.query("BEGIN; UPDATE item SET id = 1").unwrap();
            let waiting = [run_in_thread(&admin, change), run_in_thread(&admin, change)];
            let locks = wait_for("two waits", TIMEOUT, || {
                Some(server.waited_locks().unwrap()).filter(|locks| locks.len() == 2)
            });
            let mut kinds: Vec<_> = locks.iter().map(|lock| lock.kind.as_str()).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, ["transactionid", "tuple"]);
            assert!(locks.iter().all(|lock| lock.relation == relation), "{locks:?}");
            // Both wait for the only version of the only row, or for the transaction that has
            // changed it.
            assert!(locks.iter().all(|lock| lock.row.is_some_and(|(page, _)| page == 0)));
            let waits_for = |lock: &WaitedLock| (lock.kind.clone(), lock.transaction.is_some());
            let is_transaction = |(kind, has): (String, bool)| (kind == "transactionid") == has;
            assert!(locks.iter().map(waits_for).all(is_transaction), "{locks:?}");
            assert!(server.vitals().unwrap().busy >= 3, "{major}");
            client.query("PREPARE TRANSACTION 'tx-1'").unwrap();
            let prepared = server.prepared_transactions().unwrap();
            assert_eq!((prepared.len(), prepared[0].gid.as_str()), (1, "tx-1"));
            client.query("ROLLBACK PREPARED 'tx-1'").unwrap();
            for (_, thread) in waiting {
                thread.join().unwrap().unwrap();
            }
        }
        let mut server = MonitorConnection::connect(&admin).unwrap();
        let sort = "SET work_mem = '64kB'; SELECT count(*) FROM (SELECT n, pg_sleep(0.0001) \
                    FROM generate_series(1, 1000000) n ORDER BY 1 DESC) sorted";
        let (pid, sorting) = run_in_thread(&admin, sort);
        // A file that was just created has no bytes yet.
        wait_until("bytes in a temporary file", TIMEOUT, || {
            server.temp_files().unwrap().iter().any(|(of, bytes)| *of == pid && *bytes > 0)
        });
        client.query(&format!("SELECT pg_terminate_backend({pid})")).unwrap();
        assert!(sorting.join().unwrap().is_err());
        let mut plain = MonitorConnection::connect(&admin.with_user("plain")).unwrap();
        assert_eq!(plain.temp_files().unwrap_err().sqlstate(), Some("42501"));
    }
}
