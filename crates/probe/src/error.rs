//! Errors while probing a server, by cause.

use std::io;

use crate::capability::Capabilities;

/// The reason why a metric is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The server could not be inspected.
    #[error(transparent)]
    Inspect(#[from] howdah_inspect::InspectError),
    /// BPF programs could not be run.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The code or the location of a function, or the contents of a variable, differ from those of
    /// all known builds.
    #[error("the server's {symbol} does not match any known build, so it cannot be probed")]
    UnknownCode {
        /// Name of the function or variable.
        symbol: &'static str,
    },
    /// The server was built without a USDT probe.
    #[error("the server was built without the USDT probe {probe} (--enable-dtrace)")]
    NoUsdtProbe {
        /// The name of the probe.
        probe: &'static str,
    },
    /// The kernel did not record the stacks of a process.
    #[error("cannot record the stacks of process {pid}: needs CAP_PERFMON (or root)")]
    StackEvents {
        /// Id of the process.
        pid: u32,
        /// The system error.
        source: io::Error,
    },
    /// The server currently has no process of this kind.
    #[error(
        "the server has no {kind} process: it may be starting, stopping, or in crash recovery; try again when it accepts connections"
    )]
    NoProcess {
        /// The kind of process.
        kind: &'static str,
    },
}

impl From<howdah_inspect::ProcessError> for ProbeError {
    fn from(error: howdah_inspect::ProcessError) -> Self {
        Self::Inspect(error.into())
    }
}

impl From<howdah_inspect::BinaryError> for ProbeError {
    fn from(error: howdah_inspect::BinaryError) -> Self {
        Self::Inspect(error.into())
    }
}

impl From<howdah_inspect::MemoryError> for ProbeError {
    fn from(error: howdah_inspect::MemoryError) -> Self {
        Self::Inspect(error.into())
    }
}

/// The reason why a BPF operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The kernel denied permission.
    #[error("not permitted to {what}: needs {missing}")]
    Denied {
        /// The operation that was denied.
        what: &'static str,
        /// The missing capabilities or other requirements, as text.
        missing: String,
    },
    /// A BPF map could not be created, or a map or the statistics of a program could not be read.
    #[error("cannot create or read the BPF {what}")]
    Map {
        /// The kind of map, or `program statistics`.
        what: &'static str,
        /// The system error.
        source: io::Error,
    },
    /// The kernel did not load a program, usually because its verifier rejected it.
    #[error("the kernel rejected the BPF program {name}: {log}")]
    Refused {
        /// Name of the program.
        name: &'static str,
        /// The system error.
        source: io::Error,
        /// The verifier's log; may be empty.
        log: String,
    },
    /// A program could not be attached.
    #[error("cannot attach the BPF program {name}")]
    Attach {
        /// Name of the program.
        name: &'static str,
        /// The system error.
        source: io::Error,
    },
}

impl BpfError {
    pub(crate) fn denied(what: &'static str) -> Self {
        Self::Denied { what, missing: Capabilities::current().missing() }
    }

    pub(crate) fn map(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::denied("create BPF maps"),
            _ => Self::Map { what, source },
        }
    }

    pub(crate) fn attach(name: &'static str, source: io::Error) -> Self {
        Self::Attach { name, source }
    }
}
