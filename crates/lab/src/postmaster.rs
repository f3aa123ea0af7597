//! The state of a server, from `postmaster.pid` and `/proc`.

use std::{fs, path::Path};

/// The parsed lines of `postmaster.pid` (`LOCK_FILE_LINE_…` in `pidfile.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PidFile {
    /// Line 1: the postmaster's process id.
    pub(crate) pid: u32,
    /// Whether line 8 says that the server accepts connections, or is a standby without
    /// `hot_standby`.
    pub(crate) ready: bool,
}

impl PidFile {
    /// Reads the file; `None` if it is missing or incomplete.
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

/// Returns the process id of the server that runs in a data directory.
///
/// The process id in the file alone is not enough: the server may have died without removing it,
/// and the id may be reused. A postmaster's working directory is its data directory.
pub(crate) fn running(data: &Path) -> Option<u32> {
    let PidFile { pid, .. } = PidFile::read(data)?;
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    (cwd == data.canonicalize().ok()?).then_some(pid)
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// Returns the start time of a process, in clock ticks since boot: field 22 in proc_pid_stat(5).
pub(crate) fn started_ticks(pid: u32) -> Option<u64> {
    stat(pid)?.split(' ').nth(22 - 3)?.parse().ok()
}

/// Returns `/proc/PID/stat` from the third field (the state) on. The second field is a name in
/// parentheses, which may contain parentheses itself.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_file_state_line_decides_readiness() {
        let file = |state| format!("41\n/data\n1700000000\n5432\n/s\n127.0.0.1\n  1 2\n{state}\n");
        assert_eq!(PidFile::parse(&file("ready   ")), Some(PidFile { pid: 41, ready: true }));
        assert_eq!(PidFile::parse(&file("standby ")), Some(PidFile { pid: 41, ready: true }));
        assert_eq!(PidFile::parse(&file("starting")), Some(PidFile { pid: 41, ready: false }));
        assert_eq!(PidFile::parse("41\n/data\n"), Some(PidFile { pid: 41, ready: false }));
        assert_eq!(PidFile::parse("-41\n"), None);
        assert_eq!(PidFile::parse(""), None);
    }

    #[test]
    fn reaped_child_is_not_alive() {
        assert!(is_alive(std::process::id()));
        assert!(started_ticks(std::process::id()).is_some_and(|ticks| ticks > 0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn pid_file_with_foreign_process_is_not_running() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("postmaster.pid"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(running(data.path()), None);
    }
}
