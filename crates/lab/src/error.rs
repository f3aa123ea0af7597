//! Errors while creating, starting and stopping a cluster.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use crate::find_error::FindError;

/// The reason why a cluster could not be created, started, copied or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No usable PostgreSQL binaries were found.
    #[error(transparent)]
    Find(#[from] FindError),

    /// The name breaks the rules of [`crate::Builder::name`].
    #[error(
        "{name:?} is not a valid cluster name: use 1 to 40 of a-z, 0-9, - and _, starting with a letter"
    )]
    BadName {
        /// The rejected name.
        name: String,
    },

    /// The name of a setting is not valid in PostgreSQL.
    #[error(
        "{name:?} is not a valid setting name: use letters, digits, _, $ and dots, and begin with a letter or _"
    )]
    BadSetting {
        /// The rejected name.
        name: String,
    },

    /// The lab itself controls the setting, which decides where the server listens or keeps its
    /// files.
    #[error("the setting {name} is controlled by the lab and cannot be set")]
    ReservedSetting {
        /// The rejected name.
        name: String,
    },

    /// The directory for the cluster is not empty. Only a kept lab can be started again in its
    /// directory; standbys and copies need an empty or missing one.
    #[error("cannot create a cluster in {}: the directory is not empty", dir.display())]
    DirectoryNotEmpty {
        /// Path of the directory for the cluster.
        dir: PathBuf,
    },

    /// The directory contains a cluster of another major version.
    #[error("{} contains a cluster of PostgreSQL {found}, not {wanted}", dir.display())]
    OtherMajor {
        /// Path of the directory for the cluster.
        dir: PathBuf,
        /// The major version of the cluster in `dir`.
        found: u32,
        /// The requested major version.
        wanted: u32,
    },

    /// The server's account cannot enter, or write in, a directory of the cluster or of the cache.
    #[error("the server runs as {os_user}, which cannot enter or write to the directory {}", path.display())]
    Unreachable {
        /// Path of the directory; perhaps the account cannot enter one above it.
        path: PathBuf,
        /// The account's name.
        os_user: String,
    },

    /// This process runs as root, and the account for servers has user id 0, or is missing and
    /// cannot be created.
    #[error(
        "PostgreSQL refuses to run as root, and the system account {} is not available: {reason}",
        crate::ACCOUNT_NAME
    )]
    UnusableAccount {
        /// The problem with the account, or the messages of the programs that should create it.
        reason: String,
    },

    /// `listen_addresses` was set for a cluster without TCP.
    #[error("listen_addresses cannot be set: the server listens on its unix socket only")]
    TcpNotEnabled,

    /// The password for TCP connections could not be set.
    #[error("cannot set the password for TCP connections")]
    SetPassword {
        /// The error of the connection or the server.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The verb of the operation: "create", "copy", …
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// A program could not be executed.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// Path of the program to run.
        program: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// initdb did not create the data directory.
    #[error("initdb failed ({status}): {output}")]
    Initdb {
        /// The exit status of initdb.
        status: ExitStatus,
        /// The last lines that initdb wrote.
        output: String,
    },

    /// The server exited before it accepted connections.
    #[error("the server exited while starting ({status}): {log}")]
    ServerEnded {
        /// The exit status of the postmaster.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not accept connections in time.
    #[error("the server did not accept connections within {waited:?}: {log}")]
    StartTimeout {
        /// Time spent waiting until giving up.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not exit in time after the shutdown signal.
    #[error("server process {pid} did not exit within {waited:?}")]
    StopTimeout {
        /// The postmaster's process id.
        pid: u32,
        /// Time spent waiting until giving up.
        waited: Duration,
    },

    /// No free TCP port was found on the loopback interface.
    #[error("no free TCP port on 127.0.0.1 after {tries} tries")]
    NoPort {
        /// The number of ports tried.
        tries: u32,
    },

    /// The data directory has tablespaces elsewhere, which a copy would share with its original.
    #[error("{} has tablespaces outside of it and cannot be copied", data.display())]
    Tablespaces {
        /// The data directory.
        data: PathBuf,
    },

    /// The server was to be started, but it is running already.
    #[error("the cluster {name} is already running")]
    AlreadyRunning {
        /// The cluster's name.
        name: String,
    },

    /// A step of the base backup for a standby failed on the primary.
    #[error("cannot {step}")]
    Backup {
        /// The failed step, as an infinitive: "connect to the primary", …
        step: &'static str,
        /// The error of the connection or the server.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ClusterError {
    /// Whether no usable PostgreSQL was found. Only in that case may a test be skipped.
    pub fn is_postgres_missing(&self) -> bool {
        matches!(self, Self::Find(FindError::NotFound { .. }))
    }
}

/// Adds the operation and the path to an I/O error.
pub(crate) trait FileContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, ClusterError>;
}

impl<T> FileContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, ClusterError> {
        self.map_err(|source| ClusterError::File { action, path: path.to_owned(), source })
    }
}
