//! [`Capture`]: reads a capture.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_traffic::Timestamp;

use super::{Events, event_row::StoredEvent};
use crate::{
    error::ReadError,
    folder::Folder,
    kind::DatasetKind,
    manifest::CaptureManifest,
    table::{TableFile, TableRecord},
};

/// A capture on disk.
///
/// Files that a writer adds after [`Self::open`] are ignored.
#[derive(Clone, Debug)]
pub struct Capture {
    manifest: CaptureManifest,
    files: Vec<EventFile>,
    bytes: u64,
}

/// A file of events and the range of their times.
#[derive(Clone, Debug)]
pub(super) struct EventFile {
    pub(super) path: PathBuf,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl Capture {
    /// Opens a capture and checks that its files exist and their footers are valid.
    ///
    /// A capture whose writer was killed can be opened too; its manifest says `finished: false` and
    /// counts the events that exist.
    ///
    /// # Errors
    ///
    /// The folder is not a capture, its version is not supported, or a file is missing, unreadable
    /// or damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let (folder, mut manifest) = Folder::open::<CaptureManifest>(dir, DatasetKind::Capture)?;
        let counted = manifest.files as usize;
        let paths = folder.files(StoredEvent::FILE_PREFIX, manifest.files, manifest.finished)?;
        let mut files = Vec::with_capacity(paths.len());
        let mut bytes = 0;
        for (index, path) in paths.into_iter().enumerate() {
            let failed = |source| ReadError::Io { path: path.clone(), source };
            bytes += fs::metadata(&path).map_err(failed)?.len();
            let file = TableFile::<StoredEvent>::open(&path, DatasetKind::Capture)?;
            if index >= counted {
                count_rows(&file, &mut manifest)?;
            }
            let ranges = (0..file.groups()).map(|group| time_range(&file, group));
            let first = ranges.clone().map(|(first, _)| first).min();
            let last = ranges.map(|(_, last)| last).max();
            if let (Some(first), Some(last)) = (first, last) {
                files.push(EventFile { path, first, last });
            }
        }
        Ok(Self { manifest, files, bytes })
    }

    /// Returns the manifest, which describes the capture.
    pub fn manifest(&self) -> &CaptureManifest {
        &self.manifest
    }

    /// Returns the files that have events.
    pub(super) fn files(&self) -> &[EventFile] {
        &self.files
    }

    /// Returns the size of the files of events on disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all events ordered by time; events with the same time are in the order in which the
    /// writer received them.
    ///
    /// Files are opened when their first event is due. Memory is bounded by a few megabytes per
    /// file whose time range includes the time of the next event, whatever the size of the capture.
    pub fn events(&self) -> Events {
        Events::new(&self.files, None)
    }

    /// Returns the events from `from` (inclusive) to `to` (exclusive), in the order of
    /// [`Self::events`]. Files and row groups outside the range are not read.
    pub fn events_between(&self, from: Timestamp, to: Timestamp) -> Events {
        Events::new(&self.files, Some(from..to))
    }
}

/// Returns the time range of a row group.
pub(super) fn time_range(file: &TableFile<StoredEvent>, group: usize) -> (Timestamp, Timestamp) {
    let (first, last) = file.range(group, "time");
    (Timestamp::from_micros(first), Timestamp::from_micros(last))
}

/// Adds the rows of a file to a manifest that was written before the file.
fn count_rows(
    file: &TableFile<StoredEvent>,
    manifest: &mut CaptureManifest,
) -> Result<(), ReadError> {
    for group in 0..file.groups() {
        for row in file.read(group)? {
            let event = row?.event;
            manifest.count(event.time, event.action.kind());
        }
    }
    manifest.files += 1;
    Ok(())
}
