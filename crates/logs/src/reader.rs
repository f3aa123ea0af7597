//! What the readers of the three formats have in common.

use crate::{
    clock::Clock,
    csv::{Csv, CsvFramer},
    frame::{Frame, Frames, Owner},
    json::{Json, JsonFramer},
    prefix::Names,
    stderr::{Stderr, StderrFramer},
    summary::Reason,
};

/// One of the three formats, with its place in the input.
///
/// All offsets are from the first byte of the input that was not [consumed](Reader::consumed).
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum Reader {
    Stderr(Stderr),
    Csv(Csv),
    Json(Json),
}

/// Whether more input is to be expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// More may come at once.
    Open,
    /// Nothing came for a while: what looks complete is.
    Idle,
    /// Nothing will come.
    End,
}

/// What stands at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Too little to tell.
    More,
    /// A record of `len` bytes: ask [`Reader::frame`] for it.
    Record { len: usize },
    /// `len` bytes that are none.
    Junk { len: usize, reason: Reason },
    /// `len` bytes of no interest.
    Skip { len: usize },
}

/// Lines inside a record that do not belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intruders {
    pub(crate) count: u64,
    /// Where the first one begins.
    pub(crate) first: usize,
}

/// The names that sessions are known by.
pub(crate) trait Sessions {
    fn names(&self, session_id: &[u8], pid: Option<u32>) -> Names<'_>;
}

impl Reader {
    /// The same reader at the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        match self {
            Self::Stderr(reader) => Self::Stderr(reader.restarted()),
            Self::Csv(reader) => Self::Csv(reader.restarted()),
            Self::Json(reader) => Self::Json(reader.restarted()),
        }
    }

    /// Looks at the front of the input. `scratch` is to be empty.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        closing: Closing,
        sessions: &impl Sessions,
        scratch: &mut Vec<u8>,
    ) -> Step {
        match self {
            Self::Stderr(reader) => reader.step(input, closing, sessions),
            Self::Csv(reader) => reader.step(input, closing, scratch),
            Self::Json(reader) => reader.step(input, closing, scratch),
        }
    }

    /// The record that [`Reader::step`] has just found in the first `len` bytes, with the `scratch` it
    /// was given.
    pub(crate) fn frame(
        &mut self,
        input: &[u8],
        clock: &mut Clock,
        scratch: &mut Vec<u8>,
    ) -> Result<(Frame, Owner), Reason> {
        match self {
            Self::Stderr(reader) => reader.frame(input, clock, scratch),
            Self::Csv(reader) => reader.frame(input, clock, scratch),
            Self::Json(reader) => reader.frame(input, clock, scratch),
        }
    }

    /// What frames pieces of this file as this reader does, once the reader has seen enough to tell.
    pub(crate) fn framer(&self, clock: &Clock) -> Option<Framer> {
        Some(match self {
            Self::Stderr(reader) => Framer::Stderr(reader.framer(clock.clone())?),
            Self::Csv(reader) => Framer::Csv(reader.framer(clock.clone())),
            Self::Json(reader) => Framer::Json(reader.framer(clock.clone())),
        })
    }

    /// Changes when frames that were made before can no longer be trusted.
    pub(crate) fn version(&self) -> u32 {
        match self {
            Self::Stderr(reader) => reader.version(),
            Self::Csv(_) | Self::Json(_) => 0,
        }
    }

    /// Lines that were found inside the record of the last step.
    pub(crate) fn intruders(&self) -> Intruders {
        match self {
            Self::Stderr(reader) => reader.intruders(),
            Self::Csv(_) | Self::Json(_) => Intruders::default(),
        }
    }

    /// The first `len` bytes of the input are gone.
    pub(crate) fn consumed(&mut self, len: usize) {
        match self {
            Self::Stderr(reader) => reader.consumed(len),
            Self::Csv(reader) => reader.consumed(len),
            Self::Json(reader) => reader.consumed(len),
        }
    }
}

/// The part of a [`Reader`] that needs nothing but the bytes of a piece.
#[derive(Clone, Debug)]
pub(crate) enum Framer {
    Stderr(StderrFramer),
    Csv(CsvFramer),
    Json(JsonFramer),
}

impl Framer {
    /// Finds the records in `piece` that are beyond doubt.
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        out.clear();
        match self {
            Self::Stderr(framer) => framer.frames(piece, out),
            Self::Csv(framer) => framer.frames(piece, out),
            Self::Json(framer) => framer.frames(piece, out),
        }
        out.is_ascii = piece.is_ascii() && out.scratch.is_ascii();
    }
}
