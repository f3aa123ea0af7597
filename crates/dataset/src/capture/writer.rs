//! Writing a capture.

use std::{borrow::Borrow, path::Path, time::Duration};

use howdah_traffic::{Event, EventRef, Timestamp};

use super::{
    record::StoredEvent,
    rows::{Rows, text_bytes},
};
use crate::{
    buffer::{Fill, Limits},
    error::WriteError,
    folder::{DatasetKind, Folder},
    manifest::{CaptureManifest, Origin},
    table::TableWriter,
};

/// What a new capture is made with.
#[derive(Clone, Debug, Default)]
pub struct CaptureSettings {
    /// Where its events come from. [`CaptureWriter::set_origin`] can tell later.
    pub origin: Origin,
    /// Whether a capture that is already in the folder may be replaced.
    pub overwrite: bool,
}

/// Writes a capture, in files that appear whole, one after another.
///
/// Events may come in any order of time. They are held until there are enough for a file (128 Ki
/// events or 64 MiB of text), sorted, and written; the files' ranges of time may overlap, and
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
/// Within a file the events that are older than what earlier files already reached, such as those
/// of statements that ran long, get row groups of their own. So the other row groups never overlap,
/// and a merge holds few of them at a time however long the longest statement ran.
///
/// Dropping the writer without [`Self::finish`] is the same as a crash: files stay and make a valid
/// capture, events of the last five seconds are lost.
#[derive(Debug)]
pub struct CaptureWriter {
    folder: Folder,
    table: TableWriter<StoredEvent>,
    rows: Rows,
    fill: Fill,
    /// Time of the latest event on disk.
    reached: Option<Timestamp>,
    manifest: CaptureManifest,
    /// See [`Self::limit_files`].
    file_time: Option<Duration>,
}

impl CaptureWriter {
    /// Starts a capture in `dir`, which is created if need be.
    ///
    /// # Errors
    ///
    /// The folder holds something already that may not be replaced, or cannot be written.
    pub fn create(dir: &Path, settings: CaptureSettings) -> Result<Self, WriteError> {
        Self::with_limits(dir, settings, Limits::default())
    }

    pub(crate) fn with_limits(
        dir: &Path,
        settings: CaptureSettings,
        limits: Limits,
    ) -> Result<Self, WriteError> {
        let folder = Folder::create(dir, DatasetKind::Capture, settings.overwrite)?;
        let manifest = CaptureManifest::new(settings.origin);
        folder.write_manifest(&manifest, 0)?;
        Ok(Self {
            folder,
            table: TableWriter::new(DatasetKind::Capture),
            rows: Rows::new(),
            fill: Fill::new(limits),
            reached: None,
            manifest,
            file_time: None,
        })
    }

    /// Says where the events come from, once it is known. The manifest has it from the next file on.
    pub fn set_origin(&mut self, origin: Origin) {
        self.manifest.origin = origin;
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// The event is too large, or the file of the events before it could not be written. In both
    /// cases `event` was not taken; the events before it are kept and the next call tries again.
    pub fn write(&mut self, event: impl Borrow<Event>) -> Result<(), WriteError> {
        self.write_ref(&EventRef::of(event.borrow()))
    }

    /// Adds an event that lies elsewhere.
    ///
    /// # Errors
    ///
    /// As for [`Self::write`].
    pub fn write_ref(&mut self, event: &EventRef<'_>) -> Result<(), WriteError> {
        if self.fill.is_full() {
            self.flush()?;
        }
        if self.file_time.is_none() && self.fill.may_ask_clock() {
            self.save_if_due()?;
        }
        let text_bytes = text_bytes(event);
        self.fill.add(text_bytes)?;
        self.rows.push(event, text_bytes);
        Ok(())
    }

    /// Whether an event can be written: [`Self::write`] refuses those over
    /// [`ROW_BYTES_MAX`](crate::ROW_BYTES_MAX).
    pub fn takes(event: &EventRef<'_>) -> bool {
        text_bytes(event) <= crate::ROW_BYTES_MAX
    }

    /// Writes files of at most about so many bytes of text, and holds no more. For those who write many
    /// captures at once.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.fill.limit_bytes(bytes);
    }

    /// Finishes a file after so many bytes of text, or when its first event has waited for so long. What
    /// is in no finished file is not safe from a crash then, and nothing is written twice.
    pub fn limit_files(&mut self, bytes: usize, time: Duration) {
        self.fill.limit_bytes(bytes);
        self.file_time = Some(time);
    }

    /// Finishes a file if that is due by time, see [`Self::limit_files`]. Call it also while no events
    /// come.
    ///
    /// # Errors
    ///
    /// The file could not be written; the events are still held.
    pub fn finish_file_if_due(&mut self) -> Result<(), WriteError> {
        match self.file_time {
            Some(time) if self.fill.rows() > 0 && self.fill.age() >= time => self.flush(),
            _ => Ok(()),
        }
    }

    /// What the manifest says as `report` from the next file on, should there be no end.
    pub fn set_report(&mut self, report: serde_json::Value) {
        self.manifest.report = report;
    }

    /// How many files are finished.
    pub fn files(&self) -> u32 {
        self.manifest.files
    }

    /// Makes what was written safe from a crash if the last time was five seconds ago. Every
    /// [`Self::write`] does so; call it while no events come.
    ///
    /// The events held become a file, which is written again with those that follow until there are
    /// enough for a file: a capture that grows slowly does not end in thousands of small ones.
    ///
    /// # Errors
    ///
    /// The file could not be written; the events are still held.
    pub fn save_if_due(&mut self) -> Result<(), WriteError> {
        if !self.fill.is_overdue() {
            return Ok(());
        }
        let sorted = self.rows.sorted();
        let groups = self.groups(&sorted);
        // The manifest does not count it: readers of what a crash left look for such files.
        self.table.write_columns(&self.folder, &self.rows, groups, self.manifest.files)?;
        self.fill.set_saved();
        Ok(())
    }

    /// Writes what is left, and the manifest with `report`: what the producer of the events has to
    /// say about them.
    ///
    /// # Errors
    ///
    /// The files could not be written. What earlier files hold stays readable.
    pub fn finish(self, report: serde_json::Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, true)
    }

    /// The same for a capture whose source failed on the way: what came is kept, and the manifest
    /// says `finished: false`.
    ///
    /// # Errors
    ///
    /// As for [`Self::finish`].
    pub fn stop(self, report: serde_json::Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, false)
    }

    fn close(
        mut self,
        report: serde_json::Value,
        finished: bool,
    ) -> Result<CaptureManifest, WriteError> {
        if self.fill.rows() > 0 {
            self.flush()?;
        }
        self.manifest.finished = finished;
        self.manifest.report = report;
        self.folder.write_manifest(&self.manifest, self.manifest.files)?;
        Ok(self.manifest)
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let sorted = self.rows.sorted();
        let groups = self.groups(&sorted);
        self.table.write_columns(&self.folder, &self.rows, groups, self.manifest.files)?;
        self.table.end_file();

        let time = |row: Option<&u32>| row.map(|row| self.rows.time(*row));
        if let (Some(first), Some(last)) = (time(sorted.first()), time(sorted.last())) {
            self.manifest.count_all(first..=last, self.rows.kinds());
            self.reached = self.reached.max(Some(last));
        }
        self.manifest.files = self.table.files();
        self.rows.clear();
        self.fill.clear();
        self.folder.write_manifest(&self.manifest, self.manifest.files)
    }

    /// Cuts sorted rows into row groups. Those that are older than what earlier files have reached are in
    /// groups of their own.
    fn groups<'a>(&'a self, sorted: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
        let late = sorted.partition_point(|row| Some(self.rows.time(*row)) < self.reached);
        let (late, in_time) = sorted.split_at(late);
        let cut = |rows| self.fill.limits().groups(rows, |row| self.rows.text_bytes(*row));
        cut(late).chain(cut(in_time))
    }
}
