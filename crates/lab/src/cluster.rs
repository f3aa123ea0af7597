//! A cluster that is stopped and removed when its value is dropped.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
};

use crate::{
    access::{self, Access},
    binaries::Binaries,
    builder::Builder,
    error::ClusterError,
    files,
    os_user::OsUser,
    paths::ClusterPaths,
    port,
    reaper::Reaper,
    server::{LabServer, LaunchContext, Shutdown},
    template::SUPERUSER,
};

/// A throw-away PostgreSQL cluster: a data directory and, unless stopped, a server that runs on it.
///
/// The cluster listens on a unix socket in a private directory, and on 127.0.0.1 on request. The
/// superuser is `postgres`. When the value is dropped, the server stops and the files are removed,
/// unless they are kept; see [`Builder::dir`] and [`Builder::keep`]. The same happens if the
/// process that started the cluster dies, even by SIGKILL: a reaper process notices that and cleans
/// up.
///
/// Methods block. [`Cluster::is_running`] detects a server that was killed from outside.
#[derive(Debug)]
pub struct Cluster {
    parts: ClusterParts,
    port: u16,
    /// The server process, which may have exited by itself; `None` while stopped.
    server: Option<LabServer>,
}

/// Everything of a cluster except the server process.
#[derive(Debug)]
pub(crate) struct ClusterParts {
    pub(crate) name: String,
    pub(crate) binaries: Binaries,
    pub(crate) os_user: OsUser,
    pub(crate) paths: ClusterPaths,
    pub(crate) reaper: Reaper,
    pub(crate) access: Access,
    pub(crate) password: Option<String>,
    /// The primary's password file, for a standby.
    pub(crate) passfile: Option<PathBuf>,
}

impl Cluster {
    /// Returns a builder for tests: [`Builder::new`] with [`Builder::trusted_tcp`], so that every
    /// client under test can connect by host and port. Outside tests, use [`Builder::new`].
    pub fn builder() -> Builder {
        Builder::new().trusted_tcp()
    }

    /// Starts the server on a prepared data directory, and sets the password for TCP if it needs
    /// one.
    pub(crate) fn start_from(
        mut parts: ClusterParts,
        port: Option<u16>,
    ) -> Result<Self, ClusterError> {
        let ClusterParts { binaries, os_user, paths, reaper, .. } = &mut parts;
        let start = LaunchContext { binaries, os_user, paths };
        let (server, port) = match port {
            Some(port) => (LabServer::start(start, port, reaper)?, port),
            None => LabServer::start_on_free_port(start, reaper, port::free)?,
        };
        // From here on, dropping the value stops the server, also on an error below.
        let cluster = Self { parts, port, server: Some(server) };
        if cluster.has_passfile() && !cluster.parts.paths.passfile().exists() {
            let socket = cluster.socket_dir();
            match &cluster.parts.passfile {
                Some(passfile) => access::copy_password(passfile, socket)?,
                None => access::set_password(socket, port)?,
            }
        }
        Ok(cluster)
    }

    /// Returns a connection URI for the superuser. It contains no password.
    ///
    /// - by default the same as [`Cluster::socket_uri`];
    /// - with [`Builder::tcp`]: `postgresql://postgres@127.0.0.1:21234/postgres?passfile=…`;
    /// - with [`Builder::trusted_tcp`], or with [`Builder::tcp`] and [`Builder::password`]:
    ///   `postgresql://postgres@127.0.0.1:21234/postgres`.
    pub fn uri(&self, database: &str) -> String {
        match self.parts.access {
            Access::Socket => self.socket_uri(database),
            _ => tcp_uri(self.port, database, self.passfile().as_deref()),
        }
    }

    /// Returns a connection URI for the unix socket.
    pub fn socket_uri(&self, database: &str) -> String {
        socket_uri(&self.parts.paths.socket, self.port, database)
    }

    /// Whether the server listens on 127.0.0.1.
    pub fn is_on_tcp(&self) -> bool {
        self.parts.access.is_tcp()
    }

    /// Returns the file with the password for TCP, in the format of `~/.pgpass`, mode 0600; only
    /// with [`Builder::tcp`] and without [`Builder::password`].
    pub fn passfile(&self) -> Option<PathBuf> {
        self.has_passfile().then(|| self.parts.paths.passfile())
    }

    fn has_passfile(&self) -> bool {
        self.parts.access == Access::TcpWithPassword && self.parts.password.is_none()
    }

    /// Returns the name set by [`Builder::name`].
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Returns the port in the socket's name and, if the server listens there, on 127.0.0.1. It
    /// never changes.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the directory of the unix socket.
    pub fn socket_dir(&self) -> &Path {
        &self.parts.paths.socket
    }

    /// Returns the directory of the cluster's files. The socket is elsewhere if its path would be
    /// too long.
    pub fn dir(&self) -> &Path {
        &self.parts.paths.dir
    }

    /// Returns the data directory, owned by the server's account.
    pub fn data_dir(&self) -> &Path {
        &self.parts.paths.data
    }

    /// Returns the file with the server's stderr: its whole log, unless `logging_collector` is on.
    pub fn server_log(&self) -> &Path {
        &self.parts.paths.server_log
    }

    /// Returns the directory of log files when `logging_collector` is on and `log_directory` is
    /// unchanged.
    pub fn log_dir(&self) -> PathBuf {
        self.parts.paths.log_dir()
    }

    /// Returns the files of the logging collector with an extension (`log`, `csv` or `json`),
    /// sorted by name.
    ///
    /// # Errors
    ///
    /// [`ClusterError::File`] if the directory cannot be read; it is missing until the collector
    /// has started.
    pub fn log_files(&self, extension: &str) -> Result<Vec<PathBuf>, ClusterError> {
        files::with_extension(&self.log_dir(), extension)
    }

    /// Returns the superuser's password, if [`Builder::password`] was set for this cluster, for its
    /// primary, or for the cluster that it was copied from.
    pub fn password(&self) -> Option<&str> {
        self.parts.password.as_deref()
    }

    /// Returns the server's major version.
    pub fn major(&self) -> u32 {
        self.parts.binaries.version().major()
    }

    /// Returns the programs that the cluster was started with.
    pub fn binaries(&self) -> &Binaries {
        &self.parts.binaries
    }

    /// Returns the files and directories that are removed when the cluster ends.
    pub(crate) fn removed_paths(&self) -> &[PathBuf] {
        &self.parts.paths.remove
    }

    pub(crate) fn os_user(&self) -> &OsUser {
        &self.parts.os_user
    }

    /// Returns the process id of the postmaster that was started last, even if it has exited by
    /// itself; `None` after [`Cluster::stop`] or [`Cluster::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(LabServer::pid)
    }

    /// Whether the server process exists.
    pub fn is_running(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| !server.has_exited())
    }

    /// Returns the exit status of a server that exited without [`Cluster::stop`] or
    /// [`Cluster::kill`].
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.server.as_mut().and_then(LabServer::exit_status)
    }

    /// Starts a stopped server again, on the same port.
    ///
    /// # Errors
    ///
    /// [`ClusterError::AlreadyRunning`] if the server is running; [`ClusterError::ServerEnded`] if
    /// it exits, for example because another process has taken the port;
    /// [`ClusterError::StartTimeout`] if it is not ready in time; [`ClusterError::Spawn`] or
    /// [`ClusterError::File`] if it cannot be executed.
    pub fn start(&mut self) -> Result<(), ClusterError> {
        if self.is_running() {
            return Err(ClusterError::AlreadyRunning { name: self.parts.name.clone() });
        }
        self.shut_down(Shutdown::Immediate)?; // reaps a server that exited by itself
        let ClusterParts { binaries, os_user, paths, reaper, .. } = &mut self.parts;
        let start = LaunchContext { binaries, os_user, paths };
        self.server = Some(LabServer::start(start, self.port, reaper)?);
        Ok(())
    }

    /// Stops the server with a fast shutdown: disconnects sessions and writes a checkpoint. If that
    /// takes longer than two minutes, an immediate shutdown follows. The files are kept.
    ///
    /// # Errors
    ///
    /// [`ClusterError::StopTimeout`] if the server does not exit in time.
    pub fn stop(&mut self) -> Result<(), ClusterError> {
        self.shut_down(Shutdown::Fast)
    }

    /// Stops the server with an immediate shutdown; the next start recovers as after a crash. The
    /// files are kept.
    ///
    /// # Errors
    ///
    /// [`ClusterError::StopTimeout`] if the server does not exit in time.
    pub fn kill(&mut self) -> Result<(), ClusterError> {
        self.shut_down(Shutdown::Immediate)
    }

    /// Calls [`Cluster::stop`] and [`Cluster::start`].
    ///
    /// # Errors
    ///
    /// See [`Cluster::stop`] and [`Cluster::start`].
    pub fn restart(&mut self) -> Result<(), ClusterError> {
        self.stop()?;
        self.start()
    }

    /// Creates a second cluster with the same data, settings and binaries.
    ///
    /// Stops this cluster for the copy and, if it ran, starts it again. `builder` sets the copy's
    /// name, directory, port, access by TCP and additional settings; its choice of binaries is
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Tablespaces`] if a tablespace is outside the data directory; for others see
    /// [`Builder::start`].
    pub fn clone_stopped(&mut self, builder: Builder) -> Result<Self, ClusterError> {
        let was_running = self.is_running();
        self.stop()?;
        let copy = builder.start_copy(self);
        if was_running {
            self.start()?;
        }
        copy
    }

    /// Leaves the server running and keeps its files, even after the calling process ends.
    pub(crate) fn detach(mut self) {
        self.server = None;
        self.parts.reaper.disarm();
    }

    fn shut_down(&mut self, how: Shutdown) -> Result<(), ClusterError> {
        match self.server.take() {
            Some(server) => server.shut_down(how, &mut self.parts.reaper),
            None => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A fast shutdown: clean if the files are kept, and quick enough if they are removed.
        if let Err(error) = self.shut_down(Shutdown::Fast) {
            tracing::warn!(%error, cluster = self.parts.name, "cannot stop the server");
        }
    }
}

/// Returns a connection URI for 127.0.0.1.
pub(crate) fn tcp_uri(port: u16, database: &str, passfile: Option<&Path>) -> String {
    let uri = format!("postgresql://{SUPERUSER}@127.0.0.1:{port}/{}", encoded(database));
    match passfile {
        Some(passfile) => format!("{uri}?passfile={}", encoded_path(passfile)),
        None => uri,
    }
}

/// Returns a connection URI for the unix socket in the directory `socket`.
pub(crate) fn socket_uri(socket: &Path, port: u16, database: &str) -> String {
    let (host, database) = (encoded_path(socket), encoded(database));
    format!("postgresql:///{database}?host={host}&port={port}&user={SUPERUSER}")
}

/// Percent-encodes a path as the value of a URI parameter, where a slash needs no escape.
fn encoded_path(path: &Path) -> String {
    encoded(&path.to_string_lossy()).replace("%2F", "/")
}

/// Percent-encodes a component of a URI.
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
    fn uri_components_are_percent_encoded() {
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
