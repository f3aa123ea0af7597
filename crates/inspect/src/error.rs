//! Errors while inspecting a server from outside.

use std::{io, path::PathBuf};

/// The reason why a server cannot be inspected, or why a reading was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// No running server was found, its processes cannot be inspected, or its version is not
    /// supported.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The server's binary cannot be read or is not supported.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// The server's memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The server's memory does not have the layout of a supported version.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The reason why no running server was found, or why it cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The process does not exist, or no longer exists.
    #[error("process {pid} does not exist")]
    Gone {
        /// Process id, in howdah's PID namespace.
        pid: u32,
    },
    /// The kernel denied access to the process, usually because it belongs to another user.
    #[error("process {pid} may not be inspected: run as its user, or with CAP_SYS_PTRACE")]
    Denied {
        /// Process id, in howdah's PID namespace.
        pid: u32,
    },
    /// A file or directory in `/proc` could not be read.
    #[error("{} could not be read", path.display())]
    Proc {
        /// Path of the file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The process does not run PostgreSQL.
    #[error("process {pid} runs {}, which is not a PostgreSQL server", executable.display())]
    NotPostgres {
        /// The requested process id.
        pid: u32,
        /// The binary that the process runs.
        executable: PathBuf,
    },
    /// The directory has no `postmaster.pid`: no server runs on it, it is not a data directory, or
    /// it does not exist.
    #[error("no server runs on {}: there is no postmaster.pid", data_dir.display())]
    NotRunning {
        /// Path of the directory.
        data_dir: PathBuf,
    },
    /// `postmaster.pid` could not be read, for example because the directory belongs to another
    /// user.
    #[error("cannot read postmaster.pid in {}", data_dir.display())]
    LockFile {
        /// Path of the directory.
        data_dir: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// `postmaster.pid` names a process that does not exist or does not run on the directory: the
    /// server crashed, or it runs in another PID namespace.
    #[error(
        "no server runs on {}: its postmaster.pid names process {pid}, which does not exist or \
         does not run there",
        data_dir.display()
    )]
    Stale {
        /// Path of the directory.
        data_dir: PathBuf,
        /// Process id in `postmaster.pid`.
        pid: u32,
    },
    /// A file of the data directory does not have the expected contents.
    #[error("{} does not have the contents that PostgreSQL writes to it", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
    },
    /// No process is in a control group of the container.
    #[error("no process on this host belongs to container {container}")]
    NoContainer {
        /// The requested container id.
        container: String,
    },
    /// None of the container's processes is a PostgreSQL server that can be inspected.
    #[error(
        "no process in container {container} is a PostgreSQL server that can be inspected \
         (processes: {processes})"
    )]
    NoServerInContainer {
        /// The requested container id.
        container: String,
        /// Number of processes in the container.
        processes: usize,
    },
    /// Several PostgreSQL servers run in the container.
    #[error(
        "several servers run in container {container}: choose one by the process id of its postmaster: {}",
        pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    )]
    SeveralServers {
        /// The requested container id.
        container: String,
        /// Process ids of the postmasters.
        pids: Vec<u32>,
    },
    /// The server's major version is not supported.
    #[error("PostgreSQL {major} is not supported: only 14 to 18 can be inspected")]
    Unsupported {
        /// The major version.
        major: u32,
    },
}

/// The reason why a server's binary cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BinaryError {
    /// The file could not be read.
    #[error("the server's binary {} could not be read", path.display())]
    Read {
        /// Path in `/proc`.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The file is not ELF, or is damaged.
    #[error("{} is not a readable ELF file", path.display())]
    NotElf {
        /// Path in `/proc`.
        path: PathBuf,
        /// The parser's error.
        source: object::Error,
    },
    /// The binary is not an ELF file for x86-64 with 64 bits.
    #[error("the server's binary is built for {found}; only x86-64 is supported")]
    Architecture {
        /// The architecture in the ELF header, `32 bits`, or the type of a file that is not ELF.
        found: String,
    },
    /// A symbol that this version should export is missing.
    #[error("the server's binary does not export {symbol}")]
    NoSymbol {
        /// Name of the function or variable.
        symbol: &'static str,
    },
    /// The code of a function differs from that of all known builds.
    #[error(
        "the code of {symbol} does not match any known build, so the data it uses cannot be located"
    )]
    UnknownCode {
        /// Name of the function.
        symbol: &'static str,
    },
    /// The process has no mapping of its own binary, usually because it is exiting.
    #[error("process {pid} has no mapping of its own binary")]
    NotMapped {
        /// Process id, in howdah's PID namespace.
        pid: u32,
    },
}

/// The reason why the memory of a process could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The process does not exist, usually because it has exited.
    #[error("process {pid} exited while its memory was being read")]
    Gone {
        /// Process id, in howdah's PID namespace.
        pid: u32,
    },
    /// The kernel denied access to the memory.
    #[error(
        "the memory of process {pid} may not be read: run as its user (with kernel.yama.ptrace_scope = 0), \
         as root, or with CAP_SYS_PTRACE"
    )]
    Denied {
        /// Process id, in howdah's PID namespace.
        pid: u32,
    },
    /// Nothing is mapped at the address.
    #[error("process {pid} has no memory at {address:#x}")]
    Unmapped {
        /// Process id, in howdah's PID namespace.
        pid: u32,
        /// Address in the process.
        address: u64,
    },
    /// Reading failed with another system error.
    #[error("reading the memory of process {pid} at {address:#x} failed")]
    Other {
        /// Process id, in howdah's PID namespace.
        pid: u32,
        /// Address in the process.
        address: u64,
        /// The system error.
        source: io::Error,
    },
}

/// An implausible value in the memory of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// `NBuffers` is outside the range of `shared_buffers`.
    #[error("NBuffers is {found}, which is not a possible value of shared_buffers")]
    BufferCount {
        /// The value that was read.
        found: i32,
    },
    /// A buffer descriptor does not contain its own number.
    #[error(
        "buffer descriptor {index} carries number {found}: the array does not have the expected layout"
    )]
    BufferNumber {
        /// Index of the descriptor in the array.
        index: u32,
        /// The number found in the descriptor.
        found: i32,
    },
    /// The state of the clock sweep is impossible.
    #[error("the clock sweep's {field} is {found}, which is impossible with {buffers} buffers")]
    ClockSweep {
        /// Name of the field in `BufferStrategyControl`.
        field: &'static str,
        /// The value that was read.
        found: i64,
        /// Number of buffers of the server.
        buffers: u32,
    },
}
