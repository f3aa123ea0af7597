//! One server's history: segments of frames, each decoded from its first frame.

use std::{
    collections::VecDeque, fs::File, io, os::unix::fs::FileExt as _, sync::Arc, time::Duration,
};

use howdah_collect::RateView;

use super::{
    compression::{FramePacker, FrameUnpacker},
    error::CorruptFrame,
    file_format,
    frame::{FrameReader, FrameWriter},
};
use crate::{
    ServerHealth, ServerSnapshot,
    waits::{SECONDS_MAX, WaitHistory},
};

/// Numbers of frames, rows and decompressed bytes after which a new segment starts. They limit the
/// time to restore a moment, because a segment is decoded from its start.
const SEGMENT_FRAMES_MAX: usize = 120;
const SEGMENT_ROWS_MAX: usize = 50_000;
const SEGMENT_BYTES_MAX: usize = 4 << 20;

/// Age, in microseconds, from which earlier segments are no longer searched for a view sample to
/// show with a past state.
const VIEW_AGE_MAX_US: i64 = 300_000_000;

/// Encodes and compresses frames.
#[derive(Debug)]
pub(super) struct FrameEncoder {
    writer: FrameWriter,
    packer: FramePacker,
    frames: usize,
    bytes: usize,
}

/// A compressed frame, as stored in memory and files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackedFrame {
    /// Time by our clock, in microseconds since 1970.
    pub(super) at_us: i64,
    /// Position in the segment, from 0.
    pub(super) number: u32,
    pub(super) packed: Vec<u8>,
}

impl FrameEncoder {
    pub(super) fn new() -> io::Result<Self> {
        let packer = FramePacker::new()?;
        Ok(Self { writer: FrameWriter::default(), packer, frames: 0, bytes: 0 })
    }

    pub(super) fn encode(&mut self, at_us: i64, health: &ServerHealth) -> io::Result<PackedFrame> {
        let is_full = self.frames >= SEGMENT_FRAMES_MAX
            || self.writer.rows >= SEGMENT_ROWS_MAX
            || self.bytes >= SEGMENT_BYTES_MAX;
        if is_full {
            self.writer.restart();
            self.packer.restart()?;
            (self.frames, self.bytes) = (0, 0);
        }
        let bytes = self.writer.write(at_us, health);
        let number = u32::try_from(self.frames).unwrap_or(u32::MAX);
        self.frames += 1;
        self.bytes += bytes.len();
        Ok(PackedFrame { at_us, number, packed: self.packer.pack(&bytes)? })
    }
}

/// Location of a segment's frames: in memory or in a file.
#[derive(Debug)]
enum SegmentSource {
    Memory(Vec<u8>),
    File(Arc<File>),
}

/// A sequence of frames, each of which depends on the previous ones.
#[derive(Debug)]
struct FrameSegment {
    source: SegmentSource,
    frames: Vec<FrameLocation>,
}

/// Location of a frame in its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLocation {
    pub(super) at_us: i64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl FrameSegment {
    fn last_us(&self) -> i64 {
        self.frames.last().map_or(i64::MIN, |location| location.at_us)
    }

    /// Returns the number of bytes of memory used by the index of frames, and by the frames
    /// themselves unless they are in a file.
    fn memory_bytes(&self) -> usize {
        let packed = match &self.source {
            SegmentSource::Memory(bytes) => bytes.capacity(),
            SegmentSource::File(_) => 0,
        };
        packed + self.frames.capacity() * size_of::<FrameLocation>() + size_of::<Self>()
    }

    fn packed(&self, location: FrameLocation) -> Result<Vec<u8>, CorruptFrame> {
        let bytes = location.bytes as usize;
        match &self.source {
            SegmentSource::Memory(all) => {
                let from = usize::try_from(location.offset).map_err(|_| CorruptFrame::Reference)?;
                let to = from.checked_add(bytes).ok_or(CorruptFrame::Reference)?;
                all.get(from..to).map(<[u8]>::to_vec).ok_or(CorruptFrame::Truncated)
            }
            SegmentSource::File(file) => {
                let mut packed = vec![0; bytes];
                file.read_exact_at(&mut packed, location.offset)
                    .map_err(|_| CorruptFrame::Truncated)?;
                Ok(packed)
            }
        }
    }

    /// Decodes frames up to the last one not after `until_us`, and passes each to `visit`.
    fn play(
        &self,
        until_us: i64,
        mut visit: impl FnMut(i64, ServerHealth, Vec<RateView>),
    ) -> Result<(), CorruptFrame> {
        let mut unpacker = FrameUnpacker::new()?;
        let mut reader = FrameReader::default();
        for location in self.frames.iter().take_while(|location| location.at_us <= until_us) {
            let frame = unpacker.unpack(&self.packed(*location)?)?;
            let (health, views) = reader.read(location.at_us, &frame)?;
            visit(location.at_us, health, views);
        }
        Ok(())
    }
}

/// [`SECONDS_MAX`] seconds in microseconds.
const HOUR_US: i64 = SECONDS_MAX.cast_signed() as i64 * 1_000_000;

/// State of a server at a moment in the past.
#[derive(Clone, Debug)]
pub struct PastState {
    /// Time at which the state was recorded, by our clock, in microseconds since 1970.
    pub at_us: i64,
    /// The server's state, as its sampler reported it.
    pub health: ServerHealth,
}

/// Segments of frames and wait events of one server.
#[derive(Debug, Default)]
pub(super) struct ServerHistory {
    segments: VecDeque<FrameSegment>,
    bytes: usize,
    /// Wait events of a history in memory.
    pub(super) waits: WaitHistory,
    /// Wait events of a history in a file, which may span more than an hour.
    recorded_waits: Option<RecordedWaits>,
}

/// Index of wait events in a file, in time order.
#[derive(Debug)]
struct RecordedWaits {
    file: Arc<File>,
    frames: Vec<FrameLocation>,
}

impl RecordedWaits {
    /// Adds the entries from index `from` up to `until_us` to `waits`; returns the index after the
    /// last.
    fn add(&self, waits: &mut WaitHistory, from: usize, until_us: i64) -> usize {
        let mut at = from;
        while let Some(location) = self.frames.get(at).filter(|location| location.at_us <= until_us)
        {
            let mut bytes = vec![0; location.bytes as usize];
            let read = self.file.read_exact_at(&mut bytes, location.offset);
            // Unreadable seconds are treated as not sampled.
            let seconds =
                read.ok().and_then(|()| file_format::parse_waits(&bytes).ok()).unwrap_or_default();
            seconds.into_iter().for_each(|second| waits.push(second));
            at += 1;
        }
        at
    }

    /// Returns the last hour of wait events before `at_us`.
    fn until(&self, at_us: i64) -> WaitHistory {
        let mut waits = WaitHistory::default();
        let oldest_us = at_us.saturating_sub(HOUR_US);
        let from = self.frames.partition_point(|location| location.at_us < oldest_us);
        self.add(&mut waits, from, at_us);
        waits
    }
}

impl ServerHistory {
    /// Adds a frame to the history in memory.
    pub(super) fn push(&mut self, frame: &PackedFrame) {
        if frame.number == 0 || self.segments.is_empty() {
            self.shrink_last();
            self.segments.push_back(FrameSegment {
                source: SegmentSource::Memory(Vec::new()),
                frames: Vec::new(),
            });
        }
        let Some(last) = self.segments.back_mut() else { return };
        let before = last.memory_bytes();
        if let SegmentSource::Memory(bytes) = &mut last.source {
            let offset = bytes.len() as u64;
            bytes.extend_from_slice(&frame.packed);
            let bytes = u32::try_from(frame.packed.len()).unwrap_or(u32::MAX);
            last.frames.push(FrameLocation { at_us: frame.at_us, offset, bytes });
        }
        self.bytes += last.memory_bytes() - before;
    }

    /// Releases memory that the last segment reserved but did not need.
    fn shrink_last(&mut self) {
        let Some(last) = self.segments.back_mut() else { return };
        let before = last.memory_bytes();
        if let SegmentSource::Memory(bytes) = &mut last.source {
            bytes.shrink_to_fit();
        }
        last.frames.shrink_to_fit();
        self.bytes -= before - last.memory_bytes();
    }

    /// Adds a frame stored in a file.
    pub(super) fn push_recorded(
        &mut self,
        file: &Arc<File>,
        is_first: bool,
        location: FrameLocation,
    ) {
        if is_first {
            let source = SegmentSource::File(Arc::clone(file));
            self.segments.push_back(FrameSegment { source, frames: Vec::new() });
        }
        if let Some(last) = self.segments.back_mut() {
            last.frames.push(location);
        }
    }

    /// Adds wait events stored in a file.
    pub(super) fn push_recorded_waits(&mut self, file: &Arc<File>, location: FrameLocation) {
        let waits = self
            .recorded_waits
            .get_or_insert_with(|| RecordedWaits { file: Arc::clone(file), frames: Vec::new() });
        if waits.frames.last().is_none_or(|last| last.at_us <= location.at_us) {
            waits.frames.push(location);
        }
    }

    fn waits_until(&self, at_us: i64) -> Arc<WaitHistory> {
        Arc::new(match &self.recorded_waits {
            Some(in_file) => in_file.until(at_us),
            None => self.waits.until(at_us),
        })
    }

    /// Drops the oldest segments until the limits are met, except for the one being written.
    pub(super) fn trim(&mut self, now_us: i64, age: Duration, bytes_max: usize) {
        let oldest_us = now_us.saturating_sub(age.as_micros().try_into().unwrap_or(i64::MAX));
        while self.segments.len() > 1 {
            let Some(first) = self.segments.front() else { return };
            if self.bytes <= bytes_max && first.last_us() >= oldest_us {
                return;
            }
            self.bytes = self.bytes.saturating_sub(first.memory_bytes());
            self.segments.pop_front();
        }
    }

    /// Returns the number of bytes of memory used by frames and their index. Frames in a file and
    /// their index are not counted.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn frames(&self) -> impl DoubleEndedIterator<Item = &FrameLocation> {
        self.segments.iter().flat_map(|segment| &segment.frames)
    }

    /// Returns the times of the first and last frame, in microseconds since 1970.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        Some((self.frames().next()?.at_us, self.frames().next_back()?.at_us))
    }

    /// Returns the time of the frame `by` frames after `from_us`, or before it if `by` is negative;
    /// clamped to the first and last frame.
    pub(super) fn step(&self, from_us: i64, by: isize) -> Option<i64> {
        let moments: Vec<i64> = self.frames().map(|location| location.at_us).collect();
        let last = moments.len().checked_sub(1)?;
        let at = moments.partition_point(|moment| *moment <= from_us);
        // Between two frames the earlier one is shown.
        let at = at.saturating_sub(1).saturating_add_signed(by).min(last);
        Some(moments[at])
    }

    /// Returns the state at `at_us`, with the named view unless its last sample is too old; `None`
    /// if the history starts later.
    pub(super) fn at(
        &self,
        at_us: i64,
        view: Option<&str>,
    ) -> Result<Option<PastState>, CorruptFrame> {
        let is_begun = |segment: &FrameSegment| {
            segment.frames.first().is_some_and(|location| location.at_us <= at_us)
        };
        let Some(at) = self.segments.iter().rposition(is_begun) else { return Ok(None) };
        let (mut look, mut rate_view) = (None, None);
        self.segments[at].play(at_us, |moment_us, health, views| {
            select_view(&mut rate_view, views, view);
            look = Some(PastState { at_us: moment_us, health });
        })?;
        let Some(PastState { at_us: moment_us, health: ServerHealth::Read(snapshot) }) = look
        else {
            return Ok(look);
        };
        let oldest_us = moment_us.saturating_sub(VIEW_AGE_MAX_US);
        for segment in self.segments.range(..at).rev() {
            if rate_view.is_some() || view.is_none() || segment.last_us() < oldest_us {
                break;
            }
            // A corrupt earlier segment only means that the view is missing.
            let _ = segment.play(i64::MAX, |_, _, views| select_view(&mut rate_view, views, view));
        }
        let waits = self.waits_until(moment_us);
        let snapshot =
            ServerSnapshot { view: rate_view, waits, ..ServerSnapshot::clone(&snapshot) };
        Ok(Some(PastState { at_us: moment_us, health: ServerHealth::Read(Arc::new(snapshot)) }))
    }

    /// Passes the states of a period, both ends inclusive, to `visit`, in order and without views
    /// and waits.
    pub(super) fn play_between(
        &self,
        (from_us, until_us): (i64, i64),
        mut visit: impl FnMut(ServerHealth),
    ) -> Result<(), CorruptFrame> {
        for segment in &self.segments {
            let starts_later =
                segment.frames.first().is_none_or(|location| location.at_us > until_us);
            if starts_later || segment.last_us() < from_us {
                continue;
            }
            segment.play(until_us, |at_us, health, _| {
                if at_us >= from_us {
                    visit(health);
                }
            })?;
        }
        Ok(())
    }

    /// Passes all states to `visit`, in order, until it returns false; each snapshot has the named
    /// view if it was sampled then.
    pub(super) fn play(
        &self,
        view: Option<&str>,
        mut visit: impl FnMut(i64, ServerHealth) -> bool,
    ) -> Result<(), CorruptFrame> {
        let mut should_continue = true;
        // Wait events of a file are read in step with the frames, each second once.
        let (mut waits, mut waits_at) = (WaitHistory::default(), 0);
        for segment in &self.segments {
            segment.play(i64::MAX, |at_us, health, views| {
                if !should_continue {
                    return;
                }
                let mut rate_view = None;
                select_view(&mut rate_view, views, view);
                let health = match health {
                    ServerHealth::Read(snapshot) => {
                        let waits = match &self.recorded_waits {
                            Some(in_file) => {
                                waits_at = in_file.add(&mut waits, waits_at, at_us);
                                Arc::new(waits.clone())
                            }
                            None => self.waits_until(at_us),
                        };
                        let snapshot = ServerSnapshot {
                            view: rate_view,
                            waits,
                            ..ServerSnapshot::clone(&snapshot)
                        };
                        ServerHealth::Read(Arc::new(snapshot))
                    }
                    other => other,
                };
                should_continue = visit(at_us, health);
            })?;
            if !should_continue {
                break;
            }
        }
        Ok(())
    }
}

fn select_view(rate_view: &mut Option<RateView>, views: Vec<RateView>, view_name: Option<&str>) {
    let is_wanted = |rate_view: &RateView| Some(rate_view.sample.view.name) == view_name;
    if let Some(found) = views.into_iter().find(is_wanted) {
        *rate_view = Some(found);
    }
}
