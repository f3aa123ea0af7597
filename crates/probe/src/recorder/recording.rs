//! Reading a recording.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    layout::{self, EPISODE_SLOTS, HEAD_BYTES, Layout, RING_SLOTS},
    record::Record,
    ring::read_slot,
};

/// A recording that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file operation failed.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no recording of probes, or of a later version of them", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing in it.
    #[error("{} has nothing in it yet", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What is in a recording, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The records.
    pub records: Vec<Record>,
    /// Episodes that were kept apart from the ring: the first and last place of each in `records`, behind
    /// one another.
    pub episodes: Vec<(usize, usize)>,
    /// Records that were whole and could not be understood.
    pub unread: u64,
    /// How large the file may become.
    pub max_bytes: u64,
}

impl Recording {
    /// Reads a file, which may be written to meanwhile.
    ///
    /// # Errors
    ///
    /// It cannot be read, is something else, or has nothing in it.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let io = |source| ReadError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = [0; HEAD_BYTES as usize];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(io(error)),
            _ => {}
        }
        let layout = Layout::of_head(&head);
        let layout = layout.ok_or_else(|| ReadError::Foreign { path: path.to_owned() })?;
        let mut found = Found::default();
        for slot in 0..EPISODE_SLOTS + RING_SLOTS {
            found.add(slot, &read_slot(&file, layout, slot, length).map_err(io)?);
        }
        let recording = Self { max_bytes: layout.max_bytes(), ..found.in_order() };
        match recording.records.is_empty() {
            true => Err(ReadError::Empty { path: path.to_owned() }),
            false => Ok(recording),
        }
    }
}

/// What was found in slots. A record of an episode is in the ring as well until it is written over there.
#[derive(Debug, Default)]
struct Found {
    records: BTreeMap<u64, Record>,
    /// The first and the last number of each episode.
    episodes: Vec<(u64, u64)>,
    unread: u64,
}

impl Found {
    fn add(&mut self, place: u32, slot: &[u8]) {
        let Some(sequence) = layout::sequence(slot) else { return };
        let mut range: Option<(u64, u64)> = None;
        for body in layout::frames(slot, sequence).0 {
            let Ok((number, record)) = Record::from_bytes(body) else {
                self.unread += 1;
                continue;
            };
            self.records.insert(number, record);
            let (first, last) = range.unwrap_or((number, number));
            range = Some((first.min(number), last.max(number)));
        }
        if place < EPISODE_SLOTS {
            self.episodes.extend(range);
        }
    }

    fn in_order(mut self) -> Recording {
        self.episodes.sort_unstable();
        let numbers = self.records.keys().enumerate();
        let places: BTreeMap<u64, usize> =
            numbers.map(|(place, number)| (*number, place)).collect();
        let episodes = self.episodes.iter();
        Recording {
            episodes: episodes.map(|(first, last)| (places[first], places[last])).collect(),
            records: self.records.into_values().collect(),
            unread: self.unread,
            max_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests;
