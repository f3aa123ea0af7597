//! What a running server tells by `postmaster.pid` and by being a process.

use std::{fs, path::Path};

/// The lines of `postmaster.pid` that concern us (`miscinit.h`, `LOCK_FILE_LINE_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PidFile {
    /// Line 1: the postmaster's process id.
    pub(crate) pid: u32,
    /// Line 8: it accepts connections, or would if it were not a standby closed to them.
    pub(crate) ready: bool,
}

impl PidFile {
    /// Reads it; `None` when there is none, or it is not complete.
    pub(crate) fn read(data: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        // A standalone backend has its pid negated.
        let pid = lines.next()?.trim().parse().ok()?;
        let ready = matches!(lines.nth(6).map(str::trim), Some("ready" | "standby"));
        Some(Self { pid, ready })
    }
}

/// The process id of the server that runs in a data directory.
///
/// A number in a file proves little: the server may have died without removing it, and the number
/// belong to somebody else by now. A postmaster's working directory is its data directory.
pub(crate) fn running(data: &Path) -> Option<u32> {
    let PidFile { pid, .. } = PidFile::read(data)?;
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    (cwd == data.canonicalize().ok()?).then_some(pid)
}

/// Whether a process is there and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// When a process was started, in clock ticks since the machine was: field 22 in proc_pid_stat(5).
pub(crate) fn started_ticks(pid: u32) -> Option<u64> {
    stat(pid)?.split(' ').nth(22 - 3)?.parse().ok()
}

/// `/proc/PID/stat` from the third field, the state, on. The second is a name in parentheses, which
/// may hold anything, parentheses included.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_pid_file() {
        let file = |state| format!("41\n/data\n1700000000\n5432\n/s\n127.0.0.1\n  1 2\n{state}\n");
        assert_eq!(PidFile::parse(&file("ready   ")), Some(PidFile { pid: 41, ready: true }));
        assert_eq!(PidFile::parse(&file("standby ")), Some(PidFile { pid: 41, ready: true }));
        assert_eq!(PidFile::parse(&file("starting")), Some(PidFile { pid: 41, ready: false }));
        assert_eq!(PidFile::parse("41\n/data\n"), Some(PidFile { pid: 41, ready: false }));
        assert_eq!(PidFile::parse("-41\n"), None);
        assert_eq!(PidFile::parse(""), None);
    }

    #[test]
    fn we_live() {
        assert!(is_alive(std::process::id()));
        assert!(started_ticks(std::process::id()).is_some_and(|ticks| ticks > 0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_number_that_belongs_to_another_process_is_no_server() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("postmaster.pid"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(running(data.path()), None);
    }
}
