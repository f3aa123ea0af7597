//! Commit order: transactions that change the same rows in a way that depends on their order leave
//! the same rows as in the capture.

use std::thread;

use howdah_connect::Client;
use howdah_lab::Cluster;
use rustix::process::Signal;

use crate::{
    logs::LogBuilder,
    pooler_capture::CapturePooler,
    support::{ReplayFixture, connect, replay, value},
};

const SESSIONS: i32 = 6;
const TRANSACTIONS: i32 = 25;
const ROWS: i32 = 12;

/// The result depends on the order of the updates of each row.
fn update(session: i32, rows: [i32; 2]) -> String {
    let [first, second] = rows;
    format!("update counters set v = (v * 3 + {session}) % 1000003 where id in ({first}, {second})")
}

fn create_counters(cluster: &Cluster, database: &str) {
    let mut client = connect(cluster, database);
    client
        .query(&format!(
            "drop table if exists counters; \
             create table counters (id int primary key, v bigint not null); \
             insert into counters select id, id from generate_series(0, {}) id",
            ROWS - 1
        ))
        .unwrap();
}

fn contents(cluster: &Cluster, database: &str) -> String {
    let sql = "select string_agg(id || ':' || v, ' ' order by id) from counters";
    value(&mut connect(cluster, database), sql)
}

/// Runs transactions of two updates each. Sessions overlap, wait for each other's rows, and run
/// into deadlocks.
fn run_session(mut client: Client, session: i32) -> u32 {
    let mut deadlocks = 0;
    for number in 0..TRANSACTIONS {
        let step = session * 7 + number * 5;
        let rows = |offset: i32| [(step + offset) % ROWS, (step + offset + 5) % ROWS];
        client.query("begin").unwrap();
        let mut end = "commit";
        for offset in [0, if number % 2 == 0 { 3 } else { ROWS - 3 }] {
            if let Err(error) = client.query(&update(session, rows(offset))) {
                assert_eq!(error.sqlstate(), Some("40P01"), "{error}");
                (end, deadlocks) = ("rollback", deadlocks + 1);
                break;
            }
            client.query("select pg_sleep(0.001)").unwrap();
        }
        client.query(end).unwrap();
    }
    deadlocks
}

#[test]
fn commit_order_leaves_same_rows_as_capture() {
    let Some(fixture) = ReplayFixture::new("commit_order") else { return };
    let cluster = fixture.cluster;
    let mut control = fixture.client();
    control.query("create database commit_order_copy").unwrap();
    for database in ["commit_order", "commit_order_copy"] {
        let sql = format!("alter database {database} set deadlock_timeout = '20ms'");
        control.query(&sql).unwrap();
    }
    create_counters(cluster, "commit_order");

    let pool =
        CapturePooler::start_for_database(fixture.folder.path(), cluster, "commit_order", "");
    pool.psql("howdah", "capture start it");
    let deadlocks: u32 = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|session| {
                let client = pool.client();
                scope.spawn(move || run_session(client, session))
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum()
    });
    pool.signal(Signal::TERM);
    pool.wait();
    let captured = contents(cluster, "commit_order");

    let copy = cluster.uri("commit_order_copy");
    let mut unordered = 0;
    let rounds: u32 = std::env::var("HOWDAH_ORDER_ROUNDS").map_or(2, |it| it.parse().unwrap());
    for round in 0..rounds {
        for (rate, workers) in [("max", "1"), ("max", "2"), ("1", "2")] {
            create_counters(cluster, "commit_order_copy");
            let words = ["--order", "commit", "--rate", rate, "--workers", workers];
            let words = [&words[..], &["--as-database", "commit_order_copy"]].concat();
            let replayed = replay(fixture.folder.path(), "captures/it", &copy, &words);
            let report = &replayed.report;
            assert_eq!(
                contents(cluster, "commit_order_copy"),
                captured,
                "round {round}, rate {rate}: {report}"
            );
            let skipped =
                &report["skipped"]["failed in the capture by a conflict with another session"];
            assert_eq!(skipped.as_u64().unwrap_or(0), u64::from(deadlocks), "{report}");
            assert_eq!(report["order_inversions"], 0, "{report}");
        }
        create_counters(cluster, "commit_order_copy");
        let words = ["--rate", "max", "--as-database", "commit_order_copy"];
        replay(fixture.folder.path(), "captures/it", &copy, &words);
        unordered += u32::from(contents(cluster, "commit_order_copy") == captured);
    }
    assert_eq!(unordered, 0, "without the order, the rows differ");
}

/// In the capture, session 2 updated its row while session 1 had locked another one; on the target,
/// both are the same row.
#[test]
fn transaction_that_blocks_the_next_end_is_released() {
    let Some(fixture) = ReplayFixture::new("order_stall") else { return };
    fixture.client().query("create table t (id int, v int); insert into t values (1, 0)").unwrap();
    let mut log = LogBuilder::new("order_stall");
    let done = |log: &mut LogBuilder, millis, pid, sql: &str| {
        log.line(millis, pid, &format!("LOG:  duration: 1.000 ms  statement: {sql}"));
    };
    log.connect(0, 1).connect(0, 2);
    done(&mut log, 10, 1, "begin");
    done(&mut log, 20, 1, "update t set v = v * 10 + 1");
    done(&mut log, 30, 2, "update t set v = v * 10 + 2");
    done(&mut log, 50, 1, "update t set v = v * 10 + 3");
    done(&mut log, 60, 1, "update t set v = v * 10 + 4");
    done(&mut log, 70, 1, "commit");
    let replayed = fixture.replay(&log.text, &["--order", "commit"]);
    replayed.assert_all_done();
    // Session 1 is released once, for the rest of its transaction.
    assert_eq!(replayed.report["order_inversions"], 1, "{}", replayed.report);
    assert_eq!(fixture.value("select v from t"), "1342");
}

#[test]
fn statements_that_saw_nothing_of_each_other_do_not_wait() {
    let Some(fixture) = ReplayFixture::new("order_concurrent") else { return };
    fixture.client().query("create table t (v int)").unwrap();
    let mut log = LogBuilder::new("order_concurrent");
    log.connect(0, 1).connect(0, 2);
    // Both ran from 10 to 12 ms; with times in milliseconds, neither was certainly first.
    for pid in [1, 2] {
        let sql = format!("insert into t values ({pid})");
        log.line(12, pid, &format!("LOG:  duration: 2.000 ms  statement: {sql}"));
    }
    log.line(40, 1, "LOG:  duration: 1.000 ms  statement: select count(*) from t");
    let replayed = fixture.replay(&log.text, &["--order", "commit"]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["order_inversions"], 0);
    let rows: Vec<_> = replayed.executions().iter().map(|outcome| outcome.rows).collect();
    assert_eq!(rows, [Some(1); 3]);
}
