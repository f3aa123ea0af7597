//! A process as `/proc` shows it: its parent, its binary, its working directory, its mappings.
//!
//! The names of `/proc/PID` are links into the process's own world: `/proc/PID/exe` opens the very
//! file that runs, though its path may be another file by now, or lie in a container.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::error::ProcessError;

/// A process that exists, or existed a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pid: u32,
}

/// What became of the file that a process was started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutableState {
    /// The path still leads to the file that runs.
    InPlace,
    /// The path leads to another file: the package was upgraded under the running server.
    Replaced,
    /// There is nothing at the path.
    Deleted,
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl Process {
    /// The process `pid`.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let process = Self { pid };
        if process.file("stat").exists() { Ok(process) } else { Err(ProcessError::Gone { pid }) }
    }

    /// Its process id, in the namespace of the caller.
    #[must_use]
    pub fn pid(self) -> u32 {
        self.pid
    }

    /// `/proc/PID/exe`, by which the binary that runs can be opened.
    #[must_use]
    pub fn executable(self) -> PathBuf {
        self.file("exe")
    }

    /// The path its binary had when it was started.
    ///
    /// # Errors
    ///
    /// The process is gone, or not ours to look at.
    pub fn executable_path(self) -> Result<PathBuf, ProcessError> {
        let link = self.link("exe")?;
        let path = link.as_os_str().as_bytes();
        Ok(Path::new(OsStr::from_bytes(path.strip_suffix(DELETED).unwrap_or(path))).to_path_buf())
    }

    /// Whether the file at that path is still the one that runs.
    ///
    /// A server in another mount namespace is judged by the path as that namespace sees it.
    ///
    /// # Errors
    ///
    /// The process is gone, or not ours to look at.
    pub fn executable_state(self) -> Result<ExecutableState, ProcessError> {
        let path = self.executable_path()?;
        let running = self.executable_identity()?;
        let relative = path.strip_prefix("/").unwrap_or(&path);
        Ok(match fs::metadata(self.file("root").join(relative)) {
            Ok(found) if FileIdentity::of(&found) == running => ExecutableState::InPlace,
            Ok(_) => ExecutableState::Replaced,
            Err(_) => ExecutableState::Deleted,
        })
    }

    /// Its working directory: of every process of a server, the data directory.
    ///
    /// # Errors
    ///
    /// The process is gone, or not ours to look at.
    pub fn working_dir(self) -> Result<PathBuf, ProcessError> {
        self.link("cwd")
    }

    /// Its parent, unless that is the first process or lies outside our namespace.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn parent(self) -> Result<Option<Self>, ProcessError> {
        let stat = self.text("stat")?;
        let parent = parent_of(&stat).filter(|&pid| pid > 1);
        Ok(parent.map(|pid| Self { pid }))
    }

    /// Its children, in no order. One that ends meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be listed.
    pub fn children(self) -> Result<Vec<Self>, ProcessError> {
        let proc = Path::new("/proc");
        let failed = |source| ProcessError::Proc { path: proc.to_path_buf(), source };
        let mut children = Vec::new();
        for entry in fs::read_dir(proc).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let process = Self { pid };
            let stat = process.text("stat").unwrap_or_default();
            if parent_of(&stat) == Some(self.pid) {
                children.push(process);
            }
        }
        Ok(children)
    }

    /// Whether `dir` is its working directory, whatever the names.
    pub(crate) fn works_in(self, dir: &Path) -> Result<bool, ProcessError> {
        let path = self.file("cwd");
        let own = fs::metadata(&path).map_err(|source| self.error(path, source))?;
        Ok(fs::metadata(dir).is_ok_and(|dir| FileIdentity::of(&dir) == FileIdentity::of(&own)))
    }

    pub(crate) fn executable_identity(self) -> Result<FileIdentity, ProcessError> {
        let path = self.executable();
        let metadata = fs::metadata(&path).map_err(|source| self.error(path, source))?;
        Ok(FileIdentity::of(&metadata))
    }

    /// Where the beginning of its binary is mapped.
    pub(crate) fn executable_base(self) -> Result<Option<u64>, ProcessError> {
        let link = self.link("exe")?;
        let path = self.file("maps");
        let maps = fs::read(&path).map_err(|source| self.error(path, source))?;
        Ok(base_of(&maps, link.as_os_str().as_bytes()))
    }

    fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn link(self, name: &str) -> Result<PathBuf, ProcessError> {
        let path = self.file(name);
        fs::read_link(&path).map_err(|source| self.error(path, source))
    }

    fn text(self, name: &str) -> Result<String, ProcessError> {
        let path = self.file(name);
        let bytes = fs::read(&path).map_err(|source| self.error(path, source))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn error(self, path: PathBuf, source: io::Error) -> ProcessError {
        let pid = self.pid;
        match source.kind() {
            io::ErrorKind::NotFound => ProcessError::Gone { pid },
            io::ErrorKind::PermissionDenied => ProcessError::Denied { pid },
            // ESRCH, from a process that ended between open and read.
            _ if source.raw_os_error() == Some(nix::libc::ESRCH) => ProcessError::Gone { pid },
            _ => ProcessError::Proc { path, source },
        }
    }
}

impl FileIdentity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// What the kernel puts behind the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// The fourth field of `/proc/PID/stat`. The second, the command's name, may itself hold spaces and
/// parentheses, so fields are counted from the last `)`; see proc_pid_stat(5).
fn parent_of(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The address of the mapping of `path` that begins with the file's first byte.
///
/// A line is `start-end perms offset device inode   path`, numbers in hexadecimal; see
/// proc_pid_maps(5), which also says that a newline in the path is written `\012`.
fn base_of(maps: &[u8], path: &[u8]) -> Option<u64> {
    let written = path.iter().fold(Vec::new(), |mut written, &byte| {
        match byte {
            b'\n' => written.extend_from_slice(br"\012"),
            byte => written.push(byte),
        }
        written
    });
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let before = line.strip_suffix(&written[..])?;
        let mut fields = std::str::from_utf8(before).ok()?.split_ascii_whitespace();
        let (start, _) = fields.next()?.split_once('-')?;
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        // Device and inode, and nothing else: else the path only ends like ours.
        let is_whole = fields.count() == 2;
        (offset == 0 && is_whole).then(|| u64::from_str_radix(start, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_have_any_name() {
        assert_eq!(parent_of("42 (postgres) S 17 42 42 0"), Some(17));
        assert_eq!(parent_of("42 (a) S 1 (b) R 17 42"), Some(17));
        assert_eq!(parent_of("42 (cut"), None);
    }

    #[test]
    fn the_base_is_the_mapping_of_the_first_byte() {
        let maps = b"\
            55d0c0000000-55d0c00d1000 r--p 00000000 fe:00 1234       /opt/pg/bin/postgres\n\
            55d0c00d1000-55d0c0600000 r-xp 000d1000 fe:00 1234       /opt/pg/bin/postgres\n\
            7f0000000000-7f0000001000 r--p 00000000 fe:00 99         /lib/libc.so.6\n";
        assert_eq!(base_of(maps, b"/opt/pg/bin/postgres"), Some(0x55d0_c000_0000));
        assert_eq!(base_of(maps, b"/lib/libc.so.6"), Some(0x7f00_0000_0000));
        assert_eq!(base_of(maps, b"/bin/postgres"), None);
    }

    #[test]
    fn a_binary_that_was_removed_keeps_its_mapping() {
        let maps = b"400000-500000 r--p 00000000 fe:00 7    /usr/bin/a b (deleted)\n";
        assert_eq!(base_of(maps, b"/usr/bin/a b (deleted)"), Some(0x40_0000));
    }

    #[test]
    fn this_process_has_a_parent_that_knows_it() {
        let here = Process::of(std::process::id()).expect("we run");
        let parent = here.parent().expect("our stat can be read").expect("cargo runs us");
        assert!(parent.children().expect("/proc can be listed").contains(&here));
        assert_eq!(here.executable_state().expect("our own"), ExecutableState::InPlace);
        assert!(here.executable_base().expect("our own maps").is_some());
    }
}
