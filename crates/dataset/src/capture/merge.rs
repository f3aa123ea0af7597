//! Merges the row groups of captures into one stream ordered by time.
//!
//! Every row group is sorted. A heap contains the files not yet opened (keyed by their first time),
//! the row groups not yet opened (likewise), and the open row groups (keyed by their next event).
//! The smallest entry is opened or yielded. So nothing is opened before its first event is due, and
//! exhausted row groups are closed. The files may belong to one capture or to several, because each
//! source stores the number of its capture.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, binary_heap::PeekMut},
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
    part::SessionShare,
    table::{GroupRows, TableFile},
};

/// The events of a capture, ordered by time.
///
/// The stream ends after an error: the events before it are valid, those after it are unknown.
pub struct Events {
    merge: EventMerge,
    range: Option<Range<Timestamp>>,
    share: SessionShare,
}

/// A k-way merge of the files of captures. Yields events with the number of their capture, ordered
/// by time, then by capture and part, then by arrival. Ends after an error.
pub(super) struct EventMerge {
    sources: BinaryHeap<Reverse<MergeSource>>,
    /// Row groups outside of this range are not read.
    range: Option<Range<Timestamp>>,
    /// An error found while reading the event that follows the one just yielded.
    pending_error: Option<ReadError>,
}

/// The number of a capture, and the number of a part within it.
type SourceId = (u32, u32);

/// A file or row group that has more events.
enum MergeSource {
    File { first: Timestamp, origin: SourceId, path: PathBuf, in_memory: bool },
    Group { first: Timestamp, origin: SourceId, file: Arc<TableFile<StoredEvent>>, group: usize },
    Open(Box<OpenGroup>),
}

/// An open row group, and its next event.
struct OpenGroup {
    origin: SourceId,
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
                let (path, in_memory) = (file.path.clone(), file.in_memory);
                let origin = (capture, file.part);
                Reverse(MergeSource::File { first: file.first, origin, path, in_memory })
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
            let Some(mut first) = self.sources.peek_mut() else { return Ok(None) };
            if let Reverse(MergeSource::Open(open)) = &mut *first {
                match open.rest.next().transpose() {
                    // Usually, the row group stays the first one, and the heap is not changed.
                    Ok(Some(after)) => {
                        return Ok(Some((open.origin.0, mem::replace(&mut open.next, after))));
                    }
                    Ok(None) => {}
                    Err(error) => self.pending_error = Some(error),
                }
            }
            match PeekMut::pop(first).0 {
                MergeSource::File { origin, path, in_memory, .. } => {
                    let file = TableFile::open(&path, DatasetKind::Capture)?;
                    self.add_groups(origin, &Arc::new(file.in_memory(in_memory)));
                }
                MergeSource::Group { origin, file, group, .. } => {
                    let mut rest = file.read(group)?;
                    if let Some(next) = rest.next().transpose()? {
                        let open = Box::new(OpenGroup { origin, next, rest });
                        self.sources.push(Reverse(MergeSource::Open(open)));
                    }
                }
                // This is its last event, or the last that can be read.
                MergeSource::Open(open) => return Ok(Some((open.origin.0, open.next))),
            }
        }
    }

    fn add_groups(&mut self, origin: SourceId, file: &Arc<TableFile<StoredEvent>>) {
        for group in 0..file.groups() {
            let (first, last) = time_range(file, group);
            if overlaps(self.range.as_ref(), (first, last)) {
                let file = Arc::clone(file);
                self.sources.push(Reverse(MergeSource::Group { first, origin, file, group }));
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
        Self { merge, range, share: SessionShare::ALL }
    }

    /// Leaves out the sessions that are not in a share.
    pub(super) fn only(self, share: SessionShare) -> Self {
        Self { share, ..self }
    }

    /// Returns the number of row groups that are open.
    #[cfg(test)]
    pub(super) fn open_groups(&self) -> usize {
        let sources = self.merge.sources.iter();
        sources.filter(|source| matches!(source.0, MergeSource::Open(_))).count()
    }
}

impl Iterator for Events {
    type Item = Result<Box<Event>, ReadError>;

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
                _ if !self.share.contains(&event.session) => {}
                _ => return Some(Ok(event)),
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
    fn key(&self) -> (Timestamp, Option<(SourceId, i64)>) {
        match self {
            Self::File { first, .. } | Self::Group { first, .. } => (*first, None),
            Self::Open(open) => {
                let (time, sequence) = open.next.key();
                (time, Some((open.origin, sequence)))
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
