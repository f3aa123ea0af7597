//! [`CorruptFrame`]: the reason why a frame cannot be decoded.

use howdah_codec::CodecError;

/// The reason why a frame is corrupt, because of a bug in its writer or damage on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptFrame {
    /// The frame ends too early.
    #[error("data ends too early")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("a number is too long")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// The frame refers to data, such as a text or a row, that no earlier frame has defined.
    #[error("reference to undefined data")]
    Reference,
    /// The frame has more rows, cells or texts than allowed.
    #[error("data exceeds a limit")]
    Size,
    /// The compressed data is invalid.
    #[error("data cannot be decompressed")]
    Packing,
    /// A later version wrote data of a kind that this version does not know.
    #[error("data of an unknown kind, written by a later version")]
    Kind,
}

impl From<CodecError> for CorruptFrame {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Truncated => Self::Truncated,
            CodecError::NumberTooLarge => Self::Number,
            CodecError::CountTooLarge => Self::Size,
            CodecError::InvalidUtf8 => Self::Text,
        }
    }
}
