//! Writes a recording's file: a ring of slots, and separate slots for episodes.

use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    layout::{
        self, EPISODE_SLOTS, FRAME_HEADER_BYTES, HEADER_BYTES, Layout, RING_SLOTS,
        SLOT_HEADER_BYTES,
    },
    record::FlightRecord,
};

/// An error while opening a file to record to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingFileError {
    /// A file operation failed, or the thread that writes the file could not be started.
    #[error("cannot record to {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The file is not a recording in the current format, and is left unchanged.
    #[error(
        "{} is not empty and not a probe recording of this version: choose another file",
        path.display()
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was created with another maximum size.
    #[error(
        "{} was created for at most {} bytes, not for {}: omit the size, or choose another file",
        path.display(), found, requested
    )]
    Size {
        /// Path of the file.
        path: PathBuf,
        /// The maximum size of the existing file, in bytes.
        found: u64,
        /// The requested maximum size, in bytes.
        requested: u64,
    },
    /// Another process is recording to the file.
    #[error("{} is being written by another recorder: choose another file", path.display())]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
}

/// The file of a recording, opened exclusively.
#[derive(Debug)]
pub(super) struct SlotRing {
    file: File,
    layout: Layout,
    /// Sequence numbers of all slots; 0 if unused.
    sequences: Vec<u64>,
    /// The slot being written, and the offset within it of the next frame. `None` before the first
    /// record.
    current: Option<(u32, usize)>,
    last_sequence: u64,
    next_number: u64,
}

impl SlotRing {
    /// Opens a recording for appending, or creates one. If `max_bytes` is `None`, an existing file
    /// keeps its size, and a new one gets `default_bytes`.
    pub(super) fn open(
        path: &Path,
        max_bytes: Option<u64>,
        default_bytes: u64,
    ) -> Result<Self, RecordingFileError> {
        let io = |source| RecordingFileError::Io { path: path.to_owned(), source };
        let file = open_locked(path)?;
        let mut head = vec![0; HEADER_BYTES as usize];
        let length = file.metadata().map_err(io)?.len();
        let there = usize::try_from(length).unwrap_or(usize::MAX).min(head.len());
        file.read_exact_at(&mut head[..there], 0).map_err(io)?;
        head.truncate(there);
        let requested = Layout::for_max_bytes(max_bytes.unwrap_or(default_bytes));
        let layout = match Layout::from_header(&head) {
            Some(found) if max_bytes.is_some() && found != requested => {
                let (found, requested) = (found.max_bytes(), requested.max_bytes());
                return Err(RecordingFileError::Size { path: path.to_owned(), found, requested });
            }
            Some(found) => found,
            // Empty, or the creating process was killed while writing the header.
            None if requested.head().starts_with(&head) => {
                file.write_all_at(&requested.head(), 0).map_err(io)?;
                requested
            }
            None => return Err(RecordingFileError::Foreign { path: path.to_owned() }),
        };
        let mut ring = Self {
            file,
            layout,
            sequences: vec![0; (EPISODE_SLOTS + RING_SLOTS) as usize],
            current: None,
            last_sequence: 0,
            next_number: 1,
        };
        ring.scan_slots(length).map_err(io)?;
        Ok(ring)
    }

    /// Returns the number of the next record.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns the maximum length of a record, in bytes.
    pub(super) fn body_max(&self) -> usize {
        self.layout.body_max()
    }

    /// Returns the maximum size of the file, in bytes.
    pub(super) fn max_bytes(&self) -> u64 {
        self.layout.max_bytes()
    }

    /// Appends a record. If the disk is full, the oldest slot of the ring is overwritten.
    pub(super) fn append(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = FRAME_HEADER_BYTES + body.len();
        let (slot, end) = match self.current {
            Some((slot, end)) if end + bytes <= self.layout.slot_bytes as usize => (slot, end),
            _ => self.next_slot(bytes)?,
        };
        let frame = layout::frame(self.sequences[slot as usize], body);
        match self.file.write_all_at(&frame, self.layout.offset(slot) + end as u64) {
            Ok(()) => {
                self.current = Some((slot, end + bytes));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                // Space already allocated to the file can be written even on a full disk.
                let Some(oldest) = self.oldest_other(slot) else { return Err(error) };
                let end = self.start_slot(oldest)?;
                let frame = layout::frame(self.sequences[oldest as usize], body);
                self.file.write_all_at(&frame, self.layout.offset(oldest) + end as u64)?;
                self.current = Some((oldest, end + bytes));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the records of an episode to a slot of its own: a free one, or that of the oldest
    /// episode. Records that do not fit are omitted from the end; returns their number.
    pub(super) fn write_episode(&mut self, bodies: &[impl AsRef<[u8]>]) -> io::Result<usize> {
        let slots = 0..EPISODE_SLOTS;
        let slot = slots.min_by_key(|slot| self.sequences[*slot as usize]).unwrap_or(0);
        let sequence = self.last_sequence + 1;
        let mut bytes = layout::slot_header(sequence).to_vec();
        let mut written = 0;
        for body in bodies {
            let frame = layout::frame(sequence, body.as_ref());
            if bytes.len() + frame.len() > self.layout.slot_bytes as usize {
                break;
            }
            bytes.extend(frame);
            written += 1;
        }
        self.last_sequence = sequence;
        self.sequences[slot as usize] = sequence;
        self.file.write_all_at(&bytes, self.layout.offset(slot))?;
        Ok(bodies.len() - written)
    }

    /// Flushes the file to disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn next_slot(&mut self, bytes: usize) -> io::Result<(u32, usize)> {
        if SLOT_HEADER_BYTES + bytes > self.layout.slot_bytes as usize {
            return Err(io::Error::new(ErrorKind::InvalidInput, "record is too long"));
        }
        let next = match self.current {
            Some((slot, _)) if slot + 1 < EPISODE_SLOTS + RING_SLOTS => slot + 1,
            _ => EPISODE_SLOTS,
        };
        match self.start_slot(next) {
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                let oldest = self.oldest_other(next).ok_or(error)?;
                Ok((oldest, self.start_slot(oldest)?))
            }
            started => Ok((next, started?)),
        }
    }

    /// Starts a slot of the ring with a new sequence number; returns the offset of its first frame.
    fn start_slot(&mut self, slot: u32) -> io::Result<usize> {
        let sequence = self.last_sequence + 1;
        self.file.write_all_at(&layout::slot_header(sequence), self.layout.offset(slot))?;
        self.last_sequence = sequence;
        self.sequences[slot as usize] = sequence;
        self.current = Some((slot, SLOT_HEADER_BYTES));
        Ok(SLOT_HEADER_BYTES)
    }

    /// Returns the oldest used slot of the ring other than `than`, if there is one.
    fn oldest_other(&self, than: u32) -> Option<u32> {
        let used = (EPISODE_SLOTS..EPISODE_SLOTS + RING_SLOTS)
            .filter(|slot| *slot != than && self.sequences[*slot as usize] > 0);
        used.min_by_key(|slot| self.sequences[*slot as usize])
    }

    /// Finds the newest slot of the ring, its end, and the highest record number.
    fn scan_slots(&mut self, length: u64) -> io::Result<()> {
        let mut newest = None;
        for slot in 0..EPISODE_SLOTS + RING_SLOTS {
            let bytes = read_slot(&self.file, self.layout, slot, length)?;
            let Some(sequence) = layout::sequence(&bytes) else { continue };
            self.sequences[slot as usize] = sequence;
            let (bodies, end) = layout::frames(&bytes, sequence);
            let numbers = bodies.into_iter().filter_map(|body| FlightRecord::from_bytes(body).ok());
            let last = numbers.map(|(number, _)| number).max().unwrap_or(0);
            self.next_number = self.next_number.max(last.saturating_add(1));
            self.last_sequence = self.last_sequence.max(sequence);
            if slot >= EPISODE_SLOTS && newest.is_none_or(|(before, _)| before < sequence) {
                newest = Some((sequence, (slot, end)));
            }
        }
        self.current = newest.map(|(_, position)| position);
        Ok(())
    }
}

/// Reads a slot, or the part of it that the file contains if the file ends earlier.
pub(super) fn read_slot(
    file: &File,
    layout: Layout,
    slot: u32,
    length: u64,
) -> io::Result<Vec<u8>> {
    let offset = layout.offset(slot);
    let there = length.saturating_sub(offset).min(layout.slot_bytes.into());
    let mut bytes = vec![0; usize::try_from(there).unwrap_or(0)];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Opens or creates a file, and locks it exclusively.
fn open_locked(path: &Path) -> Result<File, RecordingFileError> {
    let io = |source| RecordingFileError::Io { path: path.to_owned(), source };
    let mut options = howdah_files::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => RecordingFileError::Busy { path: path.to_owned() },
        TryLockError::Error(source) => io(source),
    })?;
    Ok(file)
}
