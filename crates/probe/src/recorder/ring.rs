//! Writing a recording's file: a ring of slots, and slots for episodes beside it.

use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    layout::{self, EPISODE_SLOTS, FRAME_HEAD, HEAD_BYTES, Layout, RING_SLOTS, SLOT_HEAD},
    record::Record,
};

/// A file that cannot be recorded to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A file operation failed.
    #[error("cannot record to {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a file of something else, which is left as it is.
    #[error("{} is no recording of probes, and not empty: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It was begun with another size.
    #[error(
        "{} was made for at most {} bytes, not for {}: leave out the size, or name another file",
        path.display(), found, wanted
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// What it may have.
        found: u64,
        /// What was asked for.
        wanted: u64,
    },
    /// Another program records to it.
    #[error("{} is being written by another recorder: name another file", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

/// The file, open for us alone.
#[derive(Debug)]
pub(super) struct Ring {
    file: File,
    layout: Layout,
    /// Sequence numbers of all slots; 0 is none.
    sequences: Vec<u64>,
    /// The slot that is written, and how far it is. `None`: none yet.
    current: Option<(u32, usize)>,
    last_sequence: u64,
    next_number: u64,
}

impl Ring {
    /// Opens a recording to go on behind what is there, or begins one of at most `max_bytes`. `None` takes
    /// the size of a file that is there.
    pub(super) fn open(
        path: &Path,
        max_bytes: Option<u64>,
        default_bytes: u64,
    ) -> Result<Self, RecordError> {
        let io = |source| RecordError::Io { path: path.to_owned(), source };
        let file = lock(path)?;
        let mut head = vec![0; HEAD_BYTES as usize];
        let length = file.metadata().map_err(io)?.len();
        let there = usize::try_from(length).unwrap_or(usize::MAX).min(head.len());
        file.read_exact_at(&mut head[..there], 0).map_err(io)?;
        head.truncate(there);
        let wanted = Layout::within(max_bytes.unwrap_or(default_bytes));
        let layout = match Layout::of_head(&head) {
            Some(found) if max_bytes.is_some() && found != wanted => {
                let (found, wanted) = (found.max_bytes(), wanted.max_bytes());
                return Err(RecordError::Size { path: path.to_owned(), found, wanted });
            }
            Some(found) => found,
            // Nothing yet, or killed within its first bytes.
            None if wanted.head().starts_with(&head) => {
                file.write_all_at(&wanted.head(), 0).map_err(io)?;
                wanted
            }
            None => return Err(RecordError::Foreign { path: path.to_owned() }),
        };
        let mut ring = Self {
            file,
            layout,
            sequences: vec![0; (EPISODE_SLOTS + RING_SLOTS) as usize],
            current: None,
            last_sequence: 0,
            next_number: 1,
        };
        ring.find_what_is_there(length).map_err(io)?;
        Ok(ring)
    }

    /// The number that the next record should have.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The longest record.
    pub(super) fn body_max(&self) -> usize {
        self.layout.body_max()
    }

    /// How large the file may become.
    pub(super) fn max_bytes(&self) -> u64 {
        self.layout.max_bytes()
    }

    /// Appends a record. If the disk is full, the oldest slot of the file gives way.
    pub(super) fn append(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = FRAME_HEAD + body.len();
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
                // Room that the file has already can be written without any more of the disk.
                let Some(oldest) = self.oldest_other(slot) else { return Err(error) };
                let end = self.begin(oldest)?;
                let frame = layout::frame(self.sequences[oldest as usize], body);
                self.file.write_all_at(&frame, self.layout.offset(oldest) + end as u64)?;
                self.current = Some((oldest, end + bytes));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps records of an episode apart from the ring, in place of the oldest episode. Those that find no
    /// room are left out from the end on; gives their number.
    pub(super) fn keep(&mut self, bodies: &[impl AsRef<[u8]>]) -> io::Result<usize> {
        let slots = 0..EPISODE_SLOTS;
        let slot = slots.min_by_key(|slot| self.sequences[*slot as usize]).unwrap_or(0);
        let sequence = self.last_sequence + 1;
        let mut bytes = layout::slot_head(sequence).to_vec();
        let mut kept = 0;
        for body in bodies {
            let frame = layout::frame(sequence, body.as_ref());
            if bytes.len() + frame.len() > self.layout.slot_bytes as usize {
                break;
            }
            bytes.extend(frame);
            kept += 1;
        }
        self.last_sequence = sequence;
        self.sequences[slot as usize] = sequence;
        self.file.write_all_at(&bytes, self.layout.offset(slot))?;
        Ok(bodies.len() - kept)
    }

    /// Asks the disk to have all of it.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn next_slot(&mut self, bytes: usize) -> io::Result<(u32, usize)> {
        if SLOT_HEAD + bytes > self.layout.slot_bytes as usize {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a record is too long"));
        }
        let next = match self.current {
            Some((slot, _)) if slot + 1 < EPISODE_SLOTS + RING_SLOTS => slot + 1,
            _ => EPISODE_SLOTS,
        };
        match self.begin(next) {
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                let oldest = self.oldest_other(next).ok_or(error)?;
                Ok((oldest, self.begin(oldest)?))
            }
            begun => Ok((next, begun?)),
        }
    }

    /// Gives a slot of the ring a new turn; gives where its first frame goes.
    fn begin(&mut self, slot: u32) -> io::Result<usize> {
        let sequence = self.last_sequence + 1;
        self.file.write_all_at(&layout::slot_head(sequence), self.layout.offset(slot))?;
        self.last_sequence = sequence;
        self.sequences[slot as usize] = sequence;
        self.current = Some((slot, SLOT_HEAD));
        Ok(SLOT_HEAD)
    }

    /// The slot of the ring that was begun first, other than this.
    fn oldest_other(&self, than: u32) -> Option<u32> {
        let used = (EPISODE_SLOTS..EPISODE_SLOTS + RING_SLOTS)
            .filter(|slot| *slot != than && self.sequences[*slot as usize] > 0);
        used.min_by_key(|slot| self.sequences[*slot as usize])
    }

    /// Finds the youngest slot of the ring, its end, and the highest number of a record.
    fn find_what_is_there(&mut self, length: u64) -> io::Result<()> {
        let mut youngest = None;
        for slot in 0..EPISODE_SLOTS + RING_SLOTS {
            let bytes = read_slot(&self.file, self.layout, slot, length)?;
            let Some(sequence) = layout::sequence(&bytes) else { continue };
            self.sequences[slot as usize] = sequence;
            let (bodies, end) = layout::frames(&bytes, sequence);
            let numbers = bodies.into_iter().filter_map(|body| Record::from_bytes(body).ok());
            let last = numbers.map(|(number, _)| number).max().unwrap_or(0);
            self.next_number = self.next_number.max(last.saturating_add(1));
            self.last_sequence = self.last_sequence.max(sequence);
            if slot >= EPISODE_SLOTS && youngest.is_none_or(|(before, _)| before < sequence) {
                youngest = Some((sequence, (slot, end)));
            }
        }
        self.current = youngest.map(|(_, place)| place);
        Ok(())
    }
}

/// As much of a slot as the file has.
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

/// Opens a file for ourselves alone.
fn lock(path: &Path) -> Result<File, RecordError> {
    let io = |source| RecordError::Io { path: path.to_owned(), source };
    let mut options = howdah_files::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => RecordError::Busy { path: path.to_owned() },
        TryLockError::Error(source) => io(source),
    })?;
    Ok(file)
}
