//! Errors while searching for PostgreSQL's programs.

use std::{fmt, path::PathBuf};

use crate::version::Version;

/// The directories that [`system_dirs`](crate::binaries::system_dirs) lists, for messages.
const SYSTEM_DIRS: [&str; 2] = ["/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"];

/// The reason why an archive could not be fetched.
pub(crate) type FetchSource = Box<dyn std::error::Error + Send + Sync>;

/// The reason why no binaries were found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// No binaries were found, and none could be fetched.
    #[error(
        "no PostgreSQL{} was found on the PATH, in {} or in {}{rejected}; {fetch}",
        Major(*major),
        SYSTEM_DIRS.join(", "),
        cache.display()
    )]
    NotFound {
        /// The requested major version.
        major: Option<u32>,
        /// Directories with binaries that cannot be used.
        rejected: RejectedDirs,
        /// The directory of fetched archives.
        cache: PathBuf,
        /// Why fetching did not help, as a phrase for the message.
        fetch: &'static str,
        /// Why fetching failed, if it was tried.
        source: Option<FetchSource>,
    },

    /// The explicitly given directory cannot be used.
    #[error("cannot use the PostgreSQL in {}: {reason}", dir.display())]
    Given {
        /// The directory that the caller named.
        dir: PathBuf,
        /// Why it cannot be used.
        reason: UnusableBinaries,
    },

    /// The major is not in [`crate::MAJORS`].
    #[error(
        "PostgreSQL {major} is not supported; {} to {} are",
        crate::MAJORS.start(),
        crate::MAJORS.end()
    )]
    Unsupported {
        /// The requested major version.
        major: u32,
    },
}

/// The reason why the PostgreSQL binaries in a directory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableBinaries {
    /// The directory lacks a required program.
    #[error("there is no {program}")]
    MissingProgram {
        /// Name of the missing program.
        program: &'static str,
    },
    /// `postgres` cannot be executed, or is not PostgreSQL.
    #[error("cannot determine the version of postgres: {reason}")]
    DoesNotRun {
        /// The error of the system or the output of the program.
        reason: String,
    },
    /// The server's account may not execute `postgres`.
    #[error("the account {os_user}, which runs servers, may not execute postgres")]
    Unreachable {
        /// The account's name.
        os_user: String,
    },
    /// The version is older than any supported one.
    #[error("version {version} is too old: {} is the oldest supported", crate::MAJORS.start())]
    TooOld {
        /// The version that was found.
        version: Version,
    },
    /// The version is not the requested one, or is not supported.
    #[error("version {version} is not the requested one, or is not supported")]
    OtherVersion {
        /// The version that was found.
        version: Version,
    },
}

/// Directories with binaries that cannot be used, and why.
#[derive(Debug)]
pub struct RejectedDirs(Vec<(PathBuf, UnusableBinaries)>);

impl RejectedDirs {
    pub(crate) fn new(dirs: Vec<(PathBuf, UnusableBinaries)>) -> Self {
        Self(dirs)
    }
}

impl fmt::Display for RejectedDirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(dir, reason)| write!(f, "; {}: {reason}", dir.display()))
    }
}

/// Displays a major version as `" 17"`, and `None`, which means any version, as nothing.
struct Major(Option<u32>);

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|major| write!(f, " {major}"))
    }
}
