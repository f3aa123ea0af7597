//! A running server: found by a process id or a data directory, ready to be read.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use crate::{
    binary::Binary,
    buffers::BufferMap,
    clock_sweep::ClockSweep,
    error::{Error, LayoutError, ProcessError},
    memory::Memory,
    process::Process,
};

/// The majors whose structures are known.
pub const MAJORS: RangeInclusive<u32> = 14..=18;

/// A running server.
///
/// It stays valid as long as the postmaster lives: a restart is another one, and readings then say that
/// the process is gone.
#[derive(Clone, Debug)]
pub struct Server {
    postmaster: Process,
    major: u32,
    binary: Binary,
}

impl Server {
    /// The server on a data directory.
    ///
    /// # Errors
    ///
    /// No server runs on it, it is not ours to look at, or not a kind that can be looked at.
    pub fn in_data_dir(data_dir: impl AsRef<Path>) -> Result<Self, Error> {
        let data_dir = data_dir.as_ref();
        let path = data_dir.join("postmaster.pid");
        let text = fs::read_to_string(&path).map_err(|source| ProcessError::NotRunning {
            data_dir: data_dir.to_path_buf(),
            source,
        })?;
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        let pid = pid.ok_or(ProcessError::Unreadable { path })?;
        let stale = || ProcessError::Stale { data_dir: data_dir.to_path_buf(), pid };
        match Process::of(pid).and_then(|process| process.works_in(data_dir)) {
            Ok(true) => Self::with_process(pid),
            Ok(false) | Err(ProcessError::Gone { .. }) => Err(stale().into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The server that the process `pid` belongs to, be it the postmaster or any of its children.
    ///
    /// # Errors
    ///
    /// There is no such process, it is not ours to look at, or it is no server's.
    pub fn with_process(pid: u32) -> Result<Self, Error> {
        let postmaster = postmaster_of(Process::of(pid)?)?;
        let binary = Binary::of(postmaster)?;
        if !IS_POSTGRES.iter().all(|symbol| binary.exports(symbol)) {
            let executable = postmaster.executable_path()?;
            return Err(ProcessError::NotPostgres { pid, executable }.into());
        }
        let major = major_of(postmaster)?;
        if !MAJORS.contains(&major) {
            return Err(ProcessError::Unsupported { major }.into());
        }
        Ok(Self { postmaster, major, binary })
    }

    /// Its first process.
    #[must_use]
    pub fn postmaster(&self) -> Process {
        self.postmaster
    }

    /// Its major version.
    #[must_use]
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The binary it runs.
    #[must_use]
    pub fn binary(&self) -> &Binary {
        &self.binary
    }

    /// Its data directory, as its own mount namespace names it.
    ///
    /// # Errors
    ///
    /// The server ended.
    pub fn data_dir(&self) -> Result<PathBuf, Error> {
        Ok(self.postmaster.working_dir()?)
    }

    /// What its lock file says: when it was started, and on which port it listens.
    ///
    /// # Errors
    ///
    /// The server ended, or the file holds something else.
    pub fn lock_file(&self) -> Result<LockFile, Error> {
        let path = PathBuf::from(format!("/proc/{}/cwd/postmaster.pid", self.postmaster.pid()));
        let text = fs::read_to_string(&path)
            .map_err(|source| ProcessError::Proc { path: path.clone(), source })?;
        Ok(LockFile::parse(&text).ok_or(ProcessError::Unreadable { path })?)
    }

    /// Memory as the postmaster sees it. Shared memory has the same address in all its children.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::of(self.postmaster.pid())
    }

    /// Its buffer map.
    ///
    /// # Errors
    ///
    /// Memory cannot be read, or does not look like buffer descriptors.
    pub fn buffers(&self) -> Result<BufferMap, Error> {
        BufferMap::of(self)
    }

    /// Its clock sweep.
    ///
    /// # Errors
    ///
    /// The variable cannot be found in this binary, or what is there cannot be its state.
    pub fn clock_sweep(&self) -> Result<ClockSweep, Error> {
        ClockSweep::of(self)
    }

    /// `shared_buffers` in pages. Set once, when the server starts.
    pub(crate) fn buffer_count(&self) -> Result<u32, Error> {
        let found = self.memory().int(self.binary.address("NBuffers")?)?;
        match u32::try_from(found) {
            // Bounds of the setting, `guc_tables.c`.
            Ok(count @ 16..=0x3fff_ffff) => Ok(count),
            _ => Err(LayoutError::BufferCount { found }.into()),
        }
    }
}

/// What `postmaster.pid` says, as far as it tells one server from another. Source: `miscadmin.h`,
/// `LOCK_FILE_LINE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFile {
    /// When the server was started, in seconds since 1970.
    pub started_at_s: i64,
    /// The port it listens on.
    pub port: u16,
}

impl LockFile {
    fn parse(text: &str) -> Option<Self> {
        let line = |number: usize| text.lines().nth(number - 1).map(str::trim);
        Some(Self { started_at_s: line(3)?.parse().ok()?, port: line(4)?.parse().ok()? })
    }
}

/// Names that only a PostgreSQL server exports.
const IS_POSTGRES: [&str; 3] = ["BufferDescriptors", "NBuffers", "MyProcPid"];

/// The topmost ancestor that runs the same binary in the same folder.
///
/// Process ids in `postmaster.pid` are of the server's own namespace, so they are not asked.
fn postmaster_of(process: Process) -> Result<Process, ProcessError> {
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

/// The contents of `PG_VERSION`, through the process's working directory, which leads into a container.
fn major_of(postmaster: Process) -> Result<u32, ProcessError> {
    let path = PathBuf::from(format!("/proc/{}/cwd/PG_VERSION", postmaster.pid()));
    let text = fs::read_to_string(&path)
        .map_err(|source| ProcessError::Proc { path: path.clone(), source })?;
    text.trim().parse().map_err(|_| ProcessError::Unreadable { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_tells_when_and_where() {
        let text =
            "4711\n/var/lib/pg\n1795176000\n5433\n/run/postgresql\nlocalhost\n  1  2\nready   \n";
        let expected = LockFile { started_at_s: 1_795_176_000, port: 5433 };
        assert_eq!(LockFile::parse(text), Some(expected));
        assert_eq!(LockFile::parse("4711\n/var/lib/pg\n"), None);
    }
}
