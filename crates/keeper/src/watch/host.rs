//! The watched server as this host sees it: whether it runs, starts or stops, without asking it.
//!
//! A postmaster writes its state to line 8 of `postmaster.pid` (`LOCK_FILE_LINE_PM_STATUS` in
//! `miscadmin.h`): `starting`, `standby`, `ready`, `stopping`. It does so in place, so a watch on the file
//! sees every change; the end of the process is seen by a pidfd.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Instant,
};

use howdah_inspect::Server;
use rustix::{
    fs::inotify,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::stop::{Stop, wait_for};

/// What a postmaster says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It recovers, and lets nobody in.
    Starting,
    /// It lets in, as a hot standby or as a primary.
    Open,
    /// It shuts down, or waits for its sessions to end.
    Stopping,
}

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The time came.
    Due,
    /// We are to end.
    Stop,
    /// The server changed its state: look at it.
    Changed,
    /// The server, or the session with it, is gone.
    Gone,
}

/// A server on this host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) server: Server,
    process: OwnedFd,
    lock_file: OwnedFd,
}

impl Host {
    pub(super) fn new(server: Server) -> io::Result<Self> {
        let pid = server.postmaster().pid();
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io::Error::other("it has an impossible process id"))?;
        let process = pidfd_open(number, PidfdFlags::empty())?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let lock_file = inotify::init(flags)?;
        let wanted = inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&lock_file, lock_file_of(pid), wanted)?;
        Ok(Self { server, process, lock_file })
    }

    /// Waits for a change, a stop, the end of the process, or until `due`.
    pub(super) fn wait(&self, due: Option<Instant>, stop: &Stop) -> Event {
        let fds = [self.process.as_fd(), stop.as_fd(), self.lock_file.as_fd()];
        match wait_for(&fds, due) {
            None => Event::Due,
            Some(0) => Event::Gone,
            Some(1) => Event::Stop,
            Some(_) => {
                self.drain();
                Event::Changed
            }
        }
    }

    /// What it says of itself now; nothing if its file is gone.
    pub(super) fn status(&self) -> Option<Status> {
        status(&lock_file_of(self.server.postmaster().pid()))
    }

    /// Whether its process has ended.
    pub(super) fn is_gone(&self) -> bool {
        wait_for(&[self.process.as_fd()], Some(Instant::now())).is_some()
    }

    fn drain(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.lock_file, &mut buffer);
        while reader.next().is_ok() {}
    }
}

/// The lock file by the process's own eyes, which may be those of a container.
fn lock_file_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/cwd/postmaster.pid"))
}

/// The state in a lock file.
pub(super) fn status(lock_file: &Path) -> Option<Status> {
    status_of(&fs::read_to_string(lock_file).ok()?)
}

fn status_of(text: &str) -> Option<Status> {
    match text.lines().nth(7)?.trim() {
        "starting" => Some(Status::Starting),
        "ready" | "standby" => Some(Status::Open),
        "stopping" => Some(Status::Stopping),
        _ => None,
    }
}

/// Process id and time of start in the lock file of a data directory: what tells one start from another.
pub(super) fn start_of(data_dir: &Path) -> Option<(u32, i64)> {
    let text = fs::read_to_string(data_dir.join("postmaster.pid")).ok()?;
    let mut lines = text.lines().map(str::trim);
    Some((lines.next()?.parse().ok()?, lines.nth(1)?.parse().ok()?))
}

/// The data directory behind a unix socket: line 2 of the lock file beside it.
pub(super) fn data_dir_of_socket(socket: &Path) -> Option<PathBuf> {
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
    fn a_lock_file_tells_the_state() {
        assert_eq!(status_of(TEXT), Some(Status::Stopping));
        assert_eq!(status_of(&TEXT.replace("stopping", "ready   ")), Some(Status::Open));
        assert_eq!(status_of(&TEXT.replace("stopping", "standby ")), Some(Status::Open));
        assert_eq!(status_of(&TEXT.replace("stopping", "starting")), Some(Status::Starting));
        // While a postmaster starts, the line is not there yet.
        assert_eq!(status_of("71\n/srv/pg\n"), None);
    }

    #[test]
    fn a_start_is_told_by_process_and_time() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(start_of(folder.path()), None);
        fs::write(folder.path().join("postmaster.pid"), TEXT).unwrap();
        assert_eq!(start_of(folder.path()), Some((71, 1_795_176_000)));
    }

    #[test]
    fn a_socket_leads_to_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(".s.PGSQL.5432");
        assert_eq!(data_dir_of_socket(&socket), None);
        fs::write(folder.path().join(".s.PGSQL.5432.lock"), TEXT).unwrap();
        assert_eq!(data_dir_of_socket(&socket), Some(PathBuf::from("/srv/pg")));
    }
}
