//! [`ReplayRun`]: reads a run.

mod parts;

use std::{
    collections::HashSet,
    fmt,
    path::{Path, PathBuf},
};

use super::{MACHINE_FILE_NAME, MachineSeries, ReplayOutcome, StatementInfo};
use crate::{
    error::ReadError,
    folder::Folder,
    kind::DatasetKind,
    manifest::{RunManifest, RunPart},
    part::map_parallel,
    table::{TableFile, TableRecord, TableRows},
};

/// A run on disk or in an object store.
///
/// Files that a writer adds after [`Self::open`] are ignored.
#[derive(Clone, Debug)]
pub struct ReplayRun {
    /// The folders: that of the run, or those of its parts.
    folders: Vec<Folder>,
    manifest: RunManifest,
    outcomes: Vec<PathBuf>,
    statements: Vec<PathBuf>,
    parts: Vec<RunPart>,
    missing_workers: Vec<u32>,
}

impl ReplayRun {
    /// Opens a run and checks that its files exist and their footers are valid. If it consists of
    /// the parts of several workers, they are read as one run.
    ///
    /// A run whose writer was killed can be opened too; its manifest says `finished: false` and
    /// counts the rows that exist. So does a run that lacks the parts of some workers.
    ///
    /// # Errors
    ///
    /// The folder is not a run, its version is not supported, or a file is missing, unreadable or
    /// damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        match Self::open_single(dir) {
            Err(ReadError::NotADataset { dir, kind }) => {
                parts::open(&dir)?.ok_or(ReadError::NotADataset { dir, kind })
            }
            opened => opened,
        }
    }

    /// Opens a run that does not consist of parts.
    fn open_single(dir: &Path) -> Result<Self, ReadError> {
        let (folder, mut manifest) = Folder::open::<RunManifest>(dir, DatasetKind::Run)?;
        let finished = manifest.finished;
        let outcomes = open_files::<ReplayOutcome>(&folder, dir, manifest.files, finished)?;
        let statements =
            open_files::<StatementInfo>(&folder, dir, manifest.statement_files, finished)?;
        for outcome in uncounted(&outcomes, &mut manifest.files) {
            let outcome: ReplayOutcome = outcome?;
            manifest.count(&outcome.disposition);
        }
        for statement in uncounted(&statements, &mut manifest.statement_files) {
            let _: StatementInfo = statement?;
            manifest.statements += 1;
        }
        let (folders, parts, missing_workers) = (vec![folder], Vec::new(), Vec::new());
        Ok(Self { folders, manifest, outcomes, statements, parts, missing_workers })
    }

    /// Returns the manifest, which describes the run. If it consists of parts, it is the sum of
    /// theirs.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// Returns the parts of which the run consists, in the order of their workers; none if it is
    /// plain.
    pub fn parts(&self) -> &[RunPart] {
        &self.parts
    }

    /// Returns the numbers of the workers whose parts do not exist.
    pub fn missing_workers(&self) -> &[u32] {
        &self.missing_workers
    }

    /// Returns all outcomes, in the order in which they were written, those of one part after those
    /// of another. Memory use does not depend on their number.
    pub fn outcomes(&self) -> Outcomes {
        Outcomes(TableRows::new(DatasetKind::Run, self.outcomes.clone()))
    }

    /// Returns the statements that the fingerprints identify, each once.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is damaged.
    pub fn statements(&self) -> Result<Vec<StatementInfo>, ReadError> {
        let mut seen = HashSet::new();
        TableRows::new(DatasetKind::Run, self.statements.clone())
            .filter(|statement: &Result<StatementInfo, _>| match statement {
                Ok(statement) => seen.insert(statement.fingerprint),
                Err(_) => true,
            })
            .collect()
    }

    /// Returns the measurements of the machine, which take at most about 50 MB in memory. `None` if
    /// none were stored, as in runs of earlier versions or after the writer was killed. Those of
    /// several workers are one after another.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is damaged, or has an unknown version.
    pub fn machine(&self) -> Result<Option<MachineSeries>, ReadError> {
        let mut all: Option<MachineSeries> = None;
        for folder in &self.folders {
            let path = folder.document_path(MACHINE_FILE_NAME);
            // A worker without sessions has none.
            match (MachineSeries::read(&path)?, &mut all) {
                (None, _) => {}
                (Some(series), None) => all = Some(series),
                (Some(series), Some(all)) => all.append(series),
            }
        }
        Ok(all)
    }
}

/// Opens the files of a table, and checks their footers.
fn open_files<R: TableRecord>(
    folder: &Folder,
    dir: &Path,
    counted: u32,
    finished: bool,
) -> Result<Vec<PathBuf>, ReadError> {
    let paths = folder.files(R::FILE_PREFIX, counted, finished)?;
    map_parallel(dir, &paths, |path| TableFile::<R>::open(path, DatasetKind::Run).map(drop))?;
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
