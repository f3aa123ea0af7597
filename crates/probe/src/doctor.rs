//! Which figures can be had of a server here, from which source, at which cost, and what is missing for a
//! better one.

use std::{fmt, fs, time::Duration};

use howdah_inspect::Server;

use crate::{
    bpf::has_multi, calibrate::HitCost, capability::Capabilities, checkpoints::Source, durations,
    extend, traced::Traced,
};

/// What was found.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The kernel, as far as probes ask.
    pub kernel: Kernel,
    /// What this process may do.
    pub capabilities: Capabilities,
    /// What a hit costs, if programs may be run.
    pub hit_cost: Option<HitCost>,
    /// Every figure.
    pub figures: Vec<Figure>,
}

/// The kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    release: String,
    has_multi: bool,
}

/// A figure, and how it can be had.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The command that shows it.
    pub name: &'static str,
    /// The best source here. `None`: it cannot be had.
    pub source: Option<Source>,
    /// What it costs.
    pub cost: Option<Cost>,
    /// What the source lacks, or why there is not a better one.
    pub missing: Option<String>,
}

/// What a figure costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The server, for each event: so long.
    EachHit(Duration),
    /// Us, for each look: so long. The server nothing.
    EachLook(Duration),
}

/// Finds out. Attaches to nothing but functions of this process itself.
#[must_use]
pub fn diagnose(server: &Server) -> Diagnosis {
    let capabilities = Capabilities::own();
    let hit_cost = HitCost::measure();
    let why_not = hit_cost.as_ref().err().map(ToString::to_string);
    let hit_cost = hit_cost.ok();
    let mut figures = vec![
        checkpoints(server, hit_cost, why_not.as_deref()),
        extension_locks(server, hit_cost, why_not.as_deref()),
        sweep(server),
        waits(server),
    ];
    let calls = durations::Figure::ALL.into_iter();
    figures.extend(calls.map(|figure| durations(server, figure, hit_cost, why_not.as_deref())));
    Diagnosis { kernel: Kernel::own(), capabilities, hit_cost, figures }
}

fn checkpoints(server: &Server, hit: Option<HitCost>, why_not: Option<&str>) -> Figure {
    let name = "checkpoints";
    let has_markers =
        server.binary().markers().iter().any(|marker| marker.name == "checkpoint__start");
    match (hit, has_markers) {
        // A marker is a nop.
        (Some(hit), true) => Figure {
            name,
            source: Some(Source::Bpf),
            cost: Some(Cost::EachHit(hit.emulated)),
            missing: None,
        },
        (_, has_markers) => {
            let address = server.binary().address("CheckpointStats");
            let read = || server.memory().bytes::<80>(address.as_ref().map_or(0, |at| *at)).is_ok();
            let reason = match (has_markers, why_not) {
                (false, _) => "the server was built without --enable-dtrace",
                (true, Some(reason)) => reason,
                (true, None) => "",
            };
            let lacks = format!("clog, subtrans, multixact, two-phase ({reason})");
            from_memory(name, read, Some(lacks))
        }
    }
}

fn extension_locks(server: &Server, hit: Option<HitCost>, why_not: Option<&str>) -> Figure {
    let name = "extend";
    let none = |missing: String| Figure { name, source: None, cost: None, missing: Some(missing) };
    let Some(hit) = hit else { return none(why_not.unwrap_or_default().to_owned()) };
    let cost = extend::is_understood(server).and_then(|()| extend::cost_of_lock(server, hit));
    match cost {
        Ok(cost) => Figure {
            name,
            source: Some(Source::Bpf),
            cost: Some(Cost::EachHit(cost)),
            missing: None,
        },
        Err(error) => none(error.to_string()),
    }
}

fn durations(
    server: &Server,
    figure: durations::Figure,
    hit: Option<HitCost>,
    why_not: Option<&str>,
) -> Figure {
    let name = figure.name();
    let none = |missing: String| Figure { name, source: None, cost: None, missing: Some(missing) };
    let Some(hit) = hit else {
        let why_not = why_not.unwrap_or_default();
        return match figure {
            // Samples tell which locks are waited for, and not how long.
            durations::Figure::LwLocks => {
                let missing = Some(format!("single waits and their lengths ({why_not})"));
                Figure { name, missing, ..waits(server) }
            }
            _ => none(why_not.to_owned()),
        };
    };
    match Traced::new(server).and_then(|traced| figure.cost_of_call(server, &traced, hit)) {
        Ok(cost) => Figure {
            name,
            source: Some(Source::Bpf),
            cost: Some(Cost::EachHit(cost)),
            missing: None,
        },
        Err(error) => none(error.to_string()),
    }
}

fn sweep(server: &Server) -> Figure {
    let sweep = server.clock_sweep();
    match sweep {
        Ok(sweep) => from_memory("sweep", || sweep.read().is_ok(), None),
        Err(error) => {
            Figure { name: "sweep", source: None, cost: None, missing: Some(error.to_string()) }
        }
    }
}

fn waits(server: &Server) -> Figure {
    let address = server.binary().address("my_wait_event_info");
    let lacks = "durations below the time between two looks";
    match address {
        Ok(address) => {
            let read = || server.memory().pointer(address).is_ok();
            from_memory("waits", read, Some(lacks.to_owned()))
        }
        Err(error) => {
            Figure { name: "waits", source: None, cost: None, missing: Some(error.to_string()) }
        }
    }
}

/// A figure that is read from memory, if that can be read.
fn from_memory(name: &'static str, read: impl Fn() -> bool, missing: Option<String>) -> Figure {
    const LOOKS: u32 = 100;
    if !read() {
        let missing = "the server's memory may not be read: run as its user, or as root";
        return Figure { name, source: None, cost: None, missing: Some(missing.to_owned()) };
    }
    let begin = std::time::Instant::now();
    for _ in 0..LOOKS {
        read();
    }
    let cost = Cost::EachLook(begin.elapsed() / LOOKS);
    Figure { name, source: Some(Source::Memory), cost: Some(cost), missing }
}

impl Kernel {
    fn own() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self { release: release.trim().to_owned(), has_multi: has_multi() }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = if self.has_multi { "many points in one link" } else { "one link a point" };
        write!(f, "Linux {}, {link}", self.release)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |duration: &Duration| duration.as_nanos() as f64 / 1e3;
        match self {
            Self::EachHit(cost) => write!(f, "{:.1} us a hit", us(cost)),
            Self::EachLook(cost) => write!(f, "{:.1} us a look", us(cost)),
        }
    }
}
