//! Reads a recording.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    SnapshotHistory,
    file_format::{self, FILE_HEADER, FrameHeader, FrameKind, PREFIX_BYTES},
    server_history::{FrameLocation, ServerHistory},
};

/// The reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenRecordingError {
    /// The file could not be opened or read.
    #[error("cannot read {}", path.display())]
    Io {
        /// Path of the recording.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a recording, or has another format version.
    #[error("{} is not a howdah top recording, or was written by a later version", path.display())]
    Foreign {
        /// Path of the recording.
        path: PathBuf,
    },
    /// The file is a recording, but has no readable samples.
    #[error("{} contains no readable samples", path.display())]
    Empty {
        /// Path of the recording.
        path: PathBuf,
    },
}

/// Bytes of a file that are not valid frames, because a writer was killed or the disk is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingGap {
    /// Total number of bytes without a valid frame.
    pub bytes: u64,
    /// Number of runs of such bytes, each of which ends before a frame marker or at the end of the
    /// file.
    pub runs: u64,
}

/// A recording that was opened for reading.
#[derive(Debug)]
pub struct TopRecording {
    /// Contents of the file, indexed but not yet decoded.
    pub history: SnapshotHistory,
    /// Parts of the file that could not be read.
    pub gap: RecordingGap,
}

/// Maximum number of servers in a recording. Frames of further servers are ignored.
const STREAMS_MAX: usize = 10_000;

/// Maximum number of gaps between valid frames. A file with more gaps is treated as unreadable from
/// there on.
const GAPS_MAX: u64 = 10_000;

impl TopRecording {
    /// Opens a recording and builds its index. Another process may keep writing to the file; its
    /// later frames are not included.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not a recording, or has no readable samples.
    pub fn open(path: &Path) -> Result<Self, OpenRecordingError> {
        let io = |source| OpenRecordingError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let mut head = [0; FILE_HEADER.len()];
        match file.read_exact_at(&mut head, 0) {
            Ok(()) if head == FILE_HEADER => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(io(error)),
            _ => return Err(OpenRecordingError::Foreign { path: path.to_owned() }),
        }
        Self::from_file(&Arc::new(file))
            .map_err(io)?
            .ok_or_else(|| OpenRecordingError::Empty { path: path.to_owned() })
    }

    fn from_file(file: &Arc<File>) -> io::Result<Option<Self>> {
        let mut streams: BTreeMap<u64, ServerStream> = BTreeMap::new();
        let mut gap = RecordingGap::default();
        scan(file, |found| match found {
            ScanItem::Gap(bytes) => {
                gap.bytes += bytes;
                gap.runs += 1;
            }
            ScanItem::Frame { offset, bytes, head, name } => {
                if streams.len() >= STREAMS_MAX && !streams.contains_key(&head.stream) {
                    return;
                }
                let stream = streams.entry(head.stream).or_default();
                let before = PREFIX_BYTES as u64 + head.bytes as u64;
                let location = FrameLocation {
                    at_us: head.at_us,
                    offset: offset + before,
                    bytes: u32::try_from(bytes - before).unwrap_or(u32::MAX),
                };
                stream.add(file, head.kind, name, location);
            }
        })?;
        let named = streams.into_values().filter_map(|stream| Some((stream.name?, stream.track)));
        let mut tracks: Vec<(String, ServerHistory)> =
            named.filter(|(_, track)| track.range().is_some()).collect();
        tracks.sort_by(|one, other| one.0.cmp(&other.0));
        if tracks.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { history: SnapshotHistory::from_servers(tracks)?, gap }))
    }
}

/// Index of one server's frames, built while scanning the file.
#[derive(Debug, Default)]
struct ServerStream {
    name: Option<String>,
    track: ServerHistory,
    /// Expected position of the next frame in its segment.
    next: Option<u32>,
    last_us: Option<i64>,
}

impl ServerStream {
    fn add(
        &mut self,
        file: &Arc<File>,
        kind: FrameKind,
        name: Option<&str>,
        location: FrameLocation,
    ) {
        let number = match kind {
            FrameKind::Waits => {
                self.track.push_recorded_waits(file, location);
                return;
            }
            FrameKind::Segment => 0,
            FrameKind::Next(number) => number,
        };
        // A frame cannot be decoded after a lost one, and is rejected if its time is before the
        // previous one.
        let fits = kind == FrameKind::Segment || self.next == Some(number);
        if !fits || self.last_us.is_some_and(|last_us| last_us > location.at_us) {
            self.next = None;
            return;
        }
        if let Some(name) = name {
            self.name = Some(howdah_collect::sanitized_line(name).into_owned());
        }
        self.track.push_recorded(file, kind == FrameKind::Segment, location);
        self.next = number.checked_add(1);
        self.last_us = Some(location.at_us);
    }
}

/// A frame or a gap that [`scan`] found.
#[derive(Debug)]
pub(super) enum ScanItem<'a> {
    /// A valid frame.
    Frame {
        /// Offset of the frame in the file.
        offset: u64,
        /// Length of the frame in bytes, including its prefix.
        bytes: u64,
        head: FrameHeader,
        name: Option<&'a str>,
    },
    /// Number of bytes without a valid frame.
    Gap(u64),
}

/// Number of bytes that are read from the file at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Passes all frames of known kinds, and all gaps, of a file to `visit`.
pub(super) fn scan(file: &File, mut visit: impl FnMut(ScanItem<'_>)) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut window = FileWindow { file, end, from: 0, bytes: Vec::new() };
    let mut offset = FILE_HEADER.len() as u64;
    let mut gaps = 0;
    while offset < end {
        let length =
            match window.at(offset, PREFIX_BYTES)?.try_into().map(file_format::parse_prefix) {
                Ok(Some((length, check))) => {
                    let frame = window.at(offset, PREFIX_BYTES + length)?;
                    let body = frame.get(PREFIX_BYTES..PREFIX_BYTES + length);
                    let body = body.filter(|body| file_format::checksum_matches(body, check));
                    match body.map(file_format::parse_header) {
                        Some(Ok((head, name))) => {
                            let bytes = (PREFIX_BYTES + length) as u64;
                            visit(ScanItem::Frame { offset, bytes, head, name });
                            Some(bytes)
                        }
                        // Valid, but of a kind added by a later version.
                        Some(Err(_)) => Some((PREFIX_BYTES + length) as u64),
                        None => None,
                    }
                }
                _ => None,
            };
        offset += match length {
            Some(bytes) => bytes,
            None => {
                gaps += 1;
                let bytes = if gaps > GAPS_MAX {
                    end - offset
                } else {
                    window.bytes_to_next_marker(offset)?
                };
                visit(ScanItem::Gap(bytes));
                bytes
            }
        };
    }
    Ok(())
}

/// A part of a file that is held in a buffer.
struct FileWindow<'a> {
    file: &'a File,
    end: u64,
    from: u64,
    bytes: Vec<u8>,
}

impl FileWindow<'_> {
    /// Returns `count` bytes from `offset` on, or fewer at the end of the file.
    fn at(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let there = usize::try_from(self.end - offset).unwrap_or(usize::MAX).min(count);
        let is_here =
            offset >= self.from && offset + there as u64 <= self.from + self.bytes.len() as u64;
        if !is_here {
            let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
            self.bytes.resize(left.min(there.max(WINDOW_BYTES)), 0);
            self.from = offset;
            self.file.read_exact_at(&mut self.bytes, offset)?;
        }
        let from = usize::try_from(offset - self.from).unwrap_or(usize::MAX);
        Ok(&self.bytes[from..from + there])
    }

    /// Returns the number of bytes from `offset` to the next marker, or to the end of the file.
    fn bytes_to_next_marker(&mut self, offset: u64) -> io::Result<u64> {
        let mut from = offset;
        while from < self.end {
            let bytes = self.at(from, WINDOW_BYTES)?;
            let looked_at = bytes.len() as u64;
            if let Some(at) = file_format::next_marker(bytes) {
                let at = from + at as u64;
                // A marker may be cut off by the end of the window, so the next window starts with
                // it.
                return Ok(at - offset);
            }
            from += looked_at;
            // The search skips the first byte, so step back by one to check it in the next window.
            from -= u64::from(from < self.end);
        }
        Ok(self.end - offset)
    }
}
