//! Merges the row groups of a capture into one stream ordered by time.
//!
//! Every row group is sorted. A heap contains the files not yet opened (keyed by their first time),
//! the row groups not yet opened (likewise), and the open row groups (keyed by their next event).
//! The smallest is opened or yielded, so nothing is opened before its first event is due, and
//! exhausted row groups are closed.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    mem,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use howdah_traffic::{Event, Timestamp};

use super::{
    event_row::StoredEvent,
    reader::{EventFile, time_range},
};
use crate::{
    error::ReadError,
    kind::DatasetKind,
    table::{GroupRows, TableFile},
};

/// The events of a capture, ordered by time.
///
/// The stream ends after an error: the events before it are valid, those after it are unknown.
pub struct Events {
    sources: BinaryHeap<Reverse<MergeSource>>,
    range: Option<Range<Timestamp>>,
    /// An error found while reading the event that follows the one just yielded.
    pending_error: Option<ReadError>,
}

/// A file or row group that has more events.
enum MergeSource {
    File { first: Timestamp, path: PathBuf },
    Group { first: Timestamp, file: Arc<TableFile<StoredEvent>>, group: usize },
    Open(Box<OpenGroup>),
}

/// An open row group, and its next event.
struct OpenGroup {
    next: StoredEvent,
    rest: GroupRows<StoredEvent>,
}

impl Events {
    pub(super) fn new(files: &[EventFile], range: Option<Range<Timestamp>>) -> Self {
        let sources = files
            .iter()
            .filter(|file| overlaps(range.as_ref(), (file.first, file.last)))
            .map(|file| Reverse(MergeSource::File { first: file.first, path: file.path.clone() }))
            .collect();
        Self { sources, range, pending_error: None }
    }

    /// Returns the next event in order, regardless of the range.
    fn advance(&mut self) -> Result<Option<StoredEvent>, ReadError> {
        loop {
            match self.sources.pop() {
                None => return Ok(None),
                Some(Reverse(MergeSource::File { path, .. })) => self.open_file(&path)?,
                Some(Reverse(MergeSource::Group { file, group, .. })) => {
                    let mut rest = file.read(group)?;
                    if let Some(next) = rest.next().transpose()? {
                        let reading = Box::new(OpenGroup { next, rest });
                        self.sources.push(Reverse(MergeSource::Open(reading)));
                    }
                }
                Some(Reverse(MergeSource::Open(reading))) => return Ok(Some(self.step(reading))),
            }
        }
    }

    /// Takes the next event of a row group, and puts the row group back on the heap.
    fn step(&mut self, mut reading: Box<OpenGroup>) -> StoredEvent {
        match reading.rest.next() {
            Some(Ok(after)) => {
                let event = mem::replace(&mut reading.next, after);
                self.sources.push(Reverse(MergeSource::Open(reading)));
                event
            }
            Some(Err(error)) => {
                self.pending_error = Some(error);
                reading.next
            }
            None => reading.next,
        }
    }

    fn open_file(&mut self, path: &Path) -> Result<(), ReadError> {
        let file = Arc::new(TableFile::open(path, DatasetKind::Capture)?);
        for group in 0..file.groups() {
            let (first, last) = time_range(&file, group);
            if overlaps(self.range.as_ref(), (first, last)) {
                let file = Arc::clone(&file);
                self.sources.push(Reverse(MergeSource::Group { first, file, group }));
            }
        }
        Ok(())
    }

    /// Returns the number of row groups that are open.
    #[cfg(test)]
    pub(super) fn open_groups(&self) -> usize {
        self.sources.iter().filter(|source| matches!(source.0, MergeSource::Open(_))).count()
    }

    fn stop(&mut self) {
        self.sources.clear();
    }
}

impl Iterator for Events {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = match self.pending_error.take() {
                Some(error) => Err(error),
                None => self.advance(),
            };
            let event = match next {
                Ok(Some(stored)) => stored.event,
                Ok(None) => return None,
                Err(error) => {
                    self.stop();
                    return Some(Err(error));
                }
            };
            match &self.range {
                Some(range) if event.time >= range.end => {
                    self.stop();
                    self.pending_error = None;
                    return None;
                }
                Some(range) if event.time < range.start => {}
                _ => return Some(Ok(*event)),
            }
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("range", &self.range).finish_non_exhaustive()
    }
}

fn overlaps(range: Option<&Range<Timestamp>>, (first, last): (Timestamp, Timestamp)) -> bool {
    range.is_none_or(|range| first < range.end && last >= range.start)
}

impl MergeSource {
    /// Returns the sort key. A source that is not open yet sorts before the events of its first
    /// time.
    fn key(&self) -> (Timestamp, i64) {
        match self {
            Self::File { first, .. } | Self::Group { first, .. } => (*first, i64::MIN),
            Self::Open(reading) => reading.next.key(),
        }
    }
}

impl Ord for MergeSource {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for MergeSource {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeSource {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for MergeSource {}
