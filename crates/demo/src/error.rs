//! [`DemoError`]: the reason why a demo failed.

use std::{io, path::PathBuf};

use howdah_connect::{ConnectError, QueryError, ResolveError};
use howdah_lab::ClusterError;
use howdah_pool::{CaptureError, PoolerStartError};
use howdah_rehearse::RehearsalError;

/// An error that ends the demo.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// PostgreSQL was not found, or a server could not be started or copied.
    #[error(transparent)]
    Lab(#[from] ClusterError),
    /// The address of a demo server or of the pooler could not be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A connection to a demo server or to the pooler failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement of the demo failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The pooler did not start.
    #[error("cannot start the pooler")]
    Pooler(#[source] Box<PoolerStartError>),
    /// The capture did not start or could not be stopped.
    #[error("cannot capture the traffic")]
    Capture(#[from] CaptureError),
    /// The capture ended early.
    #[error("the capture stopped after an error: {reason}")]
    CaptureEnded {
        /// The recorder's error, as text.
        reason: String,
    },
    /// The output folder has files or folders with names that the demo uses, but no demo wrote it.
    #[error("{} was not written by howdah demo, so it is not replaced", path.display())]
    ForeignFolder {
        /// The file or folder that would be replaced.
        path: PathBuf,
    },
    /// A file or folder of the demo cannot be created, written or removed.
    #[error("cannot write or remove {}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The rehearsal failed.
    #[error(transparent)]
    Rehearsal(RehearsalError),
    /// [`Demo::stop`](crate::Demo::stop) was set.
    #[error("interrupted")]
    Interrupted,
}

impl From<RehearsalError> for DemoError {
    fn from(error: RehearsalError) -> Self {
        match error {
            RehearsalError::Interrupted => Self::Interrupted,
            other => Self::Rehearsal(other),
        }
    }
}
