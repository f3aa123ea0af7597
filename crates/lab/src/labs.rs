//! Labs: clusters with a name that live until somebody stops them.
//!
//! Each has a file `NAME.json` in the state directory. It is there while the lab starts, so that a
//! name is taken by one starter only, and until the lab is stopped. A lab whose server is down keeps
//! its files: `pg_ctl restart` and a crash test look the same as a server that died. Only a start,
//! which takes names and space, removes labs that have been down for long; see [`Labs::grace`].

mod entry;

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

pub use entry::{Lab, LabState};

use self::entry::{Entry, Process, now_s};
use crate::{
    access::Access,
    account::Account,
    binaries::{Binaries, Origin},
    builder::{self, Builder},
    cache,
    cluster::{Cluster, Parts},
    error::Error,
    files,
    janitor::Reaper,
    places::Places,
    postmaster,
    search::FindError,
    server::{self, Shutdown},
    settings::Settings,
};

/// The labs of one user.
#[derive(Clone, Debug)]
pub struct Labs {
    dir: PathBuf,
    grace: Duration,
}

/// How long a lab may be down before a start of another one removes it.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// What can go wrong with a lab, beside what goes wrong with its cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabsError {
    /// There is no such lab.
    #[error("there is no lab {name:?}")]
    Unknown {
        /// The name as given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The name belongs to a lab that runs or starts.
    #[error("there is a lab {name} already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The lab's server does not run.
    #[error("the server of the lab {name} is down")]
    Down {
        /// The name.
        name: String,
    },
    /// The lab ends with the process that started it, so it cannot be restarted.
    #[error("the lab {name} runs in the foreground and ends with its server")]
    Foreground {
        /// The name.
        name: String,
    },
    /// The lab is not ready for what was asked.
    #[error("the lab {name} is still starting")]
    Starting {
        /// The name.
        name: String,
    },
    /// The state directory cannot be used.
    #[error("cannot use {}", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The cluster could not be started or stopped.
    #[error(transparent)]
    Cluster(#[from] Error),
}

impl Labs {
    /// The user's labs: `$HOWDAH_STATE_DIR/labs`; for root `/var/lib/howdah/labs`; for others
    /// `$XDG_STATE_HOME/howdah/labs` or `~/.local/state/howdah/labs`.
    pub fn of_user() -> Self {
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

    /// Labs whose state is kept in a directory of the caller's choice.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), grace: GRACE }
    }

    /// How long a lab may be down before [`Labs::start`] removes it with its files, counted from the
    /// first start that finds it down; 24 hours by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts a lab. Without a name it is called after its major, `pg17`, or `lab`, and numbered
    /// when that is taken. The builder's own name is not considered.
    ///
    /// It still ends with the [`StartedLab`]; see [`StartedLab::leave_running`].
    ///
    /// # Errors
    ///
    /// See [`LabsError`]. Nothing is left behind then.
    pub fn start(&self, name: Option<&str>, builder: Builder) -> Result<StartedLab, LabsError> {
        builder.check()?;
        let name = self.reserve(name, &builder)?;
        let file = self.file(&name);
        let standby_of = builder.upstream_name().map(str::to_owned);
        let started = builder.name(&name).also_remove(file.clone()).start();
        let result = started.map_err(LabsError::from).and_then(|cluster| {
            let lab = Lab { owner: Some(Process::ours()), ..Lab::of(&cluster, standby_of) };
            self.write(&name, &Entry::Running(Box::new(lab.clone())))?;
            Ok(StartedLab { cluster, lab, labs: self.clone() })
        });
        if result.is_err() {
            // Most failures come late enough for the janitor to have done it.
            let _ = fs::remove_file(file);
        }
        result
    }

    /// All labs, by name. It changes nothing.
    ///
    /// # Errors
    ///
    /// [`LabsError::State`]
    pub fn list(&self) -> Result<Vec<LabState>, LabsError> {
        let Some(_lock) = self.lock_if_there()? else { return Ok(Vec::new()) };
        self.entries()
    }

    /// A lab that runs.
    ///
    /// # Errors
    ///
    /// [`LabsError::Unknown`], [`LabsError::Starting`], [`LabsError::Down`], [`LabsError::State`]
    pub fn get(&self, name: &str) -> Result<Lab, LabsError> {
        match self.state(name)? {
            LabState::Running(lab) => Ok(lab),
            LabState::Down(lab) => Err(LabsError::Down { name: lab.name }),
            LabState::Starting { name } => Err(LabsError::Starting { name }),
        }
    }

    /// Stops a lab, removes its files unless they are to be kept, and forgets it. Its server may be
    /// down.
    ///
    /// # Errors
    ///
    /// [`LabsError::Unknown`], [`LabsError::Starting`], [`LabsError::State`], and
    /// [`Error::StopTimeout`].
    pub fn stop(&self, name: &str) -> Result<Lab, LabsError> {
        let lab = self.made(name)?;
        stop_server(&lab)?;
        let _lock = self.lock()?;
        self.forget(&lab)?;
        Ok(lab)
    }

    /// Stops a lab's server, if it runs, and starts it again on the same files and port, with
    /// `settings` added to its configuration.
    ///
    /// # Errors
    ///
    /// Those of [`Labs::stop`], [`LabsError::Foreground`], and those of [`Builder::start`]. When the
    /// server does not start, the lab is down, its files are as before, and `settings` are taken
    /// back.
    pub fn restart(&self, name: &str, settings: &[(&str, &str)]) -> Result<Lab, LabsError> {
        let mut lab = self.made(name)?;
        if lab.owner.is_some_and(Process::is_alive) {
            return Err(LabsError::Foreground { name: lab.name });
        }
        let access = if lab.is_on_tcp { Access::TcpWithPassword } else { Access::Socket };
        let mut added = Settings::default();
        settings.iter().for_each(|(name, value)| added.push(*name, *value));
        added.check(access.is_tcp())?;
        let account = Account::for_servers()?;
        let binaries = Binaries::at(&lab.bin_dir, Origin::Given, &account)
            .map_err(|unfit| Error::from(FindError::Given { dir: lab.bin_dir.clone(), unfit }))?;
        {
            // A start of another lab must not remove this one between the stop and the start.
            let _lock = self.lock()?;
            lab.down_since_s = None;
            self.write(name, &Entry::Running(Box::new(lab.clone())))?;
        }
        stop_server(&lab)?;
        let places = Places::of_lab(&lab);
        places.make_socket(&account)?;
        places.take_over_data(&account)?;
        access.tighten_rules(&places.data, &account)?;
        let mut all = Settings::default();
        access.push_settings(&mut all);
        all.extend(&added);
        let (data, before) = (places.data.clone(), all.append_undoable(&places.data)?);
        let (name, janitor) = (lab.name.clone(), Reaper::hire_to_stop()?);
        let (password, passfile) = (None, None);
        let parts = Parts { name, binaries, account, places, janitor, access, password, passfile };
        let cluster = match Cluster::start_from(parts, Some(lab.port)) {
            Ok(cluster) => cluster,
            Err(error) => {
                Settings::undo(&data, before)?;
                return Err(error.into());
            }
        };
        let lab = Lab { remove: lab.remove, ..Lab::of(&cluster, lab.standby_of) };
        self.write(&lab.name, &Entry::Running(Box::new(lab.clone())))?;
        cluster.leave();
        Ok(lab)
    }

    /// A lab that has been started, whether its server runs or not.
    fn made(&self, name: &str) -> Result<Lab, LabsError> {
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

    /// Writes an entry under a free name, after a sweep.
    fn reserve(&self, name: Option<&str>, builder: &Builder) -> Result<String, LabsError> {
        let _lock = self.lock()?;
        self.sweep(builder.given_dir())?;
        let taken = self.entries()?;
        let is_taken = |name: &str| taken.iter().any(|state| state.name() == name);
        let name = match name {
            Some(name) if !builder::is_name(name) => {
                return Err(Error::BadName { name: name.to_owned() }.into());
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
                    .expect("there are more numbers than labs")
            }
        };
        self.write(&name, &Entry::starting())?;
        Ok(name)
    }

    /// The entries. Under the lock.
    fn entries(&self) -> Result<Vec<LabState>, LabsError> {
        let mut found = Vec::new();
        for path in files::with_extension(&self.dir, "json")? {
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            match self.read(&path)? {
                Some(Entry::Running(lab)) if postmaster::running(&lab.data_dir).is_some() => {
                    found.push(LabState::Running(*lab));
                }
                Some(Entry::Running(lab)) => found.push(LabState::Down(*lab)),
                Some(Entry::Starting { maker }) if maker.is_alive() => {
                    found.push(LabState::Starting { name: name.to_owned() });
                }
                // Its maker's janitor has removed the rest.
                Some(Entry::Starting { .. }) | None => {}
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }

    /// Removes labs that have been down for long, and notes which are down now. A lab in `dir` loses
    /// its entry only: its files are about to be started under another. Under the lock.
    fn sweep(&self, dir: Option<&Path>) -> Result<(), LabsError> {
        let dir = dir.and_then(|dir| dir.canonicalize().ok());
        for path in files::with_extension(&self.dir, "json")? {
            match self.read(&path)? {
                Some(Entry::Running(lab)) => self.sweep_lab(&path, *lab, dir.as_deref())?,
                Some(Entry::Starting { maker }) if maker.is_alive() => {}
                Some(Entry::Starting { .. }) => self.remove_file(&path)?,
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
                self.write(&lab.name.clone(), &Entry::Running(Box::new(lab)))
            }
            _ if dir.is_some() && lab.dir.canonicalize().ok().as_deref() == dir => {
                self.remove_file(path)
            }
            // The machine has restarted and emptied the temporary directory.
            _ if !lab.data_dir.exists() => self.forget(&lab),
            None => {
                let lab = Lab { down_since_s: Some(now), ..lab };
                self.write(&lab.name.clone(), &Entry::Running(Box::new(lab)))
            }
            Some(since) if now.saturating_sub(since) >= self.grace.as_secs() => {
                let down_for = Duration::from_secs(now.saturating_sub(since));
                tracing::warn!(lab = lab.name, ?down_for, "removing a lab whose server is down");
                self.forget(&lab)
            }
            Some(_) => Ok(()),
        }
    }

    /// Removes a stopped lab's files and its entry. Under the lock.
    fn forget(&self, lab: &Lab) -> Result<(), LabsError> {
        for path in &lab.remove {
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
            files::present(removed).map_err(|source| state_error(path, source))?;
        }
        self.remove_file(&self.file(&lab.name))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    /// `None` for a file that vanished, or that nobody can have written to the end.
    fn read(&self, path: &Path) -> Result<Option<Entry>, LabsError> {
        let text = files::present(fs::read_to_string(path));
        let text = text.map_err(|source| state_error(path, source))?;
        Ok(text.and_then(|text| {
            serde_json::from_str(&text)
                .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "not a lab"))
                .ok()
        }))
    }

    /// Writes an entry so that others see the old one or the new one, complete.
    fn write(&self, name: &str, entry: &Entry) -> Result<(), LabsError> {
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
        files::present(fs::remove_file(path)).map_err(|source| state_error(path, source))?;
        Ok(())
    }

    fn lock(&self) -> Result<fs::File, LabsError> {
        cache::make_dir(&self.dir)
            .and_then(|()| cache::lock(&self.dir, "labs"))
            .map_err(|source| state_error(&self.dir, source))
    }

    /// `None` when there has never been a lab: reading makes no directories.
    fn lock_if_there(&self) -> Result<Option<fs::File>, LabsError> {
        self.dir.is_dir().then(|| self.lock()).transpose()
    }
}

fn state_error(path: &Path, source: io::Error) -> LabsError {
    LabsError::State { path: path.to_owned(), source }
}

/// Stops a lab's server, if it runs, and waits until it is gone.
fn stop_server(lab: &Lab) -> Result<(), Error> {
    match postmaster::running(&lab.data_dir) {
        Some(pid) => {
            server::signal(pid, Shutdown::Fast);
            server::wait_until_gone(pid)
        }
        None => Ok(()),
    }
}

/// A lab that this process has started, and that ends with the value or with the process.
#[derive(Debug)]
pub struct StartedLab {
    cluster: Cluster,
    lab: Lab,
    labs: Labs,
}

impl StartedLab {
    /// What others see of it.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Its cluster.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Lets it run until somebody calls [`Labs::stop`].
    pub fn leave_running(self) -> Lab {
        let Self { cluster, lab, labs } = self;
        let lab = Lab { owner: None, ..lab };
        if let Err(error) = labs.write(&lab.name, &Entry::Running(Box::new(lab.clone()))) {
            // The owner in the entry is this process: once it has ended, the lab counts as left.
            tracing::warn!(%error, lab = lab.name, "cannot note that the lab runs by itself");
        }
        cluster.leave();
        lab
    }
}
