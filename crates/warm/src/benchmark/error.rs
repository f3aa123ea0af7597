//! Errors that end a benchmark.

use std::{io, process::ExitStatus};

use crate::{dump::DumpError, load::LoadError, os_cache::OsCacheError};
use howdah_connect::{ConnectError, QueryError, ResolveError};

/// An error that ends a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchmarkError {
    /// The temporary server could not be created, started or stopped.
    #[error(transparent)]
    Lab(#[from] howdah_lab::ClusterError),
    /// The temporary server's address is invalid.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The connection to the server failed.
    #[error("cannot connect to the server")]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("cannot {step}")]
    Query {
        /// Purpose of the statement, as an infinitive: `fill the tables`.
        step: &'static str,
        /// Why the statement failed.
        source: QueryError,
    },
    /// The command that restarts the server could not be run.
    #[error("cannot run the command to restart the server: {command}")]
    Command {
        /// The shell command, as configured.
        command: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The command that restarts the server failed.
    #[error("the command to restart the server failed ({status}): {command}")]
    CommandFailed {
        /// The shell command, as configured.
        command: String,
        /// Exit status of the shell.
        status: ExitStatus,
    },
    /// The command that restarts the server succeeded, but the server was not restarted.
    #[error("the command to restart the server did not restart it: {command}")]
    NotRestarted {
        /// The shell command, as configured.
        command: String,
    },
    /// The server's files could not be dropped from the operating system's cache.
    #[error("cannot drop the server's files from the operating system's cache")]
    EvictFiles(#[from] OsCacheError),
    /// The whole cache of the operating system could not be dropped.
    #[error("cannot drop the operating system's cache: cannot write {path}")]
    DropCaches {
        /// The kernel's file that drops the cache when written to.
        path: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// No image could be taken.
    #[error("cannot take an image")]
    Dump(#[from] DumpError),
    /// The image could not be loaded.
    #[error("cannot load the image")]
    Load(#[from] LoadError),
    /// The benchmark was interrupted.
    #[error("the benchmark was interrupted")]
    Interrupted,
}

/// Adds the purpose of a statement to its error.
pub(crate) trait StepContext<T> {
    /// Converts an error to [`BenchmarkError::Query`] with this purpose.
    fn step(self, step: &'static str) -> Result<T, BenchmarkError>;
}

impl<T> StepContext<T> for Result<T, QueryError> {
    fn step(self, step: &'static str) -> Result<T, BenchmarkError> {
        self.map_err(|source| BenchmarkError::Query { step, source })
    }
}
