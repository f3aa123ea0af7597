//! Traces checkpoints: the phases, their durations, and the buffers, files and segments they
//! handled.
//!
//! ```text
//! checkpoint ─────────────────────────────────────────────────────────────┐
//!   ├─ buffers: clog, subtrans, multixact ─ write (BufferSync) ─ sync ──┤  │
//!   └─ two-phase                                                           │
//! ```
//!
//! With USDT probes (`--enable-dtrace`), every phase is known to the microsecond, including its
//! nesting. If the server has none, or BPF programs are not permitted, the checkpointer's
//! statistics (`CheckpointStats`) can be polled in its memory: start, first write, first sync, last
//! sync and end, with the times that the server itself recorded. `write` then includes everything
//! from the first write to the first sync.
//!
//! Source: `CreateCheckPoint`, `CheckPointGuts` and `LogCheckpointEnd` in `xlog.c`.

mod phase_tracker;
mod stats;
mod usdt;

use std::time::{Duration, SystemTime};

use howdah_inspect::RunningServer;

use self::{stats::FromCheckpointStats, usdt::FromUsdt};
use crate::error::ProbeError;

/// Reports the checkpoints of a running server as they happen.
#[derive(Debug)]
pub struct CheckpointTracer(PhaseSource);

#[derive(Debug)]
enum PhaseSource {
    Usdt(FromUsdt),
    Stats(FromCheckpointStats),
}

/// The source of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeSource {
    /// BPF programs, which report each event with its exact time.
    Bpf,
    /// The server's memory, read at intervals.
    Memory,
    /// SQL queries on the server's system views.
    Sql,
    /// Events of the kernel with the stacks of the server's processes.
    Perf,
}

/// A checkpoint or a part of one, as nested in the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointPhase {
    /// The whole checkpoint. USDT probes do not report this phase for the restartpoints of a
    /// standby.
    Checkpoint,
    /// Writing and syncing all dirty data.
    Buffers,
    /// Writing the commit log.
    Clog,
    /// Writing the subtransaction log.
    Subtrans,
    /// Writing the multixact logs.
    Multixact,
    /// Writing dirty buffers.
    Write,
    /// Syncing files.
    Sync,
    /// Writing the state of prepared transactions.
    TwoPhase,
}

/// The start or the end of a phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseUpdate {
    /// The phase started.
    Started {
        /// Kind of the phase.
        phase: CheckpointPhase,
        /// Id of the process that performs the checkpoint. USDT probes report the id in the initial
        /// PID namespace.
        pid: u32,
        /// Wall-clock time of the start.
        at: SystemTime,
        /// Number of enclosing phases; 0 for the outermost.
        depth: usize,
    },
    /// The phase finished, with its duration and counts.
    Finished(FinishedPhase),
}

/// A finished phase of a checkpoint, or a whole checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedPhase {
    /// Kind of the phase.
    pub phase: CheckpointPhase,
    /// Id of the process that performs the checkpoint. USDT probes report the id in the initial PID
    /// namespace.
    pub pid: u32,
    /// Wall-clock time of the start.
    pub started_at: SystemTime,
    /// Time from start to finish.
    pub duration: Duration,
    /// Number of enclosing phases; 0 for the outermost.
    pub depth: usize,
    /// Buffers, files and segments that the phase handled.
    pub counts: PhaseCounts,
}

/// Work done by a phase. Fields are `None` if they do not apply to the phase or the source does not
/// report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounts {
    /// Dirty buffers that the phase wrote to files.
    pub buffers_written: Option<u64>,
    /// Dirty buffers that the phase had to write when it started.
    pub buffers_to_write: Option<u64>,
    /// Number of files that the phase flushed to disk, including SLRUs such as `pg_xact`.
    pub files_synced: Option<u64>,
    /// The longest sync of one file.
    pub longest_sync: Option<Duration>,
    /// WAL segments added, removed and recycled.
    pub segments: Option<[u64; 3]>,
}

impl CheckpointTracer {
    /// Traces checkpoints with USDT probes.
    ///
    /// # Errors
    ///
    /// The server lacks one of the USDT probes or cannot be inspected, or BPF programs cannot be
    /// run.
    pub fn from_usdt(server: &RunningServer) -> Result<Self, ProbeError> {
        FromUsdt::attach(server).map(|watch| Self(PhaseSource::Usdt(watch)))
    }

    /// Traces checkpoints by polling the checkpointer's statistics. The caller must
    /// [poll](Self::poll) more often than checkpoints occur; at ten times a second, phases are
    /// reported as they start.
    ///
    /// # Errors
    ///
    /// The server has no checkpointer, its memory cannot be read, or its memory does not contain
    /// these statistics.
    pub fn from_stats(server: &RunningServer) -> Result<Self, ProbeError> {
        FromCheckpointStats::open(server).map(|watch| Self(PhaseSource::Stats(watch)))
    }

    /// Returns how phases are observed: by USDT probes, or by polling the server's memory.
    pub fn source(&self) -> ProbeSource {
        match self.0 {
            PhaseSource::Usdt(_) => ProbeSource::Bpf,
            PhaseSource::Stats(_) => ProbeSource::Memory,
        }
    }

    /// Calls `visit` with each phase that started or finished since the previous poll.
    ///
    /// # Errors
    ///
    /// The statistics cannot be read, usually because the server stopped or currently has no
    /// checkpointer.
    pub fn poll(&mut self, mut visit: impl FnMut(PhaseUpdate)) -> Result<(), ProbeError> {
        match &mut self.0 {
            PhaseSource::Usdt(watch) => {
                watch.poll(&mut visit);
                Ok(())
            }
            PhaseSource::Stats(watch) => watch.poll(&mut visit),
        }
    }

    /// Returns the number of events lost because the kernel's ring buffer was full or the kernel
    /// did not run a program; always 0 if the statistics are polled.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn lost_events(&self) -> Result<u64, ProbeError> {
        match &self.0 {
            PhaseSource::Usdt(watch) => watch.lost_events(),
            PhaseSource::Stats(_) => Ok(0),
        }
    }
}

/// Returns the names of the USDT probes that mark phases of a checkpoint.
pub(crate) fn all_usdt_names() -> impl Iterator<Item = &'static str> {
    usdt::names()
}

/// Returns the names of the USDT probes of checkpoints, if the server has all of them.
pub(crate) fn usdt_names(server: &RunningServer) -> Result<Vec<&'static str>, ProbeError> {
    let names: Vec<_> = usdt::names().collect();
    let has = |name: &str| server.binary().usdt_probes().iter().any(|probe| probe.name == name);
    match names.iter().copied().find(|name| !has(name)) {
        Some(probe) => Err(ProbeError::NoUsdtProbe { probe }),
        None => Ok(names),
    }
}

impl ProbeSource {
    /// Returns the source's name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::Memory => "memory",
            Self::Sql => "sql",
            Self::Perf => "perf",
        }
    }
}

impl CheckpointPhase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Checkpoint,
        Self::Buffers,
        Self::Clog,
        Self::Subtrans,
        Self::Multixact,
        Self::Write,
        Self::Sync,
        Self::TwoPhase,
    ];

    /// Returns the phase's name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Buffers => "buffers",
            Self::Clog => "clog",
            Self::Subtrans => "subtrans",
            Self::Multixact => "multixact",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::TwoPhase => "two-phase",
        }
    }
}
