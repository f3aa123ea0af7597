//! [`RunWriter`]: writes a run.

use std::{collections::HashSet, path::Path};

use howdah_traffic::Timestamp;

use super::{Disposition, MACHINE_FILE_NAME, MachineSeries, ReplayOutcome, StatementInfo};
use crate::{
    buffer::{Buffer, BufferLimits},
    error::{Corruption, ReadError, WriteError},
    folder::Folder,
    kind::DatasetKind,
    manifest::{HOWDAH_VERSION, RunManifest, RunPart},
    part::{self, SessionShare},
    storage,
    table::TableWriter,
};

/// Options for creating a run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The capture or the logs that are replayed, as the user named them.
    pub capture: String,
    /// The server that the capture is replayed against. The caller must remove the password.
    pub target: String,
    /// The pace: a factor such as `1.5`, or `max`.
    pub rate: String,
    /// `server_version` of the target.
    pub server_version: String,
    /// Time at which the run is created, before the replay starts.
    pub started: Timestamp,
    /// Whether an existing run in the folder may be replaced.
    pub overwrite: bool,
    /// The part of the run that is written; `None` for the whole run. A part replaces one of the
    /// same run and worker, whatever `overwrite` says.
    pub part: Option<RunPart>,
}

/// Writes a run as a sequence of files, each of which appears complete or not at all.
///
/// Outcomes are stored in the order of arrival. A file of outcomes is written only after the
/// statements that were added before them, so after a crash every outcome has its statement.
/// Dropping the writer without [`Self::finish`] has the same effect as a crash.
#[derive(Debug)]
pub struct RunWriter {
    folder: Folder,
    outcomes: Buffer<ReplayOutcome>,
    outcome_table: TableWriter<ReplayOutcome>,
    statements: Buffer<StatementInfo>,
    statement_table: TableWriter<StatementInfo>,
    /// Fingerprints that have been described: 8 bytes each, and a workload has thousands.
    described: HashSet<u64>,
    manifest: RunManifest,
}

impl RunWriter {
    /// Starts a run in `dir`, which is created if missing.
    ///
    /// # Errors
    ///
    /// The folder contains something that may not be replaced, or cannot be written.
    pub fn create(dir: &Path, settings: RunSettings) -> Result<Self, WriteError> {
        Self::with_limits(dir, settings, BufferLimits::for_dir(dir))
    }

    pub(crate) fn with_limits(
        dir: &Path,
        settings: RunSettings,
        limits: BufferLimits,
    ) -> Result<Self, WriteError> {
        let kind = DatasetKind::Run;
        let folder = match &settings.part {
            None => Folder::create(dir, kind, settings.overwrite)?,
            Some(part) => part_folder(dir, part, settings.overwrite)?,
        };
        let manifest = new_manifest(settings);
        folder.write_manifest(&manifest, 0)?;
        folder.finish_uploads(0)?;
        Ok(Self {
            folder,
            outcomes: Buffer::new(limits),
            outcome_table: TableWriter::new(kind),
            statements: Buffer::new(limits),
            statement_table: TableWriter::new(kind),
            described: HashSet::new(),
            manifest,
        })
    }

    /// Adds an outcome.
    ///
    /// # Errors
    ///
    /// The outcome is too large, or the rows before it or the manifest could not be written. In all
    /// cases it was not added and no earlier row is lost; a later call tries again.
    pub fn write(&mut self, outcome: &ReplayOutcome) -> Result<(), WriteError> {
        if self.outcomes.is_full() {
            self.flush()?;
        }
        self.save_if_due()?;
        self.outcomes.push(outcome.clone())
    }

    /// Writes the outcomes to disk if some are only in memory and the last save, or the first of
    /// them, is at least five seconds ago. Like [`CaptureWriter`](crate::CaptureWriter), it writes
    /// a file that is replaced when later outcomes follow. Statements are written first, so that
    /// every outcome has its statement.
    fn save_if_due(&mut self) -> Result<(), WriteError> {
        if !self.outcomes.is_overdue() {
            return Ok(());
        }
        if !self.statements.is_empty() {
            let groups = self.statements.groups(self.statements.rows());
            self.statement_table.write_unfinished(&self.folder, groups, self.files_kept())?;
        }
        let groups = self.outcomes.groups(self.outcomes.rows());
        self.outcome_table.write_unfinished(&self.folder, groups, self.files_kept())?;
        self.outcomes.mark_saved();
        Ok(())
    }

    /// Describes the statement that a fingerprint identifies. Only the first description is stored.
    ///
    /// # Errors
    ///
    /// The statement is too large, or the statements before it or the manifest could not be
    /// written. In all cases it was not added and no earlier statement is lost.
    pub fn statement(&mut self, statement: &StatementInfo) -> Result<(), WriteError> {
        if self.described.contains(&statement.fingerprint) {
            return Ok(());
        }
        if self.statements.is_full() {
            self.flush_statements()?;
        }
        self.statements.push(statement.clone())?;
        self.described.insert(statement.fingerprint);
        Ok(())
    }

    /// Stores measurements of the machine, replacing any stored before. `series` must have at most
    /// [`MachineSeries::BUCKETS_MAX`] buckets; a longer one could not be read again.
    ///
    /// # Errors
    ///
    /// The file could not be written; the rows are not affected.
    pub fn write_machine(&self, series: &MachineSeries) -> Result<(), WriteError> {
        self.folder.write_document(MACHINE_FILE_NAME, series.to_json(), self.files_kept())
    }

    /// Writes the buffered rows, and the manifest with the replay's `summary`. `complete` is false
    /// if the replay did not reach its end, or outcomes could not be written.
    ///
    /// # Errors
    ///
    /// The files could not be written. Earlier files stay readable.
    pub fn finish(
        mut self,
        summary: serde_json::Value,
        complete: bool,
    ) -> Result<RunManifest, WriteError> {
        self.flush()?;
        self.manifest.finished = true;
        self.manifest.complete = complete;
        self.manifest.summary = summary;
        self.folder.write_manifest(&self.manifest, self.files_kept())?;
        self.folder.finish_uploads(self.files_kept())?;
        Ok(self.manifest)
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.flush_statements()?;
        if self.outcomes.is_empty() {
            return Ok(());
        }
        let groups = self.outcomes.groups(self.outcomes.rows());
        self.outcome_table.write(&self.folder, groups, self.files_kept())?;
        for outcome in self.outcomes.rows() {
            self.manifest.count(&outcome.disposition);
        }
        self.manifest.files = self.outcome_table.files();
        self.outcomes.clear();
        self.folder.write_manifest(&self.manifest, self.files_kept())
    }

    fn flush_statements(&mut self) -> Result<(), WriteError> {
        if self.statements.is_empty() {
            return Ok(());
        }
        let groups = self.statements.groups(self.statements.rows());
        self.statement_table.write(&self.folder, groups, self.files_kept())?;
        self.manifest.statements += self.statements.rows().len() as u64;
        self.manifest.statement_files = self.statement_table.files();
        self.statements.clear();
        self.folder.write_manifest(&self.manifest, self.files_kept())
    }

    fn files_kept(&self) -> u32 {
        self.manifest.files
    }
}

impl RunManifest {
    pub(super) fn count(&mut self, disposition: &Disposition) {
        self.outcomes += 1;
        *match disposition {
            Disposition::Done => &mut self.done,
            Disposition::Failed { .. } => &mut self.failed,
            Disposition::Skipped { .. } => &mut self.skipped,
            Disposition::Dropped { .. } => &mut self.dropped,
        } += 1;
    }
}

fn new_manifest(settings: RunSettings) -> RunManifest {
    RunManifest {
        format: DatasetKind::Run.format().to_owned(),
        version: DatasetKind::Run.version(),
        howdah: HOWDAH_VERSION.to_owned(),
        capture: settings.capture,
        target: settings.target,
        rate: settings.rate,
        server_version: settings.server_version,
        started: settings.started,
        outcomes: 0,
        done: 0,
        failed: 0,
        skipped: 0,
        dropped: 0,
        statements: 0,
        files: 0,
        statement_files: 0,
        finished: false,
        complete: false,
        summary: serde_json::Value::Null,
        part: settings.part,
    }
}

/// Prepares the folder of a part. With `overwrite`, the parts of earlier runs are removed.
fn part_folder(dir: &Path, part: &RunPart, overwrite: bool) -> Result<Folder, WriteError> {
    let kind = DatasetKind::Run;
    if storage::has_file(dir, kind.other().manifest_name()) {
        let dir = dir.to_owned();
        return Err(WriteError::OtherKind { dir, expected: kind, found: kind.other() });
    }
    if storage::has_file(dir, kind.manifest_name()) {
        return Err(WriteError::NoParts { dir: dir.to_owned(), kind });
    }
    let failed = |source| WriteError::from_io(dir.to_owned(), 0, source);
    let share = SessionShare::new(part.worker, part.workers).unwrap_or(SessionShare::ALL);
    for worker in part::run_parts(dir).map_err(failed)? {
        let folder = dir.join(part::worker_folder_name(worker));
        let is_of_same_run = match Folder::open::<RunManifest>(&folder, kind) {
            Ok((_, old)) => old.part.is_some_and(|old| old.run_id == part.run_id),
            // Its worker is just starting, or was killed while it did.
            Err(
                ReadError::Missing { .. }
                | ReadError::NotADataset { .. }
                | ReadError::Damaged { source: Corruption::Manifest(_), .. },
            ) => true,
            Err(_) => false,
        };
        if is_of_same_run && worker.count() == share.count() {
            continue;
        }
        if !overwrite {
            return Err(WriteError::Exists { dir: dir.to_owned(), kind });
        }
        Folder::remove(&folder, kind)?;
    }
    Folder::create(&dir.join(part::worker_folder_name(share)), kind, true)
}
