//! Observes a postmaster on this host without connecting to it: whether it is starting, running or
//! stopping.
//!
//! A postmaster writes its status to line 8 of `postmaster.pid` (`LOCK_FILE_LINE_PM_STATUS` in
//! `pidfile.h`): `starting`, `standby`, `ready`, `stopping`. It overwrites the line in place, so an
//! inotify watch on the file reports every change. A pidfd reports the end of the process.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Instant,
};

use howdah_inspect::RunningServer;
use rustix::{
    fs::inotify,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::daemon::shutdown::{ShutdownSignal, wait_readable};

/// The status that a postmaster writes to its lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostmasterStatus {
    /// Starting up, perhaps in recovery, and not accepting connections yet.
    Starting,
    /// Accepting connections (`ready`), or a standby without `hot_standby` (`standby`).
    Accepting,
    /// Shutting down, or waiting for its sessions to end.
    Stopping,
}

/// The event that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostEvent {
    /// The deadline passed: an image is due.
    DumpDue,
    /// The daemon must shut down.
    Shutdown,
    /// The server may have changed its status.
    StatusChanged,
    /// The server stopped, restarted or became unreachable.
    ServerDown,
}

/// A running postmaster on this host.
#[derive(Debug)]
pub(super) struct LocalPostmaster {
    pub(super) server: RunningServer,
    process: OwnedFd,
    lock_file: OwnedFd,
}

impl LocalPostmaster {
    pub(super) fn new(server: RunningServer) -> io::Result<Self> {
        let pid = server.postmaster().pid();
        let raw_pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw_pid =
            raw_pid.ok_or_else(|| io::Error::other("invalid process ID of the postmaster"))?;
        let process = pidfd_open(raw_pid, PidfdFlags::empty())?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let lock_file = inotify::init(flags)?;
        let changes = inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&lock_file, lock_file_path(pid), changes)?;
        Ok(Self { server, process, lock_file })
    }

    /// Waits until the status changes, the daemon shuts down, the process ends, or `deadline`
    /// passes.
    pub(super) fn wait(&self, deadline: Option<Instant>, stop: &ShutdownSignal) -> HostEvent {
        let fds = [self.process.as_fd(), stop.as_fd(), self.lock_file.as_fd()];
        match wait_readable(&fds, deadline) {
            None => HostEvent::DumpDue,
            Some(0) => HostEvent::ServerDown,
            Some(1) => HostEvent::Shutdown,
            Some(_) => {
                self.drain();
                HostEvent::StatusChanged
            }
        }
    }

    /// Returns the postmaster's current status; `None` if its lock file is missing or incomplete.
    pub(super) fn status(&self) -> Option<PostmasterStatus> {
        read_status(&lock_file_path(self.server.postmaster().pid()))
    }

    /// Whether the postmaster's process has ended.
    pub(super) fn is_gone(&self) -> bool {
        wait_readable(&[self.process.as_fd()], Some(Instant::now())).is_some()
    }

    /// Discards the pending inotify events.
    fn drain(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.lock_file, &mut buffer);
        while reader.next().is_ok() {}
    }
}

/// Returns the path of the lock file in the working directory of the process, which may run in a
/// container.
fn lock_file_path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/cwd/postmaster.pid"))
}

/// Returns the status in a lock file; `None` if it is missing or incomplete.
pub(super) fn read_status(lock_file: &Path) -> Option<PostmasterStatus> {
    parse_status(&fs::read_to_string(lock_file).ok()?)
}

fn parse_status(text: &str) -> Option<PostmasterStatus> {
    match text.lines().nth(7)?.trim() {
        "starting" => Some(PostmasterStatus::Starting),
        "ready" | "standby" => Some(PostmasterStatus::Accepting),
        "stopping" => Some(PostmasterStatus::Stopping),
        _ => None,
    }
}

/// Returns the process ID and start time in the lock file of a data directory, which together
/// identify one start of the server; `None` if the file is missing or incomplete.
pub(super) fn read_start(data_dir: &Path) -> Option<(u32, i64)> {
    let text = fs::read_to_string(data_dir.join("postmaster.pid")).ok()?;
    let mut lines = text.lines().map(str::trim);
    Some((lines.next()?.parse().ok()?, lines.nth(1)?.parse().ok()?))
}

/// Returns the data directory of the server with this Unix socket: line 2 of the socket's lock
/// file. `None` if the file cannot be read or the path is relative.
pub(super) fn data_dir_from_socket(socket: &Path) -> Option<PathBuf> {
    let mut lock = socket.as_os_str().to_owned();
    lock.push(".lock");
    let text = fs::read_to_string(Path::new(&lock)).ok()?;
    text.lines().nth(1).map(PathBuf::from).filter(|dir| dir.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "71\n/srv/pg\n1795176000\n5432\n/tmp\n127.0.0.1\n  1234 5\nstopping\n";

    #[test]
    fn status_is_line_eight_of_the_lock_file() {
        assert_eq!(parse_status(TEXT), Some(PostmasterStatus::Stopping));
        assert_eq!(
            parse_status(&TEXT.replace("stopping", "ready   ")),
            Some(PostmasterStatus::Accepting)
        );
        assert_eq!(
            parse_status(&TEXT.replace("stopping", "standby ")),
            Some(PostmasterStatus::Accepting)
        );
        assert_eq!(
            parse_status(&TEXT.replace("stopping", "starting")),
            Some(PostmasterStatus::Starting)
        );
        // A starting postmaster has not written the line yet.
        assert_eq!(parse_status("71\n/srv/pg\n"), None);
    }

    #[test]
    fn start_is_identified_by_process_and_time() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_start(folder.path()), None);
        fs::write(folder.path().join("postmaster.pid"), TEXT).unwrap();
        assert_eq!(read_start(folder.path()), Some((71, 1_795_176_000)));
    }

    #[test]
    fn socket_lock_file_names_the_data_directory() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(".s.PGSQL.5432");
        assert_eq!(data_dir_from_socket(&socket), None);
        fs::write(folder.path().join(".s.PGSQL.5432.lock"), TEXT).unwrap();
        assert_eq!(data_dir_from_socket(&socket), Some(PathBuf::from("/srv/pg")));
    }
}
