//! [`InputItem`]: what a reader finds at the front of its input.

use crate::summary::ProblemReason;

/// The item at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputItem {
    /// There is too little input to decide.
    More,
    /// A record of `len` bytes, which the [reader](super::reader::LogReader::frame) decodes.
    Record { len: usize },
    /// `len` bytes that are not a record.
    Junk { len: usize, reason: ProblemReason },
    /// `len` bytes to ignore.
    Skip { len: usize },
}

/// Lines inside a record that do not belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignLines {
    pub(crate) count: u64,
    /// Offset of the first such line in the record.
    pub(crate) first: usize,
}
