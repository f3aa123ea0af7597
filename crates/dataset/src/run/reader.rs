//! [`ReplayRun`]: reads a run.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{MACHINE_FILE_NAME, MachineSeries, ReplayOutcome, StatementInfo};
use crate::{
    error::ReadError,
    folder::Folder,
    kind::DatasetKind,
    manifest::RunManifest,
    table::{TableFile, TableRecord, TableRows},
};

/// A run on disk.
///
/// Files that a writer adds after [`Self::open`] are ignored.
#[derive(Clone, Debug)]
pub struct ReplayRun {
    folder: Folder,
    manifest: RunManifest,
    outcomes: Vec<PathBuf>,
    statements: Vec<PathBuf>,
}

impl ReplayRun {
    /// Opens a run and checks that its files exist and their footers are valid.
    ///
    /// A run whose writer was killed can be opened too; its manifest says `finished: false` and
    /// counts the rows that exist.
    ///
    /// # Errors
    ///
    /// The folder is not a run, its version is not supported, or a file is missing, unreadable or
    /// damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let (folder, mut manifest) = Folder::open::<RunManifest>(dir, DatasetKind::Run)?;
        let finished = manifest.finished;
        let outcomes = open_files::<ReplayOutcome>(&folder, manifest.files, finished)?;
        let statements = open_files::<StatementInfo>(&folder, manifest.statement_files, finished)?;
        for outcome in uncounted(&outcomes, &mut manifest.files) {
            let outcome: ReplayOutcome = outcome?;
            manifest.count(&outcome.disposition);
        }
        for statement in uncounted(&statements, &mut manifest.statement_files) {
            let _: StatementInfo = statement?;
            manifest.statements += 1;
        }
        Ok(Self { folder, manifest, outcomes, statements })
    }

    /// Returns the manifest, which describes the run.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// Returns all outcomes, in the order in which they were written. Memory use does not
    /// depend on their number.
    pub fn outcomes(&self) -> Outcomes {
        Outcomes(TableRows::new(DatasetKind::Run, self.outcomes.clone()))
    }

    /// Returns the statements that the fingerprints identify.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is damaged.
    pub fn statements(&self) -> Result<Vec<StatementInfo>, ReadError> {
        TableRows::new(DatasetKind::Run, self.statements.clone()).collect()
    }

    /// Returns the measurements of the machine, which take at most about 50 MB in memory. `None` if
    /// none were stored, as in runs of earlier versions or after the writer was killed.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is damaged, or has an unknown version.
    pub fn machine(&self) -> Result<Option<MachineSeries>, ReadError> {
        MachineSeries::read(&self.folder.document_path(MACHINE_FILE_NAME))
    }
}

/// Opens the files of a table, and checks their footers.
fn open_files<R: TableRecord>(
    folder: &Folder,
    counted: u32,
    finished: bool,
) -> Result<Vec<PathBuf>, ReadError> {
    let paths = folder.files(R::FILE_PREFIX, counted, finished)?;
    for path in &paths {
        TableFile::<R>::open(path, DatasetKind::Run)?;
    }
    Ok(paths)
}

/// Returns the rows of files that the manifest does not count, and updates the count.
fn uncounted<R: TableRecord>(paths: &[PathBuf], counted: &mut u32) -> TableRows<R> {
    let rest = paths.iter().skip(*counted as usize).cloned().collect();
    *counted = u32::try_from(paths.len()).unwrap_or(u32::MAX);
    TableRows::new(DatasetKind::Run, rest)
}

/// The outcomes of a run in the order in which they were written.
///
/// The iterator ends after an error: the outcomes before it are valid, those after it are unknown.
pub struct Outcomes(TableRows<ReplayOutcome>);

impl Iterator for Outcomes {
    type Item = Result<ReplayOutcome, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcomes").finish_non_exhaustive()
    }
}
