//! Labs: named clusters that run until they are stopped.
//!
//! Each lab has a file `NAME.json` in the state directory. The file is created before the lab
//! starts, to reserve the name, and removed when the lab is stopped. A lab whose server is down
//! keeps its files, because `pg_ctl restart` and a crash test look the same as a server that died.
//! Files of labs that have been down for long are removed only when another lab starts; see
//! [`Labs::grace`].

mod entry;

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

pub use entry::{Lab, LabState};

use self::entry::{LabEntry, Process, now_s};
use crate::{
    access::Access,
    binaries::{Binaries, BinariesOrigin},
    builder::{self, Builder},
    cache,
    cluster::{Cluster, ClusterParts},
    error::ClusterError,
    files,
    find_error::FindError,
    os_user::OsUser,
    paths::ClusterPaths,
    postmaster,
    reaper::Reaper,
    server::{self, Shutdown},
    settings::ServerSettings,
};

/// The labs of one user.
#[derive(Clone, Debug)]
pub struct Labs {
    dir: PathBuf,
    grace: Duration,
}

/// Default of [`Labs::grace`].
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// The reason why an operation on a lab failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabsError {
    /// No lab has this name.
    #[error("there is no lab {name:?}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of existing labs.
        known: Vec<String>,
    },
    /// Another lab has this name.
    #[error("the lab {name} already exists")]
    NameTaken {
        /// The requested name.
        name: String,
    },
    /// The lab's server is not running.
    #[error("the server of the lab {name} is down")]
    Down {
        /// The requested name.
        name: String,
    },
    /// The process that started the lab is still running and ends with the lab's server, so the lab
    /// cannot be restarted.
    #[error(
        "the lab {name} cannot be restarted: it runs in the foreground and ends with its server"
    )]
    Foreground {
        /// The requested name.
        name: String,
    },
    /// The lab is still being started.
    #[error("the lab {name} is still starting")]
    Starting {
        /// The requested name.
        name: String,
    },
    /// A file or directory of a lab, or the state directory, cannot be read, written or removed.
    #[error("cannot access {}", path.display())]
    State {
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The cluster could not be started or stopped, or the state directory could not be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Labs {
    /// Returns the user's labs, whose state is in `$HOWDAH_STATE_DIR/labs`; for root
    /// `/var/lib/howdah/labs`; for others `$XDG_STATE_HOME/howdah/labs` or
    /// `~/.local/state/howdah/labs`. Variables with relative paths are ignored; without a home
    /// directory, the state is in the temporary directory.
    pub fn for_current_user() -> Self {
        let given = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = given("HOWDAH_STATE_DIR").unwrap_or_else(|| {
            if rustix::process::geteuid().is_root() {
                return PathBuf::from("/var/lib/howdah");
            }
            given("XDG_STATE_HOME")
                .or_else(|| given("HOME").map(|home| home.join(".local/state")))
                .unwrap_or_else(env::temp_dir)
                .join("howdah")
        });
        Self::in_dir(state.join("labs"))
    }

    /// Returns the labs whose state is stored in `dir`.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), grace: GRACE }
    }

    /// Sets how long a lab may be down before [`Labs::start`] removes it with its files, counted
    /// from the first start that finds it down; 24 hours by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts a lab. The default name is `standby` for a standby, `pg17` if a major version is
    /// requested, and otherwise `lab`, followed by a number if the name is taken. The builder's own
    /// name is ignored.
    ///
    /// The lab ends when the [`StartedLab`] is dropped; see [`StartedLab::leave_running`].
    ///
    /// # Errors
    ///
    /// See [`LabsError`]. On an error, the created files are removed, except those to be kept; see
    /// [`Builder::keep`].
    pub fn start(&self, name: Option<&str>, builder: Builder) -> Result<StartedLab, LabsError> {
        builder.check()?;
        let name = self.reserve(name, &builder)?;
        let file = self.file(&name);
        let standby_of = builder.upstream_name().map(str::to_owned);
        let started = builder.name(&name).also_remove(file.clone()).start();
        let result = started.map_err(LabsError::from).and_then(|cluster| {
            let lab =
                Lab { owner: Some(Process::ours()), ..Lab::from_cluster(&cluster, standby_of) };
            self.write(&name, &LabEntry::Running(Box::new(lab.clone())))?;
            Ok(StartedLab { cluster, lab, labs: self.clone() })
        });
        if result.is_err() {
            // Usually the reaper has removed it already.
            let _ = fs::remove_file(file);
        }
        result
    }

    /// Lists all labs, sorted by name. Changes no lab. Files that are not valid are logged and
    /// omitted.
    ///
    /// # Errors
    ///
    /// [`LabsError::State`] or [`ClusterError::File`] if the state directory or a file in it cannot
    /// be read.
    pub fn list(&self) -> Result<Vec<LabState>, LabsError> {
        let Some(_lock) = self.lock_if_there()? else { return Ok(Vec::new()) };
        self.entries()
    }

    /// Returns a running lab.
    ///
    /// # Errors
    ///
    /// [`LabsError::Unknown`], [`LabsError::Starting`], [`LabsError::Down`], and the errors of
    /// [`Labs::list`].
    pub fn get(&self, name: &str) -> Result<Lab, LabsError> {
        match self.state(name)? {
            LabState::Running(lab) => Ok(lab),
            LabState::Down(lab) => Err(LabsError::Down { name: lab.name }),
            LabState::Starting { name } => Err(LabsError::Starting { name }),
        }
    }

    /// Stops a lab and removes it, with its files unless they are kept. The server may already be
    /// down.
    ///
    /// # Errors
    ///
    /// [`LabsError::Unknown`], [`LabsError::Starting`], [`ClusterError::StopTimeout`], the errors
    /// of [`Labs::list`], and [`LabsError::State`] if a file cannot be removed.
    pub fn stop(&self, name: &str) -> Result<Lab, LabsError> {
        let lab = self.get_started(name)?;
        stop_server(&lab)?;
        let _lock = self.lock()?;
        self.remove_lab(&lab)?;
        Ok(lab)
    }

    /// Stops a lab's server, if it runs, and starts it again on the same files and port, with
    /// `settings` added to its configuration.
    ///
    /// # Errors
    ///
    /// [`LabsError::Foreground`], and the errors of [`Labs::stop`] and [`Builder::start`]. If the
    /// server does not start, the lab stays down, its files are kept, and `settings` are removed
    /// again.
    pub fn restart(&self, name: &str, settings: &[(&str, &str)]) -> Result<Lab, LabsError> {
        let mut lab = self.get_started(name)?;
        if lab.owner.is_some_and(Process::is_alive) {
            return Err(LabsError::Foreground { name: lab.name });
        }
        let access = if lab.is_on_tcp { Access::TcpWithPassword } else { Access::Socket };
        let mut added = ServerSettings::default();
        settings.iter().for_each(|(name, value)| added.push(*name, *value));
        added.check(access.is_tcp())?;
        let os_user = OsUser::for_servers()?;
        let binaries =
            Binaries::at(&lab.bin_dir, BinariesOrigin::Given, &os_user).map_err(|reason| {
                ClusterError::from(FindError::Given { dir: lab.bin_dir.clone(), reason })
            })?;
        {
            // Prevents the start of another lab from removing this one between the stop and the
            // start.
            let _lock = self.lock()?;
            lab.down_since_s = None;
            self.write(name, &LabEntry::Running(Box::new(lab.clone())))?;
        }
        stop_server(&lab)?;
        let paths = ClusterPaths::for_lab(&lab);
        paths.make_socket(&os_user)?;
        paths.chown_data(&os_user)?;
        access.tighten_rules(&paths.data, &os_user)?;
        let mut all = ServerSettings::default();
        access.push_settings(&mut all);
        all.extend(&added);
        let (data, before) = (paths.data.clone(), all.append_undoable(&paths.data)?);
        let (name, reaper) = (lab.name.clone(), Reaper::spawn_without_files()?);
        let (password, passfile) = (None, None);
        let parts =
            ClusterParts { name, binaries, os_user, paths, reaper, access, password, passfile };
        let cluster = match Cluster::start_from(parts, Some(lab.port)) {
            Ok(cluster) => cluster,
            Err(error) => {
                ServerSettings::undo(&data, before)?;
                return Err(error.into());
            }
        };
        let lab = Lab { remove: lab.remove, ..Lab::from_cluster(&cluster, lab.standby_of) };
        self.write(&lab.name, &LabEntry::Running(Box::new(lab.clone())))?;
        cluster.detach();
        Ok(lab)
    }

    /// Returns a lab that is running or down.
    fn get_started(&self, name: &str) -> Result<Lab, LabsError> {
        match self.state(name)? {
            LabState::Running(lab) | LabState::Down(lab) => Ok(lab),
            LabState::Starting { name } => Err(LabsError::Starting { name }),
        }
    }

    fn state(&self, name: &str) -> Result<LabState, LabsError> {
        let states = self.list()?;
        let known = states.iter().map(|state| state.name().to_owned()).collect();
        let found = states.into_iter().find(|state| state.name() == name);
        found.ok_or_else(|| LabsError::Unknown { name: name.to_owned(), known })
    }

    /// Removes labs that have been down too long, then writes an entry under a free name to reserve
    /// it.
    fn reserve(&self, name: Option<&str>, builder: &Builder) -> Result<String, LabsError> {
        let _lock = self.lock()?;
        self.sweep(builder.explicit_dir())?;
        let taken = self.entries()?;
        let is_taken = |name: &str| taken.iter().any(|state| state.name() == name);
        let name = match name {
            Some(name) if !builder::is_name(name) => {
                return Err(ClusterError::BadName { name: name.to_owned() }.into());
            }
            Some(name) if is_taken(name) => {
                return Err(LabsError::NameTaken { name: name.to_owned() });
            }
            Some(name) => name.to_owned(),
            None => {
                let stem = builder.default_name();
                let numbered = (2..).map(|number| format!("{stem}-{number}"));
                std::iter::once(stem.clone())
                    .chain(numbered)
                    .find(|name| !is_taken(name))
                    .expect("numbers are unlimited, labs are not")
            }
        };
        self.write(&name, &LabEntry::starting())?;
        Ok(name)
    }

    /// Reads all entries. The caller holds the lock.
    fn entries(&self) -> Result<Vec<LabState>, LabsError> {
        let mut found = Vec::new();
        for path in files::with_extension(&self.dir, "json")? {
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            match self.read(&path)? {
                Some(LabEntry::Running(lab)) if postmaster::running(&lab.data_dir).is_some() => {
                    found.push(LabState::Running(*lab));
                }
                Some(LabEntry::Running(lab)) => found.push(LabState::Down(*lab)),
                Some(LabEntry::Starting { maker }) if maker.is_alive() => {
                    found.push(LabState::Starting { name: name.to_owned() });
                }
                // The starting process died; its reaper has removed the files.
                Some(LabEntry::Starting { .. }) | None => {}
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }

    /// Removes labs that have been down for [`Labs::grace`] or whose data directory is gone,
    /// removes entries of processes that died while starting a lab and invalid entries older than
    /// [`Labs::grace`], and records which labs are down now. If a lab in `dir` is down, removes
    /// only its entry, because its files are about to be started under another name. The caller
    /// holds the lock.
    fn sweep(&self, dir: Option<&Path>) -> Result<(), LabsError> {
        let dir = dir.and_then(|dir| dir.canonicalize().ok());
        for path in files::with_extension(&self.dir, "json")? {
            match self.read(&path)? {
                Some(LabEntry::Running(lab)) => self.sweep_lab(&path, *lab, dir.as_deref())?,
                Some(LabEntry::Starting { maker }) if maker.is_alive() => {}
                Some(LabEntry::Starting { .. }) => self.remove_file(&path)?,
                None => {
                    let age = fs::metadata(&path).and_then(|metadata| metadata.modified());
                    let age = age.ok().and_then(|changed| changed.elapsed().ok());
                    if age.is_some_and(|age| age >= self.grace) {
                        self.remove_file(&path)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn sweep_lab(&self, path: &Path, lab: Lab, dir: Option<&Path>) -> Result<(), LabsError> {
        let is_running = postmaster::running(&lab.data_dir).is_some();
        let now = now_s();
        match lab.down_since_s {
            None if is_running => Ok(()),
            Some(_) if is_running => {
                let lab = Lab { down_since_s: None, ..lab };
                self.write(&lab.name.clone(), &LabEntry::Running(Box::new(lab)))
            }
            _ if dir.is_some() && lab.dir.canonicalize().ok().as_deref() == dir => {
                self.remove_file(path)
            }
            // A restart of the machine has emptied the temporary directory.
            _ if !lab.data_dir.exists() => self.remove_lab(&lab),
            None => {
                let lab = Lab { down_since_s: Some(now), ..lab };
                self.write(&lab.name.clone(), &LabEntry::Running(Box::new(lab)))
            }
            Some(since) if now.saturating_sub(since) >= self.grace.as_secs() => {
                let down_for = Duration::from_secs(now.saturating_sub(since));
                tracing::warn!(lab = lab.name, ?down_for, "removing a lab whose server is down");
                self.remove_lab(&lab)
            }
            Some(_) => Ok(()),
        }
    }

    /// Removes a stopped lab's files and its entry. The caller holds the lock.
    fn remove_lab(&self, lab: &Lab) -> Result<(), LabsError> {
        for path in &lab.remove {
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            files::ignore_not_found(removed).map_err(|source| state_error(path, source))?;
        }
        self.remove_file(&self.file(&lab.name))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    /// Reads an entry. `None` if the file vanished, or if its content is not valid, which is
    /// logged.
    fn read(&self, path: &Path) -> Result<Option<LabEntry>, LabsError> {
        let text = files::ignore_not_found(fs::read_to_string(path));
        let text = text.map_err(|source| state_error(path, source))?;
        Ok(text.and_then(|text| {
            serde_json::from_str(&text)
                .inspect_err(
                    |error| tracing::warn!(%error, path = %path.display(), "not a valid lab file"),
                )
                .ok()
        }))
    }

    /// Replaces an entry atomically.
    fn write(&self, name: &str, entry: &LabEntry) -> Result<(), LabsError> {
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            serde_json::to_writer_pretty(&mut file, entry)?;
            file.flush()?;
            file.persist(self.file(name)).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|source| state_error(&self.file(name), source))
    }

    fn remove_file(&self, path: &Path) -> Result<(), LabsError> {
        files::ignore_not_found(fs::remove_file(path))
            .map_err(|source| state_error(path, source))?;
        Ok(())
    }

    fn lock(&self) -> Result<fs::File, LabsError> {
        cache::make_dir(&self.dir)
            .and_then(|()| cache::lock(&self.dir, "labs"))
            .map_err(|source| state_error(&self.dir, source))
    }

    /// Locks the state directory. Returns `None` if it does not exist, because reading must not
    /// create it.
    fn lock_if_there(&self) -> Result<Option<fs::File>, LabsError> {
        self.dir.is_dir().then(|| self.lock()).transpose()
    }
}

fn state_error(path: &Path, source: io::Error) -> LabsError {
    LabsError::State { path: path.to_owned(), source }
}

/// Stops a lab's server, if it runs, and waits until it has exited.
fn stop_server(lab: &Lab) -> Result<(), ClusterError> {
    match postmaster::running(&lab.data_dir) {
        Some(pid) => {
            server::signal(pid, Shutdown::Fast);
            server::wait_until_gone(pid)
        }
        None => Ok(()),
    }
}

/// A lab that ends when this value is dropped or the process that holds it dies, unless it is left
/// running.
#[derive(Debug)]
pub struct StartedLab {
    cluster: Cluster,
    lab: Lab,
    labs: Labs,
}

impl StartedLab {
    /// Returns the lab as other processes see it.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Returns the cluster that the lab consists of.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Lets the lab run until [`Labs::stop`] is called.
    pub fn leave_running(self) -> Lab {
        let Self { cluster, lab, labs } = self;
        let lab = Lab { owner: None, ..lab };
        if let Err(error) = labs.write(&lab.name, &LabEntry::Running(Box::new(lab.clone()))) {
            // The entry still names this process as owner, which has no effect once the process has
            // ended.
            tracing::warn!(%error, lab = lab.name, "cannot record that the lab keeps running");
        }
        cluster.detach();
        lab
    }
}
