//! The common interface of the readers of the three formats.

use super::{
    csv::{Csv, CsvFramer},
    input_item::{ForeignLines, InputItem},
    json::{Json, JsonFramer},
    stderr::{Stderr, StderrFramer},
};
use crate::{
    clock::LogClock,
    prefix::SessionLookup,
    record::frame::{ChunkFrames, RecordFrame, SessionFields},
    summary::ProblemReason,
};
use howdah_log_input::InputState;

/// A reader of one of the three formats, with its position in the input.
///
/// All offsets count from the first byte that was not yet [consumed](LogReader::consumed).
#[derive(Debug)]
pub(crate) enum LogReader {
    Stderr(Stderr),
    Csv(Csv),
    Json(Json),
}

impl LogReader {
    /// Returns a reader with the same settings, for the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        match self {
            Self::Stderr(reader) => Self::Stderr(reader.restarted()),
            Self::Csv(reader) => Self::Csv(reader.restarted()),
            Self::Json(reader) => Self::Json(reader.restarted()),
        }
    }

    /// Returns the item at the front of the input. `scratch` must be empty; it receives unescaped
    /// texts.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        state: InputState,
        sessions: &impl SessionLookup,
        scratch: &mut Vec<u8>,
    ) -> InputItem {
        match self {
            Self::Stderr(reader) => reader.step(input, state, sessions),
            Self::Csv(reader) => reader.step(input, state),
            Self::Json(reader) => reader.step(input, state, scratch),
        }
    }

    /// Decodes the record that [`LogReader::step`] has just found in the first `len` bytes, using
    /// the same `scratch`.
    pub(crate) fn frame(
        &mut self,
        input: &[u8],
        clock: &mut LogClock,
        scratch: &mut Vec<u8>,
    ) -> Result<(RecordFrame, SessionFields), ProblemReason> {
        match self {
            Self::Stderr(reader) => reader.frame(input, clock, scratch),
            Self::Csv(reader) => reader.frame(input, clock, scratch),
            Self::Json(reader) => reader.frame(input, clock, scratch),
        }
    }

    /// Returns a framer for chunks of this file, once the reader has seen enough to build one.
    pub(crate) fn framer(&self, clock: &LogClock) -> Option<Framer> {
        Some(match self {
            Self::Stderr(reader) => Framer::Stderr(reader.framer(clock.clone())?),
            Self::Csv(reader) => Framer::Csv(reader.framer(clock.clone())),
            Self::Json(reader) => Framer::Json(reader.framer(clock.clone())),
        })
    }

    /// Returns a number that changes whenever earlier frames become invalid.
    pub(crate) fn version(&self) -> u32 {
        match self {
            Self::Stderr(reader) => reader.version(),
            Self::Csv(_) | Self::Json(_) => 0,
        }
    }

    /// Returns the foreign lines inside the record found by the last step.
    pub(crate) fn foreign_lines(&self) -> ForeignLines {
        match self {
            Self::Stderr(reader) => reader.foreign_lines(),
            Self::Csv(_) | Self::Json(_) => ForeignLines::default(),
        }
    }

    /// Adjusts offsets, after the caller has dropped the first `len` bytes of the input.
    pub(crate) fn consumed(&mut self, len: usize) {
        match self {
            Self::Stderr(reader) => reader.consumed(len),
            Self::Csv(reader) => reader.consumed(len),
            Self::Json(reader) => reader.consumed(len),
        }
    }
}

/// The part of a [`LogReader`] that depends only on the bytes of one chunk.
#[derive(Clone, Debug)]
pub(crate) enum Framer {
    Stderr(StderrFramer),
    Csv(CsvFramer),
    Json(JsonFramer),
}

impl Framer {
    /// Finds the unambiguous records in `chunk`.
    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        out.clear();
        match self {
            Self::Stderr(framer) => framer.frames(chunk, out),
            Self::Csv(framer) => framer.frames(chunk, out),
            Self::Json(framer) => framer.frames(chunk, out),
        }
        out.is_ascii = chunk.is_ascii() && out.scratch.is_ascii();
    }
}
