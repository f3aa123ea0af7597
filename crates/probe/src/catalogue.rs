//! Every probe there is: what it tells, where it looks, from which sources, and what that costs the server.

use std::fmt;

use howdah_inspect::Server;

use crate::{
    checkpoints::{self, Source},
    durations, extend,
};

/// A probe.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its word: `howdah probe WORD`.
    pub name: &'static str,
    /// The figures that it gives.
    pub tells: &'static str,
    /// Its sources, the best first.
    pub sources: &'static [Source],
    /// What it costs the server.
    pub cost: CostClass,
    looks_at: LooksAt,
}

/// Who pays for a probe, when its source is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostClass {
    /// The server nothing.
    Free,
    /// The server next to nothing: what is watched is rare.
    Rare,
    /// Who waits anyway, some microseconds for each wait.
    Waits,
    /// Every call of a function that is called often; bounded by a budget.
    Calls,
}

/// Where a probe looks.
#[derive(Clone, Copy, Debug)]
enum LooksAt {
    Checkpoints,
    Extension,
    Calls(durations::Figure),
    /// A variable, or more, of each process or of shared memory.
    Memory(&'static str),
}

/// All of them.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "checkpoints",
        tells: "phases of checkpoints: begin, end, duration, buffers, files, segments",
        sources: &[Source::Bpf, Source::Memory, Source::Sql],
        cost: CostClass::Rare,
        looks_at: LooksAt::Checkpoints,
    },
    Entry {
        name: "extend",
        tells: "waits and holds of the lock to extend a relation: count, min, mean, p50, p99, max, by relation",
        sources: &[Source::Bpf, Source::Sql],
        cost: CostClass::Rare,
        looks_at: LooksAt::Extension,
    },
    Entry {
        name: "sweep",
        tells: "the clock sweep: passes, allocations, buffers examined for each",
        sources: &[Source::Memory, Source::Sql],
        cost: CostClass::Free,
        looks_at: LooksAt::Memory("StrategyControl"),
    },
    Entry {
        name: "waits",
        tells: "wait events of all processes: samples, seconds, shares of database time, statements",
        sources: &[Source::Memory, Source::Sql],
        cost: CostClass::Free,
        looks_at: LooksAt::Memory("my_wait_event_info"),
    },
    Entry {
        name: "locks",
        tells: "sleeps for heavyweight locks: count, min, mean, p50, p99, max, by lock",
        sources: &[Source::Bpf, Source::Sql],
        cost: CostClass::Waits,
        looks_at: LooksAt::Calls(durations::Figure::Locks),
    },
    Entry {
        name: "lwlocks",
        tells: "sleeps for lightweight locks: the same, by tranche",
        sources: &[Source::Bpf, Source::Memory, Source::Sql],
        cost: CostClass::Waits,
        looks_at: LooksAt::Calls(durations::Figure::LwLocks),
    },
    Entry {
        name: "io",
        tells: "reads, writes, extensions and syncs of files: the same, by relation",
        sources: &[Source::Bpf, Source::Sql],
        cost: CostClass::Calls,
        looks_at: LooksAt::Calls(durations::Figure::Io),
    },
    Entry {
        name: "wal",
        tells: "flushes and syncs of WAL: the same",
        sources: &[Source::Bpf, Source::Sql],
        cost: CostClass::Calls,
        looks_at: LooksAt::Calls(durations::Figure::Wal),
    },
    Entry {
        name: "queries",
        tells: "planning and executing, both protocols: the same",
        sources: &[Source::Bpf],
        cost: CostClass::Calls,
        looks_at: LooksAt::Calls(durations::Figure::Queries),
    },
    Entry {
        name: "sorts",
        tells: "sorts and spills: the same",
        sources: &[Source::Bpf],
        cost: CostClass::Calls,
        looks_at: LooksAt::Calls(durations::Figure::Sorts),
    },
];

impl Entry {
    /// Where it looks: in a server, or in any. Empty if the server has none of it.
    #[must_use]
    pub fn points(&self, server: Option<&Server>) -> Vec<String> {
        let markers = || checkpoints::all_marker_names().map(|name| format!("marker {name}"));
        match self.looks_at {
            LooksAt::Calls(figure) => figure.points(server),
            LooksAt::Memory(symbol) => vec![format!("memory {symbol}")],
            LooksAt::Extension => extend::SYMBOLS.map(str::to_owned).into(),
            LooksAt::Checkpoints => match server.map(checkpoints::marker_names) {
                Some(Err(_)) => vec!["memory CheckpointStats".to_owned()],
                Some(Ok(_)) => markers().collect(),
                None => markers().chain(["memory CheckpointStats".to_owned()]).collect(),
            },
        }
    }
}

/// As it is written in lists.
impl fmt::Display for CostClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "none",
            Self::Rare => "rare events",
            Self::Waits => "waits only",
            Self::Calls => "each call, within a budget",
        })
    }
}

#[test]
fn every_figure_of_calls_is_listed_once() {
    let words: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
    for figure in durations::Figure::ALL {
        assert_eq!(words.iter().filter(|word| **word == figure.name()).count(), 1);
    }
    assert!(ENTRIES.iter().all(|entry| !entry.points(None).is_empty()));
}
