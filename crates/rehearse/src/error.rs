//! [`RehearsalError`]: the reason why a rehearsal stopped before its report.

use std::{io, path::PathBuf, time::Duration};

use howdah_compare::ReadRunError;
use howdah_connect::{ConnectError, QueryError};
use howdah_dataset::{ReadError, WriteError};
use howdah_logs::ReadFilesError;
use howdah_replay::{EventSourceError, GuardError, StartError};
use howdah_report::rehearsal::RehearsalSide;
use howdah_warm::{image::ImageError, load::LoadError};

use crate::{journal::JournalError, plan::RunName};

/// The reason why a rehearsal could not be planned, or stopped before its reports were written.
/// Finished runs are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RehearsalError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A server may be in production.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A connection to a server could not be established.
    #[error("cannot connect to the {side} server")]
    Connect {
        /// The server to which the connection failed.
        side: RehearsalSide,
        /// The reason why every connection attempt failed.
        source: Box<ConnectError>,
    },
    /// A statement failed on a server.
    #[error("cannot {task} on the {side} server")]
    Query {
        /// The server on which the statement failed.
        side: RehearsalSide,
        /// The purpose of the statement, as an infinitive for the message.
        task: &'static str,
        /// The server's error, or that of the connection.
        source: Box<QueryError>,
    },
    /// The rehearsal would replace or drop a database that no rehearsal made.
    #[error("the {side} server has a database {database} that was not created by a rehearsal")]
    ForeignDatabase {
        /// The server with the database.
        side: RehearsalSide,
        /// Name of the database.
        database: String,
    },
    /// A reset command could not be run, or the file for its output could not be opened.
    #[error("cannot run the reset command of the {side} server")]
    ResetStart {
        /// The server to reset.
        side: RehearsalSide,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A reset command failed.
    #[error("the reset command of the {side} server failed ({status}); its output is in {}", log.display())]
    Reset {
        /// The server to reset.
        side: RehearsalSide,
        /// The exit status of the command, as text.
        status: String,
        /// The file with the command's output.
        log: PathBuf,
    },
    /// A reset command did not end in time.
    #[error("the reset command of the {side} server did not end within {} s", timeout.as_secs())]
    ResetTimeout {
        /// The server to reset.
        side: RehearsalSide,
        /// The time limit that was exceeded.
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
    /// Not all databases of the capture are known, so a session could change an original.
    #[error(
        "cannot find all databases of the capture, which --reset copy would have to copy: an event \
         cannot be read, or there are too many roles, databases or open sessions; use \
         --single-database, or reset with --reset-base and --reset-change"
    )]
    UnknownDatabases,
    /// The capture or a run cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file or folder of the rehearsal cannot be written or replaced.
    #[error("cannot write {}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The cache image cannot be read.
    #[error("cannot read the cache image")]
    Image(#[source] Box<ImageError>),
    /// The cache image cannot be loaded.
    #[error("cannot warm the {side} server")]
    Warm {
        /// The server whose cache was to be loaded.
        side: RehearsalSide,
        /// The reason why the image could not be loaded.
        source: Box<LoadError>,
    },
    /// A replay or a warm-up did not start, or a thread of it failed.
    #[error("cannot replay run {run}")]
    Start {
        /// The run that was to be replayed or warmed up.
        run: RunName,
        /// The error of the replay.
        source: StartError,
    },
    /// The capture could not be read to its end.
    #[error("run {run} could not read the capture to its end")]
    Events {
        /// The run that was replaying.
        run: RunName,
        /// The error of the event source.
        source: EventSourceError,
    },
    /// No session could log in.
    #[error("no session of run {run} could log in: {reason}")]
    Login {
        /// The run whose sessions could not log in.
        run: RunName,
        /// The most frequent error, or a phrase if it is unknown.
        reason: String,
    },
    /// A file of a run cannot be read for the report.
    #[error("cannot read a run")]
    Run(#[source] ReadError),
    /// A run cannot be read for the comparison.
    #[error(transparent)]
    ReadRun(#[from] ReadRunError),
    /// The user stopped the rehearsal.
    #[error("interrupted")]
    Interrupted,
}
