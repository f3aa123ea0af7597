//! Reads a recording from its file.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    layout::{self, EPISODE_SLOTS, HEADER_BYTES, Layout, RING_SLOTS},
    record::FlightRecord,
    ring::read_slot,
};

/// An error while reading a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingReadError {
    /// A file operation failed.
    #[error("cannot read {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The file is not a recording, its header is damaged, or its format version is unknown.
    #[error("{} is not a probe recording, or was written by a later version", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The recording contains no record that can be decoded.
    #[error("{} contains no readable records", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

/// A recording as read from its file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightRecording {
    /// The records, in the order in which they were written; those of an episode only once,
    /// although the file may contain them twice.
    pub records: Vec<FlightRecord>,
    /// Episodes stored outside the ring: the indices in `records` of the first and last record of
    /// each, in chronological order.
    pub episodes: Vec<(usize, usize)>,
    /// Number of intact records that could not be decoded; one in an episode may count twice.
    pub unreadable: u64,
    /// Maximum size of the file, in bytes.
    pub max_bytes: u64,
}

impl FlightRecording {
    /// Reads a recording, even while a recorder is writing it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not a recording of a known version, or contains no readable
    /// record.
    pub fn open(path: &Path) -> Result<Self, RecordingReadError> {
        let io = |source| RecordingReadError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = [0; HEADER_BYTES as usize];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(io(error)),
            _ => {}
        }
        let layout = Layout::from_header(&head);
        let layout = layout.ok_or_else(|| RecordingReadError::Foreign { path: path.to_owned() })?;
        let mut contents = SlotContents::default();
        for slot in 0..EPISODE_SLOTS + RING_SLOTS {
            contents.add(slot, &read_slot(&file, layout, slot, length).map_err(io)?);
        }
        let recording = Self { max_bytes: layout.max_bytes(), ..contents.into_recording() };
        if recording.records.is_empty() {
            Err(RecordingReadError::Empty { path: path.to_owned() })
        } else {
            Ok(recording)
        }
    }
}

/// The records found in slots. A record of an episode is also in the ring until it is overwritten
/// there.
#[derive(Debug, Default)]
struct SlotContents {
    records: BTreeMap<u64, FlightRecord>,
    /// The first and last record number of each episode.
    episodes: Vec<(u64, u64)>,
    unreadable: u64,
}

impl SlotContents {
    fn add(&mut self, index: u32, slot: &[u8]) {
        let Some(sequence) = layout::sequence(slot) else { return };
        let mut range: Option<(u64, u64)> = None;
        for body in layout::frames(slot, sequence).0 {
            let Ok((number, record)) = FlightRecord::from_bytes(body) else {
                self.unreadable += 1;
                continue;
            };
            self.records.insert(number, record);
            let (first, last) = range.unwrap_or((number, number));
            range = Some((first.min(number), last.max(number)));
        }
        if index < EPISODE_SLOTS {
            self.episodes.extend(range);
        }
    }

    fn into_recording(mut self) -> FlightRecording {
        self.episodes.sort_unstable();
        let numbers = self.records.keys().enumerate();
        let indices: BTreeMap<u64, usize> =
            numbers.map(|(index, number)| (*number, index)).collect();
        let episodes = self.episodes.iter();
        FlightRecording {
            episodes: episodes.map(|(first, last)| (indices[first], indices[last])).collect(),
            records: self.records.into_values().collect(),
            unreadable: self.unreadable,
            max_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests;
