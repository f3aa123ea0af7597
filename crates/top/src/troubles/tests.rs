//! Tests with snapshots as servers in trouble give them, and as busy servers without one do.

use std::{collections::HashMap, sync::Arc};

use howdah_collect::{WaitCount, WaitCounts};

use super::*;
use crate::{host::ProcessFigures, sampler::tests::snapshot, waits::WaitHistory};

const NOW_US: i64 = 1_700_000_000_000_000;

fn seconds_ago(seconds: f64) -> Option<i64> {
    Some(NOW_US - (seconds * 1e6) as i64)
}

/// Returns a client that has executed `query` for some seconds.
fn client(pid: i32, query: &str, seconds: f64) -> BackendActivity {
    BackendActivity {
        pid,
        started_us: NOW_US - 3_600_000_000,
        application: Some("shop".into()),
        kind: Some(BackendType::Client),
        state: Some(BackendState::Active),
        query: Some(SqlText::new(query.as_bytes(), None, None)),
        query_started_us: seconds_ago(seconds),
        state_changed_us: seconds_ago(seconds),
        transaction_started_us: seconds_ago(seconds),
        is_readable: true,
        ..BackendActivity::default()
    }
}

fn waiting(class: &str, event: &str, backend: BackendActivity) -> BackendActivity {
    BackendActivity { wait: Some(wait(class, event)), ..backend }
}

fn wait(class: &str, event: &str) -> BackendWait {
    BackendWait { class: class.into(), event: event.into() }
}

fn blocked_by(pid: i32, seconds: f64, backend: BackendActivity) -> BackendActivity {
    BackendActivity {
        blockers: vec![Blocker::Process(pid)],
        blocked_since_us: seconds_ago(seconds),
        ..waiting("Lock", "relation", backend)
    }
}

fn texts(snapshot: &ServerSnapshot) -> Vec<String> {
    troubles(snapshot).into_iter().map(|trouble| trouble.text).collect()
}

/// Returns a history in which `sessions` wait for `event` in each of the seconds.
fn history(event: &BackendWait, seconds: impl Iterator<Item = u32>) -> Arc<WaitHistory> {
    let mut waits = WaitHistory::default();
    for (second, sessions) in (0..).zip(seconds) {
        let counts = [
            WaitCount { wait: Some(event.clone()), sessions },
            WaitCount { wait: None, sessions: 2 },
        ];
        waits.add(NOW_US + second * 1_000_000, &WaitCounts::new(counts));
    }
    Arc::new(waits)
}

#[test]
fn busy_server_has_no_trouble() {
    let commits = (1..9).map(|pid| waiting("LWLock", "WALWrite", client(pid, "END", 0.02)));
    let reads = (10..13).map(|pid| waiting("IO", "DataFileRead", client(pid, "SELECT 1", 40.0)));
    let sleeps = waiting("Timeout", "PgSleep", client(20, "SELECT pg_sleep(60)", 50.0));
    let short = blocked_by(21, 0.2, client(22, "UPDATE a SET b = 1", 0.3));
    let holder = client(21, "UPDATE a SET b = 2", 0.3);
    let mut busy = snapshot(NOW_US, commits.chain(reads).chain([sleeps, holder, short]).collect());
    busy.waits = history(&wait("LWLock", "WALWrite"), (0..60).map(|at| 4 + at % 5));
    busy.overview.replay_lag_seconds = Some(900.0);
    assert_eq!(texts(&busy), [] as [&str; 0]);
    assert_eq!(texts(&snapshot(NOW_US, Vec::new())), [] as [&str; 0]);
}

#[test]
fn root_of_lock_chain_is_named_with_its_statement() {
    let mut root = client(4711, "LOCK TABLE\n pgbench_branches", 12.0);
    root.state = Some(BackendState::IdleInTransaction);
    let chain = [
        root,
        blocked_by(4711, 9.1, client(1, "UPDATE a", 9.1)),
        blocked_by(1, 3.0, client(2, "UPDATE b", 3.0)),
    ];
    assert_eq!(
        texts(&snapshot(NOW_US, chain.to_vec())),
        ["pid 4711 blocks 2 sessions for 9.1s, idle in tx 12.0s: LOCK TABLE pgbench_branches"]
    );
    let mut worker = client(99, "autovacuum: VACUUM public.orders", 70.0);
    worker.kind = Some(BackendType::AutovacuumWorker);
    worker.wait = Some(wait("Timeout", "VacuumDelay"));
    let blocked = blocked_by(99, 5.0, client(3, "ALTER TABLE orders", 5.0));
    assert_eq!(
        texts(&snapshot(NOW_US, vec![worker, blocked])),
        ["autovacuum worker 99 blocks 1 session for 5.0s: autovacuum: VACUUM public.orders"]
    );
    let mut blocked = blocked_by(0, 5.0, client(3, "UPDATE a", 5.0));
    blocked.blockers = vec![Blocker::Prepared];
    assert_eq!(
        texts(&snapshot(NOW_US, vec![blocked])),
        ["a prepared transaction blocks 1 session for 5.0s"]
    );
}

#[test]
fn stuck_sessions_are_reported_with_their_event() {
    let stuck = |pid, query| waiting("IO", "WALSync", client(pid, query, 1.5));
    let sessions = vec![stuck(1, "COMMIT"), stuck(2, "COMMIT"), stuck(3, "INSERT")];
    assert_eq!(
        texts(&snapshot(NOW_US, sessions)),
        ["3 sessions wait for IO:WALSync (WAL is flushed), up to 1.5s: COMMIT"]
    );
}

#[test]
fn surge_is_measured_against_what_is_usual() {
    let event = wait("LWLock", "BufferMapping");
    let mut server =
        snapshot(NOW_US, vec![waiting("LWLock", "BufferMapping", client(1, "q", 0.1))]);
    let rise = |before: u32| (0..30).map(move |_| before).chain([9, 10, 11]);
    server.waits = history(&event, rise(1));
    assert_eq!(
        texts(&server),
        ["10.0 sessions wait for LWLock:BufferMapping (the buffer table), usually 1.0: q"]
    );
    server.waits = history(&event, rise(4));
    assert_eq!(texts(&server), [] as [&str; 0], "too little above the usual");
    server.waits = history(&event, [1, 9, 10, 11].into_iter());
    assert_eq!(texts(&server), [] as [&str; 0], "the usual is unknown");
}

#[test]
fn runaway_statement_needs_a_processor() {
    let runs = vec![client(7, "SELECT sum(x) FROM y", 35.0), client(8, "SELECT 1", 11.0)];
    let mut server = snapshot(NOW_US, runs);
    assert_eq!(texts(&server), ["pid 7 has run for 35.0s, and 1 more: SELECT sum(x) FROM y"]);
    let figures = |cpu| ProcessFigures { cpu_percent: Some(cpu), ..ProcessFigures::default() };
    server.processes = Some(HashMap::from([(7, figures(99.2)), (8, figures(1.0))]));
    assert_eq!(texts(&server), ["pid 7 has run for 35.0s at 99% CPU: SELECT sum(x) FROM y"]);
}

#[test]
fn figures_of_server_are_compared_with_limits() {
    let with = |change: fn(&mut ServerSnapshot)| {
        let mut server = snapshot(NOW_US, Vec::new());
        server.previous_overview =
            Some(Overview { taken_us: NOW_US - 2_000_000, ..Overview::default() });
        server.minute_ago = Some(Overview {
            taken_us: NOW_US - 50_000_000,
            checkpoints_requested: Some(5),
            ..Overview::default()
        });
        change(&mut server);
        texts(&server).join("; ")
    };
    assert_eq!(with(|_| ()), "");
    assert_eq!(with(|server| server.overview.temp_bytes = 200 << 20), "temporary files: 100MB/s");
    let thrash = |server: &mut ServerSnapshot| {
        server.overview.blocks_read = 20_000;
        server.overview.blocks_hit = 20_000;
    };
    assert_eq!(with(thrash), "buffers are too few: 10000 reads/s, 50% hits");
    assert_eq!(
        with(|server| server.overview.checkpoints_requested = Some(9)),
        "4 checkpoints were requested in 50.0s: max_wal_size is too small, or by CHECKPOINT"
    );
    let lags = |server: &mut ServerSnapshot| {
        server.overview.followers_lag_seconds = Some(12.0);
        server.overview.followers_lag_bytes = Some(30 << 20);
    };
    assert_eq!(with(lags), "a standby lags 12.0s, 30.0MB of WAL");
}

#[test]
fn connections_are_counted() {
    let newcomer = |pid| BackendActivity { started_us: NOW_US - 1_000_000, ..client(pid, "", 0.1) };
    let storm = (0..40).map(newcomer).chain((40..60).map(|pid| client(pid, "", 0.1)));
    assert_eq!(
        texts(&snapshot(NOW_US, storm.collect())),
        ["60 of 100 connections are in use, 40 began in the last 3s, 40 of them by shop"]
    );
    let full = (0..95).map(|pid| client(pid, "", 0.1));
    assert_eq!(
        texts(&snapshot(NOW_US, full.collect())),
        ["95 of 100 connections are in use, 95 of them by shop"]
    );
}

#[test]
fn temporary_files_and_idle_transactions_name_their_process() {
    let mut idle = client(6, "UPDATE a", 400.0);
    idle.state = Some(BackendState::IdleInTransaction);
    let mut server = snapshot(NOW_US, vec![client(5, "SELECT a ORDER BY b", 4.0), idle]);
    server.overview.temp_file_bytes = Some(1 << 30);
    server.overview.temp_file_pid = Some(5);
    assert_eq!(
        texts(&server),
        [
            "pid 5 writes temporary files: 1.0GB now: SELECT a ORDER BY b",
            "pid 6 has idled in a transaction for 6m40s; VACUUM cannot remove rows deleted since"
        ]
    );
    // A parallel worker writes for its leader.
    let worker = BackendActivity { leader: Some(5), ..client(7, "SELECT a ORDER BY b", 4.0) };
    let mut server = snapshot(NOW_US, vec![client(5, "SELECT a ORDER BY b", 4.0), worker]);
    server.overview.temp_file_bytes = Some(1 << 30);
    server.overview.temp_file_pid = Some(7);
    let text = "pid 5 and its workers write temporary files: 1.0GB now: SELECT a ORDER BY b";
    assert_eq!(texts(&server), [text]);
}
