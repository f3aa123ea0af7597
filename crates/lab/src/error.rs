//! What can go wrong while a cluster is made, run and stopped.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use crate::search::FindError;

/// Why a cluster could not be made, started, copied or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There are no fitting PostgreSQL binaries.
    #[error(transparent)]
    Find(#[from] FindError),

    /// The name does not fit the rules of [`crate::Builder::name`].
    #[error("{name:?} cannot name a cluster: use 1 to 40 of a-z, 0-9, - and _, a letter first")]
    BadName {
        /// The name as given.
        name: String,
    },

    /// The name of a setting is none PostgreSQL could have.
    #[error("{name:?} cannot be the name of a setting")]
    BadSetting {
        /// The name as given.
        name: String,
    },

    /// The setting is decided by the lab itself: where the server listens and keeps its files.
    #[error("the setting {name} is the lab's own to decide")]
    ReservedSetting {
        /// The name as given.
        name: String,
    },

    /// A directory that holds something else was given as the cluster's.
    #[error("{} is not empty, and not a lab's directory", dir.display())]
    DirectoryInUse {
        /// The directory.
        dir: PathBuf,
    },

    /// A cluster of another major already lives in the directory.
    #[error("{} holds a cluster of PostgreSQL {found}, not {wanted}", dir.display())]
    OtherMajor {
        /// The directory.
        dir: PathBuf,
        /// The major of the cluster in it.
        found: u32,
        /// The major asked for.
        wanted: u32,
    },

    /// The server's account may not enter a directory it has to use.
    #[error("the server runs as {account}, which cannot reach {}", path.display())]
    Unreachable {
        /// The directory.
        path: PathBuf,
        /// The account's name.
        account: String,
    },

    /// Root runs us, and the account for the server is missing and cannot be made.
    #[error(
        "PostgreSQL refuses to run as root, and the system account {} cannot be made: {reason}",
        crate::ACCOUNT_NAME
    )]
    NoAccount {
        /// What the programs that make accounts reported.
        reason: String,
    },

    /// A setting that opens TCP was given to a cluster that is reached by its unix socket only.
    #[error("listen_addresses cannot be set: the server listens on its unix socket only")]
    TcpNotEnabled,

    /// The password for TCP connections could not be set.
    #[error("cannot set the password for TCP connections")]
    SetPassword {
        /// What the connection or the server reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was to be done: "create", "copy", …
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// A program could not be run at all.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// initdb failed.
    #[error("initdb failed ({status}): {output}")]
    Initdb {
        /// Its exit status.
        status: ExitStatus,
        /// The last lines it wrote.
        output: String,
    },

    /// The server ended before it accepted connections.
    #[error("the server ended while starting ({status}): {log}")]
    ServerEnded {
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// The server runs but did not accept connections in time.
    #[error("the server accepts no connections after {waited:?}: {log}")]
    StartTimeout {
        /// How long we waited.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not end in time after it was told to.
    #[error("server process {pid} did not end within {waited:?}")]
    StopTimeout {
        /// The postmaster's process id.
        pid: u32,
        /// How long we waited.
        waited: Duration,
    },

    /// No free TCP port was found on the loopback interface.
    #[error("no free TCP port on 127.0.0.1 after {tries} tries")]
    NoPort {
        /// How many were tried.
        tries: u32,
    },

    /// The data directory has tablespaces elsewhere: a copy would share them with its original.
    #[error("{} has tablespaces outside of it; such a cluster cannot be copied", data.display())]
    Tablespaces {
        /// The data directory.
        data: PathBuf,
    },

    /// The server runs, and what was asked needs it stopped; or the other way round.
    #[error("the cluster {name} is {state}")]
    WrongState {
        /// The cluster's name.
        name: String,
        /// What it is: "running" or "stopped".
        state: &'static str,
    },

    /// The primary refused a step of the backup that a standby starts from.
    #[error("the primary of the standby: {step}")]
    Backup {
        /// The step.
        step: &'static str,
        /// What the connection said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Whether the reason is that no fitting PostgreSQL could be had, on which a test may be
    /// skipped; any other reason is a failure.
    pub fn is_no_postgres(&self) -> bool {
        matches!(self, Self::Find(FindError::NotFound { .. }))
    }
}

/// Adds what was to be done with which file.
pub(crate) trait FileContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> FileContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source })
    }
}
