//! A cluster that lives as long as its value.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
};

use crate::{
    access::{self, Access},
    account::Account,
    binaries::Binaries,
    builder::Builder,
    error::Error,
    files,
    janitor::Reaper,
    places::Places,
    port,
    server::{Server, Shutdown, Start},
    template::SUPERUSER,
};

/// A PostgreSQL cluster of our own: a data directory, and most of the time a server on it.
///
/// It listens on a unix socket in a private directory, and on 127.0.0.1 if it was asked to. The
/// superuser is `postgres`. When the value is
/// dropped, the server stops and the files are removed, unless they were to be kept. The same
/// happens when this process dies, by Ctrl-C or by SIGKILL, at whatever moment, the start included:
/// another process, which waits for that, does it then.
///
/// Methods block. A server that was killed from outside is noticed by [`Cluster::is_running`].
#[derive(Debug)]
pub struct Cluster {
    parts: Parts,
    port: u16,
    // `None` while it is stopped.
    server: Option<Server>,
}

/// What a cluster is made of, before its server is started.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) binaries: Binaries,
    pub(crate) account: Account,
    pub(crate) places: Places,
    pub(crate) janitor: Reaper,
    pub(crate) access: Access,
    pub(crate) password: Option<String>,
    /// The password file of the cluster that this one streams from.
    pub(crate) passfile: Option<PathBuf>,
}

impl Cluster {
    /// Describe a cluster for a test, then [`Builder::start`] it: [`Builder::new`] with
    /// [`Builder::trusted_tcp`], so that every client under test can connect by host and port.
    /// What is not a test begins with [`Builder::new`].
    pub fn builder() -> Builder {
        Builder::new().trusted_tcp()
    }

    /// Starts the server on a directory that is ready for it.
    pub(crate) fn start_from(mut parts: Parts, port: Option<u16>) -> Result<Self, Error> {
        let Parts { binaries, account, places, janitor, .. } = &mut parts;
        let start = Start { binaries, account, places };
        let (server, port) = match port {
            Some(port) => (Server::start(start, port, janitor)?, port),
            None => Server::start_anywhere(start, janitor, port::free)?,
        };
        // From here on dropping the value stops the server.
        let cluster = Self { parts, port, server: Some(server) };
        if cluster.has_passfile() && !cluster.parts.places.passfile().exists() {
            let socket = cluster.socket_dir();
            match &cluster.parts.passfile {
                Some(passfile) => access::copy_password(passfile, socket)?,
                None => access::set_password(socket, port)?,
            }
        }
        Ok(cluster)
    }

    /// A connection URI for the superuser. It holds no password.
    ///
    /// - reached by the unix socket only: as [`Cluster::socket_uri`];
    /// - with [`Builder::tcp`]: `postgresql://postgres@127.0.0.1:21234/postgres?passfile=…`;
    /// - with [`Builder::trusted_tcp`]: `postgresql://postgres@127.0.0.1:21234/postgres`.
    pub fn uri(&self, database: &str) -> String {
        match self.parts.access {
            Access::Socket => self.socket_uri(database),
            _ => tcp_uri(self.port, database, self.passfile().as_deref()),
        }
    }

    /// A connection URI by the unix socket.
    pub fn socket_uri(&self, database: &str) -> String {
        socket_uri(&self.parts.places.socket, self.port, database)
    }

    /// Whether the server listens on 127.0.0.1.
    pub fn is_on_tcp(&self) -> bool {
        self.parts.access.is_tcp()
    }

    /// The file with the password for TCP, in the form of `~/.pgpass`, mode 0600, with
    /// [`Builder::tcp`].
    pub fn passfile(&self) -> Option<PathBuf> {
        self.has_passfile().then(|| self.parts.places.passfile())
    }

    fn has_passfile(&self) -> bool {
        self.parts.access == Access::TcpWithPassword && self.parts.password.is_none()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The number in the socket's name, and the port of 127.0.0.1 where it listens there. It never
    /// changes.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the unix socket.
    pub fn socket_dir(&self) -> &Path {
        &self.parts.places.socket
    }

    /// The directory of all its files.
    pub fn dir(&self) -> &Path {
        &self.parts.places.dir
    }

    /// The data directory. It belongs to the server's account.
    pub fn data_dir(&self) -> &Path {
        &self.parts.places.data
    }

    /// What the server writes to stderr: its whole log, unless `logging_collector` is on.
    pub fn server_log(&self) -> &Path {
        &self.parts.places.server_log
    }

    /// Where the log files are when `logging_collector` is on and `log_directory` is as it was.
    pub fn log_dir(&self) -> PathBuf {
        self.parts.places.log_dir()
    }

    /// The collected log files whose names end like this, in the order of their names: `log`, `csv`
    /// or `json`.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when there is no such directory.
    pub fn log_files(&self, extension: &str) -> Result<Vec<PathBuf>, Error> {
        files::with_extension(&self.log_dir(), extension)
    }

    /// The superuser's password, when connections need one.
    pub fn password(&self) -> Option<&str> {
        self.parts.password.as_deref()
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.parts.binaries.version().major()
    }

    /// The programs it runs.
    pub fn binaries(&self) -> &Binaries {
        &self.parts.binaries
    }

    /// What goes at the end.
    pub(crate) fn removed_at_end(&self) -> &[PathBuf] {
        &self.parts.places.remove
    }

    pub(crate) fn account(&self) -> &Account {
        &self.parts.account
    }

    /// The postmaster's process id; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Whether the server runs.
    pub fn is_running(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| !server.has_ended())
    }

    /// How the server ended, when it did so by itself or by somebody else's doing.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.server.as_mut().and_then(Server::exit_status)
    }

    /// Starts a stopped server again, on the same port.
    ///
    /// # Errors
    ///
    /// [`Error::WrongState`] when it runs; [`Error::ServerEnded`] also when another process has
    /// taken the port meanwhile.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.is_running() {
            return Err(self.wrong_state("running"));
        }
        self.end(Shutdown::Immediate)?; // forgets one that ended by itself
        let Parts { binaries, account, places, janitor, .. } = &mut self.parts;
        let start = Start { binaries, account, places };
        self.server = Some(Server::start(start, self.port, janitor)?);
        Ok(())
    }

    /// Stops the server: sessions are disconnected, a checkpoint is written. Files stay.
    ///
    /// # Errors
    ///
    /// [`Error::StopTimeout`]
    pub fn stop(&mut self) -> Result<(), Error> {
        self.end(Shutdown::Fast)
    }

    /// Stops the server at once; the next start recovers as after a crash. Files stay.
    ///
    /// # Errors
    ///
    /// [`Error::StopTimeout`]
    pub fn kill(&mut self) -> Result<(), Error> {
        self.end(Shutdown::Immediate)
    }

    /// [`Cluster::stop`] and [`Cluster::start`].
    ///
    /// # Errors
    ///
    /// As those.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        self.start()
    }

    /// Makes a second cluster with the same data, settings and binaries.
    ///
    /// For that it is stopped and, if it ran, started again afterwards. `how` gives the copy's name,
    /// directory and settings of its own; what it says about binaries is not considered.
    ///
    /// # Errors
    ///
    /// [`Error::Tablespaces`], and those of [`Builder::start`].
    pub fn clone_stopped(&mut self, how: Builder) -> Result<Self, Error> {
        let was_running = self.is_running();
        self.stop()?;
        let copy = how.start_copy(self);
        if was_running {
            self.start()?;
        }
        copy
    }

    /// Leaves the server running and its files where they are, whatever becomes of us.
    pub(crate) fn leave(mut self) {
        self.server = None;
        self.parts.janitor.leave_everything();
    }

    fn end(&mut self, how: Shutdown) -> Result<(), Error> {
        match self.server.take() {
            Some(server) => server.end(how, &mut self.parts.janitor),
            None => Ok(()),
        }
    }

    fn wrong_state(&self, state: &'static str) -> Error {
        Error::WrongState { name: self.parts.name.clone(), state }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Quick and thorough enough when the files go next, and safe when they stay.
        if let Err(error) = self.end(Shutdown::Fast) {
            tracing::warn!(%error, cluster = self.parts.name, "the server could not be stopped");
        }
    }
}

/// A URI by TCP.
pub(crate) fn tcp_uri(port: u16, database: &str, passfile: Option<&Path>) -> String {
    let uri = format!("postgresql://{SUPERUSER}@127.0.0.1:{port}/{}", encoded(database));
    match passfile {
        Some(passfile) => format!("{uri}?passfile={}", encoded_path(passfile)),
        None => uri,
    }
}

/// See [`Cluster::socket_uri`].
pub(crate) fn socket_uri(socket: &Path, port: u16, database: &str) -> String {
    let (host, database) = (encoded_path(socket), encoded(database));
    format!("postgresql:///{database}?host={host}&port={port}&user={SUPERUSER}")
}

/// A path as the value of a URI's parameter, where a slash needs no escape.
fn encoded_path(path: &Path) -> String {
    encoded(&path.to_string_lossy()).replace("%2F", "/")
}

/// Percent-encoded for a place in a URI.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_databases_in_uris() {
        assert_eq!(
            tcp_uri(5432, "postgres", None),
            "postgresql://postgres@127.0.0.1:5432/postgres"
        );
        assert_eq!(
            tcp_uri(1, "a b/ü?", Some(Path::new("/a b/pgpass"))),
            "postgresql://postgres@127.0.0.1:1/a%20b%2F%C3%BC%3F?passfile=/a%20b/pgpass"
        );
        assert_eq!(
            socket_uri(Path::new("/tmp/a&b"), 5432, "x y"),
            "postgresql:///x%20y?host=/tmp/a%26b&port=5432&user=postgres"
        );
    }
}
