//! Probes by SQL, for servers whose memory cannot be read and to which nothing can be attached: on
//! another host, or without the necessary privileges.
//!
//! The caller decides when to sample a probe, and provides the connection. Each probe states its
//! limitation: the data that it cannot show. [`poll_by_sql`](crate::live::poll_by_sql) samples a
//! probe at regular intervals.

mod blockers;
mod counters;
mod identities;
mod lock_graph;
mod locks;
mod lwlocks;
mod waits;

use std::time::Duration;

use howdah_collect::{CollectError, MonitorConnection};

pub(crate) use self::blockers::BlockerMonitor;
pub use self::{
    counters::{CompletedCheckpoint, OperationCounts, SqlCheckpoints, SqlIo, SqlSweep, SqlWal},
    identities::IdentityMonitor,
    lock_graph::{LockGraph, LockGraphNode, LockWait},
    locks::{EndedLockWait, SqlExtensions, SqlLocks},
    lwlocks::{LwLockSamples, SampledTime},
    waits::{SqlWaits, UnknownWaitEvents},
};

/// A probe that polls the server by SQL.
pub trait SqlProbe {
    /// Limitation of the probe's data, as text for the user.
    const LIMITATION: &'static str;
    /// Time between samples; `None` if one sample per report is sufficient.
    const INTERVAL: Option<Duration>;

    /// Takes one sample.
    ///
    /// # Errors
    ///
    /// The server could not be queried.
    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError>;

    /// Whether the event that the probe waits for has happened; always false if there is none.
    fn is_done(&self) -> bool {
        false
    }
}

/// The reason why a sample could not be taken by SQL.
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
