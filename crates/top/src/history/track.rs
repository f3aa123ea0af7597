//! One server's history: segments, each of frames that can be read from its first on.

use std::{
    collections::VecDeque, fs::File, io, os::unix::fs::FileExt as _, sync::Arc, time::Duration,
};

use howdah_collect::RateView;

use super::{
    bytes::Damage,
    frame::{FrameReader, FrameWriter},
    pack::{Packer, Unpacker},
    wire,
};
use crate::{
    Snapshot, Standing,
    waits::{SECONDS_MAX, WaitHistory},
};

/// A segment ends with that many frames, rows or bytes of them unpacked, whichever comes first: so that a
/// step back, which reads a segment from its beginning, is done before a person notices.
const FRAMES_MAX: usize = 120;
const ROWS_MAX: usize = 50_000;
const BYTES_MAX: usize = 4 << 20;

/// A view that was read longer ago than that is not shown for a moment.
const VIEW_AGE_MAX_US: i64 = 300_000_000;

/// Makes frames of standings.
#[derive(Debug)]
pub(super) struct FrameEncoder {
    writer: FrameWriter,
    packer: Packer,
    frames: usize,
    bytes: usize,
}

/// A frame as it is kept and sent to files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// By our clock, in microseconds since 1970.
    pub(super) at_us: i64,
    /// Its place in its segment.
    pub(super) number: u32,
    pub(super) packed: Vec<u8>,
}

impl FrameEncoder {
    pub(super) fn new() -> io::Result<Self> {
        let packer = Packer::new()?;
        Ok(Self { writer: FrameWriter::default(), packer, frames: 0, bytes: 0 })
    }

    pub(super) fn cut(&mut self, at_us: i64, standing: &Standing) -> io::Result<Frame> {
        let is_full =
            self.frames >= FRAMES_MAX || self.writer.rows >= ROWS_MAX || self.bytes >= BYTES_MAX;
        if is_full {
            self.writer.restart();
            self.packer.restart()?;
            (self.frames, self.bytes) = (0, 0);
        }
        let bytes = self.writer.write(at_us, standing);
        let number = u32::try_from(self.frames).unwrap_or(u32::MAX);
        self.frames += 1;
        self.bytes += bytes.len();
        Ok(Frame { at_us, number, packed: self.packer.pack(&bytes)? })
    }
}

/// Where the frames of a segment are.
#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File(Arc<File>),
}

/// Frames that stand on each other.
#[derive(Debug)]
struct Segment {
    source: Source,
    places: Vec<Place>,
}

/// Where a frame is in its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) at_us: i64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Segment {
    fn last_us(&self) -> i64 {
        self.places.last().map_or(i64::MIN, |place| place.at_us)
    }

    /// What it holds in memory.
    fn held_bytes(&self) -> usize {
        let packed = match &self.source {
            Source::Memory(bytes) => bytes.capacity(),
            Source::File(_) => 0,
        };
        packed + self.places.capacity() * size_of::<Place>() + size_of::<Self>()
    }

    fn packed(&self, place: Place) -> Result<Vec<u8>, Damage> {
        let bytes = place.bytes as usize;
        match &self.source {
            Source::Memory(all) => {
                let from = usize::try_from(place.offset).map_err(|_| Damage::Reference)?;
                let to = from.checked_add(bytes).ok_or(Damage::Reference)?;
                all.get(from..to).map(<[u8]>::to_vec).ok_or(Damage::Ended)
            }
            Source::File(file) => {
                let mut packed = vec![0; bytes];
                file.read_exact_at(&mut packed, place.offset).map_err(|_| Damage::Ended)?;
                Ok(packed)
            }
        }
    }

    /// Reads it up to the last frame that is not behind `until_us`, and tells each.
    fn play(
        &self,
        until_us: i64,
        mut tell: impl FnMut(i64, Standing, Vec<RateView>),
    ) -> Result<(), Damage> {
        let mut unpacker = Unpacker::new()?;
        let mut reader = FrameReader::default();
        for place in self.places.iter().take_while(|place| place.at_us <= until_us) {
            let frame = unpacker.unpack(&self.packed(*place)?)?;
            let (standing, views) = reader.read(place.at_us, &frame)?;
            tell(place.at_us, standing, views);
        }
        Ok(())
    }
}

/// The time that [`SECONDS_MAX`] seconds are.
const HOUR_US: i64 = SECONDS_MAX.cast_signed() as i64 * 1_000_000;

/// How it stood with a server at a moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// When that was read, by our clock, in microseconds since 1970.
    pub at_us: i64,
    /// How it stood.
    pub standing: Standing,
}

/// The history of one server.
#[derive(Debug, Default)]
pub(super) struct Track {
    segments: VecDeque<Segment>,
    bytes: usize,
    /// What sessions waited for, of a history in memory.
    pub(super) waits: WaitHistory,
    /// The same of one in a file: there it may be as long as the file.
    waits_in_file: Option<WaitsInFile>,
}

/// Where a file has the seconds of waits, in the order of time.
#[derive(Debug)]
struct WaitsInFile {
    file: Arc<File>,
    places: Vec<Place>,
}

impl WaitsInFile {
    /// Adds to `waits` what the places from `from` on have, up to `until_us`; gives the place behind.
    fn add(&self, waits: &mut WaitHistory, from: usize, until_us: i64) -> usize {
        let mut at = from;
        while let Some(place) = self.places.get(at).filter(|place| place.at_us <= until_us) {
            let mut bytes = vec![0; place.bytes as usize];
            let read = self.file.read_exact_at(&mut bytes, place.offset);
            // Seconds that cannot be read are as if they had not been sampled.
            let seconds = read.ok().and_then(|()| wire::seconds(&bytes).ok()).unwrap_or_default();
            seconds.into_iter().for_each(|second| waits.push(second));
            at += 1;
        }
        at
    }

    /// What is known of waits at `at_us`.
    fn until(&self, at_us: i64) -> WaitHistory {
        let mut waits = WaitHistory::default();
        let oldest_us = at_us.saturating_sub(HOUR_US);
        let from = self.places.partition_point(|place| place.at_us < oldest_us);
        self.add(&mut waits, from, at_us);
        waits
    }
}

impl Track {
    /// Adds a frame that was just cut.
    pub(super) fn push(&mut self, frame: &Frame) {
        if frame.number == 0 || self.segments.is_empty() {
            self.shrink_last();
            self.segments
                .push_back(Segment { source: Source::Memory(Vec::new()), places: Vec::new() });
        }
        let Some(last) = self.segments.back_mut() else { return };
        let before = last.held_bytes();
        if let Source::Memory(bytes) = &mut last.source {
            let offset = bytes.len() as u64;
            bytes.extend_from_slice(&frame.packed);
            let bytes = u32::try_from(frame.packed.len()).unwrap_or(u32::MAX);
            last.places.push(Place { at_us: frame.at_us, offset, bytes });
        }
        self.bytes += last.held_bytes() - before;
    }

    /// Gives back what a segment reserved and did not need.
    fn shrink_last(&mut self) {
        let Some(last) = self.segments.back_mut() else { return };
        let before = last.held_bytes();
        if let Source::Memory(bytes) = &mut last.source {
            bytes.shrink_to_fit();
        }
        last.places.shrink_to_fit();
        self.bytes -= before - last.held_bytes();
    }

    /// Adds a frame that is in a file.
    pub(super) fn push_in_file(&mut self, file: &Arc<File>, is_first: bool, place: Place) {
        if is_first {
            let source = Source::File(Arc::clone(file));
            self.segments.push_back(Segment { source, places: Vec::new() });
        }
        if let Some(last) = self.segments.back_mut() {
            last.places.push(place);
        }
    }

    /// Adds seconds of waits that are in a file.
    pub(super) fn push_waits_in_file(&mut self, file: &Arc<File>, place: Place) {
        let waits = self
            .waits_in_file
            .get_or_insert_with(|| WaitsInFile { file: Arc::clone(file), places: Vec::new() });
        if waits.places.last().is_none_or(|last| last.at_us <= place.at_us) {
            waits.places.push(place);
        }
    }

    fn waits_until(&self, at_us: i64) -> Arc<WaitHistory> {
        Arc::new(match &self.waits_in_file {
            Some(in_file) => in_file.until(at_us),
            None => self.waits.until(at_us),
        })
    }

    /// Drops whole segments from the oldest on, until it is no older and no larger than that; but never the
    /// one that is being written.
    pub(super) fn trim(&mut self, now_us: i64, age: Duration, bytes_max: usize) {
        let oldest_us = now_us.saturating_sub(age.as_micros().try_into().unwrap_or(i64::MAX));
        while self.segments.len() > 1 {
            let Some(first) = self.segments.front() else { return };
            if self.bytes <= bytes_max && first.last_us() >= oldest_us {
                return;
            }
            self.bytes = self.bytes.saturating_sub(first.held_bytes());
            self.segments.pop_front();
        }
    }

    /// Bytes of memory that it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes
    }

    fn places(&self) -> impl DoubleEndedIterator<Item = &Place> {
        self.segments.iter().flat_map(|segment| &segment.places)
    }

    /// Its first and its last moment.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        Some((self.places().next()?.at_us, self.places().next_back()?.at_us))
    }

    /// The moment that is so many readings behind `from_us`, or before it; the first or the last if there
    /// are not so many.
    pub(super) fn step(&self, from_us: i64, by: isize) -> Option<i64> {
        let moments: Vec<i64> = self.places().map(|place| place.at_us).collect();
        let last = moments.len().checked_sub(1)?;
        let at = moments.partition_point(|moment| *moment <= from_us);
        // Of a moment between two readings the earlier one is shown.
        let at = at.saturating_sub(1).saturating_add_signed(by).min(last);
        Some(moments[at])
    }

    /// How it stood at `at_us`; with a view, if that was read not too long before.
    pub(super) fn look(&self, at_us: i64, view: Option<&str>) -> Result<Option<Look>, Damage> {
        let is_begun =
            |segment: &Segment| segment.places.first().is_some_and(|place| place.at_us <= at_us);
        let Some(at) = self.segments.iter().rposition(is_begun) else { return Ok(None) };
        let (mut look, mut rated) = (None, None);
        self.segments[at].play(at_us, |moment_us, standing, views| {
            take_view(&mut rated, views, view);
            look = Some(Look { at_us: moment_us, standing });
        })?;
        let Some(Look { at_us: moment_us, standing: Standing::Read(snapshot) }) = look else {
            return Ok(look);
        };
        let oldest_us = moment_us.saturating_sub(VIEW_AGE_MAX_US);
        for segment in self.segments.range(..at).rev() {
            if rated.is_some() || view.is_none() || segment.last_us() < oldest_us {
                break;
            }
            // A segment before that is damaged has no views to give.
            let _ = segment.play(i64::MAX, |_, _, views| take_view(&mut rated, views, view));
        }
        let waits = self.waits_until(moment_us);
        let snapshot = Snapshot { view: rated, waits, ..Snapshot::clone(&snapshot) };
        Ok(Some(Look { at_us: moment_us, standing: Standing::Read(Arc::new(snapshot)) }))
    }

    /// Tells all that it has, in order; each snapshot with the view of that name, if it was read then. Stops
    /// when `tell` says so.
    pub(super) fn play(
        &self,
        view: Option<&str>,
        mut tell: impl FnMut(i64, Standing) -> bool,
    ) -> Result<(), Damage> {
        let mut goes_on = true;
        // What a file has of waits is read along, each second once.
        let (mut waits, mut waits_at) = (WaitHistory::default(), 0);
        for segment in &self.segments {
            segment.play(i64::MAX, |at_us, standing, views| {
                if !goes_on {
                    return;
                }
                let mut rated = None;
                take_view(&mut rated, views, view);
                let standing = match standing {
                    Standing::Read(snapshot) => {
                        let waits = match &self.waits_in_file {
                            Some(in_file) => {
                                waits_at = in_file.add(&mut waits, waits_at, at_us);
                                Arc::new(waits.clone())
                            }
                            None => self.waits_until(at_us),
                        };
                        let snapshot =
                            Snapshot { view: rated, waits, ..Snapshot::clone(&snapshot) };
                        Standing::Read(Arc::new(snapshot))
                    }
                    other => other,
                };
                goes_on = tell(at_us, standing);
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

fn take_view(rated: &mut Option<RateView>, views: Vec<RateView>, wanted: Option<&str>) {
    let is_wanted = |rated: &RateView| Some(rated.reading.view.name) == wanted;
    if let Some(found) = views.into_iter().find(is_wanted) {
        *rated = Some(found);
    }
}
