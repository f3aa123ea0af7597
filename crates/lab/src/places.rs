//! Where a cluster's files are.
//!
//! ```text
//! DIR/data/          the data directory; log/ in it when the server collects its log itself
//! DIR/socket/        unix socket; elsewhere when DIR is so long that the socket's path would not fit
//! DIR/server.log     what the server writes to stderr
//! ```

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::{
    access,
    account::Account,
    error::{Error, FileContext as _},
    files,
    janitor::Reaper,
    labs::Lab,
    port::random,
    postmaster, settings,
};

/// The directories and files of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) dir: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) server_log: PathBuf,
    /// What goes when the cluster does.
    pub(crate) remove: Vec<PathBuf>,
}

const SERVER_LOG: &str = "server.log";

/// What a directory given for a cluster holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// It does not exist.
    Missing,
    /// It is there, and empty.
    Nothing,
    /// A stopped cluster of ours.
    Cluster {
        /// Its major.
        major: u32,
    },
}

impl Places {
    /// `dir` decides the rest.
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

    /// Those of a lab that was started earlier.
    pub(crate) fn of_lab(lab: &Lab) -> Self {
        Self {
            dir: lab.dir.clone(),
            data: lab.data_dir.clone(),
            socket: lab.socket_dir.clone(),
            server_log: lab.dir.join(SERVER_LOG),
            remove: lab.remove.clone(),
        }
    }

    /// Makes a new directory below the system's temporary one, and hires the janitor that removes
    /// it, and `also`, at the end.
    pub(crate) fn throw_away(account: &Account, also: &[PathBuf]) -> Result<(Self, Reaper), Error> {
        loop {
            let dir = env::temp_dir().join(unlikely_name("lab"));
            let mut places = Self::at(&dir);
            places.remove.push(dir);
            // The janitor comes first, lest there be a directory without one. So it has to be told
            // when the directory turns out to be somebody else's.
            let mut janitor = Reaper::hire(places.remove.iter().chain(also))?;
            match places.make(account) {
                Ok(()) => return Ok((places, janitor)),
                Err(Error::File { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists =>
                {
                    janitor.leave_everything();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the directory that the caller named, or takes the cluster that is in it.
    ///
    /// The janitor removes what we made, unless it is to be kept: never a cluster that was there.
    pub(crate) fn given(
        dir: &Path,
        keep: bool,
        account: &Account,
        also: &[PathBuf],
    ) -> Result<(Self, Holds, Reaper), Error> {
        let dir = &std::path::absolute(dir).context("find", dir)?;
        let holds = look(dir)?;
        let mut places = Self::at(dir);
        match holds {
            Holds::Missing if !keep => places.remove.push(dir.clone()),
            Holds::Nothing if !keep => {
                places.remove.extend([places.data.clone(), places.server_log.clone()]);
            }
            _ => {}
        }
        let janitor = Reaper::hire(places.remove.iter().chain(also))?;
        if let (Holds::Missing, Some(parent)) = (holds, dir.parent()) {
            fs::create_dir_all(parent).context("create", parent)?;
            places.make(account)?;
        } else {
            account.own(dir).context("change the owner of", dir)?;
            places.make_socket(account)?;
            places.take_over_data(account)?;
            account.check_reach(dir)?;
        }
        Ok((places, holds, janitor))
    }

    fn make(&self, account: &Account) -> Result<(), Error> {
        files::make_dir(&self.dir, 0o700, account).context("create", &self.dir)?;
        self.make_socket(account)?;
        account.check_reach(&self.dir)
    }

    /// Gives the account a data directory that another one owned: earlier versions ran root's
    /// servers as `postgres`.
    pub(crate) fn take_over_data(&self, account: &Account) -> Result<(), Error> {
        let owned = files::present(files::belongs_to(&self.data, account));
        match owned.context("read", &self.data)? {
            Some(false) if postmaster::running(&self.data).is_none() => {
                files::own_tree(&self.data, account)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn make_socket(&self, account: &Account) -> Result<(), Error> {
        match files::make_dir(&self.socket, 0o700, account) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                files::make_private(&self.socket, account).context("take over", &self.socket)
            }
            result => result.context("create", &self.socket),
        }
    }

    /// The password file for TCP, if it was written.
    pub(crate) fn passfile(&self) -> PathBuf {
        self.socket.join(access::PASSFILE)
    }

    /// Where the server puts log files when `logging_collector` is on and `log_directory` is not
    /// set.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.data.join("log")
    }

    /// The newest of the server's log files.
    pub(crate) fn newest_log(&self) -> PathBuf {
        let entries = fs::read_dir(self.log_dir()).into_iter().flatten().flatten();
        let collected = entries.filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(|metadata| metadata.len() > 0)?;
            Some((metadata.modified().ok()?, entry.path()))
        });
        collected.max().map_or_else(|| self.server_log.clone(), |(_, path)| path)
    }
}

/// Says what is in a directory, or fails when that is nothing of ours.
pub(crate) fn look(dir: &Path) -> Result<Holds, Error> {
    let Some(mut entries) = files::present(fs::read_dir(dir)).context("read", dir)? else {
        return Ok(Holds::Missing);
    };
    if entries.next().is_none() {
        return Ok(Holds::Nothing);
    }
    let data = dir.join("data");
    let version = fs::read_to_string(data.join("PG_VERSION")).unwrap_or_default();
    match version.trim().parse() {
        Ok(major) if data.join(settings::FILE).exists() => Ok(Holds::Cluster { major }),
        _ => Err(Error::DirectoryInUse { dir: dir.to_owned() }),
    }
}

/// Whether a server with the highest port could have its socket there: `sun_path` in unix(7) has
/// 108 bytes, one of them for the final zero.
fn fits_socket(dir: &Path) -> bool {
    dir.as_os_str().len() + "/.s.PGSQL.65535".len() < 108
}

/// A directory name with room for a socket, when the temporary directory's name is long, too.
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
    fn a_long_directory_has_its_socket_elsewhere() {
        let short = Places::at(Path::new("/tmp/a"));
        assert_eq!(short.socket, Path::new("/tmp/a/socket"));
        let long = Places::at(&Path::new("/tmp").join("x".repeat(90)));
        assert!(fits_socket(&long.socket) && !long.socket.starts_with(&long.dir));
        assert!(!fits_socket(&Path::new("/").join("x".repeat(92))));
        assert!(fits_socket(&Path::new("/").join("x".repeat(91))));
    }

    #[test]
    fn a_directory_with_other_things_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(&dir.path().join("none")).unwrap(), Holds::Missing);
        assert_eq!(look(dir.path()).unwrap(), Holds::Nothing);
        fs::create_dir(dir.path().join("data")).unwrap();
        assert!(matches!(look(dir.path()), Err(Error::DirectoryInUse { .. })));
        // A data directory, but not one of ours.
        fs::write(dir.path().join("data/PG_VERSION"), "17\n").unwrap();
        assert!(matches!(look(dir.path()), Err(Error::DirectoryInUse { .. })));
        fs::write(dir.path().join("data").join(settings::FILE), "").unwrap();
        assert_eq!(look(dir.path()).unwrap(), Holds::Cluster { major: 17 });
    }
}
