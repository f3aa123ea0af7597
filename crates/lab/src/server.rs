//! The server process: starts it, waits until it is ready, shuts it down.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::fs::OpenOptionsExt as _,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    binaries::Binaries,
    error::{ClusterError, FileContext as _},
    files::{self, NO_FOLLOW},
    os_user::OsUser,
    paths::ClusterPaths,
    postmaster::PidFile,
    reaper::Reaper,
};

/// Maximum time for a server to accept connections, or to exit. Crash recovery takes longest; under
/// load even a normal start takes seconds.
const SERVER_TIMEOUT: Duration = Duration::from_secs(120);

/// Time between two checks of the server's state.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of attempts to start if other processes keep taking the chosen port.
const PORT_TRIES: u32 = 10;

/// A postmaster that runs as a child process.
#[derive(Debug)]
pub(crate) struct LabServer {
    process: Child,
}

/// The shutdown modes of PostgreSQL (`pg_ctl stop -m`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// Disconnects sessions and writes a checkpoint.
    Fast,
    /// Exits immediately; the next start recovers as after a crash.
    Immediate,
}

/// Parameters for starting a server.
#[derive(Clone, Copy)]
pub(crate) struct LaunchContext<'a> {
    pub(crate) binaries: &'a Binaries,
    pub(crate) os_user: &'a OsUser,
    pub(crate) paths: &'a ClusterPaths,
}

impl LabServer {
    /// Starts a server on a free port, and returns the port.
    pub(crate) fn start_on_free_port(
        start: LaunchContext<'_>,
        reaper: &mut Reaper,
        mut free_port: impl FnMut() -> Result<u16, ClusterError>,
    ) -> Result<(Self, u16), ClusterError> {
        let mut tries = 1;
        loop {
            let port = free_port()?;
            match Self::start(start, port, reaper) {
                Ok(server) => return Ok((server, port)),
                // Another process took the port between the check and the server's start.
                Err(ClusterError::ServerEnded { log, .. })
                    if tries < PORT_TRIES && log.contains("Address already in use") =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts a server and waits until it accepts connections.
    pub(crate) fn start(
        start: LaunchContext<'_>,
        port: u16,
        reaper: &mut Reaper,
    ) -> Result<Self, ClusterError> {
        let LaunchContext { binaries, os_user, paths } = start;
        let log = &paths.server_log;
        let mut options = File::options();
        let output = options.create(true).append(true).mode(0o600).custom_flags(NO_FOLLOW);
        let output = output.open(log).context("open", log)?;
        let port = port.to_string();
        let arguments: [&OsStr; 6] = [
            "-D".as_ref(),
            paths.data.as_ref(),
            "-k".as_ref(),
            paths.socket.as_ref(),
            "-p".as_ref(),
            port.as_ref(),
        ];
        let process = reaper.launch(os_user, &binaries.program("postgres"), &arguments, output)?;
        let mut server = Self { process };
        match server.wait_until_ready(paths) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.shut_down(Shutdown::Immediate, reaper)?;
                Err(error)
            }
        }
    }

    /// Returns the postmaster's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether the server process has exited.
    pub(crate) fn has_exited(&mut self) -> bool {
        // Waiting for a child fails only if it was waited for before.
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the exit status of the server; `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Shuts the server down and waits until it has exited. After [`SERVER_TIMEOUT`], an immediate
    /// shutdown follows.
    pub(crate) fn shut_down(
        mut self,
        how: Shutdown,
        reaper: &mut Reaper,
    ) -> Result<(), ClusterError> {
        self.signal(how);
        if !self.wait_for_exit() {
            // An immediate shutdown kills children that hang after five seconds.
            self.signal(Shutdown::Immediate);
            if !self.wait_for_exit() {
                return Err(ClusterError::StopTimeout {
                    pid: self.pid(),
                    waited: SERVER_TIMEOUT * 2,
                });
            }
        }
        reaper.program_exited();
        Ok(())
    }

    fn wait_until_ready(&mut self, paths: &ClusterPaths) -> Result<(), ClusterError> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.try_wait(paths)? {
                return Err(ClusterError::ServerEnded { status, log: log_tail(paths) });
            }
            match PidFile::read(&paths.data) {
                Some(PidFile { pid, ready: true }) if pid == self.pid() => return Ok(()),
                _ if since.elapsed() > SERVER_TIMEOUT => {
                    return Err(ClusterError::StartTimeout {
                        waited: SERVER_TIMEOUT,
                        log: log_tail(paths),
                    });
                }
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn try_wait(&mut self, paths: &ClusterPaths) -> Result<Option<ExitStatus>, ClusterError> {
        self.process.try_wait().context("wait for the server of", &paths.dir)
    }

    /// Waits for the process to exit; false after [`SERVER_TIMEOUT`].
    fn wait_for_exit(&mut self) -> bool {
        let since = Instant::now();
        while !self.has_exited() {
            if since.elapsed() > SERVER_TIMEOUT {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Signals the server. The process has not been reaped yet, so its id cannot have been reused.
    fn signal(&mut self, how: Shutdown) {
        if !self.has_exited() {
            signal(self.pid(), how);
        }
    }
}

/// Signals a postmaster to shut down.
pub(crate) fn signal(pid: u32, how: Shutdown) {
    let signal = match how {
        Shutdown::Fast => Signal::INT,
        Shutdown::Immediate => Signal::QUIT,
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
        tracing::debug!(%error, "the server has exited already");
    }
}

/// Waits until a process that is not a child of this one has exited.
pub(crate) fn wait_until_gone(pid: u32) -> Result<(), ClusterError> {
    let since = Instant::now();
    while crate::postmaster::is_alive(pid) {
        if since.elapsed() > SERVER_TIMEOUT {
            return Err(ClusterError::StopTimeout { pid, waited: SERVER_TIMEOUT });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the last lines of the server's newest log.
fn log_tail(paths: &ClusterPaths) -> String {
    let newest = files::last_lines(&paths.newest_log());
    if newest.is_empty() { files::last_lines(&paths.server_log) } else { newest }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::{
        access::Access, port, search::BinariesSearch, settings::ServerSettings,
        skip_without_postgres, template,
    };

    #[test]
    fn start_retries_when_chosen_port_is_taken() {
        let search = BinariesSearch::new();
        let Some(binaries) = skip_without_postgres("port taken", search.find()) else { return };
        let os_user = OsUser::for_servers().unwrap();
        let (paths, mut reaper) = ClusterPaths::temporary(&os_user, &[]).unwrap();
        let cache = search.cache();
        template::make_data_dir(&paths.data, &binaries, &os_user, cache, &mut reaper).unwrap();
        let mut settings = ServerSettings::default();
        Access::TcpTrusted.push_settings(&mut settings);
        settings.install(&paths.data, &os_user).unwrap();

        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = other.local_addr().unwrap().port();
        let mut ports = [Ok(taken), Ok(taken), port::free()].into_iter();
        let start = LaunchContext { binaries: &binaries, os_user: &os_user, paths: &paths };
        let (server, port) =
            LabServer::start_on_free_port(start, &mut reaper, || ports.next().unwrap()).unwrap();
        assert_ne!(port, taken);
        assert_eq!(ports.count(), 0, "all ports were tried");
        server.shut_down(Shutdown::Immediate, &mut reaper).unwrap();
    }
}
