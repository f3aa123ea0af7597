//! A running PostgreSQL server, found by process id or data directory.

use std::{
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    binary::Binary,
    error::{InspectError, LayoutError, ProcessError},
    memory::ProcessMemory,
    process::OsProcess,
};

/// Supported major versions: those whose structures are known.
pub const MAJORS: RangeInclusive<u32> = 14..=18;

/// A running PostgreSQL server.
///
/// The value is valid as long as the postmaster lives. After a restart, readings report that the
/// process is gone, and the server must be found anew.
#[derive(Clone, Debug)]
pub struct RunningServer {
    postmaster: OsProcess,
    major: u32,
    binary: Binary,
}

impl RunningServer {
    /// Finds the server that runs on a data directory.
    ///
    /// # Errors
    ///
    /// No server runs on the directory, or the server cannot be inspected or is not supported.
    pub fn in_data_dir(data_dir: impl AsRef<Path>) -> Result<Self, InspectError> {
        let data_dir = data_dir.as_ref();
        let path = data_dir.join("postmaster.pid");
        let text = fs::read_to_string(&path).map_err(|source| {
            let data_dir = data_dir.to_path_buf();
            match source.kind() {
                io::ErrorKind::NotFound => ProcessError::NotRunning { data_dir },
                _ => ProcessError::LockFile { data_dir, source },
            }
        })?;
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        let pid = pid.ok_or(ProcessError::Unreadable { path })?;
        let stale = || ProcessError::Stale { data_dir: data_dir.to_path_buf(), pid };
        match OsProcess::from_pid(pid).and_then(|process| process.has_working_dir(data_dir)) {
            Ok(true) => Self::from_pid(pid),
            Ok(false) | Err(ProcessError::Gone { .. }) => Err(stale().into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds the server that process `pid` belongs to, as the postmaster or one of its children.
    ///
    /// # Errors
    ///
    /// The process does not exist, cannot be inspected, or does not belong to a PostgreSQL server
    /// of a supported version.
    pub fn from_pid(pid: u32) -> Result<Self, InspectError> {
        let postmaster = find_postmaster(OsProcess::from_pid(pid)?)?;
        let binary = Binary::for_process(postmaster)?;
        if !POSTGRES_SYMBOLS.iter().all(|symbol| binary.exports(symbol)) {
            let executable = postmaster.executable_path()?;
            return Err(ProcessError::NotPostgres { pid, executable }.into());
        }
        let major = read_major(postmaster)?;
        if !MAJORS.contains(&major) {
            return Err(ProcessError::Unsupported { major }.into());
        }
        Ok(Self { postmaster, major, binary })
    }

    /// Returns the process that started all others of this server.
    pub fn postmaster(&self) -> OsProcess {
        self.postmaster
    }

    /// Returns the major version of the server, one of [`MAJORS`].
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Returns the binary that the server runs, with its exported symbols.
    pub fn binary(&self) -> &Binary {
        &self.binary
    }

    /// Returns the path of the data directory in the server's own mount namespace.
    ///
    /// # Errors
    ///
    /// The server stopped or cannot be inspected.
    pub fn data_dir(&self) -> Result<PathBuf, InspectError> {
        Ok(self.postmaster.working_dir()?)
    }

    /// Returns the fields of the server's lock file: start time and port.
    ///
    /// # Errors
    ///
    /// The server stopped, or the file cannot be read or is not a lock file.
    pub fn lock_file(&self) -> Result<LockFile, InspectError> {
        let path = PathBuf::from(format!("/proc/{}/cwd/postmaster.pid", self.postmaster.pid()));
        let text = fs::read_to_string(&path)
            .map_err(|source| ProcessError::Proc { path: path.clone(), source })?;
        Ok(LockFile::parse(&text).ok_or(ProcessError::Unreadable { path })?)
    }

    /// Returns the processor time that all processes of the server have needed since it started,
    /// including those that have ended.
    ///
    /// # Errors
    ///
    /// The server stopped.
    pub fn cpu_time(&self) -> Result<Duration, InspectError> {
        // A child that ends after this is missing in this sum, and with the postmaster in the next.
        let ended = self.postmaster.cpu_time()?;
        let children = self.postmaster.children()?;
        let running: Duration = children.iter().filter_map(|child| child.cpu_time().ok()).sum();
        Ok(running + ended)
    }

    /// Returns access to the postmaster's memory. Shared memory has the same address in all its
    /// children.
    pub fn memory(&self) -> ProcessMemory {
        ProcessMemory::for_pid(self.postmaster.pid())
    }

    /// Returns `shared_buffers` in pages, which is fixed at server start.
    pub(crate) fn buffer_count(&self) -> Result<u32, InspectError> {
        let found = self.memory().int(self.binary.address("NBuffers")?)?;
        match u32::try_from(found) {
            // Bounds of `shared_buffers` in `guc_tables.c`.
            Ok(count @ 16..=0x3fff_ffff) => Ok(count),
            _ => Err(LayoutError::BufferCount { found }.into()),
        }
    }
}

/// The fields of `postmaster.pid` that distinguish one server from another. Source: `miscadmin.h`,
/// `LOCK_FILE_LINE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFile {
    /// Start time of the server, in seconds since 1970.
    pub started_at_s: i64,
    /// The port that the server listens on.
    pub port: u16,
}

impl LockFile {
    fn parse(text: &str) -> Option<Self> {
        let line = |number: usize| text.lines().nth(number - 1).map(str::trim);
        Some(Self { started_at_s: line(3)?.parse().ok()?, port: line(4)?.parse().ok()? })
    }
}

/// Symbols that only a PostgreSQL server exports.
const POSTGRES_SYMBOLS: [&str; 3] = ["BufferDescriptors", "NBuffers", "MyProcPid"];

/// Returns the topmost ancestor that runs the same binary in the same directory.
///
/// `postmaster.pid` is not consulted: its process ids belong to the server's own PID namespace.
fn find_postmaster(process: OsProcess) -> Result<OsProcess, ProcessError> {
    let (binary, data_dir) = (process.executable_identity()?, process.working_dir()?);
    let mut top = process;
    while let Some(parent) = top.parent()? {
        let is_same = parent.executable_identity().is_ok_and(|found| found == binary)
            && parent.working_dir().is_ok_and(|found| found == data_dir);
        if !is_same {
            break;
        }
        top = parent;
    }
    Ok(top)
}

/// Reads `PG_VERSION` through the process's working directory, which also works for containers.
fn read_major(postmaster: OsProcess) -> Result<u32, ProcessError> {
    let path = PathBuf::from(format!("/proc/{}/cwd/PG_VERSION", postmaster.pid()));
    let text = fs::read_to_string(&path)
        .map_err(|source| ProcessError::Proc { path: path.clone(), source })?;
    text.trim().parse().map_err(|_| ProcessError::Unreadable { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_yields_start_time_and_port() {
        let text =
            "4711\n/var/lib/pg\n1795176000\n5433\n/run/postgresql\nlocalhost\n  1  2\nready   \n";
        let expected = LockFile { started_at_s: 1_795_176_000, port: 5433 };
        assert_eq!(LockFile::parse(text), Some(expected));
        assert_eq!(LockFile::parse("4711\n/var/lib/pg\n"), None);
    }
}
