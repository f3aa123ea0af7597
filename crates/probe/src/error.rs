//! What can go wrong, by whose fault it is.

use std::io;

use crate::capability::Capabilities;

/// Why a figure cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not be looked at.
    #[error(transparent)]
    Inspect(#[from] howdah_inspect::Error),
    /// Programs could not be run in the kernel.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The code of a function is not what it is in the builds that are known.
    #[error(
        "the code of {symbol} is not laid out as in any known build, so nothing is attached to it"
    )]
    UnknownCode {
        /// The function.
        symbol: &'static str,
    },
    /// The server was built without a marker.
    #[error(
        "the server was built without the marker {marker} (--enable-dtrace), so it cannot be traced by it"
    )]
    NoMarker {
        /// The marker.
        marker: &'static str,
    },
    /// The server has no such process now.
    #[error("the server has no {kind} process; it is starting, stopping, or in recovery")]
    NoProcess {
        /// Which.
        kind: &'static str,
    },
}

impl From<howdah_inspect::ProcessError> for Error {
    fn from(error: howdah_inspect::ProcessError) -> Self {
        Self::Inspect(error.into())
    }
}

impl From<howdah_inspect::BinaryError> for Error {
    fn from(error: howdah_inspect::BinaryError) -> Self {
        Self::Inspect(error.into())
    }
}

impl From<howdah_inspect::MemoryError> for Error {
    fn from(error: howdah_inspect::MemoryError) -> Self {
        Self::Inspect(error.into())
    }
}

/// Why programs could not be run in the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// Not allowed.
    #[error("this process may not {what}: it needs {missing}")]
    Denied {
        /// What it tried.
        what: &'static str,
        /// The capabilities that it lacks.
        missing: String,
    },
    /// A table, a ring or counters could not be made or read.
    #[error("a {what} for programs in the kernel could not be had")]
    Map {
        /// Which.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel's check refused a program.
    #[error("the kernel refused the program {name}: {log}")]
    Refused {
        /// The program.
        name: &'static str,
        /// What the system said.
        source: io::Error,
        /// What the check said.
        log: String,
    },
    /// A program could not be attached.
    #[error("the program {name} could not be attached")]
    Attach {
        /// The program.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl BpfError {
    pub(crate) fn denied(what: &'static str) -> Self {
        Self::Denied { what, missing: Capabilities::own().missing() }
    }

    pub(crate) fn map(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::denied("keep tables for programs in the kernel"),
            _ => Self::Map { what, source },
        }
    }

    pub(crate) fn attach(name: &'static str, source: io::Error) -> Self {
        Self::Attach { name, source }
    }
}
