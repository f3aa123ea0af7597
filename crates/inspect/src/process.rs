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

use crate::{child_list::ChildList, error::ProcessError};

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

/// What a process does right now, by the third field of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// On a processor, or waiting for one (`R`).
    Running,
    /// In a wait that no signal ends, most often for a disk (`D`).
    Blocked,
    /// In any other wait (`S` and the rest).
    Sleeping,
    /// It has ended, and its parent did not take notice yet (`Z`).
    Ended,
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

    /// Its children, in no order. One that begins meanwhile may be missing, and while one ends, so may
    /// others.
    ///
    /// Cheap where the kernel keeps the list (`CONFIG_PROC_CHILDREN`, as distributions do); else every
    /// process of the machine is looked at.
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
                // A kernel without the list; or a thread that ended, which a second look finds out.
                Err(_) => return self.children_among_all(),
            }
        }
        Ok(children)
    }

    /// Its children, to be asked for again and again.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn child_list(self) -> Result<ChildList, ProcessError> {
        ChildList::of(self)
    }

    /// What it does right now.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn run_state(self) -> Result<RunState, ProcessError> {
        let stat = self.text("stat")?;
        Ok(RunState::of(field_of(&stat, 3).unwrap_or_default()))
    }

    /// When it was started, in clock ticks since the machine was. With the process id it tells one
    /// process from a later one that was given the same number.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn started_ticks(self) -> Result<u64, ProcessError> {
        let stat = self.text("stat")?;
        let ticks = field_of(&stat, 22).and_then(|field| field.parse().ok());
        ticks.ok_or(ProcessError::Gone { pid: self.pid })
    }

    /// Its command line, which servers write over to tell what each of their processes is for. Bytes that
    /// are no UTF-8 are replaced; empty for a process that is ending.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn title(self) -> Result<String, ProcessError> {
        let title = self.text("cmdline")?;
        Ok(title.trim_end_matches('\0').replace('\0', " "))
    }

    /// Whether it runs the very file that `other` does.
    ///
    /// # Errors
    ///
    /// One of them is gone, or not ours to look at.
    pub fn runs_same_binary(self, other: Self) -> Result<bool, ProcessError> {
        Ok(self.executable_identity()? == other.executable_identity()?)
    }

    fn children_among_all(self) -> Result<Vec<Self>, ProcessError> {
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

    /// What it has mapped, as text.
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
            // ESRCH, from a process that ended between open and read.
            _ if source.raw_os_error() == Some(nix::libc::ESRCH) => ProcessError::Gone { pid },
            _ => ProcessError::Proc { path, source },
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_executable: bool,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// Empty where there is no file.
    pub(crate) path: &'a str,
}

/// The lines of a map of memory; see [`base_of`]. A line that is none is left out.
pub(crate) fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().filter_map(move |line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let offset = hexadecimal(fields.next()?)?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Mapping {
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
    fn of(letter: &str) -> Self {
        match letter {
            "R" => Self::Running,
            "D" => Self::Blocked,
            "Z" | "X" | "x" => Self::Ended,
            _ => Self::Sleeping,
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

/// The fourth field of `/proc/PID/stat`.
fn parent_of(stat: &str) -> Option<u32> {
    field_of(stat, 4)?.parse().ok()
}

/// A field of `/proc/PID/stat` behind the second. That one, the command's name, may itself hold spaces and
/// parentheses, so fields are counted from the last `)`; see proc_pid_stat(5), whose numbers these are.
fn field_of(stat: &str, number: usize) -> Option<&str> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
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
        assert_eq!(field_of("42 (a) S 1 (b) R 17 42", 3), Some("R"));
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
    fn lines_of_a_map_are_read() {
        let maps = "55d0c00d1000-55d0c0600000 r-xp 000d1000 fe:00 1234       /opt/a b/postgres\n\
            7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]\n\
            55d1c0000000-55d1c0001000 rw-p 00000000 00:00 0 \ncut off";
        let read: Vec<_> = mappings(maps).collect();
        assert_eq!(read.len(), 3);
        let expected = Mapping {
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
    fn a_binary_that_was_removed_keeps_its_mapping() {
        let maps = b"400000-500000 r--p 00000000 fe:00 7    /usr/bin/a b (deleted)\n";
        assert_eq!(base_of(maps, b"/usr/bin/a b (deleted)"), Some(0x40_0000));
    }

    #[test]
    fn this_process_has_a_parent_that_knows_it() {
        let here = Process::of(std::process::id()).expect("we run");
        let parent = here.parent().expect("our stat can be read").expect("cargo runs us");
        assert!(parent.children().expect("/proc can be listed").contains(&here));
        assert!(parent.children_among_all().expect("/proc can be listed").contains(&here));
        assert!(here.started_ticks().expect("our own") >= parent.started_ticks().expect("theirs"));
        assert!(here.title().expect("our own").contains("inspect"));
        assert!(here.runs_same_binary(here).expect("our own"));
        assert_eq!(here.executable_state().expect("our own"), ExecutableState::InPlace);
        assert!(here.executable_base().expect("our own maps").is_some());
    }
}
