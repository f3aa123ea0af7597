//! [`CaptureWriter`]: writes a capture.

use std::{borrow::Borrow, num::NonZero, path::Path, thread, time::Duration};

use howdah_traffic::{Event, EventRef, Timestamp};

use super::{
    event_columns::{EventColumns, text_bytes},
    event_row::StoredEvent,
};
use crate::{
    buffer::{BufferLimits, FillLevel},
    error::WriteError,
    folder::Folder,
    kind::DatasetKind,
    manifest::{CaptureManifest, CaptureOrigin},
    table::TableWriter,
};

/// Options for creating a capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureSettings {
    /// The origin of the events. Can also be set later by [`CaptureWriter::set_origin`].
    pub origin: CaptureOrigin,
    /// Whether an existing capture in the folder may be replaced.
    pub overwrite: bool,
}

/// Writes a capture as a sequence of files, each of which appears complete or not at all.
///
/// Events may arrive in any order of time. They are buffered until there are enough for a file (128
/// Ki events or 64 MiB of text), sorted, and written; the time ranges of files may overlap, and
/// [`super::Capture`] merges them.
///
/// ```text
/// in memory        on disk
/// ──────────────   ────────────────────────────────────────────────────
/// events in order  events-000002.parquet   [late │ group │ group │ …]
/// of arrival       events-000001.parquet   [group │ group │ …]
///                  capture.json            counts of the files above it
/// ```
///
/// Within a file, events that are older than the latest event of earlier files (such as the ends of
/// long statements) get separate row groups. The other row groups then never overlap, and a merge
/// has few of them open at a time however long the longest statement ran.
///
/// Dropping the writer without [`Self::finish`] has the same effect as a crash: the files on disk
/// form a valid capture, but events that were not saved are lost: usually those of the last five
/// seconds, or with [`Self::limit_files`] all that are not in a finished file.
#[derive(Debug)]
pub struct CaptureWriter {
    folder: Folder,
    table: TableWriter<StoredEvent>,
    rows: EventColumns,
    fill: FillLevel,
    /// Time of the latest event in finished files.
    latest_on_disk: Option<Timestamp>,
    manifest: CaptureManifest,
    /// See [`Self::limit_files`].
    file_time: Option<Duration>,
}

/// Maximum number of threads that encode a file. With more, the time to read the events is the
/// limit.
const THREADS_MAX: NonZero<usize> = NonZero::new(4).unwrap();

/// A capture whose last files may still be on their way to a store.
pub(super) struct ClosedCapture {
    folder: Folder,
    manifest: CaptureManifest,
}

impl ClosedCapture {
    /// Waits until the capture is complete.
    pub(super) fn wait(self) -> Result<CaptureManifest, WriteError> {
        self.folder.finish_uploads(self.manifest.files)?;
        Ok(self.manifest)
    }
}

impl CaptureWriter {
    /// Starts a capture in `dir`, which is created if missing.
    ///
    /// # Errors
    ///
    /// The folder contains something that may not be replaced, or cannot be written.
    pub fn create(dir: &Path, settings: CaptureSettings) -> Result<Self, WriteError> {
        Self::with_limits(dir, settings, BufferLimits::for_dir(dir))
    }

    pub(crate) fn with_limits(
        dir: &Path,
        settings: CaptureSettings,
        limits: BufferLimits,
    ) -> Result<Self, WriteError> {
        let folder = Folder::create(dir, DatasetKind::Capture, settings.overwrite)?;
        let writer = Self::in_folder(folder, CaptureManifest::new(settings.origin), limits)?;
        writer.folder.finish_uploads(0)?;
        Ok(writer)
    }

    /// Starts a capture in a folder that was prepared. In a store, the manifest may not be there
    /// yet.
    pub(super) fn in_folder(
        folder: Folder,
        manifest: CaptureManifest,
        limits: BufferLimits,
    ) -> Result<Self, WriteError> {
        folder.write_manifest(&manifest, 0)?;
        let mut table = TableWriter::new(DatasetKind::Capture);
        let processors = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        table.set_threads(processors.min(THREADS_MAX));
        Ok(Self {
            folder,
            table,
            rows: EventColumns::new(),
            fill: FillLevel::new(limits),
            latest_on_disk: None,
            manifest,
            file_time: None,
        })
    }

    /// Sets the origin of the events once it is known. The manifest contains it from the next time
    /// that it is written.
    pub fn set_origin(&mut self, origin: CaptureOrigin) {
        self.manifest.origin = origin;
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// The event is too large, or the events before it or the manifest could not be written to
    /// disk. In all cases `event` was not added and no earlier event is lost; a later call tries
    /// again to write the earlier ones.
    pub fn write(&mut self, event: impl Borrow<Event>) -> Result<(), WriteError> {
        self.write_ref(&EventRef::from_event(event.borrow()))
    }

    /// Adds an event that is borrowed from other storage.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write`].
    pub fn write_ref(&mut self, event: &EventRef<'_>) -> Result<(), WriteError> {
        if self.fill.is_full() {
            self.flush()?;
        }
        if self.file_time.is_none() && self.fill.should_check_clock() {
            self.save_if_due()?;
        }
        let text_bytes = text_bytes(event);
        self.fill.add(text_bytes)?;
        self.rows.push(event, text_bytes);
        Ok(())
    }

    /// Whether an event can be written: [`Self::write`] refuses those larger than
    /// [`ROW_BYTES_MAX`](crate::ROW_BYTES_MAX).
    pub fn accepts(event: &EventRef<'_>) -> bool {
        text_bytes(event) <= crate::ROW_BYTES_MAX
    }

    /// Limits the text in a file, and thereby the memory for buffered events, to about this many
    /// bytes. For callers that write many captures at once.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.fill.limit_bytes(bytes);
    }

    /// Like [`Self::limit_memory`], and limits the number of rows in a file.
    pub(super) fn limit_buffer(&mut self, bytes: usize, rows: usize) {
        self.fill.limit_bytes(bytes);
        self.fill.limit_rows(rows);
    }

    /// Sets the bytes of text after which a file is finished, at most the default of 64 MiB, and
    /// the age of its first event at which [`Self::finish_file_if_due`] finishes it. Events are
    /// then written only once, but a crash loses those that are not in a finished file. For live
    /// captures, which also leave the other processors to the work that they record.
    pub fn limit_files(&mut self, bytes: usize, time: Duration) {
        self.fill.limit_bytes(bytes);
        self.table.set_threads(NonZero::<usize>::MIN);
        self.file_time = Some(time);
    }

    /// Finishes a file if its first event was added at least as long ago as [`Self::limit_files`]
    /// has set. Must be called regularly, also while no events arrive.
    ///
    /// # Errors
    ///
    /// The file or the manifest could not be written; no event is lost.
    pub fn finish_file_if_due(&mut self) -> Result<(), WriteError> {
        match self.file_time {
            Some(time) if self.fill.rows() > 0 && self.fill.age() >= time => self.flush(),
            _ => Ok(()),
        }
    }

    /// Sets the `report` that the manifest has from the next file onwards, in case the capture is
    /// never finished.
    pub fn set_report(&mut self, report: serde_json::Value) {
        self.manifest.report = report;
    }

    /// Returns the number of finished files.
    pub fn files(&self) -> u32 {
        self.manifest.files
    }

    /// Writes the buffered events to disk if some are only in memory and the last save, or the
    /// first of them, is at least five seconds ago. [`Self::write`] also does this, unless
    /// [`Self::limit_files`] was called; call this function while no events arrive.
    ///
    /// The buffered events become a file, which is replaced by a larger one until there are enough
    /// events for a finished file. So a capture that grows slowly does not become thousands of
    /// small files.
    ///
    /// # Errors
    ///
    /// The file could not be written; the events are still buffered.
    pub fn save_if_due(&mut self) -> Result<(), WriteError> {
        if !self.fill.is_overdue() {
            return Ok(());
        }
        let sorted = self.rows.sorted();
        let groups = self.groups(&sorted);
        // The manifest does not count this file; after a crash, readers look for uncounted files.
        self.table.write_columns(&self.folder, &self.rows, groups, self.manifest.files)?;
        self.fill.mark_saved();
        Ok(())
    }

    /// Writes the buffered events and the manifest. `report` is the producer's information about
    /// the events.
    ///
    /// # Errors
    ///
    /// The files could not be written. Earlier files stay readable.
    pub fn finish(self, report: serde_json::Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, true)?.wait()
    }

    /// Like [`Self::finish`], for a capture that is incomplete, for example because its source
    /// failed. The events so far are stored, and the manifest says `finished: false`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::finish`].
    pub fn stop(self, report: serde_json::Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, false)?.wait()
    }

    /// Writes the buffered events and the manifest. In a store, they may not be there yet.
    pub(super) fn close(
        mut self,
        report: serde_json::Value,
        finished: bool,
    ) -> Result<ClosedCapture, WriteError> {
        if self.fill.rows() > 0 {
            self.flush()?;
        }
        self.manifest.finished = finished;
        self.manifest.report = report;
        self.folder.write_manifest(&self.manifest, self.manifest.files)?;
        Ok(ClosedCapture { folder: self.folder, manifest: self.manifest })
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let sorted = self.rows.sorted();
        let groups = self.groups(&sorted);
        self.table.write_columns(&self.folder, &self.rows, groups, self.manifest.files)?;
        self.table.finish_file();

        let time = |row: Option<&u32>| row.map(|row| self.rows.time(*row));
        if let (Some(first), Some(last)) = (time(sorted.first()), time(sorted.last())) {
            self.manifest.count_all(first..=last, self.rows.kinds());
            self.latest_on_disk = self.latest_on_disk.max(Some(last));
        }
        self.manifest.files = self.table.files();
        self.rows.clear();
        self.fill.clear();
        self.folder.write_manifest(&self.manifest, self.manifest.files)
    }

    /// Splits sorted rows into row groups. Rows older than the latest event of earlier files get
    /// separate groups.
    fn groups<'a>(&'a self, sorted: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
        let late = sorted.partition_point(|row| Some(self.rows.time(*row)) < self.latest_on_disk);
        let (late, in_time) = sorted.split_at(late);
        let cut = |rows| self.fill.limits().groups(rows, |row| self.rows.text_bytes(*row));
        cut(late).chain(cut(in_time))
    }
}
