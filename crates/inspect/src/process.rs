//! A process as described in `/proc`: its parent, binary, working directory and mappings.
//!
//! The entries of `/proc/PID` resolve in the process's own namespaces: `/proc/PID/exe` opens the
//! file that is running, even if its path now names another file or lies in a container.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::error::ProcessError;

/// The unit of times in `/proc/PID/stat`, the same on all architectures that PostgreSQL supports
/// (`USER_HZ`).
const MILLIS_PER_TICK: u64 = 10;

/// A process that exists, or existed until recently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OsProcess {
    pid: u32,
}

/// State of the file that a process was started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutableState {
    /// The path still names the running file.
    InPlace,
    /// The path names another file, usually because the package was upgraded under the running
    /// server.
    Replaced,
    /// The path cannot be looked up, usually because the binary was removed while running.
    Deleted,
}

/// State of a process, from the third field of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Running or runnable (`R`).
    Running,
    /// Uninterruptible sleep, usually disk I/O (`D`).
    Blocked,
    /// Interruptible sleep (`S`), stopped (`T`), or any other state.
    Sleeping,
    /// Exited, but not yet reaped by its parent (`Z`), or being removed (`X`).
    Ended,
}

/// Identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl OsProcess {
    /// Finds the process `pid`.
    ///
    /// # Errors
    ///
    /// No such process exists.
    pub fn from_pid(pid: u32) -> Result<Self, ProcessError> {
        let process = Self { pid };
        if process.file("stat").exists() { Ok(process) } else { Err(ProcessError::Gone { pid }) }
    }

    /// Returns the process id in the caller's PID namespace.
    pub fn pid(self) -> u32 {
        self.pid
    }

    /// Returns the path `/proc/PID/exe`, which opens the running binary.
    pub fn executable(self) -> PathBuf {
        self.file("exe")
    }

    /// Returns the path of the binary as the kernel reports it, without the ` (deleted)` of a
    /// removed file.
    ///
    /// # Errors
    ///
    /// The process is gone or cannot be inspected.
    pub fn executable_path(self) -> Result<PathBuf, ProcessError> {
        let link = self.link("exe")?;
        let path = link.as_os_str().as_bytes();
        Ok(Path::new(OsStr::from_bytes(path.strip_suffix(DELETED).unwrap_or(path))).to_path_buf())
    }

    /// Returns the state of the file at [`Self::executable_path`], compared with the running one.
    /// The path is resolved in the process's own mount namespace.
    ///
    /// # Errors
    ///
    /// The process is gone or cannot be inspected.
    pub fn executable_state(self) -> Result<ExecutableState, ProcessError> {
        let path = self.executable_path()?;
        let running = self.executable_identity()?;
        let relative = path.strip_prefix("/").unwrap_or(&path);
        Ok(match fs::metadata(self.file("root").join(relative)) {
            Ok(found) if FileIdentity::from_metadata(&found) == running => ExecutableState::InPlace,
            Ok(_) => ExecutableState::Replaced,
            Err(_) => ExecutableState::Deleted,
        })
    }

    /// Returns the working directory. For every process of a server, this is the data directory.
    ///
    /// # Errors
    ///
    /// The process is gone or cannot be inspected.
    pub fn working_dir(self) -> Result<PathBuf, ProcessError> {
        self.link("cwd")
    }

    /// Returns the parent, unless it is process 1 or outside the caller's PID namespace.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn parent(self) -> Result<Option<Self>, ProcessError> {
        let stat = self.text("stat")?;
        let parent = parse_parent_pid(&stat).filter(|&pid| pid > 1);
        Ok(parent.map(|pid| Self { pid }))
    }

    /// Returns the children, in no particular order. A child that is just starting may be missing,
    /// and while a child exits, others may be missing too.
    ///
    /// This is cheap where the kernel has the list (`CONFIG_PROC_CHILDREN`, set by distributions);
    /// otherwise, every process of the machine is examined.
    ///
    /// # Errors
    ///
    /// The process is gone, or `/proc` cannot be listed.
    pub fn children(self) -> Result<Vec<Self>, ProcessError> {
        let tasks = self.file("task");
        let listed = fs::read_dir(&tasks).map_err(|source| self.error(tasks, source))?;
        let mut children = Vec::new();
        for task in listed.flatten() {
            match fs::read_to_string(task.path().join("children")) {
                Ok(list) => {
                    let pids = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
                    children.extend(pids.map(|pid| Self { pid }));
                }
                // Either the kernel has no such list or the thread has exited; a scan covers both.
                Err(_) => return self.scan_children(),
            }
        }
        Ok(children)
    }

    /// Returns the current state of the process.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn run_state(self) -> Result<RunState, ProcessError> {
        let stat = self.text("stat")?;
        Ok(RunState::from_state_code(stat_field(&stat, 3).unwrap_or_default()))
    }

    /// Returns the start time in clock ticks since boot. Together with the process id it
    /// distinguishes a process from a later one that reuses the id.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn start_time_ticks(self) -> Result<u64, ProcessError> {
        let stat = self.text("stat")?;
        let ticks = stat_field(&stat, 22).and_then(|field| field.parse().ok());
        ticks.ok_or(ProcessError::Gone { pid: self.pid })
    }

    /// Returns the processor time that the process and the children that it has waited for have
    /// needed, in user and kernel mode. The kernel counts it in ticks of some 10 ms.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn cpu_time(self) -> Result<Duration, ProcessError> {
        let stat = self.text("stat")?;
        // utime, stime, cutime and cstime of proc_pid_stat(5).
        let ticks = (14..=17).map(|field| stat_field(&stat, field)?.parse::<u64>().ok());
        let ticks: u64 = ticks.sum::<Option<_>>().ok_or(ProcessError::Gone { pid: self.pid })?;
        Ok(Duration::from_millis(ticks.saturating_mul(MILLIS_PER_TICK)))
    }

    /// Returns the command line, which PostgreSQL overwrites with the process title. Invalid UTF-8
    /// is replaced; empty for an exiting process.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn title(self) -> Result<String, ProcessError> {
        let title = self.text("cmdline")?;
        Ok(title.trim_end_matches('\0').replace('\0', " "))
    }

    /// Whether the process runs the same file as `other`.
    ///
    /// # Errors
    ///
    /// One of them is gone or cannot be inspected.
    pub fn runs_same_binary(self, other: Self) -> Result<bool, ProcessError> {
        Ok(self.executable_identity()? == other.executable_identity()?)
    }

    fn scan_children(self) -> Result<Vec<Self>, ProcessError> {
        let proc = Path::new("/proc");
        let failed = |source| ProcessError::Proc { path: proc.to_path_buf(), source };
        let mut children = Vec::new();
        for entry in fs::read_dir(proc).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let process = Self { pid };
            let stat = process.text("stat").unwrap_or_default();
            if parse_parent_pid(&stat) == Some(self.pid) {
                children.push(process);
            }
        }
        Ok(children)
    }

    /// Whether `dir` is the working directory, compared by identity rather than by name.
    pub(crate) fn has_working_dir(self, dir: &Path) -> Result<bool, ProcessError> {
        let path = self.file("cwd");
        let own = fs::metadata(&path).map_err(|source| self.error(path, source))?;
        Ok(fs::metadata(dir).is_ok_and(|dir| {
            FileIdentity::from_metadata(&dir) == FileIdentity::from_metadata(&own)
        }))
    }

    pub(crate) fn executable_identity(self) -> Result<FileIdentity, ProcessError> {
        let path = self.executable();
        let metadata = fs::metadata(&path).map_err(|source| self.error(path, source))?;
        Ok(FileIdentity::from_metadata(&metadata))
    }

    /// Returns the address at which the start of the binary is mapped; `None` if it is not mapped,
    /// as while the process exits.
    pub(crate) fn executable_base(self) -> Result<Option<u64>, ProcessError> {
        let link = self.link("exe")?;
        let path = self.file("maps");
        let maps = fs::read(&path).map_err(|source| self.error(path, source))?;
        Ok(find_image_base(&maps, link.as_os_str().as_bytes()))
    }

    /// Reads `/proc/PID/maps`.
    pub(crate) fn maps(self) -> Result<String, ProcessError> {
        self.text("maps")
    }

    pub(crate) fn file(self, name: &str) -> PathBuf {
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

    pub(crate) fn error(self, path: PathBuf, source: io::Error) -> ProcessError {
        let pid = self.pid;
        match source.kind() {
            io::ErrorKind::NotFound => ProcessError::Gone { pid },
            io::ErrorKind::PermissionDenied => ProcessError::Denied { pid },
            // ESRCH: the process exited between open and read.
            _ if source.raw_os_error() == Some(nix::libc::ESRCH) => ProcessError::Gone { pid },
            _ => ProcessError::Proc { path, source },
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryMapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_executable: bool,
    /// Offset of the mapping in the file.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// Path of the mapped file; empty for anonymous memory.
    pub(crate) path: &'a str,
}

/// Parses the lines of `/proc/PID/maps`; [`find_image_base`] describes their format. Unparsable
/// lines are skipped.
pub(crate) fn mappings(maps: &str) -> impl Iterator<Item = MemoryMapping<'_>> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().filter_map(move |line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let offset = hexadecimal(fields.next()?)?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(MemoryMapping {
            start: hexadecimal(start)?,
            end: hexadecimal(end)?,
            is_executable: permissions.contains('x'),
            offset,
            inode,
            path: fields.next().unwrap_or_default().trim_start(),
        })
    })
}

impl RunState {
    fn from_state_code(code: &str) -> Self {
        match code {
            "R" => Self::Running,
            "D" => Self::Blocked,
            "Z" | "X" | "x" => Self::Ended,
            _ => Self::Sleeping,
        }
    }
}

impl FileIdentity {
    fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Suffix that the kernel appends to the path of a removed file.
const DELETED: &[u8] = b" (deleted)";

/// Parses the parent's process id, the fourth field of `/proc/PID/stat`.
fn parse_parent_pid(stat: &str) -> Option<u32> {
    stat_field(stat, 4)?.parse().ok()
}

/// Returns a field of `/proc/PID/stat` after the second. The second, the command name, may contain
/// spaces and parentheses, so fields are counted from the last `)`. `number` counts from 1, as in
/// proc_pid_stat(5).
fn stat_field(stat: &str, number: usize) -> Option<&str> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Returns the address of the mapping of `path` that starts with the file's first byte.
///
/// A line is `start-end perms offset device inode   path` with hexadecimal numbers; see
/// proc_pid_maps(5), which also says that a newline in the path is written as `\012`.
fn find_image_base(maps: &[u8], path: &[u8]) -> Option<u64> {
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
        // Only device and inode may precede the path; otherwise the path merely ends like ours.
        let is_whole = fields.count() == 2;
        (offset == 0 && is_whole).then(|| u64::from_str_radix(start, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_survive_parentheses_in_command_name() {
        assert_eq!(parse_parent_pid("42 (postgres) S 17 42 42 0"), Some(17));
        assert_eq!(parse_parent_pid("42 (a) S 1 (b) R 17 42"), Some(17));
        assert_eq!(parse_parent_pid("42 (cut"), None);
        assert_eq!(stat_field("42 (a) S 1 (b) R 17 42", 3), Some("R"));
    }

    #[test]
    fn processor_time_rises_with_work() {
        let own = OsProcess::from_pid(std::process::id()).unwrap();
        let before = own.cpu_time().unwrap();
        let started = std::time::Instant::now();
        while own.cpu_time().unwrap() < before + Duration::from_millis(30) {
            assert!(started.elapsed() < Duration::from_secs(60), "30 ms of processor time");
        }
    }

    #[test]
    fn image_base_is_mapping_of_file_offset_zero() {
        let maps = b"\
            55d0c0000000-55d0c00d1000 r--p 00000000 fe:00 1234       /opt/pg/bin/postgres\n\
            55d0c00d1000-55d0c0600000 r-xp 000d1000 fe:00 1234       /opt/pg/bin/postgres\n\
            7f0000000000-7f0000001000 r--p 00000000 fe:00 99         /lib/libc.so.6\n";
        assert_eq!(find_image_base(maps, b"/opt/pg/bin/postgres"), Some(0x55d0_c000_0000));
        assert_eq!(find_image_base(maps, b"/lib/libc.so.6"), Some(0x7f00_0000_0000));
        assert_eq!(find_image_base(maps, b"/bin/postgres"), None);
    }

    #[test]
    fn maps_lines_are_parsed() {
        let maps = "55d0c00d1000-55d0c0600000 r-xp 000d1000 fe:00 1234       /opt/a b/postgres\n\
            7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]\n\
            55d1c0000000-55d1c0001000 rw-p 00000000 00:00 0 \ncut off";
        let read: Vec<_> = mappings(maps).collect();
        assert_eq!(read.len(), 3);
        let expected = MemoryMapping {
            start: 0x55d0_c00d_1000,
            end: 0x55d0_c060_0000,
            is_executable: true,
            offset: 0xd_1000,
            inode: 1234,
            path: "/opt/a b/postgres",
        };
        assert_eq!((read[0], read[1].path, read[2].path), (expected, "[stack]", ""));
    }

    #[test]
    fn deleted_binary_keeps_its_image_base() {
        let maps = b"400000-500000 r--p 00000000 fe:00 7    /usr/bin/a b (deleted)\n";
        assert_eq!(find_image_base(maps, b"/usr/bin/a b (deleted)"), Some(0x40_0000));
    }

    #[test]
    fn parent_lists_this_process_as_child() {
        let here = OsProcess::from_pid(std::process::id()).expect("this process exists");
        let parent = here.parent().expect("own stat is readable").expect("cargo is the parent");
        assert!(parent.children().expect("/proc is readable").contains(&here));
        assert!(parent.scan_children().expect("/proc is readable").contains(&here));
        assert!(
            here.start_time_ticks().expect("own process is readable")
                >= parent.start_time_ticks().expect("parent is readable")
        );
        assert!(here.title().expect("own process is readable").contains("inspect"));
        assert!(here.runs_same_binary(here).expect("own process is readable"));
        assert_eq!(
            here.executable_state().expect("own process is readable"),
            ExecutableState::InPlace
        );
        assert!(here.executable_base().expect("own maps are readable").is_some());
    }
}
