//! Labs: clusters with a name that live until somebody stops them.
//!
//! Each has a file `NAME.json` in the state directory. It is there while the lab starts, so that a
//! name is taken by one starter only, and while it runs. Files of labs that are gone, because the
//! machine or the server died, are cleaned up by whoever looks next.

mod entry;

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

pub use entry::{Lab, LabState};

use self::entry::Entry;
use crate::{
    builder::{self, Builder},
    cache,
    cluster::Cluster,
    error::Error,
    files, postmaster,
    server::{self, Shutdown},
};

/// The labs of one user.
#[derive(Clone, Debug)]
pub struct Labs {
    dir: PathBuf,
}

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
        Self { dir: dir.into() }
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
            let lab = Lab::of(&cluster, standby_of);
            self.write(&name, &Entry::Running(lab.clone()))?;
            Ok(StartedLab { cluster, lab })
        });
        if result.is_err() {
            // Most failures come late enough for the janitor to have done it.
            let _ = fs::remove_file(file);
        }
        result
    }

    /// All labs, by name.
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
    /// [`LabsError::Unknown`], [`LabsError::Starting`], [`LabsError::State`]
    pub fn get(&self, name: &str) -> Result<Lab, LabsError> {
        let states = self.list()?;
        match states.iter().find(|state| state.name() == name) {
            Some(LabState::Running(lab)) => Ok(lab.clone()),
            Some(LabState::Starting { .. }) => Err(LabsError::Starting { name: name.to_owned() }),
            None => {
                let known = states.iter().map(|state| state.name().to_owned()).collect();
                Err(LabsError::Unknown { name: name.to_owned(), known })
            }
        }
    }

    /// Stops a lab, removes its files unless they are to be kept, and forgets it.
    ///
    /// # Errors
    ///
    /// Those of [`Labs::get`], and [`Error::StopTimeout`].
    pub fn stop(&self, name: &str) -> Result<Lab, LabsError> {
        let lab = self.get(name)?;
        if let Some(pid) = postmaster::running(&lab.data_dir) {
            server::signal(pid, Shutdown::Fast);
            server::wait_until_gone(pid)?;
        }
        let _lock = self.lock()?;
        self.forget(&lab)?;
        Ok(lab)
    }

    /// Writes an entry under a free name.
    fn reserve(&self, name: Option<&str>, builder: &Builder) -> Result<String, LabsError> {
        let _lock = self.lock()?;
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

    /// The entries, those of dead labs cleaned up. Under the lock.
    fn entries(&self) -> Result<Vec<LabState>, LabsError> {
        let mut found = Vec::new();
        for path in files::with_extension(&self.dir, "json")? {
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            match self.read(&path)? {
                Some(Entry::Running(lab)) if postmaster::running(&lab.data_dir).is_some() => {
                    found.push(LabState::Running(lab));
                }
                Some(Entry::Starting { maker }) if maker.is_alive() => {
                    found.push(LabState::Starting { name: name.to_owned() });
                }
                Some(Entry::Running(lab)) => {
                    tracing::info!(lab = lab.name, "its server is gone; cleaning up");
                    self.forget(&lab)?;
                }
                // Its maker's janitor has removed the rest.
                Some(Entry::Starting { .. }) | None => self.remove_file(&path)?,
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
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

/// A lab that this process has started, and that ends with the value or with the process.
#[derive(Debug)]
pub struct StartedLab {
    cluster: Cluster,
    lab: Lab,
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
        self.cluster.leave();
        self.lab
    }
}
