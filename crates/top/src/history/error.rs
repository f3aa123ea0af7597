//! [`CorruptFrame`]: the reason why a frame cannot be decoded.

use howdah_codec::CodecError;

/// The reason why a frame cannot be decoded, usually because of a bug in its writer or damage on
/// disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptFrame {
    /// The frame ends too early, or could not be read.
    #[error("the frame is truncated or cannot be read")]
    Truncated,
    /// A number has more bits than its type.
    #[error("a number in the frame is out of range")]
    Number,
    /// A text is not UTF-8.
    #[error("a text in the frame is not UTF-8")]
    Text,
    /// A field of the frame is missing or invalid, or refers to data, such as a text or a row, that
    /// no earlier frame has defined.
    #[error("the frame has an invalid field, or refers to an undefined text or row")]
    Reference,
    /// The frame is larger, or has more rows, cells or texts, than allowed.
    #[error("the frame is larger, or has more rows, cells or texts, than allowed")]
    Size,
    /// The compressed data is invalid.
    #[error("the frame cannot be decompressed")]
    Packing,
    /// A later version wrote data of a kind that this version does not know.
    #[error("the frame has data of an unknown kind, written by a later version")]
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
