//! Writes a recording: appends to the file, and compacts it when it is too large or too old.

use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    HistoryLimits,
    file_format::{self, FILE_HEADER, FrameKind},
    recording::{ScanItem, scan},
    server_history::PackedFrame,
};
use crate::waits::WaitSecond;

/// The reason why a recording cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// Opening, locking, reading, writing, syncing or compacting the file failed.
    #[error("cannot record to {}", path.display())]
    Io {
        /// Path of the recording.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a recording, or has another format version. It is left unchanged.
    #[error(
        "{} is not a howdah top recording, or was written by a later version: name another file",
        path.display()
    )]
    Foreign {
        /// Path of the recording.
        path: PathBuf,
    },
    /// Another process is recording to the file.
    #[error("{} is being written by another howdah top: name another file", path.display())]
    Busy {
        /// Path of the recording.
        path: PathBuf,
    },
    /// The sample could not be compressed.
    #[error("cannot compress a sample")]
    Pack(#[source] io::Error),
}

/// Time after which the next frame syncs the file, so that a slow disk delays one sample per
/// interval, not every sample.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// A recording that is appended to frame by frame. After a kill, all frames but the last are
/// intact; after a power failure, all that were synced to disk, which happens every ten seconds.
///
/// Only one process writes to a recording. If the file exceeds its maximum size at the start of a
/// segment, or its first frame exceeds the maximum age by an eighth, the frames to keep are copied
/// to `FILE.tmp`, which then replaces the file. Frames up to three quarters of the maximum size are
/// kept, so that this happens rarely.
#[derive(Debug)]
pub struct HistoryRecorder {
    path: PathBuf,
    file: File,
    limits: HistoryLimits,
    /// Offset in the file at which the next frame is written.
    bytes: u64,
    frames: Vec<RecordedFrame>,
    /// Servers whose current segment can be continued: this recorder started it, and no frame of it
    /// is missing. The compressor state of a segment that another process started is lost.
    started: BTreeSet<u64>,
    /// Time of the last attempt to sync the file, or of opening it.
    synced_at: Instant,
    is_finished: bool,
}

/// A frame in the file: its position, server, time and kind.
#[derive(Clone, Copy, Debug)]
struct RecordedFrame {
    offset: u64,
    bytes: u64,
    stream: u64,
    at_us: i64,
    kind: FrameKind,
}

impl HistoryRecorder {
    /// Opens a recording for appending, or creates one, and locks the file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, is used by another process, or is not a recording in the current
    /// format.
    pub fn open(path: &Path, limits: HistoryLimits) -> Result<Self, RecorderError> {
        let io = |source| RecorderError::Io { path: path.to_owned(), source };
        let mut file = open_locked(path)?;
        let mut frames = Vec::new();
        let mut head = Vec::new();
        (&file).take(FILE_HEADER.len() as u64).read_to_end(&mut head).map_err(io)?;
        if head.len() < FILE_HEADER.len() && FILE_HEADER.starts_with(&head) {
            // The file is new, or its writer was killed while writing the header.
            file.set_len(0).map_err(io)?;
            file.write_all(&FILE_HEADER).map_err(io)?;
            sync_directory(path).map_err(io)?;
        } else if head == FILE_HEADER {
            scan(&file, |found| {
                if let ScanItem::Frame { offset, bytes, head, .. } = found {
                    let (stream, at_us, kind) = (head.stream, head.at_us, head.kind);
                    frames.push(RecordedFrame { offset, bytes, stream, at_us, kind });
                }
            })
            .map_err(io)?;
        } else {
            return Err(RecorderError::Foreign { path: path.to_owned() });
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(io)?;
        let started = BTreeSet::new();
        let synced = Instant::now();
        let path = path.to_owned();
        Ok(Self {
            path,
            file,
            limits,
            bytes,
            frames,
            started,
            synced_at: synced,
            is_finished: false,
        })
    }

    /// Syncs the file and closes it for writing: samples from threads that are still running are
    /// dropped.
    pub(super) fn finish(&mut self) -> Result<(), RecorderError> {
        self.is_finished = true;
        self.sync()
    }

    fn sync(&mut self) -> Result<(), RecorderError> {
        self.synced_at = Instant::now();
        match self.file.sync_data() {
            // Pipes and devices have nothing to flush.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => {
                // It is unknown which frames the disk has lost, so no frame may depend on them.
                self.started.clear();
                Err(self.io_error(source))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Makes all further writes fail, as on a full disk.
    #[cfg(test)]
    pub(super) fn break_for_test(&mut self) {
        self.file = File::options().read(true).write(true).open("/dev/full").expect("there is one");
    }

    /// Appends a frame of the server called `name`. Before the first frame of a segment, compacts
    /// the file if needed. Drops a frame if its segment cannot be continued, or after
    /// [`Self::finish`].
    pub(super) fn append_frame(
        &mut self,
        name: &str,
        frame: &PackedFrame,
    ) -> Result<(), RecorderError> {
        let stream = file_format::stream_id(name);
        let kind = match frame.number {
            0 => FrameKind::Segment,
            number => FrameKind::Next(number),
        };
        if kind == FrameKind::Segment && !self.is_finished {
            self.trim(frame.at_us)?;
            self.started.insert(stream);
        }
        if self.is_finished || !self.started.contains(&stream) {
            return Ok(());
        }
        self.append(&file_format::encode_frame(name, frame), stream, frame.at_us, kind)
    }

    /// Appends wait events of the server called `name`.
    pub(super) fn append_waits(
        &mut self,
        name: &str,
        at_us: i64,
        seconds: &[WaitSecond],
    ) -> Result<(), RecorderError> {
        if self.is_finished || seconds.is_empty() {
            return Ok(());
        }
        let bytes = file_format::encode_waits(name, at_us, seconds);
        self.append(&bytes, file_format::stream_id(name), at_us, FrameKind::Waits)
    }

    fn append(
        &mut self,
        bytes: &[u8],
        stream: u64,
        at_us: i64,
        kind: FrameKind,
    ) -> Result<(), RecorderError> {
        let written = self.file.write_all(bytes);
        let offset = self.bytes;
        let written = written.and_then(|()| self.file.seek(SeekFrom::End(0)));
        match written {
            Ok(end) => {
                self.bytes = end;
                let bytes = bytes.len() as u64;
                self.frames.push(RecordedFrame {
                    offset: end.saturating_sub(bytes),
                    bytes,
                    stream,
                    at_us,
                    kind,
                });
                if self.synced_at.elapsed() >= SYNC_INTERVAL { self.sync() } else { Ok(()) }
            }
            Err(source) => {
                // Half a frame may have been written; the rest of this segment could not be
                // decoded.
                self.bytes = self.file.metadata().map_or(offset, |metadata| metadata.len());
                self.started.remove(&stream);
                Err(self.io_error(source))
            }
        }
    }

    fn io_error(&self, source: io::Error) -> RecorderError {
        RecorderError::Io { path: self.path.clone(), source }
    }

    /// Compacts the file if it is too large or too old. `now_us` is the current time.
    fn trim(&mut self, now_us: i64) -> Result<(), RecorderError> {
        let age_us = i64::try_from(self.limits.age.as_micros()).unwrap_or(i64::MAX);
        let oldest_us = now_us.saturating_sub(age_us);
        // Allow some tolerance, so that a file at its maximum age is not compacted with every
        // frame.
        let is_old = self
            .frames
            .first()
            .is_some_and(|first| first.at_us < oldest_us.saturating_sub(age_us / 8));
        if self.bytes <= self.limits.bytes && !is_old {
            return Ok(());
        }
        let retained = self.frames_to_keep(oldest_us);
        let is_segment = |frame: &&RecordedFrame| frame.kind == FrameKind::Segment;
        let started: BTreeSet<u64> =
            retained.iter().filter(is_segment).map(|frame| frame.stream).collect();
        self.started.retain(|stream| started.contains(stream));
        let mut copy = self.path.clone().into_os_string();
        copy.push(".tmp");
        let copy = PathBuf::from(copy);
        self.copy_to(&copy, retained).map_err(|source| {
            // An incomplete copy is useless, and uses space on a full disk.
            let _ = std::fs::remove_file(&copy);
            self.io_error(source)
        })
    }

    /// Selects the frames to keep: the latest ones that are not older than `oldest_us` and fit into
    /// three quarters of the maximum size, except those whose segment's first frame is dropped.
    fn frames_to_keep(&self, oldest_us: i64) -> Vec<RecordedFrame> {
        let bytes_max = self.limits.bytes / 4 * 3;
        let mut bytes = FILE_HEADER.len() as u64;
        let youngest_first = self.frames.iter().rev();
        let fitting = youngest_first
            .take_while(|frame| {
                bytes += frame.bytes;
                bytes <= bytes_max && frame.at_us >= oldest_us
            })
            .count();
        let mut started = BTreeSet::new();
        let whole = |frame: &&RecordedFrame| match frame.kind {
            FrameKind::Segment => {
                started.insert(frame.stream);
                true
            }
            FrameKind::Next(_) => started.contains(&frame.stream),
            FrameKind::Waits => true,
        };
        self.frames[self.frames.len() - fitting..].iter().filter(whole).copied().collect()
    }

    /// Copies the frames to keep to a new file, which then replaces this one.
    fn copy_to(&mut self, path: &Path, retained: Vec<RecordedFrame>) -> io::Result<()> {
        // Remove the copy that a killed process may have left.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            howdah_files::options().read(true).append(true).create_new(true).open(path)?;
        file.try_lock().map_err(io::Error::from)?;
        file.write_all(&FILE_HEADER)?;
        let mut frames = Vec::with_capacity(retained.len());
        let mut offset = FILE_HEADER.len() as u64;
        let mut bytes = Vec::new();
        for frame in retained {
            bytes.resize(usize::try_from(frame.bytes).unwrap_or(usize::MAX), 0);
            self.file.read_exact_at(&mut bytes, frame.offset)?;
            file.write_all(&bytes)?;
            frames.push(RecordedFrame { offset, ..frame });
            offset += frame.bytes;
        }
        file.sync_all()?;
        std::fs::rename(path, &self.path)?;
        (self.file, self.frames, self.bytes) = (file, frames, offset);
        self.synced_at = Instant::now();
        sync_directory(&self.path)
    }
}

/// Syncs the directory of the file `path`, so that a new or renamed file survives a power failure.
/// Does nothing if the directory is not readable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Opens or creates a file, and locks it exclusively.
fn open_locked(path: &Path) -> Result<File, RecorderError> {
    let io = |source| RecorderError::Io { path: path.to_owned(), source };
    loop {
        let opened = howdah_files::options().read(true).append(true).create(true).open(path);
        let file = opened.map_err(io)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecorderError::Busy { path: path.to_owned() },
            TryLockError::Error(source) => io(source),
        })?;
        // Another process may have renamed a compacted copy to this path before we had the lock.
        let ours = file.metadata().map_err(io)?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
    }
}
