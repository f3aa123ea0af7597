//! What can go wrong when a server is looked at from outside.

use std::{io, path::PathBuf};

/// Why a server cannot be looked at, or a reading cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No running server was found where one was looked for.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The server's binary is not one that can be understood.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// Its memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Its memory does not look as that of a PostgreSQL of this version does.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Why a process is not a running server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process (any more).
    #[error("process {pid} does not exist")]
    Gone {
        /// The process id asked for.
        pid: u32,
    },
    /// The process belongs to somebody else.
    #[error("process {pid} may not be looked at without being its user or having CAP_SYS_PTRACE")]
    Denied {
        /// The process id asked for.
        pid: u32,
    },
    /// A file of `/proc` could not be read.
    #[error("{} could not be read", path.display())]
    Proc {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process runs something else.
    #[error("process {pid} runs {}, which is not a PostgreSQL server", executable.display())]
    NotPostgres {
        /// The process id asked for.
        pid: u32,
        /// What it runs.
        executable: PathBuf,
    },
    /// The folder has no `postmaster.pid`: no server runs on it, or it is no data directory.
    #[error("no server runs on {}: it has no readable postmaster.pid", data_dir.display())]
    NotRunning {
        /// The folder.
        data_dir: PathBuf,
        /// Why the file could not be read.
        source: io::Error,
    },
    /// The process that `postmaster.pid` names is another one's: a server crashed, and its number was
    /// given away.
    #[error(
        "no server runs on {}: its postmaster.pid names process {pid}, which is not its server",
        data_dir.display()
    )]
    Stale {
        /// The folder.
        data_dir: PathBuf,
        /// The process.
        pid: u32,
    },
    /// A file of the data directory holds something else than it should.
    #[error("{} does not begin with a number, so it is no file of a PostgreSQL server", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
    },
    /// No process is in a control group of that container.
    #[error("no process of this host is in a container {container}")]
    NoContainer {
        /// Its id, as it was asked for.
        container: String,
    },
    /// There are processes in the container, and no PostgreSQL server among them.
    #[error(
        "none of the {processes} processes of the container {container} is a PostgreSQL server's"
    )]
    NoServerInContainer {
        /// Its id, as it was asked for.
        container: String,
        /// How many it has.
        processes: usize,
    },
    /// Several servers run in the container.
    #[error(
        "several servers run in the container {container}: name one by its first process, which are {}",
        pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    )]
    SeveralServers {
        /// Its id, as it was asked for.
        container: String,
        /// Their first processes.
        pids: Vec<u32>,
    },
    /// A version whose structures are not known here.
    #[error(
        "PostgreSQL {major} is not one of the versions that can be looked at from outside (14 to 18)"
    )]
    Unsupported {
        /// The major version.
        major: u32,
    },
}

/// Why a binary cannot be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BinaryError {
    /// Reading it failed.
    #[error("the server's binary {} could not be read", path.display())]
    Read {
        /// Its name in `/proc`.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not ELF, or damaged.
    #[error("{} is not an ELF file that can be read", path.display())]
    NotElf {
        /// Its name in `/proc`.
        path: PathBuf,
        /// Why.
        source: object::Error,
    },
    /// Another architecture, or 32 bits.
    #[error("the server's binary is built for {found}; only x86-64 can be looked at from outside")]
    Architecture {
        /// What the ELF header says.
        found: String,
    },
    /// A name that this version exports is missing.
    #[error("the server's binary does not export {symbol}")]
    NoSymbol {
        /// The symbol.
        symbol: &'static str,
    },
    /// The code of a function is not what it is in the builds that are known.
    #[error("the code of {symbol} is not laid out as in any known build, so nothing is read by it")]
    UnknownCode {
        /// The function.
        symbol: &'static str,
    },
    /// The binary is not mapped in its own process.
    #[error("process {pid} has no mapping of its own binary")]
    NotMapped {
        /// The process.
        pid: u32,
    },
}

/// Why the memory of a process could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The process is gone.
    #[error("process {pid} ended while its memory was read")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The kernel does not let us.
    #[error(
        "the memory of process {pid} may not be read: run as its user (with kernel.yama.ptrace_scope = 0), \
         as root, or with CAP_SYS_PTRACE"
    )]
    Denied {
        /// The process.
        pid: u32,
    },
    /// The address is not mapped.
    #[error("process {pid} has no memory at {address:#x}")]
    Unmapped {
        /// The process.
        pid: u32,
        /// The address.
        address: u64,
    },
    /// Anything else.
    #[error("reading the memory of process {pid} at {address:#x} failed")]
    Other {
        /// The process.
        pid: u32,
        /// The address.
        address: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// Why what was read is not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The number of buffers is none that a server can have.
    #[error("NBuffers reads as {found}; shared_buffers cannot have so many pages")]
    BufferCount {
        /// What was read.
        found: i32,
    },
    /// Buffer descriptors do not carry their own number.
    #[error(
        "buffer descriptor {index} says it is number {found}: the array is not laid out as expected"
    )]
    BufferNumber {
        /// Its place in the array.
        index: u32,
        /// What it says.
        found: i32,
    },
    /// The clock sweep's state is impossible.
    #[error("the clock sweep's {field} reads as {found}, which cannot be with {buffers} buffers")]
    ClockSweep {
        /// The field.
        field: &'static str,
        /// What was read.
        found: i64,
        /// Buffers of the server.
        buffers: u32,
    },
}
