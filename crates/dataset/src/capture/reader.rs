//! [`Capture`]: reads a capture.

mod parts;

use std::path::{Path, PathBuf};

use howdah_traffic::Timestamp;

use super::{Events, event_row::StoredEvent};
use crate::{
    error::ReadError,
    folder::Folder,
    kind::DatasetKind,
    manifest::CaptureManifest,
    part::{CapturePart, SessionShare, map_parallel},
    table::{TableFile, TableRecord},
};

/// A capture on disk or in an object store.
///
/// Files that a writer adds after [`Self::open`] are ignored.
#[derive(Clone, Debug)]
pub struct Capture {
    manifest: CaptureManifest,
    files: Vec<EventFile>,
    /// The parts of which it consists; none if it is plain.
    parts: Vec<CapturePart>,
    bytes: u64,
}

/// A file of events and the range of their times.
#[derive(Clone, Debug)]
pub(super) struct EventFile {
    pub(super) path: PathBuf,
    /// The number of the file's part in the capture; 0 if the capture is plain.
    pub(super) part: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// Whether row groups are read into memory; see [`TableFile::in_memory`].
    pub(super) in_memory: bool,
}

/// A file's range of times, if it has events, and its size.
struct FileInfo {
    times: Option<(Timestamp, Timestamp)>,
    size: u64,
}

impl Capture {
    /// Opens a capture and checks that its files exist and their footers are valid. If it consists
    /// of parts, they are read as one capture.
    ///
    /// A capture whose writer was killed can be opened too; its manifest says `finished: false` and
    /// counts the events that exist.
    ///
    /// # Errors
    ///
    /// The folder is not a capture, its version is not supported, or a file is missing, unreadable
    /// or damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        match Self::open_single(dir) {
            Err(ReadError::NotADataset { dir, kind }) => {
                parts::open(&dir)?.ok_or(ReadError::NotADataset { dir, kind })
            }
            opened => opened,
        }
    }

    /// Opens a capture that does not consist of parts.
    fn open_single(dir: &Path) -> Result<Self, ReadError> {
        let (folder, mut manifest) = Folder::open::<CaptureManifest>(dir, DatasetKind::Capture)?;
        let counted = manifest.files as usize;
        let paths = folder.files(StoredEvent::FILE_PREFIX, manifest.files, manifest.finished)?;
        for path in paths.iter().skip(counted) {
            count_rows(&TableFile::open(path, DatasetKind::Capture)?, &mut manifest)?;
        }
        let infos = map_parallel(dir, &paths, |path| FileInfo::read(path))?;
        let bytes = infos.iter().map(|info| info.size).sum();
        let files = paths.into_iter().zip(infos).filter_map(|(path, info)| {
            let (first, last) = info.times?;
            Some(EventFile { path, part: 0, first, last, in_memory: false })
        });
        Ok(Self { files: files.collect(), manifest, parts: Vec::new(), bytes })
    }

    /// Returns the manifest, which describes the capture. If it consists of parts, it is the sum of
    /// theirs.
    pub fn manifest(&self) -> &CaptureManifest {
        &self.manifest
    }

    /// Returns the parts of which the capture consists, ordered by importer and bucket; none if it
    /// is plain.
    pub fn parts(&self) -> &[CapturePart] {
        &self.parts
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
    /// writer received them, and those of different parts in the order of the parts.
    ///
    /// Files are opened when their first event is due. Memory is bounded by a few megabytes per
    /// file whose time range includes the time of the next event, whatever the size of the capture.
    pub fn events(&self) -> Events {
        Events::new(&self.files, None)
    }

    /// Returns the events of a share of the sessions, in the order of [`Self::events`]. Parts that
    /// have none of them are not read.
    pub fn events_of(&self, share: SessionShare) -> Events {
        let has_share = |file: &&EventFile| {
            let part = self.parts.get(file.part as usize).and_then(CapturePart::share);
            part.is_none_or(|part| part.overlaps(share))
        };
        let files: Vec<_> = self.files.iter().filter(has_share).cloned().collect();
        Events::new(&files, None).only(share)
    }

    /// Returns the events from `from` (inclusive) to `to` (exclusive), in the order of
    /// [`Self::events`]. Files and row groups outside the range are not read.
    pub fn events_between(&self, from: Timestamp, to: Timestamp) -> Events {
        Events::new(&self.files, Some(from..to))
    }
}

impl FileInfo {
    fn read(path: &Path) -> Result<Self, ReadError> {
        let file = TableFile::<StoredEvent>::open(path, DatasetKind::Capture)?;
        let ranges = (0..file.groups()).map(|group| time_range(&file, group));
        let first = ranges.clone().map(|(first, _)| first).min();
        let last = ranges.map(|(_, last)| last).max();
        Ok(Self { times: first.zip(last), size: file.size() })
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
