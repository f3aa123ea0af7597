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
//! `make simulate` runs 100,000 simulations, `HOWDAH_POOL_SEEDS=500 cargo test -p howdah-pool-core
//! sim` runs 500, and `HOWDAH_POOL_SEED=17` runs one and prints its whole dialogue.

mod backend;
mod connect_query;
mod coverage;
mod faults;
mod random;
mod script;
mod sharded_table;
mod simulation;

use std::env;

use self::{
    coverage::{Coverage, Situation},
    faults::InjectedFault,
};
use crate::{MirrorReport, mirror::target::DropReason};

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

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn simulations_uphold_all_guarantees() {
    let seeds = match env_number("HOWDAH_POOL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env_number("HOWDAH_POOL_SEEDS").unwrap_or(2000),
    };
    let broken: Vec<_> = seeds
        .filter_map(|seed| Some(format!("seed {seed}: {}", simulate(seed, None).err()?)))
        .take(FAILURES_SHOWN_MAX)
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Simulations prove nothing about mirrors unless transactions run at the mirror, and others are
/// dropped for various reasons.
#[test]
fn mirrors_run_or_drop_all_client_transactions() {
    let mut sum = MirrorReport::default();
    for report in (0..1500).filter_map(|seed| simulate(seed, None).ok()?.mirror) {
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
