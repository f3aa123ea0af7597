//! The simulator: scripted clients, servers that speak PostgreSQL's protocol, and workers' cores
//! between them, on a fake clock with seeded faults.
//!
//! Besides plain pools there are clusters that fail over, shards with and without standbys,
//! requests for several shards, takeovers by another process, connect queries, and users that
//! share servers.
//!
//! Every client has a reference model, a private server that receives the same input. Through the
//! pooler, the client must receive the same replies as its reference model sends, byte for byte
//! (except for parameter reports and notices), or its connection must be closed. Servers check
//! whose statements they run and whether session state of other clients is left over; with several
//! shards, also that a statement is meant for their shard. In some simulations the clients' traffic
//! is mirrored; the mirror may fail by itself, or hang forever.
//!
//! So a simulation fails if a client sees another's rows, if a request is answered twice or never,
//! if a server is used with foreign session state or for another shard, if a cancel hits another
//! client's statement, if a client waits for a mirror, or is disconnected when only a mirror fails,
//! if there are too many servers, or if a mirror's buffer exceeds its limit.
//!
//! `make simulate` runs 100,000 simulations on all processors, and `HOWDAH_POOL_SEEDS=500 cargo
//! test -p howdah-pool-core sim` runs 500. With `HOWDAH_POOL_SEED=17` only that one runs and prints
//! its whole dialogue; with both, the seeds start at 17.

mod backend;
mod connect_query;
mod coverage;
mod faults;
mod random;
mod script;
mod sharded_table;
mod simulation;

use std::{
    env,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use parking_lot::Mutex;

use self::{
    coverage::{Coverage, Situation},
    faults::InjectedFault,
};
use crate::{MirrorReport, mirror::outcome::DropReason};

/// The results of a simulation that upheld all guarantees.
struct SimulationReport {
    /// The counters of the mirror, if there was one.
    mirror: Option<MirrorReport>,
    coverage: Coverage,
}

fn simulate(seed: u64, fault: Option<InjectedFault>) -> Result<SimulationReport, String> {
    simulation::Simulation::new(seed, fault).run()
}

/// Number of failures to collect before the search stops.
const FAILURES_SHOWN_MAX: usize = 5;

/// Number of simulations after which a thread reports its progress.
const PROGRESS_EVERY: u64 = 20_000;

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Runs the simulations of all `seeds` on all processors, and returns the first failures. Each
/// thread takes the next seed that no thread has taken, so only one simulation per thread is in
/// memory.
fn failures(seeds: Range<u64>) -> Vec<String> {
    let next = AtomicU64::new(seeds.start);
    let failures = Mutex::new(Vec::new());
    let started = Instant::now();
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failures.lock().len() >= FAILURES_SHOWN_MAX {
                return;
            }
            if let Err(violation) = simulate(seed, None) {
                let failure = format!("seed {seed}: {violation}");
                println!("{failure}");
                failures.lock().push(failure);
            }
            let finished = seed + 1 - seeds.start;
            if finished.is_multiple_of(PROGRESS_EVERY) {
                let rate = finished as f64 / started.elapsed().as_secs_f64();
                println!("{finished} of {} simulations, {rate:.0}/s", seeds.end - seeds.start);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(run);
        }
    });
    failures.into_inner()
}

#[test]
fn simulations_uphold_all_guarantees() {
    let seeds = match (env_number("HOWDAH_POOL_SEED"), env_number("HOWDAH_POOL_SEEDS")) {
        (Some(seed), None) => seed..seed + 1,
        (first, count) => {
            let first = first.unwrap_or_default();
            first..first + count.unwrap_or(2000)
        }
    };
    let broken = failures(seeds);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Simulations prove nothing about mirrors unless transactions run at the mirror, and others are
/// dropped for various reasons.
#[test]
fn mirrors_run_or_drop_all_client_transactions() {
    let mut sum = MirrorReport::default();
    for report in (0..3000).filter_map(|seed| simulate(seed, None).ok()?.mirror) {
        sum.transactions += report.transactions;
        sum.failed_mirror_only +=
            report.failed_mirror_only + report.failed_client_only + report.sqlstate_differs;
        sum.dropped.iter_mut().zip(report.dropped).for_each(|(sum, more)| *sum += more);
    }
    // Some failures are expected only at the mirror, since tables change under prepared statements
    // at different times on the two sides.
    assert!(sum.failed_mirror_only * 300 < sum.transactions, "{sum:?}");
    assert!(sum.transactions > 1000, "{sum:?}");
    for why in [
        DropReason::BufferFull,
        DropReason::Unreachable,
        DropReason::Timeout,
        DropReason::ConnectionLost,
        DropReason::ClientGone,
    ] {
        assert!(sum.dropped[why as usize] > 0, "{why:?}: {sum:?}");
    }
}

/// Simulations prove nothing about situations that they do not reach.
#[test]
fn simulations_reach_all_situations() {
    let mut coverage = Coverage::default();
    for report in (0..1000).filter_map(|seed| simulate(seed, None).ok()) {
        coverage.add(&report.coverage);
    }
    println!("{coverage:?}");
    for situation in Situation::ALL {
        assert!(coverage.count(situation) >= 20, "{situation:?} is rare: {coverage:?}");
    }
}

/// A simulator that finds no bugs proves nothing: it must detect each injected fault, by the
/// violation that the fault is described to cause.
#[test]
fn every_injected_fault_is_detected() {
    for fault in InjectedFault::ALL {
        let violation = |seed| {
            let violation = simulate(seed, Some(fault)).err()?;
            fault.explains(&violation).then_some((seed, violation))
        };
        let found = (0..5000).find_map(violation);
        let (seed, violation) = found.unwrap_or_else(|| panic!("{fault:?} was not detected"));
        println!("{fault:?}: seed {seed}: {violation}");
    }
}
