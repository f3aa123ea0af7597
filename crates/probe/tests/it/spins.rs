//! Spin delays, made by taking a spinlock of the server from outside.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    thread,
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;
use howdah_lab::wait_until;
use howdah_probe::{
    durations::{Call, CallDurations, CallSubject, ProbeMetric},
    export::BpftraceScript,
};

use crate::{
    export::{bpftrace, stop_and_list},
    support::{TIMEOUT, may_trace, on_every_major, pid, session},
};

/// The spinlock that guards the allocation of shared memory, taken until the value is dropped.
struct TakenSpinlock {
    memory: File,
    address: u64,
}

impl TakenSpinlock {
    fn take(server: &RunningServer) -> Self {
        let variable = server.binary().address("ShmemLock").unwrap();
        let address = server.memory().pointer(variable).unwrap();
        let path = format!("/proc/{}/mem", server.postmaster().pid());
        let memory = File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(server.memory().bytes(address).unwrap(), [0], "the spinlock is free");
        // A byte on x86-64, not zero while it is taken.
        memory.write_all_at(&[1], address).unwrap();
        Self { memory, address }
    }
}

impl Drop for TakenSpinlock {
    fn drop(&mut self) {
        self.memory.write_all_at(&[0], self.address).unwrap();
    }
}

/// Whether a process sleeps for a time, as `s_lock` does between two attempts.
fn is_sleeping(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    let number = call.split(' ').next().unwrap().parse::<i64>();
    [libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_select, libc::SYS_pselect6]
        .contains(&number.unwrap_or(-1))
}

#[test]
fn spin_delay_is_measured_with_its_caller() {
    if !may_trace("spin delays") {
        return;
    }
    on_every_major("spin delays", |cluster, server| {
        // Beside bpftrace, where it is installed.
        let other = bpftrace(&BpftraceScript::Durations(ProbeMetric::Spins).text(server).unwrap());
        let mut durations = CallDurations::attach(server, ProbeMetric::Spins).unwrap();
        let mut waiter = session(cluster);
        let backend = pid(&waiter);
        durations.drain(|_| {});
        let taken = TakenSpinlock::take(server);
        let at_least = thread::scope(|scope| {
            // The table of locks has memory for half of them, and then allocates more.
            let locks = "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, \
                current_setting('max_locks_per_transaction')::int * 9 / 10 \
                * (current_setting('max_connections')::int \
                   + current_setting('max_prepared_transactions')::int)) n";
            scope.spawn(move || waiter.query(locks).unwrap());
            wait_until("a sleep for the spinlock", TIMEOUT, || is_sleeping(backend));
            let seen = Instant::now();
            let least = Duration::from_millis(30);
            wait_until("a delay of some length", TIMEOUT, || seen.elapsed() >= least);
            let at_least = seen.elapsed();
            drop(taken);
            at_least
        });
        let mut calls = Vec::new();
        durations.drain(|call: Call| {
            if call.pid == backend {
                calls.push(call);
            }
        });
        let [call] = calls[..] else { panic!("{calls:?}") };
        let CallSubject::Caller(caller) = call.subject else { panic!("{call:?}") };
        let caller = durations.caller(caller).to_owned();
        assert!(call.duration >= at_least, "{call:?} {at_least:?}");
        assert_eq!((call.operation, durations.lost_events().unwrap()), ("spin", 0));
        // Which function allocates depends on the version.
        let line = caller.strip_suffix(')').and_then(|rest| rest.split_once("(shmem.c:")).unwrap();
        assert!(line.0.starts_with("ShmemAlloc"), "{caller}");
        assert!(line.1.parse::<u32>().is_ok_and(|line| line > 100), "{caller}");
        if let Some(other) = other {
            let lines = stop_and_list(other);
            let has_caller = |text: &String| {
                text.starts_with("@callers[")
                    && text.contains(line.0.trim())
                    && text.contains("shmem.c")
                    && text.contains(&format!(", {}]: 1", line.1))
            };
            assert!(lines.iter().any(has_caller), "{caller} {lines:?}");
        }
    });
}
