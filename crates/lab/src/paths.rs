//! The directories and files of a cluster.
//!
//! ```text
//! DIR/data/          the data directory; log/ in it when the server collects its log itself
//! DIR/socket/        unix socket; elsewhere if DIR is too long for a socket's path
//! DIR/server.log     the server's stderr
//! ```

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::{
    access,
    error::{ClusterError, FileContext as _},
    files,
    labs::Lab,
    os_user::OsUser,
    port::random,
    postmaster,
    reaper::Reaper,
    settings,
};

/// The directories and files of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPaths {
    pub(crate) dir: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) server_log: PathBuf,
    /// Files and directories to remove when the cluster ends.
    pub(crate) remove: Vec<PathBuf>,
}

const SERVER_LOG: &str = "server.log";

/// The content of a directory given for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirContent {
    /// The directory does not exist.
    Missing,
    /// The directory is empty.
    Empty,
    /// A cluster that this crate created.
    Cluster {
        /// The major version of PostgreSQL that created the cluster.
        major: u32,
    },
}

impl ClusterPaths {
    /// Returns the usual paths within `dir`, which need not exist.
    fn at(dir: &Path) -> Self {
        let socket = dir.join("socket");
        let socket = if fits_socket(&socket) { socket } else { short_dir("socket") };
        Self {
            data: dir.join("data"),
            server_log: dir.join(SERVER_LOG),
            remove: vec![socket.clone()],
            socket,
            dir: dir.to_owned(),
        }
    }

    /// Returns the paths of an existing lab.
    pub(crate) fn for_lab(lab: &Lab) -> Self {
        Self {
            dir: lab.dir.clone(),
            data: lab.data_dir.clone(),
            socket: lab.socket_dir.clone(),
            server_log: lab.dir.join(SERVER_LOG),
            remove: lab.remove.clone(),
        }
    }

    /// Creates a directory in the system's temporary directory, and starts the reaper that removes
    /// it and `also` at the end.
    pub(crate) fn temporary(
        os_user: &OsUser,
        also: &[PathBuf],
    ) -> Result<(Self, Reaper), ClusterError> {
        loop {
            let dir = env::temp_dir().join(unlikely_name("lab"));
            let mut paths = Self::at(&dir);
            paths.remove.push(dir);
            // The reaper is started first, so that no directory exists without one. If the name
            // turns out to be taken, the reaper must not remove the existing directory.
            let mut reaper = Reaper::spawn(paths.remove.iter().chain(also))?;
            match paths.make(os_user) {
                Ok(()) => return Ok((paths, reaper)),
                Err(ClusterError::File { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists =>
                {
                    reaper.disarm();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates the directory `dir` if it is missing, or reuses the cluster in it if there is one.
    ///
    /// The reaper removes what was created, except the parents of `dir`; with `keep`, only the
    /// directory of the socket. It never removes an existing cluster.
    pub(crate) fn in_dir(
        dir: &Path,
        keep: bool,
        os_user: &OsUser,
        also: &[PathBuf],
    ) -> Result<(Self, DirContent, Reaper), ClusterError> {
        let dir = &std::path::absolute(dir).context("find", dir)?;
        let holds = inspect_dir(dir)?;
        let mut paths = Self::at(dir);
        match holds {
            DirContent::Missing if !keep => paths.remove.push(dir.clone()),
            DirContent::Empty if !keep => {
                paths.remove.extend([paths.data.clone(), paths.server_log.clone()]);
            }
            _ => {}
        }
        let reaper = Reaper::spawn(paths.remove.iter().chain(also))?;
        if let (DirContent::Missing, Some(parent)) = (holds, dir.parent()) {
            fs::create_dir_all(parent).context("create", parent)?;
            paths.make(os_user)?;
        } else {
            os_user.chown(dir).context("change the owner of", dir)?;
            paths.make_socket(os_user)?;
            paths.chown_data(os_user)?;
            os_user.check_access(dir)?;
        }
        Ok((paths, holds, reaper))
    }

    fn make(&self, os_user: &OsUser) -> Result<(), ClusterError> {
        files::make_dir(&self.dir, 0o700, os_user).context("create", &self.dir)?;
        self.make_socket(os_user)?;
        os_user.check_access(&self.dir)
    }

    /// Changes the owner of a stopped cluster's data directory if needed: earlier versions ran
    /// root's servers as `postgres`.
    pub(crate) fn chown_data(&self, os_user: &OsUser) -> Result<(), ClusterError> {
        let owned = files::ignore_not_found(files::belongs_to(&self.data, os_user));
        match owned.context("read", &self.data)? {
            Some(false) if postmaster::running(&self.data).is_none() => {
                files::chown_tree(&self.data, os_user)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn make_socket(&self, os_user: &OsUser) -> Result<(), ClusterError> {
        match files::make_dir(&self.socket, 0o700, os_user) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                files::make_private(&self.socket, os_user).context("take over", &self.socket)
            }
            result => result.context("create", &self.socket),
        }
    }

    /// Returns the path of the password file for TCP, which may not exist.
    pub(crate) fn passfile(&self) -> PathBuf {
        self.socket.join(access::PASSFILE)
    }

    /// Returns the directory of log files when `logging_collector` is on and `log_directory` is not
    /// set.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.data.join("log")
    }

    /// Returns the newest non-empty log file; without one, the server's stderr.
    pub(crate) fn newest_log(&self) -> PathBuf {
        let entries = fs::read_dir(self.log_dir()).into_iter().flatten().flatten();
        let collected = entries.filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(|metadata| metadata.len() > 0)?;
            Some((metadata.modified().ok()?, entry.path()))
        });
        collected.max().map_or_else(|| self.server_log.clone(), |(_, path)| path)
    }
}

/// Inspects a directory; fails if it contains anything but a cluster of this crate.
pub(crate) fn inspect_dir(dir: &Path) -> Result<DirContent, ClusterError> {
    let Some(mut entries) = files::ignore_not_found(fs::read_dir(dir)).context("read", dir)? else {
        return Ok(DirContent::Missing);
    };
    if entries.next().is_none() {
        return Ok(DirContent::Empty);
    }
    let data = dir.join("data");
    let version = fs::read_to_string(data.join("PG_VERSION")).unwrap_or_default();
    match version.trim().parse() {
        Ok(major) if data.join(settings::FILE).exists() => Ok(DirContent::Cluster { major }),
        _ => Err(ClusterError::DirectoryNotEmpty { dir: dir.to_owned() }),
    }
}

/// Whether a socket's path fits, with the longest port: `sun_path` in unix(7) has 108 bytes,
/// including the terminating zero.
fn fits_socket(dir: &Path) -> bool {
    dir.as_os_str().len() + "/.s.PGSQL.65535".len() < 108
}

/// Returns a new directory name that is short enough for a socket: in `/tmp`, if the temporary
/// directory's name is too long.
fn short_dir(what: &str) -> PathBuf {
    let name = unlikely_name(what);
    let dir = env::temp_dir().join(&name);
    if fits_socket(&dir) { dir } else { Path::new("/tmp").join(name) }
}

fn unlikely_name(what: &str) -> String {
    format!("howdah-{what}-{:012x}", random() >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_long_directory_is_elsewhere() {
        let short = ClusterPaths::at(Path::new("/tmp/a"));
        assert_eq!(short.socket, Path::new("/tmp/a/socket"));
        let long = ClusterPaths::at(&Path::new("/tmp").join("x".repeat(90)));
        assert!(fits_socket(&long.socket) && !long.socket.starts_with(&long.dir));
        assert!(!fits_socket(&Path::new("/").join("x".repeat(92))));
        assert!(fits_socket(&Path::new("/").join("x".repeat(91))));
    }

    #[test]
    fn directory_with_foreign_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(inspect_dir(&dir.path().join("none")).unwrap(), DirContent::Missing);
        assert_eq!(inspect_dir(dir.path()).unwrap(), DirContent::Empty);
        fs::create_dir(dir.path().join("data")).unwrap();
        assert!(matches!(inspect_dir(dir.path()), Err(ClusterError::DirectoryNotEmpty { .. })));
        // A data directory, but not created by this crate.
        fs::write(dir.path().join("data/PG_VERSION"), "17\n").unwrap();
        assert!(matches!(inspect_dir(dir.path()), Err(ClusterError::DirectoryNotEmpty { .. })));
        fs::write(dir.path().join("data").join(settings::FILE), "").unwrap();
        assert_eq!(inspect_dir(dir.path()).unwrap(), DirContent::Cluster { major: 17 });
    }
}
