//! What the readers of the three formats have in common.

use crate::{
    clock::Clock, csv::Csv, json::Json, prefix::Names, record::Record, stderr::Stderr,
    summary::Reason,
};

/// One of the three formats, with its place in the input.
///
/// All offsets are from the first byte of the input that was not [consumed](Reader::consumed).
#[derive(Debug)]
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
    /// A record of `len` bytes: ask [`Reader::record`] for it.
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

    /// Looks at the front of the input.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        closing: Closing,
        sessions: &impl Sessions,
    ) -> Step {
        match self {
            Self::Stderr(reader) => reader.step(input, closing, sessions),
            Self::Csv(reader) => reader.step(input, closing),
            Self::Json(reader) => reader.step(input, closing),
        }
    }

    /// The record that [`Reader::step`] has just found in the first `len` bytes.
    pub(crate) fn record<'a>(
        &'a mut self,
        input: &'a [u8],
        clock: &mut Clock,
    ) -> Result<Record<'a>, Reason> {
        match self {
            Self::Stderr(reader) => reader.record(input, clock),
            Self::Csv(reader) => reader.record(input, clock),
            Self::Json(reader) => reader.record(input, clock),
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
