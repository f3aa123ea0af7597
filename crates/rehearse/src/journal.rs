//! [`Journal`]: the finished steps of a rehearsal, in `rehearsal.json`.
//!
//! Each change replaces the file by a rename, so it is never incomplete. It contains no passwords;
//! see [`RehearsalOptions::run_options`](crate::RehearsalOptions).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use howdah_report::rehearsal::{RunSummary, ServerFacts};
use howdah_traffic::Timestamp;
use serde::{Deserialize, Serialize};

use crate::start::WalPosition;

/// The name of the file in the output folder.
pub(crate) const FILE: &str = "rehearsal.json";

/// The value of `format` in the file.
pub(crate) const FORMAT: &str = "howdah-rehearsal";

/// Version of the file's format.
const VERSION: u32 = 1;

/// The journal of one rehearsal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    contents: JournalContents,
}

#[derive(Debug, Serialize, Deserialize)]
struct JournalContents {
    format: String,
    version: u32,
    howdah: String,
    /// Start of the rehearsal, in RFC 3339.
    started: String,
    options: BTreeMap<String, String>,
    /// Facts of the servers at their first run, by side.
    servers: BTreeMap<String, ServerFacts>,
    /// Positions of the servers in their WAL before their first runs, by side.
    #[serde(default)]
    positions: BTreeMap<String, WalPosition>,
    /// The finished runs, in the order in which they ran.
    runs: Vec<RunSummary>,
    warnings: Vec<String>,
}

/// The reason why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The journal cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the journal.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The journal is damaged, or the file is not a journal.
    #[error("the journal {} cannot be read: it is damaged, or not of a rehearsal", path.display())]
    Corrupt {
        /// Path of the journal.
        path: PathBuf,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// The journal has another format or version.
    #[error("{} has the format {format} {version}, not {FORMAT} {VERSION}", path.display())]
    Version {
        /// Path of the journal.
        path: PathBuf,
        /// The `format` in the file.
        format: String,
        /// The `version` in the file.
        version: u32,
    },
    /// The rehearsal in the folder has other options.
    #[error("the rehearsal in this folder was started with {option} {journal:?}, not {given:?}")]
    OtherOption {
        /// The first option that differs.
        option: String,
        /// Value of the option in the journal.
        journal: String,
        /// Value with which the rehearsal was to continue.
        given: String,
    },
    /// The journal cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the journal.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Journal {
    /// Opens the journal in `dir` to continue a rehearsal, or starts a new one if none exists; with
    /// `force`, always starts a new one.
    ///
    /// # Errors
    ///
    /// See [`JournalError`].
    pub(crate) fn open(
        dir: &Path,
        options: &BTreeMap<String, String>,
        force: bool,
    ) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        if !force && let Some(contents) = read(&path)? {
            refuse_other_options(&contents.options, options)?;
            return Ok(Self { path, contents });
        }
        let contents = JournalContents {
            format: FORMAT.to_owned(),
            version: VERSION,
            howdah: env!("CARGO_PKG_VERSION").to_owned(),
            started: Timestamp::now().to_string(),
            options: options.clone(),
            servers: BTreeMap::new(),
            positions: BTreeMap::new(),
            runs: Vec::new(),
            warnings: Vec::new(),
        };
        let journal = Self { path, contents };
        journal.save()?;
        Ok(journal)
    }

    /// Returns the finished runs, in the order in which they ran.
    pub(crate) fn runs(&self) -> &[RunSummary] {
        &self.contents.runs
    }

    /// Returns the time at which the rehearsal started, or the current time if the journal has no
    /// valid one.
    pub(crate) fn started(&self) -> Timestamp {
        self.contents.started.parse().unwrap_or_else(|_| Timestamp::now())
    }

    /// Returns the facts of a side's server, if its first run has been prepared.
    pub(crate) fn server(&self, side: &str) -> Option<&ServerFacts> {
        self.contents.servers.get(side)
    }

    /// Returns all warnings, in the order in which they were added.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.contents.warnings
    }

    /// Adds a warning, unless it exists already. It is saved with the next change.
    pub(crate) fn warn(&mut self, warning: String) {
        if !self.contents.warnings.contains(&warning) {
            self.contents.warnings.push(warning);
        }
    }

    /// Sets the facts of a side's server, and saves the journal.
    pub(crate) fn set_server(
        &mut self,
        side: &str,
        facts: ServerFacts,
    ) -> Result<(), JournalError> {
        self.contents.servers.insert(side.to_owned(), facts);
        self.save()
    }

    /// Returns the position of a side's server before its first run, if it has been queried.
    pub(crate) fn position(&self, side: &str) -> Option<&WalPosition> {
        self.contents.positions.get(side)
    }

    /// Sets the position of a side's server, and saves the journal.
    pub(crate) fn set_position(
        &mut self,
        side: &str,
        position: WalPosition,
    ) -> Result<(), JournalError> {
        self.contents.positions.insert(side.to_owned(), position);
        self.save()
    }

    /// Adds a finished run, and saves the journal.
    pub(crate) fn push_run(&mut self, run: RunSummary) -> Result<(), JournalError> {
        self.contents.runs.push(run);
        self.save()
    }

    /// Removes a run, and saves the journal.
    pub(crate) fn remove_run(&mut self, name: &str) -> Result<(), JournalError> {
        self.contents.runs.retain(|run| run.name != name);
        self.save()
    }

    fn save(&self) -> Result<(), JournalError> {
        let write = || -> io::Result<()> {
            let temporary = self.path.with_extension("json.tmp");
            let mut file = howdah_files::create_new(&temporary)?;
            serde_json::to_writer_pretty(&mut file, &self.contents)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        };
        write().map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }
}

/// Reads a journal; `None` if there is none.
fn read(path: &Path) -> Result<Option<JournalContents>, JournalError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(JournalError::Read { path: path.to_owned(), source }),
    };
    #[derive(Deserialize)]
    struct JournalHeader {
        format: String,
        version: u32,
    }
    let corrupt = |source| JournalError::Corrupt { path: path.to_owned(), source };
    // The header is parsed first, because other fields differ between versions.
    let JournalHeader { format, version } = serde_json::from_slice(&bytes).map_err(corrupt)?;
    if format != FORMAT || version != VERSION {
        return Err(JournalError::Version { path: path.to_owned(), format, version });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(corrupt)
}

fn refuse_other_options(
    journal: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
) -> Result<(), JournalError> {
    let value = |options: &BTreeMap<String, String>, name: &str| {
        options.get(name).cloned().unwrap_or_default()
    };
    for name in journal.keys().chain(given.keys()) {
        let (journal, given) = (value(journal, name), value(given, name));
        if journal != given {
            return Err(JournalError::OtherOption { option: name.clone(), journal, given });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use howdah_report::rehearsal::RehearsalSide;

    use super::*;

    fn options(rate: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("--rate".to_owned(), rate.to_owned())])
    }

    fn run(name: &str) -> RunSummary {
        RunSummary {
            name: name.to_owned(),
            side: RehearsalSide::Base,
            started: Timestamp::from_micros(1_795_178_599_577_000),
            finished: Timestamp::from_micros(1_795_178_699_577_000),
            executions: 10,
            failed: 1,
            skipped: 0,
            schedule_error_p99_us: Some(12),
            machine: None,
        }
    }

    #[test]
    fn finished_steps_survive() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), &options("1"), false).unwrap();
        journal.warn("slow".to_owned());
        journal.warn("slow".to_owned());
        journal.push_run(run("a1")).unwrap();
        journal.push_run(run("b1")).unwrap();
        journal.set_server("base", ServerFacts::default()).unwrap();
        let mut journal = Journal::open(dir.path(), &options("1"), false).unwrap();
        assert_eq!(journal.runs(), [run("a1"), run("b1")]);
        assert_eq!(journal.server("base"), Some(&ServerFacts::default()));
        assert_eq!(journal.warnings(), ["slow"]);
        journal.remove_run("a1").unwrap();
        assert_eq!(Journal::open(dir.path(), &options("1"), false).unwrap().runs(), [run("b1")]);
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn other_options_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        Journal::open(dir.path(), &options("1"), false).unwrap().push_run(run("a1")).unwrap();
        let error = Journal::open(dir.path(), &options("2"), false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the rehearsal in this folder was started with --rate \"1\", not \"2\""
        );
        assert!(Journal::open(dir.path(), &options("2"), true).unwrap().runs().is_empty());
    }

    #[test]
    fn corrupt_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"format\": \"howdah-rehearsal\", \"version\": 1}"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = Journal::open(dir.path(), &options("1"), false).unwrap_err();
            assert!(matches!(error, JournalError::Corrupt { .. }), "{text}: {error}");
        }
        fs::write(dir.path().join(FILE), "{\"format\": \"howdah-rehearsal\", \"version\": 9}")
            .unwrap();
        let error = Journal::open(dir.path(), &options("1"), false).unwrap_err();
        assert!(matches!(error, JournalError::Version { version: 9, .. }), "{error}");
        Journal::open(dir.path(), &options("1"), true).unwrap();
    }
}
