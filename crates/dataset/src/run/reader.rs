//! Reading a run.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{ReplayOutcome, Statement};
use crate::{
    error::ReadError,
    folder::{DatasetKind, Folder},
    manifest::RunManifest,
    table::{Record, TableFile, TableRows},
};

/// A run on disk.
///
/// Files that a writer adds after [`Self::open`] are not seen.
#[derive(Clone, Debug)]
pub struct Run {
    manifest: RunManifest,
    outcomes: Vec<PathBuf>,
    statements: Vec<PathBuf>,
}

impl Run {
    /// Opens a run and checks that its files are there and their footers sound.
    ///
    /// A run whose writer was killed opens too; its manifest says `finished: false` and counts
    /// what is there.
    ///
    /// # Errors
    ///
    /// There is no run, it is of another version, or a file is missing or damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let (folder, mut manifest) = Folder::open::<RunManifest>(dir, DatasetKind::Run)?;
        let finished = manifest.finished;
        let outcomes = checked::<ReplayOutcome>(&folder, manifest.files, finished)?;
        let statements = checked::<Statement>(&folder, manifest.statement_files, finished)?;
        for outcome in uncounted(&outcomes, &mut manifest.files) {
            let outcome: ReplayOutcome = outcome?;
            manifest.count(&outcome.disposition);
        }
        for statement in uncounted(&statements, &mut manifest.statement_files) {
            let _: Statement = statement?;
            manifest.statements += 1;
        }
        Ok(Self { manifest, outcomes, statements })
    }

    /// What the run says about itself.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// All outcomes, in the order in which they were written. Memory is bounded.
    pub fn outcomes(&self) -> Outcomes {
        Outcomes(TableRows::new(DatasetKind::Run, self.outcomes.clone()))
    }

    /// What the fingerprints stand for.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is damaged.
    pub fn statements(&self) -> Result<Vec<Statement>, ReadError> {
        TableRows::new(DatasetKind::Run, self.statements.clone()).collect()
    }
}

/// The files of a table, once their footers have been read.
fn checked<R: Record>(
    folder: &Folder,
    counted: u32,
    finished: bool,
) -> Result<Vec<PathBuf>, ReadError> {
    let paths = folder.files(R::STEM, counted, finished)?;
    for path in &paths {
        TableFile::<R>::open(path, DatasetKind::Run)?;
    }
    Ok(paths)
}

/// The rows of the files that a manifest does not count; it does from now on.
fn uncounted<R: Record>(paths: &[PathBuf], counted: &mut u32) -> TableRows<R> {
    let rest = paths.iter().skip(*counted as usize).cloned().collect();
    *counted = u32::try_from(paths.len()).unwrap_or(u32::MAX);
    TableRows::new(DatasetKind::Run, rest)
}

/// The outcomes of a run in the order in which they were written.
///
/// After an error there are no more: the outcomes before it are sound, those after it are unknown.
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
