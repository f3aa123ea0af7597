//! The simulator: clients with scripts, servers that speak PostgreSQL's protocol, and workers' cores
//! between them, on a fake clock with seeded faults.
//!
//! Every client has a second, private server that hears the same: what that one answers, the client
//! must be answered through the pooler, byte for byte (but for reports of settings and notices), or
//! its connection must be closed. Servers notice whose statements they run and what they still hold
//! of others; and of several shards, whether it is theirs that a statement is meant for. In some worlds
//! what clients send is played on a mirror, too, which may fail by itself, or hang for good.
//!
//! So a run fails if anybody sees another's rows, if a request is answered twice or never, if a server
//! is used dirty or for another shard, if a cancel hits another's statement, if anybody waits for a
//! mirror or is sent away where nothing but a mirror fails, if there are too many servers, or if more is
//! kept for a mirror than may be.
//!
//! `make simulate` runs 100,000 worlds, `HOWDAH_POOL_SEEDS=500 cargo test -p howdah-pool sim` runs 500,
//! and `HOWDAH_POOL_SEED=17` one, with the whole dialogue in its output.

mod backend;
mod random;
mod script;
mod world;

use std::env;

use crate::{MirrorReport, core::InjectedFault, mirror::DropReason};

fn run(seed: u64, mutant: Option<InjectedFault>) -> Result<Option<MirrorReport>, String> {
    world::World::new(seed, mutant).run()
}

/// Worlds that are shown before the search for more ends.
const BROKEN_SHOWN: usize = 5;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn no_world_breaks_a_promise() {
    let seeds = match number("HOWDAH_POOL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HOWDAH_POOL_SEEDS").unwrap_or(2000),
    };
    let broken: Vec<_> = seeds
        .filter_map(|seed| Some(format!("seed {seed}: {}", run(seed, None).err()?)))
        .take(BROKEN_SHOWN)
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Worlds whose mirrors do nothing would show nothing.
#[test]
fn mirrors_play_what_clients_send_and_drop_what_they_cannot() {
    let mut sum = MirrorReport::default();
    for report in (0..1500).filter_map(|seed| run(seed, None).ok().flatten()) {
        sum.transactions += report.transactions;
        sum.mirror_failed += report.mirror_failed + report.client_failed + report.different;
        sum.dropped.iter_mut().zip(report.dropped).for_each(|(sum, more)| *sum += more);
    }
    // Tables change under prepared statements at one time here and at another there.
    assert!(sum.mirror_failed * 500 < sum.transactions, "{sum:?}");
    assert!(sum.transactions > 1000, "{sum:?}");
    for why in [
        DropReason::Full,
        DropReason::Unreachable,
        DropReason::Timeout,
        DropReason::Lost,
        DropReason::Left,
    ] {
        assert!(sum.dropped[why as usize] > 0, "{why:?}: {sum:?}");
    }
}

/// A test that finds nothing is worth nothing: each of these mistakes has to be found.
#[test]
fn every_planted_mistake_is_found() {
    for mutant in InjectedFault::ALL {
        let found = (0..2000).find_map(|seed| Some((seed, run(seed, Some(mutant)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        println!("{mutant:?}: seed {seed}: {violation}");
    }
}
