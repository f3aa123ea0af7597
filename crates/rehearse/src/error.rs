//! [`RehearsalError`]: why a rehearsal stopped before its report.

use std::{io, path::PathBuf, time::Duration};

use howdah_compare::ReadRunError;
use howdah_connect::{ConnectError, QueryError};
use howdah_dataset::{ReadError, WriteError};
use howdah_logs::ReadFilesError;
use howdah_replay::{EventSourceError, StartError};
use howdah_report::rehearsal::RehearsalSide;
use howdah_warm::{image::ImageError, load::LoadError};

use crate::{guard::GuardError, journal::JournalError, plan::RunName};

/// Why a rehearsal stopped before its report. Finished runs are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RehearsalError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A server may be in production.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A server cannot be reached.
    #[error("cannot connect to the {side} server")]
    Connect {
        /// The server.
        side: RehearsalSide,
        /// The cause.
        source: Box<ConnectError>,
    },
    /// A server refused a statement.
    #[error("cannot {task} on the {side} server")]
    Query {
        /// The server.
        side: RehearsalSide,
        /// The purpose of the statement, as an infinitive.
        task: &'static str,
        /// The cause.
        source: Box<QueryError>,
    },
    /// A database that the rehearsal would replace was not made by a rehearsal.
    #[error("the {side} server has a database {database} that was not created by a rehearsal")]
    ForeignDatabase {
        /// The server.
        side: RehearsalSide,
        /// Its name.
        database: String,
    },
    /// A reset command could not be started.
    #[error("cannot run the reset command of the {side} server")]
    ResetStart {
        /// The server.
        side: RehearsalSide,
        /// The cause.
        source: io::Error,
    },
    /// A reset command failed.
    #[error("the reset command of the {side} server failed ({status}); its output is in {}", log.display())]
    Reset {
        /// The server.
        side: RehearsalSide,
        /// Its exit status, for people.
        status: String,
        /// The file with its output.
        log: PathBuf,
    },
    /// A reset command did not end in time.
    #[error("the reset command of the {side} server did not end within {} s", timeout.as_secs())]
    ResetTimeout {
        /// The server.
        side: RehearsalSide,
        /// The limit.
        timeout: Duration,
    },
    /// The capture cannot be read.
    #[error("cannot read the capture")]
    Capture(#[source] ReadError),
    /// The logs cannot be imported.
    #[error("cannot import the log")]
    Import(#[source] Box<ReadFilesError<WriteError>>),
    /// The capture has no events.
    #[error("the capture has no events")]
    NoEvents,
    /// The capture or a run cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file of the rehearsal cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The cache image cannot be read.
    #[error("cannot read the cache image")]
    Image(#[source] Box<ImageError>),
    /// The cache image cannot be loaded.
    #[error("cannot warm the {side} server")]
    Warm {
        /// The server.
        side: RehearsalSide,
        /// The cause.
        source: Box<LoadError>,
    },
    /// A replay did not start.
    #[error("cannot replay run {run}")]
    Start {
        /// Such as `a1`.
        run: RunName,
        /// The cause.
        source: StartError,
    },
    /// The capture could not be read to its end.
    #[error("run {run} could not read the capture to its end")]
    Events {
        /// Such as `a1`.
        run: RunName,
        /// The cause.
        source: EventSourceError,
    },
    /// No session could log in.
    #[error("no session of run {run} could log in: {reason}")]
    Login {
        /// Such as `a1`.
        run: RunName,
        /// The server's message.
        reason: String,
    },
    /// The statements of a run cannot be read.
    #[error("cannot read a run")]
    Run(#[source] ReadError),
    /// A run cannot be read.
    #[error(transparent)]
    ReadRun(#[from] ReadRunError),
    /// The user stopped the rehearsal.
    #[error("interrupted")]
    Interrupted,
}
