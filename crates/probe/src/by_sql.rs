//! Probes by SQL, for servers whose memory cannot be read and to which nothing can be attached: on
//! another host, or without the necessary privileges.
//!
//! The caller samples each probe when it is due, on a separate connection. Each probe states its
//! limitation: the data it cannot provide.

mod counters;
mod locks;
mod lwlocks;

use std::time::Duration;

use howdah_collect::{CollectError, MonitorConnection};

pub use self::{
    counters::{CompletedCheckpoint, OperationCounts, SqlCheckpoints, SqlIo, SqlSweep, SqlWal},
    locks::{EndedLockWait, SqlExtensions, SqlLocks},
    lwlocks::{LwLockSamples, SampledTime},
};

/// A probe that polls the server by SQL.
pub trait SqlProbe {
    /// Limitation of its data, for the user.
    const LIMITATION: &'static str;
    /// Time between samples; `None` if one sample per report is sufficient.
    const INTERVAL: Option<Duration>;

    /// Takes one sample.
    ///
    /// # Errors
    ///
    /// The server could not be queried.
    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError>;
}

/// A sample could not be taken by SQL.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what}")]
pub struct SqlSampleError {
    /// The view or statistics that could not be read.
    what: &'static str,
    source: CollectError,
}

/// Time between two samples of sessions or locks.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

impl SqlSampleError {
    fn reading(what: &'static str) -> impl FnOnce(CollectError) -> Self {
        move |source| Self { what, source }
    }
}
