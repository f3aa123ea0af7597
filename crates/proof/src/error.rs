//! What can keep an experiment from its end.

use std::{io, process::ExitStatus};

use howdah_connect::{ConnectError, QueryError, ResolveError};
use howdah_warm::{dump::DumpError, load::LoadError, os_cache::OsCacheError};

/// Why nothing was proved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// No throw-away server could be had, or it did not start or stop.
    #[error(transparent)]
    Lab(#[from] howdah_lab::Error),
    /// The throw-away server's address makes no sense.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The server let nobody in.
    #[error("the server cannot be connected to")]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("the server refused {step}")]
    Query {
        /// Which.
        step: &'static str,
        /// What it said.
        source: QueryError,
    },
    /// The command that restarts the server could not be run.
    #[error("the command to restart the server could not be run: {command}")]
    Command {
        /// The command.
        command: String,
        /// Why not.
        source: io::Error,
    },
    /// It was run, and failed.
    #[error("the command to restart the server failed ({status}): {command}")]
    CommandFailed {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// It was run, and the server is the same as before.
    #[error("the command to restart the server left it running: {command}")]
    NotRestarted {
        /// The command.
        command: String,
    },
    /// Files could not be thrown out of the operating system's cache.
    #[error("the operating system's cache could not be made cold")]
    Cold(#[from] OsCacheError),
    /// The whole cache of the operating system could not be dropped.
    #[error("the operating system's cache could not be dropped by {path}")]
    DropCaches {
        /// Where that is asked for.
        path: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// No image could be taken.
    #[error("no image could be taken")]
    Dump(#[from] DumpError),
    /// The image could not be loaded.
    #[error("the image could not be loaded")]
    Load(#[from] LoadError),
    /// Autoprewarm began and did not end within the time of the measurement.
    #[error("the processes of the server cannot be counted")]
    Cost(#[source] io::Error),
    /// Somebody wanted it to end.
    #[error("interrupted")]
    Interrupted,
}

/// Says in which step a statement failed.
pub(crate) trait InStep<T> {
    /// See [`ProofError::Query`].
    fn step(self, step: &'static str) -> Result<T, ProofError>;
}

impl<T> InStep<T> for Result<T, QueryError> {
    fn step(self, step: &'static str) -> Result<T, ProofError> {
        self.map_err(|source| ProofError::Query { step, source })
    }
}
