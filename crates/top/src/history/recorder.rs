//! Writing a recording: appending to it, and making it smaller when it is too large or too old.

use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Limits,
    recording::{Found, scan},
    track::Frame,
    wire::{self, HEAD, Kind},
};
use crate::waits::WaitSecond;

/// A recording that cannot be written.
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
    #[error("{} is no recording of howdah top, and not empty: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Another program records to it.
    #[error("{} is being written by another howdah top: name another file", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// What was read cannot be packed.
    #[error("what was read cannot be packed")]
    Pack(#[source] io::Error),
}

/// How long what was written may be in the operating system's memory only. It goes to the disk with the frame that
/// finds it older, so readings of a slow disk's machine are late once in that time and not each time.
const SYNC_AFTER: Duration = Duration::from_secs(10);

/// A file that a history is appended to, frame by frame: after a kill, all but the last is there; after a power cut,
/// all but those of the last ten seconds and of the reading that they end with.
///
/// One program writes it at a time. When it is larger than it may be, or when its oldest segment is older,
/// what is to be kept is copied to `FILE.tmp`, which then takes its name: three quarters of the bytes that
/// it may have, so that this is seldom done.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: File,
    limits: Limits,
    /// Where it ends.
    bytes: u64,
    frames: Vec<Mark>,
    /// Servers whose segment was begun by us. Frames behind somebody else's would not fit to it.
    begun: BTreeSet<u64>,
    /// When all that was written was on the disk.
    synced: Instant,
    is_finished: bool,
}

/// A frame of the file.
#[derive(Clone, Copy, Debug)]
struct Mark {
    offset: u64,
    bytes: u64,
    stream: u64,
    at_us: i64,
    kind: Kind,
}

impl Recorder {
    /// Opens a recording at its end, or begins one.
    ///
    /// # Errors
    ///
    /// It cannot be opened, belongs to somebody else, or is something else.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, RecordError> {
        let io = |source| RecordError::Io { path: path.to_owned(), source };
        let mut file = lock(path)?;
        let mut frames = Vec::new();
        let mut head = Vec::new();
        (&file).take(HEAD.len() as u64).read_to_end(&mut head).map_err(io)?;
        if head.len() < HEAD.len() && HEAD.starts_with(&head) {
            // Nothing yet, or killed within its first bytes.
            file.set_len(0).map_err(io)?;
            file.write_all(&HEAD).map_err(io)?;
            sync_name(path).map_err(io)?;
        } else if head == HEAD {
            scan(&file, |found| {
                if let Found::Frame { offset, bytes, head, .. } = found {
                    let (stream, at_us, kind) = (head.stream, head.at_us, head.kind);
                    frames.push(Mark { offset, bytes, stream, at_us, kind });
                }
            })
            .map_err(io)?;
        } else {
            return Err(RecordError::Foreign { path: path.to_owned() });
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(io)?;
        let begun = BTreeSet::new();
        let synced = Instant::now();
        let path = path.to_owned();
        Ok(Self { path, file, limits, bytes, frames, begun, synced, is_finished: false })
    }

    /// Has all that was written on the disk, and takes nothing more: what comes from threads that were not told yet
    /// that it is over is dropped.
    pub(super) fn finish(&mut self) -> Result<(), RecordError> {
        self.is_finished = true;
        self.sync()
    }

    fn sync(&mut self) -> Result<(), RecordError> {
        self.synced = Instant::now();
        match self.file.sync_data() {
            // A pipe or a device, which have nothing to flush.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => {
                // Which frames the disk has lost is not known, so none may stand on those.
                self.begun.clear();
                Err(self.io(source))
            }
            Ok(()) => Ok(()),
        }
    }

    /// From now on its file takes nothing, as one on a full disk.
    #[cfg(test)]
    pub(super) fn break_for_test(&mut self) {
        self.file = File::options().read(true).write(true).open("/dev/full").expect("there is one");
    }

    /// Appends a frame of a server.
    pub(super) fn frame(&mut self, name: &str, frame: &Frame) -> Result<(), RecordError> {
        let stream = wire::stream_of(name);
        let kind = match frame.number {
            0 => Kind::Segment,
            number => Kind::Next(number),
        };
        if kind == Kind::Segment && !self.is_finished {
            self.trim(frame.at_us)?;
            self.begun.insert(stream);
        }
        if self.is_finished || !self.begun.contains(&stream) {
            return Ok(());
        }
        self.append(&wire::frame(name, frame), stream, frame.at_us, kind)
    }

    /// Appends seconds of waits of a server.
    pub(super) fn waits(
        &mut self,
        name: &str,
        at_us: i64,
        seconds: &[WaitSecond],
    ) -> Result<(), RecordError> {
        if self.is_finished || seconds.is_empty() {
            return Ok(());
        }
        let bytes = wire::waits(name, at_us, seconds);
        self.append(&bytes, wire::stream_of(name), at_us, Kind::Waits)
    }

    fn append(
        &mut self,
        bytes: &[u8],
        stream: u64,
        at_us: i64,
        kind: Kind,
    ) -> Result<(), RecordError> {
        let written = self.file.write_all(bytes);
        let offset = self.bytes;
        let written = written.and_then(|()| self.file.seek(SeekFrom::End(0)));
        match written {
            Ok(end) => {
                self.bytes = end;
                let bytes = bytes.len() as u64;
                self.frames.push(Mark {
                    offset: end.saturating_sub(bytes),
                    bytes,
                    stream,
                    at_us,
                    kind,
                });
                if self.synced.elapsed() >= SYNC_AFTER { self.sync() } else { Ok(()) }
            }
            Err(source) => {
                // Half a frame may be there; what follows it in this segment would not fit.
                self.bytes = self.file.metadata().map_or(offset, |metadata| metadata.len());
                self.begun.remove(&stream);
                Err(self.io(source))
            }
        }
    }

    fn io(&self, source: io::Error) -> RecordError {
        RecordError::Io { path: self.path.clone(), source }
    }

    /// Makes it smaller, if it is too large or too old. `now_us`: the present.
    fn trim(&mut self, now_us: i64) -> Result<(), RecordError> {
        let age_us = i64::try_from(self.limits.age.as_micros()).unwrap_or(i64::MAX);
        let oldest_us = now_us.saturating_sub(age_us);
        // A little more than it may be, so that a file of a steady age is not copied all the time.
        let is_old = self
            .frames
            .first()
            .is_some_and(|first| first.at_us < oldest_us.saturating_sub(age_us / 8));
        if self.bytes <= self.limits.bytes && !is_old {
            return Ok(());
        }
        let kept = self.kept(oldest_us);
        let is_begun = |mark: &&Mark| mark.kind == Kind::Segment;
        let begun: BTreeSet<u64> = kept.iter().filter(is_begun).map(|mark| mark.stream).collect();
        self.begun.retain(|stream| begun.contains(stream));
        let mut copy = self.path.clone().into_os_string();
        copy.push(".tmp");
        let copy = PathBuf::from(copy);
        self.copy_to(&copy, kept).map_err(|source| {
            // A part of a copy is of no use, and on a full disk it takes what room there is.
            let _ = std::fs::remove_file(&copy);
            self.io(source)
        })
    }

    /// What is to be kept: of each server whole segments, the youngest, and waits as old as they.
    fn kept(&self, oldest_us: i64) -> Vec<Mark> {
        let bytes_max = self.limits.bytes / 4 * 3;
        let mut bytes = HEAD.len() as u64;
        let youngest_first = self.frames.iter().rev();
        let fitting = youngest_first
            .take_while(|mark| {
                bytes += mark.bytes;
                bytes <= bytes_max && mark.at_us >= oldest_us
            })
            .count();
        let mut begun = BTreeSet::new();
        let whole = |mark: &&Mark| match mark.kind {
            Kind::Segment => {
                begun.insert(mark.stream);
                true
            }
            Kind::Next(_) => begun.contains(&mark.stream),
            Kind::Waits => true,
        };
        self.frames[self.frames.len() - fitting..].iter().filter(whole).copied().collect()
    }

    /// Copies what is to be kept to a new file, which takes the name of this one.
    fn copy_to(&mut self, path: &Path, kept: Vec<Mark>) -> io::Result<()> {
        // What another that was killed left behind is in nobody's way.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            howdah_files::options().read(true).append(true).create_new(true).open(path)?;
        file.try_lock().map_err(io::Error::from)?;
        file.write_all(&HEAD)?;
        let mut frames = Vec::with_capacity(kept.len());
        let mut offset = HEAD.len() as u64;
        let mut bytes = Vec::new();
        for mark in kept {
            bytes.resize(usize::try_from(mark.bytes).unwrap_or(usize::MAX), 0);
            self.file.read_exact_at(&mut bytes, mark.offset)?;
            file.write_all(&bytes)?;
            frames.push(Mark { offset, ..mark });
            offset += mark.bytes;
        }
        file.sync_all()?;
        std::fs::rename(path, &self.path)?;
        (self.file, self.frames, self.bytes) = (file, frames, offset);
        self.synced = Instant::now();
        sync_name(&self.path)
    }
}

/// Has a file's name on the disk, not only its bytes, where its folder may be read.
fn sync_name(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Opens a file for ourselves alone.
fn lock(path: &Path) -> Result<File, RecordError> {
    let io = |source| RecordError::Io { path: path.to_owned(), source };
    loop {
        let opened = howdah_files::options().read(true).append(true).create(true).open(path);
        let file = opened.map_err(io)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecordError::Busy { path: path.to_owned() },
            TryLockError::Error(source) => io(source),
        })?;
        // Another may have put a smaller copy in its place before we had the lock.
        let ours = file.metadata().map_err(io)?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
    }
}
