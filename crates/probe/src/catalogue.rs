//! The registry of probes: what each reports, what it attaches to, its sources, and its cost.

use std::fmt;

use howdah_inspect::RunningServer;

use crate::{
    checkpoints::{self, ProbeSource},
    durations, extend,
};

/// A probe that `howdah probe` offers.
#[derive(Clone, Copy, Debug)]
pub struct ProbeEntry {
    /// Name of the subcommand: `howdah probe NAME`.
    pub name: &'static str,
    /// The metrics that the probe reports.
    pub description: &'static str,
    /// Sources of the metrics, best first.
    pub sources: &'static [ProbeSource],
    /// Cost of the probe to the server.
    pub cost: CostClass,
    target: ProbeTarget,
}

/// The cost of a probe with its best source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostClass {
    /// Free for the server: only its memory or its statistics are read.
    Free,
    /// Negligible, because the traced events are rare.
    Rare,
    /// A few microseconds per wait, paid by backends that wait anyway.
    Waits,
    /// Paid by every call of a frequently called function, but bounded by a budget.
    Calls,
    /// A few microseconds per sample of a running process, or each time that it leaves the CPU.
    Stacks,
}

/// The functions, USDT probes or variable of the server that a probe uses.
#[derive(Clone, Copy, Debug)]
enum ProbeTarget {
    Checkpoints,
    Extension,
    Calls(durations::ProbeMetric),
    /// The symbol of a variable in the memory of the server.
    Memory(&'static str),
    /// Events of the kernel, which use no code of the server.
    Kernel,
    /// System views.
    Views(&'static str),
}

/// The probes, in the order of `howdah probe list`.
pub const PROBES: &[ProbeEntry] = &[
    ProbeEntry {
        name: "checkpoints",
        description: "checkpoint phases: start, end, duration, buffers, files, segments",
        sources: &[ProbeSource::Bpf, ProbeSource::Memory, ProbeSource::Sql],
        cost: CostClass::Rare,
        target: ProbeTarget::Checkpoints,
    },
    ProbeEntry {
        name: "extend",
        description: "waits for and holds of relation extension locks: count, min, mean, p50, p99, max, by relation",
        sources: &[ProbeSource::Bpf, ProbeSource::Sql],
        cost: CostClass::Rare,
        target: ProbeTarget::Extension,
    },
    ProbeEntry {
        name: "sweep",
        description: "clock sweep: passes, allocations, buffers examined per allocation",
        sources: &[ProbeSource::Memory, ProbeSource::Sql],
        cost: CostClass::Free,
        target: ProbeTarget::Memory("StrategyControl"),
    },
    ProbeEntry {
        name: "waits",
        description: "wait events of all processes: samples, seconds, shares of database time, statements",
        sources: &[ProbeSource::Memory, ProbeSource::Sql],
        cost: CostClass::Free,
        target: ProbeTarget::Memory("my_wait_event_info"),
    },
    ProbeEntry {
        name: "profile",
        description: "functions in which processes run, or for which they leave the CPU: samples, seconds, as flame graph",
        sources: &[ProbeSource::Perf],
        cost: CostClass::Stacks,
        target: ProbeTarget::Kernel,
    },
    ProbeEntry {
        name: "locks",
        description: "waits for heavyweight locks: count, min, mean, p50, p99, max, by lock",
        sources: &[ProbeSource::Bpf, ProbeSource::Sql],
        cost: CostClass::Waits,
        target: ProbeTarget::Calls(durations::ProbeMetric::Locks),
    },
    ProbeEntry {
        name: "lock-graph",
        description: "sessions that wait for locks now: for which lock, row or transaction, and who blocks them",
        sources: &[ProbeSource::Sql],
        cost: CostClass::Free,
        target: ProbeTarget::Views("pg_locks, pg_stat_activity"),
    },
    ProbeEntry {
        name: "lwlocks",
        description: "waits for lightweight locks: the same, by tranche",
        sources: &[ProbeSource::Bpf, ProbeSource::Memory, ProbeSource::Sql],
        cost: CostClass::Waits,
        target: ProbeTarget::Calls(durations::ProbeMetric::LwLocks),
    },
    ProbeEntry {
        name: "spins",
        description: "spin delays, waits for spinlocks: the same, by function, file and line of the caller; lengthens them, for short looks only",
        sources: &[ProbeSource::Bpf],
        cost: CostClass::Waits,
        target: ProbeTarget::Calls(durations::ProbeMetric::Spins),
    },
    ProbeEntry {
        name: "io",
        description: "file reads, writes, extensions and fsyncs: the same, by relation",
        sources: &[ProbeSource::Bpf, ProbeSource::Sql],
        cost: CostClass::Calls,
        target: ProbeTarget::Calls(durations::ProbeMetric::Io),
    },
    ProbeEntry {
        name: "wal",
        description: "WAL flushes and fsyncs: the same",
        sources: &[ProbeSource::Bpf, ProbeSource::Sql],
        cost: CostClass::Calls,
        target: ProbeTarget::Calls(durations::ProbeMetric::Wal),
    },
    ProbeEntry {
        name: "queries",
        description: "planning and execution, simple and extended queries: the same",
        sources: &[ProbeSource::Bpf],
        cost: CostClass::Calls,
        target: ProbeTarget::Calls(durations::ProbeMetric::Queries),
    },
    ProbeEntry {
        name: "sorts",
        description: "sorts and spills: the same",
        sources: &[ProbeSource::Bpf],
        cost: CostClass::Calls,
        target: ProbeTarget::Calls(durations::ProbeMetric::Sorts),
    },
];

impl ProbeEntry {
    /// Returns the functions, USDT probes and variables that the probe uses in `server` or, if it
    /// is `None`, in servers of any version. May be empty if the server has none of them.
    pub fn points(&self, server: Option<&RunningServer>) -> Vec<String> {
        let usdt_probes = || checkpoints::all_usdt_names().map(|name| format!("usdt {name}"));
        match self.target {
            ProbeTarget::Calls(metric) => metric.points(server),
            ProbeTarget::Kernel => vec!["perf events".to_owned()],
            ProbeTarget::Views(names) => vec![names.to_owned()],
            ProbeTarget::Memory(symbol) => vec![format!("memory {symbol}")],
            ProbeTarget::Extension => extend::SYMBOLS.map(str::to_owned).into(),
            ProbeTarget::Checkpoints => match server.map(checkpoints::usdt_names) {
                Some(Err(_)) => vec!["memory CheckpointStats".to_owned()],
                Some(Ok(_)) => usdt_probes().collect(),
                None => usdt_probes().chain(["memory CheckpointStats".to_owned()]).collect(),
            },
        }
    }
}

/// Formats the cost as in the output of `howdah probe list`.
impl fmt::Display for CostClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "none",
            Self::Rare => "rare events",
            Self::Waits => "waits only",
            Self::Calls => "every call, within a budget",
            Self::Stacks => "samples, or switches",
        })
    }
}

#[test]
fn every_call_metric_is_listed_once() {
    let names: Vec<_> = PROBES.iter().map(|entry| entry.name).collect();
    for metric in durations::ProbeMetric::ALL {
        assert_eq!(names.iter().filter(|name| **name == metric.name()).count(), 1);
    }
    assert!(PROBES.iter().all(|entry| !entry.points(None).is_empty()));
}
