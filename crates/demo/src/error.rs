//! [`DemoError`]: the reason why a demo failed.

use howdah_compare::{ReadRunError, explain::ExplainError};
use howdah_connect::{ConnectError, QueryError, ResolveError};
use howdah_dataset::{ReadError, WriteError};
use howdah_lab::ClusterError;
use howdah_logs::ReadFilesError;
use howdah_replay::StartError;

/// An error that ends the demo.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// PostgreSQL was not found, or a server did not start.
    #[error(transparent)]
    Lab(#[from] ClusterError),
    /// The address of a demo server could not be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A demo server refused a connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement of the demo failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The log of the production server could not be imported.
    #[error("cannot import the log")]
    Import(#[source] Box<ReadFilesError<WriteError>>),
    /// The capture or a run could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The capture or a run could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A run could not be read.
    #[error(transparent)]
    ReadRun(#[from] ReadRunError),
    /// A replay did not start.
    #[error("cannot start the replay")]
    Start(#[from] StartError),
    /// The plans of the changed queries could not be requested.
    #[error("cannot explain the change")]
    Explain(#[from] ExplainError),
    /// [`Demo::stop`](crate::Demo::stop) was set.
    #[error("interrupted")]
    Interrupted,
}
