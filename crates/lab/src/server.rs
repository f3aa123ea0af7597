//! A running server: start it, wait until it answers, end it.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::fs::OpenOptionsExt as _,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    account::Account,
    binaries::Binaries,
    error::{Error, FileContext as _},
    files::{self, NO_FOLLOW},
    janitor::Reaper,
    places::Places,
    postmaster::PidFile,
};

/// How long a server may take to accept connections, or to end. Recovery after a crash is the long
/// case; on a machine under load even a start takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often we look whether it is so far.
const GLANCE: Duration = Duration::from_millis(5);

/// How often a server is started when others take its port first.
const PORT_TRIES: u32 = 10;

/// A postmaster that is our child.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// Sessions are disconnected, a checkpoint is written.
    Fast,
    /// At once; the next start recovers as after a crash.
    Immediate,
}

/// What a server is started from.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) binaries: &'a Binaries,
    pub(crate) account: &'a Account,
    pub(crate) places: &'a Places,
}

impl Server {
    /// Starts it on a free port, and gives the port.
    pub(crate) fn start_anywhere(
        start: Start<'_>,
        janitor: &mut Reaper,
        mut free_port: impl FnMut() -> Result<u16, Error>,
    ) -> Result<(Self, u16), Error> {
        let mut tries = 1;
        loop {
            let port = free_port()?;
            match Self::start(start, port, janitor) {
                Ok(server) => return Ok((server, port)),
                // Somebody took it between our look and the server's start.
                Err(Error::ServerEnded { log, .. })
                    if tries < PORT_TRIES && log.contains("Address already in use") =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts it and waits until it accepts connections.
    pub(crate) fn start(start: Start<'_>, port: u16, janitor: &mut Reaper) -> Result<Self, Error> {
        let Start { binaries, account, places } = start;
        let log = &places.server_log;
        let mut options = File::options();
        let output = options.create(true).append(true).mode(0o600).custom_flags(NO_FOLLOW);
        let output = output.open(log).context("open", log)?;
        let port = port.to_string();
        let arguments: [&OsStr; 6] = [
            "-D".as_ref(),
            places.data.as_ref(),
            "-k".as_ref(),
            places.socket.as_ref(),
            "-p".as_ref(),
            port.as_ref(),
        ];
        let process = janitor.launch(account, &binaries.program("postgres"), &arguments, output)?;
        let mut server = Self { process };
        match server.wait_until_ready(places) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.end(Shutdown::Immediate, janitor)?;
                Err(error)
            }
        }
    }

    /// The postmaster's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has ended, by itself or by somebody else's doing.
    pub(crate) fn has_ended(&mut self) -> bool {
        // Waiting for one's own child fails only if it was waited for before.
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Ends it and waits until it is gone.
    pub(crate) fn end(mut self, how: Shutdown, janitor: &mut Reaper) -> Result<(), Error> {
        self.signal(how);
        if !self.ends() {
            // It did not obey. An immediate shutdown kills what hangs after five seconds.
            self.signal(Shutdown::Immediate);
            if !self.ends() {
                return Err(Error::StopTimeout { pid: self.pid(), waited: PATIENCE * 2 });
            }
        }
        janitor.forget_program();
        Ok(())
    }

    fn wait_until_ready(&mut self, places: &Places) -> Result<(), Error> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.exited(places)? {
                return Err(Error::ServerEnded { status, log: log_end(places) });
            }
            match PidFile::read(&places.data) {
                Some(PidFile { pid, ready: true }) if pid == self.pid() => return Ok(()),
                _ if since.elapsed() > PATIENCE => {
                    return Err(Error::StartTimeout { waited: PATIENCE, log: log_end(places) });
                }
                _ => std::thread::sleep(GLANCE),
            }
        }
    }

    fn exited(&mut self, places: &Places) -> Result<Option<ExitStatus>, Error> {
        self.process.try_wait().context("wait for the server of", &places.dir)
    }

    /// Waits for it to end; whether it did.
    fn ends(&mut self) -> bool {
        let since = Instant::now();
        while !self.has_ended() {
            if since.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(GLANCE);
        }
        true
    }

    /// Signals it. As its process was not waited for yet, the number is still its own.
    fn signal(&mut self, how: Shutdown) {
        if !self.has_ended() {
            signal(self.pid(), how);
        }
    }
}

/// Tells a postmaster to shut down.
pub(crate) fn signal(pid: u32, how: Shutdown) {
    let signal = match how {
        Shutdown::Fast => Signal::INT,
        Shutdown::Immediate => Signal::QUIT,
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
        tracing::debug!(%error, "the server is gone already");
    }
}

/// Waits until a process that is not our child is gone.
pub(crate) fn wait_until_gone(pid: u32) -> Result<(), Error> {
    let since = Instant::now();
    while crate::postmaster::is_alive(pid) {
        if since.elapsed() > PATIENCE {
            return Err(Error::StopTimeout { pid, waited: PATIENCE });
        }
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

/// What the server said last, wherever it logs to.
fn log_end(places: &Places) -> String {
    let newest = files::last_lines(&places.newest_log());
    if newest.is_empty() { files::last_lines(&places.server_log) } else { newest }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::{
        access::Access, or_say_why_not, port, search::Search, settings::Settings, template,
    };

    #[test]
    fn a_port_taken_after_it_was_chosen_is_given_up() {
        let search = Search::new();
        let Some(binaries) = or_say_why_not("port taken", search.find()) else { return };
        let account = Account::for_servers().unwrap();
        let (places, mut janitor) = Places::throw_away(&account, &[]).unwrap();
        let cache = search.cache();
        template::make_data_dir(&places.data, &binaries, &account, cache, &mut janitor).unwrap();
        let mut settings = Settings::default();
        Access::TcpTrusted.push_settings(&mut settings);
        settings.install(&places.data, &account).unwrap();

        let thief = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = thief.local_addr().unwrap().port();
        let mut ports = [Ok(taken), Ok(taken), port::free()].into_iter();
        let start = Start { binaries: &binaries, account: &account, places: &places };
        let (server, port) =
            Server::start_anywhere(start, &mut janitor, || ports.next().unwrap()).unwrap();
        assert_ne!(port, taken);
        assert_eq!(ports.count(), 0, "all were tried");
        server.end(Shutdown::Immediate, &mut janitor).unwrap();
    }
}
