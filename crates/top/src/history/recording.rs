//! Reading a recording.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    History,
    track::{Place, Track},
    wire::{self, HEAD, Head, Kind, PREFIX},
};

/// A recording that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadRecordError {
    /// A file operation failed.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no recording of howdah top, or of a later version of it", path.display())]
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

/// Bytes of a file that are no frames: somebody was killed while writing them, or a disk lost them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// How many bytes.
    pub bytes: u64,
    /// In how many places.
    pub places: u64,
}

/// A recording that was opened.
#[derive(Debug)]
pub struct Recording {
    /// What is in it.
    pub history: History,
    /// What is not.
    pub gap: Gap,
}

/// Streams that are remembered: nobody records more servers than that into one file.
const STREAMS_MAX: usize = 10_000;

/// Places in a file where no frame was found although a marker was. A file with more of them is no recording.
const GAPS_MAX: u64 = 10_000;

impl Recording {
    /// Opens a recording and finds out what is in it. It may be written to meanwhile; what comes later is
    /// not seen.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is something else.
    pub fn open(path: &Path) -> Result<Self, ReadRecordError> {
        let io = |source| ReadRecordError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let mut head = [0; HEAD.len()];
        match file.read_exact_at(&mut head, 0) {
            Ok(()) if head == HEAD => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(io(error)),
            _ => return Err(ReadRecordError::Foreign { path: path.to_owned() }),
        }
        Self::of_file(&Arc::new(file))
            .map_err(io)?
            .ok_or_else(|| ReadRecordError::Empty { path: path.to_owned() })
    }

    fn of_file(file: &Arc<File>) -> io::Result<Option<Self>> {
        let mut streams: BTreeMap<u64, Stream> = BTreeMap::new();
        let mut gap = Gap::default();
        scan(file, |found| match found {
            Found::Gap(bytes) => {
                gap.bytes += bytes;
                gap.places += 1;
            }
            Found::Frame { offset, bytes, head, name } => {
                if streams.len() >= STREAMS_MAX && !streams.contains_key(&head.stream) {
                    return;
                }
                let stream = streams.entry(head.stream).or_default();
                let before = PREFIX as u64 + head.bytes as u64;
                let place = Place {
                    at_us: head.at_us,
                    offset: offset + before,
                    bytes: u32::try_from(bytes - before).unwrap_or(u32::MAX),
                };
                stream.add(file, head.kind, name, place);
            }
        })?;
        let named = streams.into_values().filter_map(|stream| Some((stream.name?, stream.track)));
        let mut tracks: Vec<(String, Track)> =
            named.filter(|(_, track)| track.range().is_some()).collect();
        tracks.sort_by(|one, other| one.0.cmp(&other.0));
        if tracks.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { history: History::of_tracks(tracks)?, gap }))
    }
}

/// One server of a file.
#[derive(Debug, Default)]
struct Stream {
    name: Option<String>,
    track: Track,
    /// The place in its segment that the next frame has to have.
    next: Option<u32>,
    last_us: Option<i64>,
}

impl Stream {
    fn add(&mut self, file: &Arc<File>, kind: Kind, name: Option<&str>, place: Place) {
        let number = match kind {
            Kind::Waits => {
                self.track.push_waits_in_file(file, place);
                return;
            }
            Kind::Segment => 0,
            Kind::Next(number) => number,
        };
        // A frame behind one that is lost does not fit to what is before, nor does one of a clock set back.
        let fits = kind == Kind::Segment || self.next == Some(number);
        if !fits || self.last_us.is_some_and(|last_us| last_us > place.at_us) {
            self.next = None;
            return;
        }
        if let Some(name) = name {
            self.name = Some(howdah_collect::shown_line(name).into_owned());
        }
        self.track.push_in_file(file, kind == Kind::Segment, place);
        self.next = number.checked_add(1);
        self.last_us = Some(place.at_us);
    }
}

/// Something in a file.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// A whole frame.
    Frame {
        /// Where it begins.
        offset: u64,
        /// How long it is, with all that stands in front.
        bytes: u64,
        head: Head,
        name: Option<&'a str>,
    },
    /// So many bytes that are no frame.
    Gap(u64),
}

/// How much is read at a time.
const WINDOW: usize = 1 << 20;

/// Goes through a file and tells what is there.
pub(super) fn scan(file: &File, mut tell: impl FnMut(Found<'_>)) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut window = Window { file, end, from: 0, bytes: Vec::new() };
    let mut offset = HEAD.len() as u64;
    let mut gaps = 0;
    while offset < end {
        let length = match window.at(offset, PREFIX)?.try_into().map(wire::prefix) {
            Ok(Some((length, check))) => {
                let frame = window.at(offset, PREFIX + length)?;
                let body = frame.get(PREFIX..PREFIX + length);
                let body = body.filter(|body| wire::is_whole(body, check));
                match body.map(wire::head) {
                    Some(Ok((head, name))) => {
                        let bytes = (PREFIX + length) as u64;
                        tell(Found::Frame { offset, bytes, head, name });
                        Some(bytes)
                    }
                    // Whole, and of a kind that is not known: a later version's.
                    Some(Err(_)) => Some((PREFIX + length) as u64),
                    None => None,
                }
            }
            _ => None,
        };
        offset += match length {
            Some(bytes) => bytes,
            None => {
                gaps += 1;
                let bytes = if gaps > GAPS_MAX { end - offset } else { window.gap(offset)? };
                tell(Found::Gap(bytes));
                bytes
            }
        };
    }
    Ok(())
}

/// A part of a file in memory.
struct Window<'a> {
    file: &'a File,
    end: u64,
    from: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// The bytes from `offset` on: `count`, or as many as there are.
    fn at(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let there = usize::try_from(self.end - offset).unwrap_or(usize::MAX).min(count);
        let is_here =
            offset >= self.from && offset + there as u64 <= self.from + self.bytes.len() as u64;
        if !is_here {
            let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
            self.bytes.resize(left.min(there.max(WINDOW)), 0);
            self.from = offset;
            self.file.read_exact_at(&mut self.bytes, offset)?;
        }
        let from = usize::try_from(offset - self.from).unwrap_or(usize::MAX);
        Ok(&self.bytes[from..from + there])
    }

    /// How many bytes from `offset` to the next marker, or to the end.
    fn gap(&mut self, offset: u64) -> io::Result<u64> {
        let mut from = offset;
        while from < self.end {
            let bytes = self.at(from, WINDOW)?;
            let looked_at = bytes.len() as u64;
            if let Some(at) = wire::next_marker(bytes) {
                let at = from + at as u64;
                // One that is cut off by the end of the window is looked at again from its first byte.
                return Ok(at - offset);
            }
            from += looked_at;
            // The first byte of a window is not looked at, as it is that of a frame that is none.
            from -= u64::from(from < self.end);
        }
        Ok(self.end - offset)
    }
}
