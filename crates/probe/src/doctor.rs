//! Reports which metrics of a server are available here, from which source, at what cost, and what
//! is missing for a better source. SQL is not considered as a source.

use std::{fmt, fs, path::PathBuf, time::Duration};

use howdah_inspect::{ExecutableState, InspectError, RunningServer};

use crate::{
    bpf::supports_uprobe_multi, calibrate::HitCost, capability::Capabilities,
    checkpoints::ProbeSource, durations, extend, patched_code, stacks, traced_server::TracedServer,
};

/// The diagnosis of a server.
#[derive(Clone, Debug)]
pub struct ProbeDiagnosis {
    /// The kernel features that probes use.
    pub kernel: KernelInfo,
    /// The effective capabilities of this process; BPF programs need some of them.
    pub capabilities: Capabilities,
    /// The cost of a hit, if BPF programs may be run.
    pub hit_cost: Option<HitCost>,
    /// Availability, source and cost of each metric, in the order of `howdah probe doctor`.
    pub metrics: Vec<MetricDiagnosis>,
}

/// The facts about a server that a diagnosis shows.
#[derive(Clone, Debug)]
pub struct DiagnosedServer {
    /// The server's major version.
    pub major: u32,
    /// The postmaster's process id.
    pub postmaster: u32,
    /// Path of the data directory, in the server's file system.
    pub data_dir: PathBuf,
    /// The executable, as the server sees it.
    pub executable: PathBuf,
    /// Whether the executable is still the file that the server was started from.
    pub executable_state: ExecutableState,
    /// The build id of the executable.
    pub build_id: Option<String>,
    /// Number of sites of USDT probes; 0 if the server was built without them.
    pub usdt_probes: usize,
    /// Functions whose code in any of the server's processes differs from the executable, as it
    /// does at a breakpoint.
    pub patched_symbols: Vec<String>,
}

impl DiagnosedServer {
    /// Inspects a server.
    ///
    /// # Errors
    ///
    /// The server is gone or cannot be read.
    pub fn read(server: &RunningServer) -> Result<Self, InspectError> {
        let (postmaster, binary) = (server.postmaster(), server.binary());
        let patched_symbols = patched_code::patched_symbols(server)?;
        Ok(Self {
            major: server.major(),
            postmaster: postmaster.pid(),
            data_dir: server.data_dir()?,
            executable: postmaster.executable_path()?,
            executable_state: postmaster.executable_state()?,
            build_id: binary.build_id().map(ToString::to_string),
            usdt_probes: binary.usdt_probes().len(),
            patched_symbols: patched_symbols.iter().map(ToString::to_string).collect(),
        })
    }
}

/// The kernel's release and features.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    release: String,
    has_multi: bool,
}

/// The availability of a metric.
#[derive(Clone, Debug)]
pub struct MetricDiagnosis {
    /// The subcommand that shows the metric.
    pub name: &'static str,
    /// The best available source; `None` if the metric is not available except by SQL.
    pub source: Option<ProbeSource>,
    /// Cost of the metric with `source`; `None` without a source.
    pub cost: Option<MetricCost>,
    /// The limitation of the source, or the reason why a better source, or any source, is not
    /// available; `None` if nothing is missing.
    pub missing: Option<String>,
}

/// The cost of observing a metric, and whether the server or this process bears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricCost {
    /// Time that each event costs the server.
    PerHit(Duration),
    /// Time that each sample costs this process. The server is not affected.
    PerSample(Duration),
}

/// Diagnoses a server. Attaches nothing to the server, only to functions of this process.
pub fn diagnose(server: &RunningServer) -> ProbeDiagnosis {
    let capabilities = Capabilities::current();
    let hit_cost = HitCost::measure();
    let why_not = hit_cost.as_ref().err().map(ToString::to_string);
    let hit_cost = hit_cost.ok();
    let mut metrics = vec![
        checkpoints(server, hit_cost, why_not.as_deref()),
        extension_locks(server, hit_cost, why_not.as_deref()),
        sweep(server),
        waits(server),
        profile(server),
        MetricDiagnosis {
            name: "lock-graph",
            source: Some(ProbeSource::Sql),
            cost: None,
            missing: None,
        },
    ];
    let calls = durations::ProbeMetric::ALL.into_iter();
    metrics
        .extend(calls.map(|metric| call_durations(server, metric, hit_cost, why_not.as_deref())));
    ProbeDiagnosis { kernel: KernelInfo::current(), capabilities, hit_cost, metrics }
}

fn checkpoints(
    server: &RunningServer,
    hit: Option<HitCost>,
    why_not: Option<&str>,
) -> MetricDiagnosis {
    let name = "checkpoints";
    let has_markers =
        server.binary().usdt_probes().iter().any(|probe| probe.name == "checkpoint__start");
    match (hit, has_markers) {
        // A USDT probe is a nop.
        (Some(hit), true) => MetricDiagnosis {
            name,
            source: Some(ProbeSource::Bpf),
            cost: Some(MetricCost::PerHit(hit.emulated)),
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
            let limitation = format!("clog, subtrans, multixact, two-phase ({reason})");
            memory_metric(name, read, Some(limitation))
        }
    }
}

fn extension_locks(
    server: &RunningServer,
    hit: Option<HitCost>,
    why_not: Option<&str>,
) -> MetricDiagnosis {
    let name = "extend";
    let none = |missing: String| MetricDiagnosis {
        name,
        source: None,
        cost: None,
        missing: Some(missing),
    };
    let Some(hit) = hit else { return none(why_not.unwrap_or_default().to_owned()) };
    let cost = extend::check_layout(server).and_then(|()| extend::cost_per_lock(server, hit));
    match cost {
        Ok(cost) => MetricDiagnosis {
            name,
            source: Some(ProbeSource::Bpf),
            cost: Some(MetricCost::PerHit(cost)),
            missing: None,
        },
        Err(error) => none(error.to_string()),
    }
}

fn call_durations(
    server: &RunningServer,
    metric: durations::ProbeMetric,
    hit: Option<HitCost>,
    why_not: Option<&str>,
) -> MetricDiagnosis {
    let name = metric.name();
    let none = |missing: String| MetricDiagnosis {
        name,
        source: None,
        cost: None,
        missing: Some(missing),
    };
    let Some(hit) = hit else {
        let why_not = why_not.unwrap_or_default();
        return match metric {
            // Samples show which locks are waited for, but not for how long.
            durations::ProbeMetric::LwLocks => {
                let missing = Some(format!("single waits and their lengths ({why_not})"));
                MetricDiagnosis { name, missing, ..waits(server) }
            }
            _ => none(why_not.to_owned()),
        };
    };
    match TracedServer::new(server).and_then(|traced| metric.cost_per_call(server, &traced, hit)) {
        Ok(cost) => MetricDiagnosis {
            name,
            source: Some(ProbeSource::Bpf),
            cost: Some(MetricCost::PerHit(cost)),
            missing: None,
        },
        Err(error) => none(error.to_string()),
    }
}

fn sweep(server: &RunningServer) -> MetricDiagnosis {
    let sweep = server.clock_sweep();
    match sweep {
        Ok(sweep) => memory_metric("sweep", || sweep.read().is_ok(), None),
        Err(error) => MetricDiagnosis {
            name: "sweep",
            source: None,
            cost: None,
            missing: Some(error.to_string()),
        },
    }
}

fn waits(server: &RunningServer) -> MetricDiagnosis {
    let address = server.binary().address("my_wait_event_info");
    let limitation = "waits shorter than the sampling interval";
    match address {
        Ok(address) => {
            let read = || server.memory().pointer(address).is_ok();
            memory_metric("waits", read, Some(limitation.to_owned()))
        }
        Err(error) => MetricDiagnosis {
            name: "waits",
            source: None,
            cost: None,
            missing: Some(error.to_string()),
        },
    }
}

fn profile(server: &RunningServer) -> MetricDiagnosis {
    let missing = stacks::profile::check_profile(server).err().map(|error| error.to_string());
    let source = missing.is_none().then_some(ProbeSource::Perf);
    MetricDiagnosis { name: "profile", source, cost: None, missing }
}

/// Diagnoses a metric that is read from the server's memory.
fn memory_metric(
    name: &'static str,
    read: impl Fn() -> bool,
    missing: Option<String>,
) -> MetricDiagnosis {
    const SAMPLES: u32 = 100;
    if !read() {
        let missing = "the server's memory may not be read: run as its user, or as root";
        return MetricDiagnosis {
            name,
            source: None,
            cost: None,
            missing: Some(missing.to_owned()),
        };
    }
    let start = std::time::Instant::now();
    for _ in 0..SAMPLES {
        read();
    }
    let cost = MetricCost::PerSample(start.elapsed() / SAMPLES);
    MetricDiagnosis { name, source: Some(ProbeSource::Memory), cost: Some(cost), missing }
}

impl KernelInfo {
    fn current() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self { release: release.trim().to_owned(), has_multi: supports_uprobe_multi() }
    }
}

impl fmt::Display for KernelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link =
            if self.has_multi { "many probe points per link" } else { "one link per probe point" };
        write!(f, "Linux {}, {link}", self.release)
    }
}

impl fmt::Display for MetricCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |duration: &Duration| duration.as_nanos() as f64 / 1e3;
        match self {
            Self::PerHit(cost) => write!(f, "{:.1} us per hit", us(cost)),
            Self::PerSample(cost) => write!(f, "{:.1} us per sample", us(cost)),
        }
    }
}
