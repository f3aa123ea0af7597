//! Merges the row groups of captures into one stream ordered by time.
//!
//! Every row group is sorted. A heap contains the files not yet opened (keyed by their first time),
//! the row groups not yet opened (likewise), and the open row groups (keyed by their next event).
//! The smallest entry is opened or yielded. So nothing is opened before its first event is due, and
//! exhausted row groups are closed. The files may belong to one capture or to several, because each
//! source stores the number of its capture.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    mem,
    ops::Range,
    path::PathBuf,
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
    merge: EventMerge,
    range: Option<Range<Timestamp>>,
}

/// A k-way merge of the files of captures. Yields events with the number of their capture, ordered
/// by time, then by capture, then by arrival. Ends after an error.
pub(super) struct EventMerge {
    sources: BinaryHeap<Reverse<MergeSource>>,
    /// Row groups outside of this range are not read.
    range: Option<Range<Timestamp>>,
    /// An error found while reading the event that follows the one just yielded.
    pending_error: Option<ReadError>,
}

/// A file or row group that has more events.
enum MergeSource {
    File { first: Timestamp, capture: u32, path: PathBuf },
    Group { first: Timestamp, capture: u32, file: Arc<TableFile<StoredEvent>>, group: usize },
    Open(Box<OpenGroup>),
}

/// An open row group, and its next event.
struct OpenGroup {
    capture: u32,
    next: StoredEvent,
    rest: GroupRows<StoredEvent>,
}

impl EventMerge {
    pub(super) fn new(range: Option<Range<Timestamp>>) -> Self {
        Self { sources: BinaryHeap::new(), range, pending_error: None }
    }

    /// Adds the files of a capture with this number.
    pub(super) fn add(&mut self, capture: u32, files: &[EventFile]) {
        let range = self.range.as_ref();
        let overlapping =
            files.iter().filter(|file| overlaps(range, (file.first, file.last))).map(|file| {
                let path = file.path.clone();
                Reverse(MergeSource::File { first: file.first, capture, path })
            });
        self.sources.extend(overlapping);
    }

    /// Returns the next event of the row groups that overlap the range. The event itself may be
    /// outside of it.
    fn advance(&mut self) -> Result<Option<(u32, StoredEvent)>, ReadError> {
        if let Some(error) = self.pending_error.take() {
            return Err(error);
        }
        loop {
            match self.sources.pop() {
                None => return Ok(None),
                Some(Reverse(MergeSource::File { capture, path, .. })) => {
                    let file = TableFile::open(&path, DatasetKind::Capture)?;
                    self.add_groups(capture, &Arc::new(file));
                }
                Some(Reverse(MergeSource::Group { capture, file, group, .. })) => {
                    let mut rest = file.read(group)?;
                    if let Some(next) = rest.next().transpose()? {
                        let open = Box::new(OpenGroup { capture, next, rest });
                        self.sources.push(Reverse(MergeSource::Open(open)));
                    }
                }
                Some(Reverse(MergeSource::Open(open))) => {
                    return Ok(Some((open.capture, self.step(open))));
                }
            }
        }
    }

    /// Takes the next event of a row group, and puts the row group back into the heap, unless it is
    /// exhausted or cannot be read further.
    fn step(&mut self, mut open: Box<OpenGroup>) -> StoredEvent {
        match open.rest.next() {
            Some(Ok(after)) => {
                let event = mem::replace(&mut open.next, after);
                self.sources.push(Reverse(MergeSource::Open(open)));
                event
            }
            Some(Err(error)) => {
                self.pending_error = Some(error);
                open.next
            }
            None => open.next,
        }
    }

    fn add_groups(&mut self, capture: u32, file: &Arc<TableFile<StoredEvent>>) {
        for group in 0..file.groups() {
            let (first, last) = time_range(file, group);
            if overlaps(self.range.as_ref(), (first, last)) {
                let file = Arc::clone(file);
                self.sources.push(Reverse(MergeSource::Group { first, capture, file, group }));
            }
        }
    }

    fn stop(&mut self) {
        self.sources.clear();
        self.pending_error = None;
    }
}

impl Iterator for EventMerge {
    type Item = Result<(u32, StoredEvent), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.stop();
        }
        next.transpose()
    }
}

impl Events {
    pub(super) fn new(files: &[EventFile], range: Option<Range<Timestamp>>) -> Self {
        let mut merge = EventMerge::new(range.clone());
        merge.add(0, files);
        Self { merge, range }
    }

    /// Returns the number of row groups that are open.
    #[cfg(test)]
    pub(super) fn open_groups(&self) -> usize {
        let sources = self.merge.sources.iter();
        sources.filter(|source| matches!(source.0, MergeSource::Open(_))).count()
    }
}

impl Iterator for Events {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = match self.merge.next()? {
                Ok((_, stored)) => stored.event,
                Err(error) => return Some(Err(error)),
            };
            match &self.range {
                Some(range) if event.time >= range.end => {
                    self.merge.stop();
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
    /// Returns the sort key. A source that is not open sorts before all events of its first time,
    /// whatever their capture.
    fn key(&self) -> (Timestamp, Option<(u32, i64)>) {
        match self {
            Self::File { first, .. } | Self::Group { first, .. } => (*first, None),
            Self::Open(open) => {
                let (time, sequence) = open.next.key();
                (time, Some((open.capture, sequence)))
            }
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
