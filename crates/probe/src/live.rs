//! Loops that run probes: they sample a server at a given pace, pass on the measurements, and end
//! when the requested time has passed, the user interrupts, or the server stops.
//!
//! Measurements go to a [`ProbeOutput`], which may display them. Totals remain in the probe, or in
//! the result of the loop.

mod by_sql;
mod calls;
mod checkpoints;
mod cpu_budget;
mod extensions;
mod lwlocks;
mod profile;
mod recorder;
mod server_liveness;
mod sweep;
mod ticks;
mod trace;
mod waits;

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use howdah_collect::CollectError;

pub use self::{
    by_sql::poll_by_sql,
    calls::{CallMonitor, CallTotals, LongCall, OperationStats},
    checkpoints::trace_checkpoints,
    extensions::{
        ExtensionInterval, ExtensionLockTotals, ExtensionMonitor, LongExtensionLock, RelationStats,
    },
    lwlocks::{LWLOCK_SAMPLES_LIMITATION, sample_lwlocks},
    profile::profile_stacks,
    recorder::{RecordingLimits, RecordingStop, record},
    server_liveness::{ServerLiveness, ServerUnavailable},
    sweep::sample_sweep,
    trace::{TraceEnd, TraceUpdate, TracedProbe, trace},
    waits::{MemoryWaits, WaitInterval, WaitSource, WaitTotals, profile_waits},
};
use crate::{ProbeError, SampleError, by_sql::SqlSampleError};

/// The times at which a probe reports and ends.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Time from one report to the next.
    pub interval: Duration,
    /// Time after which the probe ends; `None` to run until stopped.
    pub duration: Option<Duration>,
    /// Stops the probe when set.
    pub stop: Arc<AtomicBool>,
}

/// Receives the measurements of a running probe.
pub trait ProbeOutput<U> {
    /// Writes one update.
    ///
    /// # Errors
    ///
    /// The update cannot be written, which ends the probe.
    fn write(&mut self, update: U) -> io::Result<()>;

    /// Flushes the updates written so far. Called before each wait.
    ///
    /// # Errors
    ///
    /// The output cannot be flushed, which ends the probe.
    fn flush(&mut self) -> io::Result<()>;
}

/// The reason why a probe cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The server stopped or cannot be sampled.
    #[error(transparent)]
    Server(#[from] ServerUnavailable),
    /// The metric is not available.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The first sample by SQL failed.
    #[error(transparent)]
    Sql(#[from] SqlSampleError),
    /// A later sample by SQL failed.
    #[error("cannot continue to sample the server")]
    SampleFailed(#[source] SqlSampleError),
    /// A sample of the sessions failed.
    #[error("cannot sample the server's sessions")]
    ActivityFailed(#[source] CollectError),
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<SampleError> for LiveError {
    fn from(error: SampleError) -> Self {
        Self::Server(error.into())
    }
}
