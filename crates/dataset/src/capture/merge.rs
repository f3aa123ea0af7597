//! Merging the row groups of a capture into one stream in the order of time.
//!
//! Every row group is sorted. A heap holds the files not yet opened (at their first time), the row
//! groups not yet opened (at theirs), and the row groups being read (at their next event). What is
//! smallest is opened or yielded, so nothing is opened before its first event is due, and what is
//! exhausted is closed.

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
    reader::{EventFile, time_range},
    record::StoredEvent,
};
use crate::{
    error::ReadError,
    folder::DatasetKind,
    table::{GroupRows, TableFile},
};

/// The events of a capture in the order of their time.
///
/// After an error there are no more: the events before it are sound, those after it are unknown.
pub struct Events {
    sources: BinaryHeap<Reverse<Source>>,
    range: Option<Range<Timestamp>>,
    /// Met while looking for the event after the one that was yielded.
    failed: Option<ReadError>,
}

/// A place where events come from.
enum Source {
    File { first: Timestamp, path: PathBuf },
    Group { first: Timestamp, file: Arc<TableFile<StoredEvent>>, group: usize },
    Reading(Box<Reading>),
}

/// A row group that is open, and its next event.
struct Reading {
    next: StoredEvent,
    rest: GroupRows<StoredEvent>,
}

impl Events {
    pub(super) fn new(files: &[EventFile], range: Option<Range<Timestamp>>) -> Self {
        let sources = files
            .iter()
            .filter(|file| overlaps(range.as_ref(), (file.first, file.last)))
            .map(|file| Reverse(Source::File { first: file.first, path: file.path.clone() }))
            .collect();
        Self { sources, range, failed: None }
    }

    /// The next event in order, from whatever time.
    fn advance(&mut self) -> Result<Option<StoredEvent>, ReadError> {
        loop {
            match self.sources.pop() {
                None => return Ok(None),
                Some(Reverse(Source::File { path, .. })) => self.open_file(&path)?,
                Some(Reverse(Source::Group { file, group, .. })) => {
                    let mut rest = file.read(group)?;
                    if let Some(next) = rest.next().transpose()? {
                        let reading = Box::new(Reading { next, rest });
                        self.sources.push(Reverse(Source::Reading(reading)));
                    }
                }
                Some(Reverse(Source::Reading(reading))) => return Ok(Some(self.step(reading))),
            }
        }
    }

    /// Takes the next event of a row group, and puts the row group back at the one after it.
    fn step(&mut self, mut reading: Box<Reading>) -> StoredEvent {
        match reading.rest.next() {
            Some(Ok(after)) => {
                let event = mem::replace(&mut reading.next, after);
                self.sources.push(Reverse(Source::Reading(reading)));
                event
            }
            Some(Err(error)) => {
                self.failed = Some(error);
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
                self.sources.push(Reverse(Source::Group { first, file, group }));
            }
        }
        Ok(())
    }

    /// Row groups that are open now.
    #[cfg(test)]
    pub(super) fn groups_being_read(&self) -> usize {
        self.sources.iter().filter(|source| matches!(source.0, Source::Reading(_))).count()
    }

    fn end(&mut self) {
        self.sources.clear();
    }
}

impl Iterator for Events {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = match self.failed.take() {
                Some(error) => Err(error),
                None => self.advance(),
            };
            let event = match next {
                Ok(Some(stored)) => stored.event,
                Ok(None) => return None,
                Err(error) => {
                    self.end();
                    return Some(Err(error));
                }
            };
            match &self.range {
                Some(range) if event.time >= range.end => {
                    self.end();
                    self.failed = None;
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

impl Source {
    /// What is not open yet comes before the events of its first time.
    fn key(&self) -> (Timestamp, i64) {
        match self {
            Self::File { first, .. } | Self::Group { first, .. } => (*first, i64::MIN),
            Self::Reading(reading) => reading.next.key(),
        }
    }
}

impl Ord for Source {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Source {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Source {}
