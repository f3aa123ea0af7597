//! Profiles real servers that run known functions.

use std::time::{Duration, Instant};

use howdah_inspect::RunningServer;
use howdah_lab::wait_until;
use howdah_probe::stacks::profile::{ProfileMode, ProfileScope, StackProfile, StackProfiler};

use crate::support::{TIMEOUT, may_trace, on_every_major, pid, run_in_background, session};

const ON_CPU: ProfileMode = ProfileMode::OnCpu { frequency: 499 };

/// Profiles until `is_enough`, which is checked with what was recorded so far.
fn profile(
    server: &RunningServer,
    mode: ProfileMode,
    scope: ProfileScope,
    meanwhile: impl FnOnce(),
) -> StackProfile {
    let mut profiler = StackProfiler::attach(server, mode, scope).unwrap();
    assert!(profiler.processes() > 0);
    meanwhile();
    profiler.poll(Instant::now()).unwrap();
    profiler.finish()
}

/// The time in stacks that contain all these functions.
fn time_in(profile: &StackProfile, functions: &[&str]) -> Duration {
    let contains = |stack: &str| {
        functions.iter().all(|function| stack.split(';').any(|name| name == *function))
    };
    let found = profile.stacks.iter().filter(|(stack, _)| contains(stack));
    found.map(|(_, weight)| weight.time).sum()
}

#[test]
fn cpu_time_is_in_the_functions_of_the_statement() {
    if !may_trace("CPU profile") {
        return;
    }
    on_every_major("CPU profile", |cluster, server| {
        let mut client = session(cluster);
        client.query("SET max_parallel_workers_per_gather = 0").unwrap();
        let scope = ProfileScope { process: Some(pid(&client)), has_all: false };
        let sorted = "SELECT count(*) FROM (SELECT md5(g::text) m FROM generate_series(1, 300000) g \
             ORDER BY m OFFSET 0) s";
        let profile = profile(server, ON_CPU, scope, || drop(client.query(sorted).unwrap()));
        let total = profile.total();
        assert!(total > Duration::from_millis(50), "{profile:?}");
        assert!(profile.stacks.keys().all(|stack| stack.starts_with("client backend;")));
        let sorts = time_in(&profile, &["tuplesort_performsort"]);
        let is_complete = profile.incomplete < profile.stacks.len() as u64 / 2;
        eprintln!("{}: {sorts:?} of {total:?}, complete {is_complete}", server.major());
        if is_complete {
            assert!(time_in(&profile, &["main", "PostgresMain"]) > total / 2, "{profile:?}");
            assert!(sorts > total / 20, "{profile:?}");
        } else {
            // Without frame pointers, at least the innermost functions are known.
            assert!(profile.stacks.keys().any(|stack| stack.contains("[cut];")), "{profile:?}");
        }
    });
}

#[test]
fn waiting_session_is_off_cpu_in_its_lock() {
    if !may_trace("off-CPU profile") {
        return;
    }
    on_every_major("off-CPU profile", |cluster, server| {
        let mut holder = session(cluster);
        holder.query("CREATE TABLE locked (id int)").unwrap();
        holder.query("BEGIN").and_then(|_| holder.query("LOCK TABLE locked")).unwrap();
        // The first waiter sleeps before the profile starts, the second one after.
        let (first, first_thread) = run_in_background(cluster, "BEGIN; LOCK TABLE locked");
        let mut monitor = session(cluster);
        let mut waiters = |count: u32| {
            wait_until("waiting sessions", TIMEOUT, || {
                let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted";
                crate::support::number(&mut monitor, sql) == count
            });
        };
        waiters(1);
        let mut second = None;
        let started = Instant::now();
        let scope = ProfileScope::default();
        let mut profiler = StackProfiler::attach(server, ProfileMode::OffCpu, scope).unwrap();
        second.replace(run_in_background(cluster, "BEGIN; LOCK TABLE locked"));
        waiters(2);
        // Until both have waited for longer than `deadlock_timeout`.
        wait_until("both waits", TIMEOUT, || {
            profiler.poll(Instant::now()).unwrap();
            started.elapsed() >= Duration::from_millis(1500)
        });
        let profile = profiler.finish();
        let waited = time_in(&profile, &["ProcSleep"]);
        eprintln!("{}: {waited:?} in ProcSleep, {first}", server.major());
        let is_complete = profile.stacks.keys().any(|stack| stack.contains(";PostgresMain;"));
        if is_complete {
            // Both sessions, though the second one started later.
            assert!(waited > Duration::from_millis(1800), "{profile:?}");
            assert!(time_in(&profile, &["ProcSleep", "WaitLatch"]) > waited / 2, "{profile:?}");
            assert_eq!(time_in(&profile, &["secure_read"]), Duration::ZERO);
        }
        assert!(profile.total() > Duration::from_millis(1500), "{profile:?}");
        assert_eq!(profile.lost, 0);
        holder.query("ROLLBACK").unwrap();
        first_thread.join().unwrap();
        second.unwrap().1.join().unwrap();
    });
}
